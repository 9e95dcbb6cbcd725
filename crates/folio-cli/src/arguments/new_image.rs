//! Options of a new image that a command fills, and its creation.

use crate::exit::{Failure, Outcome, explain};
use crate::image::{Access, Image, open_device};
use crate::image_path::{ImagePath, refuse_protocol};
use crate::new_file_system;
use crate::objects::is_url;
use crate::session::{Session, clock, fixed_time};
use crate::value_parsers;
use crate::volumes;
use clap::{Args, ValueEnum};
use folio::Errno;
use folio::block::{self, ImageFormat};
use folio::ext4::{ExtraSpace, FileTreeSize, FormatOptions, LeastSize};
use folio_erofs::{Compression, ErofsOptions, NewErofs};
use folio_tree::{Contents, EntryKind, NewSize, OwnerRules, split_last};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A type of file system that a command creates with files in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum NewFileSystem {
    Ext4,
    Erofs,
}

/// A new image for the files.
#[derive(Args)]
pub(crate) struct NewImage {
    /// Create a new image of this size with an empty ext4; removed again if an error stops the
    /// command, kept if only single files fail (exit status 1). auto is the least size that holds
    /// the content, without blocks reserved for root; auto+20% and auto+64M leave room. The default
    /// is auto; of an existing volume or an empty partition, it is its size
    #[arg(long, value_name = "SIZE", value_parser = value_parsers::new_size, num_args = 0..=1,
        default_missing_value = "auto")]
    pub(crate) create: Option<NewSize>,
    /// Format of the new image; the default follows from its name: qcow2 for .qcow2, else raw
    #[arg(long, value_name = "FORMAT", requires = "create", value_parser = value_parsers::image_format())]
    pub(crate) format: Option<ImageFormat>,
    /// Type of the new file system; the default follows from the name of the image: erofs for
    /// .erofs, else ext4. An erofs is read-only, and as large as its content
    #[arg(long = "type", value_name = "TYPE", requires = "create")]
    pub(crate) kind: Option<NewFileSystem>,
    /// Compress the contents of an erofs: lz4, zstd or zstd:LEVEL
    #[arg(long, value_name = "METHOD", requires = "create")]
    pub(crate) compress: Option<Compression>,
    /// UUID of the new file system
    #[arg(long, value_name = "UUID", requires = "create", value_parser = value_parsers::uuid)]
    pub(crate) uuid: Option<[u8; 16]>,
    /// Label of the new file system
    #[arg(long, requires = "create")]
    pub(crate) label: Option<String>,
}

impl NewImage {
    /// Creates or opens the image of `place`, lets `fill` write into it, and closes it. A new image
    /// gets the directory of `place`, and is removed if `fill` fails or creates nothing. `contents`
    /// lists the files that `fill` writes before it applies `rules`.
    pub(crate) fn fill(
        &self,
        session: &Session,
        place: &ImagePath,
        rules: &OwnerRules,
        contents: impl FnOnce() -> Outcome<Contents>,
        fill: impl FnOnce(&Image) -> Outcome,
    ) -> Outcome {
        let Some(size) = self.create else {
            let image = Image::open(session, place, Access::Write)?;
            let filled = fill(&image);
            return filled.and(image.close());
        };
        refuse_existing(place, "write")?;
        let least_size = |extra, options| {
            let contents = contents()?;
            fitting_size(&place.path, extra, options, |content| {
                add_contents(content, &contents, rules);
            })
        };
        self.make(session, place, size, least_size, |image| {
            let filled = make_directories(&image, &place.path).and_then(|()| fill(&image));
            filled.and(image.close())
        })
    }

    /// Whether it will be an EROFS, by its type or its name.
    pub(crate) fn is_erofs(&self, place: &ImagePath) -> bool {
        let by_name = place.partition.is_none()
            && place.image.extension() == Some(OsStr::new("erofs"))
            && !is_url(place.image.as_os_str());
        self.kind
            .map_or(by_name, |kind| kind == NewFileSystem::Erofs)
    }

