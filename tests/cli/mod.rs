//! The `folio` command as a user runs it: every command on images of its own, with valid and
//! invalid input.

mod check;
mod container;
mod copy_failures;
mod copy_forms;
mod create_auto;
mod disk;
mod disk_sources;
mod disk_tables;
mod erofs;
mod fat;
mod file_systems;
mod hostile_images;
mod image;
mod image_as_qemu;
mod image_changes;
mod image_targets;
mod info;
mod iotests;
mod layouts;
mod messages;
mod owners;
mod qemu_img;
mod qemu_img_amend;
mod qemu_img_bitmap;
mod qemu_img_convert;
mod qemu_img_dd;
mod qemu_img_info;
mod qemu_img_measure;
mod random_layers;
mod read_only;
mod registries;
mod reproducible;
mod sandbox;
mod schema;
mod select;
mod shell;
mod tar;
mod terminal;
mod verity;

use crate::support;

use std::collections::HashMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use support::tools::{command, fsck, run, succeed};
use support::{Manifest, Scope, requires};
use tempfile::TempDir;

/// A temporary directory with an image `disk.img`.
struct TestDir {
    folder: TempDir,
}

impl TestDir {
    fn new() -> Self {
        let dir = Self {
            folder: TempDir::new().unwrap(),
        };
        dir.ok(&["mkfs", "disk.img", "--size", "64M"]);
        dir
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_folio"));
        command
            .args(arguments)
            .current_dir(self.folder.path())
            .env("TZ", "UTC")
            .stdin(Stdio::null());
        command
    }

    #[track_caller]
    fn ok(&self, arguments: &[&str]) -> String {
        let output = self.command(arguments).output().unwrap();
        let printed = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(
            output.status.success() && printed.is_empty(),
            "{arguments:?}: {printed}"
        );
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Asserts that the command fails with this exit code and prints `words`.
    #[track_caller]
    fn fails(&self, arguments: &[&str], code: i32, words: &str) {
        let output = self.command(arguments).output().unwrap();
        let printed = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {printed}");
        assert!(
            printed.contains(words),
            "{arguments:?}: {printed:?} lacks {words:?}"
        );
        assert!(!printed.contains("panicked"), "{printed}");
    }

    fn write(&self, place: &str, text: &str) -> Output {
        std::fs::write(self.path("input"), text).unwrap();
        let input = std::fs::File::open(self.path("input")).unwrap();
        self.command(&["write", place])
            .stdin(input)
            .output()
            .unwrap()
    }

    fn json(&self, arguments: &[&str]) -> serde_json::Value {
        serde_json::from_str(&self.ok(arguments)).unwrap()
    }
}

/// Creates a tree with every file type that needs no root.
fn plain_tree(root: &Path) {
    std::fs::create_dir_all(root.join("folder/empty")).unwrap();
    std::fs::write(root.join("folder/file"), "hello").unwrap();
    std::fs::write(root.join("big"), vec![7; 3_000_001]).unwrap();
    std::fs::write(root.join(OsStr::from_bytes(b"not\xffutf8")), "x").unwrap();
    std::fs::hard_link(root.join("folder/file"), root.join("hard")).unwrap();
    std::os::unix::fs::symlink("folder/file", root.join("link")).unwrap();
    std::os::unix::fs::symlink("/nowhere", root.join("dangling")).unwrap();
    let sparse = std::fs::File::create(root.join("sparse")).unwrap();
    sparse.set_len(8 << 20).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&sparse, b"x", 5 << 20).unwrap();
    let path = |name: &str| root.join(name).into_os_string();
    run("mkfifo", [path("fifo")]);
    run("chmod", ["2750".into(), path("folder")]);
    run(
        "touch",
        [
            "-d".into(),
            "1969-12-31 10:00:00.123456789 UTC".into(),
            path("folder/file"),
        ],
    );
}

const HOLES: Scope = Scope {
    holes: true,
    below_root: false,
};

