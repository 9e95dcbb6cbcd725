//! Parts of an object in memory: fetched ones, and those that a request is fetching.
//!
//! ```text
//!   absent --request--> pending --finish--> ready --evict--> absent
//!                          `----fail-----------------------> absent
//! ```
//!
//! Lock order: the state before a fetch.

use bytes::Bytes;
use folio::{Errno, Error, Result};
use parking_lot::{Condvar, Mutex};
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

/// The unit of caching in bytes. Requests are for one part or for several adjacent parts.
pub(crate) const PART_BYTES: u64 = 64 << 10;
/// The longest object that is read: longer than the stores allow. The length is what a server says.
pub(crate) const OBJECT_BYTES_MAX: u64 = 1 << 48;
/// Parts of the largest request: 1 MiB.
pub(crate) const REQUEST_PARTS: u64 = 16;
/// Parts that stay in memory: 32 MiB. The page cache above keeps what is read again.
const READY_PARTS_MAX: usize = 512;
/// Arrivals of parts after which one that was not read to its end is evicted as one that was: its
/// reader does not come. A reader may be slower than other readers.
const UNREAD_ARRIVALS_MAX: u64 = 4 * READY_PARTS_MAX as u64;

/// A failure that several readers report.
#[derive(Clone)]
pub(crate) struct SharedFailure {
    errno: Errno,
    text: String,
}

impl SharedFailure {
    pub(crate) fn new(error: &Error) -> Self {
        Self {
            errno: error.errno(),
            text: error.to_string(),
        }
    }

    fn error(&self) -> Error {
        Error::new(self.errno, self.text.clone())
    }
}

/// A request that fetches neighboring parts.
pub(crate) struct Fetch {
    pub(crate) parts: Range<u64>,
    result: Mutex<Option<Result<(), SharedFailure>>>,
    done: Condvar,
}

impl Fetch {
    /// Waits for the end of the request.
    pub(crate) fn wait(&self) -> Result<()> {
        let mut result = self.result.lock();
        loop {
            match &*result {
                None => self.done.wait(&mut result),
                Some(Ok(())) => return Ok(()),
                Some(Err(failure)) => return Err(failure.error()),
            }
        }
    }

    fn finish(&self, result: Result<(), SharedFailure>) {
        *self.result.lock() = Some(result);
        self.done.notify_all();
    }
}

enum Slot {
    Ready {
        bytes: Bytes,
        used: u64,
        arrived: u64,
        /// A reader has read its end, so the parts ahead of readers are worth more.
        is_consumed: bool,
    },
    Pending(Arc<Fetch>),
}

#[derive(Default)]
struct State {
    slots: HashMap<u64, Slot>,
    ready: usize,
    /// Counts uses, for eviction of the least recently used parts.
    clock: u64,
    /// Counts parts that arrived.
    arrivals: u64,
}

/// A part that a reader asked for.
pub(crate) enum Found {
    /// Its bytes.
    Bytes(Bytes),
    /// Neither in memory nor requested.
    Absent,
}

/// The parts of one object.
#[derive(Default)]
pub(crate) struct Parts {
    state: Mutex<State>,
}

impl Parts {
    /// Whether a part is in memory, or requested.
    pub(crate) fn has(&self, part: u64) -> bool {
        self.state.lock().slots.contains_key(&part)
    }

    /// Returns a part; waits for it if a request is fetching it.
    ///
    /// # Errors
    ///
    /// Those of the request.
    pub(crate) fn get(&self, part: u64) -> Result<Found> {
        let fetch = {
            let mut state = self.state.lock();
            state.clock += 1;
            let now = state.clock;
            match state.slots.get_mut(&part) {
                None => return Ok(Found::Absent),
                Some(Slot::Ready { bytes, used, .. }) => {
                    *used = now;
                    return Ok(Found::Bytes(bytes.clone()));
                }
                Some(Slot::Pending(fetch)) => fetch.clone(),
            }
        };
        fetch.wait()?;
        let state = self.state.lock();
        Ok(match state.slots.get(&part) {
            Some(Slot::Ready { bytes, .. }) => Found::Bytes(bytes.clone()),
            // Evicted since, or requested again by another reader.
            _ => Found::Absent,
        })
    }

    /// Notes that a reader has read the end of a part.
    pub(crate) fn consume(&self, part: u64) {
        let mut state = self.state.lock();
        if let Some(Slot::Ready { is_consumed, .. }) = state.slots.get_mut(&part) {
            *is_consumed = true;
        }
    }

    /// Marks the absent ones of some parts as pending; returns one request for each run of
    /// neighbors, of at most [`REQUEST_PARTS`].
    pub(crate) fn claim(&self, wanted: impl Iterator<Item = u64>) -> Vec<Arc<Fetch>> {
        let mut state = self.state.lock();
        let mut runs: Vec<Range<u64>> = Vec::new();
        for part in wanted {
            if state.slots.contains_key(&part) {
                continue;
            }
            match runs.last_mut() {
                Some(run) if run.end == part && run.end - run.start < REQUEST_PARTS => {
                    run.end += 1;
                }
                _ => runs.push(part..part + 1),
            }
        }
        let fetches: Vec<_> = runs.into_iter().map(new_fetch).collect();
        for fetch in &fetches {
            for part in fetch.parts.clone() {
                state.slots.insert(part, Slot::Pending(fetch.clone()));
            }
        }
        fetches
    }

