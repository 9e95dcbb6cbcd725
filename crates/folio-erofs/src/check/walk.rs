//! The walk from the root: each inode once, the order and the targets of names, counts of links.

use super::directory::{self, DirectoryEntry};
use super::image::Image;
use super::inode::{CheckedInode, DirectoryBlock};
use super::report::{CheckFinding, CheckReport, CheckedStructure};
use folio::Result;
use std::collections::{BTreeMap, HashSet};

/// Contents of small files may be in the packed inode.
const INCOMPAT_FRAGMENTS: u32 = 0x20;
/// The number of links of a directory whose subdirectories are not counted.
const LINKS_UNKNOWN: u32 = 1;

/// An inode that has a name.
struct NamedInode {
    type_code: u8,
    is_directory: bool,
    /// `None` if the inode cannot be read.
    link_count: Option<u32>,
    /// Names, with `.` and `..`.
    name_count: u32,
}

/// A directory that is still to be read.
struct PendingDirectory {
    inode: CheckedInode,
    parent: u64,
}

/// The walk through an image.
pub(super) struct Walk<'a> {
    image: Image<'a>,
    named: BTreeMap<u64, NamedInode>,
    pending: Vec<PendingDirectory>,
    /// The blocks of directories.
    directory_blocks: HashSet<u64>,
}

impl<'a> Walk<'a> {
    pub(super) fn new(image: Image<'a>) -> Self {
        Self {
            image,
            named: BTreeMap::new(),
            pending: Vec::new(),
            directory_blocks: HashSet::new(),
        }
    }

    pub(super) fn run(mut self) -> Result<CheckReport> {
        let root = u64::from(self.image.superblock.root_nid.get());
        self.add(root, root)?;
        if self.pending.is_empty() {
            self.error(CheckedStructure::Superblock, root, "no root directory");
            return Ok(self.image.reporter.report);
        }
        while let Some(directory) = self.pending.pop() {
            self.directory(&directory)?;
            if self.image.is_exhausted() {
                return Ok(self.image.reporter.report);
            }
        }
        self.packed_inode()?;
        self.links();
        let is_complete = !self.image.is_exhausted();
        let reporter = &mut self.image.reporter;
        let (count, named) = (reporter.report.inode_count, reporter.report.inodes_used);
        if count != named {
            let what = format!("{count} inodes, but {named} have names");
            let finding = CheckFinding::error(CheckedStructure::Superblock, what);
            reporter.add(finding.warning());
        }
        reporter.report.is_complete = is_complete;
        Ok(self.image.reporter.report)
    }

    fn error(&mut self, structure: CheckedStructure, nid: u64, what: impl Into<String>) {
        self.image.error(structure, nid, what);
    }

    /// Checks an inode that has a first name in the directory `parent`.
    fn add(&mut self, nid: u64, parent: u64) -> Result<()> {
        let found = CheckedInode::read(&mut self.image, nid)?;
        let mut named = NamedInode {
            type_code: 0,
            is_directory: false,
            link_count: None,
            name_count: 1,
        };
        if let Some(found) = found {
            found.check(&mut self.image)?;
            let report = &mut self.image.reporter.report;
            report.inodes_used += 1;
            named.type_code = found.type_code;
            named.link_count = Some(found.inode.nlink());
            if found.inode.is_dir() {
                report.directories += 1;
                named.is_directory = true;
                // Its name and `.`; `..` of each directory in it is added later.
                named.name_count = 2;
                self.pending.push(PendingDirectory {
                    inode: found,
                    parent,
                });
            }
        }
        self.named.insert(nid, named);
        self.image.work(0)
    }

