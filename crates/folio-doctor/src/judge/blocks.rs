//! The blocks of the file: holes, unwritten extents, fragments, compressed and shared parts, and
//! clusters of images.

use super::backing;
use super::first_write_cost::FirstWriteCost;
use crate::finding::{Certainty, Check};
use crate::probe::Facts;
use crate::probe::blocks::Blocks;
use crate::probe::image::ImageFacts;
use crate::probe::layers::Layer;
use crate::probe::rewrite::FirstWrites;
use crate::text::{bytes, percent, quote, round};

const LAYER: &str = "blocks";
const IMAGE: &str = "image";
/// Less is not worth a word.
const PART_MIN: u64 = 1 << 20;
/// Fragments shorter than this cost a disk with heads more than half its speed.
const FRAGMENT_MIN: u64 = 512 << 10;
/// A first write that takes so many times what a write in place takes is slow.
const SLOW_FIRST_WRITE: f64 = 2.0;
/// Time for each piece from which on a disk seeks.
const SEEK_MS: f64 = 2.0;
/// Fewer fragments do no harm.
const FRAGMENTS_MIN: u64 = 16;

pub(super) fn judge(facts: &Facts) -> Vec<Check> {
    let mut checks = Vec::new();
    match &facts.blocks {
        Ok(blocks) => {
            checks.extend(first_writes(facts, blocks));
            checks.push(fragments(facts, blocks));
            checks.extend(stored_otherwise(facts, blocks));
        }
        Err(why) => checks.push(Check::unknown(LAYER, "sparse", why.clone())),
    }
    match &facts.image {
        Some(Ok(image)) => {
            checks.extend(clusters(facts, image));
            checks.extend(backing::judge(facts));
        }
        Some(Err(why)) => checks.push(Check::unknown(IMAGE, "clusters-not-allocated", why.clone())),
        None => {}
    }
    checks
}

fn is_large(part: u64, whole: u64) -> bool {
    part >= PART_MIN && part >= whole / 10
}

/// Time of a first write in question.
type FirstWriteTime = fn(&FirstWrites) -> Option<u64>;

/// Returns the cost of first writes beside an image, where it was tried.
fn cost(facts: &Facts, time: FirstWriteTime) -> Option<FirstWriteCost> {
    let tried = facts.rewrite.as_ref()?.as_ref().ok()?;
    let found = tried.first_writes.as_ref().ok()?;
    let pairs = found
        .iter()
        .filter_map(|place| Some((time(place)?, place.written_ns)));
    FirstWriteCost::of(pairs, SLOW_FIRST_WRITE)
}

/// Holes and places that nothing was written to: guests of a disk image write anywhere.
fn first_writes(facts: &Facts, blocks: &Blocks) -> Vec<Check> {
    let parts: [(_, _, _, _, FirstWriteTime); 2] = [
        (
            "sparse",
            blocks.hole_bytes,
            "a hole",
            "sparse: the first write to each part has to find a place for it",
            |found| Some(found.hole_ns),
        ),
        (
            "unwritten",
            blocks.unwritten_bytes,
            "reserved and never written",
            "preallocated, not written: the first write to each part has to be noted in the extent tree",
            |found| found.unwritten_ns,
        ),
    ];
    let mut checks = Vec::new();
    for (cause, part, what, says, time) in parts {
        let share = percent(part, blocks.size_bytes);
        let evidence = format!(
            "{} of {} is {what} ({share}%)",
            bytes(part),
            bytes(blocks.size_bytes)
        );
        if !is_large(part, blocks.size_bytes) {
            continue;
        }
        let check = if matches!(&facts.image, Some(Ok(_))) {
            let cost = cost(facts, time);
            FirstWriteCost::judge(cost.as_ref(), LAYER, cause, says, evidence)
                .with_remedy(filled(facts))
        } else {
            Check::note(LAYER, cause, says).with_evidence(evidence)
        };
        checks.push(check.with("bytes", part).with("percent", share));
    }
    if checks.is_empty() {
        let says = if blocks.is_complete {
            "written throughout, but for small parts"
        } else {
            "written throughout, as far as it was looked at"
        };
        checks.push(Check::fine(LAYER, "sparse", says));
    }
    checks
}

