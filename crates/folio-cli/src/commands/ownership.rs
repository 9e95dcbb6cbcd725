//! Owners and modes that a copy gives to its files: `--chown`, `--chmod` and `--manifest`.

use super::mode::parse_mode;
use crate::exit::{Failure, Outcome, explain};
use crate::image::Image;
use crate::output::Owners;
use crate::session::Session;
use clap::Args;
use folio::vfs::{Attributes, FileType};
use folio::{Errno, Error};
use folio_archive::manifest::{self, ManifestEntry};
use folio_archive::{Entry, EntryKind, Observer};
use std::path::{Path, PathBuf};

/// The heading of the options in help texts.
const HEADING: &str = "Owners and modes in the image";

/// Owners and modes in the image, for builders without root.
#[derive(Args, Clone)]
pub(crate) struct Ownership {
    /// Owner of all files: OWNER, OWNER:GROUP or :GROUP; numbers, or names from the image's
    /// /etc/passwd and /etc/group
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
        Ok(FileRules {
            uid: find_number(image, &self.user, "/etc/passwd", Owners::find_user)?,
            gid: find_number(image, &self.group, "/etc/group", Owners::find_group)?,
            mode: self.mode.clone(),
        })
    }

    /// Applies the manifest below a directory of the image.
    pub(crate) fn apply_manifest(
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
