//! A file system on a recording device, and a program that logs each of its calls.

use crate::crash::content::{Effect, Step};
use crate::crash::names::{InodeAttributes, NamespaceModel, Node};
use folio::block::{Device, MemoryDevice};
use folio::syscall::{AT_FDCWD, AtFlags, Credentials, Fd, OpenFlags, Process};
use folio::testing::{RecordDevice, Recorded};
use folio::vfs::{Attributes, FallocateMode, FileType, MountOptions, RenameFlags, XattrFlags};
use folio::{Errno, Kernel, KernelOptions};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Mount point of the file system under test.
pub(crate) const ROOT: &str = "/disk";

/// Options of the mount and the page cache.
#[derive(Debug, Clone)]
pub(crate) struct MountSetup {
    /// Mount options.
    pub(crate) mount: MountOptions,
    /// Page cache in bytes.
    pub(crate) cache_bytes: u64,
    /// Whether writeback threads run.
    pub(crate) background_writeback: bool,
}

impl Default for MountSetup {
    fn default() -> Self {
        Self {
            mount: MountOptions::default(),
            cache_bytes: 16 << 20,
            background_writeback: false,
        }
    }
}

/// An open file.
#[derive(Debug, Clone, Copy)]
pub(crate) struct File {
    pub(crate) fd: Fd,
    pub(crate) node: Node,
}

/// A recorded workload, the input of the cuts.
pub(crate) struct RecordedRun {
    /// The device before the first write.
    pub(crate) before: Arc<MemoryDevice>,
    /// Writes and flushes, in order.
    pub(crate) record: Vec<Recorded>,
    /// The model of each program.
    pub(crate) programs: Vec<NamespaceModel>,
}

/// The mounted file system under test.
pub(crate) struct Machine {
    kernel: Arc<Kernel>,
    record: Arc<RecordDevice>,
    before: Arc<MemoryDevice>,
}

/// A program with the model of its operations.
pub(crate) struct Program {
    pub(crate) process: Process,
    pub(crate) names: NamespaceModel,
    kernel: Arc<Kernel>,
    record: Arc<RecordDevice>,
}

/// Returns a copy of a device in memory.
pub(crate) fn copy_of(device: &dyn Device) -> Arc<MemoryDevice> {
    let copy = MemoryDevice::new(device.len_bytes());
    for_data(device, |at, bytes| copy.write_at(bytes, at).unwrap());
    Arc::new(copy)
}

/// Calls `visit` for each part of a device with nonzero bytes.
pub(crate) fn for_data(device: &dyn Device, mut visit: impl FnMut(u64, &[u8])) {
    let mut buf = vec![0; 64 << 10];
    let mut at = 0;
    while at < device.len_bytes() {
        let count = (buf.len() as u64).min(device.len_bytes() - at) as usize;
        device.read_at(&mut buf[..count], at).unwrap();
        if buf[..count].iter().any(|byte| *byte != 0) {
            visit(at, &buf[..count]);
        }
        at += count as u64;
    }
}

/// Returns a kernel and a process of root.
pub(crate) fn kernel(cache_bytes: u64, background_writeback: bool) -> (Arc<Kernel>, Process) {
    let kernel = Kernel::new(KernelOptions {
        cache_bytes,
        background_writeback,
        ..KernelOptions::default()
    });
    let process = kernel.process(Credentials::root());
    process.mkdir(ROOT, 0o755).unwrap();
    (kernel, process)
}

/// Reads the attributes of an inode.
pub(crate) fn inode_attributes(
    process: &Process,
    path: &str,
    found: &Attributes,
) -> folio::Result<InodeAttributes> {
    let kind = match found.file_type {
        FileType::Directory => 'd',
        FileType::Regular => 'f',
        FileType::Symlink => 'l',
        _ => 's',
    };
    let target = if kind == 'l' {
        process.readlink(path)?
    } else {
        Vec::new()
    };
    let mut xattrs = BTreeMap::new();
    for name in process.llistxattr(path)? {
        let value = process.lgetxattr(path, &name)?;
        xattrs.insert(name, value);
    }
    let (owner, links) = ((found.uid, found.gid), found.link_count);
    Ok(InodeAttributes {
        kind,
        mode: found.mode,
        owner,
        links,
        target,
        xattrs,
    })
}

