//! Reads of an object in order, at random, and again from the part cache, beside the store's own
//! ranged GETs and a local file.

use super::remote_store::RemoteStore;
use super::requests::RequestMeter;
use crate::evidence::mib_per_second;
use crate::outcome::{Context, Outcome};
use crate::race::{Race, Run};
use crate::report::{Report, Sample, Unit};
use folio::block::qcow2::Qcow2Device;
use folio::block::{Device, OpenOptions, RawDevice};
use folio::{Fs, Image};
use folio_object_store::{
    ObjectDevice, PartCache, PartCacheOptions, Store, StoreOptions, block_on, provide_memory,
};
use futures_util::stream;
use futures_util::{StreamExt, TryStreamExt};
use object_store::ObjectStoreExt;
use object_store::path::Path as ObjectPath;
use std::io::Read;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

pub(super) const IN_ORDER: &str = "read in order, cold";
pub(super) const AGAIN: &str = "read again after a restart, parts on disk";
pub(super) const AT_RANDOM: &str = "reads of 4 KiB at random, cold: time of one";
pub(super) const AT_RANDOM_RATE: &str = "reads of 4 KiB at random, cold: 32 at a time";
pub(super) const OBJECT: &str = "the object";
pub(super) const FILE: &str = "a file in its ext4";
pub(super) const READ: &str = "4 KiB";
pub(super) const FOLIO: &str = "folio";
pub(super) const STORE: &str = "ranged GETs";
pub(super) const LOCAL: &str = "folio, local file";

/// Size of a ranged GET, and how many are in flight, as in Folio's reading ahead.
const GET_BYTES: u64 = 1 << 20;
const IN_FLIGHT: usize = 8;
/// Bytes of one read.
const PIECE_BYTES: usize = 256 << 10;
const RANDOM_BYTES: u64 = 4 << 10;
const RANDOM_IN_FLIGHT: usize = 32;
const PART_BYTES: u64 = 64 << 10;
const URL: &str = "memory://folio-bench/disk.qcow2";
/// The large file in the image.
const LARGE: &str = "/large";

/// The image in a store, and as a local file.
struct Fixture {
    store: Arc<RemoteStore>,
    meter: RequestMeter,
    path: ObjectPath,
    len_bytes: u64,
    local: PathBuf,
    part_cache: PartCacheOptions,
}

/// Measures the reads and adds their tables.
pub(super) fn measure(run: &Run<'_>, folder: &Path, report: &mut Report) -> Outcome {
    let fixture = Fixture::new(folder)?;
    in_order(run, &fixture, report)?;
    again(run, &fixture, report)?;
    at_random(run, &fixture, report)
}

impl Fixture {
    fn new(folder: &Path) -> Outcome<Self> {
        let local = folder.join("disk.qcow2");
        let bytes = std::fs::read(&local).at(&local)?;
        let meter = RequestMeter::default();
        let store = Arc::new(RemoteStore::new(&meter));
        provide_memory("folio-bench", store.clone());
        let path = ObjectPath::from("disk.qcow2");
        let len_bytes = bytes.len() as u64;
        request(store.put(&path, bytes.into()))?;
        Ok(Self {
            store,
            meter,
            path,
            len_bytes,
            local,
            part_cache: PartCacheOptions {
                folder: folder.join("parts"),
                size_bytes: 1 << 40,
            },
        })
    }

    /// Opens the object as a new process does.
    fn open(&self, has_part_cache: bool) -> Outcome<Arc<ObjectDevice>> {
        let url = URL.parse()?;
        let store = Store::open(&url, &StoreOptions::default())?;
        let cache = |url: &str, e_tag: &str, len_bytes| {
            let cache = PartCache::open(&self.part_cache, url, e_tag, len_bytes);
            cache.ok().filter(|_| has_part_cache)
        };
        let device = ObjectDevice::open(store, cache)?;
        Ok(Arc::new(device))
    }

    /// Gets ranges, some at a time.
    fn get(&self, ranges: Vec<Range<u64>>, in_flight: usize) -> Outcome<u64> {
        let gets = ranges.into_iter().map(|range| {
            let (store, path) = (self.store.clone(), self.path.clone());
            async move { store.get_range(&path, range).await }
        });
        request(async {
            stream::iter(gets)
                .buffered(in_flight)
                .try_fold(0, |sum, bytes| async move { Ok(sum + bytes.len() as u64) })
                .await
        })
    }

    /// Returns distinct places for random reads, none in the parts that an open fetches.
    fn places(&self, count: usize) -> Vec<u64> {
        let parts = self.len_bytes / PART_BYTES - 8;
        // Odd steps through a number of parts that is made odd visit each of them once.
        let parts = parts - (parts + 1) % 2;
        let step = (parts * 5 / 13) | 1;
        (0..count.min(parts as usize) as u64)
            .map(|at| (8 + at * step % parts) * PART_BYTES)
            .collect()
    }
}

/// Runs a request on the runtime of object storage.
fn request<T>(work: impl Future<Output = object_store::Result<T>>) -> Outcome<T> {
    Ok(block_on(async { Ok(work.await) })??)
}

/// Reads a whole device; returns the number of bytes.
fn read_device(device: &dyn Device) -> Outcome<u64> {
    let mut piece = vec![0; PIECE_BYTES];
    let mut at = 0;
    while at < device.len_bytes() {
        let count = (PIECE_BYTES as u64).min(device.len_bytes() - at) as usize;
        device.read_at(&mut piece[..count], at)?;
        at += count as u64;
    }
    Ok(at)
}

