//! EROFS images as the command writes them: generated trees, options and messages.

use super::TestDir;
use crate::support::random::Random;
use crate::support::tools::{run, succeed, text};
use crate::support::{Manifest, Scope, requires, rounds};
use std::fs;
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::path::Path;

const TREES: u64 = 200;
/// Sizes around those where a file is stored in another way.
const SIZES: [u64; 14] = [
    0, 1, 31, 2048, 3776, 3777, 4032, 4033, 4095, 4096, 4097, 7872, 8192, 70_000,
];
const UUID: &str = "2f1d9c34-6f0e-4a6e-9d0c-5a3b7f2e8c11";

/// Fills a new directory with random names, and everything below them.
fn generate(random: &mut Random, directory: &Path, depth: u32) {
    fs::create_dir(directory).unwrap();
    let many = random.percent(5);
    for number in 0..random.below(if many { 400_u64 } else { 20 }) {
        let long = "n".repeat(random.below(if many { 200 } else { 20 }));
        let first = random.pick(&["a", "-", ".", "..", "Z", "~"]);
        let path = directory.join(format!("{first}{long}{number}"));
        match random.below(10_u64) {
            0 if depth < 4 => generate(random, &path, depth + 1),
            1 => symlink("x".repeat(1 + random.below(1000_usize)), &path).unwrap(),
            2 => {
                let file = fs::File::create(&path).unwrap();
                file.set_len(random.below(1 << 20)).unwrap();
                file.write_all_at(b"data", random.below(1 << 20)).unwrap();
            }
            _ => {
                let len = random.pick(&SIZES) as usize;
                fs::write(&path, vec![random.below(256_u64) as u8; len]).unwrap();
                let mode = fs::Permissions::from_mode(0o400 | random.below(0o7777_u32));
                fs::set_permissions(&path, mode).unwrap();
                if random.percent(10) {
                    fs::hard_link(&path, directory.join(format!("link {number}"))).unwrap();
                }
                if random.percent(20) {
                    let value = vec![b'v'; random.below(300)];
                    let name = random.pick(&["user.one", "user.two"]);
                    // Not every file system of a host has extended attributes.
                    let none = rustix::fs::XattrFlags::empty();
                    let _ = rustix::fs::setxattr(&path, name, &value, none);
                }
            }
        }
    }
}

#[test]
fn generated_trees_return_from_an_erofs() {
    requires!(tool("fsck.erofs"));
    let dir = TestDir::new();
    for seed in (0..TREES).step_by(rounds::step(10)) {
        let mut random = Random::new(seed);
        generate(&mut random, &dir.path("tree"), 0);
        dir.ok(&["cp", "-a", "tree/.", "root.erofs:/", "--create"]);
        run("fsck.erofs", [dir.path("root.erofs")]);
        dir.ok(&["cp", "-a", "root.erofs:/", "back"]);
        let of = |name: &str| Manifest::of(&dir.path(name), Scope::default());
        of("tree").assert_same(&of("back"), &format!("seed {seed}"));
        fs::remove_file(dir.path("root.erofs")).unwrap();
        for name in ["tree", "back"] {
            fs::remove_dir_all(dir.path(name)).unwrap();
        }
    }
}

#[test]
fn options_of_a_copy_apply_to_an_erofs() {
    let dir = TestDir::new();
    generate(&mut Random::new(1), &dir.path("tree"), 0);
    let etc = dir.path("tree/etc");
    fs::create_dir(&etc).unwrap();
    fs::write(etc.join("passwd"), "web:x:33:44::/:/bin/sh\n").unwrap();
    fs::write(etc.join("skipped"), "").unwrap();
    fs::write(dir.path("devices"), "/dev/null c 666 0 0 1 3 - - -\n").unwrap();
    let options = [
        ["--chown", "web"],
        ["--exclude", "skipped"],
        ["--manifest", "devices"],
        ["--label", "root"],
        ["--uuid", UUID],
    ];
    for image in ["one.erofs", "two.erofs"] {
        let mut copy = dir.command(&["cp", "-a", "tree/.", &format!("{image}:/"), "--create"]);
        copy.args(options.as_flattened());
        succeed(copy.env("SOURCE_DATE_EPOCH", "1700000000"));
    }
    let bytes = |name: &str| fs::read(dir.path(name)).unwrap();
    assert!(bytes("one.erofs") == bytes("two.erofs"));
    let found = dir.json(&["stat", "one.erofs:/etc/passwd", "--json"]);
    assert_eq!(found[0]["uid"], 33, "{found}");
    assert!(dir.ok(&["ls", "-l", "one.erofs:/dev"]).contains("1,"));
    assert_eq!(dir.ok(&["ls", "one.erofs:/etc"]), "passwd\n");
    assert!(dir.ok(&["info", "one.erofs"]).contains("erofs"));
}

