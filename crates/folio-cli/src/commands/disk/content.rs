//! The content of a partition: a file system with a tree, or the bytes of a file.
//!
//! [`ContentSource`] is the one place that knows kinds of sources.

use super::identity::IdentitySource;
use super::spec::{ContentFormat, PartitionSpec};
use crate::commands::cp;
use crate::exit::{Failure, Outcome};
use crate::image::{Access, Image, format_device};
use crate::image_path::ImagePath;
use crate::output::io_reason;
use crate::progress::Progress;
use crate::session::{Session, clock};
use crate::value_parsers::uuid;
use folio::block::{Device, PartitionDevice, PartitionName};
use folio::kernel::{ExtraSpace, FormatOptions};
use folio_fat::{FatOptions, FatWidth};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Bytes of a file that are copied at once.
const COPY_BYTES: usize = 1 << 20;
/// Least size of a FAT that is made for its content.
const FAT32_BYTES_MIN: u64 = 34 << 20;
const FAT16_BYTES_MIN: u64 = 8 << 20;

/// Where the content comes from.
pub(super) enum ContentSource {
    Nothing,
    /// A tree of files on the host.
    Tree(PathBuf),
    /// The bytes of a file on the host.
    File(PathBuf, u64),
}

/// The content of one partition.
pub(super) struct Content {
    format: ContentFormat,
    source: ContentSource,
    label: String,
    uuid: Option<String>,
}

impl Content {
    /// Checks what the specification says.
    pub(super) fn new(spec: &PartitionSpec) -> Outcome<Self> {
        let source = match &spec.source {
            None => ContentSource::Nothing,
            Some(path) => {
                let found = path.metadata().map_err(|error| {
                    Failure::new(format!("{}: {}", path.display(), io_reason(&error)))
                })?;
                if found.is_dir() {
                    ContentSource::Tree(path.clone())
                } else {
                    ContentSource::File(path.clone(), found.len())
                }
            }
        };
        let refuse = |what: &str| {
            let path = spec.source.as_deref().unwrap_or(Path::new("")).display();
            Err(Failure::usage(format!("{path}: {what}")))
        };
        match (spec.format, &source) {
            (ContentFormat::Raw, ContentSource::Tree(_)) => {
                return refuse("is a directory: format \"raw\" needs a file");
            }
            (ContentFormat::Raw, ContentSource::Nothing) => {
                return Err(Failure::usage("format \"raw\" needs a source"));
            }
            (ContentFormat::None, ContentSource::Tree(_) | ContentSource::File(..)) => {
                return refuse("a source needs a format: ext4, fat32, fat16 or raw");
            }
            (
                ContentFormat::Ext4 | ContentFormat::Fat32 | ContentFormat::Fat16,
                ContentSource::File(..),
            ) => {
                return refuse("is a file: a file system is filled from a directory");
            }
            _ => {}
        }
        Ok(Self {
            format: spec.format,
            source,
            label: spec.filesystem_label.clone(),
            uuid: spec.filesystem_uuid.clone(),
        })
    }

    fn ext4_options(&self, identity: &mut IdentitySource<'_>) -> Outcome<FormatOptions> {
        let uuid = match &self.uuid {
            Some(text) => uuid(text).map_err(Failure::usage)?,
            None => identity.next("filesystem"),
        };
        Ok(FormatOptions {
            label: self.label.clone(),
            uuid: Some(uuid),
            clock: clock(),
            ..FormatOptions::default()
        })
    }

    /// Returns the least size in bytes, and `extra` space.
    pub(super) fn size(&self, session: &Session, extra: ExtraSpace) -> Outcome<u64> {
        let with_extra = |bytes: u64| match extra {
            ExtraSpace::None => bytes,
            ExtraSpace::Percent(percent) => bytes + bytes / 100 * u64::from(percent),
            ExtraSpace::Bytes(more) => bytes.saturating_add(more),
        };
        match (self.format, &self.source) {
            (_, ContentSource::File(_, len)) => Ok(with_extra(*len)),
            (ContentFormat::Ext4, ContentSource::Tree(path)) => {
                let options = FormatOptions::default();
                Ok(cp::tree_size(session, path, extra, options)?.len_bytes)
            }
            (ContentFormat::Fat32, ContentSource::Tree(path)) => {
                Ok(with_extra(fat_bytes(path)?.max(FAT32_BYTES_MIN)))
            }
            (ContentFormat::Fat16, ContentSource::Tree(path)) => {
                Ok(with_extra(fat_bytes(path)?.max(FAT16_BYTES_MIN)))
            }
            _ => Err(Failure::usage(
                "a partition without content needs a size, unless it is the last of a disk with a size",
            )),
        }
    }