impl Machine {
    /// Mounts the image; records all writes from here on.
    pub(crate) fn new(image: Arc<dyn Device>, setup: &MountSetup) -> Self {
        let before = copy_of(&*image);
        let record = Arc::new(RecordDevice::new(image));
        let (kernel, process) = kernel(setup.cache_bytes, setup.background_writeback);
        kernel
            .mount_ext4(record.clone(), ROOT, &setup.mount)
            .unwrap();
        drop(process);
        Self {
            kernel,
            record,
            before,
        }
    }

    /// Starts a process of root without a model of its operations.
    pub(crate) fn process(&self) -> Process {
        self.kernel.process(Credentials::root())
    }

    /// Starts a program in a directory: `ROOT`, or a new one that no other program uses.
    pub(crate) fn program(&self, base: &str) -> Program {
        let process = self.kernel.process(Credentials::root());
        process.umask(0);
        if base != ROOT {
            process.mkdir(base, 0o755).unwrap();
            process.sync().unwrap();
        }
        process.chdir(base).unwrap();
        let root = process.stat(base).unwrap();
        let since = if base == ROOT {
            0
        } else {
            self.record.recorded_len()
        };
        let mut names = NamespaceModel::new(
            base,
            since,
            root.number.0,
            inode_attributes(&process, base, &root).unwrap(),
        );
        let lost = format!("{base}/lost+found");
        if let Ok(found) = process.stat(&lost) {
            let node = names.add_inode(
                found.number.0,
                inode_attributes(&process, &lost, &found).unwrap(),
                0,
            );
            names.adopt(0, "lost+found", node);
        }
        Program {
            process,
            names,
            kernel: self.kernel.clone(),
            record: self.record.clone(),
        }
    }

    /// Returns the length of the record.
    pub(crate) fn recorded(&self) -> usize {
        self.record.recorded_len()
    }

    /// Unmounts after the programs have ended.
    pub(crate) fn end(self, programs: Vec<Program>) -> RecordedRun {
        let Self {
            kernel,
            record,
            before,
        } = self;
        let mut programs: Vec<NamespaceModel> =
            programs.into_iter().map(|program| program.names).collect();
        let begun = record.recorded_len();
        programs
            .iter_mut()
            .for_each(|names| names.begin(begun, "unmount".to_owned()));
        kernel.unmount(ROOT).unwrap();
        let recorded = record.recorded_len();
        programs
            .iter_mut()
            .for_each(|names| names.synced_all(recorded));
        RecordedRun {
            before,
            record: record.recorded(),
            programs,
        }
    }
}

impl Program {
    /// Makes a call; returns `None` for ENOSPC and panics on any other error.
    fn call<T>(
        &mut self,
        what: String,
        call: impl FnOnce(&Process) -> folio::Result<T>,
    ) -> Option<T> {
        self.names.begin(self.record.recorded_len(), what);
        match call(&self.process) {
            Ok(value) => Some(value),
            Err(error) if error.errno() == Errno::NOSPC => None,
            Err(error) => panic!("{}: {error}", self.names.what(self.names.step())),
        }
    }

    fn step(&self) -> Step {
        self.names.step()
    }

    fn parent(&self, path: &str) -> (Node, String) {
        let (parent, name) = path.rsplit_once('/').unwrap_or(("", path));
        (self.names.find(parent), name.to_owned())
    }

    fn add_new_inode(
        &mut self,
        path: &str,
        kind: char,
        mode: u16,
        number: u64,
        target: &[u8],
    ) -> Node {
        let (parent, name) = self.parent(path);
        let owner = (0, 0);
        let (target, xattrs) = (target.to_vec(), BTreeMap::new());
        let node = self.names.add_inode(
            number,
            InodeAttributes {
                kind,
                mode,
                owner,
                links: 0,
                target,
                xattrs,
            },
            parent,
        );
        self.names.change(node, |attributes| {
            attributes.links = if kind == 'd' { 2 } else { 1 }
        });
        self.names.link(parent, &name, node);
        if kind == 'd' {
            self.names
                .change(parent, |attributes| attributes.links += 1);
        }
        node
    }

