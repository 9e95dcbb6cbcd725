//! A writable volume: fsync, a tree of files, takeover, idleness, and what is stored.

use super::remote_store::RemoteStore;
use super::requests::RequestMeter;
use crate::outcome::Outcome;
use crate::race::{Race, Run};
use crate::report::{Report, Row, Sample, Table, Unit};
use folio::Image;
use folio::block::{Device, MemoryDevice};
use folio_object_store::{block_on, handle};
use folio_volume::{GcOptions, StorePlace, Takeover, Volume, delete_volume, info};
use futures_util::stream;
use futures_util::{StreamExt, TryStreamExt};
use object_store::ObjectStoreExt;
use object_store::path::Path;
use std::cell::Cell;
use std::sync::Arc;
use std::time::{Duration, Instant};

pub(super) const FSYNC: &str = "fsync into a volume";
pub(super) const TREE: &str = "a tree of files into a new volume, durable";
pub(super) const TAKEOVER: &str = "takeover of a volume from a writer that is alive";
pub(super) const IDLE: &str = "requests of an idle volume in a minute";
pub(super) const STORED: &str =
    "stored bytes after garbage collection, as a multiple of logical bytes";
pub(super) const VOLUME: &str = "folio volume";
pub(super) const PUT: &str = "one PUT";
pub(super) const PARTS: &str = "PUTs of 8 MiB, 8 in flight";
pub(super) const MEMORY: &str = "folio, a disk in memory";
pub(super) const SIZES: [(&str, usize); 2] = [("4 KiB", 4 << 10), ("256 KiB", 256 << 10)];

/// Operations of one round.
const FSYNCS: usize = 7;
const FILES: usize = 20_000;
/// Size of the disk for a tree.
const TREE_BYTES: u64 = 2 << 30;
const PART_BYTES: usize = 8 << 20;
const PARTS_IN_FLIGHT: usize = 8;
/// Flushes before a takeover.
const FLUSHES: u64 = 10;

/// A store and places of volumes in it.
struct Fixture {
    store: Arc<RemoteStore>,
    meter: RequestMeter,
    volumes: Cell<u32>,
}

/// Measures volumes and adds the tables.
pub(super) fn measure(run: &Run<'_>, report: &mut Report) -> Outcome {
    let meter = RequestMeter::default();
    let fixture = Fixture {
        store: Arc::new(RemoteStore::new(&meter)),
        meter,
        volumes: Cell::new(0),
    };
    fsync(run, &fixture, report)?;
    takeover(run, &fixture, report)?;
    idle(run, &fixture, report)?;
    tree(run, &fixture, report)
}

impl Fixture {
    /// Returns a place without a volume.
    fn place(&self) -> Outcome<StorePlace> {
        self.volumes.set(self.volumes.get() + 1);
        let name = format!("volume-{}", self.volumes.get());
        let runtime = handle()?;
        let root = Path::from(name.as_str());
        Ok(StorePlace::new(self.store.clone(), root, runtime, &name))
    }

    fn put(&self, bytes: usize, count: usize) -> Outcome {
        let puts = (0..count).map(|number| {
            let (store, path) = (self.store.clone(), Path::from(format!("plain/{number}")));
            async move { store.put(&path, vec![2; bytes].into()).await.map(drop) }
        });
        let all = stream::iter(puts)
            .buffer_unordered(PARTS_IN_FLIGHT)
            .try_collect::<()>();
        Ok(block_on(async { Ok(all.await) })??)
    }

    /// Returns the seconds of each of `count` operations, with their requests.
    fn each(&self, count: usize, mut work: impl FnMut() -> Outcome) -> Outcome<Sample> {
        self.meter.take();
        let start = Instant::now();
        (0..count).try_for_each(|_| work())?;
        Ok(self.meter.since(start, count))
    }
}

fn fsync(run: &Run<'_>, fixture: &Fixture, report: &mut Report) -> Outcome {
    let volume = &Volume::create(&fixture.place()?, 1 << 30)?;
    let writes = &Cell::new(0_u64);
    let count = run.sized(FSYNCS, 1);
    let mut race = Race::new(FSYNC, Unit::Seconds, Some(PUT));
    for (job, bytes) in SIZES {
        race.case(job, PUT, move || {
            fixture.each(count, || fixture.put(bytes, 1))
        });
        race.case(job, VOLUME, move || {
            fixture.each(count, || {
                let number = writes.replace(writes.get() + 1);
                let content = vec![number as u8 | 1; bytes];
                volume.write_at(&content, number % 16 * PART_BYTES as u64)?;
                Ok(volume.flush()?)
            })
        });
    }
    race.run(run, report)
}