#[test]
fn tree_round_trip_is_identical() {
    requires!(tool("e2fsck"));
    let dir = TestDir::new();
    plain_tree(&dir.path("tree"));
    dir.ok(&[
        "cp",
        "-a",
        "tree",
        "new.img:/srv/deep/tree",
        "--create",
        "64M",
    ]);
    fsck(&dir.path("new.img"));
    dir.ok(&["cp", "-a", "new.img:/srv/deep/tree", "back"]);
    let want = Manifest::of(&dir.path("tree"), HOLES);
    want.assert_same(
        &Manifest::of(&dir.path("back"), HOLES),
        "host to image to host",
    );
    dir.ok(&["cp", "-a", "new.img:/srv/deep/tree", "disk.img:/"]);
    dir.ok(&["cp", "-a", "disk.img:/tree", "disk.img:/again"]);
    dir.ok(&["cp", "-a", "disk.img:/again", "third"]);
    want.assert_same(
        &Manifest::of(&dir.path("third"), HOLES),
        "image to image, and within one",
    );
    // Overwrites existing files.
    dir.ok(&["cp", "-aT", "tree", "disk.img:/again"]);
    dir.ok(&["cp", "-aT", "disk.img:/again", "third"]);
    want.assert_same(
        &Manifest::of(&dir.path("third"), HOLES),
        "over an older copy",
    );
    fsck(&dir.path("disk.img"));
}

#[test]
fn root_copy_keeps_all_file_types() {
    requires!(
        root,
        tool("e2fsck"),
        tool("setfattr"),
        tool("setfacl"),
        tool("setcap")
    );
    let dir = TestDir::new();
    let tree = dir.path("tree");
    plain_tree(&tree);
    let path = |name: &str| tree.join(name).into_os_string();
    std::os::unix::net::UnixListener::bind(tree.join("socket")).unwrap();
    run("mknod", [path("null"), "c".into(), "1".into(), "3".into()]);
    run(
        "mknod",
        [path("disk"), "b".into(), "7".into(), "300".into()],
    );
    run(
        "chown",
        [
            "-h".into(),
            "12:34".into(),
            path("folder"),
            path("link"),
            path("big"),
            path("null"),
        ],
    );
    run("chmod", ["6755".into(), path("big")]);
    run(
        "setfattr",
        [
            "-n".into(),
            "user.color".into(),
            "-v".into(),
            "blue".into(),
            path("folder/file"),
        ],
    );
    run(
        "setfacl",
        ["-m".into(), "u:5:rw,d:u:6:rx".into(), path("folder")],
    );
    std::fs::write(tree.join("able"), "x").unwrap();
    run("setcap", ["cap_net_raw+ep".into(), path("able")]);
    dir.ok(&["cp", "-a", "tree", "disk.img:/tree"]);
    dir.ok(&["cp", "-a", "disk.img:/tree", "back"]);
    let want = Manifest::of(&tree, HOLES);
    want.assert_same(&Manifest::of(&dir.path("back"), HOLES), "as root");
    fsck(&dir.path("disk.img"));
}

#[test]
fn repeated_build_is_byte_identical() {
    let dir = TestDir::new();
    plain_tree(&dir.path("tree"));
    for image in ["one.img", "two.img"] {
        let uuid = "2f1d9c34-6f0e-4a6e-9d0c-5a3b7f2e8c11";
        let mut command = dir.command(&[
            "cp",
            "-a",
            "tree",
            &format!("{image}:/t"),
            "--create",
            "64M",
            "--uuid",
            uuid,
        ]);
        succeed(command.env("SOURCE_DATE_EPOCH", "1000000000"));
    }
    let same =
        std::fs::read(dir.path("one.img")).unwrap() == std::fs::read(dir.path("two.img")).unwrap();
    assert!(same, "the images differ");
}

