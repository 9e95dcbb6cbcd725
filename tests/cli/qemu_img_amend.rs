//! `amend`, and `-U` of `check` and `snapshot`, beside qemu-img's.

use super::qemu_img::{Pair, words};
use super::support::requires;
use super::support::tools::command;
use std::io::{BufRead, BufReader, Write};
use std::process::Stdio;

/// An image with data, zero clusters and a backing file.
fn create(pair: &Pair, options: &str) {
    pair.file("base.raw", &[9; 1 << 20]);
    let line = format!("create -q -f qcow2 -o {options} -b base.raw -F raw a.qcow2 4M");
    pair.both("qemu-img", &words(&line));
    let mut commands = vec!["-c", "write -P 1 2M 300k", "-c", "write -P 2 64k 64k"];
    if !options.contains("compat=0.10") {
        commands.extend(["-c", "write -z 256k 128k", "-c", "write -z 3M 1M"]);
    }
    commands.push("a.qcow2");
    pair.both("qemu-io", &commands);
}

#[test]
fn amended_image_matches_qemu_img() {
    requires!(tool("qemu-img"), tool("qemu-io"));
    for (created, changes) in [
        (
            "compat=0.10",
            &["compat=1.1", "lazy_refcounts=on", "refcount_bits=1"][..],
        ),
        (
            "compat=0.10,cluster_size=4k",
            &["compat=v3,refcount_bits=64,lazy_refcounts=on"],
        ),
        (
            "compat=1.1,cluster_size=512",
            &["compat=0.10", "compat=0.10", "compat=1.1"],
        ),
        ("lazy_refcounts=on", &["compat=v2", "size=6M", "size=0"]),
        (
            "refcount_bits=1",
            &["refcount_bits=8", "refcount_bits=64", "refcount_bits=2"],
        ),
        (
            "refcount_bits=32",
            &["compat=0.10,refcount_bits=16", "size=5M,compat=1.1"],
        ),
        (
            "cluster_size=2M",
            &["size=8M", "size=2M", "data_file_raw=off"],
        ),
    ] {
        let pair = Pair::new();
        create(&pair, created);
        for change in changes {
            pair.same(&["amend", "-o", change, "a.qcow2"]);
            pair.same_image("a.qcow2");
            pair.both("qemu-io", &["-c", "write -P 5 512k 200k", "a.qcow2"]);
            pair.same_image("a.qcow2");
        }
    }
}

#[test]
fn refcount_width_keeps_snapshots() {
    requires!(tool("qemu-img"), tool("qemu-io"));
    let pair = Pair::new();
    create(&pair, "cluster_size=4k");
    for tag in ["one", "second", "third"] {
        pair.both("qemu-img", &["snapshot", "-c", tag, "a.qcow2"]);
        pair.both("qemu-io", &["-c", "write -P 3 64k 8k", "a.qcow2"]);
    }
    // Three snapshots share clusters with the disk.
    pair.same(&words("amend -o refcount_bits=2 a.qcow2"));
    pair.same(&words("amend -o refcount_bits=4 a.qcow2"));
    pair.same(&words("amend -p -q -o refcount_bits=64 a.qcow2"));
    for tag in ["third", "one"] {
        pair.same(&["snapshot", "-a", tag, "a.qcow2"]);
        pair.same_image("a.qcow2");
    }
}

#[test]
fn data_file_option_renames_the_file() {
    requires!(tool("qemu-img"), tool("qemu-io"));
    let pair = Pair::new();
    let line = "create -q -f qcow2 -o data_file=d,data_file_raw=on a.qcow2 1M";
    pair.both("qemu-img", &words(line));
    pair.both("qemu-io", &["-c", "write -P 1 64k 64k", "a.qcow2"]);
    for side in ["own", "real"] {
        std::fs::rename(pair.path(side, "d"), pair.path(side, "moved")).unwrap();
    }
    // Both programs open the old data file first.
    for side in ["own", "real"] {
        std::fs::copy(pair.path(side, "moved"), pair.path(side, "d")).unwrap();
    }
    pair.same(&words("amend -o data_file=moved a.qcow2"));
    pair.same(&words("amend -o data_file_raw=off a.qcow2"));
    pair.same(&words("amend -o data_file_raw=on a.qcow2"));
    let text = pair.same_info("a.qcow2");
    assert!(
        text.contains("data file: moved") && text.contains("data file raw: false"),
        "{text}"
    );
}

impl Pair {
    #[track_caller]
    fn same_info(&self, name: &str) -> String {
        let texts = ["own", "real"].map(|side| {
            let output = self.run(side, &["info", name]);
            let text = String::from_utf8(output.stdout).unwrap();
            let lines = text.lines().filter(|line| !line.starts_with("disk size"));
            lines.collect::<Vec<_>>().join("\n")
        });
        assert_eq!(texts[0], texts[1]);
        texts[0].clone()
    }
}