fn takeover(run: &Run<'_>, fixture: &Fixture, report: &mut Report) -> Outcome {
    let mut race = Race::new(TAKEOVER, Unit::Seconds, None);
    race.case("open", VOLUME, || {
        let place = fixture.place()?;
        let first = Volume::create(&place, 1 << 30)?;
        for number in 0..run.sized(FLUSHES, 2) {
            first.write_at(&[1; 4096], number << 20)?;
            first.flush()?;
        }
        let mut second = None;
        let sample = fixture.each(1, || {
            second = Some(Volume::open(&place, Takeover::Fence)?);
            Ok(())
        })?;
        let late = first.write_at(&[2; 4096], 0).and_then(|()| first.close());
        second.map_or(Ok(()), |second| second.close())?;
        match late {
            Ok(()) => Err("a writer that was taken over still writes".into()),
            Err(_) => Ok(sample),
        }
    });
    race.run(run, report)
}

// Nothing is to happen.
#[allow(clippy::disallowed_methods)]
fn idle(run: &Run<'_>, fixture: &Fixture, report: &mut Report) -> Outcome {
    let minute = Duration::from_secs(60);
    let wait = run.sized(minute, Duration::from_millis(100));
    (run.step)("object-store: an idle volume")?;
    let volume = Volume::create(&fixture.place()?, 1 << 30)?;
    volume.write_at(&[1; 4096], 0)?;
    volume.flush()?;
    fixture.meter.take();
    std::thread::sleep(wait);
    let found = fixture.meter.take().count as f64 * minute.div_duration_f64(wait);
    drop(volume);
    let rows = vec![Row::new("idle", VOLUME, vec![found])];
    report
        .tables
        .push(Table::new(IDLE, Unit::Requests, None, rows));
    Ok(())
}

/// Writes files into a new ext4 on a device, and returns when they are durable. Counts from the
/// first file on.
fn write_files(
    device: Arc<dyn Device>,
    sizes: impl Iterator<Item = usize>,
    fixture: &Fixture,
) -> Outcome<Sample> {
    let fs = Image::create_on(device).mount()?;
    fixture.meter.take();
    let start = Instant::now();
    for (number, bytes) in sizes.enumerate() {
        let folder = format!("/d{}", number / 200);
        if number % 200 == 0 {
            fs.create_dir(&folder)?;
        }
        let path = format!("{folder}/f{number}");
        fs.write(path, vec![number as u8; bytes])?;
    }
    fs.close()?;
    Ok(fixture.meter.since(start, 1))
}

fn tree(run: &Run<'_>, fixture: &Fixture, report: &mut Report) -> Outcome {
    let files = run.sized(FILES, 200);
    let sizes = move || (0..files).map(|number| 500 + (number * 7919) % 16_000);
    let parts = sizes().sum::<usize>().div_ceil(PART_BYTES);
    let last: Cell<Option<(StorePlace, Arc<Volume>)>> = Cell::new(None);
    let upload = || fixture.each(1, || fixture.put(PART_BYTES, parts));
    let into_memory = || write_files(Arc::new(MemoryDevice::new(TREE_BYTES)), sizes(), fixture);
    let into_volume = || {
        if let Some((place, volume)) = last.take() {
            drop(volume);
            delete_volume(&place, Takeover::Refuse)?;
        }
        let place = fixture.place()?;
        let volume = Arc::new(Volume::create(&place, TREE_BYTES)?);
        let sample = write_files(volume.clone(), sizes(), fixture)?;
        last.set(Some((place, volume)));
        Outcome::Ok(sample)
    };
    // A virtual machine gets memory from its host at the first use, which takes longer than all of
    // this: two rounds, so that what a round frees only at its end is in use once, too.
    for _ in 0..2 {
        upload()?;
        into_memory()?;
        into_volume()?;
    }
    let title = format!("{TREE}: {files} files");
    let mut race = Race::new(&title, Unit::Seconds, Some(PARTS));
    race.case("files", PARTS, upload);
    race.case("files", MEMORY, into_memory);
    race.case("files", VOLUME, into_volume);
    race.run(run, report)?;
    let Some((place, volume)) = last.take() else {
        return Ok(());
    };
    let mut now = GcOptions::default();
    now.min_age = Duration::ZERO;
    volume.collect_garbage(&now, &mut |_| ())?;
    let found = info(&place)?;
    let ratio = found.stored_bytes as f64 / found.logical_bytes.max(1) as f64;
    let rows = vec![Row::new("the tree", VOLUME, vec![ratio])];
    report
        .tables
        .push(Table::new(STORED, Unit::Times, None, rows));
    Ok(())
}
