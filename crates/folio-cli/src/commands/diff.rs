//! `folio diff`: compares files and trees of images, and of the host.

use crate::exit::{Exit, Failure, Outcome};
use crate::image::{Access, Image, mount_failure, sorted_names};
use crate::image_path::{ImagePath, PathArgument};
use crate::session::{Session, clock};
use crate::walk::join;
use clap::Args;
use folio::syscall::{AT_FDCWD, AtFlags, Credentials, OpenFlags, Whence};
use folio::vfs::{Attributes, FileType, MountOptions};
use folio::{AlignedBuffer, Kernel, KernelOptions, Process};
use serde_json::{Value, json};
use std::ffi::OsString;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const BUFFER_BYTES: usize = 256 << 10;

const AFTER_HELP: &str = "\
Each line has a letter for the kind of difference and a path below A and B:
  -  only in A      +  only in B      t  type      c  content      m  mode, owner or group
  d  device number  l  target of a symbolic link   x  extended attributes      T  modification time, with --times

A file of the host is an image, unless the other side is a file in an image: then both are compared as files.

The exit code is 0 without a difference, 1 with differences, 2 if A or B does not exist, and 3 if an image cannot be
read.

Examples:
  folio diff old.qcow2 new.qcow2
  folio diff disk.img:/etc ./etc --json
  folio diff disk.img:/etc/fstab ./fstab";

/// Compare files and trees of images and of the host
#[derive(Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Diff {
    /// IMAGE, IMAGE:/path, or a path on the host
    a: OsString,
    /// What to compare it with
    b: OsString,
    /// Compare modification times too
    #[arg(long)]
    times: bool,
    /// Do not compare modes, owners and groups
    #[arg(long)]
    no_owners: bool,
    /// Print only whether there are differences, by the exit code
    #[arg(long)]
    brief: bool,
    /// Print JSON
    #[arg(long, conflicts_with = "brief")]
    json: bool,
    #[command(flatten)]
    share: crate::arguments::force_share::ForceShare,
}

/// One side: a process whose root holds the tree.
struct Side {
    process: Process,
    kernel: Arc<Kernel>,
    path: PathBuf,
    name: String,
}

/// Runs the command.
pub(crate) fn run(diff: &Diff, session: &Session) -> Outcome {
    diff.share.apply(session);
    let [a, b] = open_both(session, [&diff.a, &diff.b])?;
    let mut comparison = Comparison {
        diff,
        session,
        sides: [&a, &b],
        found: Vec::new(),
        count: 0,
        buffers: [(); 2].map(|()| AlignedBuffer::new(BUFFER_BYTES)),
    };
    let compared = comparison.run();
    let (found, count) = (std::mem::take(&mut comparison.found), comparison.count);
    drop(comparison);
    let names = (a.name.clone(), b.name.clone());
    let closed = [a, b].map(Side::close);
    compared?;
    closed.into_iter().collect::<Outcome<Vec<()>>>()?;
    if diff.json {
        let report = json!({ "a": names.0, "b": names.1, "differences": found });
        session.print_json(&report)?;
    }
    if count > 0 {
        return Err(Failure::exiting(Exit::Failed, String::new()));
    }
    Ok(())
}

/// Opens both sides. A file of the host is an image, unless the other side is a file in an image.
fn open_both(session: &Session, words: [&OsString; 2]) -> Outcome<[Side; 2]> {
    let is_file = |word: &OsString| match PathArgument::parse(word, false) {
        PathArgument::Host(path) => path.is_file(),
        PathArgument::Image(_) => false,
    };
    let [a, b] = words;
    if is_file(a) && !is_file(b) {
        let b = Side::open(session, b)?;
        return Ok([Side::open_beside(session, a, &b)?, b]);
    }
    let a = Side::open(session, a)?;
    let b = if is_file(b) {
        Side::open_beside(session, b, &a)?
    } else {
        Side::open(session, b)?
    };
    Ok([a, b])
}

impl Side {
    fn open(session: &Session, word: &OsString) -> Outcome<Self> {
        match PathArgument::parse(word, false) {
            PathArgument::Host(path) if path.is_dir() => {
                Self::open_host(session, word, &path, "/".into())
            }
            _ => Self::open_image(session, word),
        }
        .and_then(Self::existing)
    }

    /// Opens a file of the host: as a file if `other` is one, else as an image.
    fn open_beside(session: &Session, word: &OsString, other: &Self) -> Outcome<Self> {
        let found = other.stat(&other.path).ok().flatten();
        if found.is_none_or(|found| found.file_type == FileType::Directory) {
            return Self::open(session, word);
        }
        let path = Path::new(word);
        let folder = match path.parent() {
            Some(folder) if folder.as_os_str().is_empty() => Path::new("."),
            folder => folder.unwrap_or(path),
        };
        let name = path.file_name().unwrap_or_default();
        Self::open_host(session, word, folder, Path::new("/").join(name))
    }

