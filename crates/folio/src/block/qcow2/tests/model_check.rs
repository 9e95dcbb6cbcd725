//! The races of an open image under a model checker, which tries thousands of orders of steps
//! (base/sync).
//!
//! Each write is of one byte value, which identifies its writer; [`BACKING`] is the backing file's.

use super::power_cuts::{check_cut, content, file, is_dirty};
use crate::base::sync::schedules::{check, together};
#[cfg(feature = "compress")]
use crate::block::qcow2::{Appender, PackedCluster};
use crate::block::qcow2::{Qcow2Device, Repair, check_image};
use crate::block::wrappers::{RecordDevice, Recorded};
use crate::block::{CreateOptions, Device, MemoryDevice};
use shuttle::rand::Rng;
use std::ops::Range;
use std::sync::Arc;

const FILE_BYTES: u64 = 256 << 10;
/// Two L2 tables of clusters of 512 bytes.
const DISK_BYTES: u64 = 64 << 10;
const CLUSTER: u64 = 512;
const BACKING: u8 = 9;

/// An open image.
struct Fixture {
    device: Qcow2Device,
    record: Arc<RecordDevice>,
    /// The file before the first write.
    before: MemoryDevice,
}

/// Returns options of clusters of 512 bytes.
fn small() -> CreateOptions {
    CreateOptions {
        cluster_bytes: CLUSTER as u32,
        ..CreateOptions::default()
    }
}

/// Returns options of subclusters of 512 bytes.
fn subclusters() -> CreateOptions {
    CreateOptions {
        cluster_bytes: 16 << 10,
        extended_l2: true,
        ..CreateOptions::default()
    }
}

impl Fixture {
    /// Returns an empty image.
    fn new(options: &CreateOptions) -> Self {
        Self::on(options, |device| Qcow2Device::open_on(device).unwrap())
    }

    /// Returns an empty image over a backing file.
    fn overlay(options: &CreateOptions) -> Self {
        Self::on(options, |device| {
            let backing = MemoryDevice::new(DISK_BYTES);
            backing
                .write_at(&[BACKING; DISK_BYTES as usize], 0)
                .unwrap();
            Qcow2Device::open_over(device, Arc::new(backing)).unwrap()
        })
    }

    fn on(options: &CreateOptions, open: fn(Arc<dyn Device>) -> Qcow2Device) -> Self {
        let file = Arc::new(MemoryDevice::new(FILE_BYTES));
        drop(Qcow2Device::create_on(file.clone(), DISK_BYTES, options).unwrap());
        let before = file.snapshot();
        let record = Arc::new(RecordDevice::new(file));
        Self {
            device: open(record.clone()),
            record,
            before,
        }
    }

    /// Writes before the threads start. The places of the clusters are known then without the
    /// metadata lock.
    fn with(self, byte: u8, range: Range<u64>) -> Self {
        self.write(byte, range.clone());
        self.device.flush().unwrap();
        for at in range.step_by(CLUSTER as usize) {
            self.assert_among(at..at + 1, &[byte]);
        }
        self
    }

    /// Keeps at most `tables_max` clean tables of each kind in memory.
    fn with_cache_of(self, tables_max: usize) -> Self {
        let mut metadata = self.device.metadata.lock();
        metadata.l2.set_limit(tables_max);
        metadata.refcounts.blocks.set_limit(tables_max);
        drop(metadata);
        self
    }

    fn write(&self, byte: u8, range: Range<u64>) {
        let bytes = vec![byte; (range.end - range.start) as usize];
        self.device.write_at(&bytes, range.start).unwrap();
    }

    fn discard(&self, range: Range<u64>) {
        let len_bytes = range.end - range.start;
        self.device.discard(range.start, len_bytes).unwrap();
    }

    fn zero(&self, range: Range<u64>) {
        let len_bytes = range.end - range.start;
        self.device.write_zeroes(range.start, len_bytes).unwrap();
    }

    fn flush(&self) {
        self.device.flush().unwrap();
    }

