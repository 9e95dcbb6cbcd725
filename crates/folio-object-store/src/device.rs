//! An object as a read-only disk: ranged reads of aligned parts, several in flight, pinned to the
//! version that was opened.

use crate::part_cache::PartCache;
use crate::parts::{Fetch, Found, OBJECT_BYTES_MAX, PART_BYTES, Parts};
use crate::read_ahead::ReadAhead;
use crate::runtime;
use crate::store::Store;
use bytes::Bytes;
use folio::block::Device;
use folio::{Errno, Error, Result};
use object_store::{GetOptions, GetRange, ObjectMeta, ObjectStoreExt};
use parking_lot::Mutex;
use std::io::{IoSlice, IoSliceMut};
use std::ops::Range;
use std::sync::Arc;
use tokio::sync::Semaphore;

/// The first request: the header and the first tables of an image, or its partition table.
const FIRST_BYTES: u64 = 256 << 10;
/// Requests in flight for one object that a reader waits for.
const IN_FLIGHT_MAX: usize = 32;
/// Requests in flight for one object ahead of its readers.
const AHEAD_IN_FLIGHT_MAX: usize = 8;
/// Parts that one call requests at a time: 8 MiB.
const STEP_PARTS: u64 = 128;
/// Parts that one call reads from the disk: their bytes stay in the processor's cache until they
/// are verified.
const DISK_PARTS: u64 = 4;
/// Attempts to get a complete body from a store that truncates it.
const BODY_ATTEMPTS: usize = 3;

/// The version of an object that a device reads.
#[derive(Debug, Clone)]
pub(crate) struct Version {
    pub(crate) len_bytes: u64,
    pub(crate) e_tag: Option<String>,
    modified_seconds: i64,
}

impl Version {
    fn new(meta: &ObjectMeta) -> Self {
        Self {
            len_bytes: meta.size,
            e_tag: meta.e_tag.clone(),
            modified_seconds: meta.last_modified.timestamp(),
        }
    }

    /// Fails if the object is longer than what a store allows: the server says its length.
    fn check_len(&self) -> Result<()> {
        if self.len_bytes <= OBJECT_BYTES_MAX {
            return Ok(());
        }
        let why = format!(
            "the server says that the object has {} bytes, more than the limit of {} TiB: check the \
             server",
            self.len_bytes,
            OBJECT_BYTES_MAX >> 40
        );
        Err(Error::new(Errno::FBIG, why))
    }

    /// Returns the tag for `If-Match`. A weak one never matches there.
    pub(crate) fn match_tag(&self) -> Option<String> {
        self.e_tag
            .clone()
            .filter(|tag| !tag.starts_with("W/") && !tag.is_empty())
    }

    /// Whether an answer is of this version: a server may ignore `If-Match`.
    fn is_of(&self, meta: &ObjectMeta) -> bool {
        let other = Self::new(meta);
        let is_same = match (&self.e_tag, &other.e_tag) {
            (Some(one), Some(other)) => one == other,
            _ => self.modified_seconds == other.modified_seconds,
        };
        is_same && self.len_bytes == other.len_bytes
    }
}

/// An object as a read-only disk.
pub struct ObjectDevice {
    object: Arc<Object>,
    read_ahead: Mutex<ReadAhead>,
}

/// What requests share with their readers.
struct Object {
    store: Store,
    version: Version,
    parts: Parts,
    cache: Option<PartCache>,
    in_flight: Semaphore,
    ahead_in_flight: Semaphore,
}

