//! When a file system looks for places, and what it writes at close(2) and rename(2) without being
//! asked.

use super::remedy::mount_again;
use crate::finding::{Certainty, Check};
use crate::probe::layers::{FileSystem, Layer};
use crate::probe::rename::Rename;
use crate::probe::rewrite::{Flush, Rewrite, at_rename, flushes_at_rename, is_flush};
use crate::probe::{Fact, Facts, Kind};
use crate::text::{quote, round};
use folio_pagecache::median;

const LAYER: &str = "file-system";
const DELAYED: &str = "no-delayed-allocation";
pub(super) const FLUSH: &str = "flush-on-truncate";
pub(super) const RENAME: &str = "flush-on-rename";

pub(super) fn judge(facts: &Facts) -> Vec<Check> {
    let own = storing(facts);
    if own.is_some_and(FileSystem::is_in_memory) {
        let says = "in memory: there is nothing to allocate and nothing to flush";
        return vec![Check::fine(LAYER, FLUSH, says)];
    }
    let tried = match &facts.rewrite {
        None => None,
        Some(Ok(tried)) => Some(tried),
        Some(Err(why)) => {
            return [DELAYED, FLUSH, RENAME]
                .map(|cause| Check::unknown(LAYER, cause, why.clone()))
                .into();
        }
    };
    let Some(own) = own else {
        return vec![Check::unknown(
            LAYER,
            DELAYED,
            "what stores the file cannot be seen from here",
        )];
    };
    let mut checks = Vec::new();
    checks.extend(delayed(facts, own, tried));
    match tried {
        None => checks.push(untried(own)),
        Some(tried) => {
            checks.push(truncated(facts, own, tried));
            checks.push(renamed(facts, own, &tried.renames));
        }
    }
    checks
}

/// The file system that allocates: through overlays and servers whose source can be seen.
fn storing(facts: &Facts) -> Option<&FileSystem> {
    for step in &facts.chain {
        match &step.layer {
            Layer::FileSystem(found) if !found.is_served() && found.fs_type != "overlay" => {
                return Some(found);
            }
            // The layers below store the image; the server of the image stores the file.
            Layer::Path { is_image: true, .. } => return None,
            _ => {}
        }
    }
    None
}

fn delayed(facts: &Facts, own: &FileSystem, tried: Option<&Rewrite>) -> Option<Check> {
    let target = quote(&own.mount_point);
    let verdict = |was_seen: bool, evidence: String| {
        let says = "no delayed allocation: each write looks for its place at once, in small pieces";
        // The kernel's ext4 refuses to change it in a remount, and leaves it off for what is
        // mounted as ext2 or ext3.
        let remedy = match own.fs_type.as_str() {
            // Data goes through the journal, so there is nothing to delay.
            _ if own.options.iter().any(|option| option == "data=journal") => None,
            "ext2" | "ext3" | "ext4" => Some(mount_again(facts, own, "ext4", "delalloc")),
            _ => None,
        };
        let check = match remedy {
            Some(remedy) if was_seen => {
                Check::fault(LAYER, DELAYED, Certainty::Certain, says).with_remedy(remedy)
            }
            Some(remedy) => Check::note(LAYER, DELAYED, says).with_remedy(remedy),
            None => Check::note(LAYER, DELAYED, says),
        };
        check.with_evidence(evidence)
    };
    let option = has_option(own, "delalloc") == Some(false);
    match tried.and_then(Rewrite::delays_allocation) {
        Some(false) => {
            let tries = tried.map_or(0, |tried| tried.tries.len() as u64);
            let also = if option {
                ", and it is mounted with nodelalloc"
            } else {
                ""
            };
            let evidence = format!(
                "written data had its place on disk before any sync, in most of {tries} tries{also}"
            );
            let check = match has_option(own, "delalloc") {
                Some(true) => in_spite_of_option(own).with_evidence(evidence),
                _ => verdict(true, evidence),
            };
            Some(check.with("tries", tries))
        }
        Some(true) => Some(Check::fine(
            LAYER,
            DELAYED,
            "delayed allocation: what was just written had no place yet",
        )),
        None if option => {
            let evidence = format!("{target} is mounted with nodelalloc; --write-probe tries it");
            Some(verdict(false, evidence).with("option", "nodelalloc"))
        }
        None if has_option(own, "delalloc") == Some(true) => Some(Check::fine(
            LAYER,
            DELAYED,
            format!("delayed allocation is on, by the options of {target}"),
        )),
        None => None,
    }
}

/// With little left ext4 looks for each place at once, whatever the options say
/// (`ext4_nonda_switch`).
fn in_spite_of_option(own: &FileSystem) -> Check {
    let says = "no delayed allocation, though the mount has it: there may be little room left";
    Check::fault(LAYER, DELAYED, Certainty::Hint, says)
        .with_remedy(format!("df -h {}", quote(&own.mount_point)))
}

