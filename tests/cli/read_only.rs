//! squashfs and erofs images as sources, judged by the programs that made them.

use super::{TestDir, plain_tree};
use crate::support::tools::{command, run, succeed};
use crate::support::{Manifest, Scope, requires};
use std::fs;
use std::path::Path;

const SCOPE: Scope = Scope {
    holes: false,
    below_root: true,
};

/// A tree whose times are whole seconds, as squashfs stores them.
fn fixture() -> TestDir {
    let dir = TestDir::new();
    let tree = dir.path("tree");
    fs::create_dir(&tree).unwrap();
    plain_tree(&tree);
    fs::write(tree.join("small"), "small").unwrap();
    fs::hard_link(tree.join("big"), tree.join("folder/big")).unwrap();
    for at in 0..300 {
        fs::write(
            tree.join(format!("folder/{at:03}")),
            vec![at as u8; at * 37],
        )
        .unwrap();
    }
    let words = ["-exec", "touch", "-h", "-d", "@1700000000", "{}", "+"];
    run("find", [tree.to_str().unwrap()].into_iter().chain(words));
    dir
}

/// Asserts that the tree in `image` is the one that it was made of, read in three ways.
fn assert_tree(dir: &TestDir, image: &str) {
    let want = Manifest::of(&dir.path("tree"), SCOPE);
    let from = format!("{image}:/");
    let assert_copy = |from: &str| {
        let _ = fs::remove_dir_all(dir.path("back"));
        dir.ok(&["cp", "-a", from, "back"]);
        want.assert_same(&Manifest::of(&dir.path("back"), SCOPE), image);
    };
    assert_copy(&from);
    let read = dir.ok(&["cat", &format!("{image}:/big")]);
    assert_eq!(read.len(), 3_000_001);
    let copied = dir.path("copied.img");
    let _ = fs::remove_file(&copied);
    dir.ok(&["cp", "-a", &from, "copied.img:/", "--create", "auto"]);
    assert_copy("copied.img:/");
}

fn assert_read_only(dir: &TestDir, image: &str) {
    let before = fs::read(dir.path(image)).unwrap();
    for words in [
        ["rm", "/small"],
        ["touch", "/new"],
        ["touch", "/small"],
        ["mkdir", "/folder/new"],
        ["write", "/small"],
    ] {
        let place = format!("{image}:{}", words[1]);
        dir.fails(&[words[0], &place], 1, "Read-only file system");
    }
    assert!(before == fs::read(dir.path(image)).unwrap());
}

#[test]
fn squashfs_images_are_read() {
    requires!(tool("mksquashfs"));
    let dir = fixture();
    for (image, options) in [
        ("gzip.sqfs", vec!["-comp", "gzip"]),
        ("xz.sqfs", vec!["-comp", "xz", "-b", "1M"]),
        ("zstd.sqfs", vec!["-comp", "zstd", "-no-fragments"]),
        ("lz4.sqfs", vec!["-comp", "lz4", "-b", "4K"]),
        ("plain.sqfs", vec!["-noI", "-noD", "-noF", "-noX"]),
    ] {
        let path = |name: &str| dir.path(name).to_str().unwrap().to_owned();
        let words = [
            path("tree"),
            path(image),
            "-quiet".into(),
            "-no-progress".into(),
        ];
        let options = options.into_iter().map(str::to_owned);
        run("mksquashfs", words.into_iter().chain(options));
        assert_tree(&dir, image);
    }
    assert_read_only(&dir, "gzip.sqfs");
    let spec = "[[partition]]\ntype = 'linux'\nformat = 'raw'\nsource = 'gzip.sqfs'\n";
    fs::write(dir.path("spec.toml"), spec).unwrap();
    dir.ok(&["disk", "create", "parts.img", "spec.toml"]);
    let listed = dir.ok(&["stat", "parts.img:/"]);
    assert!(listed.contains("Links: 3"), "{listed}");
    assert_eq!(dir.ok(&["cat", "parts.img:/small"]), "small");
    dir.fails(&["trim", "gzip.sqfs"], 1, "gzip.sqfs: only ext4 is trimmed");
    damage(&dir, "gzip.sqfs", &["ls", "-lR", "damaged"]);
}

