//! Power cuts under a qcow2 image: flushed data survives, and at most clusters leak.
//!
//! ```text
//!   source   initial images, by Folio and by qemu-img
//!   disk     writes, zeros, discards and flushes on an image, recorded and logged
//!   threads  the same by several threads
//!   judge    reads the image after a cut, continues writing, and compares with QEMU
//!   mounted  ext4 on an image, as `folio powercut --format qcow2` records it
//! ```

mod disk;
mod judge;
mod mounted;
mod source;
mod threads;

use crate::crash::random::{Random, random_of};
use crate::crash::trial::cuts_per_trial;
use crate::support::requires;
use crate::support::rounds::is_long;
use disk::{Disk, Recording, WorkloadShape};
use folio::block::Compat;
use folio::testing::Recorded;
use source::{Maker, Source};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

fn record(source: Source, random: &mut Random, shape: WorkloadShape) -> Recording {
    let mut disk = Disk::new(source);
    disk.mix(random, shape);
    disk.end()
}

/// Records a workload on an image, then cuts the power; fails if anything was lost.
fn run(name: &str, shape: WorkloadShape, source: impl FnOnce(&mut Random) -> Source) {
    let mut random = random_of(name);
    let source = source(&mut random);
    let recording = record(source, &mut random, shape);
    judge::judge(name, &recording, &mut random);
}

/// Trials on new images: bytes of the file, of the disk and of a cluster; version; workload. The
/// label selects the random numbers.
macro_rules! new_images {
    ($($name:ident($label:literal): $file:expr, $disk:expr, $cluster:expr, $compat:ident, $shape:expr;)+) => {
        $(
            #[test]
            fn $name() {
                run(concat!("qcow2_", $label), $shape, |_| {
                    Source::new($file, $disk, $cluster as u32, Compat::$compat)
                });
            }
        )+
    };
}

new_images! {
    clusters_of_64_kib_survive_cuts("clusters_of_64_kib"): 16 * MIB, 4 * MIB + 1536, 64 * KIB, V1_1, WorkloadShape::default();
    clusters_of_4_kib_survive_cuts("clusters_of_4_kib"): 16 * MIB, 3 * MIB, 4 * KIB, V1_1, WorkloadShape::default();
    clusters_of_512_bytes_survive_cuts("clusters_of_512_bytes"): 16 * MIB, 2 * MIB, 512, V1_1, WorkloadShape::default();
    version_2_image_survives_cuts("version_2"): 16 * MIB, 3 * MIB, 4 * KIB, V0_10, WorkloadShape::default();
    version_2_of_512_bytes_survives_cuts("version_2_of_512_bytes"): 16 * MIB, 2 * MIB + 512, 512, V0_10, WorkloadShape::default();
    many_flushes_survive_cuts("many_flushes"): 16 * MIB, MIB, KIB, V1_1, WorkloadShape { flush_permille: 400, ..WorkloadShape::default() };
    few_flushes_survive_cuts("few_flushes"): 24 * MIB, 2 * MIB, KIB, V1_1, WorkloadShape { flush_permille: 15, ..WorkloadShape::default() };
    mostly_discards_survive_cuts("mostly_discards"): 16 * MIB, MIB, 2 * KIB, V1_1, WorkloadShape { discard_permille: 450, ..WorkloadShape::default() };
}

/// Trials on images of qemu-img.
macro_rules! qemu_images {
    ($($name:ident($label:literal): $len:expr, |$maker:ident, $random:ident| $made:expr;)+) => {
        $(
            #[test]
            fn $name() {
                requires!(tool("qemu-img"), tool("qemu-io"));
                run(concat!("qcow2_", $label), WorkloadShape::default(), |$random| {
                    let $maker = Maker::new($len, $random);
                    $made.source(24 * MIB)
                });
            }
        )+
    };
}

