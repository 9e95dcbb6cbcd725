//! Owners and modes that a copy gives to its files: `--chown`, `--chmod` and `--manifest`.

use super::mode::parse_mode;
use crate::exit::{Failure, Outcome, explain};
use crate::image::Image;
use crate::output::Owners;
use crate::session::Session;
use crate::walk::{Visit, Visitor, WalkControl, walk};
use clap::Args;
use folio::ext4::FileTreeSize;
use folio::syscall::{AT_FDCWD, AtFlags};
use folio::vfs::{Attributes, FileType};
use folio::{Errno, Error};
use folio_archive::manifest::{self, ManifestEntry, ManifestKind};
use folio_archive::{Entry, EntryKind, Observer};
use std::cell::Cell;
use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};

/// The owner of copied files while the name of their owner is unknown: the copy may bring the
/// /etc/passwd with it.
const PENDING_ID: u32 = u32::MAX - 1;

/// The heading of the options in help texts.
const HEADING: &str = "Owners and modes in the image";

/// Owners and modes in the image, for builders without root.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct Ownership {
    /// Owner of all files: OWNER, OWNER:GROUP or :GROUP; numbers, or names from the image's
    /// /etc/passwd and /etc/group, which may come with the files of a new image
    #[arg(long, help_heading = HEADING, value_name = "OWNER")]
    pub(crate) chown: Option<String>,
    /// Change all modes, as chmod(1): octal or symbolic, e.g. go-w
    #[arg(long, help_heading = HEADING, value_name = "MODE", value_parser = valid_mode)]
    pub(crate) chmod: Option<String>,
    /// Afterwards set owners, modes and times, and create device nodes, as this file lists them:
    /// mtree(5), a device table of makedevs, or pseudo files of mksquashfs
    #[arg(long, help_heading = HEADING, value_name = "FILE")]
    pub(crate) manifest: Option<PathBuf>,
}

fn valid_mode(text: &str) -> Result<String, String> {
    match parse_mode(text, 0o644, false) {
        Ok(_) => Ok(text.to_owned()),
        Err(failure) => Err(failure.message),
    }
}

/// The options, read before the first change.
#[derive(Default)]
pub(crate) struct OwnerRules {
    user: String,
    group: String,
    mode: Option<String>,
    manifest: Vec<ManifestEntry>,
    manifest_name: String,
    /// Files of the image have [`PENDING_ID`].
    has_pending: Cell<bool>,
}

/// What the copied files get.
#[derive(Default)]
pub(crate) struct FileRules {
    uid: Option<u32>,
    gid: Option<u32>,
    mode: Option<String>,
}

impl Ownership {
    /// Reads the manifest.
    pub(crate) fn read(&self) -> Outcome<OwnerRules> {
        if let Some(mode) = &self.chmod {
            valid_mode(mode).map_err(Failure::usage)?;
        }
        let (user, group) = self
            .chown
            .as_deref()
            .unwrap_or("")
            .split_once(':')
            .unwrap_or((self.chown.as_deref().unwrap_or(""), ""));
        let mut rules = OwnerRules {
            user: user.to_owned(),
            group: group.to_owned(),
            mode: self.chmod.clone(),
            manifest: Vec::new(),
            manifest_name: String::new(),
            has_pending: Cell::new(false),
        };
        if let Some(path) = &self.manifest {
            let text = std::fs::read(path).map_err(|error| {
                let error = Error::from(Errno::from_io_error(&error).unwrap_or(Errno::IO));
                Failure::new(format!("{}: {error}", path.display()))
            })?;
            rules.manifest_name = path.display().to_string();
            rules.manifest = manifest::parse(&text).map_err(|error| {
                Failure::new(format!("{}: {}", path.display(), explain(&error)))
            })?;
        }
        Ok(rules)
    }
}

impl OwnerRules {
    /// Whether there is nothing to do.
    pub(crate) fn is_empty(&self) -> bool {
        let has_owner = !self.user.is_empty() || !self.group.is_empty();
        !has_owner && self.mode.is_none() && self.manifest_name.is_empty()
    }