    fn number(&self, path: &str) -> u64 {
        self.process.lstat(here(path)).unwrap().number.0
    }

    /// open(2) with O_CREAT and O_EXCL.
    pub(crate) fn create(&mut self, path: &str) -> Option<File> {
        let flags = OpenFlags::CREAT | OpenFlags::EXCL | OpenFlags::RDWR;
        let fd = self.call(format!("create {path}"), |p| {
            p.open(here(path), flags, 0o644)
        })?;
        let number = self.process.fstat(fd).unwrap().number.0;
        let node = self.add_new_inode(path, 'f', 0o644, number, b"");
        Some(File { fd, node })
    }

    /// open(2) of an existing file.
    pub(crate) fn open(&mut self, path: &str) -> File {
        let fd = self.process.open(here(path), OpenFlags::RDWR, 0).unwrap();
        File {
            fd,
            node: self.names.find(path),
        }
    }

    /// open(2) of an existing file with O_TRUNC.
    pub(crate) fn open_truncating(&mut self, path: &str) -> File {
        let flags = OpenFlags::RDWR | OpenFlags::TRUNC;
        let fd = self
            .call(format!("open O_TRUNC {path}"), |p| {
                p.open(here(path), flags, 0)
            })
            .unwrap();
        let node = self.names.find(path);
        self.changed(node, Effect::Truncate(0));
        File { fd, node }
    }

    /// close(2).
    pub(crate) fn close(&mut self, file: File) {
        self.process.close(file.fd).unwrap();
    }

    /// Records that the file's contents are a complete version.
    pub(crate) fn version(&mut self, file: File) {
        let step = self.step();
        self.names.inodes[file.node].content.version(step);
    }

    fn changed(&mut self, node: Node, effect: Effect) {
        let step = self.step();
        self.names.inodes[node].content.change(step, effect);
        self.names.touch(node);
    }

    /// pwrite(2) of pattern bytes; returns the number of bytes written.
    pub(crate) fn write(&mut self, file: File, offset: u64, len_bytes: usize) -> usize {
        let mut bytes = vec![0; len_bytes];
        let what = format!(
            "write {len_bytes} at {offset} of inode {}",
            self.names.inodes[file.node].number
        );
        crate::crash::content::fill(&mut bytes, file.node, self.step() + 1, offset);
        let written = self
            .call(what, |p| p.pwrite(file.fd, &bytes, offset))
            .unwrap_or(0);
        if written > 0 {
            self.changed(file.node, Effect::Write(offset..offset + written as u64));
        }
        written
    }

    /// ftruncate(2).
    pub(crate) fn truncate(&mut self, file: File, size: u64) {
        let what = format!(
            "truncate inode {} to {size}",
            self.names.inodes[file.node].number
        );
        if self.call(what, |p| p.ftruncate(file.fd, size)).is_some() {
            self.changed(file.node, Effect::Truncate(size));
        }
    }

    /// fallocate(2).
    pub(crate) fn fallocate(
        &mut self,
        file: File,
        mode: FallocateMode,
        offset: u64,
        len_bytes: u64,
    ) {
        let what = format!(
            "{mode:?} {len_bytes} at {offset} of inode {}",
            self.names.inodes[file.node].number
        );
        let size = self.names.inodes[file.node].content.now().len() as u64;
        let end = offset + len_bytes;
        if self
            .call(what, |p| p.fallocate(file.fd, mode, offset, len_bytes))
            .is_none()
        {
            return;
        }
        if matches!(
            mode,
            FallocateMode::PunchHole | FallocateMode::ZeroRange | FallocateMode::ZeroRangeKeepSize
        ) {
            self.changed(file.node, Effect::Zero(offset..end));
        }
        if matches!(mode, FallocateMode::Allocate | FallocateMode::ZeroRange) && end > size {
            self.changed(file.node, Effect::Truncate(end));
        }
    }