fn fs_type(facts: &Facts) -> &str {
    facts.file_system().map_or("", |found| &found.fs_type)
}

/// A copy of which every byte is written.
fn filled(facts: &Facts) -> String {
    let image = facts.image.as_ref().and_then(|image| image.as_ref().ok());
    let format = image.map_or("raw", |image| image.format);
    let path = &facts.path;
    let mut name = path.file_stem().unwrap_or_default().to_os_string();
    name.push("-full.");
    name.push(path.extension().unwrap_or(format.as_ref()));
    let target = quote(&path.with_file_name(name));
    let size_bytes = image.map_or(facts.size_bytes, |image| image.disk_bytes);
    let path = quote(path);
    let copy = format!("cp --sparse=never --reflink=never {path} {target}");
    let command = match fs_type(facts) {
        _ if format == "qcow2" => {
            format!("folio image convert -O qcow2 -o preallocation=full {path} {target}")
        }
        // Compression and copy-on-write can be turned off while the file is empty.
        "btrfs" => format!("touch {target} && chattr +C {target} && {copy}"),
        _ => copy,
    };
    format!(
        "{command}  # needs {} of space; while no mount or virtual machine uses the image, which \
         then uses the copy",
        bytes(size_bytes)
    )
}

/// Whether there are many pieces, and short ones.
pub(crate) fn is_fragmented(blocks: &Blocks) -> bool {
    blocks.fragments >= FRAGMENTS_MIN && blocks.placed_bytes / blocks.fragments < FRAGMENT_MIN
}

fn fragments(facts: &Facts, blocks: &Blocks) -> Check {
    const CAUSE: &str = "fragmented";
    if blocks.compressed_bytes > blocks.placed_bytes {
        return Check::unknown(
            LAYER,
            CAUSE,
            "the file system does not report where the pieces of a compressed file end",
        );
    }
    let mean = blocks.placed_bytes / blocks.fragments.max(1);
    let evidence = match blocks.fragments {
        0 => "no part has a place on a device".to_owned(),
        1 => format!("{} in one piece", bytes(blocks.placed_bytes)),
        many => format!("{many} pieces of {} in the mean", bytes(mean)),
    };
    if !is_fragmented(blocks) {
        return Check::fine(LAYER, CAUSE, "not fragmented")
            .with_evidence(evidence)
            .with("fragments", blocks.fragments);
    }
    let says = match rotational(facts) {
        Some(true) => "fragmented, on a disk that seeks between the pieces",
        Some(false) => "fragmented: more requests, and smaller ones, though the disk does not seek",
        None => "fragmented; whether the disk seeks is unknown",
    };
    let path = quote(&facts.path);
    let new = quote(&facts.path.with_added_extension("new"));
    let command = match fs_type(facts) {
        "ext4" => format!("e4defrag {path}"),
        "xfs" => format!("xfs_fsr {path}"),
        "btrfs" => format!("btrfs filesystem defragment {path}"),
        _ => format!("cp -a --reflink=never {path} {new} && mv {new} {path}"),
    };
    let check = match piece_ms(facts, blocks) {
        Some(ms) if ms >= SEEK_MS => Check::fault(LAYER, CAUSE, Certainty::Likely, says)
            .with_evidence(format!("{evidence}, each read from the device in {ms} ms"))
            .with("piece_ms", ms),
        _ => Check::note(LAYER, CAUSE, says).with_evidence(evidence),
    };
    check
        .with("fragments", blocks.fragments)
        .with("mean_bytes", mean)
        .with_remedy(command)
}

