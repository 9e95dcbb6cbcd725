//! The processes of one server, and the states of those that are about to start.

use super::executed::{Executed, ExecutedFiles};
use super::nodes::NodeFolder;
use crate::shared::layout::SLOTS_MAX;
use folio::Process;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Signal, pidfd_send_signal};
use rustix::rand::{GetRandomFlags, getrandom};
use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant};

/// Maximum number of processes, and of states of processes about to start.
const PROCESSES_MAX: usize = 4096;
/// Maximum number of slots that all processes have taken: each has a thread.
const SLOTS_TOTAL_MAX: usize = 16384;
/// How long the state of the next program is kept, of a process that cannot be watched: execve(2)
/// ends the socket of one program before the next attaches.
const ATTACH_TIME: Duration = Duration::from_secs(30);

/// The state of a process, which execve(2) hands on.
pub(super) struct ProcessState {
    pub(super) process: RwLock<Process>,
    /// The file of the image that its program is; a child executes it too.
    executed: Mutex<Option<Arc<Executed>>>,
}

impl ProcessState {
    pub(super) fn new(process: Process, executed: Option<Arc<Executed>>) -> Arc<Self> {
        Arc::new(Self {
            process: RwLock::new(process),
            executed: Mutex::new(executed),
        })
    }

    /// Changes the file that the program is.
    pub(super) fn set_executed(&self, executed: Option<Executed>) {
        let mut place = self.executed.lock().unwrap_or_else(PoisonError::into_inner);
        let before = std::mem::replace(&mut *place, executed.map(Arc::new));
        drop(place);
        drop(before);
    }

    /// Returns the file that the program is.
    pub(super) fn executed(&self) -> Option<Arc<Executed>> {
        self.executed
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}

/// A state that two programs share during execve(2).
pub(super) type SharedProcess = Arc<ProcessState>;

/// The state of a process that is about to start.
struct Prepared {
    process: SharedProcess,
    /// The number of the process that prepared it.
    creator: u64,
    purpose: Purpose,
    /// The file of the image that the next program is.
    executed: Option<Executed>,
    /// When the creator ended.
    orphaned: Option<Instant>,
    /// The process that has executed the next program, if this is for one.
    same: Option<Arc<OwnedFd>>,
}

/// The purpose of a prepared state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Purpose {
    /// A child of the process.
    Child,
    /// The next program of the same process.
    Program,
}

#[derive(Default)]
struct State {
    prepared: HashMap<u64, Prepared>,
    /// Running processes by number; `None` if the process cannot be signaled.
    running: HashMap<u64, Option<OwnedFd>>,
    next_number: u64,
    /// Whether new processes are killed.
    is_closing: bool,
}

/// The processes of one server.
#[derive(Default)]
pub(super) struct Registry {
    state: Mutex<State>,
    /// Slots that all processes have taken.
    slots: AtomicUsize,
    ended: Condvar,
    pub(super) executed: Arc<ExecutedFiles>,
    pub(super) nodes: NodeFolder,
}

impl Registry {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps the state of a process that `creator` is about to start; returns its token, which is
    /// hard to guess. `None` if there are too many.
    pub(super) fn prepare(
        &self,
        creator: u64,
        process: SharedProcess,
        purpose: Purpose,
        executed: Option<Executed>,
    ) -> io::Result<Option<u64>> {
        let mut bytes = [0; 8];
        getrandom(&mut bytes, GetRandomFlags::empty())?;
        // The result of a call: not negative.
        let token = u64::from_ne_bytes(bytes) >> 1;
        let mut state = self.lock();
        let all = state.prepared.values();
        let own = all.filter(|found| found.creator == creator).count();
        if own >= SLOTS_MAX || state.prepared.len() >= PROCESSES_MAX {
            return Ok(None);
        }
        let prepared = Prepared {
            process,
            purpose,
            executed,
            creator,
            orphaned: None,
            same: None,
        };
        state.prepared.insert(token, prepared);
        Ok(Some(token))
    }

    /// Drops a state that `creator` prepared.
    pub(super) fn forget(&self, creator: u64, token: u64) {
        let mut state = self.lock();
        let is_own = |found: &Prepared| found.creator == creator;
        if state.prepared.get(&token).is_some_and(is_own) {
            let dropped = state.prepared.remove(&token);
            drop(state);
            drop(dropped);
        }
    }

