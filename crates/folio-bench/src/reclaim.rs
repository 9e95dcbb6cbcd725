//! The scenario `reclaim`: hit ratios of the real page cache and of simulated policies, on the same traces.

use crate::policies::{ALL, OPT};
use crate::report::Machine;
use crate::traces::{self, Extent, Trace};
use folio::cache::{CacheOptions, Mapping, PageCache, ReadPattern, Store};
use serde::Serialize;
use std::io::{IoSlice, IoSliceMut};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Instant;

/// What the scenario takes.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Options {
    /// Accesses per trace.
    #[arg(long, default_value_t = 2_000_000)]
    pub(crate) accesses: usize,
    /// Pages of cache.
    #[arg(long, default_value_t = 4096, value_parser = clap::value_parser!(u32).range(64..1 << 20))]
    pub(crate) cache_pages: u32,
    /// Print JSON instead of tables.
    #[arg(long)]
    pub(crate) json: bool,
}

const FOLIO: &str = "folio";
const PAGE: u64 = 4096;
/// Distance of two pages of a trace in the file, in pages: neighbours in a trace are no sequential reading.
const STRIDE: u64 = 2;

/// One policy's share of hits on each trace.
#[derive(Debug, Serialize)]
struct Row {
    policy: &'static str,
    hit_ratios: Vec<f64>,
    /// Mean distance to the best policy that does not know the future.
    mean_gap: f64,
}

#[derive(Debug, Serialize)]
struct TraceFacts {
    name: &'static str,
    what: &'static str,
    accesses: usize,
    pages: usize,
}

#[derive(Debug, Serialize)]
struct Report {
    scenario: &'static str,
    machine: Machine,
    cache_pages: u32,
    traces: Vec<TraceFacts>,
    rows: Vec<Row>,
    notes: Vec<String>,
}

/// Compares and prints.
pub(crate) fn run(options: &Options) -> Result<(), String> {
    report(options)?.print(options.json)
}

fn report(options: &Options) -> Result<Report, String> {
    let cache_pages = options.cache_pages as usize;
    let traces = traces::all(Extent { access_count: options.accesses.max(1), cache_pages });
    let mut notes = vec![
        "folio is the real cache: one read of one byte per access; all others are simulated".to_owned(),
        "what a store was asked for counts as a miss; the cold start counts, too".to_owned(),
    ];
    let folio = traces.iter().map(|trace| by_folio(trace, cache_pages, &mut notes));
    let folio = folio.collect::<Result<Vec<_>, _>>()?;
    let mut rows = vec![Row { policy: FOLIO, hit_ratios: folio, mean_gap: 0.0 }];
    for (policy, make) in ALL {
        let hit_ratios = traces.iter().map(|trace| {
            let mut simulated = make(cache_pages, trace.page_count, &trace.accesses);
            let hits = trace.accesses.iter().filter(|page| simulated.access(**page)).count();
            hits as f64 / trace.accesses.len() as f64
        });
        rows.push(Row { policy, hit_ratios: hit_ratios.collect(), mean_gap: 0.0 });
    }
    let best: Vec<f64> = (0..traces.len())
        .map(|at| {
            rows.iter().filter(|row| row.policy != OPT).map(|row| row.hit_ratios[at]).fold(0.0, f64::max)
        })
        .collect();
    for row in &mut rows {
        let gaps = best.iter().zip(&row.hit_ratios).map(|(best, ratio)| best - ratio);
        row.mean_gap = gaps.sum::<f64>() / best.len() as f64;
    }
    let facts = |trace: Trace| TraceFacts {
        name: trace.name,
        what: trace.what,
        accesses: trace.accesses.len(),
        pages: trace.page_count,
    };
    Ok(Report {
        scenario: "reclaim",
        machine: Machine::here(Path::new("/")),
        cache_pages: options.cache_pages,
        traces: traces.into_iter().map(facts).collect(),
        rows,
        notes,
    })
}

/// A store of zeros that counts what it is asked for.
#[derive(Default)]
struct Zeros {
    page_count: AtomicU64,
}

