//! A pool of worker threads, started on demand up to a limit.

use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A unit of work for a [`WorkerPool`].
pub trait Task: Sized + Send + 'static {
    /// State that a thread keeps from task to task, such as buffers.
    type Scratch: Default;

    /// Does the work. `pool` is the pool that the calling thread belongs to.
    fn run(self, scratch: &mut Self::Scratch, pool: &WorkerPool<Self>);
}

/// A closure as a task.
pub struct Job(Box<dyn FnOnce() + Send>);

impl Job {
    /// Creates a task that calls `work`.
    pub fn new(work: impl FnOnce() + Send + 'static) -> Self {
        Self(Box::new(work))
    }
}

impl Task for Job {
    type Scratch = ();

    fn run(self, (): &mut (), _pool: &WorkerPool<Self>) {
        (self.0)();
    }
}

/// The size and lifetime of a [`WorkerPool`]'s threads.
#[derive(Debug, Clone, Copy)]
pub struct WorkerPoolOptions {
    /// Name of each thread.
    pub thread_name: &'static str,
    /// Most threads at a time.
    pub threads_max: usize,
    /// Time without a task after which a thread ends.
    pub idle_timeout: Duration,
}

/// Threads that run tasks. Clones are handles of the same pool. Dropping a handle waits for
/// nothing; [`WorkerPool::close`] does.
pub struct WorkerPool<T>(Arc<PoolState<T>>);

struct PoolState<T> {
    options: WorkerPoolOptions,
    queue: Mutex<TaskQueue<T>>,
    /// Notified once for each queued task.
    wake: Condvar,
    /// Notified when the last thread ends.
    ended: Condvar,
}

struct TaskQueue<T> {
    tasks: VecDeque<T>,
    /// Threads that wait for a task. A queued task belongs to one of them, or to the next thread
    /// that finishes a task.
    idle: usize,
    threads: usize,
    is_closing: bool,
}

impl<T> Clone for WorkerPool<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<T: Task> WorkerPool<T> {
    /// Creates a pool without threads.
    pub fn new(options: WorkerPoolOptions) -> Self {
        Self(Arc::new(PoolState {
            options,
            queue: Mutex::new(TaskQueue {
                tasks: VecDeque::new(),
                idle: 0,
                threads: 0,
                is_closing: false,
            }),
            wake: Condvar::new(),
            ended: Condvar::new(),
        }))
    }

    /// Runs `task` at once, in an idle or a new thread.
    ///
    /// # Errors
    /// Returns the task if all threads are busy and the pool or the host allows no further one, or
    /// if the pool is closed.
    pub fn try_run(&self, task: T) -> Result<(), T> {
        {
            let mut queue = self.0.queue.lock();
            if queue.idle > queue.tasks.len() {
                queue.tasks.push_back(task);
                self.0.wake.notify_one();
                return Ok(());
            }
            if queue.threads >= self.0.options.threads_max || queue.is_closing {
                return Err(task);
            }
            queue.threads += 1;
        }
        self.start_thread(task)
    }

    /// Runs `task` in an idle or a new thread, or else once a thread is free. The queue is
    /// unbounded: the caller limits how many tasks it submits.
    ///
    /// # Errors
    /// Returns the task if the pool has no thread, and the host has none for it.
    pub fn try_run_or_queue(&self, task: T) -> Result<(), T> {
        let Err(task) = self.try_run(task) else {
            return Ok(());
        };
        let mut queue = self.0.queue.lock();
        if queue.threads == 0 {
            return Err(task);
        }
        queue.tasks.push_back(task);
        drop(queue);
        self.0.wake.notify_one();
        Ok(())
    }

    /// Runs `task` as [`WorkerPool::try_run_or_queue`]. Without any thread, the caller's thread
    /// runs it.
    pub fn run_or_queue(&self, task: T) {
        if let Err(task) = self.try_run_or_queue(task) {
            task.run(&mut T::Scratch::default(), self);
        }
    }

