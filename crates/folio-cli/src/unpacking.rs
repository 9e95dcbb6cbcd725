//! Archives and container images, unpacked into a directory of an image.

use crate::arguments::ownership::finish_rules;
use crate::exit::{Failure, Outcome, explain};
use crate::image::Image;
use crate::memory::spare_bytes;
use crate::observer::{Files, SessionObserver};
use crate::progress::Progress;
use crate::session::{Session, fixed_time};
use folio::{Errno, Error};
use folio_tree::oci::{ContainerImage, Platform, Reference};
use folio_tree::{
    Compression, Contents, Entry, InputProgress, MemoryBudget, OwnerRules, Owners, ReadAhead,
    Unpacker, tar,
};
use std::cell::Cell;
use std::fs::{File, Metadata};
use std::io::{BufReader, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Files that come from an archive or a container image on the host.
pub(crate) enum ArchiveSource {
    Tar {
        path: PathBuf,
        /// The decompressed archive, between listing and unpacking.
        kept: Cell<Option<ReadAhead>>,
    },
    Container(ContainerImage),
}

impl ArchiveSource {
    /// Opens a tar archive, plain or compressed.
    pub(crate) fn open_tar(session: &Session, path: &Path) -> Outcome<Self> {
        let first = tar::Reader::new(open_file(session, path)?).next_entry();
        first.map_err(|error| archive_failure(path, error))?;
        Ok(Self::Tar {
            path: path.to_owned(),
            kept: Cell::default(),
        })
    }

    /// Opens a container image.
    pub(crate) fn open_container(
        session: &Session,
        reference: &Reference,
        platform: Option<&Platform>,
    ) -> Outcome<Self> {
        open_container(session, reference, platform).map(Self::Container)
    }

    /// Lists the files.
    pub(crate) fn contents(&self, session: &Session) -> Outcome<Contents> {
        match self {
            Self::Tar { path, kept } => {
                let mut contents = Contents::default();
                let failed = |error| archive_failure(path, error);
                if let Some(mut reader) = open_plain(path) {
                    contents.add_layer(&mut reader).map_err(failed)?;
                    return Ok(contents);
                }
                let budget = Arc::new(MemoryBudget::new(spare_bytes()));
                let mut reader = tar::Reader::new(open_file(session, path)?.keeping(budget));
                contents.add_layer(&mut reader).map_err(failed)?;
                kept.set(reader.into_input().rewind());
                Ok(contents)
            }
            Self::Container(image) => Ok(image.contents()?),
        }
    }

    /// Unpacks the files into a directory of an image.
    pub(crate) fn unpack_into(
        &self,
        session: &Session,
        target: &Image,
        directory: &Path,
        rules: &OwnerRules,
    ) -> Outcome {
        match self {
            Self::Tar { path, kept } => {
                let input = file_progress(path);
                let mut ahead = kept.take().map_or_else(|| open_file(session, path), Ok)?;
                if let Some(input) = &input {
                    ahead = ahead.reporting(input);
                }
                let mut reader = tar::Reader::new(ahead).with_owners(find_owner(target));
                let name = path.display();
                unpack_into(
                    session,
                    target,
                    directory,
                    rules,
                    input,
                    |_| true,
                    |unpacker| {
                        let unpacked = unpacker.unpack(&mut reader);
                        unpacked.map_err(|error| error.at(name.to_string()))
                    },
                )
            }
            Self::Container(image) => unpack_into(
                session,
                target,
                directory,
                rules,
                Some(image.progress().clone()),
                |_| true,
                |unpacker| image.unpack(unpacker),
            ),
        }
    }
}

/// Opens a container image. Layers that are listed stay in memory, as far as it is free.
pub(crate) fn open_container(
    session: &Session,
    reference: &Reference,
    platform: Option<&Platform>,
) -> Outcome<ContainerImage> {
    let image = session.until_interrupt(|| (), || ContainerImage::open(reference, platform))?;
    let image = image.with_stop(session.stop_flag());
    Ok(image.with_memory(spare_bytes()))
}

/// Lets `unpack` create files in a directory of an image, and shows the progress of the archive, if
/// it is known. Entries get the owners and modes of `rules`, then pass through `select`.
pub(crate) fn unpack_into(
    session: &Session,
    target: &Image,
    directory: &Path,
    rules: &OwnerRules,
    input: Option<InputProgress>,
    mut select: impl FnMut(&mut Entry) -> bool,
    unpack: impl FnOnce(&mut Unpacker<'_>) -> folio::Result<()>,
) -> Outcome {
    let progress = Progress::new(session);
    let observer = SessionObserver::new(session, &progress, Files::Host, Files::Image(target))
        .with_input(input);
    let latest = fixed_time();
    let files = rules.resolve(target.process(), target.is_new())?;
    let mut unpacker = Unpacker::new(target.process(), directory, &observer)
        .map_err(|error| target.name(error))?
        .with_contents(target.contents())
        .with_select(Box::new(move |entry| {
            entry.clamp_times(latest);
            files.change_entry(entry);
            select(entry)
        }));
    let unpacked = unpack(&mut unpacker);
    // After an early stop the directories get their times nevertheless.
    let finished = unpacker.finish();
    observer.finish();
    progress.finish();
    session.check_interrupt()?;
    unpacked.and(finished).map_err(|error| {
        let hint = target.full_hint(&error);
        Failure::new(format!("{}{hint}", explain(&error)))
    })?;
    finish_rules(session, rules, target, directory, &observer)
}

/// Opens an archive for its names, if it is a file that is not compressed.
pub(crate) fn open_plain(path: &Path) -> Option<tar::Reader<BufReader<File>>> {
    std::fs::metadata(path).ok().filter(Metadata::is_file)?;
    let mut file = File::open(path).ok()?;
    let mut start = Vec::new();
    (&mut file).take(8).read_to_end(&mut start).ok()?;
    let is_plain = Compression::of(&start) == Compression::None;
    is_plain.then(|| tar::Reader::seeking(file).ok()).flatten()
}

/// Starts a thread that reads and decompresses an archive.
pub(crate) fn decompress(
    session: &Session,
    input: impl Read + Send + 'static,
    name: &str,
) -> Outcome<ReadAhead> {
    let failed = |error| Error::io("read the archive", error).at(name.to_owned());
    let ahead = ReadAhead::decompress(input).map_err(failed)?;
    Ok(ahead.with_stop(session.stop_flag()))
}

/// Returns a counter for an archive, if it is a file, whose size is known.
pub(crate) fn file_progress(path: &Path) -> Option<InputProgress> {
    let found = std::fs::metadata(path).ok().filter(Metadata::is_file)?;
    Some(InputProgress::new(found.len()))
}

fn open_file(session: &Session, path: &Path) -> Outcome<ReadAhead> {
    let file = File::open(path).map_err(|error| {
        let error = Error::from(Errno::from_io_error(&error).unwrap_or(Errno::IO));
        archive_failure(path, error)
    })?;
    decompress(session, file, &path.display().to_string())
}

fn archive_failure(path: &Path, error: Error) -> Failure {
    error.at(path.display().to_string()).into()
}

/// Returns the function that finds users and groups by name: in the image, else on the host.
pub(crate) fn find_owner(image: &Image) -> impl Fn(bool, &[u8]) -> Option<u32> + 'static {
    let read = |path: &str| std::fs::read(path).unwrap_or_default();
    let host = Owners::parse(&read("/etc/passwd"), &read("/etc/group"));
    let tables = [Owners::of(image.process()), host];
    move |is_user, name| {
        let name = std::str::from_utf8(name).ok()?;
        tables.iter().find_map(|owners| {
            if is_user {
                owners.find_user(name)
            } else {
                owners.find_group(name)
            }
        })
    }
}