    /// Fills a guest cluster with a byte value, compressed.
    #[cfg(feature = "compress")]
    fn append(&self, byte: u8, cluster: u64) {
        let mut packed = [0; CLUSTER as usize];
        let mut packer = self.device.packer().unwrap();
        let count = packer.pack(&[byte; CLUSTER as usize], &mut packed);
        let clusters = [PackedCluster {
            cluster,
            bytes: 0..count.unwrap(),
        }];
        let mut appender = Appender::default();
        self.device
            .write_packed(&mut appender, &clusters, &packed)
            .unwrap();
        self.device.finish_packed(&mut appender).unwrap();
    }

    /// Asserts that each byte of a range is one of those allowed.
    #[track_caller]
    fn assert_among(&self, range: Range<u64>, allowed: &[u8]) {
        let mut bytes = vec![0xee; (range.end - range.start) as usize];
        self.device.read_at(&mut bytes, range.start).unwrap();
        bytes.dedup();
        assert!(
            bytes.iter().all(|byte| allowed.contains(byte)),
            "{range:?}: {bytes:?}, allowed are {allowed:?}"
        );
    }

    /// Asserts what is stored now, after a flush, and after later writes to other clusters, which
    /// reuse free space. A power cut at any write leaks clusters at worst, and the dirty bit then
    /// reports it. The close leaves no leak.
    #[track_caller]
    fn end(&self, want: &[(Range<u64>, u8)]) {
        let compare = || {
            for (range, byte) in want {
                self.assert_among(range.clone(), &[*byte]);
            }
        };
        compare();
        self.flush();
        self.write(77, DISK_BYTES - 4 * CLUSTER..DISK_BYTES);
        compare();
        self.device.mark_closed().unwrap();
        compare();
        let device = self.before.snapshot();
        for (cut, step) in self.record.recorded().iter().enumerate() {
            step.replay(&device).unwrap();
            // Some cuts of each execution: a check has many steps.
            if *step != Recorded::Flush && shuttle::rand::thread_rng().gen_bool(0.15) {
                let copy: Arc<dyn Device> = Arc::new(device.snapshot());
                let found = check_image(&file(&copy), Repair::Nothing, &mut |_| {});
                let is_repaired_at_open = is_dirty(&*copy);
                assert!(
                    is_repaired_at_open || found.unwrap().leaks == 0,
                    "cut at {cut}"
                );
                check_cut(&format!("cut at {cut}"), &copy, &[0]);
            }
        }
        let device: Arc<dyn Device> = self.record.clone();
        let found = check_image(&file(&device), Repair::Nothing, &mut |_| {}).unwrap();
        assert_eq!((found.leaks, found.corruptions), (0, 0), "after the close");
        assert!(!is_dirty(&*device));
    }
}

/// A thread.
type Part = Box<dyn FnOnce() + Send>;

/// Returns the part of a thread.
fn part(fixture: &Arc<Fixture>, work: impl FnOnce(&Fixture) + Send + 'static) -> Part {
    let fixture = fixture.clone();
    Box::new(move || work(&fixture))
}

#[test]
fn two_writers_share_a_new_cluster() {
    check(300, || {
        let fixture = Arc::new(Fixture::overlay(&small()));
        together([
            part(&fixture, |disk| disk.write(1, 0..200)),
            part(&fixture, |disk| disk.write(2, 200..700)),
            part(&fixture, |disk| {
                disk.assert_among(0..200, &[BACKING, 1]);
                disk.assert_among(200..700, &[BACKING, 2]);
                disk.assert_among(700..1024, &[BACKING]);
            }),
        ]);
        fixture.end(&[(0..200, 1), (200..700, 2), (700..1024, BACKING)]);
    });
}

#[test]
fn two_writers_share_a_new_cluster_of_subclusters() {
    check(300, || {
        let fixture = Arc::new(Fixture::overlay(&subclusters()));
        together([
            part(&fixture, |disk| disk.write(1, 0..200)),
            part(&fixture, |disk| disk.write(2, 200..700)),
            part(&fixture, |disk| {
                disk.write(3, 1024..1300);
                disk.assert_among(0..200, &[BACKING, 1]);
                disk.assert_among(200..700, &[BACKING, 2]);
            }),
        ]);
        fixture.end(&[
            (0..200, 1),
            (200..700, 2),
            (700..1024, BACKING),
            (1024..1300, 3),
            (1300..2048, BACKING),
        ]);
    });
}

