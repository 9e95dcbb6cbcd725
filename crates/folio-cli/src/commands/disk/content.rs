//! The content of a partition: a file system with the files of a tree, an archive or a container
//! image, or the bytes of a file.
//!
//! [`ContentSource`] is the one place that knows kinds of sources.

use super::spec::{ContentFormat, PartitionSpec};
use super::swap;
use super::verity::{SIGNATURE_BYTES, SIGNATURE_BYTES_MAX, check_signed, read_signature};
use crate::arguments::new_image::{add_contents, fills, fitting_size, with_room};
use crate::arguments::ownership::finish_rules;
use crate::exit::{Failure, Outcome};
use crate::identity::IdentitySource;
use crate::image::{Access, Image};
use crate::image_path::ImagePath;
use crate::new_file_system::format_device;
use crate::observer::{Files, SessionObserver};
use crate::output::io_reason;
use crate::progress::Progress;
use crate::session::{Session, clock};
use crate::tree_copy;
use crate::unpacking::ArchiveSource;
use crate::value_parsers::uuid;
use folio::block::Device;
use folio::block::partition::{NewPartition, PartitionDevice};
use folio::block::tools::verity::{BLOCK_BYTES, RootHash};
use folio::ext4::{ExtraSpace, FormatOptions, LeastSize};
use folio::fat::{self, FatOptions, FatWidth};
use folio_tree::oci::Reference;
use folio_tree::{Contents, EntryKind, OwnerRules};
use std::cell::OnceCell;
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
    /// A tar archive or a container image, and its files once they are listed.
    Archive(Box<ArchiveSource>, OnceCell<Contents>),
}

/// The content of one partition.
pub(super) struct Content {
    format: ContentFormat,
    source: ContentSource,
    label: String,
    uuid: Option<String>,
    /// Owners and modes of the files of an ext4.
    rules: OwnerRules,
    /// What an automatic size of an ext4 is made of.
    least: OnceCell<LeastSize>,
    /// The root hash that its signature is of.
    signed: Option<RootHash>,
    /// Bytes per block of an ext4; `None` for the default.
    block_size: Option<u32>,
}

impl ContentSource {
    /// Opens the source of a specification.
    fn open(session: &Session, spec: &PartitionSpec) -> Outcome<Self> {
        let Some(path) = &spec.source else {
            return Ok(Self::Nothing);
        };
        let archive = |source| Self::Archive(Box::new(source), OnceCell::new());
        let container = Reference::parse(path.as_os_str()).filter(|_| !path.exists());
        if container.is_none() && spec.platform.is_some() {
            return Err(Failure::usage(format!(
                "{}: platform needs a container image, e.g. oci:DIR:TAG",
                path.display()
            )));
        }
        if let Some(reference) = container {
            let platform = spec.platform()?;
            let opened = ArchiveSource::open_container(session, &reference, platform.as_ref());
            return opened.map(archive);
        }
        let found = path
            .metadata()
            .map_err(|error| Failure::new(format!("{}: {}", path.display(), io_reason(&error))))?;
        if found.is_dir() {
            Ok(Self::Tree(path.clone()))
        } else if spec.format.is_file_system() {
            ArchiveSource::open_tar(session, path).map(archive)
        } else {
            Ok(Self::File(path.clone(), found.len()))
        }
    }
}

