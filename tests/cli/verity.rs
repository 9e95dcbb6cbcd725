//! Hash trees of dm-verity, judged by veritysetup, systemd-dissect, systemd-repart and the kernel.

use super::TestDir;
use crate::support::requires;
use crate::support::tools::{command, run, succeed};
use serde_json::Value;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;

const UUID: &str = "2f1d9c34-6f0e-4a6e-9d0c-5a3b7f2e8c11";
const SALT: &str = "aabbccddeeff";
const BLOCK_BYTES: u64 = 4096;

/// A root with a few files, and its hash tree.
const SPEC: &str = r#"
[[partition]]
type = "linux-root-x86-64"
label = "root"
format = "ext4"
source = "root"

[[partition]]
type = "linux-root-x86-64-verity"
label = "root-verity"
format = "verity"
verity-data = "root"
"#;

/// Creates the tree of [`SPEC`], and the specification.
fn fixture(spec: &str) -> TestDir {
    let dir = TestDir::new();
    for folder in [
        "etc", "usr/lib", "usr/bin", "var", "proc", "sys", "dev", "run", "tmp",
    ] {
        fs::create_dir_all(dir.path("root").join(folder)).unwrap();
    }
    fs::write(
        dir.path("root/usr/lib/os-release"),
        "ID=test\nVERSION_ID=1\n",
    )
    .unwrap();
    let large: Vec<u8> = (0..3_000_000_u32).map(|at| ((at / 7) ^ at) as u8).collect();
    fs::write(dir.path("root/usr/bin/large"), large).unwrap();
    fs::write(dir.path("spec.toml"), spec).unwrap();
    dir
}

/// Creates an image of `blocks` blocks, two thirds of them a hole.
fn image(dir: &TestDir, name: &str, blocks: u64) {
    let file = fs::File::create(dir.path(name)).unwrap();
    file.set_len(blocks * BLOCK_BYTES).unwrap();
    for block in (0..blocks / 3).chain([blocks - 1]) {
        let bytes = [block as u8 | 1; 99];
        file.write_all_at(&bytes, block * BLOCK_BYTES + 11).unwrap();
    }
}

fn flip(path: &Path, offset: u64) {
    let file = fs::File::options().read(true).write(true).open(path);
    let file = file.unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, offset).unwrap();
    file.write_all_at(&[byte[0] ^ 1], offset).unwrap();
}

fn root_hash(printed: &Value) -> String {
    printed["root_hash"].as_str().unwrap().to_owned()
}

/// Creates a disk; returns the record of its only hash tree.
fn create(dir: &TestDir, name: &str) -> Value {
    let mut printed = dir.json(&["disk", "create", "--json", name, "spec.toml"]);
    let trees = printed["verity"].as_array_mut().unwrap();
    assert_eq!(trees.len(), 1);
    trees.remove(0)
}

#[test]
fn tree_has_the_bytes_of_veritysetup() {
    requires!(tool("veritysetup"));
    let dir = TestDir::new();
    for blocks in [1, 2, 128, 129, 16_385] {
        for name in ["beside", "ours", "theirs"] {
            image(&dir, name, blocks);
        }
        let given = ["--salt", SALT, "--uuid", UUID, "--json"];
        let _ = fs::remove_file(dir.path("ours.tree"));
        let words = ["image", "verity", "beside", "ours.tree"];
        let root = root_hash(&dir.json(&[&words[..], &given].concat()));
        let appended = dir.json(&[&["image", "verity", "ours"], &given[..]].concat());
        assert_eq!(root_hash(&appended), root);
        let offset = (blocks * BLOCK_BYTES).to_string();
        assert_eq!(appended["hash_offset"].to_string(), offset);

        let paths = ["beside", "theirs", "ours", "theirs.tree"].map(|name| dir.path(name));
        let [beside, theirs, ours, their_tree] = paths.each_ref().map(|path| path.as_os_str());
        let veritysetup = |words: &[&OsStr], more: &[&str]| {
            let mut command = command("veritysetup");
            run_with(command.args(words).args(more))
        };
        let given = ["--salt", SALT, "--uuid", UUID];
        let _ = fs::remove_file(&paths[3]);
        veritysetup(&["format".as_ref(), beside, their_tree], &given);
        assert!(fs::read(dir.path("ours.tree")).unwrap() == fs::read(&paths[3]).unwrap());
        let count = blocks.to_string();
        let behind = ["--hash-offset", &offset, "--data-blocks", &count];
        let more = [&given[..], &behind].concat();
        veritysetup(&["format".as_ref(), theirs, theirs], &more);
        assert!(fs::read(&paths[2]).unwrap() == fs::read(&paths[1]).unwrap());
        veritysetup(&["verify".as_ref(), ours, ours, root.as_ref()], &behind);
        let dump = veritysetup(&["dump".as_ref(), ours], &["--hash-offset", &offset]);
        assert!(dump.contains(UUID) && dump.contains(SALT), "{dump}");
    }
}

