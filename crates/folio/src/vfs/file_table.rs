//! The file descriptor table of one process. Linux: fs/file.c.

use super::file::OpenFile;
use crate::base::rcu::{self, Grace, Pin, RcuCell, Ref, Replaced};
use crate::base::sync::{Mutex, MutexGuard};
use crate::base::{Errno, Result};
use smallvec::SmallVec;
use std::sync::{Arc, OnceLock};

/// Maximum number of open descriptors of one process (`RLIMIT_NOFILE`).
const DESCRIPTORS_MAX: usize = 1 << 20;
/// Number of descriptors in the first chunk; each further chunk doubles.
const FIRST_CHUNK: usize = 64;
/// Number of chunks, enough for `DESCRIPTORS_MAX`.
const CHUNKS: usize = 15;
/// Maximum number of closed files that wait for one grace period.
const CLOSED_MAX: usize = 64;

type Closed = SmallVec<[Replaced<OpenFile>; CLOSED_MAX]>;

/// The open files of one process. Readers take no lock; open and close take one.
///
/// A closed file may still have readers, so it is dropped after a grace period, several at a time.
/// The delay matters only for a file without a name, and for unmounting. So a waiting closed file
/// has a name, and after a name is removed and before an unmount all closed files are dropped
/// ([`FileTable::take_closed`]).
pub(crate) struct FileTable {
    /// Allocated when needed, and kept.
    chunks: [OnceLock<Box<[RcuCell<OpenFile>]>>; CHUNKS],
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// One bit per descriptor, set if it is in use.
    taken: Vec<u64>,
    /// No word before this one has a free bit.
    first_word: usize,
    closed: Closed,
    /// Cleared files whose allocations are reused: a warm open allocates nothing.
    spare: SmallVec<[Arc<OpenFile>; CLOSED_MAX]>,
}

impl State {
    /// Takes the lowest free descriptor.
    fn take_lowest(&mut self) -> Option<usize> {
        while self.taken.get(self.first_word) == Some(&u64::MAX) {
            self.first_word += 1;
        }
        if self.first_word * 64 >= DESCRIPTORS_MAX {
            return None;
        }
        if self.first_word == self.taken.len() {
            self.taken.push(0);
        }
        let word = &mut self.taken[self.first_word];
        let bit = word.trailing_ones() as usize;
        *word |= 1 << bit;
        Some(self.first_word * 64 + bit)
    }

    fn release(&mut self, at: usize) {
        self.taken[at / 64] &= !(1 << (at % 64));
        self.first_word = self.first_word.min(at / 64);
    }
}

/// Returns the descriptors whose bits are set.
fn descriptors(taken: &[u64]) -> impl Iterator<Item = usize> {
    let words = taken.iter().enumerate();
    words.flat_map(|(index, word)| {
        let bits = (0..64).filter(move |bit| word & 1 << bit != 0);
        bits.map(move |bit| index * 64 + bit)
    })
}

/// Returns the chunk that holds a descriptor, and the index in it.
#[inline]
fn chunk_and_index(at: usize) -> (usize, usize) {
    let shifted = at + FIRST_CHUNK;
    let chunk = (shifted / FIRST_CHUNK).ilog2() as usize;
    (chunk, shifted - (FIRST_CHUNK << chunk))
}

impl FileTable {
    pub(crate) fn new() -> Self {
        Self {
            chunks: [const { OnceLock::new() }; CHUNKS],
            state: Mutex::default(),
        }
    }

    #[inline]
    fn slot(&self, at: usize) -> Option<&RcuCell<OpenFile>> {
        let (chunk, within) = chunk_and_index(at);
        self.chunks.get(chunk)?.get()?.get(within)
    }

