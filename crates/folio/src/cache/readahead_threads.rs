//! The readahead threads: read planned pages in the background.
//!
//! A plan is read in steps, by any thread: while one waits for the device, another copies, and the
//! reader waits for the first step only.

use super::page_owner::PageOwner;
use super::readahead::ReadaheadPlan;
use crate::base::owner_process::OwnerProcess;
use crate::base::sync::thread::{self, JoinHandle};
use crate::base::sync::{Condvar, Mutex};
use std::collections::VecDeque;
use std::mem::ManuallyDrop;
use std::sync::{Arc, Weak};

/// Most queued plans; beyond it the reader reads by itself.
const QUEUE_MAX: usize = 16;

/// Most pages of a plan that are read before the next plan has its turn: 1 MiB.
const STEP: u64 = 256;

/// Number of threads: enough for a reader that copies faster than one thread fills pages.
const THREADS: usize = 2;

/// The threads and their queue. They start with the first plan and end with the cache.
pub(super) struct ReadaheadThreads {
    is_enabled: bool,
    shared: Arc<PlanQueue>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    owner: OwnerProcess,
}

#[derive(Default)]
struct PlanQueue {
    state: Mutex<PlanQueueState>,
    wake: Condvar,
}

#[derive(Default)]
struct PlanQueueState {
    is_stopping: bool,
    plans: VecDeque<(Weak<dyn PageOwner>, ReadaheadPlan)>,
}

impl ReadaheadThreads {
    /// Creates a queue. Without `is_enabled` there are no threads, and every plan is returned.
    pub(super) fn new(is_enabled: bool) -> Self {
        Self {
            is_enabled,
            shared: Arc::default(),
            threads: Mutex::default(),
            owner: OwnerProcess::current(),
        }
    }

    /// Queues a plan; returns it if there is no thread or the queue is full.
    pub(super) fn submit(
        &self,
        mapping: Weak<dyn PageOwner>,
        plan: ReadaheadPlan,
    ) -> Option<ReadaheadPlan> {
        if !self.is_enabled || !self.start() {
            return Some(plan);
        }
        let mut state = self.shared.state.lock();
        if state.plans.len() >= QUEUE_MAX {
            return Some(plan);
        }
        state.plans.push_back((mapping, plan));
        drop(state);
        self.shared.wake.notify_one();
        None
    }

    fn start(&self) -> bool {
        let mut threads = self.threads.lock();
        if threads.is_empty() {
            let spawned = (0..THREADS).map_while(|_| {
                let shared = self.shared.clone();
                let builder = thread::Builder::new().name("folio-readahead".to_owned());
                builder.spawn(move || run(&shared)).ok()
            });
            threads.extend(spawned);
        }
        !threads.is_empty()
    }
}

impl Drop for ReadaheadThreads {
    fn drop(&mut self) {
        let threads = std::mem::take(self.threads.get_mut());
        if !self.owner.is_current() {
            // A child of fork(2): the threads are the parent's.
            let _parents = ManuallyDrop::new(threads);
            return;
        }
        self.shared.state.lock().is_stopping = true;
        self.shared.wake.notify_all();
        for thread in threads {
            // A thread may drop the last mapping, and with it the cache; it must not join itself.
            if thread.thread().id() != thread::current().id() {
                // A panic of the thread was reported when it happened.
                let _ = thread.join();
            }
        }
    }
}

fn run(shared: &PlanQueue) {
    loop {
        let (mapping, plan) = {
            let mut state = shared.state.lock();
            loop {
                if state.is_stopping {
                    return;
                }
                match state.plans.pop_front() {
                    Some(next) => break next,
                    None => shared.wake.wait(&mut state),
                }
            }
        };
        let Some(owner) = mapping.upgrade() else {
            continue;
        };
        let (now, later) = plan.split(STEP);
        if let Some(later) = later {
            // Before this step is read: the other thread takes the next one meanwhile.
            shared.state.lock().plans.push_back((mapping, later));
            shared.wake.notify_one();
        }
        owner.fill_ahead(&now);
    }
}
