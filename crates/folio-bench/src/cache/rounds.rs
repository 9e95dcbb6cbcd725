//! Timing: contenders in turn, each on one or more pinned threads that start together.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::sync::Barrier;
use std::time::{Duration, Instant};

/// Runs a number of operations, one after the other.
pub(crate) type Body<'a> = Box<dyn FnMut(u64) -> Result<(), String> + Send + 'a>;

/// Makes the body of the thread with the first number, of as many as the second says.
pub(crate) type Make<'a> = Box<dyn Fn(u64, u64) -> Result<Body<'a>, String> + 'a>;

/// One way to do a job.
pub(crate) struct Contender<'a> {
    pub(crate) name: &'static str,
    pub(crate) make: Make<'a>,
}

impl<'a> Contender<'a> {
    /// Returns a contender whose bodies `make` makes.
    pub(crate) fn new(
        name: &'static str,
        make: impl Fn(u64, u64) -> Result<Body<'a>, String> + 'a,
    ) -> Self {
        Self {
            name,
            make: Box::new(make),
        }
    }
}

/// Number of rounds, and the least duration of a measurement.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Effort {
    pub(crate) repeats: u32,
    /// The least duration of one measurement.
    pub(crate) least: Duration,
}

/// Nanoseconds per operation, all threads together, of every contender in every round.
pub(crate) fn measure(
    contenders: &[Contender<'_>],
    threads: u64,
    effort: Effort,
) -> Result<Vec<Vec<f64>>, String> {
    let mut entries = Vec::new();
    for contender in contenders {
        let bodies = (0..threads).map(|index| (contender.make)(index, threads));
        let mut bodies = bodies.collect::<Result<Vec<_>, _>>()?;
        let count = calibrate(&mut bodies, effort.least)?;
        entries.push((bodies, count, Vec::new()));
    }
    for round in 0..effort.repeats as usize {
        for turn in 0..entries.len() {
            let at = (turn + round) % entries.len();
            let (bodies, count, rounds) = &mut entries[at];
            rounds.push(once(bodies, *count)?);
        }
    }
    Ok(entries.into_iter().map(|(_, _, rounds)| rounds).collect())
}

/// Returns the number of operations per thread that take `least`.
fn calibrate(bodies: &mut [Body<'_>], least: Duration) -> Result<u64, String> {
    let threads = bodies.len() as f64;
    let least_ns = least.as_nanos() as f64;
    let mut count = 1;
    loop {
        let took_ns = once(bodies, count)? * threads * count as f64;
        if took_ns >= least_ns {
            return Ok(count);
        }
        if took_ns >= least_ns / 8.0 {
            return Ok((count as f64 * least_ns / took_ns * 1.15).ceil() as u64);
        }
        count *= 2;
    }
}

/// Runs `count` operations in each body at once; nanoseconds per operation, all threads together.
fn once(bodies: &mut [Body<'_>], count: u64) -> Result<f64, String> {
    let barrier = Barrier::new(bodies.len());
    let rates = std::thread::scope(|scope| {
        let threads: Vec<_> = bodies
            .iter_mut()
            .enumerate()
            .map(|(index, body)| {
                let barrier = &barrier;
                scope.spawn(move || {
                    pin(index);
                    // What a thread does only once (its pin's slot, its stack's pages) is not
                    // measured.
                    let warm = body(1);
                    barrier.wait();
                    warm?;
                    let start = Instant::now();
                    body(count)?;
                    Ok(count as f64 / start.elapsed().as_secs_f64().max(1e-9))
                })
            })
            .collect();
        let rates = threads
            .into_iter()
            .map(|thread| thread.join().map_err(|_| "a thread panicked".to_owned())?);
        rates.collect::<Result<Vec<f64>, String>>()
    })?;
    Ok(1e9 / rates.iter().sum::<f64>())
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

/// xorshift64*: offsets at random for about a nanosecond.
pub(crate) struct Random(u64);

impl Random {
    /// Returns a generator with a sequence of its own for every `seed`.
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// A number below `end`.
    #[inline]
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        let drawn = self.0.wrapping_mul(0x2545_f491_4f6c_dd1d);
        ((u128::from(drawn) * u128::from(end)) >> 64) as u64
    }
}
