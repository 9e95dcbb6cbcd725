//! Directories: lookup, creation, removal and rename of names on the host.

use super::host_calls::{self, Status, check_name, retry};
use super::inode::{HostInode, monotonic_ns, own};
use super::inotify::NameChange;
use crate::base::{Clock, Errno, Error, Result, Timespec};
use crate::vfs::{FileType, NewInode, RenameFlags, RenameRequest};
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{AtFlags, CWD, Gid, Mode, OFlags, Uid};
use smallvec::SmallVec;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Tolerated difference between this clock and the clock of creation times, in seconds.
const CREATION_SLACK_SECS: i64 = 2;

impl HostInode {
    fn this(&self) -> Result<Arc<Self>> {
        Ok(self.me.upgrade().ok_or(Errno::IO)?)
    }

    /// Returns the inode that `name` refers to; `None` if the name does not exist.
    pub(super) fn look_up(&self, name: &[u8]) -> Result<Option<Arc<Self>>> {
        check_name(name)?;
        // The watch before the question: a change in between is reported.
        self.watch_directory();
        let directory = self.reach()?;
        let now_ns = monotonic_ns();
        let invalidations = self.shared.invalidations.load(Ordering::SeqCst);
        let question = self.ask();
        let Some(status) = host_calls::status_of(&*directory, name)? else {
            return Ok(None);
        };
        let inode = self.shared.inode(&status);
        inode.note_location(&self.this()?, name);
        if inode.is_directory() {
            inode.validate_position(now_ns);
        }
        let question = inode.ask_since(question);
        // A notification during the question may have been about this inode.
        if self.shared.invalidations.load(Ordering::SeqCst) == invalidations {
            inode.apply(question, &status);
        } else {
            inode.is_in_place.store(false, Ordering::SeqCst);
        }
        inode.watch_for_events();
        if self.watch.is_active() && inode.awaits_watch(now_ns) {
            // The question that follows adds the watch, and its answer needs no time to live.
            inode.validity().invalidate();
        }
        Ok(Some(inode))
    }

    /// Creates an inode called `name`.
    pub(super) fn create_named(&self, name: &[u8], new: &NewInode<'_>) -> Result<Arc<Self>> {
        check_name(name)?;
        let directory = self.reach()?;
        // Before the call: its event may arrive before it returns.
        self.expect(name, NameChange::Created, None);
        let now = Clock::System.now();
        let before = Timespec::new(now.secs - CREATION_SLACK_SECS, now.nanos);
        let created = create_on_host(&directory, name, new).and_then(|fd| {
            let initialized = self
                .set_owner_and_mode(&fd, new, Some(before))
                .map(|status| (fd, status));
            initialized.inspect_err(|error| {
                if error.errno() == Errno::STALE {
                    // The name is an external writer's.
                    return;
                }
                let flags = if new.file_type == FileType::Directory {
                    AtFlags::REMOVEDIR
                } else {
                    AtFlags::empty()
                };
                // No other thread has seen it. If it cannot be removed, it stays as it is.
                let _: Result<()> = retry(|| rustix::fs::unlinkat(&*directory, name, flags));
            })
        });
        // After a failure, too: part of the change may have been made.
        self.invalidate();
        let (fd, status) = created.inspect_err(|_| self.note_failure(name, NameChange::Created))?;
        let inode = self.shared.inode(&status);
        inode.note_location(&self.this()?, name);
        inode.note_own();
        match new.file_type {
            FileType::Regular => self
                .shared
                .recently_created
                .lock()
                .add(inode.me.clone(), fd),
            FileType::Directory => {
                inode.keep_fd(&Arc::new(fd));
                inode.validate_position(monotonic_ns());
                inode.watch_for_events();
            }
            _ => {}
        }
        Ok(inode)
    }

    /// Creates a regular file without a name.
    pub(super) fn create_without_name(&self, new: &NewInode<'_>) -> Result<Arc<Self>> {
        let directory = self.reach()?;
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
        let fd = retry(|| rustix::fs::openat(&*directory, c".", flags, mode_of(new.mode)))?;
        let status = self.set_owner_and_mode(&fd, new, None)?;
        let inode = self.shared.inode(&status);
        let again = fd.try_clone().map_err(|error| Error::io("dup", error))?;
        self.shared
            .recently_created
            .lock()
            .add(inode.me.clone(), again);
        inode.keep_unlinked(Arc::new(fd));
        Ok(inode)
    }

