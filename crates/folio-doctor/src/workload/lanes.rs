//! The run over time: the critical path, and the threads that it or file waits pass through.

use super::critical::Split;
use super::part::Part;
use super::strip::{Interval, Strip};
use super::timeline::{Process, Thread};
use super::visit::Visit;
use folio_interpose::Ring;
use std::cmp::Reverse;
use std::collections::HashMap;
use std::path::PathBuf;

/// Threads of a report.
const LANES_MAX: usize = 16;
/// Generations in which the program of a process is looked for.
const PARENTS_MAX: usize = 64;

/// A run over time.
#[derive(Debug, Clone, Default)]
pub struct Timeline {
    /// The critical path.
    pub path: Strip,
    /// The threads with most time on the critical path or in file waits, in the order of their
    /// starts.
    pub lanes: Vec<Lane>,
    /// Threads without a lane.
    pub omitted: usize,
}

/// A thread over time.
#[derive(Debug, Clone)]
pub struct Lane {
    /// Its process.
    pub pid: u32,
    /// The thread; the main thread has the number of the process.
    pub tid: u32,
    /// The program of the process, if it is known.
    pub program: Option<PathBuf>,
    /// Its time.
    pub strip: Strip,
    /// Nanoseconds that the critical path was in this thread, for each bucket.
    pub on_path: Vec<u64>,
}

/// Returns the threads of a run over time.
pub(super) fn lanes(split: &mut Split<'_>, ring: &Ring) -> (Vec<Lane>, usize) {
    let mut on_path: HashMap<(u32, u32), u64> = HashMap::new();
    for ((pid, tid, _), ns) in split.on_path() {
        *on_path.entry((*pid, *tid)).or_default() += ns;
    }
    let processes = &split.timelines().processes;
    let whole = split.whole();
    let mut found = Vec::new();
    for (pid, process) in processes {
        for (tid, thread) in &process.threads {
            let path_ns = on_path.get(&(*pid, *tid)).copied().unwrap_or(0);
            let waits_ns = split.file_waits_ns(thread, whole);
            if path_ns > 0 || waits_ns > 0 {
                found.push((Reverse(path_ns.max(waits_ns)), *pid, *tid));
            }
        }
    }
    found.sort_unstable();
    let omitted = found.len().saturating_sub(LANES_MAX);
    found.truncate(LANES_MAX);
    let mut lanes: Vec<_> = found
        .into_iter()
        .map(|(_, pid, tid)| {
            let process = &processes[&pid];
            let thread = &process.threads[&tid];
            let start_ns = if pid == tid {
                process.start_ns
            } else {
                thread.readings.first().map_or(0, |first| first.at_ns)
            };
            (start_ns, lane(split, [pid, tid], process, ring))
        })
        .collect();
    lanes.sort_by_key(|(start_ns, lane)| (*start_ns, lane.pid, lane.tid));
    (lanes.into_iter().map(|(_, lane)| lane).collect(), omitted)
}

fn lane(split: &mut Split<'_>, [pid, tid]: [u32; 2], process: &Process, ring: &Ring) -> Lane {
    let mut strip = Strip::new(split.whole());
    if let Some(thread) = process.threads.get(&tid) {
        let has_ended = process.has_ended || split.timelines().is_reaped(pid, process.parent);
        let life = life(process, thread, [pid == tid, has_ended], split.whole());
        let mut visit = Visit::new(process, thread, life, &strip);
        for (call, span) in thread.calls(life) {
            let part = split.part_of(span);
            if part != Part::NotFiles {
                let wait_ns = span.wait_ns.min(call.to - call.from);
                visit.wait(part, call, wait_ns, &mut strip);
            }
        }
        visit.finish(&mut strip).for_each(drop);
    }
    for found in split.small_of(pid, Some(tid)) {
        found.convert(&mut strip);
    }
    let mut on_path = vec![0; strip.buckets().len()];
    for ((_, _, bucket), ns) in split
        .on_path()
        .filter(|((a, b, _), _)| [*a, *b] == [pid, tid])
    {
        on_path[*bucket] += ns;
    }
    Lane {
        pid,
        tid,
        program: program(split, pid, ring),
        strip,
        on_path,
    }
}

/// Returns the time of a thread, within the run.
fn life(
    process: &Process,
    thread: &Thread,
    [is_main, has_ended]: [bool; 2],
    whole: Interval,
) -> Interval {
    let readings = &thread.readings;
    let first_ns = readings.first().map_or(whole.from, |first| first.at_ns);
    let last_ns = readings.last().map_or(whole.to, |last| last.at_ns);
    let (from, to) = if is_main {
        let end_ns = match &process.unreached {
            Some((since, _)) => *since,
            None if has_ended => process.end_ns,
            None => whole.to,
        };
        (process.start_ns, end_ns)
    } else {
        (first_ns, last_ns)
    };
    let from = from.clamp(whole.from, whole.to);
    Interval {
        from,
        to: to.clamp(from, whole.to),
    }
}

/// Returns the program of a process: its own, or that of the process that it was forked from.
fn program(split: &Split<'_>, pid: u32, ring: &Ring) -> Option<PathBuf> {
    let mut pid = pid;
    for _ in 0..PARENTS_MAX {
        let process = split.timelines().processes.get(&pid)?;
        if process.program != 0 {
            return ring.text(process.program);
        }
        pid = process.parent;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn life_ends_with_the_last_record() {
        let whole = Interval { from: 0, to: 100 };
        let end = |has_ended: bool, unreached: Option<(u64, String)>| {
            let process = Process {
                start_ns: 10,
                end_ns: 40,
                unreached,
                ..Process::default()
            };
            life(&process, &Thread::default(), [true, has_ended], whole).to
        };
        assert_eq!(end(true, None), 40);
        assert_eq!(end(false, None), 100);
        assert_eq!(end(false, Some((30, "static".to_owned()))), 30);
    }
}
