//! Power cuts under a qcow2 image: space may leak, nothing else; what was flushed is there.
//!
//! ```text
//!   source   the images workloads start from, by Folio and by qemu-img
//!   disk     writes, zeros, discards, flushes on one of them, recorded and noted
//!   threads  the same by several at once
//!   judge    reads what a cut left, goes on with it, and asks QEMU
//! ```

mod disk;
mod judge;
mod source;
mod threads;

use crate::crash::random::Random;
use crate::crash::trial::random_of;
use crate::support::requires;
use disk::{Disk, Past, Shape};
use folio::block::{Compat, Recorded};
use source::{Maker, Source};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

fn record(source: Source, random: &mut Random, shape: Shape) -> Past {
    let mut disk = Disk::new(source);
    disk.mix(random, shape);
    disk.end()
}

/// Records a workload on an image, then cuts the power and fails if anything was lost.
fn run(name: &str, shape: Shape, source: impl FnOnce(&mut Random) -> Source) {
    let mut random = random_of(name);
    let source = source(&mut random);
    let past = record(source, &mut random, shape);
    judge::judge(name, &past, &mut random);
}

/// Trials on new images: bytes of the file and of the disk, of a cluster, version, shape.
macro_rules! new_images {
    ($($name:ident: $file:expr, $disk:expr, $cluster:expr, $compat:ident, $shape:expr;)+) => {
        $(
            #[test]
            fn $name() {
                run(concat!("qcow2_", stringify!($name)), $shape, |_| {
                    Source::new($file, $disk, $cluster as u32, Compat::$compat)
                });
            }
        )+
    };
}

new_images! {
    clusters_of_64_kib: 16 * MIB, 4 * MIB + 1536, 64 * KIB, V1_1, Shape::default();
    clusters_of_4_kib: 16 * MIB, 3 * MIB, 4 * KIB, V1_1, Shape::default();
    clusters_of_512_bytes: 16 * MIB, 2 * MIB, 512, V1_1, Shape::default();
    version_2: 16 * MIB, 3 * MIB, 4 * KIB, V0_10, Shape::default();
    version_2_of_512_bytes: 16 * MIB, 2 * MIB + 512, 512, V0_10, Shape::default();
    many_flushes: 16 * MIB, MIB, KIB, V1_1, Shape { flush_permille: 400, ..Shape::default() };
    few_flushes: 24 * MIB, 2 * MIB, KIB, V1_1, Shape { flush_permille: 15, ..Shape::default() };
    mostly_discards: 16 * MIB, MIB, 2 * KIB, V1_1, Shape { discard_permille: 450, ..Shape::default() };
}

/// Trials on what qemu-img makes.
macro_rules! qemu_images {
    ($($name:ident: $len:expr, |$maker:ident, $random:ident| $made:expr;)+) => {
        $(
            #[test]
            fn $name() {
                requires!(tool("qemu-img"), tool("qemu-io"));
                run(concat!("qcow2_", stringify!($name)), Shape::default(), |$random| {
                    let $maker = Maker::new($len, $random);
                    $made.source(24 * MIB)
                });
            }
        )+
    };
}

qemu_images! {
    refcounts_of_1_bit: 2 * MIB, |maker, random| maker.convert("-o refcount_bits=1,cluster_size=512");
    refcounts_of_64_bits: 2 * MIB, |maker, random| maker.convert("-o refcount_bits=64,cluster_size=1024");
    compressed: 2 * MIB, |maker, random| maker.convert("-c -o cluster_size=4096");
    compressed_by_zstd: 2 * MIB, |maker, random| {
        maker.convert("-c -o cluster_size=16384,compression_type=zstd")
    };
    compressed_version_2: MIB, |maker, random| maker.convert("-c -o cluster_size=2048,compat=0.10");
    preallocated: 2 * MIB, |maker, random| maker.convert("-o preallocation=metadata,cluster_size=4096");
    zeros_of_both_kinds: 2 * MIB, |maker, random| {
        maker.convert("-o cluster_size=4096").zero(0, 300_000, "").zero(512 * KIB, 300_000, "-u")
    };
    lazy_refcounts: 2 * MIB, |maker, random| maker.convert("-o lazy_refcounts=on,cluster_size=4096");
    lazy_refcounts_of_512_bytes: MIB, |maker, random| maker.convert("-o lazy_refcounts=on,cluster_size=512");
    lazy_refcounts_of_compressed: MIB, |maker, random| {
        maker.convert("-c -o lazy_refcounts=on,cluster_size=2048")
    };
    lazy_refcounts_and_snapshot: MIB, |maker, random| {
        maker.convert("-o lazy_refcounts=on,cluster_size=1024").snapshot("first", random)
    };
    subclusters: 2 * MIB, |maker, random| maker.convert("-o extended_l2=on,cluster_size=16k");
    subclusters_of_2_kib: 4 * MIB + 1536, |maker, random| maker.convert("-o extended_l2=on");
    subclusters_over_backing: 2 * MIB, |maker, random| {
        maker.overlay("-o extended_l2=on,cluster_size=16k", 70_144)
    };
    subclusters_and_snapshot: MIB, |maker, random| {
        maker.convert("-c -o extended_l2=on,cluster_size=16k").snapshot("first", random)
    };
    subclusters_with_lazy_refcounts: 2 * MIB, |maker, random| {
        maker.overlay("-o extended_l2=on,lazy_refcounts=on,cluster_size=32k", 512)
    };
    backing: 2 * MIB, |maker, random| maker.overlay("-o cluster_size=4096", 70_000);
    backing_of_version_2: 2 * MIB, |maker, random| maker.overlay("-o cluster_size=4096,compat=0.10", 512);
    backing_of_64_kib: 2 * MIB, |maker, random| maker.overlay("", 70_144);
    one_snapshot: MIB, |maker, random| maker.convert("-o cluster_size=4096").snapshot("first", random);
    snapshots: 2 * MIB, |maker, random| {
        maker.convert("-o cluster_size=1024").snapshot("first", random).snapshot("second", random)
    };
    snapshots_of_version_2: MIB, |maker, random| {
        maker.convert("-o cluster_size=512,compat=0.10").snapshot("first", random).snapshot("second", random)
    };
    snapshot_of_compressed: MIB, |maker, random| {
        maker.convert("-c -o cluster_size=4096").snapshot("first", random)
    };
    snapshot_over_backing: 2 * MIB, |maker, random| {
        maker.overlay("-o cluster_size=4096", 0).snapshot("first", random)
    };
}