#[test]
fn subclusters_of_a_cluster_change_apart() {
    check(300, || {
        let fixture = Arc::new(Fixture::overlay(&subclusters()).with(1, 0..2048));
        together([
            part(&fixture, |disk| disk.write(2, 0..300)),
            part(&fixture, |disk| disk.zero(512..1024)),
            part(&fixture, |disk| {
                disk.discard(1024..1536);
                // Not yet stored.
                disk.write(3, 4096..4100);
                disk.assert_among(1536..2048, &[1]);
            }),
        ]);
        fixture.end(&[
            (0..300, 2),
            (300..512, 1),
            (512..1536, 0),
            (1536..2048, 1),
            (2048..4096, BACKING),
            (4096..4100, 3),
        ]);
    });
}

/// The last stored subcluster is zeroed, which releases the cluster, while another one is written.
#[test]
fn cluster_is_released_beside_a_write() {
    check(300, || {
        let fixture = Arc::new(Fixture::new(&subclusters()).with(1, 0..512));
        together([
            part(&fixture, |disk| {
                disk.zero(0..512);
                disk.flush();
            }),
            part(&fixture, |disk| disk.write(2, 512..1024)),
            part(&fixture, |disk| disk.write(3, 16 << 10..17 << 10)),
        ]);
        fixture.end(&[(0..512, 0), (512..1024, 2), (16 << 10..17 << 10, 3)]);
    });
}

#[test]
fn parts_of_a_cluster_are_written_and_zeroed() {
    check(300, || {
        let fixture = Arc::new(Fixture::overlay(&small()));
        together([
            part(&fixture, |disk| disk.write(1, 0..256)),
            part(&fixture, |disk| disk.zero(256..512)),
            part(&fixture, |disk| disk.zero(512..1024)),
        ]);
        fixture.end(&[(0..256, 1), (256..1024, 0)]);
    });
}

/// A write and a discard of the same cluster: one of both orders, and its bytes then stay.
#[test]
fn discard_beside_write_leaves_one_of_both() {
    check(300, || {
        let fixture = Arc::new(Fixture::overlay(&small()).with(1, 0..1024));
        together([
            part(&fixture, |disk| disk.write(2, 0..256)),
            part(&fixture, |disk| disk.discard(0..1024)),
            part(&fixture, |disk| {
                disk.flush();
                disk.write(3, 2048..2560);
            }),
        ]);
        let mut byte = [0];
        fixture.device.read_at(&mut byte, 0).unwrap();
        assert!([0, 2].contains(&byte[0]));
        fixture.end(&[(0..256, byte[0]), (256..1024, 0), (2048..2560, 3)]);
    });
}

/// The cluster that a reader has looked up is discarded, freed by a flush, and written for another
/// guest cluster.
#[test]
fn reader_never_sees_a_reused_cluster() {
    check(300, || {
        let fixture = Arc::new(Fixture::overlay(&small()).with(1, 0..512));
        together([
            part(&fixture, |disk| {
                disk.assert_among(0..512, &[1, 0]);
                disk.assert_among(0..1024, &[1, 0, BACKING]);
            }),
            part(&fixture, |disk| {
                disk.discard(0..512);
                disk.flush();
                disk.write(2, 2048..2560);
            }),
            part(&fixture, |disk| disk.write(3, 4096..4608)),
        ]);
        fixture.end(&[(0..512, 0), (2048..2560, 2), (4096..4608, 3)]);
    });
}

/// As above for the cluster whose bytes a write copies.
#[test]
fn copied_bytes_are_never_of_a_reused_cluster() {
    check(300, || {
        let fixture = Arc::new(Fixture::overlay(&small()).with(1, 0..512));
        together([
            part(&fixture, |disk| disk.write(2, 0..100)),
            part(&fixture, |disk| {
                disk.discard(0..512);
                disk.write(3, 100..200);
                disk.flush();
            }),
            part(&fixture, |disk| {
                disk.flush();
                disk.write(4, 2048..2560);
            }),
        ]);
        fixture.assert_among(0..100, &[0, 2]);
        fixture.end(&[(100..200, 3), (200..512, 0), (2048..2560, 4)]);
    });
}