impl Content {
    /// Checks what the specification says.
    pub(super) fn new(session: &Session, spec: &PartitionSpec) -> Outcome<Self> {
        let rules = spec.ownership().read()?;
        if spec.format != ContentFormat::Ext4 && !rules.is_empty() {
            let text = "chown, chmod and manifest need format ext4";
            return Err(Failure::usage(text));
        }
        let source = ContentSource::open(session, spec)?;
        let refuse = |what: &str| {
            let path = spec.source.as_deref().unwrap_or(Path::new("")).display();
            Err(Failure::usage(format!("{path}: {what}")))
        };
        let mut signed = None;
        match (spec.format, &source) {
            (ContentFormat::Raw, ContentSource::Nothing) => {
                return Err(Failure::usage("format \"raw\" needs a source"));
            }
            (ContentFormat::Raw, ContentSource::Tree(_) | ContentSource::Archive(..)) => {
                return refuse("is not a file: format \"raw\" needs one");
            }
            (ContentFormat::VeritySignature, ContentSource::File(path, len)) => {
                signed = Some(read_signature(path, *len)?);
            }
            (
                ContentFormat::VeritySignature,
                ContentSource::Tree(_) | ContentSource::Archive(..),
            ) => {
                return refuse("is not a file: format \"verity-signature\" needs one");
            }
            (ContentFormat::Verity, source) if !matches!(source, ContentSource::Nothing) => {
                return refuse("format \"verity\" has no source, but verity-data");
            }
            (ContentFormat::None | ContentFormat::Swap, source)
                if !matches!(source, ContentSource::Nothing) =>
            {
                return refuse("a source needs a format: ext4, fat32, fat16 or raw");
            }
            _ => {}
        }
        Ok(Self {
            format: spec.format,
            source,
            label: spec.filesystem_label.clone(),
            uuid: spec.filesystem_uuid.clone(),
            rules,
            least: OnceCell::new(),
            signed,
            block_size: None,
        })
    }

    /// Returns the same content for a partition with a hash tree: dm-verity has logical blocks of
    /// 4096 bytes, and the kernel mounts no file system with smaller ones on it.
    pub(super) fn verified(self) -> Outcome<Self> {
        match self.format {
            ContentFormat::Ext4 => Ok(Self {
                block_size: Some(BLOCK_BYTES as u32),
                ..self
            }),
            ContentFormat::Fat32 | ContentFormat::Fat16 => Err(Failure::usage(
                "a FAT here has sectors of 512 bytes: dm-verity needs 4096, as ext4 has",
            )),
            _ => Ok(self),
        }
    }

    /// Refuses a signature of another root hash than one that the UUIDs of the partitions, `ids`,
    /// are halves of.
    pub(super) fn check_signed(&self, ids: &[[u8; 16]]) -> Outcome {
        let signed = self.signed.as_ref();
        signed.map_or(Ok(()), |root| check_signed(root, ids))
    }

    /// Refuses a partition of `len_bytes` bytes before it is made.
    pub(super) fn check_len(&self, len_bytes: u64) -> Outcome {
        match self.format {
            ContentFormat::Swap => swap::check(&self.label, len_bytes),
            ContentFormat::VeritySignature if len_bytes > SIGNATURE_BYTES_MAX => {
                Err(Failure::usage(format!(
                    "size {len_bytes}: a signature has at most {SIGNATURE_BYTES_MAX} bytes"
                )))
            }
            _ => match &self.source {
                ContentSource::File(path, source_bytes) if *source_bytes > len_bytes => {
                    Err(Failure::usage(format!(
                        "size {len_bytes}: {} has {source_bytes} bytes",
                        path.display()
                    )))
                }
                _ => Ok(()),
            },
        }
    }

    fn file_system_uuid(&self, identity: &mut IdentitySource<'_>) -> Outcome<[u8; 16]> {
        match &self.uuid {
            Some(text) => uuid(text).map_err(Failure::usage),
            None => Ok(identity.next("filesystem")),
        }
    }

    fn ext4_options(&self, identity: &mut IdentitySource<'_>) -> Outcome<FormatOptions> {
        Ok(FormatOptions {
            label: self.label.clone(),
            uuid: Some(self.file_system_uuid(identity)?),
            clock: clock(),
            block_size: self.block_size,
            ..FormatOptions::default()
        })
    }

