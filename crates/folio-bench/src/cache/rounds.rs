//! Timing of calls that take nanoseconds: on one or more pinned threads that start together.

use crate::outcome::Outcome;
use crate::race::{Race, Run};
use crate::report::{Report, Row, Sample, Unit};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::sync::Barrier;
use std::time::{Duration, Instant};

/// Runs a number of operations, one after the other.
pub(crate) type Body<'a> = Box<dyn FnMut(u64) -> Outcome + Send + 'a>;

/// Makes the body of the thread with the first number, of as many as the second says.
type Make<'a> = Box<dyn Fn(u64, u64) -> Outcome<Body<'a>> + 'a>;

/// One implementation of a job.
pub(crate) struct Implementation<'a> {
    pub(crate) name: &'static str,
    pub(crate) make: Make<'a>,
}

impl<'a> Implementation<'a> {
    /// Returns an implementation whose bodies `make` makes.
    pub(crate) fn new(
        name: &'static str,
        make: impl Fn(u64, u64) -> Outcome<Body<'a>> + 'a,
    ) -> Self {
        let make = Box::new(make);
        Self { name, make }
    }
}

/// Returns the name of a job's rows with so many threads.
pub(crate) fn row_name(job: &str, threads: u64) -> String {
    match threads {
        1 => job.to_owned(),
        threads => format!("{job}, {threads} threads"),
    }
}

/// Least duration of one measurement.
const LEAST_MS: u64 = 30;

/// A job with a number of threads.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Timing<'a> {
    pub(crate) job: &'a str,
    pub(crate) threads: u64,
    /// Least milliseconds of one measurement; without it, the usual ones.
    pub(crate) least_ms: Option<u64>,
}

impl Timing<'_> {
    /// Measures all implementations; returns the rows of seconds per operation, all threads
    /// together.
    pub(crate) fn rows(
        self,
        implementations: &[Implementation<'_>],
        run: &Run<'_>,
        report: &mut Report,
    ) -> Outcome<Vec<Row>> {
        let job = row_name(self.job, self.threads);
        let least = self.least_ms.unwrap_or_else(|| run.sized(LEAST_MS, 0));
        let mut race = Race::new(&job, Unit::Seconds, None);
        for implementation in implementations {
            let bodies = (0..self.threads).map(|index| (implementation.make)(index, self.threads));
            let mut bodies = bodies.collect::<Outcome<Vec<_>>>()?;
            let count = calibrate(&mut bodies, Duration::from_millis(least))?;
            race.case(&job, implementation.name, move || {
                once(&mut bodies, count).map(Sample::of)
            });
        }
        let tables = race.measure(run, report)?;
        Ok(tables.into_iter().flat_map(|table| table.rows).collect())
    }
}

/// Returns the number of operations per thread that take `least`.
fn calibrate(bodies: &mut [Body<'_>], least: Duration) -> Outcome<u64> {
    let (threads, least) = (bodies.len() as f64, least.as_secs_f64());
    let mut count = 1;
    loop {
        let seconds = once(bodies, count)? * threads * count as f64;
        if seconds >= least {
            return Ok(count);
        }
        if seconds >= least / 8.0 {
            return Ok((count as f64 * least / seconds * 1.15).ceil() as u64);
        }
        count *= 2;
    }
}

/// Runs `count` operations in each body at once; seconds per operation, all threads together.
fn once(bodies: &mut [Body<'_>], count: u64) -> Outcome<f64> {
    let barrier = &Barrier::new(bodies.len());
    let rates = std::thread::scope(|scope| {
        let start = |(index, body)| scope.spawn(move || rate(body, index, count, barrier));
        let threads: Vec<_> = bodies.iter_mut().enumerate().map(start).collect();
        let rates = threads.into_iter().map(|thread| match thread.join() {
            Ok(rate) => rate,
            Err(_) => Err("a thread panicked".into()),
        });
        rates.collect::<Outcome<Vec<f64>>>()
    })?;
    Ok(1.0 / rates.iter().sum::<f64>())
}

/// Returns the operations a second of one thread.
fn rate(body: &mut Body<'_>, index: usize, count: u64, barrier: &Barrier) -> Outcome<f64> {
    pin(index);
    // What a thread does only once (its pin's slot, its stack's pages) is not measured.
    let warm = body(1);
    barrier.wait();
    warm?;
    let start = Instant::now();
    body(count)?;
    Ok(count as f64 / start.elapsed().as_secs_f64().max(1e-9))
}

/// Puts this thread on a processor of its own where that is allowed.
fn pin(index: usize) {
    let Ok(allowed) = sched_getaffinity(None) else {
        return;
    };
    let mut cpus = (0..CpuSet::MAX_CPU).filter(|cpu| allowed.is_set(*cpu));
    if let Some(cpu) = cpus.nth(index) {
        let mut one = CpuSet::new();
        one.set(cpu);
        // Figures from threads that wander are worse, not wrong.
        let _ = sched_setaffinity(None, &one);
    }
}
