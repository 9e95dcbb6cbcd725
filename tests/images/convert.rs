//! Copies from image to image: `qemu-img check` finds no error, and the content is equal.

use crate::support::random::Random;
use crate::support::requires;
use crate::support::tools::{command, qemu_check, succeed};
use folio::block::qcow2::Qcow2Device;
use folio::block::tools::{CompareOptions, CopyOptions, Difference, copy, copy_compressed};
use folio::block::{
    self, BackingName, Compat, Compression, CreateOptions, Device, ImageFormat, OpenOptions,
    create_with,
};
use std::os::unix::fs::FileExt;
use std::path::Path;
use tempfile::TempDir;

/// Creates a file of noise, text, zeros and holes; its size is not a multiple of a cluster.
fn write_source(path: &Path, seed: u64) {
    let file = std::fs::File::create(path).unwrap();
    let mut random = Random::new(seed);
    let len = (9 << 20) + 512 * (1 + random.below(100));
    file.set_len(len).unwrap();
    let mut at = 0;
    while at + 300_000 < len {
        let count = 1 + random.below(200_000) as usize;
        let piece: Vec<u8> = match random.below(4) {
            0 => (0..count).map(|_| random.next() as u8).collect(),
            1 => (0..count)
                .map(|index| b"the same words again"[index % 20])
                .collect(),
            2 => vec![0; count],
            _ => Vec::new(),
        };
        file.write_all_at(&piece, at).unwrap();
        at += count as u64;
    }
    file.write_all_at(b"end", len - 3).unwrap();
}

fn compare_by_qemu(first: &Path, second: &Path) {
    succeed(command("qemu-img").arg("compare").args([first, second]));
}

fn writable(path: &Path) -> Qcow2Device {
    Qcow2Device::open_at(
        path,
        &OpenOptions {
            is_volatile: true,
            ..OpenOptions::default()
        },
    )
    .unwrap()
}

fn reading(path: &Path) -> std::sync::Arc<dyn Device> {
    block::open(
        path,
        &OpenOptions {
            read_only: true,
            ..OpenOptions::default()
        },
    )
    .unwrap()
}

fn copy_as(
    is_compressed: bool,
    source: &dyn Device,
    target: &Qcow2Device,
    options: &CopyOptions<'_>,
) {
    if is_compressed {
        copy_compressed(source, target, options).unwrap();
    } else {
        copy(source, target, options).unwrap();
    }
}

/// Copies into a qcow2 image and back into a raw one.
fn round_trip(
    folder: &Path,
    create: &CreateOptions,
    options: &CopyOptions<'_>,
    is_compressed: bool,
) {
    let (from, to, back) = (
        folder.join("from.raw"),
        folder.join("to.qcow2"),
        folder.join("back.raw"),
    );
    let raw = reading(&from);
    create_with(&to, ImageFormat::Qcow2, raw.len_bytes(), create).unwrap();
    let target = writable(&to);
    copy_as(is_compressed, &*raw, &target, options);
    target.flush().unwrap();
    drop(target);
    qemu_check(&to);
    compare_by_qemu(&from, &to);
    create_with(
        &back,
        ImageFormat::Raw,
        raw.len_bytes(),
        &CreateOptions::default(),
    )
    .unwrap();
    let target = block::open(&back, &OpenOptions::default()).unwrap();
    copy(&*reading(&to), &*target, &CopyOptions::default()).unwrap();
    assert!(std::fs::read(&from).unwrap() == std::fs::read(&back).unwrap());
    for path in [to, back] {
        std::fs::remove_file(path).unwrap();
    }
}

fn variants() -> Vec<CreateOptions> {
    let base = CreateOptions::default;
    vec![
        base(),
        CreateOptions {
            compat: Compat::V0_10,
            ..base()
        },
        CreateOptions {
            cluster_bytes: 512,
            ..base()
        },
        CreateOptions {
            cluster_bytes: 512,
            refcount_bits: 1,
            ..base()
        },
        CreateOptions {
            cluster_bytes: 4096,
            refcount_bits: 2,
            ..base()
        },
        CreateOptions {
            cluster_bytes: 2 << 20,
            ..base()
        },
        CreateOptions {
            refcount_bits: 64,
            lazy_refcounts: true,
            ..base()
        },
        CreateOptions {
            extended_l2: true,
            ..base()
        },
    ]
}

#[test]
fn plain_copy_round_trips() {
    requires!(tool("qemu-img"));
    let folder = TempDir::new().unwrap();
    for (seed, create) in variants().iter().enumerate() {
        write_source(&folder.path().join("from.raw"), seed as u64);
        for zero_run_bytes in [0, 512, 4096] {
            let options = CopyOptions {
                zero_run_bytes,
                threads: 3,
                ..CopyOptions::default()
            };
            round_trip(folder.path(), create, &options, false);
        }
    }
}

#[test]
fn compressed_copy_round_trips() {
    requires!(tool("qemu-img"));
    let folder = TempDir::new().unwrap();
    let zstd = variants()
        .into_iter()
        .filter(|options| options.compat == Compat::V1_1);
    let zstd = zstd.map(|options| CreateOptions {
        compression: Compression::Zstd,
        ..options
    });
    for (seed, create) in variants().into_iter().chain(zstd).enumerate() {
        write_source(&folder.path().join("from.raw"), 100 + seed as u64);
        for (zero_run_bytes, threads) in [(4096, 3), (0, 2)] {
            let options = CopyOptions {
                zero_run_bytes,
                threads,
                ..CopyOptions::default()
            };
            round_trip(folder.path(), &create, &options, true);
        }
    }
}

