//! Traces: sequences of page accesses; the same numbers on every machine.

/// One trace. Pages are numbered from 0, as densely as possible.
pub(crate) struct Trace {
    pub(crate) name: &'static str,
    pub(crate) what: &'static str,
    pub(crate) accesses: Vec<u32>,
    /// One more than the largest page.
    pub(crate) page_count: usize,
}

/// Length of a trace, and size of the cache.
#[derive(Debug, Clone, Copy)]
pub(crate) struct WorkloadSize {
    pub(crate) access_count: usize,
    pub(crate) cache_pages: usize,
}

/// All traces.
pub(crate) fn all(workload: WorkloadSize) -> Vec<Trace> {
    let made: [(&'static str, &'static str, Maker); 6] = [
        ("zipf", "zipf 0.9 over 16 times the cache", zipf),
        (
            "zipf+scan",
            "the same, every second access by a backup that never comes back",
            zipf_and_scan,
        ),
        ("loop", "1.25 times the cache, over and over", looping),
        (
            "read twice",
            "files of half the cache, each twice (copy, then verify), and a fifth zipf",
            read_twice,
        ),
        (
            "shifting",
            "zipf 0.9 over four times the cache; every tenth of the trace half a cache turns cold",
            shifting,
        ),
        (
            "nightly",
            "a database hot in half the cache; every tenth of the trace a backup of 20 times the cache, 8 of its pages to 1",
            nightly,
        ),
    ];
    made.into_iter()
        .map(|(name, what, make)| {
            let accesses = make(workload);
            let page_count = accesses.iter().max().map_or(0, |page| *page as usize + 1);
            Trace {
                name,
                what,
                accesses,
                page_count,
            }
        })
        .collect()
}

type Maker = fn(WorkloadSize) -> Vec<u32>;

/// splitmix64: the same on every machine.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// From 0 up to 1.
    fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }
}

/// Ranks by Zipf's law: the n-th is drawn with a weight of n to the power of minus `exponent`.
struct Zipf {
    cumulated: Vec<f64>,
    random: Random,
}

impl Zipf {
    fn new(count: usize, exponent: f64, seed: u64) -> Self {
        let mut sum = 0.0;
        let cumulated = (1..=count)
            .map(|rank| {
                sum += (rank as f64).powf(-exponent);
                sum
            })
            .collect();
        Self {
            cumulated,
            random: Random(seed),
        }
    }

    fn draw(&mut self) -> u32 {
        let sum = self.cumulated.last().copied().unwrap_or(0.0);
        let drawn = self.random.unit() * sum;
        self.cumulated.partition_point(|value| *value <= drawn) as u32
    }
}

const EXPONENT: f64 = 0.9;

fn universe(workload: WorkloadSize) -> usize {
    workload.cache_pages * 16
}

fn zipf(workload: WorkloadSize) -> Vec<u32> {
    let mut zipf = Zipf::new(universe(workload), EXPONENT, 1);
    (0..workload.access_count).map(|_| zipf.draw()).collect()
}

fn zipf_and_scan(workload: WorkloadSize) -> Vec<u32> {
    let mut zipf = Zipf::new(universe(workload), EXPONENT, 2);
    let first = universe(workload);
    (0..workload.access_count)
        .map(|at| {
            if at % 2 == 0 {
                zipf.draw()
            } else {
                (first + at / 2) as u32
            }
        })
        .collect()
}

fn looping(workload: WorkloadSize) -> Vec<u32> {
    let length = workload.cache_pages * 5 / 4;
    (0..workload.access_count)
        .map(|at| (at % length) as u32)
        .collect()
}

fn read_twice(workload: WorkloadSize) -> Vec<u32> {
    let mut zipf = Zipf::new(universe(workload), EXPONENT, 3);
    let (first, distance) = (universe(workload), workload.cache_pages / 2);
    // Half a cache of new pages, the same again, the next half.
    let mut step = 0;
    (0..workload.access_count)
        .map(|at| {
            if at % 5 == 0 {
                return zipf.draw();
            }
            let page = step / (2 * distance) * distance + step % distance;
            step += 1;
            (first + page) as u32
        })
        .collect()
}

fn shifting(workload: WorkloadSize) -> Vec<u32> {
    let count = workload.cache_pages * 4;
    let mut zipf = Zipf::new(count, EXPONENT, 4);
    let phase = (workload.access_count / 10).max(1);
    (0..workload.access_count)
        .map(|at| {
            let shift = at / phase * workload.cache_pages / 2;
            ((zipf.draw() as usize + shift) % (count * 2)) as u32
        })
        .collect()
}

fn nightly(workload: WorkloadSize) -> Vec<u32> {
    let hot = workload.cache_pages / 2;
    let mut zipf = Zipf::new(hot, EXPONENT, 5);
    let scan_pages = workload.cache_pages * 20;
    let day = (workload.access_count / 10).max(1);
    let mut scanned = 0;
    (0..workload.access_count)
        .map(|at| {
            if at % day == 0 {
                scanned = 0;
            }
            // At noon, so that the first one finds the database at work.
            if at % day < day / 2 || at % 9 == 0 || scanned == scan_pages {
                return zipf.draw();
            }
            scanned += 1;
            (hot + scanned - 1) as u32
        })
        .collect()
}
