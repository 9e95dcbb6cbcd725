//! When a file system looks for places, and what it writes at close(2).

use crate::finding::{Certainty, Check};
use crate::probe::layers::{FileSystem, Layer};
use crate::probe::rewrite::Rewrite;
use crate::probe::{Fact, Facts};
use crate::text::{quote, round};

const LAYER: &str = "file-system";
const DELAYED: &str = "no-delayed-allocation";
const FLUSH: &str = "flush-on-truncate";

pub(super) fn judge(facts: &Facts) -> Vec<Check> {
    let tried = match &facts.rewrite {
        None => None,
        Some(Ok(tried)) => Some(tried),
        Some(Err(why)) => {
            return vec![
                Check::unknown(LAYER, DELAYED, why.clone()),
                Check::unknown(LAYER, FLUSH, why.clone()),
            ];
        }
    };
    let Some(own) = storing(facts) else {
        return vec![Check::unknown(LAYER, DELAYED, "what stores the file cannot be seen from here")];
    };
    if matches!(own.fs_type.as_str(), "tmpfs" | "ramfs" | "devtmpfs") {
        return vec![Check::fine(
            LAYER,
            FLUSH,
            "in memory: there is nothing to allocate and nothing to flush",
        )];
    }
    let mut checks = Vec::new();
    checks.extend(delayed(own, tried));
    checks.extend(flush(own, tried));
    checks
}

/// The file system that allocates: through overlays and servers whose source can be seen.
fn storing(facts: &Facts) -> Option<&FileSystem> {
    let mut file_systems = facts.chain.iter().filter_map(|step| match &step.layer {
        Layer::FileSystem(found) => Some(found),
        _ => None,
    });
    file_systems.find(|found| !found.is_served() && found.fs_type != "overlay")
}

fn delayed(own: &FileSystem, tried: Option<&Rewrite>) -> Option<Check> {
    let target = quote(&own.mount_point);
    let fault = |evidence: String| {
        let says = "no delayed allocation: each write looks for its place at once, in small pieces";
        Check::fault(LAYER, DELAYED, Certainty::Certain, says)
            .with_evidence(evidence)
            .with_remedy(format!("mount -o remount,delalloc {target}"))
    };
    let option = has_option(own, "delalloc") == Some(false);
    match tried.and_then(Rewrite::delays_allocation) {
        Some(false) => {
            let tries = tried.map_or(0, |tried| tried.tries.len() as u64);
            let also = if option { ", and it is mounted with nodelalloc" } else { "" };
            let evidence = format!(
                "what was just written had its place before anybody synced, in most of {tries} tries{also}"
            );
            Some(fault(evidence).with("tries", tries))
        }
        Some(true) => {
            Some(Check::fine(LAYER, DELAYED, "delayed allocation: what was just written had no place yet"))
        }
        None if option => {
            Some(fault(format!("{target} is mounted with nodelalloc")).with("option", "nodelalloc"))
        }
        None if has_option(own, "delalloc") == Some(true) => {
            Some(Check::fine(LAYER, DELAYED, "delayed allocation is on, by the options of the mount"))
        }
        None => None,
    }
}

fn flush(own: &FileSystem, tried: Option<&Rewrite>) -> Option<Check> {
    let target = quote(&own.mount_point);
    let is_ext4 = own.fs_type == "ext4";
    let Some(tried) = tried else {
        let says = match is_ext4.then(|| has_option(own, "auto_da_alloc")).flatten() {
            Some(true) => {
                "a file that is truncated and written again, or replaced by rename, is flushed at once \
                           (auto_da_alloc); --write-probe tries it"
            }
            Some(false) => {
                return Some(Check::fine(
                    LAYER,
                    FLUSH,
                    "replaced files are not flushed at once (noauto_da_alloc)",
                ));
            }
            None => "whether rewriting a file flushes it was not tried: --write-probe does",
        };
        return Some(Check::note(LAYER, FLUSH, says));
    };
    Some(match tried.flushes_at_close() {
        Some(true) => {
            let tries = tried.tries.len() as u64;
            let mut evidence = format!(
                "a file truncated, written again and closed was given its place at close, in most of {tries} tries; a new one was not"
            );
            if has_option(own, "auto_da_alloc") == Some(true) {
                evidence.push_str("; auto_da_alloc is on, so that renaming over a file does the same");
            }
            let check = Check::fault(
                LAYER,
                FLUSH,
                Certainty::Certain,
                "rewriting a file flushes it: who closes it waits for the disk's queue",
            )
            .with_evidence(evidence)
            .with("tries", tries);
            match is_ext4 {
                true => check.with_remedy(format!("mount -o remount,noauto_da_alloc {target}")),
                false => check.with_remedy(format!("findmnt --target {target}")),
            }
        }
        Some(false) => Check::fine(LAYER, FLUSH, "rewriting a file does not flush it"),
        None => Check::unknown(LAYER, FLUSH, "neither places nor dirty pages are told of new files here"),
    })
}

