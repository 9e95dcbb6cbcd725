//! Hostile images: an error or data, never a panic, a hang or unlimited memory.

use crate::support::random::Random;
use crate::support::requires;
use crate::support::tools::{command, succeed};
use folio::base::Timespec;
use folio::block::qcow2::{Qcow2Device, Repair};
use folio::block::tools::{check, create_snapshot, delete_snapshot};
use folio::block::{
    Allocation, BackingName, Compat, CreateOptions, DataFileName, Device, ImageFormat,
    MemoryDevice, OpenOptions, create_with, open, overlay,
};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use tempfile::TempDir;

const LEN: u64 = 256 << 10;

/// Returns a folder in memory if possible, because each of the many images is synced.
fn scratch() -> TempDir {
    TempDir::new_in("/dev/shm")
        .or_else(|_| TempDir::new())
        .unwrap()
}

/// Opens the bytes as an image, and reads, maps, writes and flushes it; any result is accepted.
fn provoke(path: &Path, bytes: &[u8]) {
    std::fs::write(path, bytes).unwrap();
    for read_only in [true, false] {
        let options = OpenOptions {
            read_only,
            ..OpenOptions::default()
        };
        let Ok(device) = open(path, &options) else {
            continue;
        };
        use_it(&*device);
    }
}

/// Reads, maps, writes and flushes.
fn use_it(device: &dyn Device) {
    let len = device.len_bytes();
    let mut buf = vec![0; 16 << 10];
    for at in (0..len.min(LEN)).step_by(buf.len()) {
        let count = buf.len().min((len - at) as usize);
        let _ = device.read_at(&mut buf[..count], at);
    }
    let _ = device.allocation(0, len.clamp(1, LEN));
    if !device.is_read_only() {
        let _ = device.write_at(&[1; 5000], len.min(LEN) / 2);
        let _ = device.write_zeroes(0, len.min(1 << 14));
        let _ = device.discard(len.min(LEN) / 4, len.min(LEN) / 4);
        let _ = device.flush();
    }
}

/// Creates an image with each kind of structure, small enough that each byte matters.
fn sample(folder: &Path, options: &str) -> Vec<u8> {
    let mut random = Random::new(4);
    let source: Vec<u8> = (0..LEN)
        .map(|at| {
            if at / 4096 % 2 == 0 {
                random.below(4) as u8
            } else {
                0
            }
        })
        .collect();
    std::fs::write(folder.join("source.raw"), source).unwrap();
    let line = format!("convert -f raw -O qcow2 {options} source.raw sample.qcow2");
    succeed(
        command("qemu-img")
            .args(line.split(' '))
            .current_dir(folder),
    );
    std::fs::read(folder.join("sample.qcow2")).unwrap()
}

#[test]
fn flipped_metadata_bits_do_not_panic() {
    requires!(tool("qemu-img"));
    let folder = scratch();
    let path = folder.path().join("broken.qcow2");
    for options in [
        "-o cluster_size=512",
        "-c -o cluster_size=512",
        "-c -o cluster_size=512,compression_type=zstd",
    ] {
        let good = sample(folder.path(), options);
        let mut random = Random::new(5);
        // The whole header, then a sample of the tables, in the first and last clusters.
        let header = (0..120usize).map(|at| (at, 1u8 << (at % 8)));
        let edges: Vec<(usize, u8)> = (0..150)
            .map(|_| {
                let at = random.below(24 << 10) as usize % good.len();
                (at, 1 << random.below(8))
            })
            .collect();
        for (at, bit) in header.chain(edges) {
            let mut bytes = good.clone();
            bytes[at] ^= bit;
            provoke(&path, &bytes);
            bytes[at] = 0xff;
            provoke(&path, &bytes);
        }
    }
}

/// Returns the clusters of the header and of all tables: L1, L2, refcounts, snapshots.
fn metadata(image: &[u8]) -> Vec<usize> {
    let number = |at: usize, len: usize| {
        image[at..at + len]
            .iter()
            .fold(0, |n, byte| n << 8 | usize::from(*byte))
    };
    let cluster = 1 << number(20, 4);
    let address = |at: usize| number(at, 8) & 0x00ff_ffff_ffff_fe00;
    let (refcounts, snapshots) = (number(48, 8), number(64, 8));
    let mut starts = vec![0, refcounts, snapshots];
    starts.extend((refcounts..refcounts + cluster).step_by(8).map(address));
    let mut tables = vec![(number(40, 8), number(36, 4))];
    let mut at = snapshots;
    for _ in 0..number(60, 4) {
        tables.push((number(at, 8), number(at + 8, 4)));
        at +=
            (40 + number(at + 36, 4) + number(at + 12, 2) + number(at + 14, 2)).next_multiple_of(8);
    }
    for (at, entries) in tables {
        starts.push(at);
        starts.extend((0..entries).map(|index| address(at + index * 8)));
    }
    starts.sort_unstable();
    starts.dedup();
    let bytes = starts
        .into_iter()
        .flat_map(|start| start..(start + cluster).min(start + 512));
    bytes.filter(|at| *at < image.len()).collect()
}