#[test]
fn names_of_one_tree_need_no_ramfs_in_an_erofs() {
    let dir = TestDir::new();
    generate(&mut Random::new(3), &dir.path("tree"), 0);
    fs::create_dir(dir.path("empty")).unwrap();
    let like_tree = ["-r".into(), dir.path("tree"), dir.path("empty")];
    run("touch", like_tree);
    // Two sources go through a ramfs.
    let sources = [
        ("one.erofs", &["tree/."][..]),
        ("two.erofs", &["tree/.", "empty/."]),
    ];
    for epoch in [None, Some("1500000000")] {
        for (image, sources) in sources {
            let _ = fs::remove_file(dir.path(image));
            let place = format!("{image}:/");
            let options = [&place, "--create", "--uuid", UUID];
            let mut copy = dir.command(&[&["cp", "-a"], sources, &options].concat());
            succeed(copy.envs(epoch.map(|epoch| ("SOURCE_DATE_EPOCH", epoch))));
        }
        let bytes = |name: &str| fs::read(dir.path(name)).unwrap();
        assert!(bytes("one.erofs") == bytes("two.erofs"), "{epoch:?}");
    }
}

#[test]
fn archive_and_layers_become_an_erofs() {
    requires!(tool("fsck.erofs"));
    let dir = TestDir::new();
    generate(&mut Random::new(2), &dir.path("tree"), 0);
    dir.ok(&["cp", "-a", "tree/.", "base.img:/", "--create", "auto+1M"]);
    dir.ok(&["tar", "-cf", "root.tar.gz", "base.img"]);
    dir.ok(&["tar", "-xf", "root.tar.gz", "tar.erofs:/", "--create"]);
    dir.ok(&["cp", "-a", "base.img:/", "oci:layout:base"]);
    dir.write("base.img:/added", "later");
    let layers = ["oci:layout:two", "--base", "oci:layout:base"];
    dir.ok(&[&["cp", "-a", "base.img:/"], &layers[..]].concat());
    dir.ok(&["mkfs", "layers.erofs", "oci:layout:two"]);
    let scope = Scope {
        below_root: true,
        ..Scope::default()
    };
    for image in ["tar.erofs", "layers.erofs"] {
        run("fsck.erofs", [dir.path(image)]);
        dir.ok(&["cp", "-a", &format!("{image}:/"), "back"]);
        if image == "layers.erofs" {
            assert_eq!(fs::read(dir.path("back/added")).unwrap(), b"later");
            fs::remove_file(dir.path("back/added")).unwrap();
        }
        let back = Manifest::of(&dir.path("back"), scope);
        Manifest::of(&dir.path("tree"), scope).assert_same(&back, image);
        fs::remove_dir_all(dir.path("back")).unwrap();
    }
}

#[test]
fn hidden_files_leave_no_blocks_in_an_erofs() {
    requires!(tool("fsck.erofs"));
    let dir = TestDir::new();
    fs::create_dir(dir.path("tree")).unwrap();
    let noise = |seed| {
        let mut random = Random::new(seed);
        Vec::from_iter((0..400_000).map(|_| random.below(256_u64) as u8))
    };
    for (name, seed) in [("first", 1), ("hidden", 2), ("last", 3)] {
        fs::write(dir.path("tree").join(name), noise(seed)).unwrap();
    }
    fs::write(dir.path("tree/sparse"), noise(4)).unwrap();
    let sparse = fs::File::options()
        .write(true)
        .open(dir.path("tree/sparse"));
    sparse.unwrap().set_len(5 << 20).unwrap();
    dir.ok(&["cp", "-a", "tree/.", "base.img:/", "--create", "auto+1M"]);
    dir.ok(&["cp", "-a", "base.img:/", "oci:layout:base"]);
    dir.ok(&["rm", "base.img:/hidden"]);
    let layers = ["oci:layout:two", "--base", "oci:layout:base"];
    dir.ok(&[&["cp", "-a", "base.img:/"], &layers[..]].concat());
    for method in [&[][..], &["--compress", "zstd"]] {
        let _ = fs::remove_file(dir.path("a.erofs"));
        dir.ok(&[&["mkfs", "a.erofs", "oci:layout:two"], method].concat());
        if method.is_empty() {
            run("fsck.erofs", [dir.path("a.erofs")]);
        }
        let len = fs::metadata(dir.path("a.erofs")).unwrap().len();
        assert!(len < 1_500_000, "{len} bytes");
        for name in ["first", "last", "sparse"] {
            let place = format!("a.erofs:/{name}");
            dir.ok(&["cp", &place, "back"]);
            let want = fs::read(dir.path("tree").join(name)).unwrap();
            assert!(fs::read(dir.path("back")).unwrap() == want, "{name}");
        }
    }
}