/// Returns the time for each piece of a read that came from the device; `None` if little did.
fn piece_ms(facts: &Facts, blocks: &Blocks) -> Option<f64> {
    let first = facts.reads.as_ref().ok()?.first;
    if first.device_bytes? < (first.bytes / 2).max(PART_MIN) {
        return None;
    }
    let pieces = blocks.fragments as f64 * first.bytes as f64 / blocks.placed_bytes.max(1) as f64;
    Some(round(first.wall_ns as f64 / 1e6 / pieces.max(1.0), 1))
}

/// Returns whether any disk below has moving heads; `None` if no disk reports it.
pub(super) fn rotational(facts: &Facts) -> Option<bool> {
    let disks = facts.chain.iter().filter_map(|step| match &step.layer {
        Layer::Disk(disk) => disk.rotational,
        _ => None,
    });
    disks.reduce(|one, other| one || other)
}

/// Compressed and shared parts: a note, not a fault, since a user asked for them.
fn stored_otherwise(facts: &Facts, blocks: &Blocks) -> Vec<Check> {
    let parts = [
        (
            "compressed",
            blocks.compressed_bytes,
            "stored compressed: each read unpacks, each write packs",
        ),
        (
            "shared",
            blocks.shared_bytes,
            "shared with other files: the first write to each part copies it",
        ),
    ];
    let large = parts
        .into_iter()
        .filter(|(_, part, _)| is_large(*part, blocks.size_bytes));
    large
        .map(|(cause, part, says)| {
            let share = percent(part, blocks.size_bytes);
            let check = match facts.image {
                Some(Ok(_)) => Check::note(LAYER, cause, says).with_remedy(filled(facts)),
                _ => Check::note(LAYER, cause, says),
            };
            let evidence = format!("{} of {} ({share}%)", bytes(part), bytes(blocks.size_bytes));
            check
                .with_evidence(evidence)
                .with("bytes", part)
                .with("percent", share)
        })
        .collect()
}

/// Clusters of qcow2 that are not allocated.
fn clusters(facts: &Facts, image: &ImageFacts) -> Option<Check> {
    const CAUSE: &str = "clusters-not-allocated";
    let stored = image.stored_bytes?;
    let missing = image.disk_bytes.saturating_sub(stored);
    let share = percent(missing, image.disk_bytes);
    let cluster = image
        .cluster_bytes
        .map(|len| format!(", clusters of {}", bytes(len)))
        .unwrap_or_default();
    let so_far = if image.is_complete {
        ""
    } else {
        " so far as it was looked at"
    };
    let evidence = format!(
        "{} of {} have no cluster ({share}%){cluster}{so_far}",
        bytes(missing),
        bytes(image.disk_bytes)
    );
    if !is_large(missing, image.disk_bytes) {
        let fine = Check::fine(IMAGE, CAUSE, "nearly all clusters are allocated");
        return Some(
            fine.with_evidence(evidence)
                .with("missing_bytes", missing)
                .with("missing_percent", share),
        );
    }
    let says = match image.backing_bytes {
        Some(backing) if backing > 0 => {
            "an overlay: the first write to each cluster copies it from the backing file"
        }
        _ => "grows as it is written: the first write to each cluster allocates it",
    };
    let cost = cost(facts, |found| Some(found.hole_ns));
    let check = FirstWriteCost::judge(cost.as_ref(), IMAGE, CAUSE, says, evidence)
        .with("missing_bytes", missing)
        .with("missing_percent", share);
    let check = match image.backing_bytes {
        Some(backing) if backing > 0 => check.with("backing_bytes", backing),
        _ => check,
    };
    Some(check.with_remedy(filled(facts)))
}

#[cfg(test)]
mod tests {
    use crate::judge::scene::{SIZE, faults, healthy};
    use crate::probe::layers::{Disk, Layer, Step};
    use crate::probe::rewrite::{FirstWrites, Rewrite};
    use crate::{Certainty, Facts, ImageFacts, Verdict};