    /// Writes the content into partition `number` of `disk`, which reads as zeros.
    pub(super) fn write(
        &self,
        session: &Session,
        (disk, image): (&Arc<dyn Device>, &Path),
        (number, start_bytes, len_bytes): (u32, u64, u64),
        identity: &mut IdentitySource<'_>,
    ) -> Outcome {
        let place = ImagePath {
            image: image.to_owned(),
            partition: Some(PartitionName::Number(number)),
            path: "/".into(),
        };
        let name = place.image_name();
        let failed = |error: folio::Error| Failure::new(format!("{name}: {error}"));
        let window = PartitionDevice::new(disk.clone(), start_bytes, len_bytes).map_err(failed)?;
        let window: Arc<dyn Device> = Arc::new(window);
        match self.format {
            ContentFormat::None => return Ok(()),
            ContentFormat::Raw => {
                let ContentSource::File(path, _) = &self.source else {
                    return Ok(());
                };
                return copy_file(session, path, &*window);
            }
            ContentFormat::Ext4 => {
                let mut options = self.ext4_options(identity)?;
                if let ContentSource::Tree(path) = &self.source {
                    // With as many inodes as the tree needs.
                    let least = cp::tree_size(session, path, ExtraSpace::None, options.clone())?;
                    options.inode_count = least.inodes_beyond_default(len_bytes);
                    options.block_size = (least.len_bytes > len_bytes / 100 * 80)
                        .then_some(least.options.block_size)
                        .flatten();
                    options.reserved_percent = 0.0;
                }
                format_device(session, Path::new(&name), &*window, &options)?;
            }
            ContentFormat::Fat32 | ContentFormat::Fat16 => {
                let options = FatOptions {
                    width: match self.format {
                        ContentFormat::Fat16 => FatWidth::Fat16,
                        _ => FatWidth::Fat32,
                    },
                    label: self.label.clone(),
                    volume_id: self.volume_id(identity)?,
                };
                folio_fat::format(&window, &options).map_err(failed)?;
            }
        }
        let ContentSource::Tree(path) = &self.source else {
            return Ok(());
        };
        let access = if self.format == ContentFormat::Ext4 {
            Access::Fill
        } else {
            Access::Write
        };
        let image = Image::mount(session, &place, disk.clone(), access)?;
        let keeps_all = self.format == ContentFormat::Ext4;
        cp::copy_tree(session, path, (image, &place), keeps_all)
    }

    fn volume_id(&self, identity: &mut IdentitySource<'_>) -> Outcome<u32> {
        let Some(text) = &self.uuid else {
            let bytes = identity.next("filesystem");
            return Ok(u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]));
        };
        let digits: String = text.chars().filter(|letter| *letter != '-').collect();
        u32::from_str_radix(&digits, 16)
            .ok()
            .filter(|_| digits.len() == 8)
            .ok_or_else(|| {
                Failure::usage(format!(
                    "invalid volume number {text:?}: expected 8 hexadecimal digits (e.g. 1A2B-3C4D)"
                ))
            })
    }
}

/// Returns the bytes of a FAT for a tree: whole clusters, tables, and some more.
fn fat_bytes(path: &Path) -> Outcome<u64> {
    const CLUSTER_BYTES: u64 = 4096;
    let mut bytes = 0;
    let mut folders = vec![path.to_owned()];
    while let Some(folder) = folders.pop() {
        let failed = |error: std::io::Error| {
            Failure::new(format!("{}: {}", folder.display(), io_reason(&error)))
        };
        let mut names = 0;
        for entry in std::fs::read_dir(&folder).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            // An entry of 32 bytes per 13 letters, and a short one.
            names += 64 + entry.file_name().len() as u64 * 32 / 13;
            let found = entry.metadata().map_err(failed)?;
            if found.is_dir() {
                folders.push(entry.path());
            } else {
                bytes += found.len().next_multiple_of(CLUSTER_BYTES);
            }
        }
        bytes += (names + 64).next_multiple_of(CLUSTER_BYTES);
    }
    Ok(bytes + bytes / 256 + (1 << 20))
}

/// Copies the bytes of a file, without its zeros.
fn copy_file(session: &Session, path: &Path, device: &dyn Device) -> Outcome {
    let name = path.display();
    let failed = |error: std::io::Error| Failure::new(format!("{name}: {}", io_reason(&error)));
    let mut file = std::fs::File::open(path).map_err(failed)?;
    let progress = Progress::new(session);
    let mut buf = vec![0; COPY_BYTES];
    let mut offset = 0;
    loop {
        session.check_interrupt()?;
        let count = file.read(&mut buf).map_err(failed)?;
        if count == 0 {
            break;
        }
        let bytes = &buf[..count];
        if bytes.iter().any(|byte| *byte != 0) {
            device
                .write_at(bytes, offset)
                .map_err(|error| Failure::new(format!("{name}: {error}")))?;
        }
        offset += count as u64;
        progress.add(count as u64);
    }
    progress.finish();
    Ok(())
}
