//! What a check finds, and how it is told: findings as they are made, sums at the end.

use std::fmt;
use std::ops::ControlFlow;

/// How bad a finding is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// Nothing is lost or wrong by it: a journal to be replayed, a time in the future, work left
    /// for the next mount.
    Warning,
    /// The file system contradicts itself, and wants `e2fsck -f`.
    Error,
}

impl Severity {
    /// `warning` or `error`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Warning => "warning",
            Self::Error => "error",
        }
    }
}

/// Which structure of the format a finding is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs)] // The names are the field's own.
pub enum Structure {
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

impl Structure {
    /// The name that JSON has for it.
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

/// Where a finding lies; what does not apply is `None`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Place {
    /// The block group.
    pub group: Option<u32>,
    /// The inode.
    pub inode: Option<u32>,
    /// The block of the file system.
    pub block: Option<u64>,
}

impl Place {
    /// In the file system as a whole.
    pub(super) const NONE: Self = Self {
        group: None,
        inode: None,
        block: None,
    };

    /// In a block group.
    pub(super) fn group(number: u32) -> Self {
        Self {
            group: Some(number),
            ..Self::NONE
        }
    }

    /// In an inode.
    pub(super) fn inode(number: u32) -> Self {
        Self {
            inode: Some(number),
            ..Self::NONE
        }
    }

    /// In a block.
    pub(super) fn block(number: u64) -> Self {
        Self {
            block: Some(number),
            ..Self::NONE
        }
    }

    /// The same, in this block.
    pub(super) fn at_block(self, number: u64) -> Self {
        Self {
            block: Some(number),
            ..self
        }
    }
}

/// One thing that is wrong. Printed as `inode 12: extent tree: block 8193: bad checksum`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// How bad.
    pub severity: Severity,
    /// What it is about.
    pub structure: Structure,
    /// Where.
    pub place: Place,
    /// What is wrong, in words.
    pub what: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(group) = self.place.group {
            write!(f, "group {group}: ")?;
        }
        if let Some(inode) = self.place.inode {
            write!(f, "inode {inode}: ")?;
        }
        let is_said = self.structure == Structure::Inode && self.place.inode.is_some();
        if !is_said {
            write!(f, "{}: ", self.structure.name())?;
        }
        if let Some(block) = self.place.block {
            write!(f, "block {block}: ")?;
        }
        f.write_str(&self.what)
    }
}

/// Parts of a check, in their order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// Superblock, group descriptors, journal.
    Layout,
    /// Inode tables, and what inodes claim; counted in groups.
    Inodes,
    /// Directories; counted one by one.
    Directories,
    /// Link counts and the way to the root; bitmaps and counts.
    Sums,
}

impl Phase {
    /// What is being looked at.
    pub fn name(self) -> &'static str {
        match self {
            Self::Layout => "layout",
            Self::Inodes => "inodes",
            Self::Directories => "directories",
            Self::Sums => "links and bitmaps",
        }
    }
}

/// Who is told while a check goes on.
pub trait Listener {
    /// Something is wrong.
    fn finding(&mut self, finding: &Finding);

    /// So much of a phase is done; the check ends here on [`ControlFlow::Break`].
    fn progress(&mut self, _phase: Phase, _done: u64, _total: u64) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }
}

/// Gathers findings.
impl Listener for Vec<Finding> {
    fn finding(&mut self, finding: &Finding) {
        self.push(finding.clone());
    }
}

/// What a check came to.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CheckReport {
    /// How many errors there are; more than were told if they passed the limit.
    pub errors: u64,
    /// How many warnings there are.
    pub warnings: u64,
    /// Findings beyond [`super::CheckOptions::findings_max`], which were only counted.
    pub untold: u64,
    /// Whether everything was looked at; a superblock or a journal beyond use may end the check
    /// early.
    pub is_complete: bool,
    /// Transactions of the journal that were replayed in memory before the check; `None` if there
    /// was no need.
    pub replayed_transactions: Option<u32>,
    /// Inodes in use.
    pub inodes_used: u64,
    /// Inodes in all.
    pub inode_count: u64,
    /// Directories among them.
    pub directories: u64,
    /// Blocks in use.
    pub blocks_used: u64,
    /// Blocks in all.
    pub block_count: u64,
    /// Bytes per block.
    pub block_size: u32,
}

impl CheckReport {
    /// Whether no error was found, and all was looked at.
    pub fn is_clean(&self) -> bool {
        self.errors == 0 && self.is_complete
    }
}

/// Counts findings and passes them on until there are too many.
pub(super) struct Reporter<'a> {
    listener: &'a mut dyn Listener,
    left: usize,
    pub(super) report: CheckReport,
}

impl<'a> Reporter<'a> {
    /// Tells `listener` of the first `findings_max` findings.
    pub(super) fn new(listener: &'a mut dyn Listener, findings_max: usize) -> Self {
        Self {
            listener,
            left: findings_max,
            report: CheckReport::default(),
        }
    }

    /// Something contradicts the format.
    pub(super) fn error(&mut self, structure: Structure, place: Place, what: fmt::Arguments<'_>) {
        self.tell(Severity::Error, structure, place, what);
    }

    /// Something worth telling that is no damage.
    pub(super) fn warning(&mut self, structure: Structure, place: Place, what: fmt::Arguments<'_>) {
        self.tell(Severity::Warning, structure, place, what);
    }

    fn tell(
        &mut self,
        severity: Severity,
        structure: Structure,
        place: Place,
        what: fmt::Arguments<'_>,
    ) {
        match severity {
            Severity::Warning => self.report.warnings += 1,
            Severity::Error => self.report.errors += 1,
        }
        if self.left == 0 {
            self.report.untold += 1;
            return;
        }
        self.left -= 1;
        self.listener.finding(&Finding {
            severity,
            structure,
            place,
            what: what.to_string(),
        });
    }

    /// Tells how far the check is; an error (EINTR) if it shall end.
    pub(super) fn progress(
        &mut self,
        phase: Phase,
        done: u64,
        total: u64,
    ) -> crate::base::Result<()> {
        match self.listener.progress(phase, done, total) {
            ControlFlow::Continue(()) => Ok(()),
            ControlFlow::Break(()) => Err(crate::base::Errno::INTR.into()),
        }
    }
}