    /// Finds the numbers of the names in the image.
    pub(crate) fn resolve(&self, image: &Image) -> Outcome<FileRules> {
        let (uid, gid) = match self.find_owner(image) {
            Err(_) if image.is_new() => {
                self.has_pending.set(true);
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

    fn find_owner(&self, image: &Image) -> Outcome<(Option<u32>, Option<u32>)> {
        let uid = find_number(image, &self.user, "/etc/passwd", Owners::find_user)?;
        let gid = find_number(image, &self.group, "/etc/group", Owners::find_group)?;
        Ok((uid, gid))
    }

    /// Adds to a size the files that the manifest creates. `exists` returns whether the copy
    /// creates a path.
    pub(crate) fn add_created(&self, size: &mut FileTreeSize, exists: impl Fn(&[u8]) -> bool) {
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
    /// below a directory of the image.
    pub(crate) fn finish(
        &self,
        session: &Session,
        image: &Image,
        path: &Path,
        observer: &dyn Observer,
    ) -> Outcome {
        if self.has_pending.get() {
            let root = Path::new("/");
            let found = image.stat(root, false).map_err(|error| image.name(error))?;
            let (uid, gid) = self.find_owner(image)?;
            let mut visitor = PendingOwners { image, uid, gid };
            walk(session, image, root, found, &mut visitor)?;
        }
        self.apply_manifest(session, image, path, observer)
    }

    fn apply_manifest(
        &self,
        session: &Session,
        image: &Image,
        path: &Path,
        observer: &dyn Observer,
    ) -> Outcome {
        if self.manifest.is_empty() {
            return Ok(());
        }
        let owners = image.owners();
        let find = |is_user: bool, name: &str| {
            if is_user {
                owners.find_user(name)
            } else {
                owners.find_group(name)
            }
        };
        let applied = manifest::apply(image.process(), path, &self.manifest, &find, observer);
        session.check_interrupt()?;
        applied.map_err(|error| {
            let hint = image.full_hint(&error);
            Failure::new(format!("{}: {}{hint}", self.manifest_name, explain(&error)))
        })
    }
}

/// Replaces [`PENDING_ID`].
struct PendingOwners<'a> {
    image: &'a Image,
    uid: Option<u32>,
    gid: Option<u32>,
}

impl Visitor for PendingOwners<'_> {
    fn visit(&mut self, visit: &Visit<'_>) -> Outcome<WalkControl> {
        let found = visit.attributes;
        let uid = self.uid.filter(|_| found.uid == PENDING_ID);
        let gid = self.gid.filter(|_| found.gid == PENDING_ID);
        if uid.is_some() || gid.is_some() {
            let flags = AtFlags::SYMLINK_NOFOLLOW;
            set_owner_keeping_mode(self.image, visit.path, uid, gid, flags)
                .map_err(|error| self.image.name(error))?;
        }
        Ok(WalkControl::Enter)
    }
}

/// Sets the owner of a file, and the setuid and setgid bits again that this clears.
pub(crate) fn set_owner_keeping_mode(
    image: &Image,
    path: &Path,
    uid: Option<u32>,
    gid: Option<u32>,
    flags: AtFlags,
) -> folio::Result<()> {
    let process = image.process();
    let before = process.fstatat(AT_FDCWD, path, flags)?;
    process.fchownat(AT_FDCWD, path, uid, gid, flags)?;
    if before.mode & 0o6000 != 0 && before.file_type != FileType::Symlink {
        process.fchmodat(AT_FDCWD, path, before.mode)?;
    }
    Ok(())
}

/// Splits a path into the directory, "" for the top, and the name.
pub(crate) fn split_last(path: &[u8]) -> (&[u8], &[u8]) {
    match path.iter().rposition(|byte| *byte == b'/') {
        Some(at) => (&path[..at], &path[at + 1..]),
        None => (&[], path),
    }
}

/// Returns the number of a user or group of an image, `None` for an empty name.
pub(crate) fn find_number(
    image: &Image,
    text: &str,
    file: &str,
    find: fn(&Owners, &str) -> Option<u32>,
) -> Outcome<Option<u32>> {
    if text.is_empty() {
        return Ok(None);
    }
    // Numbers need no table.
    let found = text.parse().ok().or_else(|| find(&image.owners(), text));
    // Without tables too, root is number 0.
    let found = found.or((text == "root").then_some(0));
    let unknown = || Failure::new(format!("{text}: unknown name in the image's {file}"));
    found.map(Some).ok_or_else(unknown)
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
    pub(crate) fn change_entry(&self, entry: &mut Entry) {
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
