//! Images that Folio creates and writes, compared with QEMU.

use crate::images::model;
use crate::support::random::Random;
use crate::support::requires;
use crate::support::tools::{qemu_check, to_raw};
use folio::block::qcow2::Qcow2Device;
use folio::block::{
    Compat, CreateOptions, DataFileName, Device, MemoryDevice, Preallocation, RawDevice,
};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use tempfile::TempDir;

const LEN: usize = (3 << 20) + 1536;

/// Three times: writes at random, flushes, and compares with QEMU's check and reads.
fn write_and_compare(folder: &Path, options: &CreateOptions, seed: u64) {
    let path = folder.join(format!("{seed}-{:?}.qcow2", options.compat));
    let raw = folder.join("back.raw");
    let mut model = vec![0; LEN];
    let mut device: Opened = Arc::new(Qcow2Device::create(&path, LEN as u64, options).unwrap());
    for round in 0..3 {
        model::run(&*device, &mut model, seed + round, 120);
        device.flush().unwrap();
        drop(device);
        qemu_check(&path);
        to_raw(&path, &raw);
        assert!(
            std::fs::read(&raw).unwrap() == model,
            "seed {seed}, round {round}, {options:?}"
        );
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
fn random_writes_match_qemu() {
    requires!(tool("qemu-img"));
    let folder = TempDir::new().unwrap();
    for (seed, cluster_bytes) in [(100, 512), (200, 4096), (300, 65536), (400, 2 << 20)] {
        for compat in [Compat::V0_10, Compat::V1_1] {
            write_and_compare(
                folder.path(),
                &CreateOptions {
                    cluster_bytes,
                    compat,
                    ..CreateOptions::default()
                },
                seed,
            );
        }
    }
}

/// Returns options whose images have other tables than plain ones.
fn special(folder: &Path) -> Vec<CreateOptions> {
    let data_file = |name: &str, is_raw| {
        // QEMU starts a relative name at its working folder.
        Some(DataFileName {
            name: folder.join(name).to_str().unwrap().to_owned(),
            is_raw,
        })
    };
    let plain = CreateOptions {
        cluster_bytes: 16 << 10,
        ..CreateOptions::default()
    };
    vec![
        CreateOptions {
            extended_l2: true,
            ..plain.clone()
        },
        CreateOptions {
            lazy_refcounts: true,
            ..plain.clone()
        },
        CreateOptions {
            extended_l2: true,
            lazy_refcounts: true,
            refcount_bits: 1,
            ..plain.clone()
        },
        CreateOptions {
            data_file: data_file("a", false),
            ..plain.clone()
        },
        CreateOptions {
            data_file: data_file("b", true),
            ..plain.clone()
        },
        CreateOptions {
            data_file: data_file("c", true),
            extended_l2: true,
            ..plain.clone()
        },
        CreateOptions {
            extended_l2: true,
            preallocation: Preallocation::Metadata,
            ..plain
        },
    ]
}

#[test]
fn random_writes_to_special_images_match_qemu() {
    requires!(tool("qemu-img"));
    let folder = TempDir::new().unwrap();
    for (seed, options) in (500..).step_by(10).zip(special(folder.path())) {
        write_and_compare(folder.path(), &options, seed);
        if let Some(data_file) = options.data_file.filter(|file| file.is_raw) {
            let raw = std::fs::read(folder.path().join("back.raw")).unwrap();
            assert!(
                std::fs::read(data_file.name).unwrap() == raw,
                "the data file is not the disk"
            );
        }
    }
}

/// Zeros with space: the image is as large on the host's disk as with data, without a write of
/// them where the host can, and QEMU reads zeros.
#[test]
fn allocated_zeroes_have_space() {
    requires!(tool("qemu-img"));
    let folder = TempDir::new().unwrap();
    let (qcow2, raw) = (folder.path().join("disk.qcow2"), folder.path().join("disk"));
    let len = 64 << 20_u64;
    let options = CreateOptions::default();
    let devices: [(&Path, Opened); 2] = [
        (
            &qcow2,
            Arc::new(Qcow2Device::create(&qcow2, len, &options).unwrap()),
        ),
        (&raw, Arc::new(RawDevice::create(&raw, len).unwrap())),
    ];
    for (path, device) in devices {
        // Into new clusters, and over old bytes.
        device.write_at(&[7; 1 << 20], 9 << 20).unwrap();
        device.write_allocated_zeroes(5000, len - 10_000).unwrap();
        device.flush().unwrap();
        model::same(&*device, &vec![0; len as usize], 0);
        let space_bytes = std::fs::metadata(path).unwrap().blocks() * 512;
        assert!(space_bytes >= len - 128 * 1024, "{path:?}: {space_bytes}");
        drop(device);
    }
    qemu_check(&qcow2);
    let back = folder.path().join("back");
    to_raw(&qcow2, &back);
    assert!(std::fs::read(&back).unwrap().iter().all(|byte| *byte == 0));
}

#[test]
fn zeros_up_to_end_inside_a_subcluster() {
    // Half of the last subcluster, which has 2 KiB, is beyond the end.
    const LEN: usize = (1 << 20) + 1024;
    let options = CreateOptions {
        extended_l2: true,
        ..CreateOptions::default()
    };
    let file = Arc::new(MemoryDevice::new(4 << 20));
    let device = Qcow2Device::create_on(file, LEN as u64, &options).unwrap();
    let mut want = vec![7; LEN];
    device.write_at(&want, 0).unwrap();
    for count in [512, 1000, 5000] {
        let start = LEN - count;
        device.write_zeroes(start as u64, count as u64).unwrap();
        want[start..].fill(0);
        model::same(&device, &want, 0);
    }
}

#[test]
fn threads_sharing_clusters_keep_their_bytes() {
    requires!(tool("qemu-img"));
    let folder = TempDir::new().unwrap();
    let options = CreateOptions {
        cluster_bytes: 16 << 10,
        ..CreateOptions::default()
    };
    threads_keep_their_bytes(&folder.path().join("disk.qcow2"), &options);
    for (index, options) in special(folder.path()).iter().enumerate() {
        threads_keep_their_bytes(&folder.path().join(format!("{index}.qcow2")), options);
    }
}

/// Threads write, zero, read and flush stripes that share clusters; no bytes may be lost.
fn threads_keep_their_bytes(path: &Path, options: &CreateOptions) {
    const THREADS: usize = 4;
    const STRIPE: usize = 5000;
    let device = Qcow2Device::create(path, LEN as u64, options).unwrap();
    let work = |thread: usize| {
        let mut random = Random::new(thread as u64);
        let mut mine = vec![0; LEN];
        for _ in 0..600 {
            let stripe = random.below((LEN / STRIPE / THREADS) as u64) as usize * THREADS + thread;
            let range = stripe * STRIPE..(stripe * STRIPE + STRIPE).min(LEN);
            match random.below(8) {
                0 => {
                    let mut back = vec![0; range.len()];
                    device.read_at(&mut back, range.start as u64).unwrap();
                    assert!(back == mine[range], "thread {thread}, stripe {stripe}");
                }
                1 => {
                    device
                        .write_zeroes(range.start as u64, range.len() as u64)
                        .unwrap();
                    mine[range].fill(0);
                }
                2 => device.flush().unwrap(),
                _ => {
                    mine[range.clone()].fill(1 + random.below(255) as u8);
                    device
                        .write_at(&mine[range.clone()], range.start as u64)
                        .unwrap();
                }
            }
        }
        mine
    };
    let models: Vec<Vec<u8>> = std::thread::scope(|scope| {
        let work = &work;
        let threads: Vec<_> = (0..THREADS)
            .map(|thread| scope.spawn(move || work(thread)))
            .collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .collect()
    });
    let want: Vec<u8> = (0..LEN)
        .map(|at| models[at / STRIPE % THREADS][at])
        .collect();
    model::same(&device, &want, 0);
    device.flush().unwrap();
    drop(device);
    qemu_check(path);
    model::same(&*open(path), &want, 0);
}
