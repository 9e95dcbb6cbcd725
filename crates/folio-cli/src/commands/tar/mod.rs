//! `folio tar`: trees of an image as tar archives, and archives as trees.
//!
//! ```text
//!   mod.rs         options; packing and unpacking
//!   list.rs        -t: names and metadata of an archive
//! ```
//!
//! Above: the dispatch in `commands`. Below: `folio_tree`, `unpacking`, `arguments`, `observer`,
//! `image`.

pub(super) mod list;

use crate::arguments::excludes::{ExcludeOptions, exclude_entry};
use crate::arguments::force_share::ForceShare;
use crate::arguments::new_image::NewImage;
use crate::arguments::ownership::Ownership;
use crate::exit::{Failure, Outcome, explain};
use crate::image::{Access, with_image};
use crate::image_path::{ImagePath, PathArgument};
use crate::memory::spare_bytes;
use crate::observer::{Files, SessionObserver};
use crate::progress::Progress;
use crate::session::{Session, fixed_time};
use crate::unpacking::{decompress, file_progress, find_owner, open_plain, unpack_into};
use clap::{ArgGroup, Args};
use folio::{Errno, Error};
use folio_tree::{
    Compression, ContentReader, Contents, Encoder, Entry, EntryKind, InputProgress, MemoryBudget,
    MountSource, NewSize, PackChoice, Packer, ReadAhead, WriteBehind, tar,
};
use std::cell::Cell;
use std::ffi::OsString;
use std::fs::{File, Metadata};
use std::io::{IsTerminal, Read, Seek, Write};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tempfile::NamedTempFile;

const EXAMPLES: &str = "\
Examples:
  folio tar -c disk.qcow2:/srv | zstd >srv.tar.zst     a tree of an image as an archive
  folio tar -cf srv.tar.xz disk.qcow2:/srv             the same into a file; its name selects xz
  folio tar -c --exclude '*.log' disk.qcow2:/srv       without what matches, as in .gitignore
  folio tar -x disk.qcow2:/srv <srv.tar.gz             an archive into a directory of an image
  folio tar -xf root.tar.zst root.img: --create 2G     into a new image with a new ext4
  folio tar -tlf root.tar.zst                          what an archive holds

-x and -t recognize gzip, zstd, xz and bzip2 by content. Names begin with ./ and are sorted, so that the same tree
gives the same archive; SOURCE_DATE_EPOCH limits modification times. Owners are numbers, as with tar --numeric-owner.

-x keeps everything within the destination: names with '..' are refused, absolute names lose their first '/', and
symbolic links on the way are followed as if the destination were the root directory.";

/// Pack trees of an image into tar archives, and unpack archives into images
#[derive(Args)]
#[command(after_help = EXAMPLES)]
#[command(group = ArgGroup::new("mode").required(true).args(["pack", "unpack", "list"]))]
pub(crate) struct Tar {
    /// Pack the file or directory IMAGE:/path
    #[arg(short = 'c', long)]
    pack: bool,
    /// Unpack into the directory IMAGE:/path
    #[arg(short = 'x', long = "extract", visible_alias = "get")]
    unpack: bool,
    /// List the archive
    #[arg(short = 't', long)]
    list: bool,
    /// The archive; standard input or output without it, or with -
    #[arg(short = 'f', long, value_name = "ARCHIVE")]
    file: Option<PathBuf>,
    /// Compress with gzip
    #[arg(short = 'z', long, group = "compression")]
    gzip: bool,
    /// Compress with zstd
    #[arg(long, group = "compression")]
    zstd: bool,
    /// Compress with xz
    #[arg(short = 'J', long, group = "compression")]
    xz: bool,
    /// Compress with bzip2
    #[arg(short = 'j', long, group = "compression")]
    bzip2: bool,
    /// With -t, show types, modes, owners, sizes and times
    #[arg(short, long, requires = "list")]
    long: bool,
    /// With -t, print JSON
    #[arg(long, requires = "list")]
    json: bool,
    /// With -x, remove this many leading components from names; shorter names are skipped
    #[arg(long, value_name = "COUNT", requires = "unpack")]
    strip_components: Option<usize>,
    #[command(flatten)]
    share: ForceShare,
    #[command(flatten)]
    excludes: ExcludeOptions,
    #[command(flatten)]
    new_image: NewImage,
    #[command(flatten)]
    ownership: Ownership,
    /// The file or directory in an image, as IMAGE:/path
    #[arg(required_unless_present = "list")]
    place: Option<OsString>,
}