    fn image(format: &'static str, stored: Option<u64>) -> Facts {
        let mut facts = healthy("ext4");
        facts.path = "/mnt/disk.img".into();
        facts.image = Some(Ok(ImageFacts {
            format,
            disk_bytes: SIZE,
            stored_bytes: stored,
            backing_bytes: stored.map(|_| 0),
            cluster_bytes: stored.map(|_| 65536),
            is_complete: true,
            backing_files: Vec::new(),
        }));
        facts
    }

    /// Adds measured first writes, in microseconds.
    fn with_first_writes(facts: &mut Facts, first_us: u64, again_us: u64) {
        let first_writes = vec![
            FirstWrites {
                hole_ns: first_us * 1000,
                unwritten_ns: Some(first_us * 1000),
                written_ns: again_us * 1000,
            };
            12
        ];
        facts.rewrite = Some(Ok(Rewrite {
            tries: Vec::new(),
            renames: Ok(Vec::new()),
            first_writes: Ok(first_writes),
        }));
    }

    #[test]
    fn thin_image_is_a_fault_if_first_writes_are_slow() {
        for (format, stored) in [("raw", None), ("qcow2", Some(0))] {
            let mut facts = image(format, stored);
            if format == "raw" {
                facts.blocks.as_mut().unwrap().hole_bytes = SIZE / 2;
            }
            let cause = ["sparse", "clusters-not-allocated"][usize::from(stored.is_some())];
            let verdict = |facts: &Facts| {
                let found = super::judge(facts);
                found.into_iter().find(|check| check.cause == cause)
            };
            let check = verdict(&facts).unwrap();
            assert_eq!(check.verdict, Verdict::Note);
            assert!(check.evidence.contains("--write-probe"), "{check:?}");
            with_first_writes(&mut facts, 70, 60);
            assert_eq!(verdict(&facts).unwrap().verdict, Verdict::Note);
            with_first_writes(&mut facts, 300, 60);
            let check = verdict(&facts).unwrap();
            assert_eq!(check.verdict, Verdict::Fault);
            assert_eq!(check.numbers["first_write_us"], 300.0);
            for (fast, verdict_then) in [(3, Verdict::Fault), (6, Verdict::Unknown)] {
                let tried = facts.rewrite.as_mut().unwrap().as_mut().unwrap();
                for place in &mut tried.first_writes.as_mut().unwrap()[..fast] {
                    place.written_ns = place.hole_ns;
                }
                let check = verdict(&facts).unwrap();
                assert_eq!(check.verdict, verdict_then, "{check:?}");
            }
        }
    }

    #[test]
    fn holes_are_faults_in_images_only() {
        let mut facts = image("raw", None);
        with_first_writes(&mut facts, 300, 60);
        let faults = |facts: &Facts| {
            let mut found = faults(facts);
            found.retain(|cause| !cause.starts_with("flush-"));
            found
        };
        assert_eq!(faults(&facts), [""; 0]);
        facts.blocks.as_mut().unwrap().hole_bytes = SIZE / 2;
        assert_eq!(faults(&facts), ["sparse"]);
        facts.blocks.as_mut().unwrap().hole_bytes = 0;
        facts.blocks.as_mut().unwrap().unwritten_bytes = SIZE;
        assert_eq!(faults(&facts), ["unwritten"]);
        let check = &super::judge(&facts)[0];
        assert_eq!(
            check.remedies,
            [
                "cp --sparse=never --reflink=never /mnt/disk.img /mnt/disk-full.img  # needs 64 \
                 MiB of space; while no mount or virtual machine uses the image, which then uses \
                 the copy"
            ]
        );
        facts.image = None;
        assert_eq!(faults(&facts), [""; 0]);
        assert_eq!(super::judge(&facts)[0].verdict, Verdict::Note);
    }

