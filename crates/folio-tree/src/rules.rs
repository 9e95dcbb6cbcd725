//! Owners and modes that a copy gives to its files, whatever the source has.

use crate::attributes::NewOwnerAndMode;
use crate::entry::{Entry, EntryKind, walk_below};
use crate::manifest::{self, ManifestEntry, ManifestKind};
use crate::mode::parse_mode;
use crate::observer::{CopyFailure, Observer};
use crate::owners::Owners;
use folio::ext4::FileTreeSize;
use folio::vfs::{Attributes, FileType};
use folio::{Errno, Error, Process, Result};
use std::collections::{BTreeMap, HashSet};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

/// The owner of copied files while the name of their owner is unknown: the copy may bring the
/// /etc/passwd with it.
const PENDING_ID: u32 = u32::MAX - 1;

/// Owners and modes for the files of a copy: for all of them, and for those of a manifest.
#[derive(Debug, Default)]
pub struct OwnerRules {
    user: String,
    group: String,
    mode: Option<String>,
    manifest: Vec<ManifestEntry>,
    manifest_name: String,
    /// Files of the image have [`PENDING_ID`].
    has_pending: AtomicBool,
}

/// What each copied file gets.
#[derive(Debug, Clone, Default)]
pub struct FileRules {
    uid: Option<u32>,
    gid: Option<u32>,
    mode: Option<String>,
}

impl OwnerRules {
    /// Reads the rules. `chown` is "" or `OWNER`, `OWNER:GROUP` or `:GROUP`, in numbers or in names
    /// of the target's /etc/passwd and /etc/group; `chmod` a mode as in chmod(1). A manifest is
    /// applied after the copy, below its destination.
    ///
    /// # Errors
    ///
    /// EINVAL: an invalid mode or manifest; the errors of reading the file.
    pub fn new(chown: &str, chmod: Option<&str>, manifest: Option<&Path>) -> Result<Self> {
        if let Some(mode) = chmod {
            parse_mode(mode, 0o644, false)?;
        }
        let (user, group) = chown.split_once(':').unwrap_or((chown, ""));
        let mut rules = Self {
            user: user.to_owned(),
            group: group.to_owned(),
            mode: chmod.map(str::to_owned),
            ..Self::default()
        };
        if let Some(path) = manifest {
            let name = path.display().to_string();
            let text = std::fs::read(path).map_err(|error| {
                let errno = Errno::from_io_error(&error).unwrap_or(Errno::IO);
                Error::from(errno).at(name.clone())
            })?;
            rules.manifest = manifest::parse(&text).map_err(|error| error.at(name.clone()))?;
            rules.manifest_name = name;
        }
        Ok(rules)
    }

    /// Whether there is nothing to do.
    pub fn is_empty(&self) -> bool {
        let has_owner = !self.user.is_empty() || !self.group.is_empty();
        !has_owner && self.mode.is_none() && self.manifest_name.is_empty()
    }

    /// Finds the numbers of the names in the target. In a new file system the tables may come with
    /// the copy: then [`finish`](Self::finish) finds them.
    ///
    /// # Errors
    ///
    /// EINVAL: an unknown name.
    pub fn resolve(&self, process: &Process, is_new: bool) -> Result<FileRules> {
        let (uid, gid) = match self.find_owner(process) {
            Err(_) if is_new => {
                self.has_pending.store(true, Ordering::Relaxed);
                let pending = |name: &str| (!name.is_empty()).then_some(PENDING_ID);
                (pending(&self.user), pending(&self.group))
            }
            found => found?,
        };
        Ok(FileRules {
            uid,
            gid,
            mode: self.mode.clone(),
        })
    }

    fn find_owner(&self, process: &Process) -> Result<(Option<u32>, Option<u32>)> {
        let owners = || Owners::of(process);
        let uid = find_number(owners, &self.user, Table::Users)?;
        let gid = find_number(owners, &self.group, Table::Groups)?;
        Ok((uid, gid))
    }

    /// Adds to a size the files that the manifest creates. `exists` returns whether the copy
    /// creates a path.
    pub fn add_created(&self, size: &mut FileTreeSize, exists: impl Fn(&[u8]) -> bool) {
        let mut folders: BTreeMap<&[u8], Vec<&[u8]>> = BTreeMap::new();
        let mut seen = HashSet::new();
        for entry in &self.manifest {
            if !entry.xattrs.is_empty() {
                size.add_xattrs(&entry.xattrs);
            }
            let Some(kind) = entry.kind.as_ref().filter(|_| !entry.is_optional) else {
                continue;
            };
            if !seen.insert(&entry.path) || exists(&entry.path) {
                continue;
            }
            match kind {
                ManifestKind::Directory => drop(folders.entry(&entry.path).or_default()),
                ManifestKind::HardLink(_) => {}
                ManifestKind::File => size.add_file(&[]),
                ManifestKind::Symlink(target) => size.add_symlink(target.len() as u64),
                _ => size.add_special(),
            }
            let mut path = entry.path.as_slice();
            while !path.is_empty() {
                let (parent, name) = split_last(path);
                let is_known = folders.contains_key(parent) || exists(parent);
                folders.entry(parent).or_default().push(name);
                if is_known {
                    break;
                }
                path = parent;
            }
        }
        for names in folders.into_values() {
            size.add_directory(names);
        }
    }

