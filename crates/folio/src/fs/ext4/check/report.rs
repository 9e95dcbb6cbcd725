//! Findings of a check, reported one by one, and the totals at the end.

use super::fix::{Fix, Fixes};
use std::fmt;
use std::ops::ControlFlow;

/// The severity of a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// No damage: a journal to be replayed, a time in the future, work left for the next mount.
    Warning,
    /// The file system is inconsistent and needs `e2fsck -f`.
    Error,
}

impl Severity {
    /// Returns `warning` or `error`, as in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Warning => "warning",
            Self::Error => "error",
        }
    }
}

/// The on-disk structure that a finding is about. Linux:
/// Documentation/filesystems/ext4.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs)] // The names are the field's own.
#[non_exhaustive]
pub enum CheckedStructure {
    Superblock,
    Group,
    BlockBitmap,
    InodeBitmap,
    Inode,
    Extents,
    BlockMap,
    Blocks,
    Directory,
    Index,
    Links,
    Xattr,
    Symlink,
    InlineData,
    Journal,
    Orphans,
    ResizeInode,
    Quota,
}

impl CheckedStructure {
    /// Returns the structure's name in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Superblock => "superblock",
            Self::Group => "group-descriptor",
            Self::BlockBitmap => "block-bitmap",
            Self::InodeBitmap => "inode-bitmap",
            Self::Inode => "inode",
            Self::Extents => "extent-tree",
            Self::BlockMap => "block-map",
            Self::Blocks => "block-owner",
            Self::Directory => "directory",
            Self::Index => "directory-index",
            Self::Links => "links",
            Self::Xattr => "xattr",
            Self::Symlink => "symlink",
            Self::InlineData => "inline-data",
            Self::Journal => "journal",
            Self::Orphans => "orphans",
            Self::ResizeInode => "resize-inode",
            Self::Quota => "quota",
        }
    }
}

/// The location of a finding; parts that do not apply are `None`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FindingLocation {
    /// Block group number, from 0.
    pub group: Option<u32>,
    /// Inode number, from 1.
    pub inode: Option<u32>,
    /// Block number on the device, in blocks of [`CheckReport::block_size`].
    pub block: Option<u64>,
}

impl FindingLocation {
    /// The file system as a whole.
    pub(super) const NONE: Self = Self {
        group: None,
        inode: None,
        block: None,
    };

    /// Returns the location of a block group.
    pub(super) fn group(number: u32) -> Self {
        Self {
            group: Some(number),
            ..Self::NONE
        }
    }

    /// Returns the location of an inode.
    pub(super) fn inode(number: u32) -> Self {
        Self {
            inode: Some(number),
            ..Self::NONE
        }
    }

    /// Returns the location of a block.
    pub(super) fn block(number: u64) -> Self {
        Self {
            block: Some(number),
            ..Self::NONE
        }
    }

    /// Returns this location with its block set to `number`.
    pub(super) fn at_block(self, number: u64) -> Self {
        Self {
            block: Some(number),
            ..self
        }
    }
}

/// One inconsistency. Displayed as `inode 12: extent-tree: block 8193: bad checksum`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckFinding {
    /// Error or warning.
    pub severity: Severity,
    /// The structure at fault.
    pub structure: CheckedStructure,
    /// The group, inode or block at fault.
    pub location: FindingLocation,
    /// A description of the fault, without the location.
    pub what: String,
}

impl fmt::Display for CheckFinding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(group) = self.location.group {
            write!(f, "group {group}: ")?;
        }
        if let Some(inode) = self.location.inode {
            write!(f, "inode {inode}: ")?;
        }
        let names_structure =
            self.structure != CheckedStructure::Inode || self.location.inode.is_none();
        if names_structure {
            write!(f, "{}: ", self.structure.name())?;
        }
        if let Some(block) = self.location.block {
            write!(f, "block {block}: ")?;
        }
        f.write_str(&self.what)
    }
}

/// The phases of a check, in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum CheckPhase {
    /// Superblock, group descriptors, journal.
    Layout,
    /// Inode tables and the blocks that inodes claim; progress in block groups.
    Inodes,
    /// Directories; progress in directories.
    Directories,
    /// Link counts, paths to the root, bitmaps and free counts; progress in block groups.
    Sums,
}

impl CheckPhase {
    /// Returns the phase's name, for a progress bar.
    pub fn name(self) -> &'static str {
        match self {
            Self::Layout => "layout",
            Self::Inodes => "inodes",
            Self::Directories => "directories",
            Self::Sums => "links and bitmaps",
        }
    }
}

/// Receives findings and progress during a check.
pub trait CheckListener {
    /// Receives one finding.
    fn finding(&mut self, finding: &CheckFinding);

