//! Sixteen threads on one image, as the queues of a block device: every block has the content that
//! its last operation left, and QEMU finds no error and no leak.
//!
//! ```text
//!   rounds   open, 16 threads, close, qemu-img check, content by QEMU, then a change of all
//!            tables: another size, a snapshot created, applied or deleted
//!   worker   the operations of one thread
//!   model    the content of each block, and its lock
//! ```
//!
//! `FOLIO_CRASH_SEED` sets the seed (default 1), `FOLIO_PARALLEL_OPERATIONS` the number of
//! operations of each test.

mod model;
mod worker;

use crate::images::model::same;
use crate::support::random::{Random, number, random_of};
use crate::support::requires;
use crate::support::rounds::is_long;
use crate::support::scratch::scratch;
use crate::support::tools::{qemu_check, run, to_raw};
use folio::Timespec;
use folio::block::tools::{ResizeImage, apply_snapshot, create_snapshot, delete_snapshot, resize};
use folio::block::{Device, OpenOptions, open};
use model::{BLOCK, SharedModel, Version};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use tempfile::TempDir;
use worker::Worker;

const THREADS: usize = 16;
/// Operations of one test, and in a long run.
const OPERATIONS: (usize, usize) = (36_000, 3_600_000);
/// Operations of one thread between two pauses, and in a long run.
const OPERATIONS_PER_ROUND: (usize, usize) = (560, 5600);
/// Largest number of snapshots at a time.
const SNAPSHOTS_MAX: usize = 2;

/// An image, made by qemu-img.
#[derive(Clone, Copy)]
struct Variant {
    name: &'static str,
    len_bytes: usize,
    cluster_bytes: usize,
    /// `convert` with options: an image of the content. `create` with options: an image over the
    /// layer before it; the first is empty.
    layers: &'static [&'static str],
    /// Every block of the disk is written first.
    is_warm: bool,
    has_bitmaps: bool,
    can_grow: bool,
    can_shrink: bool,
    can_snapshot: bool,
}

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

/// The usual variant.
const PLAIN: Variant = Variant {
    name: "",
    len_bytes: 3 * MIB + 1536,
    cluster_bytes: 64 * KIB,
    layers: &["create"],
    is_warm: false,
    has_bitmaps: false,
    can_grow: true,
    can_shrink: true,
    can_snapshot: true,
};

/// An image, its disk's content, and its snapshots.
struct Trial {
    variant: Variant,
    folder: TempDir,
    model: SharedModel,
    snapshots: Vec<(String, Vec<Version>)>,
    random: Random,
}

impl Trial {
    fn new(variant: Variant) -> Self {
        let mut trial = Self {
            variant,
            folder: scratch(),
            model: SharedModel::new(variant.len_bytes / BLOCK),
            snapshots: Vec::new(),
            random: random_of(variant.name),
        };
        for (layer, line) in variant.layers.iter().enumerate() {
            trial.add_layer(layer, line);
        }
        if variant.has_bitmaps {
            let path = trial.path();
            run("qemu-img", ["bitmap", "--add", &path, "one"]);
            run("qemu-img", ["bitmap", "--add", "-g", "4k", &path, "second"]);
        }
        if variant.is_warm {
            let device = trial.open();
            device.write_at(&trial.model.bytes(), 0).unwrap();
        }
        trial
    }

    fn layer_path(&self, layer: usize) -> PathBuf {
        self.folder.path().join(format!("{layer}.qcow2"))
    }

    /// Returns the path of the image.
    fn path(&self) -> String {
        let path = self.layer_path(self.variant.layers.len() - 1);
        path.to_str().unwrap().to_owned()
    }

    /// Makes one layer of the chain of images.
    fn add_layer(&mut self, layer: usize, line: &str) {
        let data = self.folder.path().join("data");
        let line = line.replace("DATA", data.to_str().unwrap());
        let mut words: Vec<String> = line.split(' ').map(str::to_owned).collect();
        let path = self.layer_path(layer).to_str().unwrap().to_owned();
        let len = self.variant.len_bytes.to_string();
        if words[0] == "convert" {
            self.write_base();
            let raw = self.folder.path().join("source.raw");
            std::fs::write(&raw, self.model.bytes()).unwrap();
            let raw = raw.to_str().unwrap().to_owned();
            words.extend(["-f", "raw", "-O", "qcow2", &raw, &path].map(str::to_owned));
        } else {
            words.extend(["-f", "qcow2"].map(str::to_owned));
            if layer > 0 {
                let below = self.layer_path(layer - 1).to_str().unwrap().to_owned();
                words.extend(["-b", &below, "-F", "qcow2"].map(str::to_owned));
            }
            words.extend([path, len]);
        }
        run("qemu-img", words);
    }