    /// Fails if the path does not exist.
    fn existing(self) -> Outcome<Self> {
        let found = self.stat(&self.path);
        match found.map_err(|error| self.failure(&self.path, &error))? {
            Some(_) => Ok(self),
            None => Err(Failure::usage(format!(
                "{}: No such file or directory",
                self.name
            ))),
        }
    }

    fn open_image(session: &Session, word: &OsString) -> Outcome<Self> {
        let place = ImagePath::parse(word)?;
        let image = Image::open(session, &place, Access::Read)?;
        Ok(Self {
            process: image.kernel().process(Credentials::root()),
            kernel: image.kernel().clone(),
            path: place.path,
            name: word.to_string_lossy().into_owned(),
        })
    }

    /// Mounts a directory of the host.
    fn open_host(
        session: &Session,
        word: &OsString,
        folder: &Path,
        path: PathBuf,
    ) -> Outcome<Self> {
        let name = word.to_string_lossy().into_owned();
        let kernel = Kernel::new(KernelOptions {
            cache_bytes: session.cache_bytes,
            clock: clock(),
            ..KernelOptions::default()
        });
        let options = MountOptions {
            read_only: true,
            ..MountOptions::default()
        };
        kernel
            .mount_hostfs(folder, "/", &options)
            .map_err(|error| mount_failure(error.at(name.clone())))?;
        Ok(Self {
            process: kernel.process(Credentials::root()),
            kernel,
            path,
            name,
        })
    }

    fn close(self) -> Outcome {
        drop(self.process);
        let halted = self.kernel.halt();
        halted.map_err(|error| Failure::new(format!("{}: {error}", self.name)))
    }

    fn failure(&self, path: &Path, error: &folio::Error) -> Failure {
        Failure::image(folio::Error::new(
            error.errno(),
            format!("{}: {}: {error}", self.name, path.display()),
        ))
    }

    fn stat(&self, path: &Path) -> folio::Result<Option<Attributes>> {
        match self
            .process
            .fstatat(AT_FDCWD, path, AtFlags::SYMLINK_NOFOLLOW)
        {
            Err(error) if error.errno() == folio::Errno::NOENT => Ok(None),
            found => found.map(Some),
        }
    }

    fn xattrs(&self, path: &Path) -> folio::Result<Vec<(Vec<u8>, Vec<u8>)>> {
        let names = match self.process.llistxattr(path) {
            Err(error) if error.errno() == folio::Errno::OPNOTSUPP => return Ok(Vec::new()),
            names => names?,
        };
        let mut xattrs = Vec::new();
        for name in names {
            let value = self.process.lgetxattr(path, &name)?;
            xattrs.push((name, value));
        }
        xattrs.sort_unstable();
        Ok(xattrs)
    }
}

struct Comparison<'a> {
    diff: &'a Diff,
    session: &'a Session,
    sides: [&'a Side; 2],
    found: Vec<Value>,
    count: u64,
    buffers: [AlignedBuffer; 2],
}