/// Mounts an image.
fn mount(image: Arc<dyn Device>) -> Outcome<Fs> {
    Ok(Image::device(image).read_only().mount()?)
}

/// Reads a file; returns the number of bytes.
fn read_file(mut file: folio::File) -> Outcome<u64> {
    let mut piece = vec![0; PIECE_BYTES];
    let mut total = 0;
    loop {
        match file.read(&mut piece)? {
            0 => return Ok(total),
            count => total += count as u64,
        }
    }
}

fn qcow2(file: Arc<ObjectDevice>) -> Outcome<Arc<dyn Device>> {
    Ok(Arc::new(Qcow2Device::open_on(file)?))
}

impl Fixture {
    /// Returns the rate of a read, in MiB a second.
    fn rate(&self, read: impl FnOnce() -> Outcome<u64>) -> Outcome<Sample> {
        self.meter.take();
        let start = Instant::now();
        let bytes = read()?;
        Ok(self
            .meter
            .since(start, 1)
            .map(|seconds| mib_per_second(bytes, seconds)))
    }

    /// Returns the time of each of `count` reads.
    fn each(&self, count: usize, read: impl FnOnce() -> Outcome) -> Outcome<Sample> {
        self.meter.take();
        let start = Instant::now();
        read()?;
        Ok(self.meter.since(start, count))
    }
}

fn in_order(run: &Run<'_>, fixture: &Fixture, report: &mut Report) -> Outcome {
    let gets = || {
        let starts = (0..fixture.len_bytes).step_by(GET_BYTES as usize);
        let ranges = starts.map(|start| start..(start + GET_BYTES).min(fixture.len_bytes));
        fixture.rate(|| fixture.get(ranges.collect(), IN_FLIGHT))
    };
    let mut race = Race::new(IN_ORDER, Unit::MibPerSecond, Some(STORE));
    race.case(OBJECT, STORE, gets);
    race.case(OBJECT, FOLIO, || {
        let device = fixture.open(false)?;
        fixture.rate(|| read_device(&*device))
    });
    // The large file is nearly all of the object.
    race.case(FILE, STORE, gets);
    race.case(FILE, FOLIO, || {
        let fs = mount(qcow2(fixture.open(false)?)?)?;
        let file = fs.open(LARGE)?;
        fixture.rate(|| read_file(file))
    });
    race.run(run, report)
}

fn again(run: &Run<'_>, fixture: &Fixture, report: &mut Report) -> Outcome {
    // The process before the restart.
    read_device(&*fixture.open(true)?)?;
    let local = &fixture.local;
    let mut race = Race::new(AGAIN, Unit::MibPerSecond, Some(LOCAL));
    race.case(OBJECT, LOCAL, || {
        let device = RawDevice::open(local, true)?;
        fixture.rate(|| read_device(&device))
    });
    race.case(OBJECT, FOLIO, || {
        let device = fixture.open(true)?;
        fixture.rate(|| read_device(&*device))
    });
    race.case(FILE, LOCAL, || {
        let fs = mount(folio::block::open(local, &OpenOptions::default())?)?;
        let file = fs.open(LARGE)?;
        fixture.rate(|| read_file(file))
    });
    race.case(FILE, FOLIO, || {
        let fs = mount(qcow2(fixture.open(true)?)?)?;
        let file = fs.open(LARGE)?;
        fixture.rate(|| read_file(file))
    });
    race.run(run, report)
}

fn at_random(run: &Run<'_>, fixture: &Fixture, report: &mut Report) -> Outcome {
    let places = fixture.places(run.sized(40, 4));
    let many = fixture.places(run.sized(40 * RANDOM_IN_FLIGHT, 32));
    let gets = |places: &[u64], in_flight| {
        let ranges = places.iter().map(|at| *at..*at + RANDOM_BYTES).collect();
        fixture.each(places.len(), || fixture.get(ranges, in_flight).map(drop))
    };
    let reads = |places: &[u64], in_flight| {
        let device = fixture.open(false)?;
        fixture.each(places.len(), || read_places(&*device, places, in_flight))
    };
    let mut race = Race::new(AT_RANDOM, Unit::Seconds, Some(STORE));
    race.case(READ, STORE, || gets(&places, 1));
    race.case(READ, FOLIO, || reads(&places, 1));
    race.run(run, report)?;
    let rate = |sample: Sample| sample.map(|each| 1.0 / each);
    let mut race = Race::new(AT_RANDOM_RATE, Unit::PerSecond, Some(STORE));
    race.case(READ, STORE, || gets(&many, RANDOM_IN_FLIGHT).map(rate));
    race.case(READ, FOLIO, || reads(&many, RANDOM_IN_FLIGHT).map(rate));
    race.run(run, report)
}

/// Reads at these places, by as many threads as are in flight.
fn read_places(device: &dyn Device, places: &[u64], in_flight: usize) -> Outcome {
    let read = |places: &[u64]| {
        let mut bytes = [0; RANDOM_BYTES as usize];
        places
            .iter()
            .try_for_each(|at| device.read_at(&mut bytes, *at))
    };
    std::thread::scope(|scope| {
        let shares = places.chunks(places.len().div_ceil(in_flight));
        let threads: Vec<_> = shares
            .map(|share| scope.spawn(move || read(share)))
            .collect();
        for thread in threads {
            thread.join().map_err(|_| "a reader panicked")??;
        }
        Ok(())
    })
}