/// Sets extended attributes in `tree`: of all namespaces and types of files, long ones, equal ones,
/// and more different sets than a metadata block of squashfs has ids.
fn set_xattrs(dir: &TestDir) {
    let tree = dir.path("tree");
    std::os::unix::fs::symlink("small", tree.join("marked")).unwrap();
    let long = "long ".repeat(140);
    let mut dump = String::new();
    let mut set = |file: &str, xattrs: &[(&str, &str)]| {
        dump.push_str(&format!("# file: {file}\n"));
        for (name, value) in xattrs {
            dump.push_str(&format!("{name}=\"{value}\"\n"));
        }
        dump.push('\n');
    };
    set("small", &[("user.note", "kept"), ("user.empty", "")]);
    set(
        "big",
        &[
            ("security.mark", "a"),
            ("trusted.mark", "b"),
            ("user.m", "c"),
        ],
    );
    set("folder", &[("user.long", &long)]);
    set("marked", &[("trusted.link", "of the link")]);
    set("fifo", &[("trusted.fifo", "x")]);
    for at in 0..300 {
        let number = at.to_string();
        let file = format!("folder/{at:03}");
        if at % 2 == 0 {
            set(&file, &[("user.number", &number), ("user.long", &long)]);
        } else {
            set(&file, &[("user.number", &number)]);
        }
    }
    for at in 0..400 {
        let file = format!("more-{at}");
        fs::write(tree.join(&file), "").unwrap();
        set(&file, &[("user.more", &"m".repeat(at + 1))]);
    }
    fs::write(dir.path("dump"), dump).unwrap();
    succeed(
        command("setfattr")
            .args(["-h", "--restore=../dump"])
            .current_dir(&tree),
    );
    let words = ["-exec", "touch", "-h", "-d", "@1700000000", "{}", "+"];
    run("find", [tree.to_str().unwrap()].into_iter().chain(words));
}

#[test]
fn squashfs_xattrs_are_read() {
    requires!(root, tool("mksquashfs"), tool("setfattr"));
    let dir = fixture();
    set_xattrs(&dir);
    for (image, options) in [("gzip.sqfs", vec![]), ("plain.sqfs", vec!["-noX"])] {
        let path = |name: &str| dir.path(name).to_str().unwrap().to_owned();
        let words = [
            path("tree"),
            path(image),
            "-quiet".into(),
            "-no-progress".into(),
        ];
        let options = options.into_iter().map(str::to_owned);
        run("mksquashfs", words.into_iter().chain(options));
        assert_tree(&dir, image);
    }
    damage(&dir, "gzip.sqfs", &["cp", "-a", "damaged:/small", "copy"]);
}

#[test]
fn erofs_images_are_read() {
    requires!(tool("mkfs.erofs"));
    let dir = fixture();
    let tree = dir.path("tree");
    // Not every file system of a host has extended attributes.
    let attribute = ["-n", "user.note", "-v", "kept", "small"];
    let _ = command("setfattr")
        .args(attribute)
        .current_dir(&tree)
        .output();
    for (image, options) in [
        ("plain.erofs", vec![]),
        ("lz4.erofs", vec!["-zlz4hc"]),
        ("large.erofs", vec!["-zlz4hc", "-C65536"]),
        ("chunks.erofs", vec!["--chunksize=4096"]),
        (
            "compact.erofs",
            vec!["-Eforce-inode-compact", "-T1700000000"],
        ),
    ] {
        let path = |path: &Path| path.to_str().unwrap().to_owned();
        let options = options.into_iter().map(str::to_owned);
        let words = [path(&dir.path(image)), path(&tree)];
        run("mkfs.erofs", options.chain(words));
        assert_tree(&dir, image);
    }
    assert_read_only(&dir, "plain.erofs");
    damage(&dir, "lz4.erofs", &["ls", "-lR", "damaged"]);
}

/// Reads images with changed bytes: an error, never a panic.
fn damage(dir: &TestDir, image: &str, words: &[&str]) {
    let sound = fs::read(dir.path(image)).unwrap();
    let mut random = crate::support::random::Random::new(7);
    for _ in 0..40 {
        let mut bytes = sound.clone();
        let end = bytes.len() as u64;
        for _ in 0..4 {
            // Metadata is at the start and at the end.
            let distance = random.below(4096);
            let at = if random.below(2) == 0 {
                distance
            } else {
                end - 1 - distance
            };
            bytes[at as usize] = random.below(256) as u8;
        }
        fs::write(dir.path("damaged"), &bytes).unwrap();
        let output = dir.command(words).output().unwrap();
        let printed = String::from_utf8_lossy(&output.stderr);
        assert!(!printed.contains("panicked at"), "{printed}");
        assert!(
            output.status.code().is_some_and(|code| code <= 3),
            "{printed}"
        );
    }
}
