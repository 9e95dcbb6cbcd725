//! `folio image check`, `snapshot`, `resize`, `rebase` and `commit`: output, exit codes and JSON of
//! qemu-img.

use crate::cli::TestDir;
use crate::support::requires;
use crate::support::tools::{qemu_check, run};
use serde_json::json;
use std::os::unix::fs::FileExt;

/// Creates a directory with a qcow2 image of 1 MiB of data.
fn dir() -> TestDir {
    let dir = TestDir::new();
    dir.ok(&["image", "create", "-f", "qcow2", "disk.qcow2", "8M"]);
    let path = dir.path("disk.qcow2");
    run("qemu-io", ["-c", "write -P 1 0 1M", path.to_str().unwrap()]);
    dir
}

#[test]
fn check_reports_and_repairs_leaks() {
    requires!(tool("qemu-img"), tool("qemu-io"));
    let dir = dir();
    assert!(
        dir.ok(&["image", "check", "disk.qcow2"])
            .starts_with("No errors were found on the image.\n16/128")
    );
    let report = dir.json(&["image", "check", "--output=json", "disk.qcow2"]);
    assert_eq!(
        (&report["check-errors"], &report["leaks"]),
        (&json!(0), &json!(null))
    );
    assert_eq!(
        (&report["allocated-clusters"], &report["format"]),
        (&json!(16), &json!("qcow2"))
    );
    // A leaked cluster at the end: its refcount is 1, but no table refers to it.
    let path = dir.path("disk.qcow2");
    let file = std::fs::File::options()
        .read(true)
        .write(true)
        .open(&path)
        .unwrap();
    let clusters = file.metadata().unwrap().len() / 65536;
    file.set_len((clusters + 1) * 65536).unwrap();
    let mut block = [0; 8];
    file.read_exact_at(&mut block, 65536).unwrap();
    file.write_all_at(&[0, 1], u64::from_be_bytes(block) + clusters * 2)
        .unwrap();
    dir.fails(&["image", "check", "disk.qcow2"], 3, "Leaked cluster");
    dir.fails(&["image", "check", "disk.img"], 63, "no metadata to check");
    dir.fails(&["image", "check", "nowhere"], 1, "No such file");
    let said = dir
        .command(&["image", "check", "-r", "leaks", "disk.qcow2"])
        .output()
        .unwrap();
    assert!(
        said.status.success()
            && String::from_utf8_lossy(&said.stderr).contains("Repairing cluster")
    );
    qemu_check(&path);
}

#[test]
fn snapshot_is_created_applied_and_deleted() {
    requires!(tool("qemu-img"), tool("qemu-io"));
    let dir = dir();
    assert_eq!(dir.ok(&["image", "snapshot", "-l", "disk.qcow2"]), "");
    dir.ok(&["image", "snapshot", "-c", "before", "disk.qcow2"]);
    let list = dir.ok(&["image", "snapshot", "disk.qcow2"]);
    assert!(list.contains("TAG") && list.contains("before"), "{list}");
    assert_eq!(
        dir.json(&["image", "snapshot", "--json", "disk.qcow2"])[0]["id"],
        "1"
    );
    let path = dir.path("disk.qcow2");
    run("qemu-io", ["-c", "write -P 2 0 2M", path.to_str().unwrap()]);
    dir.ok(&["image", "snapshot", "-a", "before", "disk.qcow2"]);
    run("qemu-io", ["-c", "read -P 1 0 1M", path.to_str().unwrap()]);
    dir.ok(&["image", "snapshot", "-d", "before", "disk.qcow2"]);
    dir.fails(
        &["image", "snapshot", "-d", "before", "disk.qcow2"],
        3,
        "no snapshot \"before\"",
    );
    dir.fails(
        &["image", "snapshot", "-d", "x", "-a", "y", "disk.qcow2"],
        2,
        "cannot be used with",
    );
    qemu_check(&path);
}

#[test]
fn resize_changes_virtual_size() {
    requires!(tool("qemu-img"), tool("qemu-io"));
    let dir = dir();
    assert_eq!(
        dir.ok(&["image", "resize", "disk.qcow2", "+2M"]),
        "Image resized.\n"
    );
    dir.fails(
        &["image", "resize", "disk.qcow2", "-5M"],
        3,
        "use --shrink to allow that",
    );
    dir.ok(&["image", "resize", "--shrink", "disk.qcow2", "-5M"]);
    assert_eq!(
        dir.json(&["image", "info", "--output=json", "disk.qcow2"])["virtual-size"],
        5 << 20
    );
    qemu_check(&dir.path("disk.qcow2"));
}