impl ObjectDevice {
    /// Opens the object of a store's URL with one request. `cache` opens the part cache of this
    /// version of the object.
    ///
    /// # Errors
    ///
    /// Those of [`Store::run`]; EINVAL for a URL without a key, or an empty object; EFBIG for a
    /// length that no store has.
    pub fn open(
        store: Store,
        cache: impl FnOnce(&str, &str, u64) -> Option<PartCache>,
    ) -> Result<Self> {
        let invalid = |why: &'static str| Error::new(Errno::INVAL, why).at(store.url().to_string());
        if store.url().key().is_empty() || store.url().key().ends_with('/') {
            return Err(invalid(
                "the URL names no object: expected the key of an image",
            ));
        }
        let operation = format!("open (read bytes 0-{})", FIRST_BYTES - 1);
        let opened = store.run(&operation, async {
            // One request for the length, the version and what an image format reads first.
            let options = GetOptions {
                range: Some(GetRange::Bounded(0..FIRST_BYTES)),
                ..GetOptions::default()
            };
            let found = store.objects().get_opts(store.path(), options).await?;
            let meta = found.meta.clone();
            Ok((meta, found.bytes().await?))
        });
        let (meta, first) = match opened {
            Ok(opened) => opened,
            // A range of an empty object is invalid for most stores.
            Err(error) if error.errno() == Errno::IO => {
                match store.run("stat", store.objects().head(store.path())) {
                    Ok(meta) if meta.size == 0 => return Err(invalid("the object is empty")),
                    _ => return Err(error),
                }
            }
            Err(error) => return Err(error),
        };
        let version = Version::new(&meta);
        version
            .check_len()
            .map_err(|error| error.at(store.url().to_string()))?;
        if first.len() as u64 != version.len_bytes.min(FIRST_BYTES) {
            return Err(
                truncated(&(0..FIRST_BYTES.min(version.len_bytes)), first.len())
                    .at(store.url().to_string()),
            );
        }
        tracing::info!(
            url = %store.url(), bytes = version.len_bytes, e_tag = version.e_tag, "object opened"
        );
        let name = store.url().to_string();
        // A weak tag does not identify bytes: such an object is not kept on the disk.
        let cache = version
            .match_tag()
            .and_then(|tag| cache(&name, &tag, version.len_bytes));
        let object = Arc::new(Object {
            store,
            version,
            parts: Parts::default(),
            cache,
            in_flight: Semaphore::new(IN_FLIGHT_MAX),
            ahead_in_flight: Semaphore::new(AHEAD_IN_FLIGHT_MAX),
        });
        let parts = 0..(first.len() as u64).div_ceil(PART_BYTES);
        for fetch in object.parts.claim(parts) {
            object.arrived(&fetch, &first);
        }
        Ok(Self {
            object,
            read_ahead: Mutex::default(),
        })
    }

    /// Returns the ETag of the version that is read, if the store has one.
    pub fn e_tag(&self) -> Option<&str> {
        self.object.version.e_tag.as_deref()
    }

    /// Returns the connection.
    pub fn store(&self) -> &Store {
        &self.object.store
    }

    /// Reads some parts, of at most one step, into the buffers.
    fn read_step(&self, target: &mut Target<'_, '_>, range: &Range<u64>) -> Result<()> {
        let object = &self.object;
        let wanted = range.start / PART_BYTES..range.end.div_ceil(PART_BYTES);
        let is_miss = wanted.clone().any(|part| !object.has(part));
        let ahead = self.read_ahead.lock().note(&wanted, is_miss);
        let end = object.version.len_bytes.div_ceil(PART_BYTES);
        let ahead = ahead.start.min(end)..ahead.end.min(end);
        // Parts on the disk are read from there; only what is far away is worth an early request.
        let fetches = object.request(&wanted, ahead)?;
        let mut at = range.start;
        while at < range.end {
            let part = at / PART_BYTES;
            let len = object.read_disk(at..range.end, target);
            if len > 0 {
                target.advance(len as usize);
                at += len;
                continue;
            }
            let start = part * PART_BYTES;
            let part_end = start + object.len_of(part);
            let end = range.end.min(part_end);
            let bytes = object.part(part, &fetches)?;
            target.put(&bytes[(at - start) as usize..(end - start) as usize]);
            if end == part_end {
                object.parts.consume(part);
            }
            at = end;
        }
        Ok(())
    }
}

impl Object {
    /// Whether a part is in memory, requested, or likely on the disk.
    fn has(&self, part: u64) -> bool {
        self.parts.has(part) || self.is_on_disk(part)
    }

    fn is_on_disk(&self, part: u64) -> bool {
        self.cache.as_ref().is_some_and(|cache| cache.has(part))
    }

    /// Starts requests for those parts, wanted now or read ahead, that are neither in memory nor on
    /// the disk.
    fn request(
        self: &Arc<Self>,
        wanted: &Range<u64>,
        ahead: Range<u64>,
    ) -> Result<Vec<Arc<Fetch>>> {
        let parts = wanted.clone().chain(ahead);
        let fetches = self
            .parts
            .claim(parts.filter(|part| !self.is_on_disk(*part)));
        for fetch in &fetches {
            let started = runtime::handle();
            match started {
                Ok(handle) => {
                    let guard = FetchGuard {
                        object: self.clone(),
                        fetch: Some(fetch.clone()),
                        is_ahead: !wanted.contains(&fetch.parts.start),
                    };
                    handle.spawn(guard.run());
                }
                Err(error) => {
                    self.parts.fail(fetch, &error);
                    return Err(error);
                }
            }
        }
        Ok(fetches)
    }