    /// Sets owner and mode of a new inode, whatever the umask. Most types are opened by name after
    /// their creation. An inode that is older than `before` or has other names was put there by an
    /// external writer: ESTALE.
    fn set_owner_and_mode(
        &self,
        fd: &OwnedFd,
        new: &NewInode<'_>,
        before: Option<Timespec>,
    ) -> Result<Status> {
        let status = host_calls::status(fd)?;
        let is_old = before.is_some_and(|before| {
            status
                .identity
                .created
                .is_some_and(|created| created < before)
        });
        let has_other_names = new.file_type != FileType::Directory && status.link_count > 1;
        if status.identity.file_type != new.file_type || is_old || has_other_names {
            return Err(Error::new(
                Errno::STALE,
                "an external writer replaced the new file",
            ));
        }
        let owners = &self.shared.options.owners;
        let uid = owners
            .outside_user(new.uid)?
            .filter(|uid| *uid != status.owner.uid);
        let gid = owners
            .outside_group(new.gid)?
            .filter(|gid| *gid != status.owner.gid);
        let is_root = self.shared.is_root;
        if is_root && (uid.is_some() || gid.is_some()) {
            set_owner(fd, uid, gid)?;
        }
        let has_mode = new.file_type != FileType::Symlink;
        if has_mode && (status.mode != new.mode & 0o7777 || is_root) {
            match set_mode(fd, new.mode) {
                // Some file systems do not store modes.
                Err(error) if matches!(error.errno(), Errno::PERM | Errno::OPNOTSUPP) => {}
                set => set?,
            }
        }
        host_calls::status(fd)
    }

    /// Adds a name for `target` to this directory.
    pub(super) fn add_link(&self, name: &[u8], target: &Self) -> Result<()> {
        check_name(name)?;
        let directory = self.reach()?;
        let by_fd = |fd: &OwnedFd| match retry(|| {
            rustix::fs::linkat(fd, c"", &*directory, name, AtFlags::EMPTY_PATH)
        }) {
            // The process lacks CAP_DAC_READ_SEARCH.
            Err(error)
                if matches!(error.errno(), Errno::NOENT | Errno::PERM)
                    && target.common.file_type != FileType::Symlink =>
            {
                let path = host_calls::path_of(fd);
                retry(|| rustix::fs::linkat(CWD, &path, &*directory, name, AtFlags::SYMLINK_FOLLOW))
            }
            linked => linked,
        };
        let fd = match target.location() {
            Some(_) => target.open_by_name()?,
            None => target.descriptor()?,
        };
        self.expect(name, NameChange::Created, None);
        let linked = by_fd(&fd);
        self.invalidate();
        target.invalidate();
        linked.inspect_err(|_| self.note_failure(name, NameChange::Created))?;
        target.note_location(&self.this()?, name);
        target.release_unlinked();
        Ok(())
    }

    /// Removes `name`, which refers to `target`.
    pub(super) fn remove(&self, name: &[u8], target: &Self) -> Result<()> {
        check_name(name)?;
        let directory = self.reach()?;
        // While the name still leads there: afterwards only a descriptor reaches the file.
        target.keep_if_last(self, &directory, name)?;
        let flags = if target.is_directory() {
            AtFlags::REMOVEDIR
        } else {
            AtFlags::empty()
        };
        self.expect(name, NameChange::Removed, None);
        let removed = retry(|| rustix::fs::unlinkat(&*directory, name, flags));
        self.invalidate();
        target.invalidate();
        match removed {
            Ok(()) => target.forget_location(self, name),
            Err(_) => target.release_unlinked(),
        }
        removed.inspect_err(|_| self.note_failure(name, NameChange::Removed))
    }

    /// Moves or exchanges names.
    pub(super) fn move_name(&self, request: &RenameRequest<'_>) -> Result<()> {
        let (name, new_name, flags) = (request.name, request.new_name, request.flags);
        let (source, new_parent) = (own(request.source)?, own(request.new_parent)?);
        let replaced = request.replaced.map(own).transpose()?;
        check_name(name)?;
        check_name(new_name)?;
        let (from, to) = (self.reach()?, new_parent.reach()?);
        let status = source.check_is_at(self, &from, name)?;
        let exchanges = flags.contains(RenameFlags::EXCHANGE);
        if let Some(replaced) = replaced {
            if exchanges {
                replaced.check_is_at(new_parent, &to, new_name)?;
            } else {
                replaced.keep_if_last(new_parent, &to, new_name)?;
            }
        }
        let host_flags = rustix::fs::RenameFlags::from_bits_truncate(flags.bits());
        let mut expected = SmallVec::<[_; 4]>::new();
        expected.extend([
            (self, name, NameChange::MovedFrom, None),
            (new_parent, new_name, NameChange::MovedTo, Some(source)),
        ]);
        if exchanges {
            expected.extend([
                (new_parent, new_name, NameChange::MovedFrom, None),
                (self, name, NameChange::MovedTo, replaced),
            ]);
        }
        // Both may be names of one file, unknown to the caller: then the host changes nothing, and
        // reports nothing. Linux: `vfs_rename`.
        let may_be_nothing = !source.is_directory()
            && status.link_count > 1
            && host_calls::status_of(&*to, new_name)?
                .is_some_and(|found| found.identity == source.identity);
        if !may_be_nothing {
            for (directory, name, change, moved) in &expected {
                directory.expect(name, *change, *moved);
            }
        }
        let moved = retry(|| rustix::fs::renameat_with(&*from, name, &*to, new_name, host_flags));
        for touched in [self, new_parent, source].into_iter().chain(replaced) {
            touched.invalidate();
        }
        let is_nothing = may_be_nothing
            && moved.is_ok()
            && host_calls::status_of(&*from, name)
                .is_ok_and(|found| found.is_some_and(|found| found.identity == source.identity));
        if moved.is_err() || is_nothing {
            expected
                .iter()
                .for_each(|(directory, name, change, _)| directory.note_failure(name, *change));
            replaced.into_iter().for_each(Self::release_unlinked);
            return moved;
        }
        // The old name before the new one: a directory has one known name at most.
        source.forget_location(self, name);
        if let Some(replaced) = replaced {
            replaced.forget_location(new_parent, new_name);
            if exchanges {
                replaced.note_location(&self.this()?, name);
            }
        }
        source.note_location(&new_parent.this()?, new_name);
        Ok(())
    }

