//! Names: looking them up, making and taking them away.

use super::host::{self, Status, check_name, retry};
use super::inode::{HostInode, monotonic_ns, own};
use super::push::NameChange;
use crate::base::{Clock, Errno, Error, Result, Timespec};
use crate::vfs::{FileType, NewInode, RenameFlags, RenameRequest};
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{AtFlags, CWD, Gid, Mode, OFlags, Uid};
use smallvec::SmallVec;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// How far clocks may differ that say when something was made.
const MADE_SLACK_SECS: i64 = 2;

impl HostInode {
    fn this(&self) -> Result<Arc<Self>> {
        Ok(self.me.upgrade().ok_or(Errno::IO)?)
    }

    /// The inode that `name` leads to.
    pub(super) fn look_up(&self, name: &[u8]) -> Result<Option<Arc<Self>>> {
        check_name(name)?;
        self.watch_directory();
        let directory = self.reach()?;
        let now_ns = monotonic_ns();
        let doubts = self.shared.doubts.load(Ordering::SeqCst);
        let asked = self.ask();
        let Some(status) = host::status_of(&*directory, name)? else {
            return Ok(None);
        };
        let inode = self.shared.inode(&status);
        inode.note_place(&self.this()?, name);
        if inode.is_directory() {
            inode.note_placed(now_ns);
        }
        let asked = inode.ask_since(asked);
        // What was told of while the host was asked may have been about this inode.
        match self.shared.doubts.load(Ordering::SeqCst) == doubts {
            true => inode.adopt(asked, &status),
            false => inode.is_in_place.store(false, Ordering::SeqCst),
        }
        Ok(Some(inode))
    }

    /// Makes a new inode called `name`.
    pub(super) fn make(&self, name: &[u8], new: &NewInode<'_>) -> Result<Arc<Self>> {
        check_name(name)?;
        let directory = self.reach()?;
        self.expect(name, NameChange::Made);
        let now = Clock::System.now();
        let before = Timespec::new(now.secs - MADE_SLACK_SECS, now.nanos);
        let made = make_name(&directory, name, new).and_then(|fd| {
            let dressed = self
                .dress(&fd, new, Some(before))
                .map(|status| (fd, status));
            dressed.inspect_err(|_| {
                let flags = if new.file_type == FileType::Directory {
                    AtFlags::REMOVEDIR
                } else {
                    AtFlags::empty()
                };
                // Nobody has seen it. If it cannot be taken away, it stays as it is.
                let _: Result<()> = retry(|| rustix::fs::unlinkat(&*directory, name, flags));
            })
        });
        self.doubt();
        let (fd, status) = made.inspect_err(|_| self.failed_to(name, NameChange::Made))?;
        let inode = self.shared.inode(&status);
        inode.note_place(&self.this()?, name);
        inode.note_own();
        match new.file_type {
            FileType::Regular => self.shared.newborns.lock().add(&inode, fd),
            FileType::Directory => {
                inode.keep_fd(&Arc::new(fd));
                inode.note_placed(monotonic_ns());
            }
            _ => {}
        }
        Ok(inode)
    }

    /// Makes a regular file without a name.
    pub(super) fn make_unnamed(&self, new: &NewInode<'_>) -> Result<Arc<Self>> {
        let directory = self.reach()?;
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
        let fd = retry(|| rustix::fs::openat(&*directory, c".", flags, mode_of(new.mode)))?;
        let status = self.dress(&fd, new, None)?;
        let inode = self.shared.inode(&status);
        let again = fd.try_clone().map_err(|error| Error::io("dup", error))?;
        self.shared.newborns.lock().add(&inode, again);
        inode.keep_nameless(Arc::new(fd));
        Ok(inode)
    }

