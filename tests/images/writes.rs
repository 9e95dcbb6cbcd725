//! Images that Folio makes and writes.

use crate::model;
use crate::support::requires;
use crate::support::tools::{qemu_check, to_raw};
use folio::block::{Compat, CreateOptions, Device, Qcow2Device};
use std::path::Path;
use std::sync::Arc;
use tempfile::TempDir;

const LEN: usize = (3 << 20) + 1536;

/// Writes at random, flushes, and lets QEMU judge, several times over.
fn write_and_judge(folder: &Path, options: &CreateOptions, seed: u64) {
    let path = folder.join(format!("{}-{:?}.qcow2", options.cluster_bytes, options.compat));
    let raw = folder.join("back.raw");
    let mut model = vec![0; LEN];
    let mut device: Opened = Arc::new(Qcow2Device::create(&path, LEN as u64, options).unwrap());
    for round in 0..3 {
        model::run(&*device, &mut model, seed + round, 120);
        device.flush().unwrap();
        drop(device);
        qemu_check(&path);
        to_raw(&path, &raw);
        assert!(std::fs::read(&raw).unwrap() == model, "seed {seed}, round {round}, {options:?}");
        device = open(&path);
        model::same(&*device, &model, seed);
    }
}

fn open(path: &Path) -> Opened {
    let options = folio::block::OpenOptions::default();
    folio::block::open(path, &options).unwrap()
}

type Opened = Arc<dyn Device>;

#[test]
fn random_writes_are_what_qemu_reads() {
    requires!(tool("qemu-img"));
    let folder = TempDir::new().unwrap();
    for (seed, cluster_bytes) in [(100, 512), (200, 4096), (300, 65536), (400, 2 << 20)] {
        for compat in [Compat::V0_10, Compat::V1_1] {
            write_and_judge(folder.path(), &CreateOptions { cluster_bytes, compat }, seed);
        }
    }
}