/// Changes each byte of a small image's metadata: one bit, all bits to one, all to zero; in the
/// header, each bit.
#[test]
fn every_metadata_byte_does_not_panic() {
    // `fuzz/images/make.sh` creates them.
    let images: [&[u8]; 3] = [
        include_bytes!("../../fuzz/images/version-2.qcow2"),
        include_bytes!("../../fuzz/images/version-3.qcow2"),
        include_bytes!("../../fuzz/images/subclusters.qcow2"),
    ];
    for image in images {
        let room = Arc::new(MemoryDevice::new(1 << 20));
        room.write_at(image, 0).unwrap();
        use_it(&Qcow2Device::open_on(overlay(room.clone())).unwrap());
        let places = metadata(image);
        assert!(places.len() > 2000, "{}", places.len());
        for at in places {
            let old = image[at];
            let bits = if at < 120 { 0xff } else { 1 << (at % 8) };
            let flipped = (0..8)
                .map(|bit| 1 << bit)
                .filter(|bit| bits & bit != 0)
                .map(|bit| old ^ bit);
            for new in flipped.chain([0, 0xff]).filter(|new| *new != old) {
                let device = overlay(room.clone());
                device.write_at(&[new], at as u64).unwrap();
                match Qcow2Device::open_on(device) {
                    Ok(device) => use_it(&device),
                    Err(error) => {
                        assert!(error.to_string().contains("qcow2"), "byte {at}: {error}")
                    }
                }
            }
        }
    }
}

#[test]
fn truncated_image_does_not_panic() {
    requires!(tool("qemu-img"));
    let folder = scratch();
    let path = folder.path().join("broken.qcow2");
    let good = sample(folder.path(), "-o cluster_size=4096");
    let mut random = Random::new(6);
    for len in (0..200).chain((0..100).map(|_| random.below(good.len() as u64) as usize)) {
        provoke(&path, &good[..len]);
    }
}

/// Numbers that would need unlimited memory or time.
#[test]
fn absurd_header_fields_are_rejected_by_name() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("disk.qcow2");
    let options = CreateOptions {
        cluster_bytes: 65536,
        compat: Compat::V1_1,
        ..CreateOptions::default()
    };
    drop(Qcow2Device::create(&path, LEN, &options).unwrap());
    let good = std::fs::read(&path).unwrap();
    let cases: [(usize, &[u8], &str); 11] = [
        (32, &1u32.to_be_bytes(), "encryption (AES)"),
        (32, &2u32.to_be_bytes(), "encryption (LUKS)"),
        (20, &22u32.to_be_bytes(), "cluster_bits 22"),
        (24, &u64::MAX.to_be_bytes(), "L1 entries"),
        (36, &0u32.to_be_bytes(), "L1 entries"),
        (40, &0x1001u64.to_be_bytes(), "L1 table at 0x1001"),
        (48, &(1u64 << 60).to_be_bytes(), "refcount table at"),
        (56, &u32::MAX.to_be_bytes(), "refcount table of"),
        (
            72,
            &(1u64 << 40).to_be_bytes(),
            "unknown incompatible feature: 10000000000",
        ),
        (72, &2u64.to_be_bytes(), "marked corrupt"),
        (96, &7u32.to_be_bytes(), "refcount_order 7"),
    ];
    for (at, bytes, name) in cases {
        let mut image = good.clone();
        image[at..at + bytes.len()].copy_from_slice(bytes);
        std::fs::write(&path, &image).unwrap();
        let said = open(&path, &OpenOptions::default())
            .err()
            .expect("refused")
            .to_string();
        assert!(said.contains(name) && said.contains("qcow2"), "{said}");
        assert_eq!(std::fs::read(&path).unwrap(), image, "left as it was");
    }
}

/// Features that contradict other fields of the header.
#[test]
fn contradicting_features_are_rejected() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("disk.qcow2");
    let small = CreateOptions {
        cluster_bytes: 8 << 10,
        ..CreateOptions::default()
    };
    let backing = BackingName {
        name: "base".to_owned(),
        format: None,
    };
    let over = CreateOptions {
        backing: Some(backing),
        ..CreateOptions::default()
    };
    // Incompatible features: 4 is an external data file, 16 extended L2 entries; autoclear: 2 is a
    // raw data file.
    let cases = [
        (&small, 16u64, 0u64, "extended L2 entries"),
        (&small, 4, 2, "without a name"),
    ];
    for (options, incompatible, autoclear, name) in cases {
        let _ = std::fs::remove_file(&path);
        create_with(&path, ImageFormat::Qcow2, LEN, options).unwrap();
        let mut image = std::fs::read(&path).unwrap();
        image[72..80].copy_from_slice(&incompatible.to_be_bytes());
        image[88..96].copy_from_slice(&autoclear.to_be_bytes());
        std::fs::write(&path, &image).unwrap();
        let said = open(&path, &OpenOptions::default())
            .err()
            .expect("refused")
            .to_string();
        assert!(said.contains(name), "{said}");
    }
    std::fs::remove_file(&path).unwrap();
    let data_file = DataFileName {
        name: "data".to_owned(),
        is_raw: false,
    };
    create_with(
        &path,
        ImageFormat::Qcow2,
        LEN,
        &CreateOptions {
            data_file: Some(data_file),
            ..over
        },
    )
    .unwrap();
    let mut image = std::fs::read(&path).unwrap();
    image[88..96].copy_from_slice(&2u64.to_be_bytes());
    std::fs::write(&path, &image).unwrap();
    let said = open(&path, &OpenOptions::default())
        .err()
        .expect("refused")
        .to_string();
    assert!(
        said.contains("raw external data file and a backing file"),
        "{said}"
    );
}

