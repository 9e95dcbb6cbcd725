//! Lazy refcounts and the dirty bit.

use crate::model;
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

/// What is on the disk between a flush and the close says that its refcounts are stale, and holds what was flushed.
#[test]
fn refcounts_wait_for_the_close() {
    requires!(tool("qemu-img"));
    let folder = TempDir::new().unwrap();
    let [path, copy, raw] = ["disk.qcow2", "copy.qcow2", "raw"].map(|name| folder.path().join(name));
    for cluster_size in ["512", "64k"] {
        let options = format!("lazy_refcounts=on,cluster_size={cluster_size}");
        let arguments = ["create", "-f", "qcow2", "-o", &options, "disk.qcow2", "2M"];
        succeed(command("qemu-img").args(arguments).current_dir(folder.path()));
        let mut want = vec![0; LEN];
        let device = open(&path, &OpenOptions::default()).unwrap();
        assert!(!is_dirty(&path), "nothing is written yet");
        for round in 0..3 {
            model::run(&*device, &mut want, 10 + round, 100);
            device.flush().unwrap();
            assert!(is_dirty(&path));
            std::fs::copy(&path, &copy).unwrap();
            let read_only = OpenOptions { read_only: true, ..OpenOptions::default() };
            model::same(&*open(&copy, &read_only).unwrap(), &want, round);
            assert!(is_dirty(&copy), "readers leave it");
            run("qemu-img", ["check", "-r", "all", copy.to_str().unwrap()]);
            to_raw(&copy, &raw);
            assert!(std::fs::read(&raw).unwrap() == want, "clusters of {cluster_size}, round {round}");
        }
        drop(device);
        assert!(!is_dirty(&path));
        qemu_check(&path);
        to_raw(&path, &raw);
        assert!(std::fs::read(&raw).unwrap() == want);
    }
}