impl Comparison<'_> {
    fn run(&mut self) -> Outcome {
        let mut left = vec![PathBuf::new()];
        while let Some(path) = left.pop() {
            self.session.check_interrupt()?;
            let found = [self.stat(0, &path)?, self.stat(1, &path)?];
            let [Some(a), Some(b)] = found else {
                match found {
                    [Some(_), None] => self.report('-', &path)?,
                    [None, Some(_)] => self.report('+', &path)?,
                    _ if path.as_os_str().is_empty() => {
                        return Err(Failure::new("neither path exists"));
                    }
                    _ => {}
                }
                continue;
            };
            self.compare(&path, &a, &b)?;
            let is_directory = |found: &Attributes| found.file_type == FileType::Directory;
            if is_directory(&a) && is_directory(&b) {
                let mut names = self.names(0, &path)?;
                names.extend(self.names(1, &path)?);
                names.sort_unstable();
                names.dedup();
                left.extend(names.iter().rev().map(|name| join(&path, name)));
            }
            if self.diff.brief && self.count > 0 {
                return Ok(());
            }
        }
        Ok(())
    }

    fn at(&self, side: usize, path: &Path) -> PathBuf {
        if path.as_os_str().is_empty() {
            self.sides[side].path.clone()
        } else {
            self.sides[side].path.join(path)
        }
    }

    fn on<T>(
        &self,
        side: usize,
        path: &Path,
        call: impl FnOnce(&Side, &Path) -> folio::Result<T>,
    ) -> Outcome<T> {
        let full = self.at(side, path);
        let side = self.sides[side];
        call(side, &full).map_err(|error| side.failure(&full, &error))
    }

    fn stat(&self, side: usize, path: &Path) -> Outcome<Option<Attributes>> {
        self.on(side, path, |side, path| side.stat(path))
    }

    fn names(&self, side: usize, path: &Path) -> Outcome<Vec<Vec<u8>>> {
        self.on(side, path, |side, path| sorted_names(&side.process, path))
    }

    fn report(&mut self, kind: char, path: &Path) -> Outcome {
        self.count += 1;
        let path = Path::new("/").join(path);
        if self.diff.json {
            let path = crate::output::printable(&path.to_string_lossy());
            self.found
                .push(json!({ "kind": kind.to_string(), "path": path }));
        } else if !self.diff.brief {
            let path = crate::output::printable(&path.to_string_lossy());
            writeln!(std::io::stdout(), "{kind} {path}")?;
        }
        Ok(())
    }

    fn compare(&mut self, path: &Path, a: &Attributes, b: &Attributes) -> Outcome {
        if a.file_type != b.file_type {
            return self.report('t', path);
        }
        let of = |found: &Attributes| (found.mode, found.uid, found.gid);
        let is_link = a.file_type == FileType::Symlink;
        if !self.diff.no_owners && of(a) != of(b) && !(is_link && (a.uid, a.gid) == (b.uid, b.gid))
        {
            self.report('m', path)?;
        }
        if self.diff.times && a.modified != b.modified {
            self.report('T', path)?;
        }
        match a.file_type {
            FileType::Regular if a.size_bytes != b.size_bytes || !self.is_same(path)? => {
                self.report('c', path)?;
            }
            FileType::Symlink => {
                let read = |side: &Side, path: &Path| side.process.readlink(path);
                if self.on(0, path, read)? != self.on(1, path, read)? {
                    self.report('l', path)?;
                }
            }
            FileType::CharacterDevice | FileType::BlockDevice if a.device != b.device => {
                self.report('d', path)?;
            }
            _ => {}
        }
        let xattrs = |side: &Side, path: &Path| side.xattrs(path);
        if self.on(0, path, xattrs)? != self.on(1, path, xattrs)? {
            self.report('x', path)?;
        }
        Ok(())
    }

    /// Whether two files of the same size have the same content.
    fn is_same(&mut self, path: &Path) -> Outcome<bool> {
        let open = |side: &Side, path: &Path| side.process.open(path, OpenFlags::empty(), 0);
        let fds = [self.on(0, path, open)?, self.on(1, path, open)?];
        let mut offset = 0;
        let same = loop {
            self.session.check_interrupt()?;
            // Holes of both are equal.
            let data = [0, 1].map(|side| next_data(self.sides[side], fds[side], offset));
            let Some(start) = data.into_iter().flatten().min() else {
                break true;
            };
            offset = start;
            let mut counts = [0; 2];
            for side in 0..2 {
                let (of, full) = (self.sides[side], self.at(side, path));
                let filled = fill(of, fds[side], &mut self.buffers[side], offset);
                counts[side] = filled.map_err(|error| of.failure(&full, &error))?;
            }
            let [a, b] = &self.buffers;
            if counts[0] != counts[1] || a[..counts[0]] != b[..counts[1]] {
                break false;
            }
            if counts[0] == 0 {
                break true;
            }
            offset += counts[0] as u64;
        };
        for (side, fd) in fds.into_iter().enumerate() {
            self.on(side, path, |of, _| of.process.close(fd))?;
        }
        Ok(same)
    }
}

/// Returns the offset of the next data of a file, `None` after the last.
fn next_data(side: &Side, fd: folio::syscall::Fd, offset: u64) -> Option<u64> {
    let from = i64::try_from(offset).ok()?;
    match side.process.lseek(fd, from, Whence::Data) {
        Ok(start) => Some(start),
        Err(error) if error.errno() == folio::Errno::NXIO => None,
        // A file system that does not know: all of it is data.
        Err(_) => Some(offset),
    }
}

/// Fills the buffer from `offset` on; returns fewer bytes only at the end of the file.
fn fill(
    side: &Side,
    fd: folio::syscall::Fd,
    buffer: &mut [u8],
    offset: u64,
) -> folio::Result<usize> {
    let mut have = 0;
    while have < buffer.len() {
        match side
            .process
            .pread(fd, &mut buffer[have..], offset + have as u64)?
        {
            0 => break,
            count => have += count,
        }
    }
    Ok(have)
}