    /// As [`Self::make`], with an EROFS.
    fn make_erofs(
        &self,
        session: &Session,
        place: &ImagePath,
        size: NewSize,
        fill: impl FnOnce(Image) -> Outcome,
    ) -> Outcome {
        let name = place.image_name();
        if size != NewSize::Auto(ExtraSpace::None) {
            let text = format!("{name}: an erofs has the size of its content: omit SIZE");
            return Err(Failure::usage(text));
        }
        let format = self
            .format
            .unwrap_or_else(|| ImageFormat::of_name(&place.image));
        if format != ImageFormat::Raw
            || place.partition.is_some()
            || is_url(place.image.as_os_str())
        {
            let text = format!(
                "{name}: an erofs is created in a raw file of the host; folio image convert makes \
                 other formats of it"
            );
            return Err(Failure::usage(text));
        }
        refuse_protocol(&place.image).map_err(Failure::usage)?;
        let options = ErofsOptions {
            label: self.label.clone().unwrap_or_default(),
            uuid: self.uuid,
            compression: self.compress,
            latest: fixed_time(),
        };
        let new = NewErofs::create(&place.image, &options);
        let new = new.map_err(|error| match error.errno() {
            Errno::INVAL => Failure::usage(error.to_string()),
            _ => Failure::new(format!("{name}: {}", explain(&error))),
        })?;
        let filled = Image::stage(session, place, Arc::new(new)).and_then(fill);
        remove_useless(session, place, &filled);
        filled
    }

    /// Creates the image of `place`, which does not exist, or formats its empty partition;
    /// `least_size` returns what an automatic size is. Lets `fill` write into it and close it, and
    /// removes it if `fill` fails or creates nothing.
    pub(crate) fn make(
        &self,
        session: &Session,
        place: &ImagePath,
        size: NewSize,
        least_size: impl FnOnce(ExtraSpace, FormatOptions) -> Outcome<LeastSize>,
        fill: impl FnOnce(Image) -> Outcome,
    ) -> Outcome {
        if self.is_erofs(place) {
            return self.make_erofs(session, place, size, fill);
        }
        if self.compress.is_some() {
            let text =
                "--compress: only of an erofs: name the image NAME.erofs, or add --type erofs";
            return Err(Failure::usage(text));
        }
        let format = self
            .format
            .unwrap_or_else(|| ImageFormat::of_name(&place.image));
        let options = FormatOptions {
            label: self.label.clone().unwrap_or_default(),
            uuid: self.uuid,
            clock: clock(),
            ..FormatOptions::default()
        };
        if is_in_partition(place) {
            return self.format_partition(session, place, size, options, least_size, fill);
        }
        let size = match (size, volumes::len_bytes(&place.image)?) {
            (NewSize::Bytes(len_bytes), _) | (NewSize::Auto(_), Some(len_bytes)) => {
                LeastSize { len_bytes, options }
            }
            (NewSize::Auto(extra), None) => least_size(extra, options)?,
        };
        let device =
            new_file_system::create(session, place, format, size.len_bytes, &size.options)?;
        let filled = Image::mount(session, place, device, Access::Fill).and_then(fill);
        remove_useless(session, place, &filled);
        filled
    }

    /// As [`Self::make`], in a partition of an existing disk, which is zeroed again after a
    /// failure.
    fn format_partition(
        &self,
        session: &Session,
        place: &ImagePath,
        size: NewSize,
        options: FormatOptions,
        least_size: impl FnOnce(ExtraSpace, FormatOptions) -> Outcome<LeastSize>,
        fill: impl FnOnce(Image) -> Outcome,
    ) -> Outcome {
        let name = place.image_name();
        if size != NewSize::Auto(ExtraSpace::None) || self.format.is_some() {
            let text = format!(
                "{name}: the file system fills the partition: give --create without SIZE, and omit \
                 --format"
            );
            return Err(Failure::usage(text));
        }
        // The sources may be in the same disk, so they are read before it is opened.
        let least = least_size(ExtraSpace::None, options.clone())?;
        let failed = |error: folio::Error| Failure::image(error.at(name.clone()));
        let disk = open_device(&place.image, Access::Write)?;
        let number = place.partition_number(&*disk).map_err(failed)?;
        let window = block::partition::select(disk.clone(), number).map_err(failed)?;
        if block::contents(&*window).map_err(failed)? != Some("only zeros") {
            return Err(Failure::new(format!(
                "{name}: not empty; omit --create to copy into it, or format it with folio mkfs \
                 --force {name}"
            )));
        }
        let len_bytes = window.len_bytes();
        let options = with_room(&least, fills(&least, len_bytes), options, len_bytes);
        new_file_system::format_device(session, Path::new(&name), &*window, &options)?;
        let filled = Image::mount_window(session, place, disk, window.clone(), Access::Fill);
        let filled = filled.and_then(fill);
        if filled.is_err() || session.has_only_failures() {
            // The cause of the failure is reported, and an incomplete file system is useless.
            let _ = window
                .write_zeroes(0, len_bytes)
                .and_then(|()| window.flush());
        }
        filled
    }
}