#[test]
fn file_commands_change_the_image() {
    let dir = TestDir::new();
    dir.ok(&["mkdir", "-p", "-m", "750", "disk.img:/etc/app"]);
    assert!(dir.write("disk.img:/etc/app/a", "hello\n").status.success());
    assert!(
        dir.write("disk.img:/etc/passwd", "me:x:1000:1000::/:/bin/sh\n")
            .status
            .success()
    );
    assert_eq!(dir.ok(&["cat", "disk.img:/etc/app/a"]), "hello\n");
    dir.ok(&["chmod", "u=rwX,go=", "disk.img:/etc/app/a"]);
    dir.ok(&["chown", "me:7", "disk.img:/etc/app/a"]);
    dir.ok(&["touch", "-d", "@5", "disk.img:/etc/app/a"]);
    let line = dir.ok(&["ls", "-l", "disk.img:/etc/app/a"]);
    assert_eq!(line, "-rw------- 1 me 7 6 1970-01-01 00:00 /etc/app/a\n");
    dir.ok(&["mv", "disk.img:/etc/app/a", "disk.img:/etc/app/b"]);
    dir.ok(&["ln", "disk.img:/etc/app/b", "disk.img:/etc/app/c"]);
    dir.ok(&["ln", "-s", "b", "disk.img:/etc/app/d"]);
    assert_eq!(dir.ok(&["cat", "disk.img:/etc/app/d"]), "hello\n");
    dir.ok(&["truncate", "-s", "1M", "disk.img:/etc/app/b"]);
    assert_eq!(
        dir.ok(&["find", "disk.img:/etc", "--size", "+100k", "--name", "[bc]"]),
        "disk.img:/etc/app/b\ndisk.img:/etc/app/c\n"
    );
    let tree = dir.ok(&["tree", "disk.img:/etc/app"]);
    assert!(
        tree.contains("\u{2514}\u{2500}\u{2500} d -> b") && tree.contains("0 directories, 3 files"),
        "{tree}"
    );
    dir.ok(&["rm", "-r", "disk.img:/etc/app"]);
    dir.ok(&["rm", "-f", "disk.img:/etc/app"]);
    assert_eq!(dir.ok(&["ls", "disk.img:/etc"]), "passwd\n");
    fsck(&dir.path("disk.img"));
}

#[test]
fn json_option_prints_lists_as_json() {
    let dir = TestDir::new();
    plain_tree(&dir.path("tree"));
    dir.ok(&["cp", "-a", "tree", "disk.img:/tree"]);
    let list = dir.json(&["ls", "--json", "disk.img:/tree"]);
    let list = list.as_array().unwrap();
    let find = |path: &str| list.iter().find(|file| file["path"] == path).unwrap();
    assert_eq!(
        (&find("/tree/link")["target"], &find("/tree/big")["size"]),
        (&"folder/file".into(), &3_000_001.into())
    );
    let odd = list
        .iter()
        .find(|file| file["path_bytes"] != serde_json::Value::Null)
        .unwrap();
    assert_eq!(odd["path_bytes"], "2f747265652f6e6f74ff75746638");
    assert_eq!(
        dir.json(&["stat", "--json", "disk.img:/tree/fifo"])[0]["type"],
        "fifo"
    );
    assert_eq!(
        dir.json(&["find", "disk.img:/tree", "--type", "l", "--json"])
            .as_array()
            .unwrap()
            .len(),
        2
    );
    assert!(
        dir.json(&["du", "-s", "--json", "disk.img:/tree"])[0]["allocated"]
            .as_u64()
            .unwrap()
            > 3_000_000
    );
    assert_eq!(
        dir.json(&["df", "--json", "disk.img"])[0]["image"],
        "disk.img"
    );
    assert!(
        !dir.json(&["tree", "--json", "disk.img"])
            .as_array()
            .unwrap()
            .is_empty()
    );
}

