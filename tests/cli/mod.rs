//! The `folio` command as a user runs it: every command on an image that the command itself made,
//! good and bad input.

mod check;
mod image;
mod image_life;
mod manners;
mod schema;
use crate::support;

use std::collections::HashMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use support::tools::{command, fsck, run, succeed};
use support::{Manifest, Scope, requires};
use tempfile::TempDir;

/// A folder with an image in it.
struct Bench {
    folder: TempDir,
}

impl Bench {
    fn new() -> Self {
        let bench = Self {
            folder: TempDir::new().unwrap(),
        };
        bench.ok(&["mkfs", "disk.img", "--size", "64M"]);
        bench
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
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(
            output.status.success() && told.is_empty(),
            "{arguments:?}: {told}"
        );
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Fails with this exit code and says so.
    #[track_caller]
    fn fails(&self, arguments: &[&str], code: i32, words: &str) {
        let output = self.command(arguments).output().unwrap();
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {told}");
        assert!(
            told.contains(words),
            "{arguments:?}: {told:?} lacks {words:?}"
        );
        assert!(!told.contains("panicked"), "{told}");
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

/// A file of every kind that needs no root.
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
fn a_tree_goes_in_and_comes_out_the_same() {
    requires!(tool("e2fsck"));
    let bench = Bench::new();
    plain_tree(&bench.path("tree"));
    bench.ok(&[
        "cp",
        "-a",
        "tree",
        "new.img:/srv/deep/tree",
        "--create",
        "64M",
    ]);
    fsck(&bench.path("new.img"));
    bench.ok(&["cp", "-a", "new.img:/srv/deep/tree", "back"]);
    let want = Manifest::of(&bench.path("tree"), HOLES);
    want.assert_same(
        &Manifest::of(&bench.path("back"), HOLES),
        "host to image to host",
    );
    bench.ok(&["cp", "-a", "new.img:/srv/deep/tree", "disk.img:/"]);
    bench.ok(&["cp", "-a", "disk.img:/tree", "disk.img:/again"]);
    bench.ok(&["cp", "-a", "disk.img:/again", "third"]);
    want.assert_same(
        &Manifest::of(&bench.path("third"), HOLES),
        "image to image, and within one",
    );
    // Over what is there already.
    bench.ok(&["cp", "-aT", "tree", "disk.img:/again"]);
    bench.ok(&["cp", "-aT", "disk.img:/again", "third"]);
    want.assert_same(
        &Manifest::of(&bench.path("third"), HOLES),
        "over an older copy",
    );
    fsck(&bench.path("disk.img"));
}

#[test]
fn everything_root_can_make_is_kept() {
    requires!(
        root,
        tool("e2fsck"),
        tool("setfattr"),
        tool("setfacl"),
        tool("setcap")
    );
    let bench = Bench::new();
    let tree = bench.path("tree");
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
            "user.colour".into(),
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
    bench.ok(&["cp", "-a", "tree", "disk.img:/tree"]);
    bench.ok(&["cp", "-a", "disk.img:/tree", "back"]);
    let want = Manifest::of(&tree, HOLES);
    want.assert_same(&Manifest::of(&bench.path("back"), HOLES), "as root");
    fsck(&bench.path("disk.img"));
}

#[test]
fn two_builds_are_the_same_bytes() {
    let bench = Bench::new();
    plain_tree(&bench.path("tree"));
    for image in ["one.img", "two.img"] {
        let uuid = "2f1d9c34-6f0e-4a6e-9d0c-5a3b7f2e8c11";
        let mut command = bench.command(&[
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
    let same = std::fs::read(bench.path("one.img")).unwrap()
        == std::fs::read(bench.path("two.img")).unwrap();
    assert!(same, "the images differ");
}

#[test]
fn files_are_made_changed_and_taken_away() {
    let bench = Bench::new();
    bench.ok(&["mkdir", "-p", "-m", "750", "disk.img:/etc/app"]);
    assert!(
        bench
            .write("disk.img:/etc/app/a", "hello\n")
            .status
            .success()
    );
    assert!(
        bench
            .write("disk.img:/etc/passwd", "me:x:1000:1000::/:/bin/sh\n")
            .status
            .success()
    );
    assert_eq!(bench.ok(&["cat", "disk.img:/etc/app/a"]), "hello\n");
    bench.ok(&["chmod", "u=rwX,go=", "disk.img:/etc/app/a"]);
    bench.ok(&["chown", "me:7", "disk.img:/etc/app/a"]);
    bench.ok(&["touch", "-d", "@5", "disk.img:/etc/app/a"]);
    let line = bench.ok(&["ls", "-l", "disk.img:/etc/app/a"]);
    assert_eq!(line, "-rw------- 1 me 7 6 1970-01-01 00:00 /etc/app/a\n");
    bench.ok(&["mv", "disk.img:/etc/app/a", "disk.img:/etc/app/b"]);
    bench.ok(&["ln", "disk.img:/etc/app/b", "disk.img:/etc/app/c"]);
    bench.ok(&["ln", "-s", "b", "disk.img:/etc/app/d"]);
    assert_eq!(bench.ok(&["cat", "disk.img:/etc/app/d"]), "hello\n");
    bench.ok(&["truncate", "-s", "1M", "disk.img:/etc/app/b"]);
    assert_eq!(
        bench.ok(&["find", "disk.img:/etc", "--size", "+100k", "--name", "[bc]"]),
        "/etc/app/b\n/etc/app/c\n"
    );
    let tree = bench.ok(&["tree", "disk.img:/etc/app"]);
    assert!(
        tree.contains("\u{2514}\u{2500}\u{2500} d -> b") && tree.contains("0 directories, 3 files"),
        "{tree}"
    );
    bench.ok(&["rm", "-r", "disk.img:/etc/app"]);
    bench.ok(&["rm", "-f", "disk.img:/etc/app"]);
    assert_eq!(bench.ok(&["ls", "disk.img:/etc"]), "passwd\n");
    fsck(&bench.path("disk.img"));
}

#[test]
fn lists_are_json_where_asked() {
    let bench = Bench::new();
    plain_tree(&bench.path("tree"));
    bench.ok(&["cp", "-a", "tree", "disk.img:/tree"]);
    let list = bench.json(&["ls", "--json", "disk.img:/tree"]);
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
        bench.json(&["stat", "--json", "disk.img:/tree/fifo"])[0]["type"],
        "fifo"
    );
    assert_eq!(
        bench
            .json(&["find", "disk.img:/tree", "--type", "l", "--json"])
            .as_array()
            .unwrap()
            .len(),
        2
    );
    assert!(
        bench.json(&["du", "-s", "--json", "disk.img:/tree"])[0]["allocated"]
            .as_u64()
            .unwrap()
            > 3_000_000
    );
    assert_eq!(
        bench.json(&["df", "--json", "disk.img"])[0]["image"],
        "disk.img"
    );
    assert!(
        !bench
            .json(&["tree", "--json", "disk.img"])
            .as_array()
            .unwrap()
            .is_empty()
    );
}

#[test]
fn stats_tell_what_the_page_cache_did() {
    let bench = Bench::new();
    std::fs::write(bench.path("big"), vec![7; 4 << 20]).unwrap();
    let told = |arguments: &[&str]| {
        let output = bench.command(arguments).output().unwrap();
        assert!(output.status.success(), "{arguments:?}");
        let lines = String::from_utf8(output.stderr).unwrap();
        let pairs = lines.lines().map(|line| line.split_once(' ').unwrap());
        pairs
            .map(|(name, value)| (name.to_owned(), value.parse().unwrap()))
            .collect::<HashMap<_, f64>>()
    };
    let stats = told(&["cp", "big", "disk.img:/", "--stats"]);
    assert!(
        stats["nr_written"] >= 1024.0 && stats["nr_dirtied"] >= 1024.0 && stats["nr_dirty"] == 0.0,
        "{stats:?}"
    );
    let stats = told(&["--stats", "cat", "disk.img:/big"]);
    assert!(
        stats["misses"] + stats["readahead"] >= 1024.0 && stats["hit_percent"] > 50.0,
        "{stats:?}"
    );
    assert_eq!(
        told(&["mkfs", "new.img", "--size", "64M", "--stats"])["nr_file_pages"],
        0.0
    );
    let printed = bench.json(&["ls", "--json", "--stats", "disk.img:/big"]);
    assert_eq!(printed["list"][0]["path"], "/big");
    assert!(
        printed["stats"]["misses"].as_u64().unwrap() > 0,
        "{printed}"
    );
    bench.fails(&["ls", "--stats", "disk.img:/none"], 1, "nr_file_pages");
}

#[test]
fn bad_input_is_told_and_changes_nothing() {
    let bench = Bench::new();
    std::fs::write(bench.path("file"), "x").unwrap();
    std::fs::write(bench.path("junk"), vec![0x5a; 100_000]).unwrap();
    let before = std::fs::read(bench.path("disk.img")).unwrap();
    bench.fails(
        &["ls", "none.img"],
        3,
        "none.img: open: No such file or directory",
    );
    bench.fails(&["ls", "junk:/"], 3, "no ext4 file system");
    bench.fails(
        &["cat", "disk.img:/none"],
        1,
        "disk.img:/none: No such file or directory",
    );
    bench.fails(&["cat", "disk.img:none"], 2, "starts with '/'");
    bench.fails(
        &["cp", "missing", "new.img:/", "--create", "64M"],
        1,
        "missing: No such file",
    );
    assert!(!bench.path("new.img").exists());
    bench.fails(
        &["cp", "file", "disk.img:/", "--create", "64M"],
        1,
        "File exists",
    );
    bench.fails(&["cp", "file", "none.img:/x"], 2, "none.img:/x");
    bench.fails(&["mkfs", "disk.img", "--size", "64M"], 1, "--force");
    bench.fails(&["mkfs", "new.img", "--size", "ten"], 2, "is no size");
    bench.fails(&["lss", "disk.img"], 2, "ls");
    assert!(
        before == std::fs::read(bench.path("disk.img")).unwrap(),
        "the image changed"
    );
}

#[test]
fn a_full_file_system_is_told() {
    let bench = Bench::new();
    std::fs::write(bench.path("huge"), vec![1; 70 << 20]).unwrap();
    bench.fails(
        &["cp", "huge", "disk.img:/h"],
        1,
        "disk.img:/h: No space left on device",
    );
    assert_eq!(bench.ok(&["ls", "disk.img"]), "lost+found\n");
    fsck(&bench.path("disk.img"));
    bench.fails(
        &["cp", "huge", "new.img:/h", "--create", "16M"],
        1,
        "No space left on device",
    );
    assert!(!bench.path("new.img").exists());
}

#[test]
fn copies_that_make_no_sense_are_refused() {
    let bench = Bench::new();
    plain_tree(&bench.path("tree"));
    bench.ok(&["cp", "-a", "tree", "disk.img:/tree"]);
    bench.fails(
        &["cp", "-a", "disk.img:/tree", "disk.img:/tree/folder/in"],
        1,
        "into itself",
    );
    bench.fails(
        &["cp", "disk.img:/tree/big", "disk.img:/tree/big"],
        1,
        "are the same",
    );
    bench.fails(&["cp", "tree", "disk.img:/"], 1, "-r not given");
    bench.fails(
        &["cp", "tree/big", "tree/hard", "disk.img:/tree/link"],
        1,
        "not a directory",
    );
    bench.fails(
        &["cp", "disk.img:/tree/big", "disk.img"],
        1,
        "image that is being read",
    );
    // An image inside the tree that is copied.
    let output = bench
        .command(&["cp", "-a", ".", "own.img:/", "--create", "128M"])
        .output()
        .unwrap();
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success() && told.contains("left out, for it is an image in use"),
        "{told}"
    );
}

#[test]
fn a_link_in_the_destination_leads_nowhere() {
    let bench = Bench::new();
    std::fs::write(bench.path("outside"), "safe").unwrap();
    std::fs::create_dir_all(bench.path("tree/d")).unwrap();
    std::fs::write(bench.path("tree/f"), "new").unwrap();
    std::fs::write(bench.path("tree/d/g"), "new").unwrap();
    bench.ok(&["cp", "-a", "tree", "disk.img:/tree"]);
    std::fs::create_dir_all(bench.path("out/tree")).unwrap();
    std::fs::create_dir(bench.path("elsewhere")).unwrap();
    std::os::unix::fs::symlink("../../outside", bench.path("out/tree/f")).unwrap();
    std::os::unix::fs::symlink("../../elsewhere", bench.path("out/tree/d")).unwrap();
    bench.fails(
        &["cp", "-a", "disk.img:/tree", "out"],
        1,
        "something else than a directory is there",
    );
    assert_eq!(std::fs::read(bench.path("outside")).unwrap(), b"safe");
    assert_eq!(std::fs::read(bench.path("out/tree/f")).unwrap(), b"new");
    assert_eq!(
        std::fs::read_dir(bench.path("elsewhere")).unwrap().count(),
        0
    );
}

#[test]
fn nobody_reads_the_output() {
    let bench = Bench::new();
    std::fs::write(bench.path("big"), vec![b'x'; 4 << 20]).unwrap();
    bench.ok(&["cp", "big", "disk.img:/"]);
    let script = format!(
        "{} cat disk.img:/big | head -c 1",
        env!("CARGO_BIN_EXE_folio")
    );
    let output = command("sh")
        .args(["-c", &script])
        .current_dir(bench.folder.path())
        .output()
        .unwrap();
    assert_eq!(
        (output.stdout.as_slice(), output.stderr.as_slice()),
        (&b"x"[..], &b""[..])
    );
}

/// What dumpe2fs says behind `field`.
fn said(image: &Path, field: &str) -> String {
    let all = run("dumpe2fs", [OsStr::new("-h"), image.as_os_str()]);
    let line = all
        .lines()
        .find(|line| line.starts_with(&format!("{field}:")));
    line.map_or_else(String::new, |line| {
        line[field.len() + 1..].trim().to_owned()
    })
}

#[test]
fn tune_changes_what_the_superblock_says() {
    requires!(tool("dumpe2fs"), tool("e2fsck"), tool("mke2fs"));
    let bench = Bench::new();
    let image = bench.path("disk.img");
    let uuid = "2f1d9c34-6f0e-4a6e-9d0c-5a3b7f2e8c11";
    let words = "errors=remount-ro,journal_data_writeback,discard,nodelalloc,acl,user_xattr";
    let arguments = [
        "tune", "disk.img", "-L", "data", "-U", uuid, "-m", "1", "-c", "30", "-o", words,
    ];
    bench.ok(&arguments);
    bench.ok(&[
        "tune",
        "disk.img",
        "--resuid",
        "5",
        "--resgid",
        "6",
        "-o",
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
        let got = said(&image, field);
        let got = if field == "Reserved blocks uid" {
            &got[..1]
        } else {
            &got
        };
        assert_eq!(got, want.split(" (").next().unwrap(), "{field}");
    }
    fsck(&image);
    bench.fails(
        &["tune", "disk.img", "-o", "foo"],
        1,
        "unknown default mount option \"foo\"",
    );
    bench.fails(&["tune", "disk.img", "-m", "51"], 1, "at most half");
    bench.fails(
        &["tune", "disk.img", "-L", "seventeen letters"],
        1,
        "label is 17 bytes",
    );
    bench.fails(
        &["tune", "disk.img", "--mount-opts", "foo"],
        1,
        "unknown mount option \"foo\"",
    );
    // What another mount makes of it, and the copies: e2fsck uses one when told to.
    bench.ok(&["mkdir", "disk.img:/d"]);
    fsck(&image);
    let backup = said(&image, "First block").parse::<u64>().unwrap()
        + said(&image, "Blocks per group").parse::<u64>().unwrap();
    let block_size = said(&image, "Block size");
    let of_copy = format!("superblock={backup}");
    let blocks = format!("blocksize={block_size}");
    let arguments = ["-h", "-o", &of_copy, "-o", &blocks].map(OsStr::new);
    let all = run("dumpe2fs", arguments.into_iter().chain([image.as_os_str()]));
    assert!(all.contains(uuid) && all.contains("commit=30"), "{all}");
}

#[test]
fn a_uuid_changes_whatever_the_checksums_are() {
    requires!(tool("dumpe2fs"), tool("e2fsck"), tool("mke2fs"));
    let bench = Bench::new();
    let uuid = "2f1d9c34-6f0e-4a6e-9d0c-5a3b7f2e8c11";
    for features in [
        "^metadata_csum_seed",
        "^metadata_csum,^metadata_csum_seed,^uninit_bg",
    ] {
        let image = bench.path("other.img");
        support::tools::mke2fs(&image, "32M", &["-O", features]);
        bench.ok(&["mkdir", "other.img:/d"]);
        bench.ok(&["tune", "other.img", "-U", uuid]);
        assert_eq!(said(&image, "Filesystem UUID"), uuid);
        fsck(&image);
        bench.ok(&["mkdir", "other.img:/e"]);
        fsck(&image);
        std::fs::remove_file(image).unwrap();
    }
}

#[test]
fn mount_options_hold_for_every_command() {
    let bench = Bench::new();
    bench.ok(&["-o", "noatime,data=journal", "mkdir", "disk.img:/d"]);
    bench.ok(&["ls", "-o", "ro,noload", "disk.img"]);
    bench.fails(
        &["mkdir", "-o", "ro", "disk.img:/e"],
        1,
        "Read-only file system",
    );
    bench.fails(
        &["mkdir", "-o", "noatime,foo", "disk.img:/e"],
        3,
        "unknown mount option \"foo\"",
    );
    bench.fails(
        &["ls", "--options", "data=fast", "disk.img"],
        3,
        "invalid value in mount option \"data=fast\"",
    );
    bench.fails(
        &["mkfs", "-o", "ro", "new.img", "--size", "8M"],
        2,
        "nothing is mounted here",
    );
}
