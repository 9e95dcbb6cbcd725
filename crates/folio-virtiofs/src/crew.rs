//! Threads for requests that wait for a device, so that others need not wait for them.

use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::sync::Arc;
use std::thread::JoinHandle;

/// What one thread does once.
pub(crate) type Job = Box<dyn FnOnce() + Send>;

/// Threads, started as they are needed, and jobs for them. Dropping it does what is left and ends
/// the threads.
pub(crate) struct Crew {
    shared: Arc<Shared>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    threads_max: usize,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    jobs: VecDeque<Job>,
    idle: usize,
    is_over: bool,
}

impl Crew {
    pub(crate) fn new(threads_max: usize) -> Self {
        Self {
            shared: Arc::default(),
            threads: Mutex::default(),
            threads_max,
        }
    }

    /// Has a thread do `job`, once one has time. Bounded by the guest's queues, which have room for
    /// so many requests.
    pub(crate) fn submit(&self, job: Job) {
        let needs_more = {
            let mut state = self.shared.state.lock();
            state.jobs.push_back(job);
            state.jobs.len() > state.idle
        };
        self.shared.changed.notify_one();
        let mut threads = self.threads.lock();
        if needs_more && threads.len() < self.threads_max {
            let shared = Arc::clone(&self.shared);
            let started = std::thread::Builder::new()
                .name("virtiofs-wait".into())
                .spawn(move || shared.work());
            match started {
                Ok(thread) => threads.push(thread),
                // Somebody has to do it.
                Err(_) if threads.is_empty() => {
                    let job = self.shared.state.lock().jobs.pop_front();
                    drop(threads);
                    if let Some(job) = job {
                        job();
                    }
                }
                Err(_) => {}
            }
        }
    }
}

impl Shared {
    fn work(&self) {
        let mut state = self.state.lock();
        loop {
            if let Some(job) = state.jobs.pop_front() {
                drop(state);
                job();
                state = self.state.lock();
            } else if state.is_over {
                return;
            } else {
                state.idle += 1;
                self.changed.wait(&mut state);
                state.idle -= 1;
            }
        }
    }
}

impl Drop for Crew {
    fn drop(&mut self) {
        self.shared.state.lock().is_over = true;
        self.shared.changed.notify_all();
        for thread in self.threads.get_mut().drain(..) {
            // One that has panicked has told so.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[test]
    fn a_job_that_waits_keeps_nobody_waiting() {
        let crew = Crew::new(2);
        let (release, wait) = mpsc::channel::<()>();
        let (tell, told) = mpsc::channel();
        crew.submit(Box::new(move || wait.recv().unwrap()));
        for number in 0..10 {
            let tell = tell.clone();
            crew.submit(Box::new(move || tell.send(number).unwrap()));
        }
        assert_eq!(told.iter().take(10).sum::<i32>(), 45);
        release.send(()).unwrap();
        drop(crew);
    }
}