/// What the options say; ext4's default is not a fault unless it costs time.
fn untried(own: &FileSystem) -> Check {
    if own.has("ro") {
        return Check::fine(LAYER, FLUSH, "mounted read-only: nothing is written");
    }
    let option = (own.fs_type == "ext4")
        .then(|| has_option(own, "auto_da_alloc"))
        .flatten();
    let says = match option {
        Some(true) => {
            "a file that is truncated and written again, or replaced by rename, is flushed at once \
             (auto_da_alloc); --write-probe tries it"
        }
        Some(false) => {
            return Check::fine(
                LAYER,
                FLUSH,
                "replaced files are not flushed at once (noauto_da_alloc)",
            );
        }
        None => {
            "whether rewriting or replacing a file flushes it was not tried: --write-probe does"
        }
    };
    Check::note(LAYER, FLUSH, says)
}

fn truncated(facts: &Facts, own: &FileSystem, tried: &Rewrite) -> Check {
    match tried.flushes_at_close() {
        Some(true) => {
            let says = "rewriting a file flushes it: closing it starts the writing, and waits where the disk's queue is full";
            let check = Check::fault(LAYER, FLUSH, Certainty::Certain, says);
            let check = with_tries(
                check,
                &tried.at_close(),
                "truncated, written again and closed",
                own,
            );
            check.with_remedy(remedy(facts, own, FLUSH))
        }
        Some(false) => Check::fine(LAYER, FLUSH, "rewriting a file does not flush it"),
        None => Check::unknown(LAYER, FLUSH, unseen("rewriting a file")),
    }
}

fn renamed(facts: &Facts, own: &FileSystem, tried: &Fact<Vec<Rename>>) -> Check {
    let tries = match tried {
        Ok(tries) => tries,
        Err(why) => return Check::unknown(LAYER, RENAME, why.clone()),
    };
    let median_us = |time: fn(&Rename) -> u64| {
        let all = tries.iter().map(|one| time(one) as f64 / 1000.0);
        round(median(all.collect()), 0)
    };
    match flushes_at_rename(tries) {
        Some(true) => {
            let says = "replacing a file by rename flushes it: the rename starts the writing, and waits where the disk's \
                        queue is full";
            let check = Check::fault(LAYER, RENAME, Certainty::Certain, says);
            let mut check = with_tries(check, &at_rename(tries), "renamed over another file", own);
            let (over, free) = (
                median_us(|one| one.replace_ns),
                median_us(|one| one.move_ns),
            );
            check.evidence.push_str(&format!(
                "; {over} us, to a free name {free} us and no flush"
            ));
            check
                .with("rename_over_us", over)
                .with("rename_free_us", free)
                .with_remedy(remedy(facts, own, RENAME))
        }
        Some(false) => Check::fine(
            LAYER,
            RENAME,
            "replacing a file by rename does not flush it",
        ),
        None => Check::unknown(LAYER, RENAME, unseen("replacing a file by rename")),
    }
}

fn unseen(what: &str) -> String {
    format!(
        "whether {what} flushes it is unknown: the file system reports neither the blocks nor the dirty pages of new files"
    )
}