/// Whether ext4 has an option on, by /proc/fs/ext4, which also tells of those that are on by default.
fn has_option(own: &FileSystem, name: &str) -> Option<bool> {
    let no = format!("no{name}");
    let all = own.options.iter().chain(&own.effective);
    all.rev().find_map(|option| if *option == no { Some(false) } else { (option == name).then_some(true) })
}

/// What writing into a hole costs beside writing in place, where it was tried.
pub(super) fn first_write(tried: &Fact<Rewrite>) -> Option<(f64, f64)> {
    let (hole, written) = *tried.as_ref().ok()?.first_write_ns.as_ref().ok()?;
    Some((round(hole as f64 / 1000.0, 0), round(written as f64 / 1000.0, 0)))
}

#[cfg(test)]
mod tests {
    use crate::judge::scene::{faults, healthy};
    use crate::probe::blocks::Blocks;
    use crate::probe::rewrite::{Rewrite, State, Try};
    use crate::{Facts, Layer, Verdict};

    const LEN: u64 = 1 << 20;

    fn state(delayed_bytes: u64) -> State {
        let blocks = Blocks { size_bytes: LEN, delayed_bytes, is_complete: true, ..Blocks::default() };
        State { blocks: Ok(blocks), dirty_bytes: Some(delayed_bytes) }
    }

    fn tried(fs_type: &str, fresh: u64, closed: u64, rewritten: u64) -> Facts {
        let mut facts = healthy(fs_type);
        let one =
            Try { fresh: state(fresh), fresh_closed: state(closed), rewritten_closed: state(rewritten) };
        facts.rewrite = Some(Ok(Rewrite { tries: vec![one; 5], first_write_ns: Ok((300_000, 70_000)) }));
        facts
    }

    fn set(facts: &mut Facts, option: &str) {
        let Layer::FileSystem(found) = &mut facts.chain[0].layer else { panic!() };
        found.effective.push(option.into());
    }

    #[test]
    fn what_closing_a_rewritten_file_does_is_told() {
        let facts = tried("ext4", LEN, LEN, 0);
        assert_eq!(faults(&facts), ["flush-on-truncate"]);
        let told = super::judge(&facts);
        assert_eq!(told[1].remedies, ["mount -o remount,noauto_da_alloc /mnt"]);
        assert_eq!(faults(&tried("ext4", LEN, LEN, LEN)), [""; 0]);
        assert_eq!(faults(&tried("xfs", LEN, LEN, 0)), ["flush-on-truncate"]);
    }

    #[test]
    fn no_delayed_allocation_is_told_by_trial_or_by_option() {
        assert_eq!(faults(&tried("ext4", 0, 0, 0)), ["no-delayed-allocation"]);
        let mut facts = healthy("ext4");
        set(&mut facts, "nodelalloc");
        assert_eq!(faults(&facts), ["no-delayed-allocation"]);
        let mut facts = healthy("ext4");
        set(&mut facts, "delalloc");
        set(&mut facts, "auto_da_alloc");
        assert_eq!(faults(&facts), [""; 0], "ext4's default is no fault until it is seen to cost");
        assert!(super::judge(&facts).iter().any(|check| check.verdict == Verdict::Note));
    }

    #[test]
    fn what_could_not_be_tried_is_unknown() {
        let mut facts = healthy("ext4");
        facts.rewrite = Some(Err("read-only".into()));
        assert!(super::judge(&facts).iter().all(|check| check.verdict == Verdict::Unknown));
        assert!(super::judge(&healthy("nfs4"))[0].verdict == Verdict::Unknown);
        assert!(super::judge(&healthy("tmpfs"))[0].verdict == Verdict::Fine);
    }
}