/// Runs the command.
pub(crate) fn run(tar: &Tar, session: &Session) -> Outcome {
    let is_owned = tar.ownership.chown.is_some()
        || tar.ownership.chmod.is_some()
        || tar.ownership.manifest.is_some();
    if (tar.new_image.create.is_some() || is_owned) && !tar.unpack {
        return Err(Failure::usage(
            "--create, --chown, --chmod and --manifest: only with -x",
        ));
    }
    if tar.share.is_given() && !tar.pack {
        return Err(Failure::usage("-U: only with -c"));
    }
    tar.share.apply(session);
    if tar.list && !tar.excludes.is_empty() {
        return Err(Failure::usage(
            "--exclude and --exclude-from: only with -c and -x",
        ));
    }
    match &tar.place {
        None => {
            let listing = list::Listing {
                is_long: tar.long,
                is_json: tar.json,
            };
            let name = tar.archive_name("standard input");
            let reader = tar::Reader::new(tar.input(session, tar.path())?);
            list::run(&listing, session, reader, &name)
        }
        Some(_) if tar.list => Err(Failure::usage(
            "-t reads an archive, without IMAGE; to list an image, use folio ls -R",
        )),
        Some(place) if tar.pack => pack(tar, session, &ImagePath::parse(place)?),
        Some(place) => match PathArgument::parse(place, tar.new_image.create.is_some()) {
            PathArgument::Image(place) => unpack(tar, session, &place),
            PathArgument::Host(_) => {
                let mut place = ImagePath::parse(place)?;
                if tar.new_image.create.is_some() {
                    place = place.with_path("/");
                }
                unpack(tar, session, &place)
            }
        },
    }
}

impl Tar {
    /// Returns the path of the archive, `None` for standard input or output.
    fn path(&self) -> Option<&Path> {
        self.file.as_deref().filter(|path| *path != Path::new("-"))
    }

    /// Returns the name of the archive for messages.
    fn archive_name(&self, standard: &str) -> String {
        let path = self.path().map(|path| path.display().to_string());
        path.unwrap_or_else(|| standard.to_owned())
    }

    fn compression(&self) -> Compression {
        let name = || {
            self.path()
                .map_or(&b""[..], |path| path.as_os_str().as_bytes())
        };
        match (self.gzip, self.zstd, self.xz, self.bzip2) {
            (true, ..) => Compression::Gzip,
            (_, true, ..) => Compression::Zstd,
            (_, _, true, _) => Compression::Xz,
            (_, _, _, true) => Compression::Bzip2,
            _ => Compression::of_name(name()),
        }
    }

    /// Lists the files of the archive, for the size of a new image; `input` is at its start.
    /// Returns the archive again, which stays in memory if it is compressed and fits.
    fn contents(
        &self,
        session: &Session,
        archive: Option<&Path>,
        input: ReadAhead,
    ) -> Outcome<(Contents, ReadAhead)> {
        let mut contents = Contents::default();
        if let Some(mut reader) = archive.and_then(open_plain) {
            contents.add_layer(&mut reader)?;
            return Ok((contents, input));
        }
        let budget = Arc::new(MemoryBudget::new(spare_bytes()));
        let mut reader = tar::Reader::new(input.keeping(budget));
        contents.add_layer(&mut reader)?;
        let again = reader.into_input().rewind();
        let again = again.map_or_else(|| self.input(session, archive), Ok)?;
        Ok((contents, again))
    }

    /// Stores standard input in a temporary file if the archive must be read twice.
    fn spool(&self, session: &Session) -> Outcome<Option<NamedTempFile>> {
        if self.path().is_some() || !matches!(self.new_image.create, Some(NewSize::Auto(_))) {
            return Ok(None);
        }
        refuse_terminal()?;
        let spooled = NamedTempFile::new().and_then(|mut file| {
            let path = file.path().to_owned();
            let remove = || drop(std::fs::remove_file(path));
            let copy = || std::io::copy(&mut std::io::stdin().lock(), &mut file);
            session.until_interrupt(remove, copy)?;
            Ok(file)
        });
        let cannot = |error| Failure::new(explain(&Error::io("store standard input", error)));
        spooled.map(Some).map_err(cannot)
    }

    /// Opens the file `archive`, or standard input, for reading, decompressed by a thread of its
    /// own.
    fn input(&self, session: &Session, archive: Option<&Path>) -> Outcome<ReadAhead> {
        let name = self.archive_name("standard input");
        let input: Box<dyn Read + Send> = match archive {
            Some(path) => {
                // A FIFO waits for its writer.
                let opened = session.until_interrupt(|| (), || File::open(path));
                Box::new(opened.map_err(|error| host_failure(path, error))?)
            }
            None => {
                refuse_terminal()?;
                Box::new(std::io::stdin())
            }
        };
        decompress(session, input, &name)
    }
}

/// Returns a counter for standard input, if it is a file.
fn stdin_progress() -> Option<InputProgress> {
    let mut file = File::from(std::io::stdin().as_fd().try_clone_to_owned().ok()?);
    let found = file.metadata().ok().filter(Metadata::is_file)?;
    let position = file.stream_position().ok()?;
    Some(InputProgress::new(found.len().saturating_sub(position)))
}

fn refuse_terminal() -> Outcome {
    if std::io::stdin().is_terminal() {
        return Err(Failure::usage(
            "standard input is a terminal: redirect an archive into it, or use -f ARCHIVE",
        ));
    }
    Ok(())
}