#[test]
fn stats_option_prints_page_cache_counters() {
    let dir = TestDir::new();
    std::fs::write(dir.path("big"), vec![7; 4 << 20]).unwrap();
    let printed = |arguments: &[&str]| {
        let output = dir.command(arguments).output().unwrap();
        assert!(output.status.success(), "{arguments:?}");
        let lines = String::from_utf8(output.stderr).unwrap();
        let pairs = lines.lines().map(|line| line.split_once(' ').unwrap());
        pairs
            .map(|(name, value)| (name.to_owned(), value.parse().unwrap()))
            .collect::<HashMap<_, f64>>()
    };
    let stats = printed(&["cp", "big", "disk.img:/", "--stats"]);
    assert!(
        stats["nr_written"] >= 1024.0 && stats["nr_dirtied"] >= 1024.0 && stats["nr_dirty"] == 0.0,
        "{stats:?}"
    );
    let stats = printed(&["--stats", "cat", "disk.img:/big"]);
    assert!(
        stats["misses"] + stats["readahead"] >= 1024.0 && stats["hit_percent"] > 50.0,
        "{stats:?}"
    );
    assert_eq!(
        printed(&["mkfs", "new.img", "--size", "64M", "--stats"])["nr_file_pages"],
        0.0
    );
    let printed = dir.json(&["ls", "--json", "--stats", "disk.img:/big"]);
    assert_eq!(printed["list"][0]["path"], "/big");
    assert!(
        printed["stats"]["misses"].as_u64().unwrap() > 0,
        "{printed}"
    );
    dir.fails(&["ls", "--stats", "disk.img:/none"], 1, "nr_file_pages");
}

#[test]
fn invalid_input_fails_and_changes_nothing() {
    let dir = TestDir::new();
    std::fs::write(dir.path("file"), "x").unwrap();
    std::fs::write(dir.path("junk"), vec![0x5a; 100_000]).unwrap();
    let before = std::fs::read(dir.path("disk.img")).unwrap();
    dir.fails(
        &["ls", "none.img"],
        3,
        "none.img: open: No such file or directory",
    );
    dir.fails(&["ls", "junk:/"], 3, "no ext4 file system");
    dir.fails(
        &["cat", "disk.img:/none"],
        1,
        "disk.img:/none: No such file or directory",
    );
    dir.fails(&["cat", "disk.img:none"], 2, "starts with '/'");
    dir.fails(
        &["cp", "missing", "new.img:/", "--create", "64M"],
        1,
        "missing: No such file",
    );
    assert!(!dir.path("new.img").exists());
    dir.fails(
        &["cp", "file", "disk.img:/", "--create", "64M"],
        1,
        "disk.img: already exists; omit --create to copy into it",
    );
    dir.fails(&["cp", "file", "none.img:/x"], 2, "none.img:/x");
    dir.fails(&["mkfs", "disk.img", "--size", "64M"], 1, "--force");
    dir.fails(&["mkfs", "new.img", "--size", "ten"], 2, "invalid size");
    dir.fails(&["lss", "disk.img"], 2, "ls");
    assert!(
        before == std::fs::read(dir.path("disk.img")).unwrap(),
        "the image changed"
    );
}

#[test]
fn full_file_system_reports_enospc() {
    let dir = TestDir::new();
    std::fs::write(dir.path("huge"), vec![1; 70 << 20]).unwrap();
    dir.fails(
        &["cp", "huge", "disk.img:/h"],
        1,
        "disk.img:/h: No space left on device",
    );
    assert_eq!(dir.ok(&["ls", "disk.img"]), "lost+found\n");
    fsck(&dir.path("disk.img"));
    dir.fails(
        &["cp", "huge", "new.img:/h", "--create", "16M"],
        1,
        "No space left on device",
    );
    assert!(!dir.path("new.img").exists());
}

