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

/// The unit of caching in bytes. Requests are for one part or for several neighbours.
pub(crate) const PART_BYTES: u64 = 64 << 10;
/// The longest object that is read: longer than the stores allow. The length is what a server says.
pub(crate) const OBJECT_BYTES_MAX: u64 = 1 << 48;
/// Parts of the largest request: 1 MiB.
pub(crate) const REQUEST_PARTS: u64 = 16;
/// Parts that stay in memory: 32 MiB. The page cache above keeps what is read again.
const READY_PARTS_MAX: usize = 512;

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
    Ready { bytes: Bytes, used: u64 },
    Pending(Arc<Fetch>),
}

#[derive(Default)]
struct State {
    slots: HashMap<u64, Slot>,
    ready: usize,
    /// Counts uses, for eviction of the least recently used parts.
    clock: u64,
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
                Some(Slot::Ready { bytes, used }) => {
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
        for (at, part) in fetch.parts.clone().enumerate() {
            let start = (at as u64 * PART_BYTES).min(bytes.len() as u64) as usize;
            let end = (start + PART_BYTES as usize).min(bytes.len());
            // A copy: a view would keep the whole answer in memory as long as one part is used.
            let bytes = Bytes::copy_from_slice(&bytes[start..end]);
            state.slots.insert(part, Slot::Ready { bytes, used });
            state.ready += 1;
        }
        if state.ready > READY_PARTS_MAX {
            state.evict();
        }
        drop(state);
        fetch.finish(Ok(()));
    }

    /// Ends a request without bytes: a later reader requests its parts again.
    pub(crate) fn fail(&self, fetch: &Fetch, error: &Error) {
        let mut state = self.state.lock();
        for part in fetch.parts.clone() {
            state.slots.remove(&part);
        }
        drop(state);
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
    /// Evicts the least recently used eighth.
    fn evict(&mut self) {
        let mut uses: Vec<_> = self
            .slots
            .iter()
            .filter_map(|(part, slot)| match slot {
                Slot::Ready { used, .. } => Some((*used, *part)),
                Slot::Pending(_) => None,
            })
            .collect();
        uses.sort_unstable();
        for (_, part) in uses.iter().take(READY_PARTS_MAX / 8) {
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
