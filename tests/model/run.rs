//! The runner: applies operations to a file system and to the model, and compares the results.

use crate::model::{Kind, Model, Node, xattr_name};
use crate::operation::{HELD, Operation};
use folio::base::Timespec;
use folio::syscall::{AT_FDCWD, AtFlags, Fd, OpenFlags};
use folio::vfs::{FileType, SetTime, XattrFlags};
use folio::{Errno, Process, Result};

/// Runs `operations` below `root`, a fresh directory of mode 0755, as the superuser with umask 0.
/// Checks every result, and at the end the whole tree, against the model. Returns the model, for
/// [`check`] after a remount.
pub(crate) fn run(
    process: &Process,
    root: &str,
    operations: &[Operation],
    block_size: Option<u64>,
) -> Model {
    let mut model = Model::new(block_size);
    let mut tester = Tester {
        process,
        root,
        held: [None; HELD],
    };
    for (count, operation) in operations.iter().enumerate() {
        let expected = model.apply(operation);
        let answer = tester.perform(operation).map_err(|error| error.errno());
        assert!(
            answer == expected,
            "operation {count}, {operation:?}: {} instead of {}",
            shorten(&answer),
            shorten(&expected)
        );
        if matches!(operation, Operation::Check) {
            check(process, root, &model);
        }
    }
    for fd in tester.held.into_iter().flatten() {
        process.close(fd).unwrap();
    }
    check(process, root, &model);
    model
}

fn shorten(answer: &std::result::Result<Vec<u8>, Errno>) -> String {
    match answer {
        Ok(bytes) => format!("{} bytes", bytes.len()),
        Err(errno) => errno.to_string(),
    }
}

struct Tester<'a> {
    process: &'a Process,
    root: &'a str,
    held: [Option<Fd>; HELD],
}

impl Tester<'_> {
    fn path(&self, path: &str) -> String {
        format!("{}/{path}", self.root)
    }

    /// Opens a file, calls a closure, and closes the file.
    fn with<T>(
        &self,
        path: &str,
        flags: OpenFlags,
        call: impl FnOnce(Fd) -> Result<T>,
    ) -> Result<T> {
        let fd = self.process.open(self.path(path), flags, 0)?;
        let result = call(fd);
        self.process.close(fd)?;
        result
    }

    fn perform(&mut self, operation: &Operation) -> Result<Vec<u8>> {
        let p = self.process;
        match operation {
            Operation::Mkdir(path, mode) => p.mkdir(self.path(path), *mode)?,
            Operation::Rmdir(path) => p.rmdir(self.path(path))?,
            Operation::Create(path, mode, exclusive) => {
                let excl = if *exclusive {
                    OpenFlags::EXCL
                } else {
                    OpenFlags::empty()
                };
                let fd = p.open(
                    self.path(path),
                    OpenFlags::CREAT | OpenFlags::WRONLY | excl,
                    *mode,
                )?;
                p.close(fd)?;
            }
            Operation::Unlink(path) => p.unlink(self.path(path))?,
            Operation::Rename(from, to, flags) => {
                p.renameat2(AT_FDCWD, self.path(from), AT_FDCWD, self.path(to), *flags)?;
            }
            Operation::Link(from, to) => p.link(self.path(from), self.path(to))?,
            Operation::Symlink(target, path) => p.symlink(target, self.path(path))?,
            Operation::Readlink(path) => return p.readlink(self.path(path)),
            Operation::Truncate(path, size) => p.truncate(self.path(path), *size)?,
            Operation::Chmod(path, mode) => p.chmod(self.path(path), *mode)?,
            Operation::Chown(path, uid, gid) => p.chown(self.path(path), *uid, *gid)?,
            Operation::SetModified(path, secs) => {
                let time = Some(SetTime::To(Timespec::new(*secs, 123_456_789)));
                p.utimensat(AT_FDCWD, self.path(path), None, time, AtFlags::empty())?;
            }
            Operation::SetXattr(path, name, len) => {
                p.setxattr(
                    self.path(path),
                    &xattr_name(*name),
                    &vec![*name; *len],
                    XattrFlags::empty(),
                )?;
            }
            Operation::RemoveXattr(path, name) => {
                p.removexattr(self.path(path), &xattr_name(*name))?
            }
            Operation::Sync => p.sync()?,
            Operation::Check => {}
            data => return self.perform_data(data),
        }
        Ok(Vec::new())
    }

    fn perform_data(&mut self, operation: &Operation) -> Result<Vec<u8>> {
        let p = self.process;
        match operation {
            Operation::Write(path, offset, len, byte) => {
                self.with(path, OpenFlags::WRONLY, |fd| {
                    write_all(p, fd, *offset, *len, *byte)
                })?;
            }
            Operation::Append(path, len, byte) => {
                let flags = OpenFlags::WRONLY | OpenFlags::APPEND;
                self.with(path, flags, |fd| write_all(p, fd, 0, *len, *byte))?;
            }
            Operation::Read(path) => {
                return self.with(path, OpenFlags::empty(), |fd| read_all(p, fd));
            }
            Operation::Fallocate(path, mode, offset, len) => {
                self.with(path, OpenFlags::WRONLY, |fd| {
                    p.fallocate(fd, *mode, *offset, *len)
                })?;
            }
            Operation::Fsync(path) => self.with(path, OpenFlags::empty(), |fd| p.fsync(fd))?,
            Operation::Hold(slot, path) => {
                let fd = p.open(self.path(path), OpenFlags::RDWR, 0)?;
                if let Some(old) = self.held[*slot].replace(fd) {
                    p.close(old)?;
                }
            }
            Operation::WriteHeld(slot, offset, len, byte) => {
                write_all(
                    p,
                    self.held[*slot].ok_or(Errno::BADF)?,
                    *offset,
                    *len,
                    *byte,
                )?;
            }
            Operation::ReadHeld(slot) => return read_all(p, self.held[*slot].ok_or(Errno::BADF)?),
            Operation::CloseHeld(slot) => p.close(self.held[*slot].take().ok_or(Errno::BADF)?)?,
            _ => unreachable!("not about data"),
        }
        Ok(Vec::new())
    }
}

