//! The thread that brings pages in ahead of readers.

use super::mapping::Inner;
use super::readahead::Plan;
use crate::base::sync::thread::{self, JoinHandle};
use crate::base::sync::{Condvar, Mutex};
use std::collections::VecDeque;
use std::sync::{Arc, Weak};

/// Plans that wait at most; a reader that is so far ahead of the thread reads by itself.
const QUEUE_MAX: usize = 16;

/// Pages of a plan that are brought in before others have their turn.
const STEP: u64 = 1024;

/// Started with the first plan, ends with the cache.
pub(super) struct ReadaheadThread {
    is_wanted: bool,
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    wake: Condvar,
}

#[derive(Default)]
struct State {
    is_stopping: bool,
    plans: VecDeque<(Weak<Inner>, Plan)>,
}

impl ReadaheadThread {
    /// With `is_wanted` false there is no thread, and every plan comes back.
    pub(super) fn new(is_wanted: bool) -> Self {
        Self {
            is_wanted,
            shared: Arc::default(),
            thread: Mutex::new(None),
        }
    }

    /// Hands a plan to the thread; it comes back if the thread cannot take it.
    pub(super) fn submit(&self, mapping: Weak<Inner>, plan: Plan) -> Option<Plan> {
        if !self.is_wanted || !self.start() {
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
            // The thread itself may drop the last mapping, and with it the cache; it cannot wait
            // for itself.
            && thread.thread().id() != thread::current().id()
        {
            // A panic there was reported when it happened.
            let _ = thread.join();
        }
    }
}

fn run(shared: &Shared) {
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
        let Some(filled) = mapping.upgrade() else {
            continue;
        };
        let (now, later) = plan.split(STEP);
        filled.fill_ahead(&now);
        if let Some(later) = later {
            shared.state.lock().plans.push_back((mapping, later));
        }
    }
}
