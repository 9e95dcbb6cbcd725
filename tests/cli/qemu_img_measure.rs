//! `measure` beside qemu-img's: equal sizes, and sizes that new images really have.

use super::qemu_img::{Pair, words};
use super::support::requires;
use serde_json::Value;

impl Pair {
    /// Runs a command line with `--output=json` in both programs; the values must be equal.
    #[track_caller]
    pub(super) fn same_json(&self, line: &str) -> Value {
        let arguments = words(line);
        let values = ["own", "real"].map(|side| {
            let output = self.run(side, &arguments);
            assert!(output.status.success(), "{side}: {line}: {output:?}");
            serde_json::from_slice::<Value>(&output.stdout).unwrap()
        });
        assert_eq!(values[0], values[1], "{line}");
        values[0].clone()
    }
}

#[test]
fn measure_of_empty_disk_matches_qemu_img() {
    requires!(tool("qemu-img"));
    let pair = Pair::new();
    for size in ["0", "1", "1000", "10M", "0x10000", "1G", "700G", "3T"] {
        pair.same(&["measure", "--size", size]);
        for options in [
            "compat=1.1",
            "compat=0.10",
            "cluster_size=4k",
            "cluster_size=2M,refcount_bits=1",
            "extended_l2=on,refcount_bits=64",
            "preallocation=metadata",
            "preallocation=falloc",
            "preallocation=full,cluster_size=512",
            "data_file=d,data_file_raw=on",
            "compression_type=zstd,lazy_refcounts=on",
        ] {
            let line = format!("measure -O qcow2 --size {size} -o {options}");
            pair.same(&words(&line));
        }
        pair.same_json(&format!("measure --output json -O qcow2 --size {size}"));
    }
}

#[test]
fn measure_of_image_matches_qemu_img() {
    requires!(tool("qemu-img"), tool("qemu-io"));
    let pair = Pair::new();
    pair.file("raw", &[7; 100_000]);
    for create in [
        "create -q -f qcow2 a.qcow2 10M",
        "create -q -f qcow2 -o preallocation=metadata meta.qcow2 10M",
        "create -q -f qcow2 -o compat=0.10 old.qcow2 10M",
        "create -q -f qcow2 -F qcow2 -b a.qcow2 over.qcow2 12M",
    ] {
        pair.both("qemu-img", &words(create));
    }
    for name in ["a.qcow2", "old.qcow2", "over.qcow2"] {
        let commands = ["-c", "write -P 1 70000 1M", "-c", "write -z 3M 100k"];
        pair.both("qemu-io", &[&commands[..], &[name]].concat());
    }
    pair.both("qemu-img", &words("snapshot -c full a.qcow2"));
    pair.both("qemu-img", &words("bitmap --add a.qcow2 one"));
    pair.both("qemu-img", &words("bitmap --add -g 4k a.qcow2 second"));
    for name in ["raw", "a.qcow2", "meta.qcow2", "old.qcow2", "over.qcow2"] {
        pair.same(&["measure", name]);
        for options in ["", "-o cluster_size=4k", "-o compat=0.10"] {
            pair.same(&words(&format!("measure -O qcow2 {options} {name}")));
        }
        for options in [
            "-o backing_file=x,backing_fmt=raw",
            "-o preallocation=falloc",
        ] {
            pair.same(&words(&format!("measure -U -O qcow2 {options} {name}")));
        }
        pair.same_json(&format!("measure --output=json -O qcow2 {name}"));
        pair.same_json(&format!("measure --output=json -O raw {name}"));
    }
    let json = pair.same_json("measure --output=json -O qcow2 -f qcow2 a.qcow2");
    assert!(json["bitmaps"].as_u64().is_some_and(|bytes| bytes > 0));
    pair.both("qemu-io", &["-c", "write -P 1 5M 1M", "a.qcow2"]);
    for snapshot in [
        "full",
        "1",
        "snapshot.name=full",
        "snapshot.id=1,snapshot.name=full",
    ] {
        pair.same(&["measure", "-O", "qcow2", "-l", snapshot, "a.qcow2"]);
    }
    pair.same(&[
        "measure",
        "--image-opts",
        "-O",
        "qcow2",
        "driver=qcow2,file.filename=a.qcow2",
    ]);
}

#[test]
fn measured_size_is_that_of_the_copy() {
    requires!(tool("qemu-img"), tool("qemu-io"));
    let pair = Pair::new();
    pair.both("qemu-img", &words("create -q -f qcow2 a.qcow2 300M"));
    pair.both("qemu-io", &["-c", "write -P 1 70000 20M", "a.qcow2"]);
    let measured = pair.same_json("measure --output=json -O qcow2 a.qcow2");
    pair.same(&words("convert -O qcow2 a.qcow2 b.qcow2"));
    let len = std::fs::metadata(pair.path("own", "b.qcow2"))
        .unwrap()
        .len();
    assert!(measured["required"].as_u64().unwrap() >= len);
    let full = pair.same_json("measure --output=json -O qcow2 --size 300M");
    pair.same(&words(
        "create -q -f qcow2 -o preallocation=metadata c.qcow2 300M",
    ));
    let len = std::fs::metadata(pair.path("own", "c.qcow2"))
        .unwrap()
        .len();
    assert!(full["fully-allocated"].as_u64().unwrap() >= len);
}

#[test]
fn invalid_measure_fails_in_both_programs() {
    requires!(tool("qemu-img"));
    let pair = Pair::new();
    pair.both("qemu-img", &words("create -q -f qcow2 a.qcow2 10M"));
    for line in [
        "measure",
        "measure a.qcow2 a.qcow2",
        "measure --size 10M a.qcow2",
        "measure -f raw --size 10M",
        "measure -l snap a.qcow2",
        "measure -l snapshot.bogus=1 a.qcow2",
        "measure -l 1 -f raw a.qcow2",
        "measure --image-opts --size 1M",
        "measure -O qcow2 --size 2E",
        "measure --size 9E",
        "measure --size -1",
        "measure --size 1X",
        "measure -O qcow2 --size 1G -o cluster_size=3k",
        "measure -O qcow2 --size 1G -o compat=0.10,refcount_bits=1",
        "measure -O bogus --size 1G",
        "measure none",
    ] {
        pair.same(&words(line));
    }
}