#[track_caller]
fn run_with(command: &mut std::process::Command) -> String {
    crate::support::tools::text(&succeed(command))
}

#[test]
fn flipped_byte_in_data_or_tree_is_found() {
    let dir = TestDir::new();
    image(&dir, "image", 300);
    let root = root_hash(&dir.json(&["image", "verity", "image", "--json"]));
    let check = ["check", "image", "--root-hash", &root];
    assert!(
        dir.ok(&check)
            .contains("clean; 300 data blocks, 4 hash blocks")
    );
    // Superblock and top block are blocks 300 and 301.
    for (block, structure) in [
        (0, "verity-data"),
        (150, "verity-data"),
        (299, "verity-data"),
        (301, "verity-root"),
        (302, "verity-tree"),
        (304, "verity-tree"),
    ] {
        flip(&dir.path("image"), block * BLOCK_BYTES + 77);
        let output = dir.command(&[&check[..], &["--json"]].concat()).output();
        let output = output.unwrap();
        flip(&dir.path("image"), block * BLOCK_BYTES + 77);
        assert_eq!(output.status.code(), Some(4), "block {block}");
        let printed: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(printed["findings"][0]["block"], block, "{printed}");
        assert_eq!(printed["findings"][0]["structure"], structure, "{printed}");
    }
    let wrong = "0".repeat(64);
    let output = dir.command(&["check", "image", "--root-hash", &wrong]);
    let output = succeeds_not(output, 4);
    assert!(
        output.contains("its digest is not the root hash"),
        "{output}"
    );
    flip(&dir.path("image"), 300 * BLOCK_BYTES);
    dir.fails(&check, 8, "found no hash tree");
    let at = (300 * BLOCK_BYTES).to_string();
    dir.fails(
        &[&check[..], &["--hash-offset", &at]].concat(),
        8,
        "no hash tree at byte",
    );
    dir.fails(
        &["check", "image", "--root-hash", "12"],
        16,
        "invalid root hash",
    );
}

fn succeeds_not(mut command: std::process::Command, code: i32) -> String {
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(code));
    crate::support::tools::text(&output)
}

#[test]
fn image_is_unchanged_by_refused_tree() {
    let dir = TestDir::new();
    fs::write(dir.path("odd"), [7; 5000]).unwrap();
    dir.fails(&["image", "verity", "odd", "tree"], 2, "resize odd 8192");
    assert!(!dir.path("tree").exists());
    let printed = dir.json(&["image", "verity", "odd", "--json"]);
    assert_eq!(printed["data_blocks"], 2);
    let before = fs::read(dir.path("odd")).unwrap();
    dir.fails(
        &["image", "verity", "odd"],
        1,
        "has a hash tree already, at byte 8192",
    );
    dir.fails(&["image", "verity", "odd", "odd"], 1, "already exists");
    dir.fails(
        &["image", "verity", "odd", "t", "--salt", "abc"],
        2,
        "invalid salt",
    );
    dir.fails(
        &["image", "verity", "disk.img:/etc", "t"],
        2,
        "omit the path",
    );
    assert!(fs::read(dir.path("odd")).unwrap() == before);
}

#[test]
fn image_with_small_blocks_gets_a_note() {
    let dir = TestDir::new();
    dir.ok(&["mkfs", "small.img", "--size", "2M", "--block-size", "1024"]);
    let output = dir.command(&["image", "verity", "small.img"]).output();
    let printed = String::from_utf8(output.unwrap().stderr).unwrap();
    assert!(printed.contains("blocks of 1024 bytes"), "{printed}");
}

