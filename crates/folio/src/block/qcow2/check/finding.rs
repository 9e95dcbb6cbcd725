//! The findings of a check, and their sums.

use std::fmt;

/// The repairs that a check makes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Repair {
    /// None; the image is not written.
    #[default]
    Nothing,
    /// Leaked clusters: their refcount is above their references.
    Leaks,
    /// All errors that can be repaired without a guess.
    All,
}

/// One finding of a check.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Finding {
    /// Lost space, without harm to data.
    Leak(String),
    /// Data is lost or at risk.
    Corruption(String),
    /// A corruption: a structure that reaches beyond the end of the file.
    BeyondEnd {
        /// The structure, as "data cluster".
        what: String,
        /// Its offset in the file, in bytes.
        offset: u64,
        /// Its length in bytes.
        len_bytes: u64,
    },
    /// A part of the check failed.
    Failure(String),
    /// A leak or a corruption that was repaired.
    Repaired(String),
    /// A part that exceeded a limit of the format, and was removed.
    Discarded(String),
}

impl fmt::Display for Finding {
    /// Prints in qemu-img's words: "Leaked", "ERROR", "Repairing", "Discarding".
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Leak(what) => write!(f, "Leaked {what}"),
            Self::Corruption(what) | Self::Failure(what) => write!(f, "ERROR {what}"),
            Self::BeyondEnd {
                what,
                offset,
                len_bytes,
            } => write!(
                f,
                "ERROR {what} at {offset:#x} of {len_bytes} bytes reaches beyond the end of the \
                 file"
            ),
            Self::Repaired(what) => write!(f, "Repairing {what}"),
            Self::Discarded(what) => write!(f, "Discarding {what}"),
        }
    }
}

/// The sums of a check, named as in the JSON of `qemu-img check`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ImageCheck {
    /// End of the last cluster in use, in bytes.
    pub image_end_offset: u64,
    /// Number of guest clusters of the disk.
    pub total_clusters: u64,
    /// Guest clusters that are allocated.
    pub allocated_clusters: u64,
    /// Allocated guest clusters that do not follow the one before in the file.
    pub fragmented_clusters: u64,
    /// Allocated guest clusters that are compressed.
    pub compressed_clusters: u64,
    /// Leaked clusters that remain.
    pub leaks: u64,
    /// Corruptions that remain.
    pub corruptions: u64,
    /// Parts of the check that failed.
    pub check_errors: u64,
    /// Leaked clusters that were repaired.
    pub leaks_fixed: u64,
    /// Corruptions that were repaired.
    pub corruptions_fixed: u64,
}

/// Receives the findings of a check.
pub(crate) struct FindingSink<'a> {
    report: &'a mut dyn FnMut(&Finding),
}

impl<'a> FindingSink<'a> {
    /// Returns a sink that calls `report` with each finding.
    pub(crate) fn new(report: &'a mut dyn FnMut(&Finding)) -> Self {
        Self { report }
    }

    /// Reports one finding.
    pub(super) fn report(&mut self, finding: Finding) {
        (self.report)(&finding);
    }
}