    fn len_of(&self, part: u64) -> u64 {
        (self.version.len_bytes - part * PART_BYTES).min(PART_BYTES)
    }

    /// Reads whole parts at the start of `range` that are on the disk, and not in memory, into the
    /// buffers. Returns the bytes read: 0 if there is no such part.
    fn read_disk(&self, range: Range<u64>, target: &mut Target<'_, '_>) -> u64 {
        let Some(cache) = self.cache.as_ref() else {
            return 0;
        };
        let first = range.start / PART_BYTES;
        let mut end = first * PART_BYTES;
        // The checksum is that of a whole part.
        if end < range.start {
            return 0;
        }
        for part in first..first + DISK_PARTS {
            let is_last = end >= range.end || range.end - end < self.len_of(part);
            if is_last || !cache.has(part) || self.parts.has(part) {
                break;
            }
            end += self.len_of(part);
        }
        let len = end - range.start;
        if len == 0 || !cache.read_into(first, &mut target.next(len as usize)) {
            return 0;
        }
        len
    }

    /// Returns a part, from memory, from the disk, or from the store. `fetches` are requests of the
    /// caller, whose failures are its own.
    fn part(self: &Arc<Self>, part: u64, fetches: &[Arc<Fetch>]) -> Result<Bytes> {
        // Else a request of this read that failed would be made again below.
        if let Some(fetch) = fetches.iter().find(|fetch| fetch.parts.contains(&part)) {
            fetch.wait()?;
        }
        loop {
            if let Found::Bytes(bytes) = self.parts.get(part)? {
                return Ok(bytes);
            }
            // The part may have left the memory again.
            if let Some(bytes) = self.cache.as_ref().and_then(|cache| cache.read(part)) {
                return Ok(bytes);
            }
            for fetch in self.request(&(part..part + 1), 0..0)? {
                fetch.wait()?;
            }
        }
    }

    fn range_of(&self, parts: &Range<u64>) -> Range<u64> {
        let end = (parts.end * PART_BYTES).min(self.version.len_bytes);
        parts.start * PART_BYTES..end
    }

    /// Stores the bytes of a request.
    fn arrived(&self, fetch: &Fetch, bytes: &Bytes) {
        let len = (self.range_of(&fetch.parts).end - fetch.parts.start * PART_BYTES) as usize;
        let bytes = bytes.slice(..len.min(bytes.len()));
        // First: a part that leaves the memory at once is then on the disk.
        if let Some(cache) = &self.cache {
            cache.write(fetch.parts.start, &bytes);
        }
        self.parts.finish(fetch, &bytes);
    }

    /// Gets a range of the pinned version.
    async fn get(&self, range: Range<u64>) -> Result<Bytes> {
        let operation = format!("read bytes {}-{}", range.start, range.end - 1);
        let want = (range.end - range.start) as usize;
        let at_url = |error: Error| error.at(self.store.url().to_string());
        for attempt in 1.. {
            let options = GetOptions {
                range: Some(GetRange::Bounded(range.clone())),
                // A store that ignores the condition is caught below.
                if_match: self.version.match_tag(),
                ..GetOptions::default()
            };
            let got = self.store.attempt(&operation, async {
                let found = self
                    .store
                    .objects()
                    .get_opts(self.store.path(), options)
                    .await?;
                let meta = found.meta.clone();
                Ok((meta, found.bytes().await?))
            });
            let (meta, bytes) = got.await.map_err(|error| match error.errno() {
                Errno::NOENT => at_url(replaced("deleted")),
                _ => error,
            })?;
            if !self.version.is_of(&meta) {
                return Err(at_url(replaced("replaced")));
            }
            if bytes.len() == want {
                return Ok(bytes);
            }
            if attempt == BODY_ATTEMPTS {
                return Err(at_url(truncated(&range, bytes.len())));
            }
            tracing::warn!(url = %self.store.url(), ?range, got = bytes.len(), "truncated body");
        }
        Err(at_url(truncated(&range, 0)))
    }
}

fn replaced(how: &str) -> Error {
    let why = format!("the object was {how} since it was opened: open it again");
    Error::new(Errno::STALE, why)
}

fn truncated(range: &Range<u64>, got: usize) -> Error {
    let why = format!(
        "read bytes {}-{}: the store sent {got} bytes: check the store and the proxy",
        range.start,
        range.end.saturating_sub(1)
    );
    Error::new(Errno::IO, why)
}