    /// Returns the least size in bytes, and `extra` space.
    pub(super) fn size(&self, session: &Session, extra: ExtraSpace) -> Outcome<u64> {
        let with_extra = |bytes: u64| with_extra(bytes, extra);
        let fat_bytes_min = match self.format {
            ContentFormat::Fat32 => FAT32_BYTES_MIN,
            _ => FAT16_BYTES_MIN,
        };
        match (self.format, &self.source) {
            (ContentFormat::VeritySignature, ContentSource::File(_, len)) => {
                Ok(with_extra(SIGNATURE_BYTES.max(*len)))
            }
            (ContentFormat::VeritySignature, _) => Ok(with_extra(SIGNATURE_BYTES)),
            (_, ContentSource::File(_, len)) => Ok(with_extra(*len)),
            (ContentFormat::Ext4, _) => {
                let options = FormatOptions {
                    block_size: self.block_size,
                    ..FormatOptions::default()
                };
                let least = self.least_ext4(session, extra, options)?;
                let least = least.ok_or_else(no_size)?;
                let len_bytes = least.len_bytes;
                // An automatic size is computed once.
                let _ = self.least.set(least);
                Ok(len_bytes)
            }
            (_, ContentSource::Tree(path)) => Ok(with_extra(
                FatSize::of_tree(path)?.bytes().max(fat_bytes_min),
            )),
            (_, ContentSource::Archive(..)) => {
                let bytes = self.contents(session)?.map_or(0, FatSize::of_contents);
                Ok(with_extra(bytes.max(fat_bytes_min)))
            }
            _ => Err(no_size()),
        }
    }

    /// Returns the least size of an ext4 for the content, `None` without content.
    fn least_ext4(
        &self,
        session: &Session,
        extra: ExtraSpace,
        options: FormatOptions,
    ) -> Outcome<Option<LeastSize>> {
        if let ContentSource::Tree(path) = &self.source {
            return tree_copy::tree_size(session, path, &self.rules, extra, options).map(Some);
        }
        let Some(contents) = self.contents(session)? else {
            return Ok(None);
        };
        let fitting = fitting_size(Path::new("/"), extra, options, |size| {
            add_contents(size, contents, &self.rules);
        });
        fitting.map(Some)
    }

    /// Adds to the options of a file system of `len_bytes` bytes what the content needs.
    fn fitting_options(
        &self,
        session: &Session,
        options: FormatOptions,
        len_bytes: u64,
    ) -> Outcome<FormatOptions> {
        let (least, is_tight) = match self.least.get() {
            Some(least) => (Some(least.clone()), true),
            None => {
                let least = self.least_ext4(session, ExtraSpace::None, options.clone())?;
                let is_tight = least.as_ref().is_some_and(|least| fills(least, len_bytes));
                (least, is_tight)
            }
        };
        Ok(match least {
            Some(least) => with_room(&least, is_tight, options, len_bytes),
            None => options,
        })
    }

    /// Lists the files of an archive, the first time; returns `None` for another source.
    fn contents(&self, session: &Session) -> Outcome<Option<&Contents>> {
        let ContentSource::Archive(archive, listed) = &self.source else {
            return Ok(None);
        };
        if listed.get().is_none() {
            // Nothing else has set it.
            let _ = listed.set(archive.contents(session)?);
        }
        Ok(listed.get())
    }

    /// Writes the content into `partition` of `disk`, which reads as zeros. The table need not have
    /// the partition yet. `place` is the name of its root directory.
    pub(super) fn write(
        &self,
        session: &Session,
        disk: &Arc<dyn Device>,
        place: &ImagePath,
        partition: &NewPartition,
        identity: &mut IdentitySource<'_>,
    ) -> Outcome {
        let (start_bytes, len_bytes) = (partition.start_bytes, partition.len_bytes);
        let name = place.image_name();
        let failed = |error: folio::Error| Failure::new(format!("{name}: {error}"));
        let window = PartitionDevice::new(disk.clone(), start_bytes, len_bytes).map_err(failed)?;
        let window: Arc<dyn Device> = Arc::new(window);
        match self.format {
            // A hash tree comes after the partition that it verifies.
            ContentFormat::None | ContentFormat::Verity => return Ok(()),
            ContentFormat::Swap => {
                return swap::format(&*window, &self.label, self.file_system_uuid(identity)?);
            }
            ContentFormat::Raw | ContentFormat::VeritySignature => {
                let ContentSource::File(path, _) = &self.source else {
                    return Ok(());
                };
                return copy_file(session, path, &*window);
            }
            ContentFormat::Ext4 => {
                let options = self.ext4_options(identity)?;
                let options = self.fitting_options(session, options, len_bytes)?;
                format_device(session, Path::new(&name), &*window, &options)?;
            }
            ContentFormat::Fat32 | ContentFormat::Fat16 => {
                let mut options = FatOptions::default();
                options.width = match self.format {
                    ContentFormat::Fat16 => FatWidth::Fat16,
                    _ => FatWidth::Fat32,
                };
                options.label = self.label.clone();
                options.volume_id = self.volume_id(identity)?;
                fat::format(&window, &options).map_err(failed)?;
            }
        }
        self.fill(session, disk.clone(), window, place)
    }