    /// Gives a new inode its owner and mode, whatever the umask made of it. Most are opened by name
    /// after they were made; what is older than `before`, or has other names, is something that
    /// others have put there.
    fn dress(&self, fd: &OwnedFd, new: &NewInode<'_>, before: Option<Timespec>) -> Result<Status> {
        let status = host::status(fd)?;
        let is_old =
            before.is_some_and(|before| status.identity.born.is_some_and(|born| born < before));
        let has_other_names = new.file_type != FileType::Directory && status.link_count > 1;
        if status.identity.file_type != new.file_type || is_old || has_other_names {
            return Err(Error::new(Errno::STALE, "replaced by somebody else"));
        }
        let owners = &self.shared.options.owners;
        let uid = owners
            .outside_user(new.uid)?
            .filter(|uid| *uid != status.uid);
        let gid = owners
            .outside_group(new.gid)?
            .filter(|gid| *gid != status.gid);
        let is_root = self.shared.is_root;
        if is_root && (uid.is_some() || gid.is_some()) {
            set_owner(fd, uid, gid)?;
        }
        let has_mode = new.file_type != FileType::Symlink;
        if has_mode && (status.mode != new.mode & 0o7777 || is_root) {
            match set_mode(fd, new.mode) {
                // Some file systems have no modes.
                Err(error) if matches!(error.errno(), Errno::PERM | Errno::OPNOTSUPP) => {}
                set => set?,
            }
        }
        host::status(fd)
    }

    /// Gives `target` another name here.
    pub(super) fn add_link(&self, name: &[u8], target: &Self) -> Result<()> {
        check_name(name)?;
        let directory = self.reach()?;
        let by_fd = |fd: &OwnedFd| match retry(|| {
            rustix::fs::linkat(fd, c"", &*directory, name, AtFlags::EMPTY_PATH)
        }) {
            // Without CAP_DAC_READ_SEARCH.
            Err(error)
                if matches!(error.errno(), Errno::NOENT | Errno::PERM)
                    && target.common.file_type != FileType::Symlink =>
            {
                let path = host::path_of(fd);
                retry(|| rustix::fs::linkat(CWD, &path, &*directory, name, AtFlags::SYMLINK_FOLLOW))
            }
            linked => linked,
        };
        self.expect(name, NameChange::Made);
        let linked = match target.place() {
            Some(_) => by_fd(&*target.open_by_name()?),
            None => by_fd(&*target.descriptor()?),
        };
        self.doubt();
        target.doubt();
        linked.inspect_err(|_| self.failed_to(name, NameChange::Made))?;
        target.note_place(&self.this()?, name);
        target.has_name_again();
        Ok(())
    }

    /// Takes `name` away, which leads to `target`.
    pub(super) fn remove(&self, name: &[u8], target: &Self) -> Result<()> {
        check_name(name)?;
        let directory = self.reach()?;
        target.keep_if_last(self, &directory, name)?;
        let flags = if target.is_directory() {
            AtFlags::REMOVEDIR
        } else {
            AtFlags::empty()
        };
        self.expect(name, NameChange::Taken);
        let removed = retry(|| rustix::fs::unlinkat(&*directory, name, flags));
        self.doubt();
        target.doubt();
        match removed {
            Ok(()) => target.forget_place(self, name),
            Err(_) => target.has_name_again(),
        }
        removed.inspect_err(|_| self.failed_to(name, NameChange::Taken))
    }

