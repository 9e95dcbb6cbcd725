//! Other users: modes, groups and ACLs, as the asking kernel judges them.

use crate::support::tools::{command, run};
use crate::{Bench, everywhere};
use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::Path;
use std::process::Stdio;

const USER: u32 = 54_321;
const GROUP: u32 = 54_322;
const OTHER_GROUP: u32 = 54_323;

/// Whether a user with these groups can do this in a shell.
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

everywhere! {
    modes_groups_and_owners_count: "allow_other", "setpriv";
    only_the_owner_is_let_in_unless_asked: "rw", "setpriv";
    with_allow_root_only_the_owner_and_root_are_let_in: "allow_root", "setpriv";
    acls_are_kept_and_heeded: "allow_other", "setpriv", "setfacl", "getfacl";
    with_fakeroot_everybody_is_root_inside: "allow_other,fakeroot", "setpriv";
}

fn modes_groups_and_owners_count(bench: Bench) {
    fs::set_permissions(bench.mount.path(), Permissions::from_mode(0o777)).unwrap();
    let path = bench.at("f");
    fs::write(&path, "x").unwrap();
    chown(&path, Some(0), Some(OTHER_GROUP)).unwrap();
    fs::set_permissions(&path, Permissions::from_mode(0o640)).unwrap();
    assert!(!can("--clear-groups", "cat \"$1\"", &path));
    // A supplementary group, of which a request says nothing.
    assert!(can(&format!("--groups={OTHER_GROUP}"), "cat \"$1\"", &path));
    assert!(!can(
        &format!("--groups={OTHER_GROUP}"),
        "echo y > \"$1\"",
        &path
    ));
    assert!(can(
        "--clear-groups",
        "umask 027; echo y > \"$1\"",
        &bench.at("g")
    ));
    let made = fs::metadata(bench.at("g")).unwrap();
    assert_eq!(
        (made.uid(), made.gid(), made.mode() & 0o7777),
        (USER, GROUP, 0o640)
    );
    // Whoever writes takes setuid away, unless root does.
    fs::set_permissions(bench.at("g"), Permissions::from_mode(0o6777)).unwrap();
    fs::write(bench.at("g"), "root").unwrap();
    assert_eq!(fs::metadata(bench.at("g")).unwrap().mode() & 0o7777, 0o6777);
    assert!(can("--clear-groups", "echo z >> \"$1\"", &bench.at("g")));
    assert_eq!(fs::metadata(bench.at("g")).unwrap().mode() & 0o7777, 0o777);
    bench.finish();
}

fn only_the_owner_is_let_in_unless_asked(bench: Bench) {
    fs::set_permissions(bench.mount.path(), Permissions::from_mode(0o777)).unwrap();
    assert!(!can("--clear-groups", "ls \"$1\"", &bench.mount.path()));
    bench.finish();
}

fn with_allow_root_only_the_owner_and_root_are_let_in(bench: Bench) {
    fs::set_permissions(bench.mount.path(), Permissions::from_mode(0o777)).unwrap();
    fs::write(bench.at("f"), "secret").unwrap();
    fs::set_permissions(bench.at("f"), Permissions::from_mode(0o666)).unwrap();
    // The kernel has it all by now.
    assert_eq!(fs::read(bench.at("f")).unwrap(), b"secret");
    assert!(
        fs::read_dir(bench.mount.path())
            .unwrap()
            .all(|entry| entry.is_ok())
    );
    for script in [
        "cat \"$1\"",
        "echo x > \"$1\"",
        "ls \"$(dirname \"$1\")\"",
        "touch \"$1.new\"",
    ] {
        assert!(!can("--clear-groups", script, &bench.at("f")), "{script}");
    }
    assert_eq!(fs::read(bench.at("f")).unwrap(), b"secret");
    bench.finish();
}

fn acls_are_kept_and_heeded(bench: Bench) {
    let path = bench.at("f");
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
    // The mask shows in the group's place.
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
    // A default ACL takes the place of the umask.
    let folder = bench.at("folder");
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
    let told = run("getfacl", ["-cpn".as_ref(), folder.join("f").as_os_str()]);
    assert!(
        told.contains(&format!("user:{USER}:rwx")) && told.contains("mask::rw-"),
        "{told}"
    );
    bench.finish();
}

fn with_fakeroot_everybody_is_root_inside(bench: Bench) {
    fs::create_dir(bench.at("d")).unwrap();
    fs::set_permissions(bench.at("d"), Permissions::from_mode(0o700)).unwrap();
    assert!(can("--clear-groups", "echo x > \"$1\"", &bench.at("d/f")));
    let made = fs::metadata(bench.at("d/f")).unwrap();
    assert_eq!((made.uid(), made.gid()), (0, 0));
    bench.finish();
}