    /// Returns the paths that the manifest may create, with the directories above them.
    pub(crate) fn created_paths(&self) -> HashSet<&[u8]> {
        let mut paths = HashSet::new();
        for entry in self.manifest.iter().filter(|entry| entry.kind.is_some()) {
            let mut path = entry.path.as_slice();
            while !path.is_empty() && paths.insert(path) {
                path = split_last(path).0;
            }
        }
        paths
    }

    /// Completes a copy: gives files the owners whose names came with it, then applies the manifest
    /// below a directory. Failures of single files go to the observer.
    ///
    /// # Errors
    ///
    /// EINVAL: an unknown name; failures that affect all files.
    pub fn finish(&self, process: &Process, path: &Path, observer: &dyn Observer) -> Result<()> {
        if self.has_pending.load(Ordering::Relaxed) {
            self.own_pending(process, observer)?;
        }
        if self.manifest.is_empty() {
            return Ok(());
        }
        let owners = Owners::of(process);
        let find = |is_user: bool, name: &str| {
            if is_user {
                owners.find_user(name)
            } else {
                owners.find_group(name)
            }
        };
        let applied = manifest::apply(process, path, &self.manifest, &find, observer);
        applied.map_err(|error| error.at(self.manifest_name.clone()))
    }

    /// Replaces [`PENDING_ID`].
    fn own_pending(&self, process: &Process, observer: &dyn Observer) -> Result<()> {
        let (uid, gid) = self.find_owner(process)?;
        let set = |path: &Path, found: &Attributes| {
            let new = NewOwnerAndMode {
                uid: uid.filter(|_| found.uid == PENDING_ID),
                gid: gid.filter(|_| found.gid == PENDING_ID),
                mode: None,
            };
            if observer.is_stopped() {
                return Err(Errno::INTR.into());
            }
            match new.set(process, path, found, &[]) {
                Err(error) if !error.is_final() => {
                    let path = path.as_os_str().as_bytes();
                    observer.failed(CopyFailure::of_target(path, error));
                    Ok(())
                }
                set => set,
            }
        };
        let root = Path::new("/");
        set(root, &process.lstat(root)?)?;
        walk_below(process, root, &mut { set })
    }
}

/// Splits a path into the directory, "" for the top, and the name.
pub fn split_last(path: &[u8]) -> (&[u8], &[u8]) {
    match path.iter().rposition(|byte| *byte == b'/') {
        Some(at) => (&path[..at], &path[at + 1..]),
        None => (&[], path),
    }
}

/// A table of names in a file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Table {
    /// /etc/passwd.
    Users,
    /// /etc/group.
    Groups,
}

/// Returns the number of a user or group, `None` for an empty name. Numbers need no table.
///
/// # Errors
///
/// EINVAL: an unknown name.
pub fn find_number(
    owners: impl FnOnce() -> Owners,
    text: &str,
    table: Table,
) -> Result<Option<u32>> {
    if text.is_empty() {
        return Ok(None);
    }
    let found = text.parse().ok().or_else(|| match table {
        Table::Users => owners().find_user(text),
        Table::Groups => owners().find_group(text),
    });
    // Without tables too, root is number 0.
    let found = found.or((text == "root").then_some(0));
    found.map(Some).ok_or_else(|| {
        let file = match table {
            Table::Users => "/etc/passwd",
            Table::Groups => "/etc/group",
        };
        let reason = format!("{text}: unknown name in the image's {file}");
        Error::new(Errno::INVAL, reason)
    })
}

impl FileRules {
    /// Whether it sets owners.
    pub(crate) fn has_owner(&self) -> bool {
        self.uid.is_some() || self.gid.is_some()
    }

    /// Whether it changes modes.
    pub(crate) fn has_mode(&self) -> bool {
        self.mode.is_some()
    }

    /// Changes the attributes of a file to copy.
    pub(crate) fn change(&self, attributes: &mut Attributes) {
        let is_directory = attributes.file_type == FileType::Directory;
        attributes.uid = self.uid.unwrap_or(attributes.uid);
        attributes.gid = self.gid.unwrap_or(attributes.gid);
        attributes.mode = self.mode_of(attributes.mode, is_directory);
    }

    /// Changes an entry of an archive.
    pub fn change_entry(&self, entry: &mut Entry) {
        entry.uid = self.uid.unwrap_or(entry.uid);
        entry.gid = self.gid.unwrap_or(entry.gid);
        entry.mode = self.mode_of(entry.mode, entry.kind == EntryKind::Directory);
    }

    fn mode_of(&self, mode: u16, is_directory: bool) -> u16 {
        let text = self.mode.as_deref();
        // The text was parsed before.
        text.and_then(|text| parse_mode(text, mode, is_directory).ok())
            .unwrap_or(mode)
    }
}
