//! Verdicts on a command's time: the causes of its waits, the costliest first.

use super::cure;
use super::file_system::{FLUSH, RENAME, has_option, replacement_remedy};
use super::remedy;
use crate::finding::{Certainty, Check};
use crate::probe::layers::FileSystem;
use crate::text::{bytes, percent, quote, round};
use crate::workload::{Cost, Part, Tiny, Workload};
use std::path::{Path, PathBuf};

/// Percent of the wall time that a finding takes at least.
const SHARE_MIN: f64 = 10.0;
/// Nanoseconds that a finding takes at least.
const COST_MIN_NS: u64 = 50_000_000;
/// Calls of a fault at least.
const CALLS_MIN: u64 = 16;
/// Small calls of a fault at least.
const SMALL_CALLS_MIN: u64 = 10_000;
/// Bytes of a buffer that is large enough.
const BUFFER_BYTES: u64 = 64 << 10;
/// Bytes of a page.
const PAGE_BYTES: u64 = 4096;
/// Part of the calls that sleep, from which on each asks a server, if that was not measured: some
/// answers arrive before the program sleeps.
const ASKED: f64 = 0.3;
/// Pages that were read again of a fault at least.
const REFAULTS_MIN: u64 = 4096;

/// Returns the faults and notes of a command, the costliest first.
pub fn judge(workload: &Workload) -> Vec<Check> {
    let costs = workload.costs.iter();
    let mut found: Vec<_> = costs
        .filter_map(|cost| judge_cost(workload, cost))
        .collect();
    found.extend(judge_tiny(workload));
    found.sort_by_key(|(cost_ns, _)| u64::MAX - cost_ns);
    found.into_iter().map(|(_, check)| check).collect()
}

/// Something that takes this many nanoseconds, of which a remedy saves a part.
struct Finding<'a> {
    workload: &'a Workload,
    cost_ns: u64,
    /// From 0 to 1.
    saved: f64,
}

impl Finding<'_> {
    fn is_large(&self) -> bool {
        self.cost_ns >= COST_MIN_NS && self.share() >= SHARE_MIN
    }

    /// Returns whether the saved time is large.
    fn saves_much(&self) -> bool {
        let saved_ns = (self.cost_ns as f64 * self.saved) as u64;
        saved_ns >= COST_MIN_NS && self.share_of(saved_ns) >= SHARE_MIN
    }

    fn share(&self) -> f64 {
        self.share_of(self.cost_ns)
    }

    /// Percent of the time that the command takes when it is not traced.
    fn share_of(&self, ns: u64) -> f64 {
        let parts = self.workload.parts.iter();
        let tracing = parts.filter(|(part, _)| *part == Part::Tracing);
        let tracing_ns: u64 = tracing.map(|(_, ns)| *ns).sum();
        let own_ns = self.workload.wall_ns.saturating_sub(tracing_ns);
        percent(ns, own_ns)
    }

    fn with_numbers(&self, check: Check) -> (u64, Check) {
        let seconds = |ns: f64| round(ns / 1e9, 3);
        let check = check
            .with("cost_s", seconds(self.cost_ns as f64))
            .with("share_percent", self.share())
            .with("saves_s", seconds(self.cost_ns as f64 * self.saved));
        (self.cost_ns, check)
    }
}

