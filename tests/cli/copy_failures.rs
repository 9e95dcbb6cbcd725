//! Copies of files that cannot be copied in full: the failure is printed, all other files arrive,
//! and the exit code is 1.

use super::TestDir;
use crate::support::tools::{command, fsck, run, text};
use crate::support::{Mounted, requires};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::{Command, Output};

const USER: &str = "65534";

/// Returns the output of a command of a user without privileges. The program is copied to `./folio`
/// for it, as the user may not reach it elsewhere.
fn as_user(dir: &TestDir, words: &[&str]) -> Output {
    let folder = dir.folder.path();
    let mode = std::fs::Permissions::from_mode(0o777);
    std::fs::set_permissions(folder, mode).unwrap();
    // By another process: a file that this one has written may be open in a fork of another test.
    let program = env!("CARGO_BIN_EXE_folio").into();
    run("cp", [program, folder.join("folio").into_os_string()]);
    let mut shell = command("setpriv");
    shell
        .args(["--reuid", USER, "--regid", USER, "--clear-groups"])
        .args(words)
        .current_dir(folder);
    shell.output().unwrap()
}

#[track_caller]
fn assert_failed(output: &Output, words: &[&str]) {
    let printed = text(output);
    assert_eq!(output.status.code(), Some(1), "{printed}");
    for word in words {
        assert!(printed.contains(word), "{printed:?} lacks {word:?}");
    }
    let lines = printed.lines().count();
    assert_eq!(lines, words.len(), "{printed}");
}

/// Creates a tree with an attribute that does not fit into blocks of 1024 bytes.
fn tree_with_long_attribute(root: &Path) {
    std::fs::create_dir_all(root.join("a")).unwrap();
    for name in ["1", "2", "3", "a/4", "z"] {
        std::fs::write(root.join(name), name).unwrap();
    }
    let path = |name: &str| root.join(name).into_os_string();
    let set = |name: &str, value: &str, file: &str| {
        let words = ["-n".into(), name.into(), "-v".into(), value.into()];
        run("setfattr", words.into_iter().chain([path(file)]));
    };
    set("user.long", &"x".repeat(3000), "2");
    set("user.z", "short", "2");
    set("user.long", &"x".repeat(3000), "a");
    run("touch", ["-d".into(), "2001-02-03 UTC".into(), path("2")]);
}

/// Asserts that all of the tree is there but the long attributes.
#[track_caller]
fn assert_rest_arrived(root: &Path) {
    for name in ["1", "2", "3", "a/4", "z"] {
        assert_eq!(std::fs::read_to_string(root.join(name)).unwrap(), name);
    }
    let found = run("getfattr", ["-d".into(), root.join("2").into_os_string()]);
    assert!(found.contains("user.z=\"short\""), "{found}");
    let modified = std::fs::metadata(root.join("2")).unwrap().mtime();
    assert_eq!(modified, 981_158_400, "the times are set nevertheless");
}

#[test]
fn attribute_without_room_stops_no_copy() {
    requires!(
        root,
        loop_devices,
        tool("mke2fs"),
        tool("e2fsck"),
        tool("setfattr"),
        tool("getfattr")
    );
    let dir = TestDir::new();
    tree_with_long_attribute(&dir.path("tree"));
    dir.ok(&["mkfs", "wide.img", "--size", "64M", "-b", "4096"]);
    dir.ok(&["cp", "-a", "tree", "wide.img:/"]);
    for name in ["host.img", "small.img"] {
        let image = dir.path(name).into_os_string();
        let words = ["-q", "-F", "-t", "ext4", "-b", "1024"].map(Into::into);
        run("mke2fs", words.into_iter().chain([image, "16M".into()]));
    }
    let host = Mounted::new(&dir.path("host.img"), "rw");
    let back = host.path().join("back");
    let failure = |place: &str| {
        format!("{place}: cannot set the extended attribute user.long: No space left on device")
    };
    let copied = |from: &str, to: &str| {
        let output = dir.command(&["cp", "-a", from, to]).output().unwrap();
        let words = [failure(&format!("{to}/2")), failure(&format!("{to}/a"))];
        assert_failed(&output, &words.each_ref().map(String::as_str));
    };
    // Out of an image, into one, and between images.
    copied("wide.img:/tree", back.to_str().unwrap());
    assert_rest_arrived(&back);
    copied("tree", "small.img:/into");
    copied("wide.img:/tree", "small.img:/between");
    host.unmount();
    fsck(&dir.path("small.img"));
    let small = Mounted::new(&dir.path("small.img"), "ro");
    assert_rest_arrived(&small.path().join("into"));
    assert_rest_arrived(&small.path().join("between"));
    small.unmount();
}