    /// fsync(2).
    pub(crate) fn fsync(&mut self, file: File) {
        let what = format!("fsync inode {}", self.names.inodes[file.node].number);
        if self.call(what, |p| p.fsync(file.fd)).is_some() {
            self.names
                .synced(file.node, self.record.recorded_len(), false);
        }
    }

    /// fdatasync(2).
    pub(crate) fn fdatasync(&mut self, file: File) {
        let what = format!("fdatasync inode {}", self.names.inodes[file.node].number);
        if self.call(what, |p| p.fdatasync(file.fd)).is_some() {
            self.names
                .synced(file.node, self.record.recorded_len(), true);
        }
    }

    /// fsync(2) of a directory.
    pub(crate) fn fsync_directory(&mut self, path: &str) {
        let fd = self
            .process
            .open(here(path), OpenFlags::DIRECTORY, 0)
            .unwrap();
        self.fsync(File {
            fd,
            node: self.names.find(path),
        });
        self.process.close(fd).unwrap();
    }

    /// sync(2).
    pub(crate) fn sync(&mut self) {
        if self.call("sync".to_owned(), Process::sync).is_some() {
            self.names.synced_all(self.record.recorded_len());
        }
    }

    /// Freezes the file system, and thaws it, as for a copy of the device: all changes so far are
    /// durable then.
    pub(crate) fn freeze(&mut self) {
        let kernel = self.kernel.clone();
        let freeze = |_: &Process| kernel.freeze_while(ROOT, || Ok(()));
        if self.call("freeze".to_owned(), freeze).is_some() {
            self.names.synced_all(self.record.recorded_len());
        }
    }

    /// mkdir(2).
    pub(crate) fn mkdir(&mut self, path: &str) -> bool {
        if self
            .call(format!("mkdir {path}"), |p| p.mkdir(here(path), 0o755))
            .is_none()
        {
            return false;
        }
        let number = self.number(path);
        self.add_new_inode(path, 'd', 0o755, number, b"");
        true
    }

    /// rmdir(2).
    pub(crate) fn rmdir(&mut self, path: &str) {
        if self
            .call(format!("rmdir {path}"), |p| p.rmdir(here(path)))
            .is_some()
        {
            let (parent, name) = self.parent(path);
            let node = self.names.unlink(parent, &name);
            self.names.change(node, |attributes| attributes.links = 0);
            self.names
                .change(parent, |attributes| attributes.links -= 1);
        }
    }

    /// symlink(2).
    pub(crate) fn symlink(&mut self, target: &str, path: &str) {
        if self
            .call(format!("symlink {path}"), |p| p.symlink(target, here(path)))
            .is_some()
        {
            let number = self.number(path);
            self.add_new_inode(path, 'l', 0o777, number, target.as_bytes());
        }
    }

    /// link(2).
    pub(crate) fn link(&mut self, from: &str, to: &str) {
        if self
            .call(format!("link {from} {to}"), |p| {
                p.link(here(from), here(to))
            })
            .is_some()
        {
            let node = self.names.find(from);
            let (parent, name) = self.parent(to);
            self.names.link(parent, &name, node);
            self.names.change(node, |attributes| attributes.links += 1);
        }
    }

    /// unlink(2).
    pub(crate) fn unlink(&mut self, path: &str) {
        if self
            .call(format!("unlink {path}"), |p| p.unlink(here(path)))
            .is_some()
        {
            self.remove_name(path);
        }
    }

    /// Removes a name from the model; for an empty directory also its `.` and `..`.
    fn remove_name(&mut self, path: &str) {
        let (parent, name) = self.parent(path);
        let node = self.names.unlink(parent, &name);
        if self.names.inodes[node].attributes.kind == 'd' {
            self.names.change(node, |attributes| attributes.links = 0);
            self.names
                .change(parent, |attributes| attributes.links -= 1);
        } else {
            self.names.change(node, |attributes| attributes.links -= 1);
        }
    }