fn judge_cost(workload: &Workload, cost: &Cost) -> Option<(u64, Check)> {
    let own = &workload.mounts.get(cost.mount)?.file_system;
    // Names and attributes that a server is asked for take a processor on both sides, and so does
    // the allocation at close and rename.
    let takes_processor = match cost.part {
        Part::Attributes | Part::OpenAndLookup => is_asked_again(cost, own),
        part => matches!(part, Part::Close | Part::Rename),
    };
    let saved = match cost.part {
        Part::Close | Part::Rename => 0.9,
        // What waits once waits again, unless it is done beforehand.
        Part::Attributes | Part::OpenAndLookup if !is_asked_again(cost, own) => 0.0,
        Part::Writes | Part::Locks => 0.0,
        // In memory beforehand, nothing waits.
        Part::ReadMisses => 1.0,
        // Without the option nothing waits.
        Part::SyncWrites if own.has("sync") => 1.0,
        _ => 1.0 - remaining(cost),
    };
    let finding = Finding {
        workload,
        cost_ns: if takes_processor {
            cost.wall_ns
        } else {
            cost.wait_ns
        },
        saved,
    };
    if !finding.is_large() {
        return None;
    }
    let is_attributes = matches!(cost.part, Part::Attributes | Part::OpenAndLookup);
    if is_attributes && is_asked_again(cost, own) && !(is_confirmed(cost) && finding.saves_much()) {
        return None;
    }
    let check = match cost.part {
        Part::Attributes | Part::OpenAndLookup => attributes(cost, own),
        Part::Fsync => fsync(cost, own),
        Part::Close if cost.replacements > 0 => replacement(cost, own, FLUSH)?,
        Part::Rename if cost.replacements > 0 => replacement(cost, own, RENAME)?,
        Part::SyncWrites => synchronous(cost, own),
        Part::ReadMisses => reads(workload, cost, own),
        Part::Writes => writes(cost, own),
        Part::Locks => locks(cost, own),
        _ => return None,
    };
    let mut check = if cost.calls < CALLS_MIN {
        check.into_note()
    } else {
        check
    };
    check.cure = Some(cure::of(&check, cost, workload));
    let check = check
        .with("calls", cost.calls)
        .with("files", cost.files.len() as u64)
        .with(
            "mount_point",
            own.mount_point.to_string_lossy().into_owned(),
        );
    Some(finding.with_numbers(check))
}

/// Returns the part of the time that remains, from 0 to 1.
///
/// A server is asked once for each file, and still opens the files each time that the program does:
/// without asking for names and attributes. One sync is enough for all files of a mount
/// (syncfs(2)); it moves the bytes of all calls.
fn remaining(cost: &Cost) -> f64 {
    let calls = cost.calls.max(1) as f64;
    let part_of = |ns: u64, whole_ns: u64| ns as f64 / whole_ns.max(1) as f64;
    let part = match (cost.part, cost.last_sync_ns) {
        (Part::Fsync | Part::SyncWrites, Some(last_ns)) => part_of(last_ns, cost.wait_ns),
        (Part::Fsync | Part::SyncWrites, None) => 1.0 / calls,
        _ => {
            let opens_ns = cost.reopen_ns.unwrap_or(0).saturating_mul(cost.opens);
            cost.files.len().max(1) as f64 / calls + part_of(opens_ns, cost.wall_ns)
        }
    };
    part.min(1.0)
}

/// `211000 stats of 3100 files on /mnt/share (virtiofs)`.
fn subject(cost: &Cost, call: &str, own: &FileSystem) -> String {
    let number = |count: u64, name: &str| match count {
        1 => format!("1 {name}"),
        count => format!("{count} {name}s"),
    };
    let files = match cost.files.len() {
        0 => String::new(),
        count => format!(" of {}", number(count as u64, "file")),
    };
    let place = own.mount_point.display();
    format!(
        "{}{files} on {place} ({})",
        number(cost.calls, call),
        own.fs_type
    )
}

/// `113.7 us each; most: PATH`.
fn mean(cost: &Cost) -> String {
    let each = round(cost.wait_ns as f64 / cost.calls.max(1) as f64 / 1000.0, 1);
    let example = cost.example.as_ref();
    let most = example.map(|path| format!("; the longest: {}", path.display()));
    format!(
        "{} calls waited {each} us each{}",
        cost.calls,
        most.unwrap_or_default()
    )
}

/// Returns whether calls ask a server for the same names and attributes again and again.
fn is_asked_again(cost: &Cost, own: &FileSystem) -> bool {
    own.is_served() && cost.calls >= CALLS_MIN.max(2 * cost.files.len() as u64)
}

/// Returns whether a server is asked for the names and attributes of these calls. Opens ask it even
/// if names and attributes are valid, and a slow call may have waited for a processor.
fn is_confirmed(cost: &Cost) -> bool {
    let is_likely = cost.slept as f64 >= ASKED * cost.calls as f64;
    cost.is_asked.unwrap_or(is_likely)
}