/// Creates an image with a device node between files of several owners.
fn image_with_devices(dir: &TestDir) {
    let tree = dir.path("tree");
    std::fs::create_dir(&tree).unwrap();
    for name in ["first", "last"] {
        std::fs::write(tree.join(name), name).unwrap();
        let words = ["12:34".into(), tree.join(name).into_os_string()];
        run("chown", words);
    }
    let words = ["c".into(), "1".into(), "3".into()];
    run(
        "mknod",
        [tree.join("null").into_os_string()]
            .into_iter()
            .chain(words),
    );
    dir.ok(&["cp", "-a", "tree", "disk.img:/"]);
}

#[test]
fn device_node_without_root_is_reported_alone() {
    requires!(root, tool("setpriv"), tool("mknod"));
    let dir = TestDir::new();
    image_with_devices(&dir);
    let output = as_user(&dir, &["./folio", "cp", "-a", "disk.img:/tree", "back"]);
    // Owners are dropped silently, as by cp(1).
    assert_failed(&output, &["back/null: only root can create device nodes"]);
    for name in ["first", "last"] {
        let found = dir.path("back").join(name);
        assert_eq!(std::fs::read_to_string(&found).unwrap(), name);
        assert_eq!(std::fs::metadata(&found).unwrap().uid(), 65534);
    }
}

#[test]
fn owner_that_root_cannot_set_is_reported() {
    requires!(root, user_namespaces, tool("mknod"));
    let dir = TestDir::new();
    image_with_devices(&dir);
    let mut folio = Command::new("unshare");
    folio
        .args(["--user", "--map-root-user", env!("CARGO_BIN_EXE_folio")])
        .args(["cp", "-a", "disk.img:/tree", "back"])
        .current_dir(dir.folder.path());
    let output = folio.output().unwrap();
    assert_failed(
        &output,
        &[
            "back/first: cannot set the owner 12:34: Invalid argument",
            "back/last: cannot set the owner 12:34: Invalid argument",
            "back/null: Operation not permitted",
        ],
    );
    let last = dir.path("back/last");
    assert_eq!(std::fs::read_to_string(last).unwrap(), "last");
}

#[test]
fn unreadable_source_is_reported_alone() {
    requires!(root, tool("setpriv"));
    let dir = TestDir::new();
    let tree = dir.path("tree");
    std::fs::create_dir_all(tree.join("closed")).unwrap();
    for name in ["a", "closed/b", "secret", "z"] {
        std::fs::write(tree.join(name), name).unwrap();
    }
    for name in ["closed", "secret"] {
        let mode = std::fs::Permissions::from_mode(0o0);
        std::fs::set_permissions(tree.join(name), mode).unwrap();
    }
    let image = std::fs::Permissions::from_mode(0o666);
    std::fs::set_permissions(dir.path("disk.img"), image).unwrap();
    let output = as_user(&dir, &["./folio", "cp", "-a", "tree", "disk.img:/"]);
    assert_failed(
        &output,
        &[
            "tree/closed: Permission denied",
            "tree/secret: Permission denied",
        ],
    );
    assert_eq!(dir.ok(&["ls", "disk.img:/tree"]), "a\nz\n");
}

#[test]
fn unsupported_attributes_are_noted() {
    requires!(root, tool("setfattr"), tool("mount"));
    let dir = TestDir::new();
    tree_with_long_attribute(&dir.path("tree"));
    dir.ok(&["mkfs", "wide.img", "--size", "64M", "-b", "4096"]);
    dir.ok(&["cp", "-a", "tree", "wide.img:/"]);
    std::fs::create_dir(dir.path("ramfs")).unwrap();
    let place = dir.path("ramfs").into_os_string();
    let words = ["-t".into(), "ramfs".into(), "none".into(), place.clone()];
    run("mount", words);
    let output = dir.command(&["cp", "-a", "wide.img:/tree", "ramfs/back"]);
    let output = { output }.output().unwrap();
    let read = std::fs::read_to_string(dir.path("ramfs/back/z"));
    run("umount", [place]);
    let printed = text(&output);
    assert!(output.status.success(), "{printed}");
    assert!(
        printed.contains("extended attributes not set: 3; the target or this user"),
        "{printed}"
    );
    assert_eq!(read.unwrap(), "z");
}