    /// Ends the threads once they have run all tasks, and waits for that, at most until
    /// `deadline`. Returns whether all have ended. A task must not close its own pool.
    pub fn close(&self, deadline: Option<Instant>) -> bool {
        let mut queue = self.0.queue.lock();
        queue.is_closing = true;
        self.0.wake.notify_all();
        while queue.threads > 0 {
            match deadline {
                None => self.0.ended.wait(&mut queue),
                Some(deadline) => {
                    if self.0.ended.wait_until(&mut queue, deadline).timed_out() {
                        break;
                    }
                }
            }
        }
        queue.threads == 0
    }

    /// Starts a thread, which is counted already, with its first task.
    fn start_thread(&self, task: T) -> Result<(), T> {
        let thread = CountedThread {
            pool: self.clone(),
            is_counted: true,
        };
        // If the thread cannot be started, its closure is dropped; the task must survive that.
        let first = Arc::new(Mutex::new(Some(task)));
        let first_of_thread = first.clone();
        let spawned = std::thread::Builder::new()
            .name(self.0.options.thread_name.to_owned())
            .spawn(move || {
                let first = first_of_thread.lock().take();
                thread.run(first);
            });
        match spawned {
            Ok(_) => Ok(()),
            Err(_) => first.lock().take().map_or(Ok(()), Err),
        }
    }

    fn work(&self, first: Option<T>) {
        let mut scratch = T::Scratch::default();
        let mut next = first;
        while let Some(task) = next {
            task.run(&mut scratch, self);
            next = self.next_task();
        }
    }

    /// Waits for a task; `None` after the idle timeout, or if the pool closes without a task left.
    /// With `None` the thread counts no longer, so no task is queued for it.
    fn next_task(&self) -> Option<T> {
        let mut queue = self.0.queue.lock();
        queue.idle += 1;
        let mut has_timed_out = false;
        let task = loop {
            let task = queue.tasks.pop_front();
            if task.is_some() || has_timed_out || queue.is_closing {
                break task;
            }
            has_timed_out = self
                .0
                .wake
                .wait_for(&mut queue, self.0.options.idle_timeout)
                .timed_out();
        };
        queue.idle -= 1;
        if task.is_none() {
            self.0.uncount_thread(&mut queue);
        }
        task
    }
}

impl<T> PoolState<T> {
    fn uncount_thread(&self, queue: &mut TaskQueue<T>) {
        queue.threads -= 1;
        if queue.threads == 0 {
            self.ended.notify_all();
        }
    }
}

/// A thread of a pool. Counts it out if it cannot be started, or if a task panics.
struct CountedThread<T> {
    pool: WorkerPool<T>,
    is_counted: bool,
}

impl<T: Task> CountedThread<T> {
    fn run(mut self, first: Option<T>) {
        self.pool.work(first);
        self.is_counted = false;
    }
}

impl<T> Drop for CountedThread<T> {
    fn drop(&mut self) {
        if self.is_counted {
            let pool = &self.pool.0;
            pool.uncount_thread(&mut pool.queue.lock());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    fn pool(threads_max: usize) -> WorkerPool<Job> {
        WorkerPool::new(WorkerPoolOptions {
            thread_name: "test",
            threads_max,
            idle_timeout: Duration::from_secs(10),
        })
    }

    #[test]
    fn waiting_job_delays_no_other_job() {
        let pool = pool(2);
        let (release, wait) = mpsc::channel::<()>();
        let (sender, receiver) = mpsc::channel();
        pool.run_or_queue(Job::new(move || wait.recv().unwrap()));
        for number in 0..10 {
            let sender = sender.clone();
            pool.run_or_queue(Job::new(move || sender.send(number).unwrap()));
        }
        assert_eq!(receiver.iter().take(10).sum::<i32>(), 45);
        release.send(()).unwrap();
        assert!(pool.close(None));
    }

    #[test]
    fn full_or_closed_pool_returns_the_task() {
        let pool = pool(1);
        let (release, wait) = mpsc::channel::<()>();
        assert!(pool.try_run(Job::new(move || wait.recv().unwrap())).is_ok());
        assert!(pool.try_run(Job::new(|| ())).is_err());
        assert!(!pool.close(Some(Instant::now())));
        release.send(()).unwrap();
        assert!(pool.close(None));
        assert!(pool.try_run(Job::new(|| ())).is_err());
    }
}