qemu_images! {
    refcounts_of_1_bit_survive_cuts("refcounts_of_1_bit"): 2 * MIB, |maker, random| maker.convert("-o refcount_bits=1,cluster_size=512");
    refcounts_of_64_bits_survive_cuts("refcounts_of_64_bits"): 2 * MIB, |maker, random| maker.convert("-o refcount_bits=64,cluster_size=1024");
    compressed_image_survives_cuts("compressed"): 2 * MIB, |maker, random| maker.convert("-c -o cluster_size=4096");
    compressed_by_zstd_survives_cuts("compressed_by_zstd"): 2 * MIB, |maker, random| {
        maker.convert("-c -o cluster_size=16384,compression_type=zstd")
    };
    compressed_version_2_survives_cuts("compressed_version_2"): MIB, |maker, random| maker.convert("-c -o cluster_size=2048,compat=0.10");
    preallocated_image_survives_cuts("preallocated"): 2 * MIB, |maker, random| maker.convert("-o preallocation=metadata,cluster_size=4096");
    zeros_of_both_kinds_survive_cuts("zeros_of_both_kinds"): 2 * MIB, |maker, random| {
        maker.convert("-o cluster_size=4096").zero(0, 300_000, "").zero(512 * KIB, 300_000, "-u")
    };
    lazy_refcounts_survive_cuts("lazy_refcounts"): 2 * MIB, |maker, random| maker.convert("-o lazy_refcounts=on,cluster_size=4096");
    lazy_refcounts_of_512_bytes_survive_cuts("lazy_refcounts_of_512_bytes"): MIB, |maker, random| maker.convert("-o lazy_refcounts=on,cluster_size=512");
    lazy_refcounts_of_compressed_survive_cuts("lazy_refcounts_of_compressed"): MIB, |maker, random| {
        maker.convert("-c -o lazy_refcounts=on,cluster_size=2048")
    };
    lazy_refcounts_with_snapshot_survive_cuts("lazy_refcounts_and_snapshot"): MIB, |maker, random| {
        maker.convert("-o lazy_refcounts=on,cluster_size=1024").snapshot("first", random)
    };
    subclusters_survive_cuts("subclusters"): 2 * MIB, |maker, random| maker.convert("-o extended_l2=on,cluster_size=16k");
    subclusters_of_2_kib_survive_cuts("subclusters_of_2_kib"): 4 * MIB + 1536, |maker, random| maker.convert("-o extended_l2=on");
    subclusters_over_backing_survive_cuts("subclusters_over_backing"): 2 * MIB, |maker, random| {
        maker.overlay("-o extended_l2=on,cluster_size=16k", 70_144)
    };
    subclusters_with_snapshot_survive_cuts("subclusters_and_snapshot"): MIB, |maker, random| {
        maker.convert("-c -o extended_l2=on,cluster_size=16k").snapshot("first", random)
    };
    subclusters_with_lazy_refcounts_survive_cuts("subclusters_with_lazy_refcounts"): 2 * MIB, |maker, random| {
        maker.overlay("-o extended_l2=on,lazy_refcounts=on,cluster_size=32k", 512)
    };
    backing_file_survives_cuts("backing"): 2 * MIB, |maker, random| maker.overlay("-o cluster_size=4096", 70_000);
    backing_of_version_2_survives_cuts("backing_of_version_2"): 2 * MIB, |maker, random| maker.overlay("-o cluster_size=4096,compat=0.10", 512);
    backing_of_64_kib_survives_cuts("backing_of_64_kib"): 2 * MIB, |maker, random| maker.overlay("", 70_144);
    one_snapshot_survives_cuts("one_snapshot"): MIB, |maker, random| maker.convert("-o cluster_size=4096").snapshot("first", random);
    snapshots_survive_cuts("snapshots"): 2 * MIB, |maker, random| {
        maker.convert("-o cluster_size=1024").snapshot("first", random).snapshot("second", random)
    };
    snapshots_of_version_2_survive_cuts("snapshots_of_version_2"): MIB, |maker, random| {
        maker.convert("-o cluster_size=512,compat=0.10").snapshot("first", random).snapshot("second", random)
    };
    snapshot_of_compressed_survives_cuts("snapshot_of_compressed"): MIB, |maker, random| {
        maker.convert("-c -o cluster_size=4096").snapshot("first", random)
    };
    snapshot_over_backing_survives_cuts("snapshot_over_backing"): 2 * MIB, |maker, random| {
        maker.overlay("-o cluster_size=4096", 0).snapshot("first", random)
    };
}

/// Creation and deletion of snapshots among other operations.
macro_rules! snapshot_operations {
    ($($name:ident($label:literal): $options:literal;)+) => {
        $(
            #[test]
            fn $name() {
                requires!(tool("qemu-img"));
                let shape = WorkloadShape { snapshot_permille: 60, operations: 200, ..WorkloadShape::default() };
                run(concat!("qcow2_", $label), shape, |random| {
                    Maker::new(MIB, random).convert($options).source(24 * MIB)
                });
            }
        )+
    };
}

snapshot_operations! {
    snapshot_changes_survive_cuts("snapshots_come_and_go"): "-o cluster_size=4096";
    snapshot_changes_in_512_bytes_survive_cuts("snapshots_come_and_go_in_512_bytes"): "-o cluster_size=512";
    snapshot_changes_of_compressed_survive_cuts("snapshots_come_and_go_over_compressed"): "-c -o cluster_size=2048,refcount_bits=8";
    snapshot_changes_with_lazy_refs_survive_cuts("snapshots_come_and_go_with_lazy_refcounts"): "-o cluster_size=1024,lazy_refcounts=on";
    snapshot_changes_in_subclusters_survive_cuts("snapshots_come_and_go_in_subclusters"): "-o extended_l2=on,cluster_size=16k";
}