#[test]
fn file_with_unreadable_blocks_is_not_left_incomplete() {
    requires!(tool("debugfs"));
    let dir = TestDir::new();
    std::fs::create_dir(dir.path("tree")).unwrap();
    for (name, len) in [("a", 10), ("big", 3 << 20), ("z", 10)] {
        std::fs::write(dir.path("tree").join(name), vec![7; len]).unwrap();
    }
    dir.ok(&["cp", "-a", "tree", "disk.img:/"]);
    // The start of the first extent: beyond the end of the image.
    let request = "set_inode_field /tree/big block[5] 0xffffff0";
    let image = dir.path("disk.img").into_os_string();
    run("debugfs", ["-w".into(), "-R".into(), request.into(), image]);
    let output = dir.command(&["cp", "-a", "disk.img:/tree", "back"]);
    let output = { output }.output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", text(&output));
    assert!(text(&output).contains("/tree/big: "), "{}", text(&output));
    let mut names: Vec<_> = std::fs::read_dir(dir.path("back"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    names.sort();
    assert_eq!(names, ["a", "z"]);
}

/// Creates a setuid and setgid file of this owner in `disk.img`.
fn image_with_special_bits(dir: &TestDir, owner: &str) {
    dir.write("disk.img:/su", "su");
    dir.ok(&["chown", owner, "disk.img:/su"]);
    dir.ok(&["chmod", "6755", "disk.img:/su"]);
}

#[test]
fn special_bits_are_kept_for_the_owner() {
    requires!(root, tool("setpriv"));
    let dir = TestDir::new();
    image_with_special_bits(&dir, "65534:65534");
    let output = as_user(&dir, &["./folio", "cp", "-a", "disk.img:/su", "back"]);
    assert!(output.status.success(), "{}", text(&output));
    let found = std::fs::metadata(dir.path("back")).unwrap();
    assert_eq!((found.uid(), found.mode() & 0o7777), (65534, 0o6755));
    // Those of another owner would give the caller's rights away.
    image_with_special_bits(&dir, "0:0");
    let output = as_user(&dir, &["./folio", "cp", "-a", "disk.img:/su", "other"]);
    assert!(output.status.success(), "{}", text(&output));
    let found = std::fs::metadata(dir.path("other")).unwrap();
    assert_eq!((found.uid(), found.mode() & 0o7777), (65534, 0o755));
}

#[test]
fn special_bits_are_kept_in_a_user_namespace() {
    requires!(root, user_namespaces, tool("setpriv"));
    let dir = TestDir::new();
    image_with_special_bits(&dir, "0:0");
    let words = ["unshare", "--user", "--map-root-user", "./folio"];
    let copy = ["cp", "-a", "disk.img:/su", "back"];
    let output = as_user(&dir, &[&words[..], &copy].concat());
    assert!(output.status.success(), "{}", text(&output));
    let mode = std::fs::metadata(dir.path("back")).unwrap().mode();
    assert_eq!(mode & 0o7777, 0o6755);
}

const UNDER_FAKEROOT: &str = r#"
set -e
mkdir tree tree/sub
echo x >tree/f; ln -s f tree/l; mkfifo tree/p; mknod tree/null c 1 3; mknod tree/disk b 7 300
chown 12:34 tree/f; chmod 4755 tree/f; chown -h 5:6 tree/l; chown 7:8 tree/sub; chown 9:9 tree/p
chmod 660 tree/disk; chown 11:11 tree/null
echo y >tree/su; chown 0:0 tree/su; chmod 4755 tree/su
./folio cp -a tree user.img:/
./folio cp -a user.img:/tree back
for root in tree back; do (cd $root; stat -c '%n %F %a %u:%g %t,%T' f l p null disk su sub) >$root.txt; done
cmp tree.txt back.txt
"#;

#[test]
fn fakeroot_owners_and_kinds_are_kept() {
    requires!(root, tool("setpriv"), tool("fakeroot"), tool("bash"));
    let dir = TestDir::new();
    dir.ok(&["mkfs", "user.img", "--size", "16M"]);
    let mode = std::fs::Permissions::from_mode(0o666);
    std::fs::set_permissions(dir.path("user.img"), mode).unwrap();
    let output = as_user(&dir, &["fakeroot", "bash", "-c", UNDER_FAKEROOT]);
    assert!(output.status.success(), "{}", text(&output));
    let listed = dir.json(&["ls", "-l", "user.img:/tree", "--json"]);
    let found: Vec<_> = listed.as_array().unwrap().iter().map(fields).collect();
    assert_eq!(
        found,
        [
            "/tree/disk block-device 0:0",
            "/tree/f file 12:34",
            "/tree/l symlink 5:6",
            "/tree/null character-device 11:11",
            "/tree/p fifo 9:9",
            "/tree/su file 0:0",
            "/tree/sub directory 7:8",
        ]
    );
}

fn fields(entry: &serde_json::Value) -> String {
    format!(
        "{} {} {}:{}",
        entry["path"].as_str().unwrap(),
        entry["type"].as_str().unwrap(),
        entry["uid"],
        entry["gid"]
    )
}

#[test]
fn fakeroot_that_is_not_loaded_is_refused() {
    let dir = TestDir::new();
    std::fs::write(dir.path("file"), "x").unwrap();
    let with_key = |words: &[&str]| {
        let mut folio = dir.command(words);
        folio.env("FAKEROOTKEY", "1").output().unwrap()
    };
    let output = with_key(&["cp", "-a", "file", "disk.img:/"]);
    assert_failed(&output, &["cannot keep owners under fakeroot"]);
    assert_eq!(dir.ok(&["ls", "disk.img"]), "lost+found\n");
    let output = with_key(&["cp", "file", "disk.img:/"]);
    assert!(output.status.success(), "{}", text(&output));
}