/// What one thread has flushed survives a cut at any later write of another thread.
#[test]
fn flushed_write_survives_beside_other_changes() {
    check(200, || {
        let fixture = Arc::new(Fixture::overlay(&small()).with(1, 1024..1536));
        let flushed = Arc::new(std::sync::Mutex::new(0));
        together([
            part(&fixture, {
                let flushed = flushed.clone();
                move |disk| {
                    disk.write(2, 0..100);
                    disk.flush();
                    *flushed.lock().unwrap() = disk.record.recorded_len();
                }
            }),
            part(&fixture, |disk| {
                disk.write(3, 100..600);
                disk.flush();
            }),
            part(&fixture, |disk| {
                disk.discard(1024..1536);
                disk.flush();
                disk.write(4, 40 << 10..(40 << 10) + 512);
            }),
        ]);
        let flushed = *flushed.lock().unwrap();
        fixture.end(&[(0..100, 2), (100..600, 3), (1024..1536, 0)]);
        let device = fixture.before.snapshot();
        for (cut, step) in fixture.record.recorded().iter().enumerate() {
            step.replay(&device).unwrap();
            if cut + 1 >= flushed && *step != Recorded::Flush {
                let device: Arc<dyn Device> = Arc::new(device.snapshot());
                assert!(content(&device)[..100] == [2; 100], "cut at {cut}");
            }
        }
    });
}

#[test]
fn close_beside_writes_loses_nothing() {
    check(300, || {
        let fixture = Arc::new(Fixture::overlay(&small()).with(1, 0..512));
        together([
            part(&fixture, |disk| {
                disk.write(2, 512..700);
                disk.discard(0..512);
            }),
            part(&fixture, |disk| disk.device.mark_closed().unwrap()),
            part(&fixture, |disk| {
                disk.write(3, 700..1024);
                disk.flush();
            }),
        ]);
        fixture.end(&[(0..512, 0), (512..700, 2), (700..1024, 3)]);
    });
}

#[test]
fn evicted_tables_lose_no_entry() {
    check(200, || {
        let fixture = Fixture::overlay(&small()).with(1, 0..1024);
        let fixture = Arc::new(fixture.with(1, 32 << 10..33 << 10).with_cache_of(1));
        together([
            part(&fixture, |disk| {
                disk.write(2, 0..100);
                disk.write(2, 33 << 10..34 << 10);
            }),
            part(&fixture, |disk| {
                disk.write(3, 34 << 10..35 << 10);
                disk.write(3, 1024..2048);
            }),
            part(&fixture, |disk| {
                disk.assert_among(512..1024, &[1]);
                disk.assert_among(32 << 10..33 << 10, &[1]);
                disk.discard(32 << 10..33 << 10);
            }),
        ]);
        fixture.end(&[
            (0..100, 2),
            (100..1024, 1),
            (1024..2048, 3),
            (32 << 10..33 << 10, 0),
            (33 << 10..34 << 10, 2),
            (34 << 10..35 << 10, 3),
        ]);
    });
}

/// A compressed cluster that a reader caches is freed, and its space gets another one.
#[cfg(feature = "compress")]
#[test]
fn compressed_cluster_in_reused_space_is_not_stale() {
    check(1000, || {
        let fixture = Arc::new(Fixture::new(&small()));
        fixture.append(1, 0);
        together([
            part(&fixture, |disk| disk.assert_among(0..100, &[1, 2])),
            part(&fixture, |disk| {
                disk.write(2, 0..512);
                disk.flush();
            }),
            part(&fixture, |disk| {
                disk.append(3, 1);
                disk.assert_among(512..600, &[3]);
            }),
        ]);
        fixture.end(&[(0..512, 2), (512..1024, 3)]);
    });
}