#[test]
fn commit_and_rebase_change_backing_files() {
    requires!(tool("qemu-img"), tool("qemu-io"));
    let dir = dir();
    dir.ok(&["image", "resize", "--shrink", "disk.qcow2", "-3M"]);
    run(
        "qemu-img",
        [
            "create",
            "-q",
            "-f",
            "qcow2",
            "-b",
            "disk.qcow2",
            "-F",
            "qcow2",
            dir.path("top.qcow2").to_str().unwrap(),
        ],
    );
    run(
        "qemu-io",
        [
            "-c",
            "write -P 9 3M 64k",
            dir.path("top.qcow2").to_str().unwrap(),
        ],
    );
    assert_eq!(
        dir.ok(&["image", "commit", "top.qcow2"]),
        "Image committed.\n"
    );
    run(
        "qemu-io",
        [
            "-r",
            "-c",
            "read -P 9 3M 64k",
            dir.path("disk.qcow2").to_str().unwrap(),
        ],
    );
    dir.ok(&["image", "rebase", "-b", "", "top.qcow2"]);
    run(
        "qemu-img",
        [
            "compare",
            dir.path("disk.qcow2").to_str().unwrap(),
            dir.path("top.qcow2").to_str().unwrap(),
        ],
    );
    dir.ok(&[
        "image",
        "rebase",
        "-u",
        "-b",
        "disk.qcow2",
        "-F",
        "qcow2",
        "top.qcow2",
    ]);
    assert_eq!(
        dir.json(&["image", "info", "--output=json", "top.qcow2"])["backing-filename"],
        "disk.qcow2"
    );
    dir.fails(&["image", "commit", "disk.qcow2"], 3, "no backing file");
    for name in ["disk.qcow2", "top.qcow2"] {
        qemu_check(&dir.path(name));
    }
}

#[test]
fn closed_images_have_no_dirty_bit() {
    let dir = TestDir::new();
    std::fs::create_dir(dir.path("tree")).unwrap();
    for at in 0..50 {
        std::fs::write(dir.path(&format!("tree/{at}")), vec![at; 50_000]).unwrap();
    }
    std::fs::write(dir.path("spec.toml"), SPEC).unwrap();
    for words in [
        "cp -a tree disk.qcow2:/ --create 64M",
        "cp -a tree disk.qcow2:/again",
        "mkdir disk.qcow2:/a disk.qcow2:/b",
        "rm -r disk.qcow2:/tree",
        "cp -a tree auto.qcow2:/ --create auto",
        "disk create parts.qcow2 spec.toml",
        "cp tree/7 parts.qcow2@1:/7",
        "cp tree/7 parts.qcow2@2:/7",
        "tune -L label disk.qcow2",
        "resize disk.qcow2 100M",
        "trim disk.qcow2",
    ] {
        let words: Vec<_> = words.split(' ').collect();
        dir.ok(&words);
        for image in ["disk.qcow2", "auto.qcow2", "parts.qcow2"] {
            let Ok(bytes) = std::fs::read(dir.path(image)) else {
                continue;
            };
            assert_eq!(bytes[72..80], [0; 8], "{image} after {words:?}");
        }
    }
}

/// A FAT and an ext4.
const SPEC: &str = "
[[partition]]
type = 'esp'
size = '40M'
format = 'fat32'
[[partition]]
type = 'linux'
size = '20M'
format = 'ext4'
";

#[test]
fn fork_reads_as_the_image() {
    requires!(tool("qemu-img"), tool("qemu-io"));
    let dir = dir();
    dir.ok(&["fork", "disk.qcow2", "fork.qcow2"]);
    let (disk, fork) = (dir.path("disk.qcow2"), dir.path("fork.qcow2"));
    let (disk, fork) = (disk.to_str().unwrap(), fork.to_str().unwrap());
    run("qemu-img", ["compare", disk, fork]);
    run("qemu-io", ["-c", "write -P 2 0 64k", disk]);
    run("qemu-io", ["-c", "read -P 1 0 1M", fork]);
    qemu_check(fork.as_ref());
    dir.fails(&["fork", "disk.qcow2", "fork.qcow2"], 3, "fork.qcow2");
    dir.fails(&["fork", "absent.qcow2", "new.qcow2"], 3, "absent.qcow2");
    assert!(!dir.path("new.qcow2").exists());
}