    /// rename(2). A replaced inode must be of the same kind, and empty if a directory.
    pub(crate) fn rename(&mut self, from: &str, to: &str) {
        if self
            .call(format!("rename {from} {to}"), |p| {
                p.rename(here(from), here(to))
            })
            .is_none()
        {
            return;
        }
        if self.names.exists(to) {
            if self.names.find(from) == self.names.find(to) {
                return;
            }
            self.remove_name(to);
        }
        let ((from_parent, from_name), (to_parent, to_name)) = (self.parent(from), self.parent(to));
        let node = self.names.unlink(from_parent, &from_name);
        self.names.link(to_parent, &to_name, node);
        if self.names.inodes[node].attributes.kind == 'd' && from_parent != to_parent {
            self.names
                .change(from_parent, |attributes| attributes.links -= 1);
            self.names
                .change(to_parent, |attributes| attributes.links += 1);
        }
    }

    /// renameat2(2) with RENAME_EXCHANGE, of two files.
    pub(crate) fn exchange(&mut self, one: &str, other: &str) {
        let call = |p: &Process| {
            p.renameat2(
                AT_FDCWD,
                here(one),
                AT_FDCWD,
                here(other),
                RenameFlags::EXCHANGE,
            )
        };
        if self.call(format!("exchange {one} {other}"), call).is_none() {
            return;
        }
        // Names of one inode stay as they are, and so does the inode.
        if self.names.find(one) == self.names.find(other) {
            return;
        }
        let ((parent, name), (other_parent, other_name)) = (self.parent(one), self.parent(other));
        let node = self.names.unlink(parent, &name);
        let other_node = self.names.unlink(other_parent, &other_name);
        self.names.link(parent, &name, other_node);
        self.names.link(other_parent, &other_name, node);
    }

    /// chmod(2).
    pub(crate) fn chmod(&mut self, path: &str, mode: u16) {
        if self
            .call(format!("chmod {path}"), |p| p.chmod(here(path), mode))
            .is_some()
        {
            let node = self.names.find(path);
            self.names.change(node, |attributes| attributes.mode = mode);
        }
    }

    /// lchown(2).
    pub(crate) fn chown(&mut self, path: &str, uid: u32, gid: u32) {
        let flags = AtFlags::SYMLINK_NOFOLLOW;
        let call = |p: &Process| p.fchownat(AT_FDCWD, here(path), Some(uid), Some(gid), flags);
        if self.call(format!("chown {path}"), call).is_some() {
            let node = self.names.find(path);
            self.names
                .change(node, |attributes| attributes.owner = (uid, gid));
        }
    }

    /// setxattr(2).
    pub(crate) fn setxattr(&mut self, path: &str, name: &str, value: &[u8]) {
        let call =
            |p: &Process| p.setxattr(here(path), name.as_bytes(), value, XattrFlags::empty());
        if self
            .call(format!("setxattr {path} {name} {}", value.len()), call)
            .is_some()
        {
            let node = self.names.find(path);
            let (name, value) = (name.as_bytes().to_vec(), value.to_vec());
            self.names.change(node, |attributes| {
                drop(attributes.xattrs.insert(name, value))
            });
        }
    }

    /// removexattr(2) of an existing attribute.
    pub(crate) fn removexattr(&mut self, path: &str, name: &[u8]) {
        let call = |p: &Process| p.removexattr(here(path), name);
        if self.call(format!("removexattr {path}"), call).is_some() {
            let node = self.names.find(path);
            self.names
                .change(node, |attributes| drop(attributes.xattrs.remove(name)));
        }
    }
}

/// Returns a path relative to the program's working directory.
fn here(path: &str) -> &str {
    if path.is_empty() { "." } else { path }
}

/// Returns a path below `base`.
pub(crate) fn full(base: &str, path: &str) -> String {
    if path.is_empty() {
        base.to_owned()
    } else {
        format!("{base}/{path}")
    }
}
