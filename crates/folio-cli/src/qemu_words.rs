//! Messages in the words of qemu-img, which scripts compare.
//!
//! Folio's messages say `PLACE: PHRASE`. Each phrase here has a counterpart; any other message is
//! printed as it is.

/// Phrases whose counterpart follows the place: Folio's, qemu-img's.
const AT_PLACE: [(&str, &str); 6] = [
    (
        "invalid cluster size: expected a power of two from 512 bytes to 2 MiB",
        "Cluster size must be a power of two between 512 and 2048k",
    ),
    (
        "invalid refcount width: expected a power of two from 1 to 64 bits",
        "Refcount width must be a power of two and may not exceed 64 bits",
    ),
    (
        "refcounts of other than 16 bits need compat 1.1",
        "Different refcount widths than 16 bits require compatibility level 1.1 or above (use \
         version=v3 or greater)",
    ),
    (
        "lazy refcounts need compat 1.1",
        "Lazy refcounts only supported with compatibility level 1.1 and above (use version=v3 or \
         greater)",
    ),
    (
        "too large for clusters of this size",
        "The image size is too large for file format 'qcow2' (try using a larger cluster size)",
    ),
    (
        "new backing file: open: No such file or directory",
        "Could not open backing file: No such file or directory",
    ),
];

/// Phrases whose counterpart names no place.
const WITHOUT_PLACE: [(&str, &str); 4] = [
    (
        "preallocation applies to growing only",
        "Preallocation can only be used for growing images",
    ),
    (
        "the raw format has no metadata to check",
        "This image format does not support checks",
    ),
    (
        "resizing a version 2 image with snapshots",
        "Can't resize a v2 image which has snapshots",
    ),
    (
        "the image is larger already: shrinking would lose the content behind its new end; use \
         --shrink to allow that",
        "Use the --shrink option to perform a shrink operation.\n\
         qemu-img: warning: Shrinking an image will delete all data beyond the shrunken image's \
         end. Before performing such an operation, make sure there is no important data there.",
    ),
];

/// Phrases about an image that cannot be opened.
const ON_OPEN: [(&str, &str); 1] = [("header: the image is too big", "Image is too big")];

const FEATURES: &str = ": qcow2: unsupported features: ";
const LOOP: &str = ": the image is its own backing file";
/// Between the name of a new image and the message about its backing file.
pub(crate) const BACKING_IMAGE: &str = ": backing image: ";
const MISSING: &str = ": open: No such file or directory";

/// Returns the message of qemu-img for a message of Folio.
pub(crate) fn reword(message: &str) -> String {
    let at = |phrase: &str| message.strip_suffix(phrase)?.strip_suffix(": ");
    for (phrase, words) in AT_PLACE {
        if let Some(place) = at(phrase) {
            return format!("{place}: {words}");
        }
    }
    for (phrase, words) in WITHOUT_PLACE {
        if at(phrase).is_some() {
            return words.to_owned();
        }
    }
    for (phrase, words) in ON_OPEN {
        if let Some(place) = at(phrase) {
            let place = place.strip_suffix(": qcow2").unwrap_or(place);
            return format!("Could not open '{place}': {words}");
        }
    }
    if let Some((place, names)) = message.split_once(FEATURES) {
        let names = names.replace("unknown incompatible", "Unknown incompatible");
        return format!("Could not open '{place}': Unsupported qcow2 feature(s): {names}");
    }
    if let Some(places) = message.strip_suffix(LOOP) {
        let place = places
            .rsplit_once("backing file: ")
            .map_or(places, |(_, place)| place);
        // Folio begins the name of a file beside the image with its folder.
        let place = place.strip_prefix("./").unwrap_or(place);
        return format!("Backing file '{place}' creates an infinite loop.");
    }
    if let Some((place, why)) = message.split_once(BACKING_IMAGE) {
        let why = match why.strip_suffix(MISSING) {
            Some(name) => format!("Could not open '{name}': No such file or directory"),
            None => reword(why),
        };
        return format!("{place}: {why}\nCould not open backing image.");
    }
    match message.strip_suffix(MISSING) {
        Some(place) if !place.contains(": ") => {
            format!("Could not open '{place}': Could not open '{place}': No such file or directory")
        }
        _ => message.to_owned(),
    }
}

/// Returns the line of `qemu-img check` for a finding of Folio.
pub(crate) fn reword_finding(finding: &str) -> String {
    let beyond_end = || {
        let rest = finding.strip_suffix(" bytes reaches beyond the end of the file")?;
        let (_, place) = rest.strip_prefix("ERROR ")?.split_once(" at ")?;
        let (at, len_bytes) = place.split_once(" of ")?;
        let len_bytes: u64 = len_bytes.parse().ok()?;
        Some(format!(
            "ERROR: counting reference for region exceeding the end of the file by one cluster or \
             more: offset {at} size {len_bytes:#x}"
        ))
    };
    beyond_end().unwrap_or_else(|| finding.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn message_of_folio_has_the_words_of_qemu_img() {
        for (own, want) in [
            (
                "a: invalid cluster size: expected a power of two from 512 bytes to 2 MiB",
                "a: Cluster size must be a power of two between 512 and 2048k",
            ),
            (
                "a: qcow2: unsupported features: x, unknown incompatible feature: c0",
                "Could not open 'a': Unsupported qcow2 feature(s): x, Unknown incompatible \
                 feature: c0",
            ),
            (
                "a: backing file: backing file: ./b: the image is its own backing file",
                "Backing file 'b' creates an infinite loop.",
            ),
            (
                "a: open: No such file or directory",
                "Could not open 'a': Could not open 'a': No such file or directory",
            ),
            (
                "a: backing image: b: open: No such file or directory",
                "a: Could not open 'b': No such file or directory\nCould not open backing image.",
            ),
            ("a: something else", "a: something else"),
        ] {
            assert_eq!(reword(own), want);
        }
    }

    #[test]
    fn finding_has_the_words_of_qemu_img() {
        let own = "ERROR data cluster at 0x80 of 512 bytes reaches beyond the end of the file";
        assert!(reword_finding(own).ends_with("or more: offset 0x80 size 0x200"));
        assert_eq!(reword_finding("Leaked cluster 4"), "Leaked cluster 4");
    }
}
