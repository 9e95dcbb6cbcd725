//! Facts about a path, each found out or with the reason why not.

pub(crate) mod attributes;
pub(crate) mod blocks;
pub(crate) mod disk_writes;
mod fact;
pub(crate) mod image;
pub(crate) mod layers;
pub(crate) mod memory;
pub(crate) mod memory_group;
pub(crate) mod mounts;
pub(crate) mod reads;
pub(crate) mod rename;
pub(crate) mod rewrite;
mod server;
pub(crate) mod written_state;

pub use self::fact::Fact;
use self::fact::RESIDENCY_HIDDEN;

use self::attributes::Attributes;
use self::blocks::Blocks;
use self::disk_writes::DiskWrites;
use self::fact::unmapped;
use self::image::ImageFacts;
use self::layers::Step;
use self::memory::{During, Pressure};
use self::reads::Reads;
use self::rewrite::Rewrite;
use crate::text::reason;
use folio_pagecache::{Residency, ResidencyReport};
use rustix::fs::{Mode, OFlags};
use serde::Serialize;
use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

/// What a path leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum Kind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A disk or a partition.
    BlockDevice,
    /// A FIFO, a socket or a character device: opening one may wait for ever, or do something.
    Special,
}

/// What may be done to find out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Bytes read from the file at most, all passes together.
    pub read_bytes: u64,
    /// Whether a temporary file may be written beside the path.
    pub may_write: bool,
}

/// All that was found out about a path.
#[derive(Debug, Clone)]
pub struct Facts {
    /// The path, as it was given.
    pub path: PathBuf,
    /// What it leads to.
    pub kind: Kind,
    /// Size of a regular file in bytes.
    pub size_bytes: u64,
    /// The file system, and what is below it.
    pub chain: Vec<Step>,
    /// What the file system was asked for about attributes.
    pub attributes: Fact<Attributes>,
    /// The extents of the file.
    pub blocks: Fact<Blocks>,
    /// If it is a disk image: what is allocated in it.
    pub image: Option<Fact<ImageFacts>>,
    /// How much of the file was in memory before anything was read.
    pub residency: Fact<Residency>,
    /// What reading a part twice did.
    pub reads: Fact<Reads>,
    /// Limits and pressure of memory.
    pub pressure: Pressure,
    /// What writing a temporary file did; `None` if that was not asked for.
    pub rewrite: Option<Fact<Rewrite>>,
    /// What first writes to the disk took; `None` if that was not asked for, or no disk is the last
    /// layer that can be seen.
    pub disk_writes: Option<Fact<Vec<DiskWrites>>>,
}

/// Finds out about `path`, following a symbolic link.
///
/// Errors: only where nothing at all can be found out, because the path leads nowhere or may not be
/// looked at.
pub fn probe(path: &Path, limits: Limits) -> io::Result<Facts> {
    let metadata = std::fs::metadata(path)?;
    let path = path.to_path_buf();
    let kind = kind(&metadata);
    let chain = layers::chain_of(&path);
    let mut facts = Facts {
        path,
        kind,
        size_bytes: if kind == Kind::File {
            metadata.len()
        } else {
            0
        },
        chain,
        attributes: Err(String::new()),
        blocks: Err(no_file(kind)),
        image: None,
        residency: Err(no_file(kind)),
        reads: Err(no_file(kind)),
        pressure: Pressure::here(),
        rewrite: None,
        disk_writes: None,
    };
    facts.attributes = attributes::probe(&facts.path);
    if kind == Kind::File {
        match open(&facts.path) {
            Ok(file) => facts.look_inside(&file, limits),
            Err(error) => {
                let why = format!("the file cannot be read: {}", reason(&error));
                facts.blocks = Err(why.clone());
                facts.residency = Err(why.clone());
                facts.reads = Err(why);
            }
        }
    }
    // Beside a device or a socket is nowhere that files are written.
    if limits.may_write && matches!(kind, Kind::File | Kind::Directory) {
        let folder = match kind {
            Kind::Directory => Some(facts.path.as_path()),
            _ => facts.path.parent(),
        };
        let folder = folder
            .filter(|folder| !folder.as_os_str().is_empty())
            .unwrap_or(Path::new("."));
        facts.rewrite = Some(rewrite::probe(folder));
        if facts.ends_at_a_disk() {
            facts.disk_writes = Some(disk_writes::probe(folder));
        }
    }
    Ok(facts)
}

impl Facts {
    /// In this order: what is in memory is looked at before anything is read.
    fn look_inside(&mut self, file: &File, limits: Limits) {
        self.residency = match folio_pagecache::residency(file) {
            Ok(ResidencyReport::Known(found)) => Ok(found),
            Ok(ResidencyReport::Unknown(_)) => Err(RESIDENCY_HIDDEN.to_owned()),
            Err(error) => Err(unmapped(&error)),
        };
        self.blocks = blocks::probe(file, self.size_bytes);
        let before = During::so_far();
        self.reads = reads::probe(&self.path, file, self.size_bytes, limits.read_bytes);
        self.pressure.during = self.reads.is_ok().then(|| During::so_far().since(before));
        if let Ok(found) = file.metadata() {
            self.pressure.groups = memory_group::limiting(&found);
        }
        self.image = image::probe(&self.path, file, self.size_bytes);
    }

    /// Whether the last layer that can be seen is a disk: what is below may be a host's image.
    fn ends_at_a_disk(&self) -> bool {
        matches!(
            self.chain.last(),
            Some(layers::Step { layer: layers::Layer::Disk(disk), .. }) if disk.device_type == "disk"
        )
    }

    /// The file system that the path is on, if it is known.
    pub(crate) fn file_system(&self) -> Option<&layers::FileSystem> {
        self.chain.iter().find_map(|step| match &step.layer {
            layers::Layer::FileSystem(found) => Some(found),
            _ => None,
        })
    }
}

fn kind(metadata: &Metadata) -> Kind {
    let file_type = metadata.file_type();
    if file_type.is_file() {
        Kind::File
    } else if file_type.is_dir() {
        Kind::Directory
    } else if file_type.is_block_device() {
        Kind::BlockDevice
    } else {
        Kind::Special
    }
}

fn no_file(kind: Kind) -> String {
    match kind {
        Kind::File => "not looked at",
        Kind::Directory => "a directory has no contents of that kind",
        Kind::BlockDevice => "a device is looked at through the files on it",
        Kind::Special => "opening a special file may wait for ever",
    }
    .to_owned()
}

/// Opens a file for reading, leaving its time of access alone where that is allowed.
fn open(path: &Path) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let opened = rustix::fs::open(path, flags | OFlags::NOATIME, Mode::empty());
    let opened = opened.or_else(|_| rustix::fs::open(path, flags, Mode::empty()));
    Ok(File::from(opened?))
}