fn write_all(p: &Process, fd: Fd, offset: u64, len: usize, byte: u8) -> Result<()> {
    assert_eq!(p.pwrite(fd, &vec![byte; len], offset)?, len, "short write");
    Ok(())
}

fn read_all(p: &Process, fd: Fd) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let mut buf = [0; 10_000];
    loop {
        match p.pread(fd, &mut buf, bytes.len() as u64)? {
            0 => return Ok(bytes),
            count => bytes.extend_from_slice(&buf[..count]),
        }
    }
}

/// Compares the tree below `root` with the model: names, types, attributes, contents.
pub(crate) fn check(process: &Process, root: &str, model: &Model) {
    let mut numbers = std::collections::HashMap::new();
    check_node(process, root, model, 0, &mut numbers);
}

fn check_node(
    p: &Process,
    path: &str,
    model: &Model,
    at: usize,
    numbers: &mut std::collections::HashMap<u64, usize>,
) {
    let node = &model.nodes[at];
    let actual = p
        .lstat(path)
        .unwrap_or_else(|error| panic!("{path}: {error}"));
    assert_eq!(
        *numbers.entry(actual.number.0).or_insert(at),
        at,
        "{path}: two files with one number"
    );
    let file_type = match node.kind {
        Kind::File(_) => FileType::Regular,
        Kind::Directory { .. } => FileType::Directory,
        Kind::Link(_) => FileType::Symlink,
    };
    assert_eq!(
        (
            actual.file_type,
            actual.mode,
            actual.uid,
            actual.gid,
            actual.link_count
        ),
        (file_type, node.mode, node.uid, node.gid, node.links),
        "{path}: type, mode, owner, group, links"
    );
    if let Some(secs) = node.modified {
        assert_eq!(
            actual.modified,
            Timespec::new(secs, 123_456_789),
            "{path}: modification time"
        );
    }
    check_xattrs(p, path, node);
    match &node.kind {
        Kind::Link(target) => assert_eq!(p.readlink(path).unwrap(), target.as_bytes(), "{path}"),
        Kind::File(bytes) => {
            assert_eq!(actual.size_bytes, bytes.len() as u64, "{path}: size");
            let fd = p.open(path, OpenFlags::empty(), 0).unwrap();
            let read = read_all(p, fd).unwrap();
            p.close(fd).unwrap();
            let differs = read.iter().zip(bytes).position(|(read, byte)| read != byte);
            assert!(
                read.len() == bytes.len() && differs.is_none(),
                "{path}: contents differ at {differs:?}"
            );
        }
        Kind::Directory { names, .. } => {
            assert_eq!(
                list(p, path),
                names.keys().cloned().collect::<Vec<_>>(),
                "{path}: names"
            );
            for (name, child) in names {
                check_node(p, &format!("{path}/{name}"), model, *child, numbers);
            }
        }
    }
}

fn check_xattrs(p: &Process, path: &str, node: &Node) {
    let mut xattrs: Vec<_> = p.llistxattr(path).unwrap();
    xattrs.sort();
    assert_eq!(
        xattrs,
        node.xattrs.keys().cloned().collect::<Vec<_>>(),
        "{path}: attributes"
    );
    for (name, value) in &node.xattrs {
        assert_eq!(
            &p.lgetxattr(path, name).unwrap(),
            value,
            "{path}: {}",
            String::from_utf8_lossy(name)
        );
    }
}

fn list(p: &Process, path: &str) -> Vec<String> {
    let fd = p.open(path, OpenFlags::DIRECTORY, 0).unwrap();
    let mut names = Vec::new();
    loop {
        let entries = p.getdents(fd, 7).unwrap();
        if entries.is_empty() {
            break;
        }
        names.extend(
            entries
                .into_iter()
                .map(|entry| String::from_utf8(entry.name).unwrap()),
        );
    }
    p.close(fd).unwrap();
    names.retain(|name| name != "." && name != "..");
    names.sort();
    names
}