#[test]
fn impossible_copy_is_refused() {
    let dir = TestDir::new();
    plain_tree(&dir.path("tree"));
    dir.ok(&["cp", "-a", "tree", "disk.img:/tree"]);
    dir.fails(
        &["cp", "-a", "disk.img:/tree", "disk.img:/tree/folder/in"],
        1,
        "into itself",
    );
    dir.fails(
        &["cp", "disk.img:/tree/big", "disk.img:/tree/big"],
        1,
        "are the same",
    );
    dir.fails(&["cp", "tree", "disk.img:/"], 1, "use -r to copy it");
    dir.fails(
        &["cp", "tree/big", "tree/hard", "disk.img:/tree/link"],
        1,
        "not a directory",
    );
    dir.fails(
        &["cp", "disk.img:/tree/big", "disk.img"],
        1,
        "image that is being read",
    );
    // The tree contains the target image itself.
    let output = dir
        .command(&["cp", "-a", ".", "own.img:/", "--create", "128M"])
        .output()
        .unwrap();
    let printed = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success() && printed.contains("skipped: this is an image in use"),
        "{printed}"
    );
}

#[test]
fn file_symlink_in_destination_is_written_through() {
    let dir = TestDir::new();
    std::fs::write(dir.path("outside"), "safe").unwrap();
    std::fs::create_dir_all(dir.path("tree/d")).unwrap();
    std::fs::write(dir.path("tree/f"), "new").unwrap();
    std::fs::write(dir.path("tree/d/g"), "new").unwrap();
    dir.ok(&["cp", "-a", "tree", "disk.img:/tree"]);
    std::fs::create_dir_all(dir.path("out/tree")).unwrap();
    std::fs::create_dir(dir.path("elsewhere")).unwrap();
    std::os::unix::fs::symlink("../../outside", dir.path("out/tree/f")).unwrap();
    std::os::unix::fs::symlink("../../elsewhere", dir.path("out/tree/d")).unwrap();
    dir.fails(
        &["cp", "-a", "disk.img:/tree", "out"],
        1,
        "cannot overwrite a non-directory with a directory",
    );
    // As GNU cp: a link to a file is written through, one to a directory is refused.
    assert_eq!(std::fs::read(dir.path("outside")).unwrap(), b"new");
    assert!(dir.path("out/tree/f").is_symlink());
    assert_eq!(std::fs::read_dir(dir.path("elsewhere")).unwrap().count(), 0);
}

#[test]
fn closed_output_pipe_ends_silently() {
    let dir = TestDir::new();
    std::fs::write(dir.path("big"), vec![b'x'; 4 << 20]).unwrap();
    dir.ok(&["cp", "big", "disk.img:/"]);
    let script = format!(
        "{} cat disk.img:/big | head -c 1",
        env!("CARGO_BIN_EXE_folio")
    );
    let output = command("sh")
        .args(["-c", &script])
        .current_dir(dir.folder.path())
        .output()
        .unwrap();
    assert_eq!(
        (output.stdout.as_slice(), output.stderr.as_slice()),
        (&b"x"[..], &b""[..])
    );
}

/// Returns the value of `field` in the output of dumpe2fs.
fn superblock_field(image: &Path, field: &str) -> String {
    let all = run("dumpe2fs", [OsStr::new("-h"), image.as_os_str()]);
    let line = all
        .lines()
        .find(|line| line.starts_with(&format!("{field}:")));
    line.map_or_else(String::new, |line| {
        line[field.len() + 1..].trim().to_owned()
    })
}

