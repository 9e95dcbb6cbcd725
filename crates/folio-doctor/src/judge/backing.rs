//! The backing files of an overlay: reads of what the image does not store go through them.

use crate::finding::Check;
use crate::probe::Facts;
use crate::probe::image::{BackingFile, ImageFacts};
use crate::text::{bytes, percent, quote};

const IMAGE: &str = "image";
const CAUSE: &str = "backing-chain";
/// From so many backing files on, their number is worth a word.
const FILES_MIN: usize = 2;
/// Bytes that have to be fetched: less is not worth a word.
const COLD_MIN: u64 = 1 << 20;
/// Files that are named.
const NAMED_MAX: usize = 4;

/// Judges the backing files, if there are any.
pub(super) fn judge(facts: &Facts) -> Option<Check> {
    let image = facts.image.as_ref()?.as_ref().ok()?;
    let files = &image.backing_files;
    if files.is_empty() {
        return None;
    }
    let stored_bytes: u64 = files.iter().map(|file| file.allocated_bytes).sum();
    let in_memory = files.iter().map(|file| file.in_memory_bytes);
    // None if one is unknown.
    let in_memory_bytes: Option<u64> = in_memory.sum();
    let cold_bytes = in_memory_bytes.map_or(0, |bytes| stored_bytes.saturating_sub(bytes));
    let is_cold = cold_bytes >= COLD_MIN && cold_bytes >= stored_bytes / 10;
    let says = if files.len() >= FILES_MIN {
        "a chain of backing files: what this image does not store is looked up in one after another"
    } else if is_cold {
        "a backing file that is not in memory"
    } else {
        "one backing file"
    };
    let check = if files.len() >= FILES_MIN || is_cold {
        Check::note(IMAGE, CAUSE, says)
    } else {
        Check::fine(IMAGE, CAUSE, says)
    };
    let mut check = check
        .with_evidence(evidence(files))
        .with("backing_files", files.len())
        .with("backing_stored_bytes", stored_bytes);
    if let Some(count) = in_memory_bytes {
        check = check.with("backing_in_memory_bytes", count);
    }
    if is_cold {
        let paths: Vec<String> = files.iter().map(|file| quote(&file.path)).collect();
        check = check.with_remedy(format!("folio warm {}", paths.join(" ")));
    }
    if files.len() >= FILES_MIN {
        check = check.with_remedy(flat(facts, image));
    }
    Some(check)
}

/// Each file with its bytes, the nearest first.
fn evidence(files: &[BackingFile]) -> String {
    let describe = |file: &BackingFile| {
        let memory = match file.in_memory_bytes {
            Some(count) => format!(
                "{}% in memory",
                percent(count, file.allocated_bytes.max(count))
            ),
            None => "unknown how much in memory".to_owned(),
        };
        let stored = bytes(file.allocated_bytes);
        format!("{}: {stored} stored, {memory}", file.path.display())
    };
    let (named, rest) = match files {
        // The last one stores most, as a rule.
        [.., last] if files.len() > NAMED_MAX => {
            let mut named: Vec<_> = files[..NAMED_MAX - 1].iter().map(describe).collect();
            named.push(format!("{} more", files.len() - NAMED_MAX));
            (named, Some(describe(last)))
        }
        all => (all.iter().map(describe).collect(), None),
    };
    named.into_iter().chain(rest).collect::<Vec<_>>().join("; ")
}

/// A copy without backing files.
fn flat(facts: &Facts, image: &ImageFacts) -> String {
    let mut name = facts.path.file_stem().unwrap_or_default().to_os_string();
    name.push("-flat.qcow2");
    let target = quote(&facts.path.with_file_name(name));
    let needed = image.stored_bytes.unwrap_or(0) + image.backing_bytes.unwrap_or(0);
    format!(
        "folio image convert -O qcow2 {} {target}  # needs {} of space; while no mount or virtual \
         machine uses the image, which then uses the copy",
        quote(&facts.path),
        bytes(needed)
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Verdict;
    use crate::judge::scene::{SIZE, healthy};

    fn overlay(files: usize, in_memory_bytes: Option<u64>) -> Facts {
        let mut facts = healthy("ext4");
        facts.path = "/srv/vm.qcow2".into();
        let file = |number| BackingFile {
            path: format!("/srv/b{number}.qcow2").into(),
            allocated_bytes: SIZE,
            in_memory_bytes,
        };
        facts.image = Some(Ok(ImageFacts {
            format: "qcow2",
            disk_bytes: SIZE,
            stored_bytes: Some(1 << 20),
            backing_bytes: Some(SIZE - (1 << 20)),
            cluster_bytes: Some(65536),
            is_complete: true,
            backing_files: (0..files).map(file).collect(),
        }));
        facts
    }

    #[test]
    fn chains_and_cold_files_are_notes() {
        assert_eq!(judge(&overlay(0, None)), None);
        let check = judge(&overlay(1, Some(SIZE))).unwrap();
        assert_eq!((check.verdict, check.remedies.len()), (Verdict::Fine, 0));
        let check = judge(&overlay(1, Some(0))).unwrap();
        assert_eq!(check.verdict, Verdict::Note);
        assert_eq!(check.remedies, ["folio warm /srv/b0.qcow2"]);
        let check = judge(&overlay(12, Some(SIZE))).unwrap();
        assert_eq!((check.verdict, check.remedies.len()), (Verdict::Note, 1));
        assert!(check.remedies[0].starts_with("folio image convert -O qcow2 /srv/vm.qcow2 "));
        assert_eq!(check.numbers["backing_files"], 12);
        assert!(
            check.evidence.contains("; 8 more; /srv/b11.qcow2: "),
            "{}",
            check.evidence
        );
        let check = judge(&overlay(2, None)).unwrap();
        assert!(
            check.evidence.contains("unknown how much"),
            "{}",
            check.evidence
        );
    }
}