/// Returns whether a cost is a finding if a server is asked for names or attributes again.
pub(crate) fn is_asked_finding(workload: &Workload, cost: &Cost) -> bool {
    let is_attributes = matches!(cost.part, Part::Attributes | Part::OpenAndLookup);
    let own = workload.mounts.get(cost.mount);
    let finding = Finding {
        workload,
        cost_ns: cost.wall_ns,
        saved: 1.0 - remaining(cost),
    };
    let is_again = own.is_some_and(|own| is_asked_again(cost, &own.file_system));
    is_attributes && is_again && finding.saves_much()
}

fn attributes(cost: &Cost, own: &FileSystem) -> Check {
    let (call, cause) = match cost.part {
        Part::Attributes => ("attribute call", "attributes-not-trusted"),
        _ => ("open or list", "names-not-cached"),
    };
    let subject = subject(cost, call, own);
    if !is_asked_again(cost, own) {
        let says = format!("{subject}: names and attributes were not in memory");
        let check = Check::note("attributes", cause, says).with_evidence(mean(cost));
        let folder = cost.example.as_ref().and_then(|path| path.parent());
        let folder = quote(folder.unwrap_or(&own.mount_point));
        return check.with_remedy(format!("du -s {folder}  # reads them beforehand"));
    }
    let says = format!("{subject}: each asks the server");
    let check = Check::fault("attributes", cause, Certainty::Certain, says);
    let remedies = match cost.part {
        Part::Attributes => remedy::attributes_on(own),
        _ => remedy::names_on(own),
    };
    remedies
        .into_iter()
        .fold(check.with_evidence(mean(cost)), Check::with_remedy)
}

fn fsync(cost: &Cost, own: &FileSystem) -> Check {
    let says = format!("{}: each waits for the disk", subject(cost, "fsync", own));
    if cost.calls < CALLS_MIN {
        return Check::note("file-system", "fsync-waits", says).with_evidence(mean(cost));
    }
    let check = Check::fault("file-system", "fsync-waits", Certainty::Certain, says);
    let check = check.with_evidence(mean(cost));
    let example = cost
        .example
        .as_ref()
        .map(|path| path.to_string_lossy().into_owned());
    let example = example.unwrap_or_default();
    let risk = "a power cut may then lose the last transactions";
    let statements = "in the program: more statements in each transaction (BEGIN ... COMMIT)";
    if let Some(database) = example.strip_suffix("-journal") {
        let database = quote(Path::new(database));
        return check.with_remedy(statements).with_remedy(format!(
            "sqlite3 {database} 'PRAGMA journal_mode=WAL'  # with PRAGMA synchronous=NORMAL {risk}"
        ));
    }
    if example.ends_with("-wal") {
        let normal = format!("in the program: PRAGMA synchronous=NORMAL  # {risk}");
        return check.with_remedy(statements).with_remedy(normal);
    }
    let once = match cost.files.len() {
        0 | 1 => "one fsync(2) for several writes",
        _ => "one fsync(2) for several writes, or one syncfs(2) for several files",
    };
    let risk = "what is not yet synced is lost in a power cut";
    check.with_remedy(format!("in the program: {once}  # {risk}"))
}

fn replacement(cost: &Cost, own: &FileSystem, cause: &'static str) -> Option<Check> {
    if own.fs_type == "ext4" && has_option(own, "auto_da_alloc") == Some(false) {
        return None;
    }
    if !matches!(own.fs_type.as_str(), "ext4" | "xfs" | "btrfs") {
        return None;
    }
    let (call, how) = match cause {
        RENAME => ("rename", "by rename"),
        _ => ("truncation", "by truncation"),
    };
    let subject = subject(cost, call, own);
    let says = format!("{subject}: files are replaced {how}, which starts their writeback");
    let each = round(cost.wall_ns as f64 / cost.calls.max(1) as f64 / 1000.0, 1);
    let evidence = format!(
        "{} of {} calls replaced a file, {each} us each, {} us of them waiting",
        cost.replacements,
        cost.calls,
        round(cost.wait_ns as f64 / cost.calls.max(1) as f64 / 1000.0, 1)
    );
    let file = cost
        .example
        .as_ref()
        .map_or_else(|| "FILE".to_owned(), |path| quote(path));
    let check = Check::fault("file-system", cause, Certainty::Likely, says);
    Some(
        check
            .with_evidence(evidence)
            .with_remedy(replacement_remedy(&file, own, cause)),
    )
}

