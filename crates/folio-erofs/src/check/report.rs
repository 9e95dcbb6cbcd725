//! Findings of a check, reported one by one, and the totals at the end.

use folio::ext4::Severity;
use std::fmt;
use std::ops::ControlFlow;

/// The on-disk structure that a finding is about. Linux: Documentation/filesystems/erofs.rst.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs)] // The names are the field's own.
#[non_exhaustive]
pub enum CheckedStructure {
    Superblock,
    Inode,
    Data,
    Directory,
    Links,
    Xattr,
    Symlink,
}

impl CheckedStructure {
    /// Returns the structure's name in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Superblock => "superblock",
            Self::Inode => "inode",
            Self::Data => "data",
            Self::Directory => "directory",
            Self::Links => "links",
            Self::Xattr => "xattr",
            Self::Symlink => "symlink",
        }
    }
}

/// One inconsistency. Displayed as `inode 36: directory: block 8: ...`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckFinding {
    /// Error or warning.
    pub severity: Severity,
    /// The structure at fault.
    pub structure: CheckedStructure,
    /// The number of the inode at fault (`nid`).
    pub inode: Option<u64>,
    /// The block at fault, in blocks of [`CheckReport::block_size`].
    pub block: Option<u64>,
    /// A description of the fault, without the location.
    pub what: String,
}

impl CheckFinding {
    /// Returns an error of the file system as a whole.
    pub(super) fn error(structure: CheckedStructure, what: impl Into<String>) -> Self {
        Self {
            severity: Severity::Error,
            structure,
            inode: None,
            block: None,
            what: what.into(),
        }
    }

    /// Returns a warning instead.
    pub(super) fn warning(self) -> Self {
        Self {
            severity: Severity::Warning,
            ..self
        }
    }

    /// Adds the number of an inode.
    pub(super) fn of(self, nid: u64) -> Self {
        Self {
            inode: Some(nid),
            ..self
        }
    }

    /// Adds a block.
    pub(super) fn at_block(self, block: u64) -> Self {
        Self {
            block: Some(block),
            ..self
        }
    }
}

impl fmt::Display for CheckFinding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(inode) = self.inode {
            write!(f, "inode {inode}: ")?;
        }
        if self.structure != CheckedStructure::Inode {
            write!(f, "{}: ", self.structure.name())?;
        }
        if let Some(block) = self.block {
            write!(f, "block {block}: ")?;
        }
        f.write_str(&self.what)
    }
}

/// Receives findings and progress during a check.
pub trait CheckListener {
    /// Receives one finding.
    fn finding(&mut self, finding: &CheckFinding);

    /// Receives progress: `done` of `total` inodes, as the superblock counts them.
    /// [`ControlFlow::Break`] stops the check with EINTR.
    fn progress(&mut self, _done: u64, _total: u64) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }
}

/// Collects all findings.
impl CheckListener for Vec<CheckFinding> {
    fn finding(&mut self, finding: &CheckFinding) {
        self.push(finding.clone());
    }
}

/// The result of a check.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CheckReport {
    /// Number of errors, including those beyond the limit of reported findings.
    pub errors: u64,
    /// Number of warnings, including those beyond the limit of reported findings.
    pub warnings: u64,
    /// Findings beyond the limit, which were only counted.
    pub unreported: u64,
    /// Whether the whole file system was checked. An unusable root directory ends the check early,
    /// as does an image whose structures refer to the same blocks too often.
    pub is_complete: bool,
    /// Inodes that have a name.
    pub inodes_used: u64,
    /// Inodes, as the superblock counts them.
    pub inode_count: u64,
    /// Directories.
    pub directories: u64,
    /// Blocks of the image.
    pub block_count: u64,
    /// Bytes of a block.
    pub block_size: u32,
}

impl CheckReport {
    /// Returns whether the whole file system was checked without an error. Warnings are allowed.
    pub fn is_clean(&self) -> bool {
        self.errors == 0 && self.is_complete
    }
}

/// Counts findings, and passes the first of them to the listener.
pub(super) struct FindingReporter<'a> {
    pub(super) listener: &'a mut dyn CheckListener,
    pub(super) left: usize,
    pub(super) report: CheckReport,
}

impl FindingReporter<'_> {
    pub(super) fn add(&mut self, finding: CheckFinding) {
        match finding.severity {
            Severity::Error => self.report.errors += 1,
            Severity::Warning => self.report.warnings += 1,
        }
        match self.left.checked_sub(1) {
            Some(left) => {
                self.left = left;
                self.listener.finding(&finding);
            }
            None => self.report.unreported += 1,
        }
    }
}
