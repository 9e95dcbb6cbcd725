//! Other users: modes, groups and ACLs, checked by the kernel.

use crate::support::tools::{command, run};
use crate::{Fixture, for_each_source};
use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::Path;
use std::process::Stdio;

const USER: u32 = 54_321;
const GROUP: u32 = 54_322;
const OTHER_GROUP: u32 = 54_323;

/// Returns whether a shell script succeeds as a user with these groups.
fn can(groups: &str, script: &str, path: &Path) -> bool {
    let mut shell = command("setpriv");
    shell.args([
        &format!("--reuid={USER}"),
        &format!("--regid={GROUP}"),
        groups,
    ]);
    shell.args(["sh", "-c", script, "sh"]).arg(path);
    shell
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .unwrap()
        .success()
}

for_each_source! {
    access_follows_modes_and_groups: "allow_other", "setpriv";
    default_mount_denies_other_users: "rw", "setpriv";
    allow_root_denies_other_users: "allow_root", "setpriv";
    acl_grants_and_masks_access: "allow_other", "setpriv", "setfacl", "getfacl";
    fakeroot_new_files_belong_to_root: "allow_other,fakeroot", "setpriv";
}

fn access_follows_modes_and_groups(fixture: Fixture) {
    fs::set_permissions(fixture.mount.path(), Permissions::from_mode(0o777)).unwrap();
    let path = fixture.at("f");
    fs::write(&path, "x").unwrap();
    chown(&path, Some(0), Some(OTHER_GROUP)).unwrap();
    fs::set_permissions(&path, Permissions::from_mode(0o640)).unwrap();
    assert!(!can("--clear-groups", "cat \"$1\"", &path));
    // By a supplementary group, which requests do not contain.
    assert!(can(&format!("--groups={OTHER_GROUP}"), "cat \"$1\"", &path));
    assert!(!can(
        &format!("--groups={OTHER_GROUP}"),
        "echo y > \"$1\"",
        &path
    ));
    assert!(can(
        "--clear-groups",
        "umask 027; echo y > \"$1\"",
        &fixture.at("g")
    ));
    let made = fs::metadata(fixture.at("g")).unwrap();
    assert_eq!(
        (made.uid(), made.gid(), made.mode() & 0o7777),
        (USER, GROUP, 0o640)
    );
    // A write clears setuid, except by root.
    fs::set_permissions(fixture.at("g"), Permissions::from_mode(0o6777)).unwrap();
    fs::write(fixture.at("g"), "root").unwrap();
    assert_eq!(
        fs::metadata(fixture.at("g")).unwrap().mode() & 0o7777,
        0o6777
    );
    assert!(can("--clear-groups", "echo z >> \"$1\"", &fixture.at("g")));
    assert_eq!(
        fs::metadata(fixture.at("g")).unwrap().mode() & 0o7777,
        0o777
    );
    fixture.finish();
}

fn default_mount_denies_other_users(fixture: Fixture) {
    fs::set_permissions(fixture.mount.path(), Permissions::from_mode(0o777)).unwrap();
    assert!(!can("--clear-groups", "ls \"$1\"", &fixture.mount.path()));
    fixture.finish();
}

fn allow_root_denies_other_users(fixture: Fixture) {
    fs::set_permissions(fixture.mount.path(), Permissions::from_mode(0o777)).unwrap();
    fs::write(fixture.at("f"), "secret").unwrap();
    fs::set_permissions(fixture.at("f"), Permissions::from_mode(0o666)).unwrap();
    // The kernel has cached everything by now.
    assert_eq!(fs::read(fixture.at("f")).unwrap(), b"secret");
    assert!(
        fs::read_dir(fixture.mount.path())
            .unwrap()
            .all(|entry| entry.is_ok())
    );
    for script in [
        "cat \"$1\"",
        "echo x > \"$1\"",
        "ls \"$(dirname \"$1\")\"",
        "touch \"$1.new\"",
    ] {
        assert!(!can("--clear-groups", script, &fixture.at("f")), "{script}");
    }
    assert_eq!(fs::read(fixture.at("f")).unwrap(), b"secret");
    fixture.finish();
}

fn acl_grants_and_masks_access(fixture: Fixture) {
    let path = fixture.at("f");
    fs::write(&path, "x").unwrap();
    fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
    assert!(!can("--clear-groups", "cat \"$1\"", &path));
    run(
        "setfacl",
        [
            "-m".as_ref(),
            format!("u:{USER}:rw").as_ref(),
            path.as_os_str(),
        ],
    );
    // The mask takes the place of the group bits.
    assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o660);
    assert!(can(
        "--clear-groups",
        "cat \"$1\" && echo y > \"$1\"",
        &path
    ));
    fs::set_permissions(&path, Permissions::from_mode(0o640)).unwrap();
    assert!(
        can("--clear-groups", "cat \"$1\"", &path)
            && !can("--clear-groups", "echo y > \"$1\"", &path)
    );
    assert!(run("getfacl", ["-cpn".as_ref(), path.as_os_str()]).contains("mask::r--"));
    // A default ACL replaces the umask.
    let folder = fixture.at("folder");
    fs::create_dir(&folder).unwrap();
    fs::set_permissions(&folder, Permissions::from_mode(0o777)).unwrap();
    run(
        "setfacl",
        [
            "-dm".as_ref(),
            format!("u:{USER}:rwx,o::-").as_ref(),
            folder.as_os_str(),
        ],
    );
    assert!(can(
        "--clear-groups",
        "umask 077; echo x > \"$1\"",
        &folder.join("f")
    ));
    assert_eq!(
        fs::metadata(folder.join("f")).unwrap().mode() & 0o777,
        0o660
    );
    let acl = run("getfacl", ["-cpn".as_ref(), folder.join("f").as_os_str()]);
    assert!(
        acl.contains(&format!("user:{USER}:rwx")) && acl.contains("mask::rw-"),
        "{acl}"
    );
    fixture.finish();
}

fn fakeroot_new_files_belong_to_root(fixture: Fixture) {
    fs::create_dir(fixture.at("d")).unwrap();
    fs::set_permissions(fixture.at("d"), Permissions::from_mode(0o700)).unwrap();
    assert!(can("--clear-groups", "echo x > \"$1\"", &fixture.at("d/f")));
    let made = fs::metadata(fixture.at("d/f")).unwrap();
    assert_eq!((made.uid(), made.gid()), (0, 0));
    fixture.finish();
}