#[test]
fn verified_disk_has_uuids_of_its_root_hash() {
    requires!(tool("veritysetup"), tool("sfdisk"));
    let dir = fixture(SPEC);
    let tree = create(&dir, "new.qcow2");
    let root = root_hash(&tree);
    assert_eq!(tree["kernel_command_line"], format!("roothash={root}"));
    assert_eq!([&tree["data_partition"], &tree["hash_partition"]], [1, 2]);
    dir.ok(&["check", "new.qcow2", "--root-hash", &root]);
    dir.ok(&["check", "new.qcow2@root", "--root-hash", &root]);
    let listed = dir.json(&["disk", "list", "new.qcow2", "--json"]);
    assert_eq!(
        listed["partitions"][1]["verity"]["root_hash"],
        root.as_str()
    );
    let info = dir.ok(&["info", "new.qcow2@2"]);
    assert!(info.contains(&root), "{info}");

    dir.ok(&["image", "convert", "-O", "raw", "new.qcow2", "disk.raw"]);
    let script = run("sfdisk", ["-J".as_ref(), dir.path("disk.raw").as_os_str()]);
    let script: Value = serde_json::from_str(&script).unwrap();
    let parts = &script["partitiontable"]["partitions"];
    let id = |at: usize| parts[at]["uuid"].as_str().unwrap().replace('-', "");
    assert_eq!(format!("{}{}", id(0), id(1)).to_lowercase(), root);
    assert_eq!(parts[1]["type"], "2C7357ED-EBD2-46D9-AEC1-23D437EC2BF5");
    assert_eq!(parts[1]["attrs"], "GUID:60");
    for (place, name) in [("disk.raw@1", "data"), ("disk.raw@2", "tree")] {
        dir.ok(&["image", "convert", place, name]);
    }
    let [data, hash] = ["data", "tree"].map(|name| dir.path(name));
    let words = ["verify".as_ref(), data.as_os_str(), hash.as_os_str()];
    run("veritysetup", words.into_iter().chain([root.as_ref()]));
    // The verified file system is read as any other.
    let read = dir.ok(&["cat", "disk.raw@root:/usr/lib/os-release"]);
    assert_eq!(read, "ID=test\nVERSION_ID=1\n");
    flip(&dir.path("disk.raw"), (1 << 20) + 70_000);
    let output = succeeds_not(dir.command(&["check", "disk.raw", "--root-hash", &root]), 4);
    assert!(output.contains("data block 17 at byte 69632"), "{output}");
}

#[test]
fn verified_disk_is_reproducible() {
    let usr = SPEC.replace("linux-root-", "linux-usr-").replace(
        "verity-data = \"root\"",
        &format!("verity-data = 1\nsalt = \"{SALT}\"\nfilesystem-uuid = \"{UUID}\""),
    );
    for (spec, argument) in [(SPEC, "roothash="), (&usr, "usrhash=")] {
        let dir = fixture(spec);
        let mut printed = Vec::new();
        for name in ["a.img", "b.img"] {
            let mut create = dir.command(&["disk", "create", name, "spec.toml"]);
            let output = succeed(create.env("SOURCE_DATE_EPOCH", "1700000000"));
            printed.push(String::from_utf8(output.stdout).unwrap().replace(name, ""));
        }
        assert!(printed[0].contains(argument), "{}", printed[0]);
        assert_eq!(printed[0], printed[1]);
        assert!(fs::read(dir.path("a.img")).unwrap() == fs::read(dir.path("b.img")).unwrap());
    }
}

#[test]
fn invalid_verity_specification_is_refused() {
    for (from, to, words) in [
        (
            "\"root\"\n\n",
            "\"root\"\nsalt = \"aa\"\n\n",
            "need format \"verity\"",
        ),
        ("verity-data = \"root\"", "", "needs verity-data"),
        (
            "verity-data = \"root\"",
            "verity-data = \"usr\"",
            "no such label or number",
        ),
        (
            "verity-data = \"root\"",
            "verity-data = 2",
            "no such label or number",
        ),
        ("\"verity\"", "\"verity\"\nsalt = \"xyz\"", "invalid salt"),
        (
            "\"verity\"",
            "\"verity\"\nsource = \"root\"",
            "has no source",
        ),
        (
            "\"verity\"",
            "\"verity\"\nsize = \"8K\"",
            "the hash tree needs",
        ),
        ("\"ext4\"", "\"fat32\"", "sectors of 512 bytes"),
        (
            "\"ext4\"\nsource = \"root\"",
            "\"none\"\nsize = 4608",
            "whole blocks of 4096",
        ),
    ] {
        let spec = SPEC.replacen(from, to, 1);
        assert_ne!(spec, SPEC);
        refused(&spec, words);
    }
    let large = "[[partition]]\ntype = \"linux-root-x86-64-verity-sig\"\n\
                 format = \"verity-signature\"\nsize = \"8M\"\n";
    refused(&format!("{SPEC}\n{large}"), "a signature has at most");
    let tree = SPEC.split("\n\n").nth(1).unwrap();
    refused(&format!("{SPEC}\n{tree}"), "has a hash tree already");
    let of_tree = tree.replace("\"root\"", "\"root-verity\"");
    refused(&format!("{SPEC}\n{of_tree}"), "is a hash tree itself");
    let data = SPEC.split("\n\n").next().unwrap();
    refused(
        &format!("{data}{SPEC}"),
        "several partitions have this label",
    );
}

