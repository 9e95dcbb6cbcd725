//! Other users: modes, groups and ACLs, checked by the kernel.

use crate::support::require::find;
use crate::support::tools::{command, run, succeed, text};
use crate::{Fixture, for_each_source};
use rustix::fs::XattrFlags;
use rustix::io::Errno;
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
    unprivileged_write_ends_set_user_id: "allow_other,suid", "setpriv", "id", "dd";
    default_mount_denies_other_users: "rw", "setpriv";
    allow_root_denies_other_users: "allow_root", "setpriv";
    acl_grants_and_masks_access: "allow_other", "setpriv", "setfacl", "getfacl";
    acl_by_owner_outside_of_group_clears_setgid: "allow_other", "setpriv", "setfacl";
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
    check_setgid_without_execution(&fixture);
    fixture.finish();
}

/// Setgid without group execution is cleared by the writes of users outside of the group, as on the
/// kernel's ext4.
fn check_setgid_without_execution(fixture: &Fixture) {
    let path = fixture.at("setgid");
    for (gid, script, left) in [
        (OTHER_GROUP, "echo x >> \"$1\"", 0o766),
        (OTHER_GROUP, "truncate -s 1 \"$1\"", 0o766),
        (OTHER_GROUP, "fallocate -l 9000 \"$1\"", 0o766),
        (GROUP, "echo x >> \"$1\"", 0o2766),
        (GROUP, "truncate -s 1 \"$1\"", 0o2766),
    ] {
        fs::write(&path, "content").unwrap();
        chown(&path, Some(0), Some(gid)).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o6766)).unwrap();
        assert!(can("--clear-groups", script, &path), "{script}");
        let mode = fs::metadata(&path).unwrap().mode() & 0o7777;
        assert_eq!(mode, left, "{script}, {mode:o}");
    }
}

/// The server clears the bits, and execve(2) honors the mode that the kernel has cached.
fn unprivileged_write_ends_set_user_id(fixture: Fixture) {
    fs::set_permissions(fixture.mount.path(), Permissions::from_mode(0o777)).unwrap();
    let path = fixture.at("id");
    let id = fs::read(find("id").unwrap()).unwrap();
    // No process of this one has ever had it open for writing, so that it can be executed.
    run("cp", [find("id").unwrap().as_os_str(), path.as_os_str()]);
    let run_after = |write: &str| {
        fs::set_permissions(&path, Permissions::from_mode(0o6777)).unwrap();
        let mut shell = command("setpriv");
        shell.args([&format!("--reuid={USER}"), &format!("--regid={GROUP}")]);
        let script = format!("{write}; exec \"$1\" -u");
        shell.args(["--clear-groups", "sh", "-ec", &script, "sh"]);
        text(&succeed(shell.arg(&path))).trim().to_owned()
    };
    assert_eq!(run_after("true"), "0", "the bit has an effect");
    let block = "bs=4096 count=1 conv=notrunc";
    let first = "dd if=\"$1\" of=\"$1\" status=none";
    for flag in ["", "oflag=direct"] {
        let user = run_after(&format!("{first} {block} {flag}"));
        assert_eq!(user, USER.to_string(), "after a write {flag}");
    }
    let user = run_after("truncate -s +4096 \"$1\"");
    assert_eq!(user, USER.to_string(), "after truncate(2)");
    assert!(fs::read(&path).unwrap().starts_with(&id));
    // Capabilities end like set-user-ID.
    const CAPABILITY: [u8; 20] = [1, 0, 0, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let name = "security.capability";
    rustix::fs::setxattr(&path, name, &CAPABILITY, XattrFlags::empty()).unwrap();
    run_after(&format!("{first} {block}"));
    assert_eq!(
        rustix::fs::getxattr(&path, name, &mut [0; 20]),
        Err(Errno::NODATA)
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

fn acl_by_owner_outside_of_group_clears_setgid(fixture: Fixture) {
    let path = fixture.at("f");
    fs::write(&path, "x").unwrap();
    for (gid, groups, left) in [
        (OTHER_GROUP, "--clear-groups".to_owned(), 0o777),
        (OTHER_GROUP, format!("--groups={OTHER_GROUP}"), 0o2777),
        (GROUP, "--clear-groups".to_owned(), 0o2777),
    ] {
        chown(&path, Some(USER), Some(gid)).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o2777)).unwrap();
        let script = "setfacl -m u:54399:rwx \"$1\"";
        assert!(can(&groups, script, &path));
        let mode = fs::metadata(&path).unwrap().mode() & 0o7777;
        assert_eq!(mode, left, "{gid} {groups}: {mode:o}");
        // chmod(2) clears it by the same rule.
        assert!(can(&groups, "chmod 2755 \"$1\"", &path));
        let mode = fs::metadata(&path).unwrap().mode() & 0o7777;
        assert_eq!(mode, left & 0o2000 | 0o755, "{gid} {groups}: {mode:o}");
    }
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