    /// Copies the files into the formatted partition.
    fn fill(
        &self,
        session: &Session,
        disk: Arc<dyn Device>,
        window: Arc<dyn Device>,
        place: &ImagePath,
    ) -> Outcome {
        let keeps_all = self.format == ContentFormat::Ext4;
        let access = if keeps_all {
            Access::Fill
        } else {
            Access::Write
        };
        let mount = || Image::mount_window(session, place, disk, window, access);
        match &self.source {
            ContentSource::File(..) => Ok(()),
            ContentSource::Nothing if self.rules.is_empty() => Ok(()),
            ContentSource::Nothing => {
                let image = mount()?;
                let progress = Progress::new(session);
                let files = Files::Image(&image);
                let observer = SessionObserver::new(session, &progress, files, files);
                let finished = finish_rules(session, &self.rules, &image, &place.path, &observer);
                progress.finish();
                finished.and(image.close())
            }
            ContentSource::Tree(path) => {
                tree_copy::copy_tree(session, path, mount()?, place, &self.rules, keeps_all)
            }
            ContentSource::Archive(archive, _) => {
                let image = mount()?;
                let unpacked = archive.unpack_into(session, &image, &place.path, &self.rules);
                unpacked.and(image.close())
            }
        }
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

/// Returns a size with more space.
pub(super) fn with_extra(bytes: u64, extra: ExtraSpace) -> u64 {
    match extra {
        ExtraSpace::None => bytes,
        ExtraSpace::Percent(percent) => bytes + bytes / 100 * u64::from(percent),
        ExtraSpace::Bytes(more) => bytes.saturating_add(more),
    }
}

fn no_size() -> Failure {
    Failure::usage(
        "a partition without content needs a size, unless it is the last of a disk with a size",
    )
}

/// The bytes that the files of a FAT need.
#[derive(Default)]
struct FatSize(u64);

impl FatSize {
    const CLUSTER_BYTES: u64 = 4096;

    /// Adds the files of a host directory.
    fn of_tree(path: &Path) -> Outcome<Self> {
        let mut size = Self::default();
        let mut folders = vec![path.to_owned()];
        while let Some(folder) = folders.pop() {
            let failed = |error: std::io::Error| {
                Failure::new(format!("{}: {}", folder.display(), io_reason(&error)))
            };
            let mut names = Vec::new();
            for entry in std::fs::read_dir(&folder).map_err(failed)? {
                let entry = entry.map_err(failed)?;
                names.push(entry.file_name().len());
                let found = entry.metadata().map_err(failed)?;
                if found.is_dir() {
                    folders.push(entry.path());
                } else {
                    size.add_file(found.len());
                }
            }
            size.add_directory(names);
        }
        Ok(size)
    }

    /// Returns the bytes for the files of an archive.
    fn of_contents(contents: &Contents) -> u64 {
        let mut size = Self::default();
        for (_, file) in contents.files() {
            if let EntryKind::File { size_bytes } = file.kind {
                size.add_file(size_bytes);
            }
        }
        for names in contents.directories().values() {
            size.add_directory(names.iter().map(|name| name.len()));
        }
        size.bytes()
    }

    fn add_file(&mut self, len_bytes: u64) {
        let clusters = len_bytes.div_ceil(Self::CLUSTER_BYTES);
        let bytes = clusters.saturating_mul(Self::CLUSTER_BYTES);
        self.0 = self.0.saturating_add(bytes);
    }

    fn add_directory(&mut self, name_lens: impl IntoIterator<Item = usize>) {
        // An entry of 32 bytes per 13 letters, and a short one.
        let entry = |len: usize| 64 + len as u64 * 32 / 13;
        let entries: u64 = name_lens.into_iter().map(entry).sum();
        self.add_file(entries + 64);
    }

    /// Returns the sum with the allocation tables, and some more.
    fn bytes(&self) -> u64 {
        self.0.saturating_add(self.0 / 256).saturating_add(1 << 20)
    }
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