/// Asserts that no disk is made by a specification.
#[track_caller]
fn refused(spec: &str, words: &str) {
    let dir = fixture(spec);
    dir.fails(&["disk", "create", "new.img", "spec.toml"], 2, words);
    assert!(!dir.path("new.img").exists());
}

#[test]
fn kernel_mounts_root_with_blocks_of_verity() {
    requires!(root, loop_devices);
    let dir = fixture(SPEC);
    create(&dir, "new.img");
    dir.ok(&["image", "convert", "new.img@root", "root.img"]);
    // dm-verity has logical blocks as large as the blocks of data.
    let words = ["--find", "--show", "--read-only", "--sector-size", "4096"];
    let image = dir.path("root.img");
    let words = words.map(OsStr::new).into_iter();
    let device = run("losetup", words.chain([image.as_os_str()]));
    let device = device.trim();
    let target = dir.path("mounted");
    fs::create_dir(&target).unwrap();
    let words = [
        "-o".as_ref(),
        "ro".as_ref(),
        OsStr::new(device),
        target.as_os_str(),
    ];
    let mounted = command("mount").args(words).output().unwrap();
    let read = fs::read_to_string(target.join("usr/lib/os-release"));
    let _ = command("umount").arg(&target).output();
    run("losetup", ["--detach", device]);
    assert!(mounted.status.success(), "{mounted:?}");
    assert_eq!(read.unwrap(), "ID=test\nVERSION_ID=1\n");
}

/// Signs a root hash with a new key; returns the name of the JSON for a partition.
fn sign(dir: &TestDir, root: &str) -> &'static str {
    let path = |name: &str| dir.path(name).into_os_string().into_string().unwrap();
    fs::write(dir.path("hash"), root).unwrap();
    let [key, certificate, hash, signature] =
        ["key.pem", "certificate.pem", "hash", "signature"].map(path);
    let words = "req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=test -keyout";
    let words = words.split(' ').chain([&*key, "-out", &certificate]);
    run("openssl", words);
    let words = "smime -sign -nocerts -noattr -binary -outform der -in";
    let files = [
        &*hash,
        "-inkey",
        &key,
        "-signer",
        &certificate,
        "-out",
        &signature,
    ];
    run("openssl", words.split(' ').chain(files));
    let words = [
        "x509",
        "-in",
        &certificate,
        "-noout",
        "-fingerprint",
        "-sha256",
    ];
    let fingerprint = run("openssl", words);
    let fingerprint = fingerprint
        .trim()
        .rsplit('=')
        .next()
        .unwrap()
        .replace(':', "");
    let signed = run("openssl", ["base64", "-A", "-in", &signature]);
    let json = serde_json::json!({
        "rootHash": root,
        "certificateFingerprint": fingerprint.to_lowercase(),
        "signature": signed.trim(),
    });
    fs::write(dir.path("root.sig"), json.to_string()).unwrap();
    "root.sig"
}

