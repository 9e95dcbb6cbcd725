//! Records of mounts: what is mounted where, what the server said in the background, and how it
//! ended.
//!
//! A record is a file that its server locks as long as it runs. It has the state in [`STATE_LEN`]
//! bytes, source and target, each ended by a zero byte, and then the messages. The record of a
//! mount in the background that printed messages, or failed, stays until it is read.

use crate::exit::{Failure, Outcome};
use crate::image_path::ImagePath;
use crate::output::io_reason;
use crate::session::Session;
use folio_remote::Address;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::ffi::{OsStr, OsString};
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::fd::{IntoRawFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

const STATE_LEN: usize = 8;
const SERVING: &[u8; STATE_LEN] = b"serving ";
const STORED: &[u8; STATE_LEN] = b"stored  ";
const FAILED: &[u8; STATE_LEN] = b"failed  ";
/// How long a server that has unlocked its record may take to end.
const END_LIMIT: Timespec = Timespec {
    tv_sec: 5,
    tv_nsec: 0,
};

/// The record of a mount that this process serves.
pub(crate) struct MountRecord {
    file: File,
    path: PathBuf,
    /// The length of the record without messages.
    head_len_bytes: u64,
    /// Standard error is here, or in the log.
    has_messages: AtomicBool,
}

impl MountRecord {
    /// Creates the record of a mount, and locks it.
    pub(crate) fn create(source: &OsStr, target: &Path) -> io::Result<Self> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let name = format!(
            "{}-{}",
            std::process::id(),
            now.unwrap_or_default().as_nanos()
        );
        let path = folder()?.join(name);
        let mut file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&path)?;
        flock(&file, FlockOperation::NonBlockingLockExclusive)?;
        let mut head = SERVING.to_vec();
        for place in [real_source(source), real_path(target).into()] {
            head.extend_from_slice(place.as_bytes());
            head.push(0);
        }
        file.write_all(&head)?;
        Ok(Self {
            file,
            path,
            head_len_bytes: head.len() as u64,
            has_messages: AtomicBool::new(false),
        })
    }

    /// Has standard error write into the record, or into a log.
    pub(crate) fn take_messages(&self, log: Option<&File>) -> io::Result<()> {
        self.has_messages.store(true, Ordering::Relaxed);
        match log {
            Some(log) => rustix::stdio::dup2_stderr(log)?,
            None => {
                // Not the locked descriptor: children of this process keep standard error.
                let messages = OpenOptions::new().append(true).open(&self.path)?;
                rustix::stdio::dup2_stderr(&messages)?;
            }
        }
        Ok(())
    }

    /// Says how the mount ended. The lock ends with the process, after its last message.
    pub(crate) fn end(self, is_stored: bool) -> io::Result<()> {
        let state = if is_stored { STORED } else { FAILED };
        self.file.write_all_at(state, 0)?;
        let is_unread = self.has_messages.load(Ordering::Relaxed)
            && (!is_stored || self.file.metadata()?.len() > self.head_len_bytes);
        if !is_unread {
            fs::remove_file(&self.path)?;
        }
        // The kernel closes it, and so unlocks it.
        let _ = self.file.into_raw_fd();
        Ok(())
    }
}

/// A record, as its readers see it.
struct Found {
    file: File,
    path: PathBuf,
    source: OsString,
    target: OsString,
}

impl Found {
    fn open(path: PathBuf) -> Option<Self> {
        let mut file = File::open(&path).ok()?;
        let mut content = Vec::new();
        file.read_to_end(&mut content).ok()?;
        let mut fields = content.get(STATE_LEN..)?.splitn(3, |byte| *byte == 0);
        let mut field = || Some(OsString::from_vec(fields.next()?.to_vec()));
        let (source, target) = (field()?, field()?);
        // Without the second end the server has not written it all yet.
        fields.next()?;
        Some(Self {
            file,
            path,
            source,
            target,
        })
    }

    /// Returns the process of the server, if there is one of its id.
    fn server(&self) -> Option<OwnedFd> {
        let name = self.path.file_name()?.to_str()?;
        let id = name.split('-').next()?.parse().ok()?;
        pidfd_open(Pid::from_raw(id)?, PidfdFlags::empty()).ok()
    }

    /// Returns the messages of a server that has ended, and removes the record.
    fn take(mut self) -> io::Result<Ended> {
        let mut state = [0; STATE_LEN];
        self.file.read_exact_at(&mut state, 0)?;
        let head_len = STATE_LEN + self.source.len() + self.target.len() + 2;
        let mut messages = Vec::new();
        self.file.seek(SeekFrom::Start(head_len as u64))?;
        self.file.read_to_end(&mut messages)?;
        let mount = format!("{} on {}", self.source.display(), self.target.display());
        let failure = match &state {
            STORED => None,
            FAILED => Some("ended with a failure"),
            _ => Some("its server was killed: changes that were not synced are lost"),
        };
        let ended = Ended {
            messages,
            failure: failure.map(|failure| format!("{mount}: {failure}")),
        };
        match fs::remove_file(&self.path) {
            // Its server or another reader was faster.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(ended),
            removed => removed.map(|()| ended),
        }
    }
}

