//! The readahead thread: reads planned pages in the background.

use super::page_owner::PageOwner;
use super::readahead::ReadaheadPlan;
use crate::base::sync::thread::{self, JoinHandle};
use crate::base::sync::{Condvar, Mutex};
use std::collections::VecDeque;
use std::sync::{Arc, Weak};

/// Most queued plans; beyond it the reader reads by itself.
const QUEUE_MAX: usize = 16;

/// Most pages of a plan that are read before the next plan has its turn.
const STEP: u64 = 1024;

/// The thread and its queue. The thread starts with the first plan and ends with the cache.
pub(super) struct ReadaheadThread {
    is_enabled: bool,
    shared: Arc<PlanQueue>,
    thread: Mutex<Option<JoinHandle<()>>>,
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

impl ReadaheadThread {
    /// Creates a queue. Without `is_enabled` there is no thread, and every plan is returned.
    pub(super) fn new(is_enabled: bool) -> Self {
        Self {
            is_enabled,
            shared: Arc::default(),
            thread: Mutex::new(None),
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
        let mut thread = self.thread.lock();
        if thread.is_none() {
            let shared = self.shared.clone();
            let builder = thread::Builder::new().name("folio-readahead".to_owned());
            *thread = builder.spawn(move || run(&shared)).ok();
        }
        thread.is_some()
    }
}

impl Drop for ReadaheadThread {
    fn drop(&mut self) {
        self.shared.state.lock().is_stopping = true;
        self.shared.wake.notify_all();
        if let Some(thread) = self.thread.lock().take()
            // The thread itself may drop the last mapping, and with it the cache; it must not join
            // itself.
            && thread.thread().id() != thread::current().id()
        {
            // A panic of the thread was reported when it happened.
            let _ = thread.join();
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
        owner.fill_ahead(&now);
        if let Some(later) = later {
            shared.state.lock().plans.push_back((mapping, later));
        }
    }
}
