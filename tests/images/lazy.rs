//! Lazy refcounts and the dirty bit.

use crate::images::model;
use crate::support::requires;
use crate::support::tools::{command, qemu_check, run, succeed, to_raw};
use folio::block::{OpenOptions, open};
use std::path::Path;
use tempfile::TempDir;

const LEN: usize = 2 << 20;

fn is_dirty(path: &Path) -> bool {
    // The lowest bit of the incompatible features.
    std::fs::read(path).unwrap()[79] & 1 != 0
}

/// Between a flush and the close, the image in the file is marked dirty and contains the flushed
/// data.
#[test]
fn refcounts_are_written_at_close() {
    requires!(tool("qemu-img"));
    let folder = TempDir::new().unwrap();
    let [path, copy, raw] =
        ["disk.qcow2", "copy.qcow2", "raw"].map(|name| folder.path().join(name));
    for cluster_size in ["512", "64k"] {
        let options = format!("lazy_refcounts=on,cluster_size={cluster_size}");
        let arguments = ["create", "-f", "qcow2", "-o", &options, "disk.qcow2", "2M"];
        succeed(
            command("qemu-img")
                .args(arguments)
                .current_dir(folder.path()),
        );
        let mut want = vec![0; LEN];
        let device = open(&path, &OpenOptions::default()).unwrap();
        assert!(!is_dirty(&path), "no write yet");
        for round in 0..3 {
            model::run(&*device, &mut want, 10 + round, 100);
            device.flush().unwrap();
            assert!(is_dirty(&path));
            std::fs::copy(&path, &copy).unwrap();
            let read_only = OpenOptions {
                read_only: true,
                ..OpenOptions::default()
            };
            model::same(&*open(&copy, &read_only).unwrap(), &want, round);
            assert!(is_dirty(&copy), "readers do not clear it");
            run("qemu-img", ["check", "-r", "all", copy.to_str().unwrap()]);
            to_raw(&copy, &raw);
            assert!(
                std::fs::read(&raw).unwrap() == want,
                "clusters of {cluster_size}, round {round}"
            );
        }
        drop(device);
        assert!(!is_dirty(&path));
        qemu_check(&path);
        to_raw(&path, &raw);
        assert!(std::fs::read(&raw).unwrap() == want);
    }
}

/// Writes an image with a snapshot between the writes, and copies it before it is closed. Returns
/// the content at the snapshot, and at the copy.
fn dirty_copy(path: &Path, copy: &Path, seed: u64) -> (Vec<u8>, Vec<u8>) {
    let mut want = vec![0; LEN];
    let device = open(path, &OpenOptions::default()).unwrap();
    model::run(&*device, &mut want, seed, 100);
    drop(device);
    let before = want.clone();
    run(
        "qemu-img",
        ["snapshot", "-c", "before", path.to_str().unwrap()],
    );
    let device = open(path, &OpenOptions::default()).unwrap();
    model::run(&*device, &mut want, 20 + seed, 100);
    device.flush().unwrap();
    std::fs::copy(path, copy).unwrap();
    drop(device);
    (before, want)
}

/// Writes an image with qemu-io, which is killed before it closes the image.
fn write_and_kill_qemu(copy: &Path, want: &mut [u8]) {
    let lines = [
        "discard 1M 300k",
        "write -P 1 1M 300k",
        "write -z 4k 8k",
        "flush",
        "sigraise 9",
    ];
    let arguments = lines.iter().flat_map(|line| ["-c", line]);
    let arguments = ["-d", "unmap", copy.to_str().unwrap()]
        .into_iter()
        .chain(arguments);
    assert!(
        !command("qemu-io")
            .args(arguments)
            .output()
            .unwrap()
            .status
            .success()
    );
    want[1 << 20..(1 << 20) + (300 << 10)].fill(1);
    want[4 << 10..12 << 10].fill(0);
}

/// An image that Folio or QEMU did not close, with a snapshot, is repaired before a write.
#[test]
fn stale_refcounts_are_repaired_before_a_write() {
    requires!(tool("qemu-img"), tool("qemu-io"));
    let folder = TempDir::new().unwrap();
    let [path, copy, raw] =
        ["disk.qcow2", "copy.qcow2", "raw"].map(|name| folder.path().join(name));
    for (seed, options) in [
        "cluster_size=512,refcount_bits=64",
        "cluster_size=64k",
        "cluster_size=16k,extended_l2=on",
    ]
    .into_iter()
    .enumerate()
    {
        let options = format!("lazy_refcounts=on,{options}");
        let arguments = ["create", "-f", "qcow2", "-o", &options, "disk.qcow2", "2M"];
        succeed(
            command("qemu-img")
                .args(arguments)
                .current_dir(folder.path()),
        );
        let (before, mut want) = dirty_copy(&path, &copy, seed as u64);
        assert!(is_dirty(&copy));
        for round in 0..2 {
            let device = open(&copy, &OpenOptions::default()).unwrap();
            assert!(!is_dirty(&copy));
            model::same(&*device, &want, round);
            model::run(&*device, &mut want, 30 + round, 50);
            drop(device);
            assert!(!is_dirty(&copy));
            qemu_check(&copy);
            to_raw(&copy, &raw);
            assert!(
                std::fs::read(&raw).unwrap() == want,
                "{options}, round {round}"
            );
            write_and_kill_qemu(&copy, &mut want);
            assert!(is_dirty(&copy));
        }
        drop(open(&copy, &OpenOptions::default()).unwrap());
        run(
            "qemu-img",
            ["snapshot", "-a", "before", copy.to_str().unwrap()],
        );
        qemu_check(&copy);
        to_raw(&copy, &raw);
        assert!(
            std::fs::read(&raw).unwrap() == before,
            "{options}: the snapshot"
        );
    }
}

/// Counting cannot repair tables that contradict each other.
#[test]
fn dirty_image_with_corrupt_tables_is_read_only() {
    requires!(tool("qemu-img"));
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("disk.qcow2");
    let arguments = [
        "create",
        "-f",
        "qcow2",
        "-o",
        "lazy_refcounts=on",
        "disk.qcow2",
        "2M",
    ];
    succeed(
        command("qemu-img")
            .args(arguments)
            .current_dir(folder.path()),
    );
    let device = open(&path, &OpenOptions::default()).unwrap();
    device.write_at(&[1; 65536], 0).unwrap();
    device.flush().unwrap();
    let mut image = std::fs::read(&path).unwrap();
    drop(device);
    // The L1 table names the L2 table, whose second entry is set to a cluster outside the file.
    let number = |at: usize| u64::from_be_bytes(image[at..at + 8].try_into().unwrap());
    let l2 = (number(number(40) as usize) & 0x00ff_ffff_ffff_fe00) as usize;
    image[l2 + 8..l2 + 16].copy_from_slice(&(1u64 << 40).to_be_bytes());
    std::fs::write(&path, &image).unwrap();
    let error = open(&path, &OpenOptions::default()).err().expect("refused");
    assert_eq!(error.errno(), folio::Errno::UCLEAN);
    assert!(error.to_string().contains("was not closed"), "{error}");
    let read_only = OpenOptions {
        read_only: true,
        ..OpenOptions::default()
    };
    let mut bytes = vec![0; 65536];
    open(&path, &read_only)
        .unwrap()
        .read_at(&mut bytes, 0)
        .unwrap();
    assert!(bytes == [1; 65536]);
}