/// Threads of the parallel workloads, as many as the queues of a block device.
const WRITERS: usize = 16;
/// Cuts of one parallel workload in a long run: 100,000 in all of them.
const LONG_CUTS: usize = 100_000 / 11;

/// Records a workload of parallel writers in parts of the disk that share clusters, then cuts the
/// power; fails if anything was lost.
fn run_writers(name: &str, source: impl FnOnce(&mut Random) -> Source) {
    let mut random = random_of(name);
    let source = source(&mut random);
    let cuts = if is_long() {
        LONG_CUTS
    } else {
        cuts_per_trial()
    };
    let recording = threads::record(source, WRITERS, 40, &mut random);
    judge::judge_cuts(name, &recording, cuts, &mut random);
}

#[test]
fn parallel_writers_survive_cuts() {
    for (cluster_bytes, compat) in [
        (512, Compat::V1_1),
        (512, Compat::V0_10),
        (4096, Compat::V1_1),
        (64 << 10, Compat::V1_1),
    ] {
        run_writers("qcow2_writers_side_by_side", |_| {
            Source::new(16 * MIB, 2 * MIB, cluster_bytes, compat)
        });
    }
}

/// Trials of parallel writers on images of qemu-img.
macro_rules! parallel_writers {
    ($($name:ident($label:literal): |$maker:ident, $random:ident| $made:expr;)+) => {
        $(
            #[test]
            fn $name() {
                requires!(tool("qemu-img"));
                run_writers(concat!("qcow2_writers_", $label), |$random| {
                    let $maker = Maker::new(2 * MIB, $random);
                    $made.source(24 * MIB)
                });
            }
        )+
    };
}

parallel_writers! {
    parallel_writers_over_backing_survive_cuts("over_backing"): |maker, random| maker.overlay("", 70_144);
    parallel_writers_of_subclusters_survive_cuts("of_subclusters"): |maker, random| {
        maker.convert("-o extended_l2=on,cluster_size=16k")
    };
    parallel_subclusters_over_backing_survive_cuts("of_subclusters_over_backing"): |maker, random| {
        maker.overlay("-o extended_l2=on,cluster_size=32k", 512)
    };
    parallel_writers_of_compressed_survive_cuts("of_compressed"): |maker, random| maker.convert("-c -o cluster_size=16384");
    parallel_writers_with_lazy_refs_survive_cuts("with_lazy_refcounts"): |maker, random| {
        maker.convert("-o lazy_refcounts=on,cluster_size=4096")
    };
    parallel_writers_of_1_bit_refs_survive_cuts("of_1_bit_refcounts"): |maker, random| {
        maker.convert("-o refcount_bits=1,cluster_size=512")
    };
    parallel_writers_beside_snapshot_survive_cuts("beside_snapshot"): |maker, random| {
        maker.convert("-o cluster_size=1024").snapshot("first", random)
    };
}

/// Refcount blocks and a refcount table that grow and move several times.
#[test]
fn moving_refcount_table_survives_cuts() {
    requires!(tool("qemu-img"));
    const NAME: &str = "qcow2_refcount_table_that_moves";
    // Offset and length of the header's fields of the table, which are written at once.
    const FIELD: (u64, usize) = (48, 12);
    let shape = WorkloadShape {
        operations: 450,
        write_bytes_max: 400_000,
        zero_permille: 20,
        discard_permille: 20,
        ..WorkloadShape::default()
    };
    let mut random = random_of(NAME);
    let maker = Maker::empty(12 * MIB).convert("-o refcount_bits=64,cluster_size=512");
    let recording = record(maker.source(24 * MIB), &mut random, shape);
    let is_move = |entry: &&Recorded| matches!(entry, Recorded::Write { offset, bytes } if (*offset, bytes.len()) == FIELD);
    let moves = recording.record.iter().filter(is_move).count();
    assert!(moves > 1, "{moves} moves");
    judge::judge(NAME, &recording, &mut random);
}

/// The control: losses on a disk that ignores flushes are reported.
#[test]
fn ignored_flushes_are_reported() {
    let mut random = random_of("qcow2_liar");
    let source = Source::new(16 * MIB, 2 * MIB, 4096, Compat::V1_1);
    let mut recording = record(source, &mut random, WorkloadShape::default());
    for entry in &mut recording.record {
        if *entry == Recorded::Flush {
            *entry = Recorded::WriteZeroes {
                offset: 0,
                len_bytes: 0,
            };
        }
    }
    let outcome = judge::cut("qcow2_liar", &recording, cuts_per_trial(), &mut random);
    assert!(
        outcome.failures.len() > outcome.cuts / 10,
        "{} of {}",
        outcome.failures.len(),
        outcome.cuts
    );
}