    /// Fails with ESTALE unless the name refers to this inode.
    fn check_is_at(&self, parent: &Self, directory: impl AsFd, name: &[u8]) -> Result<Status> {
        match host_calls::status_of(directory, name)? {
            Some(status) if status.identity == self.identity => Ok(status),
            _ => {
                parent.validity().invalidate_names();
                Err(Error::new(
                    Errno::STALE,
                    "an external writer replaced the name",
                ))
            }
        }
    }

    /// Opens an inode that is about to lose its last name, so that its users can continue.
    fn keep_if_last(&self, parent: &Self, directory: &OwnedFd, name: &[u8]) -> Result<()> {
        let status = self.check_is_at(parent, directory, name)?;
        let is_last = self.is_directory() || status.link_count <= 1;
        if is_last && self.open_descriptor().is_none() {
            let fd = host_calls::open_path(directory, name)?;
            if host_calls::status(&fd)?.identity == self.identity {
                self.keep_unlinked(Arc::new(fd));
            }
        }
        Ok(())
    }

    /// Returns the target of a symbolic link; it is never followed on the host.
    pub(super) fn read_target(&self) -> Result<Vec<u8>> {
        if let Some(target) = self.target.get() {
            return Ok(target.to_vec());
        }
        let fd = self.descriptor()?;
        let target = retry(|| rustix::fs::readlinkat(&*fd, c"", Vec::new()))?.into_bytes();
        Ok(self
            .target
            .get_or_init(|| target.into_boxed_slice())
            .to_vec())
    }
}

fn mode_of(mode: u16) -> Mode {
    Mode::from_raw_mode(u32::from(mode) & 0o7777)
}

/// Creates a name on the host, and opens the new inode.
fn create_on_host(directory: &OwnedFd, name: &[u8], new: &NewInode<'_>) -> Result<OwnedFd> {
    let mode = mode_of(new.mode);
    let node =
        |file_type, device| retry(|| rustix::fs::mknodat(directory, name, file_type, mode, device));
    let device = rustix::fs::makedev(new.device.major, new.device.minor);
    match new.file_type {
        FileType::Regular => return host_calls::create_file(directory, name, mode),
        FileType::Directory => retry(|| rustix::fs::mkdirat(directory, name, mode))?,
        FileType::Symlink => retry(|| rustix::fs::symlinkat(new.target, directory, name))?,
        FileType::CharacterDevice => node(rustix::fs::FileType::CharacterDevice, device)?,
        FileType::BlockDevice => node(rustix::fs::FileType::BlockDevice, device)?,
        FileType::Fifo => node(rustix::fs::FileType::Fifo, 0)?,
        FileType::Socket => node(rustix::fs::FileType::Socket, 0)?,
    }
    host_calls::open_path(directory, name)
}

/// Changes the owner and group of a descriptor's inode.
pub(super) fn set_owner(fd: &OwnedFd, uid: Option<u32>, gid: Option<u32>) -> Result<()> {
    let (uid, gid) = (uid.map(Uid::from_raw), gid.map(Gid::from_raw));
    retry(|| rustix::fs::chownat(fd, c"", uid, gid, AtFlags::EMPTY_PATH))
}

/// Changes the mode of a descriptor's inode, which must not be a symbolic link.
pub(super) fn set_mode(fd: &OwnedFd, mode: u16) -> Result<()> {
    retry(|| rustix::fs::chmod(host_calls::path_of(fd), mode_of(mode)))
}