/// Ends a request even if its task does not run to its end.
struct FetchGuard {
    object: Arc<Object>,
    fetch: Option<Arc<Fetch>>,
    is_ahead: bool,
}

impl FetchGuard {
    async fn run(mut self) {
        let Some(fetch) = self.fetch.clone() else {
            return;
        };
        let in_flight = if self.is_ahead {
            &self.object.ahead_in_flight
        } else {
            &self.object.in_flight
        };
        let result = match in_flight.acquire().await {
            Ok(_permit) => self.object.get(self.object.range_of(&fetch.parts)).await,
            Err(_) => Err(Error::from(Errno::IO)),
        };
        // From here on there is a result.
        self.fetch = None;
        match result {
            Ok(bytes) => self.object.arrived(&fetch, &bytes),
            Err(error) => self.object.parts.fail(&fetch, &error),
        }
    }
}

impl Drop for FetchGuard {
    fn drop(&mut self) {
        // Without a result its readers would wait for ever.
        if let Some(fetch) = &self.fetch {
            let error = Error::new(Errno::IO, "the request was canceled");
            self.object.parts.fail(fetch, &error);
        }
    }
}

/// The buffers of a read, filled from the start on.
struct Target<'a, 'b> {
    bufs: &'a mut [IoSliceMut<'b>],
    index: usize,
    filled: usize,
}

impl<'b> Target<'_, 'b> {
    /// Returns the buffers of the next bytes.
    fn next<'s>(&'s mut self, mut len: usize) -> Vec<IoSliceMut<'s>>
    where
        'b: 's,
    {
        let mut skipped = self.filled;
        let mut bufs = Vec::new();
        for buf in &mut self.bufs[self.index..] {
            let count = len.min(buf.len() - skipped);
            bufs.push(IoSliceMut::new(&mut buf[skipped..skipped + count]));
            len -= count;
            skipped = 0;
            if len == 0 {
                break;
            }
        }
        bufs
    }

    /// Notes that the next bytes are filled.
    fn advance(&mut self, mut len: usize) {
        while let Some(buf) = self.bufs.get(self.index).filter(|_| len > 0) {
            let count = len.min(buf.len() - self.filled);
            len -= count;
            self.filled += count;
            if self.filled == buf.len() {
                self.index += 1;
                self.filled = 0;
            }
        }
    }

    fn put(&mut self, mut bytes: &[u8]) {
        let len = bytes.len();
        for mut buf in self.next(len) {
            let (now, later) = bytes.split_at(buf.len());
            buf.copy_from_slice(now);
            bytes = later;
        }
        self.advance(len);
    }
}

impl Device for ObjectDevice {
    fn len_bytes(&self) -> u64 {
        self.object.version.len_bytes
    }

    fn is_read_only(&self) -> bool {
        true
    }

    fn version(&self) -> Option<String> {
        self.e_tag().map(ToOwned::to_owned)
    }

    fn read_vectored_at(&self, bufs: &mut [IoSliceMut<'_>], offset: u64) -> Result<()> {
        let len: u64 = bufs.iter().map(|buf| buf.len() as u64).sum();
        let end = offset
            .checked_add(len)
            .filter(|end| *end <= self.len_bytes());
        let Some(end) = end else {
            let why = format!(
                "read of {len} bytes at {offset} is outside of the object, which has {} bytes",
                self.len_bytes()
            );
            return Err(Error::new(Errno::IO, why).at(self.store().url().to_string()));
        };
        let mut target = Target {
            bufs,
            index: 0,
            filled: 0,
        };
        let mut at = offset;
        while at < end {
            let step_end = (at / PART_BYTES + STEP_PARTS) * PART_BYTES;
            let range = at..step_end.min(end);
            self.read_step(&mut target, &range)?;
            at = range.end;
        }
        Ok(())
    }

    fn write_vectored_at(&self, _bufs: &[IoSlice<'_>], _offset: u64) -> Result<()> {
        Err(self.read_only_error())
    }

    fn flush(&self) -> Result<()> {
        Ok(())
    }

    fn discard(&self, _offset: u64, _len_bytes: u64) -> Result<()> {
        Err(self.read_only_error())
    }

    fn write_zeroes(&self, _offset: u64, _len_bytes: u64) -> Result<()> {
        Err(self.read_only_error())
    }
}

impl ObjectDevice {
    fn read_only_error(&self) -> Error {
        Error::from(Errno::ROFS).at(self.store().url().to_string())
    }
}
