//! External data files: guest data outside the image, as QEMU stores it.

use crate::images::model;
use crate::support::requires;
use crate::support::tools::{command, run, succeed};
use folio::block::{BackingPolicy, OpenOptions, open};
use folio::{Errno, Error};
use std::path::Path;
use tempfile::TempDir;

const LEN: usize = 2 << 20;
const WRITES: [&str; 6] = [
    "write -P 1 0 1M",
    "write -P 2 1300k 5000",
    "write -z 64k 64k",
    "write -z -u 256k 130k",
    "discard 640k 64k",
    "write -P 3 660k 4k",
];

/// Runs a tool in `folder`, where QEMU starts the name of a data file.
#[track_caller]
fn qemu<'a>(folder: &Path, program: &str, arguments: impl IntoIterator<Item = &'a str>) {
    succeed(command(program).args(arguments).current_dir(folder));
}

/// Returns the disk's content as QEMU reads it.
#[track_caller]
fn by_qemu(folder: &Path) -> Vec<u8> {
    qemu(
        folder,
        "qemu-img",
        ["convert", "-O", "raw", "disk.qcow2", "back.raw"],
    );
    std::fs::read(folder.join("back.raw")).unwrap()
}

/// Creates an image, writes it with qemu-io, reads and writes it with Folio, and writes it with
/// QEMU again.
fn both_ways(options: &str, seed: u64) {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("disk.qcow2");
    let options = format!("data_file=data.raw,{options}");
    qemu(
        folder.path(),
        "qemu-img",
        ["create", "-f", "qcow2", "-o", &options, "disk.qcow2", "2M"],
    );
    for round in 0..2 {
        qemu(
            folder.path(),
            "qemu-io",
            WRITES
                .iter()
                .flat_map(|line| ["-c", line])
                .chain(["disk.qcow2"]),
        );
        let mut want = by_qemu(folder.path());
        let read_only = OpenOptions {
            read_only: true,
            ..OpenOptions::default()
        };
        model::same(&*open(&path, &read_only).unwrap(), &want, seed);
        let device = open(&path, &OpenOptions::default()).unwrap();
        model::run(&*device, &mut want, seed + round, 150);
        device.flush().unwrap();
        model::run(&*device, &mut want, seed + round + 10, 50);
        drop(device);
        succeed(
            command("qemu-img")
                .args(["check", "disk.qcow2"])
                .current_dir(folder.path()),
        );
        assert!(
            by_qemu(folder.path()) == want,
            "{options}, seed {seed}: QEMU reads something else"
        );
        if options.contains("raw=on") {
            let data = std::fs::read(folder.path().join("data.raw")).unwrap();
            assert!(
                data == want,
                "{options}, seed {seed}: the data file is not the disk"
            );
            let info = run("qemu-img", ["info", path.to_str().unwrap()]);
            assert!(info.contains("data file raw: true"), "{info}");
        }
    }
}

#[test]
fn data_files_are_read_and_written() {
    requires!(tool("qemu-img"), tool("qemu-io"));
    both_ways("cluster_size=64k", 1);
    both_ways("cluster_size=4k", 2);
    both_ways("cluster_size=64k,data_file_raw=on", 3);
    both_ways("cluster_size=4k,data_file_raw=on", 4);
    both_ways("cluster_size=64k,preallocation=metadata", 5);
    both_ways("cluster_size=16k,extended_l2=on", 6);
    both_ways("cluster_size=64k,extended_l2=on,data_file_raw=on", 7);
}

#[test]
fn data_file_over_a_backing_file() {
    requires!(tool("qemu-img"), tool("qemu-io"));
    let folder = TempDir::new().unwrap();
    let mut want = vec![7; LEN];
    std::fs::write(folder.path().join("base.raw"), &want).unwrap();
    let line = "create -f qcow2 -o data_file=data.raw -b base.raw -F raw disk.qcow2 2M";
    qemu(folder.path(), "qemu-img", line.split(' '));
    let path = folder.path().join("disk.qcow2");
    let device = open(&path, &OpenOptions::default()).unwrap();
    model::run(&*device, &mut want, 6, 200);
    drop(device);
    succeed(
        command("qemu-img")
            .args(["check", "disk.qcow2"])
            .current_dir(folder.path()),
    );
    assert!(by_qemu(folder.path()) == want, "QEMU reads something else");
    assert!(std::fs::read(folder.path().join("base.raw")).unwrap() == vec![7; LEN]);
}

