//! A program of which the memory need is known: reads pages of a file with a Zipf distribution.
//!
//! ```text
//!   zipf_reader FILE [PAGES] [SKEW] [READS_PER_S] [SECONDS]   creates FILE, then reads it
//!   zipf_reader --curve [PAGES] [SKEW] [READS_PER_S]          prints memory and misses per second;
//!                                                             also without any word
//! ```
//!
//! The sequence is the same in each run. The curve is of LRU replacement (approximation of Che).

use std::error::Error;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

const PAGE: usize = 4096;
/// Spreads ranks over the file: odd, so a permutation of a power of two.
const SPREAD: u64 = 40_503;

fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize, default: f64| words.get(at).map_or(Ok(default), |word| word.parse());
    let file = words.first().map_or("--curve", String::as_str);
    let pages = (number(1, 65_536.0)? as u64).next_power_of_two();
    let (skew, rate) = (number(2, 1.0)?, number(3, 10_000.0)?);
    let weights = weights(pages, skew);
    if file == "--curve" {
        curve(&weights, rate);
        return Ok(());
    }
    let reader = Reader::new(file, pages)?;
    reader.read(&weights, rate, Duration::from_secs_f64(number(4, 3600.0)?))
}

/// The probability of each rank.
fn weights(pages: u64, skew: f64) -> Vec<f64> {
    let raw: Vec<f64> = (1..=pages).map(|rank| (rank as f64).powf(-skew)).collect();
    let sum: f64 = raw.iter().sum();
    raw.into_iter().map(|weight| weight / sum).collect()
}

fn curve(weights: &[f64], rate: f64) {
    println!("memory_bytes misses_per_s");
    let mut age = 1.0;
    while age < 1e9 {
        let absent = |weight: &f64| (-weight * age).exp();
        let cached: f64 = weights.iter().map(|weight| 1.0 - absent(weight)).sum();
        let misses: f64 = weights.iter().map(|weight| weight * absent(weight)).sum();
        if misses * rate < 0.01 {
            break;
        }
        println!("{:.0} {:.2}", cached * PAGE as f64, misses * rate);
        age *= 1.05;
    }
}

struct Reader {
    file: File,
    pages: u64,
}

impl Reader {
    /// Creates the file, unless it is there with this size.
    fn new(path: &str, pages: u64) -> Result<Self, Box<dyn Error>> {
        let file = File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(path)?;
        if file.metadata()?.len() != pages * PAGE as u64 {
            file.set_len(0)?;
            for page in 0..pages {
                file.write_all_at(&[page as u8 | 1; PAGE], page * PAGE as u64)?;
            }
            file.sync_all()?;
        }
        // Pages that another control group brought in would count there.
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed)?;
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::Random)?;
        Ok(Self { file, pages })
    }

    #[expect(
        clippy::disallowed_methods,
        reason = "the rate of reads is an argument"
    )]
    /// Reads the whole file once, then pages by their weights.
    fn read(&self, weights: &[f64], rate: f64, length: Duration) -> Result<(), Box<dyn Error>> {
        let mut page = [0; PAGE];
        for at in 0..self.pages {
            self.file.read_exact_at(&mut page, at * PAGE as u64)?;
        }
        let mut sum = 0.0;
        let add = |weight: &f64| {
            sum += weight;
            sum
        };
        let sums: Vec<f64> = weights.iter().map(add).collect();
        let (start, mut done, mut state) = (Instant::now(), 0_u64, 1_u64);
        while start.elapsed() < length {
            if done as f64 > start.elapsed().as_secs_f64() * rate {
                std::thread::sleep(Duration::from_millis(1));
                continue;
            }
            let wanted = random(&mut state);
            let rank = sums.partition_point(|sum| *sum < wanted) as u64;
            let at = rank.wrapping_mul(SPREAD) % self.pages;
            self.file.read_exact_at(&mut page, at * PAGE as u64)?;
            done += 1;
        }
        Ok(())
    }
}

/// From 0 to 1 (SplitMix64).
fn random(state: &mut u64) -> f64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mixed = (*state ^ (*state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    ((mixed ^ (mixed >> 31)) >> 11) as f64 / (1_u64 << 53) as f64
}