    /// Receives progress: `done` of `total` units of `phase` (see [`CheckPhase`] for the unit).
    /// [`ControlFlow::Break`] stops the check with EINTR.
    fn progress(&mut self, _phase: CheckPhase, _done: u64, _total: u64) -> ControlFlow<()> {
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
    /// Findings beyond [`super::CheckOptions::findings_max`], which were only counted.
    pub unreported: u64,
    /// Whether the whole file system was checked. An unusable superblock or journal ends the check
    /// early.
    pub is_complete: bool,
    /// Journal transactions replayed in memory before the check; `None` without a replay.
    pub replayed_transactions: Option<u32>,
    /// Inodes in use.
    pub inodes_used: u64,
    /// All inodes, free ones included.
    pub inode_count: u64,
    /// Directories in use.
    pub directories: u64,
    /// Blocks in use.
    pub blocks_used: u64,
    /// All blocks, free ones included.
    pub block_count: u64,
    /// Bytes per block.
    pub block_size: u32,
}

impl CheckReport {
    /// Returns whether the whole file system was checked without an error. Warnings are allowed.
    pub fn is_clean(&self) -> bool {
        self.errors == 0 && self.is_complete
    }
}

/// Counts findings and passes the first of them to the listener.
pub(super) struct FindingReporter<'a> {
    listener: &'a mut dyn CheckListener,
    left: usize,
    pub(super) report: CheckReport,
    /// Number of errors in indices of directories.
    pub(super) index_errors: u64,
    /// The fixes, for a repair only.
    fixes: Option<&'a mut Fixes>,
}

impl<'a> FindingReporter<'a> {
    /// Creates a reporter that passes the first `findings_max` findings to `listener`.
    pub(super) fn new(listener: &'a mut dyn CheckListener, findings_max: usize) -> Self {
        Self {
            listener,
            left: findings_max,
            report: CheckReport::default(),
            index_errors: 0,
            fixes: None,
        }
    }

    /// Collects fixes into `fixes` from now on.
    pub(super) fn collect_fixes(&mut self, fixes: &'a mut Fixes) {
        self.fixes = Some(fixes);
    }

    /// Returns whether fixes are collected.
    pub(super) fn collects_fixes(&self) -> bool {
        self.fixes.is_some()
    }

    /// Adds a fix that `e2fsck -p` makes without asking.
    pub(super) fn preen(&mut self, fix: Fix) {
        if let Some(fixes) = &mut self.fixes
            && fixes.fixes.len() < Fixes::MAX
        {
            fixes.fixes.push(fix);
        }
    }

    /// Adds a fix of the journal, which `e2fsck -p` makes.
    pub(super) fn fix_journal(&mut self, fix: Fix) {
        if let Some(fixes) = &mut self.fixes {
            fixes.journal.push(fix);
        }
    }

    /// Adds a fix that `e2fsck -y` makes: the only possible one, but beyond `e2fsck -p`.
    pub(super) fn fix(&mut self, fix: Fix) {
        if let Some(fixes) = &mut self.fixes {
            fixes.beyond_preen += 1;
        }
        self.preen(fix);
    }

    /// Reports a violation of the format.
    pub(super) fn error(
        &mut self,
        structure: CheckedStructure,
        location: FindingLocation,
        what: fmt::Arguments<'_>,
    ) {
        self.report_finding(Severity::Error, structure, location, what);
    }

    /// Reports a fact that needs attention but is not damage.
    pub(super) fn warning(
        &mut self,
        structure: CheckedStructure,
        location: FindingLocation,
        what: fmt::Arguments<'_>,
    ) {
        self.report_finding(Severity::Warning, structure, location, what);
    }

    fn report_finding(
        &mut self,
        severity: Severity,
        structure: CheckedStructure,
        location: FindingLocation,
        what: fmt::Arguments<'_>,
    ) {
        match severity {
            Severity::Warning => self.report.warnings += 1,
            Severity::Error => self.report.errors += 1,
        }
        self.index_errors += u64::from(structure == CheckedStructure::Index);
        if self.left == 0 {
            self.report.unreported += 1;
            return;
        }
        self.left -= 1;
        self.listener.finding(&CheckFinding {
            severity,
            structure,
            location,
            what: what.to_string(),
        });
    }

    /// Passes progress to the listener; returns EINTR if the listener stops the check.
    pub(super) fn progress(
        &mut self,
        phase: CheckPhase,
        done: u64,
        total: u64,
    ) -> crate::base::Result<()> {
        match self.listener.progress(phase, done, total) {
            ControlFlow::Continue(()) => Ok(()),
            ControlFlow::Break(()) => Err(crate::base::Errno::INTR.into()),
        }
    }
}