/// A mount that has ended.
struct Ended {
    messages: Vec<u8>,
    failure: Option<String>,
}

/// Waits until no mount of an image or on a directory is served any more, and reports how each one
/// ended. Fails if one did not store everything.
pub(crate) fn wait(place: &OsStr, session: &Session) -> Outcome {
    let path = ImagePath::parse(place).map_or_else(|_| place.into(), |parsed| parsed.image);
    if !is_address(place) && !exists(Path::new(place)) && !exists(&path) {
        return Err(Failure::new(format!(
            "{}: missing: expected an image or a directory of a mount",
            place.display()
        )));
    }
    wait_for_all(place, session)
        .map_err(|error| Failure::new(format!("records of mounts: {}", io_reason(&error))))
}

fn wait_for_all(place: &OsStr, session: &Session) -> io::Result<()> {
    for record in find(place)? {
        // Before its end: later the id may be that of another process.
        let server = record.server();
        while let Err(error) = flock(&record.file, FlockOperation::LockShared) {
            if error != Errno::INTR {
                return Err(error.into());
            }
        }
        // The kernel closes the files of a process in any order: the image's may come last.
        if let Some(server) = &server {
            let _ = poll(&mut [PollFd::new(server, PollFlags::IN)], Some(&END_LIMIT));
        }
        let ended = record.take()?;
        io::stderr().write_all(&ended.messages)?;
        if let Some(failure) = ended.failure {
            session.fail(failure);
        }
    }
    Ok(())
}

/// Prints the unread messages of earlier mounts of an image, or on a directory. Says nothing of a
/// server that was killed without a word: the new mount recovers the image.
pub(crate) fn report_ended(places: [&OsStr; 2], session: &Session) -> io::Result<()> {
    for place in places {
        for record in find(place)? {
            if flock(&record.file, FlockOperation::NonBlockingLockShared).is_err() {
                continue;
            }
            let ended = record.take()?;
            if ended.messages.is_empty() {
                continue;
            }
            session.note("an earlier mount said:");
            io::stderr().write_all(&ended.messages)?;
            if let Some(failure) = ended.failure {
                session.note(failure);
            }
        }
    }
    Ok(())
}

/// Returns the records of mounts of an image, or on a directory.
fn find(place: &OsStr) -> io::Result<Vec<Found>> {
    let (source, target) = (
        real_source(place),
        OsString::from(real_path(Path::new(place))),
    );
    let entries = fs::read_dir(folder()?)?.collect::<io::Result<Vec<_>>>()?;
    let records = entries
        .into_iter()
        .filter_map(|entry| Found::open(entry.path()));
    Ok(records
        .filter(|record| record.source == source || record.target == target)
        .collect())
}

/// Returns the path of a source in one form: that of the image for one of its partitions. An
/// address is what it is.
fn real_source(source: &OsStr) -> OsString {
    if is_address(source) {
        return source.into();
    }
    let image = ImagePath::parse(source).map(|parsed| parsed.image);
    match image {
        Ok(image) if !Path::new(source).exists() => real_path(Path::new(&image)).into(),
        _ => real_path(Path::new(source)).into(),
    }
}

/// Whether a path exists: that of a mount without a server does, too.
fn exists(path: &Path) -> bool {
    !matches!(fs::symlink_metadata(path), Err(error) if error.kind() == io::ErrorKind::NotFound)
}

fn is_address(source: &OsStr) -> bool {
    source.to_str().is_some_and(Address::has_scheme)
}

/// Returns a path in one form, also that of a mount whose server is not there.
fn real_path(path: &Path) -> PathBuf {
    let real = fs::canonicalize(path).or_else(|_| std::path::absolute(path));
    real.unwrap_or_else(|_| path.into())
}

/// Returns the folder of this user's records, which no other user can write.
fn folder() -> io::Result<PathBuf> {
    let user = rustix::process::geteuid();
    let runtime = if user.is_root() {
        Some("/run".into())
    } else {
        std::env::var_os("XDG_RUNTIME_DIR")
    };
    let runtime = runtime.map(|runtime| PathBuf::from(runtime).join("folio"));
    let temporary = std::env::temp_dir().join(format!("folio-{}", user.as_raw()));
    let mut made = Err(io::ErrorKind::NotFound.into());
    for folder in runtime.into_iter().chain([temporary]) {
        made = make_private(&folder).map(|()| folder);
        if made.is_ok() {
            break;
        }
    }
    made
}

fn make_private(folder: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(0o700).create(folder) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    let found = fs::symlink_metadata(folder)?;
    let user = rustix::process::geteuid().as_raw();
    if found.is_dir() && found.uid() == user && found.mode() & 0o022 == 0 {
        return Ok(());
    }
    Err(io::Error::new(
        io::ErrorKind::PermissionDenied,
        format!(
            "{}: expected a directory of this user alone",
            folder.display()
        ),
    ))
}