    fn directory(&mut self, directory: &PendingDirectory) -> Result<()> {
        let structure = CheckedStructure::Directory;
        let PendingDirectory { inode, parent } = directory;
        let nid = inode.nid;
        let count = inode.inode.data_size().div_ceil(self.image.block_bytes());
        let (mut buf, mut last, mut own_names) = (Vec::new(), Vec::new(), 0);
        for index in 0..count {
            let place = match inode.read_block(&self.image, index, &mut buf)? {
                Some(DirectoryBlock::Own(block)) if !self.directory_blocks.insert(block) => {
                    let finding = CheckFinding::error(structure, "belongs to two directories");
                    self.image.reporter.add(finding.of(nid).at_block(block));
                    return Ok(());
                }
                Some(DirectoryBlock::Own(block)) => Some(block),
                Some(DirectoryBlock::BehindInode) => None,
                // The check of its blocks has reported it.
                None => return Ok(()),
            };
            self.image.work(buf.len() as u64)?;
            let entries = directory::entries(&buf).and_then(|entries| {
                in_order(&mut last, &entries)?;
                Ok(entries)
            });
            let entries = match entries {
                Ok(entries) => entries,
                Err(what) => {
                    let finding = CheckFinding::error(structure, what).of(nid);
                    let finding = match place {
                        Some(block) => finding.at_block(block),
                        None => finding,
                    };
                    self.image.reporter.add(finding);
                    continue;
                }
            };
            for entry in entries {
                let own = match &entry.name[..] {
                    b"." => Some(nid),
                    b".." => Some(*parent),
                    _ => None,
                };
                match own {
                    Some(want) => {
                        own_names += 1;
                        self.own_name(nid, &entry, want);
                    }
                    None => self.name(nid, &entry)?,
                }
            }
            if self.image.is_exhausted() {
                return Ok(());
            }
        }
        // Names in order occur once.
        if own_names != 2 {
            self.error(structure, nid, "\".\" or \"..\" is missing");
        }
        Ok(())
    }

    /// Checks an entry `.` or `..`, which must refer to `want`.
    fn own_name(&mut self, nid: u64, entry: &DirectoryEntry, want: u64) {
        if entry.nid != want {
            let (name, found) = (entry.printed_name(), entry.nid);
            let what = format!("{name} is inode {found}, not {want}");
            self.error(CheckedStructure::Directory, nid, what);
        } else if let Some(named) = self.named.get(&want) {
            let code = named.type_code;
            self.entry_type(nid, entry, code);
        }
    }

    /// Checks an entry of the directory `nid`, and what it refers to.
    fn name(&mut self, nid: u64, entry: &DirectoryEntry) -> Result<()> {
        if let Some(known) = self.named.get_mut(&entry.nid) {
            known.name_count += 1;
            if known.is_directory {
                let what = format!("{} is a directory with another name", entry.printed_name());
                self.error(CheckedStructure::Directory, nid, what);
                return Ok(());
            }
        } else {
            self.add(entry.nid, nid)?;
            let is_directory = self
                .named
                .get(&entry.nid)
                .is_some_and(|new| new.is_directory);
            if is_directory && let Some(parent) = self.named.get_mut(&nid) {
                parent.name_count += 1;
            }
        }
        if let Some(named) = self
            .named
            .get(&entry.nid)
            .filter(|named| named.type_code != 0)
        {
            let code = named.type_code;
            self.entry_type(nid, entry, code);
        }
        Ok(())
    }

    fn entry_type(&mut self, nid: u64, entry: &DirectoryEntry, code: u8) {
        if entry.type_code != code {
            let (name, found) = (entry.printed_name(), entry.type_code);
            let what = format!("{name} has type {found}, its inode {code}");
            self.error(CheckedStructure::Directory, nid, what);
        }
    }

    /// Checks the inode that has parts of contents and no name.
    fn packed_inode(&mut self) -> Result<()> {
        let superblock = &self.image.superblock;
        let nid = superblock.packed_nid.get();
        if superblock.feature_incompat.get() & INCOMPAT_FRAGMENTS == 0 || nid == 0 {
            return Ok(());
        }
        match CheckedInode::read(&mut self.image, nid)? {
            Some(packed) => packed.check(&mut self.image),
            None => Ok(()),
        }
    }

    fn links(&mut self) {
        for (nid, inode) in std::mem::take(&mut self.named) {
            let Some(links) = inode.link_count else {
                continue;
            };
            let is_unknown = inode.is_directory && links == LINKS_UNKNOWN;
            if links != inode.name_count && !is_unknown {
                let what = format!("{links} links, but {} names", inode.name_count);
                self.error(CheckedStructure::Links, nid, what);
            }
        }
    }
}

/// Checks that names are sorted, after `last`, which becomes the last of them.
fn in_order(last: &mut Vec<u8>, entries: &[DirectoryEntry]) -> std::result::Result<(), String> {
    for entry in entries {
        if *last >= entry.name {
            return Err(format!("{} is not in order", entry.printed_name()));
        }
        last.clone_from(&entry.name);
    }
    Ok(())
}