#[test]
fn added_signature_is_of_this_root_hash() {
    requires!(tool("openssl"));
    let dir = fixture(&format!("size = \"12M\"\n{SPEC}size = \"1M\"\n"));
    let root = root_hash(&create(&dir, "new.img"));
    let file = sign(&dir, &root);
    let add = [
        "-q",
        "disk",
        "add",
        "new.img",
        "--type",
        "linux-root-x86-64-verity-sig",
        "--size",
        "auto",
        "--format",
        "verity-signature",
        "--source",
    ];
    let with = |file| [&add[..], &[file]].concat();
    let text = fs::read_to_string(dir.path(file)).unwrap();
    for (name, changed, code, words) in [
        (
            "foreign",
            text.replace(&root, &"0".repeat(64)),
            1,
            "which no partitions",
        ),
        ("empty", "{}".to_owned(), 2, "rootHash"),
        (
            "binary",
            text.replace("\"signature\":\"", "\"signature\":\"!"),
            2,
            "expected base64",
        ),
        ("short", text.replace(&root, "12"), 2, "invalid root hash"),
    ] {
        fs::write(dir.path(name), changed).unwrap();
        dir.fails(&with(name), code, words);
    }
    // Less than the file has.
    let sized = |size| {
        let mut words = with(file);
        words[7] = size;
        words
    };
    dir.fails(&sized("512"), 2, "has");
    let before = dir.json(&["disk", "list", "new.img", "--json"]);
    assert_eq!(before["partitions"].as_array().unwrap().len(), 2);
    let mut without_size = with(file);
    without_size.drain(6..8);
    dir.ok(&without_size);
    dir.fails(
        &["check", "new.img@7", "--root-hash", &root],
        8,
        "no partition 7",
    );
    dir.ok(&["image", "convert", "new.img@3", "partition"]);
    let partition = fs::read(dir.path("partition")).unwrap();
    assert_eq!(partition.len(), 16 << 10);
    let json = partition.strip_prefix(text.as_bytes()).unwrap();
    assert!(json.iter().all(|byte| *byte == 0));
}

#[test]
fn systemd_finds_verified_and_signed_root() {
    requires!(root, loop_devices, tool("systemd-dissect"), tool("openssl"));
    let dir = fixture(&format!("size = \"12M\"\n{SPEC}size = \"1M\"\n"));
    let root = root_hash(&create(&dir, "new.img"));
    let image = dir.path("new.img");
    let verity = |words: &[&str]| {
        let mut dissect = command("systemd-dissect");
        dissect.args(["--json=short"]).args(words).arg(&image);
        let printed = succeed(&mut dissect);
        let printed: Value = serde_json::from_slice(&printed.stdout).unwrap();
        let root = printed["mounts"][0].clone();
        assert_eq!(root["designator"], "root", "{printed}");
        root["verity"].as_str().unwrap().to_owned()
    };
    assert_eq!(verity(&[&format!("--root-hash={root}")]), "yes");
    let file = sign(&dir, &root);
    dir.ok(&[
        "-q",
        "disk",
        "add",
        "new.img",
        "--type",
        "linux-root-x86-64-verity-sig",
        "--size",
        "auto",
        "--format",
        "verity-signature",
        "--source",
        file,
    ]);
    assert_eq!(verity(&[]), "signed");
}

#[test]
fn tree_of_systemd_repart_is_verified() {
    requires!(root, loop_devices, tool("systemd-repart"));
    let dir = TestDir::new();
    image(&dir, "data", 2048);
    fs::create_dir(dir.path("parts")).unwrap();
    let definition = |name: &str, verity: &str, more: &str| {
        let text = format!("[Partition]\nType={name}\nVerity={verity}\nVerityMatchKey=a\n{more}\n");
        fs::write(dir.path("parts").join(format!("{verity}.conf")), text).unwrap();
    };
    let copy = format!("CopyBlocks={}", dir.path("data").display());
    definition("root-x86-64", "data", &copy);
    definition(
        "root-x86-64-verity",
        "hash",
        "SizeMinBytes=2M\nSizeMaxBytes=2M",
    );
    let mut repart = command("systemd-repart");
    repart
        .args([
            "--empty=create",
            "--size=20M",
            "--dry-run=no",
            "--definitions",
        ])
        .arg(dir.path("parts"))
        .arg(dir.path("new.img"));
    succeed(&mut repart);
    let listed = dir.json(&["disk", "list", "new.img", "--json"]);
    let tree = &listed["partitions"][1]["verity"];
    let root = root_hash(tree);
    let id = |at: usize| {
        listed["partitions"][at]["uuid"]
            .as_str()
            .unwrap()
            .replace('-', "")
    };
    assert_eq!(format!("{}{}", id(0), id(1)), root);
    dir.ok(&["check", "new.img", "--root-hash", &root]);
    flip(&dir.path("new.img"), (1 << 20) + 5);
    let output = succeeds_not(dir.command(&["check", "new.img", "--root-hash", &root]), 4);
    assert!(output.contains("data block 0 at byte 0"), "{output}");
}