    /// Returns the open file of a descriptor; `None` if the descriptor is not open.
    #[inline]
    pub(crate) fn get<'p>(&self, at: usize, pin: &'p Pin) -> Option<Ref<'p, OpenFile>> {
        self.slot(at)?.borrow(pin)
    }

    /// Installs an open file under the lowest free descriptor.
    pub(crate) fn install(&self, file: OpenFile) -> Result<usize> {
        let mut state = self.state.lock();
        let file = match state.spare.pop() {
            Some(spare) => spare.reuse(file),
            None => Arc::new(file),
        };
        self.install_locked(state, file)
    }

    /// Installs a file that has a descriptor under a second one, the lowest free: dup(2).
    pub(crate) fn install_again(&self, file: Arc<OpenFile>) -> Result<usize> {
        self.install_locked(self.state.lock(), file)
    }

    /// Installs a file under a chosen descriptor, and closes the file that has it: dup2(2).
    pub(crate) fn install_at(&self, at: usize, file: Arc<OpenFile>) -> Result<()> {
        if at >= DESCRIPTORS_MAX {
            return Err(Errno::BADF.into());
        }
        let mut state = self.state.lock();
        if state.taken.len() <= at / 64 {
            state.taken.resize(at / 64 + 1, 0);
        }
        state.taken[at / 64] |= 1 << (at % 64);
        if let Some(old) = self.slot_for(at).replace(Some(file)) {
            self.retire(state, old);
        }
        Ok(())
    }

    /// Returns every open file and its descriptor.
    pub(crate) fn open_files(&self) -> Vec<(usize, Arc<OpenFile>)> {
        let state = self.state.lock();
        let pin = rcu::pin();
        descriptors(&state.taken)
            .filter_map(|at| Some((at, self.slot(at)?.get(&pin)?)))
            .collect()
    }

    fn install_locked(
        &self,
        mut state: MutexGuard<'_, State>,
        file: Arc<OpenFile>,
    ) -> Result<usize> {
        let Some(at) = state.take_lowest() else {
            drop(state);
            return Err(Errno::MFILE.into());
        };
        let old = self.slot_for(at).replace(Some(file));
        debug_assert!(old.is_none(), "a free descriptor has no file");
        Ok(at)
    }

    /// Returns the slot of a descriptor, after allocating it.
    fn slot_for(&self, at: usize) -> &RcuCell<OpenFile> {
        let (chunk, within) = chunk_and_index(at);
        let chunk = self.chunks[chunk].get_or_init(|| {
            (0..FIRST_CHUNK << chunk)
                .map(|_| RcuCell::empty())
                .collect()
        });
        &chunk[within]
    }

    /// Closes a descriptor; EBADF if it is not open.
    pub(crate) fn close(&self, at: usize) -> Result<()> {
        let mut state = self.state.lock();
        let Some(file) = self.slot(at).and_then(|slot| slot.replace(None)) else {
            drop(state);
            return Err(Errno::BADF.into());
        };
        state.release(at);
        self.retire(state, file);
        Ok(())
    }

    /// Drops a file that has left its descriptor, now or with the next ones.
    fn retire(&self, mut state: MutexGuard<'_, State>, file: Replaced<OpenFile>) {
        // Read under the lock: a thread that removes the name later finds the file in the list.
        let must_close_now = file.value().must_close_now();
        let written = file.value().written_inode().cloned();
        state.closed.push(file);
        let is_due = must_close_now || state.closed.len() >= CLOSED_MAX;
        let closed = if is_due {
            std::mem::take(&mut state.closed)
        } else {
            Closed::new()
        };
        drop(state);
        if let Some(file) = written.as_ref().and_then(|inode| inode.file_operations()) {
            file.close_written();
        }
        if is_due {
            self.recycle(closed);
        }
    }

    /// Drops closed files after a grace period, and keeps their allocations. Dropping the last
    /// reference to an inode may do I/O, so the caller holds no lock and no pin.
    fn recycle(&self, closed: Closed) {
        let over = Grace::start().wait();
        let mut spare: SmallVec<[_; CLOSED_MAX]> = SmallVec::new();
        for file in closed {
            let mut file = file.after(over);
            // Unless another descriptor or a call in progress uses it, too.
            if let Some(only) = Arc::get_mut(&mut file) {
                only.clear();
                spare.push(file);
            }
        }
        let mut state = self.state.lock();
        let room = CLOSED_MAX - state.spare.len();
        state.spare.extend(spare.drain(..).take(room));
    }

    /// Returns the waiting closed files. The caller drops them after a grace period, without locks.
    pub(crate) fn take_closed(&self) -> Closed {
        std::mem::take(&mut self.state.lock().closed)
    }

    /// Closes all files of a process that has ended.
    pub(crate) fn close_all(&self) {
        let mut state = self.state.lock();
        let mut closed = std::mem::take(&mut state.closed);
        let taken = std::mem::take(&mut state.taken);
        closed.extend(descriptors(&taken).filter_map(|at| self.slot(at)?.replace(None)));
        state.first_word = 0;
        drop(state);
        for file in &closed {
            let written = file.value().written_inode();
            if let Some(file) = written.and_then(|inode| inode.file_operations()) {
                file.close_written();
            }
        }
        if !closed.is_empty() {
            self.recycle(closed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptors_map_to_distinct_slots() {
        let mut next = (0, 0);
        for at in 0..10_000 {
            let found = chunk_and_index(at);
            assert!(found == next || found == (next.0 + 1, 0), "{at}");
            next = (found.0, found.1 + 1);
        }
        let (chunk, within) = chunk_and_index(DESCRIPTORS_MAX - 1);
        assert!(chunk < CHUNKS && within < FIRST_CHUNK << chunk);
        assert!(chunk_and_index(u32::MAX as usize).0 >= CHUNKS);
    }

    #[test]
    fn lowest_free_descriptor_is_taken_first() {
        let mut state = State::default();
        assert!((0..200).all(|at| state.take_lowest() == Some(at)));
        for at in [130, 7, 63] {
            state.release(at);
        }
        let taken: Vec<_> = (0..4).filter_map(|_| state.take_lowest()).collect();
        assert_eq!(taken, [7, 63, 130, 200]);
    }
}
