//! The threads: each leads one connection, works on one request, or waits for either.

use crate::connection::{Client, Lead, Worker, greet, lead};
use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

/// A thread without work goes after this time.
const IDLE: Duration = Duration::from_secs(10);

/// What a thread does next.
pub(crate) enum Task {
    /// Agree with a new client, then lead its connection.
    Greet(Arc<Client>),
    /// Read the connection's next request.
    Lead(Lead),
}

/// All threads of a server.
pub(crate) struct Crew {
    queue: Mutex<Queue>,
    /// Told for each task.
    wake: Condvar,
    /// Told when the last thread ends.
    gone: Condvar,
    threads_max: usize,
}

#[derive(Default)]
struct Queue {
    /// Never more than `idle`: each has its thread.
    tasks: VecDeque<Task>,
    idle: usize,
    threads: usize,
    is_closing: bool,
}

impl Crew {
    pub(crate) fn new(threads_max: usize) -> Self {
        Self {
            queue: Mutex::default(),
            wake: Condvar::new(),
            gone: Condvar::new(),
            threads_max,
        }
    }

    /// Finds a thread for a task, or gives it back if there can be none.
    pub(crate) fn give(self: &Arc<Self>, task: Task) -> Result<(), Task> {
        {
            let mut queue = self.queue.lock();
            if queue.idle > queue.tasks.len() {
                queue.tasks.push_back(task);
                self.wake.notify_one();
                return Ok(());
            }
            if queue.threads >= self.threads_max || queue.is_closing {
                return Err(task);
            }
            queue.threads += 1;
        }
        let place = Place(self.clone());
        // A thread that cannot be started takes its closure with it, but not what lies here.
        let slot = Arc::new(Mutex::new(Some(task)));
        let theirs = slot.clone();
        let spawned = std::thread::Builder::new()
            .name("nbd".to_owned())
            .spawn(move || {
                let first = theirs.lock().take();
                place.0.work(first);
            });
        match (spawned, slot) {
            (Ok(_), _) => Ok(()),
            (Err(_), slot) => match slot.lock().take() {
                Some(task) => Err(task),
                None => Ok(()),
            },
        }
    }

    fn work(self: &Arc<Self>, first: Option<Task>) {
        let mut worker = Worker::default();
        let mut task = first;
        while let Some(now) = task {
            match now {
                Task::Greet(client) => greet(client, &mut worker),
                Task::Lead(mine) => lead(mine, &mut worker),
            }
            task = self.next();
        }
    }

    fn next(&self) -> Option<Task> {
        let mut queue = self.queue.lock();
        queue.idle += 1;
        let mut is_over = false;
        let task = loop {
            let task = queue.tasks.pop_front();
            if task.is_some() || is_over || queue.is_closing {
                break task;
            }
            is_over = self.wake.wait_for(&mut queue, IDLE).timed_out();
        };
        queue.idle -= 1;
        task
    }

    /// Sends the threads home and waits for them; nobody may have work any more.
    pub(crate) fn close(&self) {
        let mut queue = self.queue.lock();
        queue.is_closing = true;
        self.wake.notify_all();
        while queue.threads > 0 {
            self.gone.wait(&mut queue);
        }
    }
}

/// One thread's place in the crew, given up when it ends, however that is.
struct Place(Arc<Crew>);

impl Drop for Place {
    fn drop(&mut self) {
        let mut queue = self.0.queue.lock();
        queue.threads -= 1;
        if queue.threads == 0 {
            self.0.gone.notify_all();
        }
    }
}