#[test]
fn compressed_copy_is_reproducible() {
    let folder = TempDir::new().unwrap();
    let from = folder.path().join("from.raw");
    write_source(&from, 200);
    let image = |threads| {
        let path = folder.path().join(format!("{threads}.qcow2"));
        let raw = reading(&from);
        create_with(
            &path,
            ImageFormat::Qcow2,
            raw.len_bytes(),
            &CreateOptions::default(),
        )
        .unwrap();
        let options = CopyOptions {
            threads,
            ..CopyOptions::default()
        };
        let target = writable(&path);
        copy_compressed(&*raw, &target, &options).unwrap();
        target.flush().unwrap();
        drop(target);
        std::fs::read(path).unwrap()
    };
    let first = image(1);
    for threads in [2, 7] {
        assert!(image(threads) == first, "{threads} threads");
    }
}

#[test]
fn plain_copy_is_reproducible_and_contiguous() {
    requires!(tool("qemu-img"));
    let folder = TempDir::new().unwrap();
    let from = folder.path().join("from.raw");
    write_source(&from, 201);
    for (kind, create) in variants().iter().enumerate() {
        let image = |threads| {
            let path = folder.path().join(format!("{kind}-{threads}.qcow2"));
            let raw = reading(&from);
            create_with(&path, ImageFormat::Qcow2, raw.len_bytes(), create).unwrap();
            let options = CopyOptions {
                threads,
                ..CopyOptions::default()
            };
            let target = writable(&path);
            block::tools::copy(&*raw, &target, &options).unwrap();
            target.flush().unwrap();
            drop(target);
            let report =
                crate::support::tools::run("qemu-img", ["check".as_ref(), path.as_os_str()]);
            // With smaller clusters there are several L2 tables, which are between the data.
            let has_many_tables = create.cluster_bytes < 64 << 10;
            let is_contiguous = report.contains(" 0.00% fragmented");
            assert!(is_contiguous || has_many_tables, "{report}");
            std::fs::read(path).unwrap()
        };
        let first = image(1);
        for threads in [2, 3, 7] {
            assert!(image(threads) == first, "{threads} threads, {create:?}");
        }
    }
}

#[test]
fn compressed_image_can_be_written() {
    requires!(tool("qemu-img"));
    let folder = TempDir::new().unwrap();
    let (from, to) = (
        folder.path().join("from.raw"),
        folder.path().join("to.qcow2"),
    );
    write_source(&from, 300);
    let raw = reading(&from);
    create_with(
        &to,
        ImageFormat::Qcow2,
        raw.len_bytes(),
        &CreateOptions::default(),
    )
    .unwrap();
    // Over existing clusters, which are released.
    for seed in 0..3 {
        let target = writable(&to);
        copy_compressed(
            &*raw,
            &target,
            &CopyOptions {
                is_target_zero: false,
                ..CopyOptions::default()
            },
        )
        .unwrap();
        target.flush().unwrap();
        let mut want = std::fs::read(&from).unwrap();
        crate::images::model::run(&target, &mut want, 40 + seed, 80);
        target.flush().unwrap();
        drop(target);
        qemu_check(&to);
        let back = folder.path().join("back.raw");
        crate::support::tools::to_raw(&to, &back);
        assert!(std::fs::read(&back).unwrap() == want);
    }
}

/// Creates an overlay 3 MiB longer than `base`, with writes and zeros; returns its size in bytes.
fn create_overlay(base: &Path, overlay: &Path) -> u64 {
    let len_bytes = std::fs::metadata(base).unwrap().len() + (3 << 20) + 1024;
    let backing = Some(BackingName {
        name: "base.raw".to_owned(),
        format: Some(ImageFormat::Raw),
    });
    create_with(
        overlay,
        ImageFormat::Qcow2,
        len_bytes,
        &CreateOptions {
            backing,
            ..CreateOptions::default()
        },
    )
    .unwrap();
    let device = block::open(overlay, &OpenOptions::default()).unwrap();
    device.write_at(&[9; 100_000], 70_000).unwrap();
    device.write_at(&[8; 700], len_bytes - 700).unwrap();
    device.write_zeroes(1 << 20, 1 << 20).unwrap();
    device.flush().unwrap();
    drop(device);
    len_bytes
}

#[test]
fn overlay_longer_than_its_backing_is_copied() {
    requires!(tool("qemu-img"));
    let folder = TempDir::new().unwrap();
    let (base, overlay, flat) = (
        folder.path().join("base.raw"),
        folder.path().join("overlay.qcow2"),
        folder.path().join("flat.qcow2"),
    );
    write_source(&base, 400);
    let len_bytes = create_overlay(&base, &overlay);
    for is_compressed in [false, true] {
        create_with(
            &flat,
            ImageFormat::Qcow2,
            len_bytes,
            &CreateOptions::default(),
        )
        .unwrap();
        let target = writable(&flat);
        copy_as(
            is_compressed,
            &*reading(&overlay),
            &target,
            &CopyOptions::default(),
        );
        target.flush().unwrap();
        drop(target);
        qemu_check(&flat);
        compare_by_qemu(&overlay, &flat);
        let same = block::tools::compare(
            &*reading(&overlay),
            &*reading(&flat),
            &CompareOptions::default(),
        )
        .unwrap();
        assert_eq!(same.difference, None);
        let device = block::open(&flat, &OpenOptions::default()).unwrap();
        device.write_at(&[1], 70_123).unwrap();
        device.flush().unwrap();
        drop(device);
        let other = block::tools::compare(
            &*reading(&overlay),
            &*reading(&flat),
            &CompareOptions::default(),
        )
        .unwrap();
        assert_eq!(
            other.difference,
            Some(Difference::Content(70_123 / 512 * 512))
        );
        std::fs::remove_file(&flat).unwrap();
    }
}