#[test]
fn invalid_amend_changes_nothing() {
    requires!(tool("qemu-img"), tool("qemu-io"));
    let pair = Pair::new();
    create(&pair, "compat=1.1");
    pair.both("qemu-img", &words("snapshot -c one a.qcow2"));
    pair.both(
        "qemu-img",
        &words("create -q -f qcow2 -o extended_l2=on e.qcow2 1M"),
    );
    pair.both(
        "qemu-img",
        &words("create -q -f qcow2 -o refcount_bits=1 r.qcow2 1M"),
    );
    pair.both(
        "qemu-img",
        &words("create -q -f qcow2 -o compat=0.10 old.qcow2 1M"),
    );
    pair.file("r.raw", &[1; 1024]);
    let before = std::fs::read(pair.path("own", "a.qcow2")).unwrap();
    for line in [
        "amend a.qcow2",
        "amend -o compat=1.1",
        "amend -o compat=0.10,lazy_refcounts=on a.qcow2",
        "amend -o refcount_bits=3 a.qcow2",
        "amend -o refcount_bits=1 a.qcow2",
        "amend -o cluster_size=4k a.qcow2",
        "amend -o cluster_size=64k a.qcow2",
        "amend -o preallocation=full a.qcow2",
        "amend -o encryption=on a.qcow2",
        "amend -o backing_file=r.raw,backing_fmt=raw a.qcow2",
        "amend -o backing_file= a.qcow2",
        "amend -o data_file=x a.qcow2",
        "amend -o data_file_raw=on a.qcow2",
        "amend -o extended_l2=on a.qcow2",
        "amend -o compression_type=zlib a.qcow2",
        "amend -o bogus=1 a.qcow2",
        "amend -o compat=0.9 a.qcow2",
        "amend -o lazy_refcounts=maybe a.qcow2",
        "amend -o size=1000 a.qcow2",
        "amend -o compat=0.10 e.qcow2",
        "amend -o compat=0.10 r.qcow2",
        "amend -o lazy_refcounts=on old.qcow2",
        "amend -o refcount_bits=8 old.qcow2",
        "amend -f raw -o size=1M r.raw",
        "amend -f raw -o help",
        "amend -o compat=1.1 none",
    ] {
        pair.same(&words(line));
        assert!(
            std::fs::read(pair.path("own", "a.qcow2")).unwrap() == before,
            "{line}"
        );
    }
    // qemu-img expands the zero clusters of snapshots too.
    let own = pair.run("own", &words("amend -o compat=0.10 a.qcow2"));
    assert_eq!(own.status.code(), Some(1));
    assert!(std::fs::read(pair.path("own", "a.qcow2")).unwrap() == before);
}

#[test]
fn amend_help_lists_the_same_options() {
    requires!(tool("qemu-img"));
    let pair = Pair::new();
    let keys = ["own", "real"].map(|side| {
        let output = pair.run(side, &words("amend -f qcow2 -o help"));
        assert!(output.status.success());
        let text = String::from_utf8(output.stdout).unwrap();
        let lines = text.lines().filter(|line| !line.starts_with("  encrypt"));
        let key = |line: &str| line.split(" - ").next().unwrap().trim().to_owned();
        lines.map(key).collect::<Vec<_>>()
    });
    assert_eq!(keys[0], keys[1]);
}

#[test]
fn shared_check_reads_an_image_in_use() {
    requires!(tool("qemu-img"), tool("qemu-io"));
    let pair = Pair::new();
    create(&pair, "compat=1.1");
    pair.both("qemu-img", &words("snapshot -c one a.qcow2"));
    // The list shows the second of the snapshot.
    std::fs::copy(pair.path("real", "a.qcow2"), pair.path("own", "a.qcow2")).unwrap();
    let mut writers = Vec::new();
    for side in ["own", "real"] {
        let mut writer = command("qemu-io");
        writer.arg(pair.path(side, "a.qcow2"));
        writer.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut writer = writer.spawn().unwrap();
        // The answer follows the open, and its lock.
        writer
            .stdin
            .as_mut()
            .unwrap()
            .write_all(b"length\n")
            .unwrap();
        let mut out = BufReader::new(writer.stdout.take().unwrap());
        let mut line = String::new();
        while !line.contains("4 MiB") {
            assert!(out.read_line(&mut line).unwrap() > 0, "{line}");
        }
        writers.push((writer, out));
    }
    for line in [
        "check a.qcow2",
        "check -U a.qcow2",
        "check -U --output=human a.qcow2",
        "check -U -r all a.qcow2",
        "snapshot -l a.qcow2",
        "snapshot -U -l a.qcow2",
        "snapshot -c two a.qcow2",
        "amend -o compat=0.10 a.qcow2",
        "bitmap --add a.qcow2 x",
    ] {
        pair.same(&words(line));
    }
    for (mut writer, out) in writers {
        drop((writer.stdin.take(), out));
        writer.wait().unwrap();
    }
}