fn synchronous(cost: &Cost, own: &FileSystem) -> Check {
    let is_mount = own.has("sync");
    let by = if is_mount {
        "the mount has the option sync"
    } else {
        "the file is open with O_SYNC or O_DSYNC"
    };
    let says = format!(
        "{}: each waits for the disk, as {by}",
        subject(cost, if is_mount { "change" } else { "write" }, own)
    );
    let check = Check::fault(
        "file-system",
        "synchronous-writes",
        Certainty::Certain,
        says,
    );
    let risk = "what is not yet synced is lost in a power cut";
    check.with_evidence(mean(cost)).with_remedy(if is_mount {
        format!("mount -o remount,async {}  # {risk}", quote(&own.mount_point))
    } else {
        format!("in the program: no O_SYNC, and one fdatasync(2) at the end (dd conv=fdatasync)  # {risk}")
    })
}

fn reads(workload: &Workload, cost: &Cost, own: &FileSystem) -> Check {
    let refaulted = workload.refaulted_pages.unwrap_or(0);
    let example = cost.example.as_ref().unwrap_or(&own.mount_point);
    let place = quote(common_folder(&cost.files, own).unwrap_or(example));
    let subject = subject(cost, "read", own);
    let evidence = format!("{}; {} from a disk", mean(cost), bytes(cost.device_bytes));
    if refaulted >= REFAULTS_MIN
        && refaulted * PAGE_BYTES * 2 >= cost.device_bytes
        && cost.device_bytes > 0
    {
        let says = format!("{subject}: the pages were in memory before, and were evicted");
        return Check::fault("memory", "evicted", Certainty::Likely, says)
            .with_evidence(format!(
                "{evidence}; {refaulted} pages of the machine were read again"
            ))
            .with("refaulted_pages", refaulted)
            .with_remedy(format!("folio warm --lock {place}"));
    }
    let says = format!("{subject}: the pages were not in memory");
    let check = Check::note("page-cache", "cold", says).with_evidence(evidence);
    check.with_remedy(format!("folio warm {place}  # beforehand"))
}

/// The folder that has all of these files, of which there are several; `None` if that is the whole
/// mount.
fn common_folder<'a>(files: &'a [PathBuf], own: &FileSystem) -> Option<&'a Path> {
    let (first, rest) = files.split_first().filter(|(_, rest)| !rest.is_empty())?;
    let mut folders = first.ancestors().skip(1);
    let common = folders.find(|folder| rest.iter().all(|file| file.starts_with(folder)))?;
    (common != own.mount_point && common.parent().is_some()).then_some(common)
}

fn writes(cost: &Cost, own: &FileSystem) -> Check {
    let says = format!(
        "{}: throttled, or blocks are allocated",
        subject(cost, "write", own)
    );
    let check = Check::note("file-system", "write-waits", says).with_evidence(mean(cost));
    check.with_remedy(format!(
        "folio doctor --write-probe {}",
        quote(&own.mount_point)
    ))
}

fn locks(cost: &Cost, own: &FileSystem) -> Check {
    let says = format!(
        "{}: another process holds the lock",
        subject(cost, "lock", own)
    );
    Check::note("file-system", "lock-waits", says).with_evidence(mean(cost))
}

/// Returns whether the costliest file of small calls is a finding.
pub(crate) fn is_tiny_finding(workload: &Workload) -> bool {
    workload.tiny.first().is_some_and(|first| {
        let finding = Finding {
            workload,
            cost_ns: first.ns,
            saved: 0.0,
        };
        finding.is_large() && first.calls >= SMALL_CALLS_MIN
    })
}