#[test]
fn tune_changes_superblock_fields() {
    requires!(tool("dumpe2fs"), tool("e2fsck"), tool("mke2fs"));
    let dir = TestDir::new();
    let image = dir.path("disk.img");
    let uuid = "2f1d9c34-6f0e-4a6e-9d0c-5a3b7f2e8c11";
    let words = "errors=remount-ro,journal_data_writeback,discard,nodelalloc,acl,user_xattr";
    let arguments = [
        "tune",
        "disk.img",
        "-L",
        "data",
        "-U",
        uuid,
        "-m",
        "1",
        "-c",
        "30",
        "--mount-defaults",
        words,
    ];
    dir.ok(&arguments);
    dir.ok(&[
        "tune",
        "disk.img",
        "--resuid",
        "5",
        "--resgid",
        "6",
        "--mount-defaults",
        "^discard",
        "--mount-opts",
        "commit=30",
    ]);
    for (field, want) in [
        ("Filesystem volume name", "data"),
        ("Filesystem UUID", uuid),
        (
            "Default mount options",
            "journal_data_writeback user_xattr acl nodelalloc",
        ),
        ("Errors behavior", "Remount read-only"),
        ("Reserved block count", "655"),
        ("Reserved blocks uid", "5 (user games)"),
        ("Maximum mount count", "30"),
        ("Mount options", "commit=30"),
    ] {
        let got = superblock_field(&image, field);
        let got = if field == "Reserved blocks uid" {
            &got[..1]
        } else {
            &got
        };
        assert_eq!(got, want.split(" (").next().unwrap(), "{field}");
    }
    fsck(&image);
    // A later mount keeps the fields, and the backup superblocks have them too.
    dir.ok(&["mkdir", "disk.img:/d"]);
    fsck(&image);
    let all = backup_superblock(&image);
    assert!(all.contains(uuid) && all.contains("commit=30"), "{all}");
}

/// Returns the output of dumpe2fs for the first backup superblock.
fn backup_superblock(image: &Path) -> String {
    let number = |field: &str| superblock_field(image, field).parse::<u64>().unwrap();
    let backup = number("First block") + number("Blocks per group");
    let superblock = format!("superblock={backup}");
    let block_size = format!("blocksize={}", number("Block size"));
    let arguments = ["-h", "-o", &superblock, "-o", &block_size].map(OsStr::new);
    run("dumpe2fs", arguments.into_iter().chain([image.as_os_str()]))
}

#[test]
fn tune_refuses_invalid_values() {
    let dir = TestDir::new();
    dir.fails(
        &["tune", "disk.img", "--mount-defaults", "foo"],
        2,
        "unknown default mount option \"foo\"",
    );
    dir.fails(&["tune", "disk.img", "-m", "51"], 2, "half of all");
    dir.fails(
        &["tune", "disk.img", "-L", "seventeen letters"],
        2,
        "17 bytes long",
    );
    dir.fails(
        &["tune", "disk.img", "--mount-opts", "foo"],
        2,
        "unknown mount option \"foo\"",
    );
}

#[test]
fn uuid_changes_with_any_checksum_feature() {
    requires!(tool("dumpe2fs"), tool("e2fsck"), tool("mke2fs"));
    let dir = TestDir::new();
    let uuid = "2f1d9c34-6f0e-4a6e-9d0c-5a3b7f2e8c11";
    for features in [
        "^metadata_csum_seed",
        "^metadata_csum,^metadata_csum_seed,^uninit_bg",
    ] {
        let image = dir.path("other.img");
        support::tools::mke2fs(&image, "32M", &["-O", features]);
        dir.ok(&["mkdir", "other.img:/d"]);
        dir.ok(&["tune", "other.img", "-U", uuid]);
        assert_eq!(superblock_field(&image, "Filesystem UUID"), uuid);
        fsck(&image);
        dir.ok(&["mkdir", "other.img:/e"]);
        fsck(&image);
        std::fs::remove_file(image).unwrap();
    }
}

#[test]
fn mount_options_apply_to_every_command() {
    let dir = TestDir::new();
    dir.ok(&["-o", "noatime,data=journal", "mkdir", "disk.img:/d"]);
    dir.ok(&["ls", "-o", "ro,noload", "disk.img"]);
    dir.fails(
        &["mkdir", "-o", "ro", "disk.img:/e"],
        1,
        "Read-only file system",
    );
    dir.fails(
        &["mkdir", "-o", "noatime,foo", "disk.img:/e"],
        2,
        "unknown mount option \"foo\"",
    );
    dir.fails(
        &["ls", "--options", "data=fast", "disk.img"],
        2,
        "invalid value in mount option \"data=fast\"",
    );
    dir.fails(
        &["mkfs", "-o", "ro", "new.img", "--size", "8M"],
        2,
        "nothing is mounted here",
    );
}
