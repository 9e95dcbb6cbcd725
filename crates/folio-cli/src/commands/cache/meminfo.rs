//! `folio cache meminfo`: shows the memory of the whole machine, like `sar -r`.

use super::watch::Watch;
use crate::exit::Outcome;
use crate::output::color::heading;
use crate::output::human;
use crate::session::Session;
use clap::Args;
use folio_pagecache::{MemInfo, Pressure, Rates};
use serde::Serialize;
use std::io::Write;

const EXAMPLES: &str = "\
Examples:
  folio cache meminfo
  folio cache meminfo --watch 1                    one line every second
  folio cache meminfo --json | jq .cached_bytes

REFAULT counts pages that were read again soon after their eviction: if it stays high, the cache is too small. MEM% and
IO% are the share of time in which a task waited for memory or for a disk.";
/// Rows between two headings.
const HEAD_EVERY: u64 = 20;

/// Show the use of memory
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Meminfo {
    #[command(flatten)]
    watch: Watch,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct MeminfoReport<'a> {
    #[serde(flatten)]
    now: &'a MemInfo,
    /// Since the previous round; null in the first round.
    per_second: Option<Rates>,
}

/// Runs the command.
pub(super) fn run(command: &Meminfo, session: &Session) -> Outcome {
    let mut before: Option<MemInfo> = None;
    command.watch.repeat(session, |round| {
        let now = MemInfo::now();
        let rates = before.as_ref().map(|before| now.since(before));
        if command.json {
            let report = MeminfoReport {
                now: &now,
                per_second: rates,
            };
            if command.watch.is_on() {
                session.print_json_line(&report)?;
            } else {
                session.print_json(&report)?;
            }
        } else if command.watch.is_on() {
            line(round, &now, rates.as_ref())?;
        } else {
            list(&now)?;
        }
        before = Some(now);
        Ok(())
    })
}

fn line(round: u64, now: &MemInfo, rates: Option<&Rates>) -> Outcome {
    let mut out = std::io::stdout().lock();
    let row = |cells: [&str; 13]| {
        let [time, cells @ ..] = cells;
        cells
            .iter()
            .fold(time.to_owned(), |row, cell| format!("{row} {cell:>7}"))
    };
    if round.is_multiple_of(HEAD_EVERY) {
        let names = [
            "TIME    ", "FREE", "AVAIL", "BUFFERS", "CACHED", "DIRTY", "WRITING", "ACTIVE",
            "INACT", "IN/s", "OUT/s", "REFAULT", "MEM%/IO%",
        ];
        writeln!(out, "{}", heading(row(names)))?;
    }
    let time = jiff::Zoned::now().strftime("%H:%M:%S").to_string();
    let rate = |of: fn(&Rates) -> f64| {
        rates.map_or_else(|| "-".to_owned(), |rates| human(of(rates) as u64))
    };
    let sizes = [
        now.free_bytes,
        now.available_bytes,
        now.buffers_bytes,
        now.cached_bytes,
        now.dirty_bytes,
        now.writeback_bytes,
        now.active_file_bytes,
        now.inactive_file_bytes,
    ]
    .map(human);
    let read = rate(|rates| rates.disk_read_bytes);
    let written = rate(|rates| rates.disk_written_bytes);
    let refaults = rates.map_or_else(
        || "-".to_owned(),
        |rates| format!("{:.0}", rates.refaulted_pages),
    );
    let some = |pressure: Option<Pressure>| {
        pressure.map_or_else(
            || "?".to_owned(),
            |pressure| format!("{:.0}", pressure.some_percent),
        )
    };
    let waits = format!("{}/{}", some(now.memory_pressure), some(now.io_pressure));
    let [
        free,
        available,
        buffers,
        cached,
        dirty,
        writing,
        active,
        inactive,
    ] = &sizes;
    let cells = [
        &time, free, available, buffers, cached, dirty, writing, active, inactive, &read, &written,
        &refaults, &waits,
    ];
    writeln!(out, "{}", row(cells.map(String::as_str)))?;
    Ok(out.flush()?)
}

/// Returns the rows of the list: name, bytes and remark.
fn sizes(now: &MemInfo) -> [(&'static str, u64, &'static str); 11] {
    [
        ("total", now.total_bytes, ""),
        ("free", now.free_bytes, "not used"),
        ("available", now.available_bytes, "usable without swapping"),
        (
            "buffers",
            now.buffers_bytes,
            "pages of block devices, mostly metadata",
        ),
        ("cached", now.cached_bytes, "pages of files"),
        (
            "shared",
            now.shared_bytes,
            "part of cached: tmpfs and shared memory",
        ),
        (
            "active",
            now.active_file_bytes,
            "part of cached: used more than once",
        ),
        (
            "inactive",
            now.inactive_file_bytes,
            "part of cached: evicted first",
        ),
        ("dirty", now.dirty_bytes, "modified, not written yet"),
        ("writing", now.writeback_bytes, "being written"),
        (
            "names",
            now.reclaimable_slab_bytes,
            "cached names and inodes",
        ),
    ]
}

fn list(now: &MemInfo) -> Outcome {
    let mut out = std::io::stdout().lock();
    let percent = |bytes: u64| bytes as f64 * 100.0 / now.total_bytes.max(1) as f64;
    let lines = sizes(now);
    for (name, bytes, words) in lines {
        writeln!(
            out,
            "{name:<10} {:>7} {:>5.1}%  {words}",
            human(bytes),
            percent(bytes)
        )?;
    }
    if now.group.total_bytes < now.total_bytes {
        let (total, available) = (
            human(now.group.total_bytes),
            human(now.group.available_bytes),
        );
        writeln!(
            out,
            "{:<10} {total:>7}         limit of this control group; {available} are available",
            "group"
        )?;
    }
    writeln!(
        out,
        "{:<10} {:>7}         pages read again soon after their eviction",
        "refaults", now.refaulted_pages
    )?;
    for (name, pressure) in [("memory", now.memory_pressure), ("disks", now.io_pressure)] {
        if let Some(pressure) = pressure {
            let (some, full) = (pressure.some_percent, pressure.full_percent);
            writeln!(
                out,
                "{name:<10} {some:>6.1}%         of time some task waited for it; {full:.1}% all tasks"
            )?;
        }
    }
    Ok(out.flush()?)
}