/// Removes a new image after a failure.
fn remove_useless(session: &Session, place: &ImagePath, filled: &Outcome) {
    if filled.is_err() || session.has_only_failures() {
        // The cause of the failure is reported, and an incomplete image is useless.
        let _ = std::fs::remove_file(&place.image);
    }
}

/// Whether a place is in a partition of an existing disk.
fn is_in_partition(place: &ImagePath) -> bool {
    place.partition.is_some() && place.image.exists()
}

/// Whether the content fills most of a file system of `len_bytes` bytes.
pub(crate) fn fills(least: &LeastSize, len_bytes: u64) -> bool {
    least.len_bytes > len_bytes / 100 * 80
}

/// Adds to the options of a file system of `len_bytes` bytes what the content needs. `is_tight`: it
/// needs all of the space.
pub(crate) fn with_room(
    least: &LeastSize,
    is_tight: bool,
    options: FormatOptions,
    len_bytes: u64,
) -> FormatOptions {
    let fitting = &least.options;
    FormatOptions {
        // The default may have larger tables of inodes than there is room for.
        inode_count: if is_tight {
            fitting.inode_count
        } else {
            least.inodes_beyond_default(len_bytes)
        },
        block_size: fitting
            .block_size
            .filter(|_| is_tight)
            .or(options.block_size),
        reserved_percent: 0.0,
        ..options
    }
}

/// Refuses to create an image that exists. `purpose` is what the command does without --create.
pub(crate) fn refuse_existing(place: &ImagePath, purpose: &str) -> Outcome {
    if !place.image.exists() || is_in_partition(place) {
        return Ok(());
    }
    Err(Failure::new(format!(
        "{}: already exists; omit --create to {purpose} into it",
        place.image.display()
    )))
}

/// Returns the least size of a file system for the content that `add` lists, in the directory
/// `target`.
pub(crate) fn fitting_size(
    target: &Path,
    extra: ExtraSpace,
    options: FormatOptions,
    add: impl FnOnce(&mut FileTreeSize),
) -> Outcome<LeastSize> {
    let least = folio_tree::fitting_size(target, extra, options, add);
    least.map_err(|error| Failure::new(error.to_string()))
}

/// Adds the files of an archive, and those of the manifest of `rules`.
pub(crate) fn add_contents(size: &mut FileTreeSize, contents: &Contents, rules: &OwnerRules) {
    for (_, file) in contents.files() {
        match &file.kind {
            EntryKind::File { .. } => size.add_file(&file.data),
            EntryKind::Symlink(target) => size.add_symlink(target.len() as u64),
            EntryKind::Directory | EntryKind::HardLink(_) => {}
            EntryKind::CharacterDevice(..) | EntryKind::BlockDevice(..) | EntryKind::Fifo => {
                size.add_special();
            }
        }
        if file.xattr_bytes > 0 {
            let value_len = usize::try_from(file.xattr_bytes).unwrap_or(0);
            size.add_xattrs(&[(b"user.".to_vec(), vec![0; value_len])]);
        }
    }
    let directories = contents.directories();
    for names in directories.values() {
        size.add_directory(names.iter().copied());
    }
    rules.add_created(size, |path| {
        let (parent, name) = split_last(path);
        let names = directories.get(parent);
        path.is_empty() || names.is_some_and(|names| names.contains(name))
    });
}

/// Creates a directory and those above it.
fn make_directories(image: &Image, path: &Path) -> Outcome {
    let mut made = PathBuf::from("/");
    for part in path.components() {
        made.push(part);
        match image.process().mkdir(&made, 0o755) {
            Err(error) if error.errno() != Errno::EXIST => return Err(image.name(error)),
            _ => {}
        }
    }
    Ok(())
}
