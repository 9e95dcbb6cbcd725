//! The scenario `reclaim`: hit ratios of the real page cache and of simulated policies, on the same
//! traces.

use crate::policies::{ALL, OPT};
use crate::report::{Report, Row, Table, Unit};
use crate::run::Run;
use crate::traces::{self, Trace, WorkloadSize};
use folio::cache::{CacheOptions, Mapping, PageCache, ReadPattern, Store};
use std::io::{IoSlice, IoSliceMut};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Instant;

/// Options of the scenario.
#[derive(Debug, Clone, clap::Args)]
pub struct Options {
    /// Accesses per trace [default: 2000000]
    #[arg(long)]
    pub(crate) accesses: Option<usize>,
    /// Pages of cache [default: 4096]
    #[arg(long, value_parser = clap::value_parser!(u32).range(64..1 << 20))]
    pub(crate) cache_pages: Option<u32>,
}

const FOLIO: &str = "folio";
const PAGE: u64 = 4096;
/// Distance of two pages of a trace in the file, in pages: adjacent pages of a trace are not a
/// sequential read.
const STRIDE: u64 = 2;

/// Compares. Hit ratios are the same in every round, so there is one.
pub(crate) fn measure(options: &Options, run: &Run<'_>) -> Result<Report, String> {
    let cache_pages = options.cache_pages.unwrap_or_else(|| run.sized(4096, 64)) as usize;
    let accesses = options
        .accesses
        .unwrap_or_else(|| run.sized(2_000_000, 4000))
        .max(1);
    let traces = traces::all(WorkloadSize {
        access_count: accesses,
        cache_pages,
    });
    let what = format!(
        "accesses of traces that are answered from memory, with {cache_pages} pages of cache"
    );
    let mut report = Report::new("reclaim", what, Path::new("/"));
    report.repeats = 1;
    report.notes = vec![
        "folio is the real cache: one read of one byte per access; the other policies are simulated"
            .to_owned(),
        "what a store was asked for counts as a miss; the cold start counts, too".to_owned(),
        format!("{OPT} knows the future; gaps are to the best policy of each trace that does not"),
    ];
    let mut rows = Vec::new();
    for trace in &traces {
        (run.step)(&format!("reclaim: {}", trace.name))?;
        let (accesses, pages) = (trace.accesses.len(), trace.page_count);
        report.notes.push(format!(
            "{}: {}; {accesses} accesses, {pages} pages",
            trace.name, trace.what
        ));
        rows.push(Row::new(
            trace.name,
            FOLIO,
            vec![by_folio(trace, cache_pages, &mut report.notes)?],
        ));
        for (policy, make) in ALL {
            let mut simulated = make(cache_pages, trace.page_count, &trace.accesses);
            let hits = trace
                .accesses
                .iter()
                .filter(|page| simulated.access(**page))
                .count();
            rows.push(Row::new(
                trace.name,
                policy,
                vec![hits as f64 / accesses as f64],
            ));
        }
    }
    report.notes.extend(gaps(&rows, &traces));
    report
        .tables
        .push(Table::new("hits", Unit::Share, Some(OPT), rows));
    Ok(report)
}

/// Each policy's mean distance to the best of each trace.
fn gaps(rows: &[Row], traces: &[Trace]) -> Vec<String> {
    let gap = |policy: &str| {
        let distances = traces.iter().map(|trace| {
            let of_trace = || rows.iter().filter(|row| row.job == trace.name);
            let best = of_trace()
                .filter(|row| row.contender != OPT)
                .map(|row| row.median)
                .fold(0.0, f64::max);
            let own = of_trace()
                .find(|row| row.contender == policy)
                .map_or(0.0, |row| row.median);
            best - own
        });
        distances.sum::<f64>() / traces.len().max(1) as f64
    };
    let policies = std::iter::once(FOLIO).chain(ALL.iter().map(|(policy, _)| *policy));
    let policies = policies.filter(|policy| *policy != OPT);
    policies
        .map(|policy| format!("mean gap of {policy}: {:.3}", gap(policy)))
        .collect()
}

/// A store of zeros that counts its requests.
#[derive(Default)]
struct Zeros {
    page_count: AtomicU64,
}

impl Store for Zeros {
    fn read_pages(&self, _offset: u64, bufs: &mut [IoSliceMut<'_>]) -> folio::Result<()> {
        for buf in bufs {
            self.page_count
                .fetch_add(buf.len() as u64 / PAGE, Ordering::Relaxed);
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
    // The scenario measures eviction, not readahead.
    mapping.set_read_pattern(ReadPattern::Random);
    let mut byte = [0];
    let mut misses = 0_u64;
    let mut before = 0;
    let mut most_pages = 0;
    let start = Instant::now();
    for (at, page) in trace.accesses.iter().enumerate() {
        let count = mapping
            .read(u64::from(*page) * STRIDE * PAGE, &mut byte)
            .map_err(|error| error.to_string())?;
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
    notes.push(format!(
        "{name}: folio took {ns:.0} ns per access, and held {most_pages} pages at most"
    ));
    if before != misses {
        notes.push(format!(
            "{name}: {misses} misses brought {before} pages in: readahead took part"
        ));
    }
    Ok(1.0 - misses as f64 / trace.accesses.len() as f64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    #[test]
    fn all_policies_are_compared_on_short_traces() {
        let quiet = |_: &str| Ok(());
        let run = Run {
            is_quick: true,
            ..Run::new(PathBuf::new(), &quiet)
        };
        let report = measure(
            &Options {
                accesses: None,
                cache_pages: None,
            },
            &run,
        )
        .expect("a report");
        let rows = &report.tables[0].rows;
        assert_eq!(rows.len(), (ALL.len() + 1) * 6);
        assert!(
            rows.iter().all(|row| (0.0..1.0).contains(&row.median)),
            "{rows:?}"
        );
        // Whatever a cache does, half of the accesses of this trace are new pages.
        assert!(
            rows.iter()
                .filter(|row| row.job == "zipf+scan")
                .all(|row| row.median <= 0.5)
        );
    }
}
