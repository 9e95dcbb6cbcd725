//! Runs a test under many schedules of the model checker.

use super::thread;
use shuttle::scheduler::{PctScheduler, RandomScheduler, Scheduler};
use std::sync::Arc;

/// Runs `test` under `count` random schedules, and under as many with few but arbitrary
/// preemptions.
pub(crate) fn check(count: usize, test: impl Fn() + Send + Sync + 'static) {
    // A longer search.
    let times = std::env::var("FOLIO_MODEL_CHECK_TIMES")
        .ok()
        .and_then(|times| times.parse().ok());
    let count = count * times.unwrap_or(1);
    let test = Arc::new(test);
    run(RandomScheduler::new(count), test.clone());
    run(PctScheduler::new(3, count), test);
}

fn run(scheduler: impl Scheduler + 'static, test: Arc<impl Fn() + Send + Sync + 'static>) {
    let mut config = shuttle::Config::new();
    config.stack_size = 256 << 10;
    config.silence_warnings = true;
    shuttle::Runner::new(scheduler, config).run(move || test());
}

/// Runs all parts in parallel and waits for them.
pub(crate) fn together(parts: impl IntoIterator<Item = Box<dyn FnOnce() + Send>>) {
    let threads: Vec<_> = parts.into_iter().map(thread::spawn).collect();
    threads
        .into_iter()
        .for_each(|thread| thread.join().unwrap());
}
