//! Reads of an object in order, at random, and again from the part cache, beside the store's own
//! ranged GETs and a local file.

use super::remote_store::RemoteStore;
use super::requests::RequestMeter;
use crate::report::{Report, Row, Sample, Table, Unit, with_context};
use crate::run::{Case, Run, interleave};
use folio::Image;
use folio::block::{Device, OpenOptions, Qcow2Device, RawDevice};
use folio_object_store::{
    ObjectDevice, PartCache, PartCacheOptions, Store, StoreOptions, block_on, provide_memory,
};
use futures_util::stream;
use futures_util::{StreamExt, TryStreamExt};
use object_store::ObjectStoreExt;
use object_store::path::Path as ObjectPath;
use std::fmt::Display;
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

const ROUNDS: u32 = 5;
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
pub(super) fn measure(run: &Run<'_>, folder: &Path, report: &mut Report) -> Result<(), String> {
    let fixture = Fixture::new(folder)?;
    in_order(run, &fixture, report)?;
    again(run, &fixture, report)?;
    at_random(run, &fixture, report)
}

fn text(error: impl Display) -> String {
    error.to_string()
}

impl Fixture {
    fn new(folder: &Path) -> Result<Self, String> {
        let local = folder.join("disk.qcow2");
        let bytes = std::fs::read(&local).map_err(with_context(local.display()))?;
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
    fn open(&self, has_part_cache: bool) -> Result<Arc<ObjectDevice>, String> {
        let url = URL.parse().map_err(text)?;
        let store = Store::open(&url, &StoreOptions::default()).map_err(text)?;
        let cache = |url: &str, e_tag: &str, len_bytes| {
            let cache = PartCache::open(&self.part_cache, url, e_tag, len_bytes);
            cache.ok().filter(|_| has_part_cache)
        };
        let device = ObjectDevice::open(store, cache).map_err(text)?;
        Ok(Arc::new(device))
    }

    /// Gets ranges, some at a time.
    fn get(&self, ranges: Vec<Range<u64>>, in_flight: usize) -> Result<u64, String> {
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
fn request<T>(work: impl Future<Output = object_store::Result<T>>) -> Result<T, String> {
    let done = async { Ok(work.await) };
    block_on(done).map_err(text)?.map_err(text)
}

/// Reads a whole device; returns the MiB/s.
fn read_device(device: &dyn Device) -> Result<f64, String> {
    let mut piece = vec![0; PIECE_BYTES];
    let start = Instant::now();
    let mut at = 0;
    while at < device.len_bytes() {
        let count = (PIECE_BYTES as u64).min(device.len_bytes() - at) as usize;
        device.read_at(&mut piece[..count], at).map_err(text)?;
        at += count as u64;
    }
    Ok(rate(at, start))
}

/// Reads the large file in an image; returns the MiB/s.
fn read_file(image: Arc<dyn Device>) -> Result<f64, String> {
    let fs = Image::device(image).read_only().mount().map_err(text)?;
    let mut file = fs.open(LARGE).map_err(text)?;
    let mut piece = vec![0; PIECE_BYTES];
    let (start, mut total) = (Instant::now(), 0);
    loop {
        match file.read(&mut piece).map_err(text)? {
            0 => return Ok(rate(total, start)),
            count => total += count as u64,
        }
    }
}

fn rate(bytes: u64, start: Instant) -> f64 {
    bytes as f64 / f64::from(1 << 20) / start.elapsed().as_secs_f64().max(1e-9)
}

fn qcow2(file: Arc<ObjectDevice>) -> Result<Arc<dyn Device>, String> {
    Ok(Arc::new(Qcow2Device::open_on(file).map_err(text)?))
}

fn sample(value: f64, fixture: &Fixture, operations: usize) -> Sample {
    Sample {
        value,
        evidence: fixture.meter.take().evidence(operations),
        label: None,
    }
}

fn in_order(run: &Run<'_>, fixture: &Fixture, report: &mut Report) -> Result<(), String> {
    let gets = || {
        fixture.meter.take();
        let starts = (0..fixture.len_bytes).step_by(GET_BYTES as usize);
        let ranges = starts.map(|start| start..(start + GET_BYTES).min(fixture.len_bytes));
        let start = Instant::now();
        let bytes = fixture.get(ranges.collect(), IN_FLIGHT)?;
        Ok(sample(rate(bytes, start), fixture, 1))
    };
    let object = || {
        let device = fixture.open(false)?;
        fixture.meter.take();
        Ok(sample(read_device(&*device)?, fixture, 1))
    };
    let file = || {
        let image = qcow2(fixture.open(false)?)?;
        fixture.meter.take();
        Ok(sample(read_file(image)?, fixture, 1))
    };
    let mut cases = [
        Case::new(OBJECT, STORE, gets),
        Case::new(OBJECT, FOLIO, object),
        // The large file is nearly all of the object.
        Case::new(FILE, STORE, gets),
        Case::new(FILE, FOLIO, file),
    ];
    let (rows, _) = interleave(run, "object-store, reads in order", &mut cases, ROUNDS)?;
    let table = Table::new(IN_ORDER, Unit::MibPerSecond, Some(STORE), rows);
    report.tables.push(table);
    Ok(())
}

fn again(run: &Run<'_>, fixture: &Fixture, report: &mut Report) -> Result<(), String> {
    // The process before the restart.
    read_device(&*fixture.open(true)?)?;
    fixture.meter.take();
    let local = || RawDevice::open(&fixture.local, true).map_err(text);
    let open_local = || folio::block::open(&fixture.local, &OpenOptions::default()).map_err(text);
    let mut cases = [
        Case::new(OBJECT, LOCAL, || {
            Ok(sample(read_device(&local()?)?, fixture, 1))
        }),
        Case::new(OBJECT, FOLIO, || {
            let device = fixture.open(true)?;
            fixture.meter.take();
            Ok(sample(read_device(&*device)?, fixture, 1))
        }),
        Case::new(FILE, LOCAL, || {
            Ok(sample(read_file(open_local()?)?, fixture, 1))
        }),
        Case::new(FILE, FOLIO, || {
            let image = qcow2(fixture.open(true)?)?;
            fixture.meter.take();
            Ok(sample(read_file(image)?, fixture, 1))
        }),
    ];
    let (rows, _) = interleave(run, "object-store, reads again", &mut cases, ROUNDS)?;
    let table = Table::new(AGAIN, Unit::MibPerSecond, Some(LOCAL), rows);
    report.tables.push(table);
    Ok(())
}

fn at_random(run: &Run<'_>, fixture: &Fixture, report: &mut Report) -> Result<(), String> {
    let places = fixture.places(run.sized(40, 4));
    let many = fixture.places(run.sized(40 * RANDOM_IN_FLIGHT, 32));
    let gets = |places: &[u64], in_flight| {
        fixture.meter.take();
        let ranges = places.iter().map(|at| *at..*at + RANDOM_BYTES).collect();
        let start = Instant::now();
        fixture.get(ranges, in_flight)?;
        let each = start.elapsed().as_secs_f64() / places.len() as f64;
        Ok::<_, String>(sample(each, fixture, places.len()))
    };
    let reads = |places: &[u64], in_flight| {
        let device = fixture.open(false)?;
        fixture.meter.take();
        let start = Instant::now();
        read_places(&*device, places, in_flight)?;
        let each = start.elapsed().as_secs_f64() / places.len() as f64;
        Ok::<_, String>(sample(each, fixture, places.len()))
    };
    let mut one = [
        Case::new(READ, STORE, || gets(&places, 1)),
        Case::new(READ, FOLIO, || reads(&places, 1)),
    ];
    let mut all = [
        Case::new(READ, STORE, || gets(&many, RANDOM_IN_FLIGHT)).map_value(|each| 1.0 / each),
        Case::new(READ, FOLIO, || reads(&many, RANDOM_IN_FLIGHT)).map_value(|each| 1.0 / each),
    ];
    let mut add = |title, unit, rows: Vec<Row>| {
        report
            .tables
            .push(Table::new(title, unit, Some(STORE), rows));
    };
    let (rows, _) = interleave(run, "object-store, reads at random", &mut one, ROUNDS)?;
    add(AT_RANDOM, Unit::Seconds, rows);
    let (rows, _) = interleave(run, "object-store, 32 reads at random", &mut all, ROUNDS)?;
    add(AT_RANDOM_RATE, Unit::PerSecond, rows);
    Ok(())
}

/// Reads at these places, by as many threads as are in flight.
fn read_places(device: &dyn Device, places: &[u64], in_flight: usize) -> Result<(), String> {
    let share = places.len().div_ceil(in_flight);
    std::thread::scope(|scope| {
        let threads: Vec<_> = places
            .chunks(share)
            .map(|places| {
                scope.spawn(move || {
                    let mut bytes = [0; RANDOM_BYTES as usize];
                    places
                        .iter()
                        .try_for_each(|at| device.read_at(&mut bytes, *at))
                })
            })
            .collect();
        for thread in threads {
            let read = thread.join().map_err(|_| "a reader panicked".to_owned())?;
            read.map_err(text)?;
        }
        Ok(())
    })
}