#[test]
fn last_content_of_a_linked_passwd_wins_in_an_erofs() {
    let dir = TestDir::new();
    for name in ["one", "two"] {
        fs::create_dir(dir.path(name)).unwrap();
    }
    fs::write(dir.path("one/real"), "old\n".repeat(50_000)).unwrap();
    symlink("real", dir.path("one/passwd")).unwrap();
    fs::write(dir.path("two/passwd"), "new\n").unwrap();
    for method in [&[][..], &["--compress", "zstd"]] {
        let _ = fs::remove_file(dir.path("a.erofs"));
        let copy = ["cp", "-a", "one/.", "two/.", "a.erofs:/", "--create"];
        dir.ok(&[&copy[..], method].concat());
        dir.ok(&["cp", "a.erofs:/passwd", "back"]);
        assert_eq!(fs::read(dir.path("back")).unwrap(), b"new\n");
    }
}

#[test]
fn impossible_erofs_is_refused() {
    let dir = TestDir::new();
    fs::create_dir(dir.path("tree")).unwrap();
    let sized = ["cp", "-a", "tree", "a.erofs:/", "--create", "1G"];
    dir.fails(&sized, 2, "omit SIZE");
    let qcow2 = [
        "cp",
        "-a",
        "tree",
        "a.qcow2:/",
        "--create",
        "--type",
        "erofs",
    ];
    dir.fails(&qcow2, 2, "raw file");
    let format = [
        "cp",
        "-a",
        "tree",
        "b.erofs:/",
        "--create",
        "--format",
        "qcow2",
    ];
    dir.fails(&format, 2, "raw file");
    dir.fails(&["mkfs", "c.erofs"], 2, "give the SOURCE");
    dir.fails(&["mkfs", "c.erofs", "missing"], 1, "missing");
    dir.fails(&["mkfs", "c.img", "tree"], 2, "only with --type erofs");
    let label = ["mkfs", "d.erofs", "tree", "-L", "more than sixteen bytes"];
    dir.fails(&label, 2, "at most 16 bytes");
    let method = ["mkfs", "d.erofs", "tree", "--compress", "zstd:99"];
    dir.fails(&method, 2, "from 1 to 22");
    let ext4 = [
        "cp",
        "-a",
        "tree",
        "d.img:/",
        "--create",
        "--compress",
        "lz4",
    ];
    dir.fails(&ext4, 2, "only of an erofs");
    dir.ok(&["mkfs", "e.erofs", "tree"]);
    dir.fails(&["mkfs", "e.erofs", "tree"], 1, "already exists");
    // The root is a directory.
    fs::write(dir.path("file"), "text").unwrap();
    symlink("file", dir.path("link")).unwrap();
    for source in ["file", "link"] {
        let whole = ["cp", "-aT", source, "f.erofs:/", "--create"];
        dir.fails(&whole, 1, "cannot overwrite a directory");
    }
    for name in ["a.erofs", "b.erofs", "c.erofs", "d.erofs", "f.erofs"] {
        assert!(!dir.path(name).exists(), "{name}");
    }
}