    /// Gives half of the blocks content, so that clusters compress.
    fn write_base(&mut self) {
        for start in (0..self.model.count() - 8).step_by(8) {
            if self.random.percent(70) {
                let version = self.model.new_version();
                self.model.lock(start..start + 4).set(version);
            }
        }
    }

    fn open(&self) -> Arc<dyn Device> {
        open(self.path(), &OpenOptions::default()).unwrap()
    }

    /// Runs all rounds.
    fn run(&mut self) {
        let choose = |(short, long)| if is_long() { long } else { short };
        let count = number("FOLIO_PARALLEL_OPERATIONS").map(|count| count as usize);
        let count = count.unwrap_or(choose(OPERATIONS));
        let per_round = choose(OPERATIONS_PER_ROUND);
        for _ in 0..count.div_ceil(per_round * THREADS) {
            self.work(per_round);
            self.check();
            self.change_tables();
        }
        self.check();
    }

    /// Runs all threads, and closes the image.
    fn work(&mut self, count: usize) {
        let device = self.open();
        let hot = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..THREADS {
                let mut worker = Worker {
                    device: &*device,
                    model: &self.model,
                    hot: &hot,
                    cluster: self.variant.cluster_bytes / BLOCK,
                    random: Random::new(self.random.next()),
                    buf: Vec::new(),
                };
                scope.spawn(move || worker.run(count));
            }
        });
        same(&*device, &self.model.bytes(), 0);
    }

    /// Checks the closed image with Folio and QEMU.
    fn check(&self) {
        let path = self.path();
        let want = self.model.bytes();
        let read_only = OpenOptions {
            read_only: true,
            ..OpenOptions::default()
        };
        same(&*open(&path, &read_only).unwrap(), &want, 0);
        qemu_check(path.as_ref());
        let raw = self.folder.path().join("back.raw");
        to_raw(path.as_ref(), &raw);
        assert!(
            std::fs::read(&raw).unwrap() == want,
            "QEMU reads something else"
        );
    }

    /// Changes the size of the disk, or creates, applies or deletes a snapshot.
    fn change_tables(&mut self) {
        match self.random.below(5) {
            0 | 1 => self.resize(),
            _ if !self.variant.can_snapshot => {}
            2 if self.snapshots.len() < SNAPSHOTS_MAX => {
                let name = format!("at-{}", self.model.new_version());
                create_snapshot(self.path(), None, &name, Timespec::new(1, 0)).unwrap();
                self.snapshots.push((name, self.model.versions()));
            }
            3 if !self.snapshots.is_empty() => {
                let (name, versions) = self.random.pick(&self.snapshots);
                apply_snapshot(self.path(), None, &name).unwrap();
                self.model.set_versions(versions);
            }
            _ if !self.snapshots.is_empty() => {
                let (name, _) = self
                    .snapshots
                    .swap_remove(self.random.below(self.snapshots.len()));
                delete_snapshot(self.path(), None, &name).unwrap();
            }
            _ => {}
        }
    }

    fn resize(&mut self) {
        let (now, start) = (self.model.count(), self.variant.len_bytes / BLOCK);
        let count = start * 3 / 4 + self.random.below(start / 2);
        let is_possible = if count < now {
            self.variant.can_shrink
        } else {
            self.variant.can_grow
        };
        let is_version_2 = self.variant.layers.last().unwrap().contains("compat=0.10");
        // Snapshots of version 2 do not record the size of the disk.
        if !is_possible || (is_version_2 && !self.snapshots.is_empty()) {
            return;
        }
        let options = ResizeImage {
            may_shrink: true,
            ..ResizeImage::default()
        };
        resize(self.path(), (count * BLOCK) as u64, &options).unwrap();
        let mut versions = self.model.versions();
        versions.resize(count, 0);
        self.model.set_versions(versions);
    }
}

/// Tests of variants.
macro_rules! variants {
    ($($name:ident: $variant:expr;)+) => {
        $(
            #[test]
            fn $name() {
                requires!(tool("qemu-img"));
                Trial::new(Variant { name: stringify!($name), ..$variant }).run();
            }
        )+
    };
}