impl Store for Zeros {
    fn read_pages(&self, _offset: u64, bufs: &mut [IoSliceMut<'_>]) -> folio::Result<()> {
        for buf in bufs {
            self.page_count.fetch_add(buf.len() as u64 / PAGE, Ordering::Relaxed);
            buf.fill(0);
        }
        Ok(())
    }

    fn write_pages(&self, _offset: u64, _bufs: &[IoSlice<'_>]) -> folio::Result<()> {
        Ok(())
    }
}

/// The hit ratio of Folio's page cache.
fn by_folio(trace: &Trace, cache_pages: usize, notes: &mut Vec<String>) -> Result<f64, String> {
    let budget_bytes = cache_pages as u64 * PAGE;
    let cache = PageCache::new(CacheOptions {
        budget_bytes,
        dirty_background_bytes: budget_bytes,
        dirty_bytes: budget_bytes,
        background_writeback: false,
        ..CacheOptions::default()
    });
    let writeback = cache.writeback();
    let store = Arc::new(Zeros::default());
    let weak: Weak<dyn Store> = Arc::downgrade(&store) as Weak<dyn Store>;
    let mapping = Mapping::new(&writeback, weak, trace.page_count as u64 * STRIDE * PAGE);
    // The question is what is kept, not what is guessed.
    mapping.set_read_pattern(ReadPattern::Random);
    let mut byte = [0];
    let mut misses = 0_u64;
    let mut before = 0;
    let mut most_pages = 0;
    let start = Instant::now();
    for (at, page) in trace.accesses.iter().enumerate() {
        let count =
            mapping.read(u64::from(*page) * STRIDE * PAGE, &mut byte).map_err(|error| error.to_string())?;
        if count != 1 {
            return Err(format!("page {page}: {count} bytes"));
        }
        let after = store.page_count.load(Ordering::Relaxed);
        misses += u64::from(after != before);
        before = after;
        if at % 1024 == 0 {
            most_pages = most_pages.max(cache.counters().file_pages);
        }
    }
    let ns = start.elapsed().as_nanos() as f64 / trace.accesses.len() as f64;
    let name = trace.name;
    notes.push(format!("{name}: folio took {ns:.0} ns per access, and held {most_pages} pages at most"));
    if before != misses {
        notes.push(format!("{name}: {misses} misses brought {before} pages in: readahead took part"));
    }
    Ok(1.0 - misses as f64 / trace.accesses.len() as f64)
}

impl Report {
    fn print(&self, json: bool) -> Result<(), String> {
        if json {
            println!("{}", serde_json::to_string_pretty(self).map_err(|error| error.to_string())?);
            return Ok(());
        }
        println!("reclaim: share of accesses answered from memory; {} pages of cache", self.cache_pages);
        println!("{}", self.machine.words());
        println!();
        print!("{:<10}", "");
        self.traces.iter().for_each(|trace| print!(" {:>10}", trace.name));
        println!(" {:>10}", "mean gap");
        for row in &self.rows {
            print!("{:<10}", row.policy);
            row.hit_ratios.iter().for_each(|ratio| print!(" {ratio:>10.3}"));
            println!(
                " {:>10}",
                if row.policy == OPT { "-".to_owned() } else { format!("{:.3}", row.mean_gap) }
            );
        }
        println!("\ntraces:");
        for trace in &self.traces {
            println!("- {}: {}; {} accesses, {} pages", trace.name, trace.what, trace.accesses, trace.pages);
        }
        println!("\nnotes:");
        self.notes.iter().for_each(|note| println!("- {note}"));
        println!("\nmean gap: to the best policy of each trace that does not know the future, as {OPT} does");
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_policies_are_compared_on_short_traces() {
        let report = report(&Options { accesses: 4000, cache_pages: 64, json: false }).expect("a report");
        assert_eq!(report.rows.len(), ALL.len() + 1);
        for row in &report.rows {
            assert_eq!(row.hit_ratios.len(), 6);
            assert!(row.hit_ratios.iter().all(|ratio| (0.0..1.0).contains(ratio)), "{row:?}");
        }
        // Whatever a cache does, half of the accesses of this trace are new pages.
        assert!(report.rows.iter().all(|row| row.hit_ratios[1] <= 0.5));
        report.print(true).expect("JSON");
        report.print(false).expect("text");
    }
}