    #[test]
    fn missing_clusters_of_an_overlay_are_named() {
        let facts = image("qcow2", Some(SIZE));
        assert_eq!(faults(&facts), [""; 0]);
        let mut facts = image("qcow2", Some(0));
        assert_eq!(faults(&facts), [""; 0]);
        if let Some(Ok(image)) = &mut facts.image {
            image.backing_bytes = Some(SIZE);
        }
        let found = super::judge(&facts);
        assert!(
            found.iter().any(|check| check.says.contains("overlay")),
            "{found:?}"
        );
        facts.image = Some(Err("damaged".into()));
        assert_eq!(faults(&facts), [""; 0]);
    }

    #[test]
    fn fragments_are_faults_if_each_took_a_seek() {
        let mut facts = healthy("ext4");
        facts.blocks.as_mut().unwrap().fragments = 1000;
        assert_eq!(faults(&facts), [""; 0], "nothing came from the device");
        let first = &mut facts.reads.as_mut().unwrap().first;
        (first.device_bytes, first.wall_ns) = (Some(SIZE), 1_000_000_000);
        assert_eq!(faults(&facts), [""; 0], "1 ms for each piece");
        facts.reads.as_mut().unwrap().first.wall_ns = 8_000_000_000;
        assert_eq!(faults(&facts), ["fragmented"]);
        let judged = |facts: &Facts| super::fragments(facts, facts.blocks.as_ref().unwrap());
        assert_eq!(judged(&facts).certainty, Some(Certainty::Likely));
        assert_eq!(judged(&facts).numbers["piece_ms"], 8.0);
        let disk = Disk {
            rotational: Some(true),
            ..Disk::default()
        };
        facts.chain.push(Step {
            depth: 1,
            layer: Layer::Disk(disk),
        });
        assert!(judged(&facts).says.contains("seeks between"));
        facts.blocks.as_mut().unwrap().fragments = 64;
        assert_eq!(faults(&facts), [""; 0], "pieces of 1 MiB");
    }

    #[test]
    fn remedy_for_fragments_fits_the_file_system() {
        for (fs_type, joined, filled) in [
            (
                "ext4",
                "e4defrag '/mnt/a b.img'",
                "cp --sparse=never --reflink=never '/mnt/a b.img' '/mnt/a b-full.img'",
            ),
            ("xfs", "xfs_fsr '/mnt/a b.img'", "cp --sparse=never"),
            (
                "btrfs",
                "btrfs filesystem defragment '/mnt/a b.img'",
                "touch '/mnt/a b-full.img' && chattr +C ",
            ),
            (
                "f2fs",
                "cp -a --reflink=never '/mnt/a b.img' '/mnt/a b.img.new' && mv '/mnt/a b.img.new' ",
                "cp ",
            ),
        ] {
            let mut facts = healthy(fs_type);
            facts.path = "/mnt/a b.img".into();
            facts.blocks.as_mut().unwrap().fragments = 1000;
            let found = super::fragments(&facts, facts.blocks.as_ref().unwrap());
            assert!(found.remedies[0].starts_with(joined), "{found:?}");
            assert!(
                super::filled(&facts).starts_with(filled),
                "{}",
                super::filled(&facts)
            );
        }
    }

    #[test]
    fn pieces_of_a_compressed_file_are_unknown() {
        let mut facts = healthy("btrfs");
        let blocks = facts.blocks.as_mut().unwrap();
        (
            blocks.compressed_bytes,
            blocks.placed_bytes,
            blocks.fragments,
        ) = (SIZE, 0, 0);
        let found = super::fragments(&facts, facts.blocks.as_ref().unwrap());
        assert_eq!(found.verdict, Verdict::Unknown, "{found:?}");
    }

    #[test]
    fn compressed_and_shared_parts_are_noted() {
        let mut facts = healthy("btrfs");
        facts.blocks.as_mut().unwrap().compressed_bytes = SIZE;
        facts.blocks.as_mut().unwrap().shared_bytes = SIZE;
        assert_eq!(faults(&facts), [""; 0]);
        let notes = super::judge(&facts)
            .into_iter()
            .filter(|check| check.verdict == Verdict::Note)
            .count();
        assert_eq!(notes, 2);
    }
}