    /// Ends a request with the bytes of its parts.
    pub(crate) fn finish(&self, fetch: &Fetch, bytes: &Bytes) {
        let mut state = self.state.lock();
        state.clock += 1;
        let used = state.clock;
        state.arrivals += fetch.parts.end - fetch.parts.start;
        let arrived = state.arrivals;
        for (at, part) in fetch.parts.clone().enumerate() {
            let start = (at as u64 * PART_BYTES).min(bytes.len() as u64) as usize;
            let end = (start + PART_BYTES as usize).min(bytes.len());
            // A copy: a view would keep the whole answer in memory as long as one part is used.
            let bytes = Bytes::copy_from_slice(&bytes[start..end]);
            let ready = Slot::Ready {
                bytes,
                used,
                arrived,
                is_consumed: false,
            };
            state.slots.insert(part, ready);
            state.ready += 1;
        }
        if state.ready > READY_PARTS_MAX {
            state.evict();
        }
        drop(state);
        // Only now: a reader that wakes looks for the parts.
        fetch.finish(Ok(()));
    }

    /// Ends a request without bytes: a later reader requests its parts again.
    pub(crate) fn fail(&self, fetch: &Fetch, error: &Error) {
        let mut state = self.state.lock();
        for part in fetch.parts.clone() {
            state.slots.remove(&part);
        }
        drop(state);
        // Only now: a reader that tries again must find the parts absent.
        fetch.finish(Err(SharedFailure::new(error)));
    }
}

fn new_fetch(parts: Range<u64>) -> Arc<Fetch> {
    Arc::new(Fetch {
        parts,
        result: Mutex::new(None),
        done: Condvar::new(),
    })
}

impl State {
    /// Evicts an eighth: parts that were read to their end first, then the least recently used.
    fn evict(&mut self) {
        let mut uses: Vec<_> = self
            .slots
            .iter()
            .filter_map(|(part, slot)| match slot {
                Slot::Ready {
                    used,
                    arrived,
                    is_consumed,
                    ..
                } => {
                    let is_old = self.arrivals - arrived > UNREAD_ARRIVALS_MAX;
                    Some((!is_consumed && !is_old, *used, *part))
                }
                Slot::Pending(_) => None,
            })
            .collect();
        uses.sort_unstable();
        for (_, _, part) in uses.iter().take(READY_PARTS_MAX / 8) {
            self.slots.remove(part);
            self.ready -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes_of(found: Result<Found>) -> Bytes {
        match found.unwrap() {
            Found::Bytes(bytes) => bytes,
            Found::Absent => panic!("absent"),
        }
    }

    #[test]
    fn neighbors_are_one_request() {
        let parts = Parts::default();
        let fetches = parts.claim([0, 1, 2, 5].into_iter());
        let ranges: Vec<_> = fetches.iter().map(|fetch| fetch.parts.clone()).collect();
        assert_eq!(ranges, [0..3, 5..6]);
        assert!(parts.claim([1, 5].into_iter()).is_empty() && parts.has(2));
        let body = Bytes::from([[1; PART_BYTES as usize], [2; PART_BYTES as usize]].concat());
        let body = Bytes::from([&body[..], &[3; 10]].concat());
        parts.finish(&fetches[0], &body);
        assert_eq!(bytes_of(parts.get(1))[..], [2; PART_BYTES as usize]);
        assert_eq!(bytes_of(parts.get(2))[..], [3; 10]);
        assert_eq!(parts.claim(10..50).len(), 3);
    }

    #[test]
    fn failure_reaches_the_waiter_and_is_forgotten() {
        let parts = Parts::default();
        let fetches = parts.claim(std::iter::once(7));
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| parts.get(7).err().unwrap().errno());
            parts.fail(&fetches[0], &Error::from(Errno::STALE));
            // The waiter may come after the failure, and then finds the part absent.
            let _ = waiter.join();
        });
        assert!(matches!(parts.get(7), Ok(Found::Absent)));
        assert_eq!(fetches[0].wait().unwrap_err().errno(), Errno::STALE);
    }

    fn arrive(parts: &Parts, wanted: Range<u64>) {
        for fetch in parts.claim(wanted) {
            parts.finish(&fetch, &Bytes::from_static(&[0]));
        }
    }

    #[test]
    fn parts_ahead_of_readers_outlive_consumed_ones() {
        let parts = Parts::default();
        let max = READY_PARTS_MAX as u64;
        arrive(&parts, 0..max / 2);
        for part in max / 2..2 * max {
            arrive(&parts, part..part + 1);
            bytes_of(parts.get(part));
            parts.consume(part);
        }
        assert!((0..max / 2).all(|part| parts.has(part)) && !parts.has(max / 2));
        // Their reader does not come.
        for part in 2 * max..2 * max + UNREAD_ARRIVALS_MAX {
            arrive(&parts, part..part + 1);
            bytes_of(parts.get(part));
            parts.consume(part);
        }
        assert!(!(0..max / 2).any(|part| parts.has(part)));
    }

    #[test]
    fn least_recently_used_parts_are_evicted() {
        let parts = Parts::default();
        for part in 0..=READY_PARTS_MAX as u64 {
            for fetch in parts.claim(std::iter::once(part)) {
                parts.finish(&fetch, &Bytes::from_static(&[0]));
            }
            bytes_of(parts.get(0));
        }
        assert!(parts.has(0) && !parts.has(1) && parts.has(READY_PARTS_MAX as u64));
    }
}
