//! Link counts against the names found, and a path from each directory to the root.

use super::checker::Checker;
use super::fix::{Fix, InodeChange};
use super::report::{CheckedStructure, FindingLocation};
use super::sets::{InodeFacts, InodeKind};
use crate::fs::ext4::layout::disk::{ROOT_INODE, RawInode, inode_flags};
use crate::fs::ext4::layout::features::RoCompat;

/// Maximum link count of a directory (`EXT4_LINK_MAX`). With dir_nlink, a larger count is stored
/// as 1.
const LINKS_MAX: u32 = 65_000;

/// The state of a directory in the search for cycles.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum WalkState {
    Unvisited,
    /// On the path that is being walked.
    OnPath,
    /// Walked: leads to the root or to a reported directory.
    Done,
}

impl Checker<'_> {
    /// Compares link counts with the names found, and parents with `..`.
    pub(super) fn check_links(&mut self) {
        if self.inodes.get(ROOT_INODE).kind != InodeKind::Directory {
            self.report.error(
                CheckedStructure::Inode,
                FindingLocation::inode(ROOT_INODE),
                format_args!("the root inode is not a directory"),
            );
        }
        self.check_parents();
        self.check_for_cycles();
        let inodes = std::mem::replace(&mut self.inodes, super::sets::InodeFactsTable::new(0));
        for (number, facts) in inodes.known() {
            if facts.has_no_deletion_time && facts.names == 0 {
                // A smaller time would be a link of the orphan list.
                let min = self.sb.inode_count;
                let change: InodeChange =
                    Box::new(move |raw| raw.dtime = raw.ctime.get().max(min).into());
                self.report.preen(Fix::Inode(number, change));
            }
            if facts.kind != InodeKind::Free && !facts.is_nameless {
                self.check_link_count(number, facts);
            }
        }
        self.inodes = inodes;
    }

    fn check_link_count(&mut self, number: u32, facts: InodeFacts) {
        let (links, names, location) = (
            u32::from(facts.links),
            facts.names,
            FindingLocation::inode(number),
        );
        let is_directory = facts.kind == InodeKind::Directory;
        if names == 0 && facts.is_name_optional {
            return;
        }
        if names == 0 {
            self.report.error(
                CheckedStructure::Links,
                location,
                format_args!("in use, but has no name"),
            );
            if links > 0 && !is_directory {
                self.report.fix(Fix::Reconnect(number));
            }
            return;
        }
        let is_uncounted = is_directory && self.sb.features.ro_compat.contains(RoCompat::DIR_NLINK);
        let wanted = if is_uncounted && names > LINKS_MAX {
            1
        } else {
            names
        };
        if links != wanted {
            self.report.error(
                CheckedStructure::Links,
                location,
                format_args!("{links} links, but {names} names"),
            );
            if let Ok(wanted) = u16::try_from(wanted) {
                let fix: Box<dyn FnOnce(&mut RawInode)> =
                    Box::new(move |raw| raw.links_count = wanted.into());
                self.report.preen(Fix::Inode(number, fix));
            }
        }
    }

    fn check_parents(&mut self) {
        let (mut nameless, mut wrong) = (Vec::new(), Vec::new());
        for (index, directory) in self.directories.iter().enumerate() {
            let (number, parent, dotdot) = (directory.number, directory.parent, directory.dotdot);
            let location = FindingLocation::inode(number);
            let wanted = if number == ROOT_INODE {
                ROOT_INODE
            } else {
                parent
            };
            if wanted == 0 {
                self.report.error(
                    CheckedStructure::Links,
                    location,
                    format_args!("directory has no name"),
                );
                // Its .. follows in the next round.
                nameless.push(number);
                if self.inodes.get(dotdot).kind != InodeKind::Directory {
                    // A mount needs one that is possible.
                    wrong.push((index, ROOT_INODE));
                }
            } else if dotdot == 0 {
                // Reported with the directory.
                wrong.push((index, wanted));
            } else if dotdot != wanted {
                let what =
                    format_args!(".. names inode {dotdot}, but the parent is inode {wanted}");
                self.report
                    .error(CheckedStructure::Directory, location, what);
                wrong.push((index, wanted));
            }
        }
        for number in nameless {
            self.report.fix(Fix::Reconnect(number));
        }
        for (index, parent) in wrong {
            self.fix_parent(index, parent);
        }
    }

    /// Collects a change of `..` as a fix: the entry of the parent decides.
    fn fix_parent(&mut self, index: usize, parent: u32) {
        let directory = &self.directories[index];
        if directory.flags & inode_flags::INLINE_DATA != 0 {
            let change: InodeChange =
                Box::new(move |raw| raw.block[..4].copy_from_slice(&parent.to_le_bytes()));
            return self.report.fix(Fix::Inode(directory.number, change));
        }
        self.fix_dots(index, move |_, dotdot| {
            dotdot[..4].copy_from_slice(&parent.to_le_bytes());
        });
    }

    /// Reports directories that are their own ancestors.
    fn check_for_cycles(&mut self) {
        let mut states = vec![WalkState::Unvisited; self.directories.len()];
        let mut path = Vec::new();
        for start in 0..states.len() {
            let mut at = Some(start);
            while let Some(index) = at.filter(|index| states[*index] == WalkState::Unvisited) {
                states[index] = WalkState::OnPath;
                path.push(index);
                let parent = self.directories[index].parent;
                at = self
                    .directories
                    .binary_search_by_key(&parent, |directory| directory.number)
                    .ok();
            }
            if let Some(index) = at.filter(|index| states[*index] == WalkState::OnPath) {
                let number = self.directories[index].number;
                let what = format_args!("directory is its own ancestor, unreachable from the root");
                self.report.error(
                    CheckedStructure::Links,
                    FindingLocation::inode(number),
                    what,
                );
            }
            for index in path.drain(..) {
                states[index] = WalkState::Done;
            }
        }
    }
}
