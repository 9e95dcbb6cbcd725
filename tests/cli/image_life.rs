//! `folio image check`, `snapshot`, `resize`, `rebase` and `commit`: words, exit codes and JSON as
//! qemu-img's.

use crate::cli::Bench;
use crate::support::requires;
use crate::support::tools::{qemu_check, run};
use serde_json::json;
use std::os::unix::fs::FileExt;

/// A folder with a qcow2 that has 1 MiB of data.
fn bench() -> Bench {
    let bench = Bench::new();
    bench.ok(&["image", "create", "-f", "qcow2", "disk.qcow2", "8M"]);
    let path = bench.path("disk.qcow2");
    run("qemu-io", ["-c", "write -P 1 0 1M", path.to_str().unwrap()]);
    bench
}

#[test]
fn checks_and_repairs() {
    requires!(tool("qemu-img"), tool("qemu-io"));
    let bench = bench();
    assert!(
        bench
            .ok(&["image", "check", "disk.qcow2"])
            .starts_with("No errors were found on the image.\n16/128")
    );
    let report = bench.json(&["image", "check", "--output=json", "disk.qcow2"]);
    assert_eq!(
        (&report["check-errors"], &report["leaks"]),
        (&json!(0), &json!(null))
    );
    assert_eq!(
        (&report["allocated-clusters"], &report["format"]),
        (&json!(16), &json!("qcow2"))
    );
    // A leaked cluster at the end: the refcount block says so, nobody uses it.
    let path = bench.path("disk.qcow2");
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
    bench.fails(&["image", "check", "disk.qcow2"], 3, "Leaked cluster");
    bench.fails(
        &["image", "check", "disk.img"],
        63,
        "nothing that could be checked",
    );
    bench.fails(&["image", "check", "nowhere"], 1, "No such file");
    let said = bench
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
fn snapshots_come_and_go() {
    requires!(tool("qemu-img"), tool("qemu-io"));
    let bench = bench();
    assert_eq!(bench.ok(&["image", "snapshot", "-l", "disk.qcow2"]), "");
    bench.ok(&["image", "snapshot", "-c", "before", "disk.qcow2"]);
    let list = bench.ok(&["image", "snapshot", "disk.qcow2"]);
    assert!(list.contains("TAG") && list.contains("before"), "{list}");
    assert_eq!(
        bench.json(&["image", "snapshot", "--json", "disk.qcow2"])[0]["id"],
        "1"
    );
    let path = bench.path("disk.qcow2");
    run("qemu-io", ["-c", "write -P 2 0 2M", path.to_str().unwrap()]);
    bench.ok(&["image", "snapshot", "-a", "before", "disk.qcow2"]);
    run("qemu-io", ["-c", "read -P 1 0 1M", path.to_str().unwrap()]);
    bench.ok(&["image", "snapshot", "-d", "before", "disk.qcow2"]);
    bench.fails(
        &["image", "snapshot", "-d", "before", "disk.qcow2"],
        3,
        "no snapshot \"before\"",
    );
    bench.fails(
        &["image", "snapshot", "-d", "x", "-a", "y", "disk.qcow2"],
        2,
        "cannot be used with",
    );
    qemu_check(&path);
}

#[test]
fn sizes_and_backing_files_change() {
    requires!(tool("qemu-img"), tool("qemu-io"));
    let bench = bench();
    assert_eq!(
        bench.ok(&["image", "resize", "disk.qcow2", "+2M"]),
        "Image resized.\n"
    );
    bench.fails(
        &["image", "resize", "disk.qcow2", "-5M"],
        3,
        "--shrink allows it",
    );
    bench.ok(&["image", "resize", "--shrink", "disk.qcow2", "-5M"]);
    assert_eq!(
        bench.json(&["image", "info", "--output=json", "disk.qcow2"])["virtual-size"],
        5 << 20
    );
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
            bench.path("top.qcow2").to_str().unwrap(),
        ],
    );
    run(
        "qemu-io",
        [
            "-c",
            "write -P 9 3M 64k",
            bench.path("top.qcow2").to_str().unwrap(),
        ],
    );
    assert_eq!(
        bench.ok(&["image", "commit", "top.qcow2"]),
        "Image committed.\n"
    );
    run(
        "qemu-io",
        [
            "-r",
            "-c",
            "read -P 9 3M 64k",
            bench.path("disk.qcow2").to_str().unwrap(),
        ],
    );
    bench.ok(&["image", "rebase", "-b", "", "top.qcow2"]);
    run(
        "qemu-img",
        [
            "compare",
            bench.path("disk.qcow2").to_str().unwrap(),
            bench.path("top.qcow2").to_str().unwrap(),
        ],
    );
    bench.ok(&[
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
        bench.json(&["image", "info", "--output=json", "top.qcow2"])["backing-filename"],
        "disk.qcow2"
    );
    bench.fails(&["image", "commit", "disk.qcow2"], 3, "no backing file");
    for name in ["disk.qcow2", "top.qcow2"] {
        qemu_check(&bench.path(name));
    }
}