fn host_failure(path: &Path, error: std::io::Error) -> Failure {
    let error = Error::from(Errno::from_io_error(&error).unwrap_or(Errno::IO));
    let hint = match error.errno() {
        Errno::NOENT => crate::nearest::nearest_file(path),
        _ => None,
    };
    let hint = hint
        .map(|meant| format!("; did you mean {meant}?"))
        .unwrap_or_default();
    Failure::new(format!("{}: {error}{hint}", path.display()))
}

fn pack(tar: &Tar, session: &Session, place: &ImagePath) -> Outcome {
    if tar.path().is_none() && std::io::stdout().is_terminal() {
        return Err(Failure::usage(
            "standard output is a terminal: redirect it into a file, or use -f ARCHIVE",
        ));
    }
    let excludes = tar.excludes.read()?;
    with_image(session, place, Access::Read, |image| {
        let found = image
            .stat(&place.path, false)
            .map_err(|error| image.name(error))?;
        let output: Box<dyn Write + Send> = match tar.path() {
            Some(path) => Box::new(File::create(path).map_err(|error| host_failure(path, error))?),
            None => Box::new(std::io::stdout()),
        };
        let progress = Progress::new(session);
        let observer = SessionObserver::new(session, &progress, Files::Image(image), Files::Host);
        let packed = (|| {
            let encoder = Encoder::new(output, tar.compression())?;
            let output = WriteBehind::start(encoder)?;
            let latest = fixed_time();
            let select = move |entry: &mut Entry, _: &ContentReader<'_>| {
                let is_directory = entry.kind == EntryKind::Directory;
                if exclude_entry(excludes.as_ref(), &entry.path, is_directory) {
                    return Ok(PackChoice::Prune);
                }
                entry.modified = entry.modified.min(latest.unwrap_or(entry.modified));
                Ok(PackChoice::Pack)
            };
            let source = MountSource::new(image.process());
            let packer = Packer::new(&source, &observer, output);
            let mut packer = packer.with_select(Box::new(select));
            let is_directory = found.file_type == folio::vfs::FileType::Directory;
            packer.pack(&place.path, if is_directory { b"./" } else { b"" })?;
            let mut output = packer.finish()?.finish()?.finish()?;
            output.flush()?;
            Ok::<_, std::io::Error>(())
        })();
        progress.finish();
        session.check_interrupt()?;
        packed.map_err(|error| match tar.path() {
            // A torn archive is useless.
            Some(path) => {
                let _ = std::fs::remove_file(path);
                Failure::new(format!("{}: {}", path.display(), reason(error)))
            }
            None if error.kind() == std::io::ErrorKind::BrokenPipe => error.into(),
            None => Failure::new(reason(error)),
        })
    })
}

fn reason(error: std::io::Error) -> String {
    match error.downcast::<Error>() {
        Ok(error) => explain(&error),
        Err(error) => explain(&Error::io("write", error)),
    }
}

fn unpack(tar: &Tar, session: &Session, place: &ImagePath) -> Outcome {
    let rules = tar.ownership.read()?;
    let excludes = tar.excludes.read()?;
    let spooled = tar.spool(session)?;
    let archive = spooled.as_ref().map(NamedTempFile::path).or(tar.path());
    let progress = archive.map_or_else(stdin_progress, file_progress);
    let input = Cell::new(Some(tar.input(session, archive)?));
    let name = tar.archive_name("standard input");
    let contents = || {
        let first = input
            .take()
            .map_or_else(|| tar.input(session, archive), Ok)?;
        let (mut contents, again) = tar.contents(session, archive, first)?;
        input.set(Some(again));
        contents.retain(|path, file| {
            !exclude_entry(excludes.as_ref(), path, file.kind == EntryKind::Directory)
        });
        Ok(contents)
    };
    let strip = tar.strip_components.unwrap_or(0);
    tar.new_image
        .fill(session, place, &rules, contents, |image| {
            let Some(mut input) = input.take() else {
                return Ok(());
            };
            if let Some(progress) = &progress {
                input = input.reporting(progress);
            }
            let mut reader = tar::Reader::new(input).with_owners(find_owner(image));
            unpack_into(
                session,
                image,
                &place.path,
                &rules,
                progress,
                |entry| {
                    let is_directory = entry.kind == EntryKind::Directory;
                    !exclude_entry(excludes.as_ref(), &entry.path, is_directory)
                        && strip_components(entry, strip)
                },
                |unpacker| unpacker.unpack(&mut reader).map_err(|error| error.at(name)),
            )
        })
}

/// Removes leading components from the names of an entry; returns whether a name is left.
fn strip_components(entry: &mut Entry, count: usize) -> bool {
    if count == 0 {
        return true;
    }
    let strip = |path: &[u8]| {
        let parts = path.split(|byte| *byte == b'/');
        let parts = parts.filter(|part| !matches!(*part, b"" | b"."));
        let rest: Vec<_> = parts.skip(count).collect();
        rest.join(&b'/')
    };
    entry.path = strip(&entry.path);
    if let EntryKind::HardLink(target) = &mut entry.kind {
        *target = strip(target);
    }
    !entry.path.is_empty()
}