/// Snapshots that come and go, among everything else.
macro_rules! snapshot_operations {
    ($($name:ident: $options:literal;)+) => {
        $(
            #[test]
            fn $name() {
                requires!(tool("qemu-img"));
                let shape = Shape { snapshot_permille: 60, operations: 200, ..Shape::default() };
                run(concat!("qcow2_", stringify!($name)), shape, |random| {
                    Maker::new(MIB, random).convert($options).source(24 * MIB)
                });
            }
        )+
    };
}

snapshot_operations! {
    snapshots_come_and_go: "-o cluster_size=4096";
    snapshots_come_and_go_in_512_bytes: "-o cluster_size=512";
    snapshots_come_and_go_over_compressed: "-c -o cluster_size=2048,refcount_bits=8";
    snapshots_come_and_go_with_lazy_refcounts: "-o cluster_size=1024,lazy_refcounts=on";
    snapshots_come_and_go_in_subclusters: "-o extended_l2=on,cluster_size=16k";
}

/// Writers at work at the same time, in parts of the disk that share clusters.
#[test]
fn writers_side_by_side() {
    for cluster_bytes in [512, 4096, 64 << 10] {
        let mut random = random_of("qcow2_writers_side_by_side");
        let source = Source::new(16 * MIB, 2 * MIB, cluster_bytes, Compat::V1_1);
        let past = threads::record(source, 4, 120, &mut random);
        judge::judge("qcow2_writers_side_by_side", &past, &mut random);
    }
}

/// Refcount blocks and the refcount table that grow, move and move again.
#[test]
fn refcount_table_that_moves() {
    requires!(tool("qemu-img"));
    const NAME: &str = "qcow2_refcount_table_that_moves";
    // Where the header names the table, and how much is written there at once.
    const FIELD: (u64, usize) = (48, 12);
    let shape = Shape {
        operations: 450,
        write_bytes_max: 400_000,
        zero_permille: 20,
        discard_permille: 20,
        ..Shape::default()
    };
    let mut random = random_of(NAME);
    let maker = Maker::empty(12 * MIB).convert("-o refcount_bits=64,cluster_size=512");
    let past = record(maker.source(24 * MIB), &mut random, shape);
    let is_move = |entry: &&Recorded| matches!(entry, Recorded::Write { offset, bytes } if (*offset, bytes.len()) == FIELD);
    let moves = past.record.iter().filter(is_move).count();
    assert!(moves > 1, "{moves} moves");
    judge::judge(NAME, &past, &mut random);
}

/// The control: on a disk that lies about flushes, things get lost, and that is seen.
#[test]
fn a_disk_that_lies_about_flushes_is_seen() {
    let mut random = random_of("qcow2_liar");
    let source = Source::new(16 * MIB, 2 * MIB, 4096, Compat::V1_1);
    let mut past = record(source, &mut random, Shape::default());
    for entry in &mut past.record {
        if *entry == Recorded::Flush {
            *entry = Recorded::WriteZeroes {
                offset: 0,
                len_bytes: 0,
            };
        }
    }
    let outcome = judge::cut("qcow2_liar", &past, &mut random);
    assert!(
        outcome.failures.len() > outcome.cuts / 10,
        "{} of {}",
        outcome.failures.len(),
        outcome.cuts
    );
}
