//! Failures in the words of qemu-img, which scripts compare.

use crate::exit::Failure;
use folio::block::qcow2::Finding;
use folio::{Detail, Errno, Error, ErrorKind};

/// Returns the message of qemu-img for a failure; Folio's if it has no counterpart.
pub(crate) fn reword(failure: &Failure) -> String {
    let counterpart = failure.error.as_deref().and_then(of_error);
    counterpart.unwrap_or_else(|| failure.message.clone())
}

/// Returns the message of qemu-img for a failure to open the backing file of a new image.
pub(crate) fn of_backing(failure: &Failure) -> String {
    match failure.error.as_deref().and_then(missing_file) {
        Some(name) => format!("Could not open '{name}': No such file or directory"),
        None => reword(failure),
    }
}

fn of_error(error: &Error) -> Option<String> {
    if let Some(name) = missing_file(error) {
        return Some(format!(
            "Could not open '{name}': Could not open '{name}': No such file or directory"
        ));
    }
    let at_place = |words: &str| {
        let places: Vec<_> = error.places().collect();
        format!("{}: {words}", places.join(": "))
    };
    let image = error.place().unwrap_or_default();
    Some(match error.detail()? {
        Detail::InvalidClusterSize => {
            at_place("Cluster size must be a power of two between 512 and 2048k")
        }
        Detail::InvalidRefcountWidth => {
            at_place("Refcount width must be a power of two and may not exceed 64 bits")
        }
        Detail::RefcountWidthNeedsVersion3 => at_place(
            "Different refcount widths than 16 bits require compatibility level 1.1 or above (use \
             version=v3 or greater)",
        ),
        Detail::LazyRefcountsNeedVersion3 => at_place(
            "Lazy refcounts only supported with compatibility level 1.1 and above (use version=v3 \
             or greater)",
        ),
        Detail::TooLargeForClusters => at_place(
            "The image size is too large for file format 'qcow2' (try using a larger cluster size)",
        ),
        Detail::PreallocationWithoutGrowth => {
            "Preallocation can only be used for growing images".to_owned()
        }
        Detail::NoMetadata => "This image format does not support checks".to_owned(),
        Detail::SnapshotsOfVersion2 => "Can't resize a v2 image which has snapshots".to_owned(),
        Detail::WouldShrink => "Use the --shrink option to perform a shrink operation.\n\
             qemu-img: warning: Shrinking an image will delete all data beyond the shrunken \
             image's end. Before performing such an operation, make sure there is no important \
             data there."
            .to_owned(),
        Detail::DiskTooLarge => format!("Could not open '{image}': Image is too big"),
        Detail::UnsupportedFeatures { names } => {
            let names = names.replace("unknown incompatible", "Unknown incompatible");
            format!("Could not open '{image}': Unsupported qcow2 feature(s): {names}")
        }
        Detail::BackingLoop => {
            let name = error.places().next_back().unwrap_or_default();
            // Folio begins the name of a file beside the image with its folder.
            let name = name.strip_prefix("./").unwrap_or(name);
            format!("Backing file '{name}' creates an infinite loop.")
        }
        _ => return None,
    })
}

/// Returns the name of the file that could not be opened because it does not exist.
fn missing_file(error: &Error) -> Option<&str> {
    let is_missing = error.kind() == ErrorKind::Io && error.errno() == Errno::NOENT;
    let mut places = error.places();
    let place = places.next()?;
    (is_missing && places.next().is_none()).then_some(place)
}

/// Returns the line of `qemu-img check` for a finding of Folio.
pub(crate) fn reword_finding(finding: &Finding) -> String {
    match finding {
        Finding::BeyondEnd {
            offset, len_bytes, ..
        } => format!(
            "ERROR: counting reference for region exceeding the end of the file by one cluster or \
             more: offset {offset:#x} size {len_bytes:#x}"
        ),
        _ => finding.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failure_has_the_words_of_qemu_img() {
        let missing = || Error::io("open", std::io::Error::from(Errno::NOENT)).at("b");
        let looped = Error::from(Errno::LOOP).about(Detail::BackingLoop);
        let features = Detail::UnsupportedFeatures {
            names: "x, unknown incompatible feature: c0".to_owned(),
        };
        for (error, want) in [
            (
                Error::from(Errno::INVAL)
                    .about(Detail::InvalidClusterSize)
                    .at("a"),
                "a: Cluster size must be a power of two between 512 and 2048k",
            ),
            (
                Error::unsupported("features")
                    .about(features)
                    .at("qcow2")
                    .at("a"),
                "Could not open 'a': Unsupported qcow2 feature(s): x, Unknown incompatible \
                 feature: c0",
            ),
            (
                looped.at("./b").at("backing file").at("a"),
                "Backing file 'b' creates an infinite loop.",
            ),
            (
                missing(),
                "Could not open 'b': Could not open 'b': No such file or directory",
            ),
            (
                Error::from(Errno::NOSPC).at("a"),
                "a: No space left on device",
            ),
        ] {
            assert_eq!(reword(&Failure::image(error)), want);
        }
        let of_missing = of_backing(&Failure::image(missing()));
        assert_eq!(of_missing, "Could not open 'b': No such file or directory");
    }

    #[test]
    fn finding_has_the_words_of_qemu_img() {
        let own = Finding::BeyondEnd {
            what: "data cluster".to_owned(),
            offset: 0x80,
            len_bytes: 512,
        };
        assert!(reword_finding(&own).ends_with("or more: offset 0x80 size 0x200"));
        assert!(own.to_string().ends_with("beyond the end of the file"));
        let leak = Finding::Leak("cluster 4".to_owned());
        assert_eq!(reword_finding(&leak), "Leaked cluster 4");
    }
}