fn judge_tiny(workload: &Workload) -> Option<(u64, Check)> {
    let first: &Tiny = workload.tiny.first()?;
    let each = round(first.bytes as f64 / first.calls.max(1) as f64, 1);
    // Large calls copy the same bytes.
    let remains = match first.large_ns {
        Some(large_ns) => large_ns as f64 / first.ns.max(1) as f64,
        None => each / BUFFER_BYTES as f64,
    };
    let finding = Finding {
        workload,
        cost_ns: first.ns,
        saved: 1.0 - remains.min(1.0),
    };
    if !is_tiny_finding(workload) {
        return None;
    }
    let name = if first.is_write { "writes" } else { "reads" };
    let says = format!(
        "{} {name} of {each} bytes each, of {}: the calls cost more than the data",
        first.calls,
        first.path.display()
    );
    let nanos = first.ns / first.calls.max(1);
    let mut check = Check::fault("copy", "tiny-buffers", Certainty::Certain, says)
        .with_evidence(format!(
            "{} in {} calls, {nanos} ns for each",
            bytes(first.bytes),
            first.calls
        ))
        .with("calls", first.calls)
        .with("bytes_per_call", each)
        .with_remedy("in the program: a buffer of 64 KiB (setvbuf, BufWriter, dd bs=64K)");
    check.cure = Some(cure::BUFFER);
    Some(finding.with_numbers(check))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cure::Cure;
    use crate::finding::Verdict;
    use crate::workload::{MountedOn, Recorder, Timeline};
    use std::time::SystemTime;

    /// The finding on this many writes with O_SYNC, which take half of the time.
    fn finding_on(calls: u64, last_sync_ns: Option<u64>) -> Check {
        finding_in(FileSystem::default(), calls, last_sync_ns)
    }

    /// As `finding_on`, in this file system.
    fn finding_in(file_system: FileSystem, calls: u64, last_sync_ns: Option<u64>) -> Check {
        let cost = Cost {
            calls,
            files: vec!["log".into()],
            wait_ns: 1_000_000_000,
            wall_ns: 1_000_000_000,
            bytes: 4096 * calls,
            last_sync_ns,
            ..Cost::new(Part::SyncWrites, 0)
        };
        judge(&workload(file_system, cost)).remove(0)
    }

    /// A command of two seconds with this cost.
    fn workload(file_system: FileSystem, cost: Cost) -> Workload {
        let mount = MountedOn {
            file_system,
            has_files: true,
            is_answering: true,
        };
        Workload {
            status: None,
            started: SystemTime::now(),
            recorder: Recorder::Preload,
            has_lost_privileges: false,
            wall_ns: 2_000_000_000,
            parts: Vec::new(),
            costs: vec![cost],
            files: Vec::new(),
            timeline: Timeline::default(),
            tiny: Vec::new(),
            unreached: Vec::new(),
            mounts: vec![mount],
            processes: 1,
            dropped: 0,
            refaulted_pages: None,
        }
    }

    #[test]
    fn files_of_a_folder_are_warmed_together() {
        let own = FileSystem {
            mount_point: "/srv".into(),
            ..FileSystem::default()
        };
        for (files, folder) in [
            (&["/srv/a/b", "/srv/a/c/d"][..], Some("/srv/a")),
            (&["/srv/a/b", "/srv/ab"], None),
            (&["/srv/a/b"], None),
            (&[], None),
        ] {
            let files: Vec<PathBuf> = files.iter().map(PathBuf::from).collect();
            assert_eq!(
                common_folder(&files, &own),
                folder.map(Path::new),
                "{files:?}"
            );
        }
    }

    #[test]
    fn few_calls_are_a_note() {
        let verdict_on = |calls| finding_on(calls, None).verdict;
        assert_eq!(verdict_on(CALLS_MIN), Verdict::Fault);
        assert_eq!(verdict_on(CALLS_MIN - 1), Verdict::Note);
    }

    #[test]
    fn sync_option_is_changed_on_known_file_systems() {
        let is_remounted = |fs_type: &str| {
            let file_system = FileSystem {
                fs_type: fs_type.to_owned(),
                options: vec!["rw".to_owned(), "sync".to_owned()],
                ..FileSystem::default()
            };
            let cure = finding_in(file_system, 100, None).cure;
            matches!(cure, Some(Cure::Remount { .. }))
        };
        assert!(
            ["ext2", "ext4", "xfs", "btrfs"]
                .into_iter()
                .all(is_remounted)
        );
        assert!(!["f2fs", "vfat", "nfs4"].into_iter().any(is_remounted));
    }

    #[test]
    fn last_sync_remains() {
        let saves = |last_sync_ns| finding_on(100, last_sync_ns).numbers["saves_s"].clone();
        assert_eq!(saves(None), 0.99);
        assert_eq!(saves(Some(400_000_000)), 0.6);
        assert_eq!(saves(Some(2_000_000_000)), 0.0);
    }

    /// As many files as calls: a program that saves files, each with one sync.
    #[test]
    fn one_sync_is_enough_for_all_files() {
        let cost = Cost {
            calls: 100,
            files: (0..100).map(|n| format!("f{n}").into()).collect(),
            wait_ns: 1_000_000_000,
            ..Cost::new(Part::Fsync, 0)
        };
        let check = judge(&workload(FileSystem::default(), cost)).remove(0);
        assert_eq!(check.numbers["saves_s"], 0.99);
        assert!(check.remedies[0].contains("syncfs(2)"));
    }

    #[test]
    fn server_saves_all_but_the_open() {
        let served = || FileSystem {
            fs_type: "fuse.sshfs".to_owned(),
            ..FileSystem::default()
        };
        let cost = |part, reopen_ns| Cost {
            calls: 1000,
            opens: 500,
            files: vec!["file".into()],
            // The rest takes a processor, here and in the server.
            wait_ns: 300_000_000,
            wall_ns: 1_000_000_000,
            reopen_ns,
            is_asked: Some(true),
            ..Cost::new(part, 0)
        };
        let found = |part, reopen_ns| {
            let check = judge(&workload(served(), cost(part, reopen_ns))).remove(0);
            ["cost_s", "saves_s"].map(|name| check.numbers[name].as_f64().unwrap())
        };
        assert_eq!(found(Part::Attributes, None), [1.0, 0.999]);
        assert_eq!(found(Part::OpenAndLookup, None), [1.0, 0.999]);
        assert_eq!(found(Part::OpenAndLookup, Some(400_000)), [1.0, 0.799]);
        // The server is asked for the opens themselves.
        let opens = cost(Part::OpenAndLookup, Some(u64::MAX));
        assert!(judge(&workload(served(), opens)).is_empty());
    }

    #[test]
    fn slow_calls_need_a_server_that_is_asked() {
        let is_fault = |part, slept, is_asked| {
            let cost = Cost {
                calls: 1000,
                files: vec!["file".into()],
                wait_ns: 1_000_000_000,
                wall_ns: 1_000_000_000,
                slept,
                is_asked,
                ..Cost::new(part, 0)
            };
            let served = FileSystem {
                fs_type: "fuse".to_owned(),
                ..FileSystem::default()
            };
            let workload = workload(served, cost);
            assert!(is_asked_finding(&workload, &workload.costs[0]));
            !judge(&workload).is_empty()
        };
        for part in [Part::Attributes, Part::OpenAndLookup] {
            assert!(is_fault(part, 0, Some(true)));
            assert!(!is_fault(part, 1000, Some(false)));
            assert!(is_fault(part, 300, None));
            assert!(!is_fault(part, 299, None));
        }
    }

    #[test]
    fn copies_of_tiny_buffers_remain() {
        let saves = |large_ns| {
            let mut workload = workload(FileSystem::default(), Cost::new(Part::Cpu, 0));
            workload.tiny = vec![Tiny {
                path: "file".into(),
                mount: 0,
                is_write: true,
                calls: 1_000_000,
                bytes: 512_000_000,
                new_bytes: 0,
                may_be_created: false,
                ns: 1_000_000_000,
                large_ns,
            }];
            judge(&workload)[0].numbers["saves_s"].clone()
        };
        assert_eq!(saves(None), 0.992);
        assert_eq!(saves(Some(700_000_000)), 0.3);
        assert_eq!(saves(Some(2_000_000_000)), 0.0);
    }
}