variants! {
    clusters_of_512_bytes_by_16_threads: Variant {
        layers: &["create -o cluster_size=512"], cluster_bytes: 512, ..PLAIN
    };
    clusters_of_4_kib_by_16_threads: Variant {
        layers: &["create -o cluster_size=4k"], cluster_bytes: 4 * KIB, ..PLAIN
    };
    clusters_of_64_kib_by_16_threads: PLAIN;
    clusters_of_2_mib_by_16_threads: Variant {
        layers: &["create -o cluster_size=2M"], cluster_bytes: 2 * MIB, len_bytes: 9 * MIB, ..PLAIN
    };
    subclusters_by_16_threads: Variant {
        layers: &["create -o extended_l2=on"], ..PLAIN
    };
    subclusters_of_512_bytes_by_16_threads: Variant {
        layers: &["create -o extended_l2=on,cluster_size=16k"], cluster_bytes: 16 * KIB, ..PLAIN
    };
    subclusters_over_backing_by_16_threads: Variant {
        layers: &["convert", "create -o extended_l2=on,cluster_size=32k"],
        cluster_bytes: 32 * KIB,
        ..PLAIN
    };
    subclusters_over_compressed_by_16_threads: Variant {
        layers: &[
            "convert -c -o cluster_size=16k,extended_l2=on",
            "create -o extended_l2=on,cluster_size=128k",
        ],
        cluster_bytes: 128 * KIB,
        ..PLAIN
    };
    compressed_clusters_by_16_threads: Variant {
        layers: &["convert -c -o cluster_size=4k"], cluster_bytes: 4 * KIB, ..PLAIN
    };
    compressed_by_zstd_by_16_threads: Variant {
        layers: &["convert -c -o compression_type=zstd"], ..PLAIN
    };
    compressed_subclusters_by_16_threads: Variant {
        layers: &["convert -c -o extended_l2=on,cluster_size=16k"],
        cluster_bytes: 16 * KIB,
        ..PLAIN
    };
    cold_overlay_over_compressed_by_16_threads: Variant {
        layers: &["convert -c", "create"], ..PLAIN
    };
    cold_chain_of_three_by_16_threads: Variant {
        layers: &["convert -c -o cluster_size=4k", "create -o compat=0.10", "create -o cluster_size=8k"],
        cluster_bytes: 8 * KIB,
        ..PLAIN
    };
    warm_overlay_by_16_threads: Variant {
        layers: &["convert -o cluster_size=4k", "create"], is_warm: true, ..PLAIN
    };
    preallocated_clusters_by_16_threads: Variant {
        layers: &["create -o preallocation=metadata,cluster_size=4k"],
        cluster_bytes: 4 * KIB,
        ..PLAIN
    };
    bitmaps_by_16_threads: Variant {
        layers: &["convert -o cluster_size=4k"],
        cluster_bytes: 4 * KIB,
        has_bitmaps: true,
        can_shrink: false,
        ..PLAIN
    };
    lazy_refcounts_by_16_threads: Variant {
        layers: &["create -o lazy_refcounts=on,cluster_size=4k"], cluster_bytes: 4 * KIB, ..PLAIN
    };
    lazy_refcounts_over_backing_by_16_threads: Variant {
        layers: &["convert -c", "create -o lazy_refcounts=on,extended_l2=on,cluster_size=16k"],
        cluster_bytes: 16 * KIB,
        ..PLAIN
    };
    data_file_by_16_threads: Variant {
        layers: &["create -o cluster_size=4k,data_file=DATA"],
        cluster_bytes: 4 * KIB,
        can_shrink: false,
        can_snapshot: false,
        ..PLAIN
    };
    data_file_with_subclusters_by_16_threads: Variant {
        layers: &["convert", "create -o extended_l2=on,cluster_size=16k,data_file=DATA"],
        cluster_bytes: 16 * KIB,
        can_shrink: false,
        can_snapshot: false,
        ..PLAIN
    };
    raw_data_file_by_16_threads: Variant {
        layers: &["create -o data_file=DATA,data_file_raw=on"],
        can_shrink: false,
        can_snapshot: false,
        ..PLAIN
    };
    refcounts_of_1_bit_by_16_threads: Variant {
        layers: &["create -o refcount_bits=1,cluster_size=512"],
        cluster_bytes: 512,
        can_snapshot: false,
        ..PLAIN
    };
    refcounts_of_2_bits_by_16_threads: Variant {
        layers: &["create -o refcount_bits=2,cluster_size=1k"], cluster_bytes: KIB, ..PLAIN
    };
    refcounts_of_4_bits_by_16_threads: Variant {
        layers: &["convert -o refcount_bits=4,cluster_size=2k"], cluster_bytes: 2 * KIB, ..PLAIN
    };
    refcounts_of_8_bits_by_16_threads: Variant {
        layers: &["convert -c -o refcount_bits=8,cluster_size=2k"], cluster_bytes: 2 * KIB, ..PLAIN
    };
    refcounts_of_32_bits_by_16_threads: Variant {
        layers: &["create -o refcount_bits=32,cluster_size=512"], cluster_bytes: 512, ..PLAIN
    };
    refcounts_of_64_bits_by_16_threads: Variant {
        layers: &["create -o refcount_bits=64,cluster_size=512"], cluster_bytes: 512, ..PLAIN
    };
    version_2_by_16_threads: Variant {
        layers: &["create -o compat=0.10,cluster_size=4k"], cluster_bytes: 4 * KIB, ..PLAIN
    };
    version_2_over_backing_by_16_threads: Variant {
        layers: &["convert -c -o compat=0.10", "create -o compat=0.10"], ..PLAIN
    };
}