#[test]
fn metadata_with_refcount_zero_is_not_allocated() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("disk.qcow2");
    let options = CreateOptions {
        cluster_bytes: 4096,
        compat: Compat::V1_1,
        ..CreateOptions::default()
    };
    drop(Qcow2Device::create(&path, LEN, &options).unwrap());
    let mut image = std::fs::read(&path).unwrap();
    // The refcount block is the third cluster: header, table, block and L1 get a refcount of zero.
    image[2 * 4096..3 * 4096].fill(0);
    std::fs::write(&path, &image).unwrap();
    let device = open(&path, &OpenOptions::default()).unwrap();
    let error = device.write_at(&[1; 512], 0).unwrap_err();
    assert!(
        error
            .to_string()
            .contains("holds metadata but has a refcount of zero"),
        "{error}"
    );
    drop(device);
    assert_eq!(std::fs::read(&path).unwrap(), image, "left as it was");
}

/// Tables that name one cluster a million times: walking each entry would take hours, or all
/// memory.
#[test]
fn table_named_a_million_times_is_read_once() {
    const CLUSTER: usize = 2 << 20;
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("disk.qcow2");
    // The largest L1 table: 32 MiB of entries for 512 GiB each.
    let len = (4u64 << 20) * (CLUSTER as u64 / 8) * CLUSTER as u64;
    assert_eq!(len, 1 << 61);
    let options = CreateOptions {
        cluster_bytes: CLUSTER as u32,
        ..CreateOptions::default()
    };
    drop(Qcow2Device::create(&path, len, &options).unwrap());
    let file = std::fs::File::options()
        .read(true)
        .write(true)
        .open(&path)
        .unwrap();
    let word = |at: u64| {
        let mut bytes = [0; 8];
        file.read_exact_at(&mut bytes, at).unwrap();
        u64::from_be_bytes(bytes)
    };
    let (l1, refcount_table) = (word(40), word(48));
    let end = file.metadata().unwrap().len();
    let name = |table: u64, bytes: usize, host: u64| {
        file.write_all_at(&host.to_be_bytes().repeat(bytes / 8), table)
            .unwrap();
    };
    // An L2 table of zero clusters.
    file.write_all_at(&1u64.to_be_bytes().repeat(CLUSTER / 8), end)
        .unwrap();
    name(l1, 32 << 20, end | 1 << 63);
    let read_only = OpenOptions {
        read_only: true,
        ..OpenOptions::default()
    };
    let device = open(&path, &read_only).unwrap();
    let (kind, count) = device.allocation(0, 1 << 45).unwrap();
    assert!(kind == Allocation::Hole && count > 0, "{kind:?}, {count}");
    drop(device);
    let said = open(&path, &OpenOptions::default())
        .err()
        .expect("refused")
        .to_string();
    assert!(said.contains("holds two tables"), "{said}");
    name(l1, 32 << 20, 0);
    // A refcount block without a free cluster.
    file.write_all_at(&vec![1; CLUSTER], end).unwrap();
    name(refcount_table, CLUSTER, end);
    let said = open(&path, &OpenOptions::default())
        .err()
        .expect("refused")
        .to_string();
    assert!(said.contains("holds two tables"), "{said}");
}

/// The longest file that can be counted, nearly all hole: the work depends on the bytes stored.
#[test]
fn huge_sparse_file_is_checked_quickly() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("disk.qcow2");
    let options = CreateOptions {
        cluster_bytes: 512,
        ..CreateOptions::default()
    };
    let device = Qcow2Device::create(&path, LEN, &options).unwrap();
    device.write_at(&[1; 5000], 7000).unwrap();
    drop(device);
    let file = std::fs::File::options().write(true).open(&path).unwrap();
    file.set_len(1 << 40).unwrap();
    // Sets the dirty bit.
    file.write_all_at(&1u64.to_be_bytes(), 72).unwrap();
    for repair in [Repair::Nothing, Repair::All] {
        let report = check(&path, None, repair, &mut |_| {}).unwrap();
        assert_eq!(
            (report.leaks, report.corruptions, report.check_errors),
            (0, 0, 0)
        );
    }
    let device = open(&path, &OpenOptions::default()).unwrap();
    let mut bytes = [0; 5000];
    device.read_at(&mut bytes, 7000).unwrap();
    assert_eq!(bytes, [1; 5000]);
    drop(device);
    create_snapshot(&path, None, "first", Timespec::new(1, 0)).unwrap();
    delete_snapshot(&path, None, "first").unwrap();
}