    /// Registers a process that attaches; returns its state. `None` for an unknown token.
    pub(super) fn attach(
        self: &Arc<Self>,
        token: u64,
        pidfd: Option<OwnedFd>,
    ) -> Option<(Registration, SharedProcess)> {
        let mut state = self.lock();
        if state.running.len() >= PROCESSES_MAX {
            return None;
        }
        let prepared = state.prepared.remove(&token)?;
        state.next_number += 1;
        let number = state.next_number;
        if state.is_closing {
            kill(&pidfd);
        }
        state.running.insert(number, pidfd);
        let registration = Registration {
            registry: self.clone(),
            number,
            slots: AtomicUsize::new(0),
        };
        if prepared.purpose == Purpose::Program {
            prepared.process.set_executed(prepared.executed);
        }
        Some((registration, prepared.process))
    }

    /// Ends a process. What it prepared remains: see [`Registry::orphans`] and
    /// [`Registry::expire`].
    fn end(&self, number: u64) {
        let mut state = self.lock();
        let pidfd = state.running.remove(&number).flatten().map(Arc::new);
        let now = Instant::now();
        for prepared in state.prepared.values_mut() {
            if prepared.creator == number {
                prepared.orphaned = Some(now);
                if prepared.purpose == Purpose::Program {
                    prepared.same = pidfd.clone();
                }
            }
        }
        drop(state);
        self.ended.notify_all();
    }

    /// Returns the tokens of children whose creator has ended. A child keeps the creator's socket
    /// open until it has sent its message: one that has none on the door was never started.
    pub(super) fn orphans(&self) -> Vec<u64> {
        let is_orphan =
            |found: &Prepared| found.purpose == Purpose::Child && found.orphaned.is_some();
        let state = self.lock();
        let orphans = state.prepared.iter().filter(|(_, found)| is_orphan(found));
        orphans.map(|(token, _)| *token).collect()
    }

    /// Drops the states of these tokens.
    pub(super) fn drop_states(&self, tokens: &[u64]) {
        let mut state = self.lock();
        let take = |token| state.prepared.remove(token);
        let dropped: Vec<_> = tokens.iter().filter_map(take).collect();
        drop(state);
        drop(dropped);
    }

    /// Drops the states of next programs whose process has ended.
    pub(super) fn expire(&self) {
        let is_over = |found: &Prepared| match (&found.same, found.orphaned) {
            (Some(process), _) => has_ended(process),
            (None, Some(since)) => {
                found.purpose == Purpose::Program && since.elapsed() >= ATTACH_TIME
            }
            (None, None) => false,
        };
        let mut state = self.lock();
        let over: Vec<_> = state
            .prepared
            .extract_if(|_, found| is_over(found))
            .collect();
        drop(state);
        drop(over);
    }

    /// Drops the states of processes that never started.
    pub(super) fn clear(&self) {
        let prepared = std::mem::take(&mut self.lock().prepared);
        drop(prepared);
    }

    /// Kills every process, and those that attach from now on.
    pub(super) fn kill(&self) {
        let mut state = self.lock();
        state.is_closing = true;
        state.running.values().for_each(kill);
    }

    /// Waits until no process is left, for `timeout` at most; returns whether none is.
    pub(super) fn wait(&self, timeout: Duration) -> bool {
        let state = self.lock();
        let is_left = |state: &mut State| !state.running.is_empty();
        let waited = self.ended.wait_timeout_while(state, timeout, is_left);
        let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        state.running.is_empty()
    }
}

/// A running process, until this is dropped.
pub(super) struct Registration {
    registry: Arc<Registry>,
    number: u64,
    /// Slots that the process has taken.
    slots: AtomicUsize,
}

impl Registration {
    pub(super) fn registry(&self) -> &Registry {
        &self.registry
    }

    /// Counts a slot that the process takes; returns false if all processes have too many.
    pub(super) fn count_slot(&self) -> bool {
        self.slots.fetch_add(1, Ordering::Relaxed);
        self.registry.slots.fetch_add(1, Ordering::Relaxed) < SLOTS_TOTAL_MAX
    }

    /// Returns the number of the process.
    pub(super) fn number(&self) -> u64 {
        self.number
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        let slots = *self.slots.get_mut();
        self.registry.slots.fetch_sub(slots, Ordering::Relaxed);
        self.registry.end(self.number);
    }
}

/// Returns whether a process has ended.
fn has_ended(pidfd: &OwnedFd) -> bool {
    let mut ready = [PollFd::new(pidfd, PollFlags::IN)];
    poll(&mut ready, Some(&Timespec::default())).is_ok_and(|count| count > 0)
}

fn kill(pidfd: &Option<OwnedFd>) {
    if let Some(pidfd) = pidfd {
        // It may have ended.
        let _ = pidfd_send_signal(pidfd, Signal::KILL);
    }
}