/// Asserts that the check prints these errors of the damaged image, and nothing else.
#[track_caller]
fn assert_found(dir: &TestDir, bytes: &[u8], want: &[&str]) {
    fs::write(dir.path("bad.erofs"), bytes).unwrap();
    let output = dir.command(&["check", "bad.erofs"]).output().unwrap();
    let printed = text(&output);
    assert_eq!(output.status.code(), Some(4), "{printed}");
    let errors = printed.lines().filter(|line| line.starts_with("error: "));
    let errors: Vec<_> = errors.map(|line| &line["error: ".len()..]).collect();
    let is_same = errors.len() == want.len()
        && errors
            .iter()
            .zip(want)
            .all(|(error, want)| error.contains(want));
    assert!(is_same, "{errors:?}, not {want:?}");
}

#[cfg(feature = "squashfs-erofs")]
#[test]
fn check_of_damaged_erofs_names_each_structure() {
    let dir = TestDir::new();
    fs::create_dir(dir.path("tree")).unwrap();
    for name in ["first-name", "second-name"] {
        fs::write(dir.path("tree").join(name), "text\n".repeat(9_000)).unwrap();
    }
    dir.ok(&["mkfs", "a.erofs", "tree", "--compress", "lz4"]);
    assert!(
        dir.ok(&["check", "a.erofs"])
            .starts_with("a.erofs: clean; 3 inodes")
    );
    assert_eq!(dir.json(&["check", "--json", "a.erofs"])["clean"], true);
    dir.fails(
        &["check", "--repair", "a.erofs"],
        8,
        "folio mkfs --type erofs",
    );
    let good = fs::read(dir.path("a.erofs")).unwrap();
    let mut bytes = good.clone();
    bytes[3000] = 1;
    assert_found(&dir, &bytes, &["superblock: bad checksum"]);
    let blocks = good.len() / 4096;
    let cut = format!("superblock: {blocks} blocks, but the image has 2");
    assert_found(
        &dir,
        &good[..8192],
        &[&cut, "beyond the last block", "no root directory"],
    );
    let at = |bytes: &[u8]| good.windows(bytes.len()).position(|found| found == bytes);
    let name = at(b"first-name").unwrap();
    let mut bytes = good.clone();
    bytes[name..name + 5].copy_from_slice(b"third");
    assert_found(
        &dir,
        &bytes,
        &["\"second-name\" is not in order", "is missing"],
    );
    // The type of the third entry, which is 12 bytes after that of the second one.
    let mut bytes = good.clone();
    let entries = at(b"...first-name").unwrap() - 4 * 12;
    bytes[entries + 2 * 12 + 10] = 7;
    assert_found(&dir, &bytes, &["\"first-name\" has type 7, its inode 1"]);
    // Compressed data are at the end of their block.
    let mut bytes = good.clone();
    bytes[8192 - 16..8192].fill(0xFF);
    assert_found(&dir, &bytes, &["data: at byte 0"; 2]);
}

#[cfg(feature = "squashfs-erofs")]
#[test]
fn check_refuses_what_fsck_erofs_refuses() {
    requires!(tool("fsck.erofs"));
    let dir = TestDir::new();
    for seed in (0..200).step_by(rounds::step(4)) {
        let mut random = Random::new(seed);
        generate(&mut random, &dir.path("tree"), 2);
        let method: &[&str] = if random.percent(50) {
            &["--compress", "lz4"]
        } else {
            &[]
        };
        dir.ok(&[&["mkfs", "a.erofs", "tree"], method].concat());
        fs::remove_dir_all(dir.path("tree")).unwrap();
        dir.ok(&["check", "a.erofs"]);
        let mut bytes = fs::read(dir.path("a.erofs")).unwrap();
        // Metadata follow the contents.
        let meta = 4096 * u32::from_le_bytes(bytes[1064..1068].try_into().unwrap()) as usize;
        for _ in 0..4 {
            let at = meta + random.below(bytes.len() - meta);
            bytes[at] = random.below(256_u64) as u8;
        }
        fs::write(dir.path("a.erofs"), bytes).unwrap();
        let output = dir.command(&["check", "a.erofs"]).output().unwrap();
        let code = output.status.code();
        assert!(
            matches!(code, Some(0 | 4 | 8)),
            "seed {seed}: {}",
            text(&output)
        );
        if code == Some(0) {
            run("fsck.erofs", ["--extract".into(), dir.path("a.erofs")]);
        }
        fs::remove_file(dir.path("a.erofs")).unwrap();
    }
}