    /// Moves or exchanges names.
    pub(super) fn move_name(&self, request: &RenameRequest<'_>) -> Result<()> {
        let (name, new_name, flags) = (request.name, request.new_name, request.flags);
        let (source, new_parent) = (own(request.source)?, own(request.new_parent)?);
        let replaced = request.replaced.map(own).transpose()?;
        check_name(name)?;
        check_name(new_name)?;
        let (from, to) = (self.reach()?, new_parent.reach()?);
        source.check_is_at(self, &from, name)?;
        let exchanges = flags.contains(RenameFlags::EXCHANGE);
        if let Some(replaced) = replaced {
            match exchanges {
                true => replaced.check_is_at(new_parent, &to, new_name).map(drop),
                false => replaced.keep_if_last(new_parent, &to, new_name),
            }?;
        }
        let host_flags = rustix::fs::RenameFlags::from_bits_truncate(flags.bits());
        let mut expected = SmallVec::<[_; 4]>::new();
        expected.extend([
            (self, name, NameChange::MovedFrom),
            (new_parent, new_name, NameChange::MovedTo),
        ]);
        if exchanges {
            expected.extend([
                (new_parent, new_name, NameChange::MovedFrom),
                (self, name, NameChange::MovedTo),
            ]);
        }
        expected
            .iter()
            .for_each(|(directory, name, change)| directory.expect(name, *change));
        let moved = retry(|| rustix::fs::renameat_with(&*from, name, &*to, new_name, host_flags));
        for touched in [self, new_parent, source].into_iter().chain(replaced) {
            touched.doubt();
        }
        if moved.is_err() {
            expected
                .iter()
                .for_each(|(directory, name, change)| directory.failed_to(name, *change));
            replaced.into_iter().for_each(Self::has_name_again);
            return moved;
        }
        source.forget_place(self, name);
        if let Some(replaced) = replaced {
            replaced.forget_place(new_parent, new_name);
            if exchanges {
                replaced.note_place(&self.this()?, name);
            }
        }
        source.note_place(&new_parent.this()?, new_name);
        Ok(())
    }

    /// A change to a name was not made: perhaps because others were faster.
    fn failed_to(&self, name: &[u8], change: NameChange) {
        self.expect_no_more(name, change);
        self.validity().invalidate_names();
    }

    /// ESTALE unless `self` is what the name leads to.
    fn check_is_at(&self, parent: &Self, directory: impl AsFd, name: &[u8]) -> Result<Status> {
        match host::status_of(directory, name)? {
            Some(status) if status.identity == self.identity => Ok(status),
            _ => {
                parent.validity().invalidate_names();
                Err(Error::new(Errno::STALE, "the name leads elsewhere by now"))
            }
        }
    }

    /// Opens what is about to lose this name if it is the last, so that who uses it can go on.
    fn keep_if_last(&self, parent: &Self, directory: &OwnedFd, name: &[u8]) -> Result<()> {
        let status = self.check_is_at(parent, directory, name)?;
        let is_last = self.is_directory() || status.link_count <= 1;
        if is_last && self.open_descriptor().is_none() {
            let fd = host::open_path(directory, name)?;
            if host::status(&fd)?.identity == self.identity {
                self.keep_nameless(Arc::new(fd));
            }
        }
        Ok(())
    }

    /// What a symbolic link points to: text, which nobody here follows on the host.
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

/// Makes the name and opens what it leads to.
fn make_name(directory: &OwnedFd, name: &[u8], new: &NewInode<'_>) -> Result<OwnedFd> {
    let mode = mode_of(new.mode);
    let node =
        |file_type, device| retry(|| rustix::fs::mknodat(directory, name, file_type, mode, device));
    let device = rustix::fs::makedev(new.device.0, new.device.1);
    match new.file_type {
        FileType::Regular => return host::create_file(directory, name, mode),
        FileType::Directory => retry(|| rustix::fs::mkdirat(directory, name, mode))?,
        FileType::Symlink => retry(|| rustix::fs::symlinkat(new.target, directory, name))?,
        FileType::CharacterDevice => node(rustix::fs::FileType::CharacterDevice, device)?,
        FileType::BlockDevice => node(rustix::fs::FileType::BlockDevice, device)?,
        FileType::Fifo => node(rustix::fs::FileType::Fifo, 0)?,
        FileType::Socket => node(rustix::fs::FileType::Socket, 0)?,
    }
    host::open_path(directory, name)
}

/// Changes owners of what a descriptor leads to.
pub(super) fn set_owner(fd: &OwnedFd, uid: Option<u32>, gid: Option<u32>) -> Result<()> {
    let (uid, gid) = (uid.map(Uid::from_raw), gid.map(Gid::from_raw));
    retry(|| rustix::fs::chownat(fd, c"", uid, gid, AtFlags::EMPTY_PATH))
}

/// Changes the mode of what a descriptor leads to, which is no link.
pub(super) fn set_mode(fd: &OwnedFd, mode: u16) -> Result<()> {
    retry(|| rustix::fs::chmod(host::path_of(fd), mode_of(mode)))
}
