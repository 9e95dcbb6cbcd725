//! The blocks of the file: holes, unwritten extents, fragments, compressed and shared parts, and
//! clusters of images.

use super::file_system::first_write;
use crate::finding::{Certainty, Check};
use crate::probe::Facts;
use crate::probe::blocks::Blocks;
use crate::probe::image::ImageFacts;
use crate::probe::layers::Layer;
use crate::text::{bytes, percent, quote};

const LAYER: &str = "blocks";
const IMAGE: &str = "image";
/// Less is not worth a word.
const PART_MIN: u64 = 1 << 20;
/// Fragments shorter than this cost a disk with heads more than half its speed.
const FRAGMENT_MIN: u64 = 512 << 10;
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
        Some(Ok(image)) => checks.extend(clusters(facts, image)),
        Some(Err(why)) => checks.push(Check::unknown(IMAGE, "clusters-not-allocated", why.clone())),
        None => {}
    }
    checks
}

fn is_large(part: u64, whole: u64) -> bool {
    part >= PART_MIN && part >= whole / 10
}

/// Holes and places that nothing was written to: a fault of disk images, whose guests write
/// anywhere.
fn first_writes(facts: &Facts, blocks: &Blocks) -> Vec<Check> {
    let parts = [
        (
            "sparse",
            blocks.hole_bytes,
            "a hole",
            "sparse: the first write to each part has to find a place for it",
        ),
        (
            "unwritten",
            blocks.unwritten_bytes,
            "reserved and never written",
            "preallocated, not written: the first write to each part has to be noted in the extent tree",
        ),
    ];
    let mut checks = Vec::new();
    for (cause, part, what, says) in parts {
        let share = percent(part, blocks.size_bytes);
        let mut evidence = format!(
            "{} of {} is {what} ({share}%)",
            bytes(part),
            bytes(blocks.size_bytes)
        );
        if !is_large(part, blocks.size_bytes) {
            continue;
        }
        let is_image = matches!(&facts.image, Some(Ok(_)));
        let check = if is_image {
            Check::fault(LAYER, cause, Certainty::Certain, says)
        } else {
            Check::note(LAYER, cause, says)
        };
        let mut check = check.with("bytes", part).with("percent", share);
        if let Some((hole, written)) = facts.rewrite.as_ref().and_then(first_write) {
            evidence.push_str(&format!(
                "; beside it 4 KiB with fdatasync took {hole} us into a hole, {written} us again"
            ));
            check = check
                .with("first_write_us", hole)
                .with("rewrite_us", written);
        }
        checks.push(check.with_evidence(evidence).with_remedy(filled(facts)));
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
    let format = facts
        .image
        .as_ref()
        .and_then(|image| image.as_ref().ok())
        .map_or("raw", |image| image.format);
    let path = &facts.path;
    let mut name = path.file_stem().unwrap_or_default().to_os_string();
    name.push("-full.");
    name.push(path.extension().unwrap_or(format.as_ref()));
    let target = quote(&path.with_file_name(name));
    if format == "qcow2" {
        return format!(
            "folio image convert -O qcow2 -o preallocation=full {} {target}",
            quote(path)
        );
    }
    let copy = format!("cp --sparse=never --reflink=never {} {target}", quote(path));
    match fs_type(facts) {
        // Compression and copy-on-write can be turned off while the file is empty.
        "btrfs" => format!("touch {target} && chattr +C {target} && {copy}"),
        _ => copy,
    }
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
    let seeks = rotational(facts);
    let (certainty, says) = match seeks {
        Some(true) => (
            Certainty::Likely,
            "fragmented, on a disk that seeks between the pieces",
        ),
        Some(false) => (
            Certainty::Hint,
            "fragmented: more requests, and smaller ones, though the disk does not seek",
        ),
        None => (
            Certainty::Hint,
            "fragmented; whether the disk seeks is unknown",
        ),
    };
    let path = quote(&facts.path);
    let new = quote(&facts.path.with_added_extension("new"));
    let command = match fs_type(facts) {
        "ext4" => format!("e4defrag {path}"),
        "xfs" => format!("xfs_fsr {path}"),
        "btrfs" => format!("btrfs filesystem defragment {path}"),
        _ => format!("cp -a --reflink=never {path} {new} && mv {new} {path}"),
    };
    Check::fault(LAYER, CAUSE, certainty, says)
        .with_evidence(evidence)
        .with("fragments", blocks.fragments)
        .with("mean_bytes", mean)
        .with_remedy(command)
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
                Some(Ok(_)) => {
                    Check::fault(LAYER, cause, Certainty::Hint, says).with_remedy(filled(facts))
                }
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
    let check = Check::fault(IMAGE, CAUSE, Certainty::Certain, says)
        .with_evidence(evidence)
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
        }));
        facts
    }

    #[test]
    fn holes_are_faults_in_images_only() {
        let mut facts = image("raw", None);
        assert_eq!(faults(&facts), [""; 0]);
        facts.blocks.as_mut().unwrap().hole_bytes = SIZE / 2;
        assert_eq!(faults(&facts), ["sparse"]);
        facts.blocks.as_mut().unwrap().hole_bytes = 0;
        facts.blocks.as_mut().unwrap().unwritten_bytes = SIZE;
        assert_eq!(faults(&facts), ["unwritten"]);
        let check = &super::judge(&facts)[0];
        assert_eq!(
            check.remedies,
            ["cp --sparse=never --reflink=never /mnt/disk.img /mnt/disk-full.img"]
        );
        facts.image = None;
        assert_eq!(faults(&facts), [""; 0]);
        assert_eq!(super::judge(&facts)[0].verdict, Verdict::Note);
    }

    #[test]
    fn missing_clusters_are_a_fault() {
        let facts = image("qcow2", Some(SIZE));
        assert_eq!(faults(&facts), [""; 0]);
        let mut facts = image("qcow2", Some(0));
        assert_eq!(faults(&facts), ["clusters-not-allocated"]);
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
    fn fragments_are_likely_faults_on_seeking_disks() {
        let mut facts = healthy("ext4");
        facts.blocks.as_mut().unwrap().fragments = 1000;
        assert_eq!(faults(&facts), ["fragmented"]);
        let certainty =
            |facts: &Facts| super::fragments(facts, facts.blocks.as_ref().unwrap()).certainty;
        assert_eq!(certainty(&facts), Some(Certainty::Hint));
        let disk = Disk {
            rotational: Some(true),
            ..Disk::default()
        };
        facts.chain.push(Step {
            depth: 1,
            layer: Layer::Disk(disk),
        });
        assert_eq!(certainty(&facts), Some(Certainty::Likely));
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