fn refusal(path: &Path, options: &OpenOptions) -> Error {
    open(path, options).err().expect("has to be refused")
}

/// A data file is opened only if the policy allows it and no other process has it open.
#[test]
fn data_file_obeys_policy_and_lock() {
    requires!(tool("qemu-img"));
    let folder = TempDir::new().unwrap();
    let inner = folder.path().join("inner");
    std::fs::create_dir(&inner).unwrap();
    let path = inner.join("disk.qcow2");
    qemu(
        &inner,
        "qemu-img",
        "create -f qcow2 -o data_file=../data.raw disk.qcow2 2M".split(' '),
    );
    let error = refusal(&path, &OpenOptions::default());
    assert_eq!(error.errno(), Errno::PERM);
    assert!(
        error
            .to_string()
            .contains("data file \"../data.raw\": is outside the image's folder"),
        "{error}"
    );
    let anywhere = OpenOptions {
        backing: BackingPolicy::Anywhere,
        ..OpenOptions::default()
    };
    let device = open(&path, &anywhere).unwrap();
    device.write_at(&[1; 512], 0).unwrap();
    device.flush().unwrap();
    let read_only = OpenOptions {
        read_only: true,
        ..anywhere.clone()
    };
    assert_eq!(
        refusal(&folder.path().join("data.raw"), &read_only).errno(),
        Errno::BUSY
    );
    drop(device);
    let data = open(folder.path().join("data.raw"), &OpenOptions::default()).unwrap();
    assert_eq!(refusal(&path, &read_only).errno(), Errno::BUSY);
    drop(data);
    open(&path, &read_only).unwrap();
    let refuse = OpenOptions {
        backing: BackingPolicy::Refuse,
        ..OpenOptions::default()
    };
    assert!(
        refusal(&path, &refuse)
            .to_string()
            .contains("data files are not allowed")
    );
    std::fs::remove_file(folder.path().join("data.raw")).unwrap();
    assert_eq!(refusal(&path, &anywhere).errno(), Errno::NOENT);
}

/// Headers and entries that contradict the data file feature.
#[test]
fn contradicting_data_file_headers_are_rejected() {
    requires!(tool("qemu-img"));
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("d.qcow2");
    qemu(
        folder.path(),
        "qemu-img",
        "create -f qcow2 -o data_file=data.raw d.qcow2 2M".split(' '),
    );
    let good = std::fs::read(&path).unwrap();
    let name_at = good.windows(4).position(|bytes| bytes == b"DATA").unwrap();
    let itself = (name_at + 4, &b"\0\0\0\x07d.qcow2"[..]);
    let cases: [(usize, &[u8], &str); 4] = [
        (name_at, b"ATAD", "without a name"),
        (name_at + 9, &[0], "data file name"),
        (name_at + 4, &[0, 1, 0, 0], "leaves the header's cluster"),
        (itself.0, itself.1, "is its own"),
    ];
    for (at, bytes, name) in cases {
        let mut image = good.clone();
        image[at..at + bytes.len()].copy_from_slice(bytes);
        std::fs::write(&path, &image).unwrap();
        let said = refusal(&path, &OpenOptions::default()).to_string();
        assert!(said.contains(name), "{name}: {said}");
    }
    // Entries that are compressed, or have another offset in the data file.
    std::fs::write(&path, &good).unwrap();
    let device = open(&path, &OpenOptions::default()).unwrap();
    device.write_at(&[1; 512], 0).unwrap();
    drop(device);
    let good = std::fs::read(&path).unwrap();
    let entry = (1u64 << 63).to_be_bytes();
    let entry_at = good.chunks(8).rposition(|bytes| bytes == entry).unwrap() * 8;
    for (entry, name) in [
        ((1u64 << 63) | 0x10000, "not its own offset"),
        (1 << 62, "compressed cluster"),
    ] {
        let mut image = good.clone();
        image[entry_at..entry_at + 8].copy_from_slice(&entry.to_be_bytes());
        std::fs::write(&path, &image).unwrap();
        let device = open(&path, &OpenOptions::default()).unwrap();
        for result in [
            device.read_at(&mut [0; 512], 0),
            device.write_at(&[1; 512], 0),
        ] {
            let said = result.unwrap_err().to_string();
            assert!(said.contains(name), "{said}");
        }
    }
}