/// What was seen in a try that shows the flush, and in how many of them.
fn with_tries(check: Check, tries: &[Flush<'_>], what: &str, own: &FileSystem) -> Check {
    let flushed = tries.iter().filter(|one| is_flush(one)).count();
    let mut evidence = format!("{what} in {flushed} of {} tries", tries.len());
    let mut check = check
        .with("tries", tries.len() as u64)
        .with("flushed_tries", flushed as u64);
    if let Some([_, before, after]) = tries.iter().find(|one| is_flush(one)) {
        evidence.push_str(&format!(
            ": {}; before, {}",
            after.describe(),
            before.describe()
        ));
        let delayed = |state: &crate::probe::written_state::State| {
            state.blocks.as_ref().ok().map(|found| found.delayed_bytes)
        };
        for (name, number) in [
            ("delayed_before_bytes", delayed(before)),
            ("delayed_after_bytes", delayed(after)),
            ("dirty_before_bytes", before.dirty_bytes),
            ("dirty_after_bytes", after.dirty_bytes),
            ("writeback_after_bytes", after.writeback_bytes),
        ] {
            check = number
                .into_iter()
                .fold(check, |check, number| check.with(name, number));
        }
    }
    if own.fs_type == "ext4" && has_option(own, "auto_da_alloc") == Some(true) {
        evidence.push_str(" (auto_da_alloc is on)");
    }
    check.with_evidence(evidence)
}

/// What the flush protects: ext4(5), `auto_da_alloc`.
const WITHOUT_FSYNC: &str =
    "a power cut may then empty files that programs replace without fsync(2)";

/// Only ext4 has an option for it; elsewhere programs have to write in another way.
fn remedy(facts: &Facts, own: &FileSystem, cause: &str) -> String {
    let file = match facts.kind {
        Kind::File => quote(&facts.path),
        _ => "FILE".to_owned(),
    };
    replacement_remedy(&file, own, cause)
}

/// How to replace `file` without a flush.
pub(super) fn replacement_remedy(file: &str, own: &FileSystem, cause: &str) -> String {
    match (own.fs_type.as_str(), cause) {
        ("ext4", _) => format!(
            "mount -o remount,noauto_da_alloc {}  # {WITHOUT_FSYNC}",
            quote(&own.mount_point)
        ),
        // Only truncation is watched there.
        ("xfs", FLUSH) => format!("cp NEW {file}.new && mv {file}.new {file}"),
        // To nothing, that is: cutting off an end is not.
        ("btrfs", _) => {
            format!("dd if=NEW of={file} bs=1M conv=notrunc && truncate --reference=NEW {file}")
        }
        _ => format!("findmnt --target {}", quote(&own.mount_point)),
    }
}

/// Returns whether an ext4 mount option is on, from /proc/fs/ext4, which includes the defaults.
pub(super) fn has_option(own: &FileSystem, name: &str) -> Option<bool> {
    let no = format!("no{name}");
    let all = own.options.iter().chain(&own.effective);
    all.rev().find_map(|option| {
        if *option == no {
            Some(false)
        } else {
            (option == name).then_some(true)
        }
    })
}

#[cfg(test)]
mod tests {
    use crate::judge::scene::{faults, healthy};
    use crate::probe::blocks::Blocks;
    use crate::probe::rename::Rename;
    use crate::probe::rewrite::{Rewrite, Try};
    use crate::probe::written_state::State;
    use crate::{Facts, Layer, Step, Verdict};

    const LEN: u64 = 1 << 20;

    fn state(delayed_bytes: u64) -> State {
        let blocks = Blocks {
            size_bytes: LEN,
            delayed_bytes,
            is_complete: true,
            ..Blocks::default()
        };
        State {
            blocks: Ok(blocks),
            dirty_bytes: Some(delayed_bytes),
            writeback_bytes: Some(0),
        }
    }

    fn tried(fs_type: &str, fresh: u64, closed: u64, rewritten: u64) -> Facts {
        let mut facts = healthy(fs_type);
        let one = Try {
            fresh: state(fresh),
            fresh_closed: state(closed),
            rewritten_closed: state(rewritten),
        };
        // A rename that flushes as closing does.
        let rename = Rename {
            fresh: state(fresh),
            moved: state(closed),
            replaced: state(rewritten),
            move_ns: 30_000,
            replace_ns: 300_000,
        };
        let tried = Rewrite {
            tries: vec![one; 5],
            renames: Ok(vec![rename; 5]),
            first_writes: Err(String::new()),
        };
        facts.rewrite = Some(Ok(tried));
        facts
    }

    fn set(facts: &mut Facts, option: &str) {
        let Layer::FileSystem(found) = &mut facts.chain[0].layer else {
            panic!()
        };
        found.effective.push(option.into());
    }

    #[test]
    fn flush_at_close_of_a_rewritten_file_is_reported() {
        let facts = tried("ext4", LEN, LEN, 0);
        assert_eq!(faults(&facts), ["flush-on-truncate", "flush-on-rename"]);
        let found = super::judge(&facts);
        for check in &found[1..3] {
            let remedy =
                "mount -o remount,noauto_da_alloc /mnt  # a power cut may then empty files";
            assert!(check.remedies[0].starts_with(remedy), "{check:?}");
            assert!(check.evidence.contains("in 5 of 5 tries"), "{check:?}");
            assert_eq!(check.numbers["delayed_before_bytes"], LEN);
            assert_eq!(check.numbers["delayed_after_bytes"], 0);
        }
        assert!(
            found[2]
                .evidence
                .ends_with("; 300 us, to a free name 30 us and no flush"),
            "{:?}",
            found[2]
        );
        assert_eq!(faults(&tried("ext4", LEN, LEN, LEN)), [""; 0]);
    }

    #[test]
    fn each_file_system_has_its_own_way_around_a_flush() {
        for (fs_type, way) in [
            ("xfs", "cp NEW /mnt/file.new && mv /mnt/file.new /mnt/file"),
            (
                "btrfs",
                "dd if=NEW of=/mnt/file bs=1M conv=notrunc && truncate --reference=NEW /mnt/file",
            ),
            ("bcachefs", "findmnt --target /mnt"),
        ] {
            let found = super::judge(&tried(fs_type, LEN, LEN, 0));
            assert_eq!(found[1].remedies, [way], "{fs_type}");
        }
    }

    #[test]
    fn a_rename_is_judged_by_itself() {
        let mut facts = tried("xfs", LEN, LEN, 0);
        let Some(Ok(found)) = &mut facts.rewrite else {
            panic!()
        };
        found
            .renames
            .as_mut()
            .unwrap()
            .iter_mut()
            .for_each(|one| one.replaced = state(LEN));
        assert_eq!(faults(&facts), ["flush-on-truncate"]);
        assert_eq!(super::judge(&facts)[2].verdict, Verdict::Fine);
        let Some(Ok(found)) = &mut facts.rewrite else {
            panic!()
        };
        found.renames = Err("no names may be made".into());
        assert_eq!(super::judge(&facts)[2].verdict, Verdict::Unknown);
    }

    #[test]
    fn missing_delayed_allocation_is_detected() {
        for (fs_type, remedy) in [
            (
                "ext4",
                "umount /mnt && mount -t ext4 -o delalloc /srv/source /mnt",
            ),
            (
                "ext3",
                "umount /mnt && mount -t ext4 -o delalloc /srv/source /mnt",
            ),
        ] {
            let facts = tried(fs_type, 0, 0, 0);
            assert_eq!(faults(&facts), ["no-delayed-allocation"]);
            assert_eq!(super::judge(&facts)[0].remedies, [remedy]);
        }
        let mut facts = tried("ext4", 0, 0, 0);
        set(&mut facts, "delalloc");
        assert_eq!(faults(&facts), ["no-delayed-allocation"]);
        assert_eq!(super::judge(&facts)[0].remedies, ["df -h /mnt"]);
        // Other file systems have no option that turns it on.
        assert_eq!(faults(&tried("vfat", 0, 0, 0)), [""; 0]);
        assert_eq!(
            super::judge(&tried("vfat", 0, 0, 0))[0].verdict,
            Verdict::Note
        );
        let mut facts = healthy("ext4");
        set(&mut facts, "nodelalloc");
        assert_eq!(faults(&facts), [""; 0], "an option alone costs nothing");
        assert_eq!(super::judge(&facts)[0].verdict, Verdict::Note);
        let mut facts = healthy("ext4");
        set(&mut facts, "delalloc");
        set(&mut facts, "auto_da_alloc");
        assert_eq!(
            faults(&facts),
            [""; 0],
            "ext4's default is no fault until it is seen to cost"
        );
        assert!(
            super::judge(&facts)
                .iter()
                .any(|check| check.verdict == Verdict::Note)
        );
    }

    /// A server that shows a folder has it stored by what is below; one that shows what is in an
    /// image stores it itself.
    #[test]
    fn layers_below_an_image_do_not_store_its_files() {
        let mut facts = healthy("fuse.folio");
        let mut below = healthy("ext4").chain.remove(0);
        below.depth = 2;
        let Layer::FileSystem(found) = &mut below.layer else {
            panic!()
        };
        found.effective.push("nodelalloc".into());
        for (is_image, wanted) in [(false, Verdict::Note), (true, Verdict::Unknown)] {
            let path = Layer::Path {
                path: "/srv/source".into(),
                by_name: true,
                is_image,
            };
            facts.chain.truncate(1);
            facts.chain.extend([
                Step {
                    depth: 1,
                    layer: path,
                },
                below.clone(),
            ]);
            assert_eq!(super::judge(&facts)[0].verdict, wanted, "{is_image}");
        }
    }

    #[test]
    fn what_could_not_be_tried_is_unknown() {
        let mut facts = healthy("ext4");
        facts.rewrite = Some(Err("read-only".into()));
        assert!(
            super::judge(&facts)
                .iter()
                .all(|check| check.verdict == Verdict::Unknown)
        );
        let mut facts = healthy("tmpfs");
        facts.rewrite = Some(Err("no room".into()));
        assert!(
            super::judge(&facts)[0].verdict == Verdict::Fine,
            "whatever could not be tried"
        );
        assert!(super::judge(&healthy("nfs4"))[0].verdict == Verdict::Unknown);
        assert!(super::judge(&healthy("tmpfs"))[0].verdict == Verdict::Fine);
        assert!(super::judge(&healthy("proc"))[0].verdict == Verdict::Fine);
        let mut facts = healthy("squashfs");
        assert!(super::judge(&facts)[0].verdict == Verdict::Note);
        let Layer::FileSystem(found) = &mut facts.chain[0].layer else {
            panic!()
        };
        found.options.push("ro".into());
        assert!(super::judge(&facts)[0].verdict == Verdict::Fine);
    }
}
