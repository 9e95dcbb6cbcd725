//! Requests that change files, described as the system calls that made them.

use super::Server;
use super::observer::{ObservedCall, ObservedKind};
use crate::wire::abi::{
    CopyFileRangeIn, CreateIn, FallocateIn, FsyncIn, InHeader, LinkIn, MkdirIn, MknodIn, Rename2In,
    RenameIn, SetattrIn, WriteIn, set,
};
use crate::wire::op;
use crate::wire::request::Arguments;
use folio::Result;
use std::ops::Range;

/// `FUSE_FSYNC_FDATASYNC`.
const DATA_ONLY: u32 = 1;

impl Server {
    /// Describes a request as a system call; `None` if it changes nothing, or is malformed.
    pub(super) fn described(&self, header: &InHeader, args: Arguments<'_>) -> Option<ObservedCall> {
        Some(ObservedCall {
            text: self.describe(header, args).ok().flatten()?,
            kind: match header.opcode {
                op::WRITE | op::FALLOCATE | op::COPY_FILE_RANGE => ObservedKind::Write,
                op::FSYNC | op::FSYNCDIR => ObservedKind::Sync,
                _ => ObservedKind::Other,
            },
            range: changed_range(header, args),
            file: self.nodes.handle(header.node).ok(),
        })
    }

    fn describe(&self, header: &InHeader, mut args: Arguments<'_>) -> Result<Option<String>> {
        let node = header.node;
        let text = match header.opcode {
            op::WRITE => {
                let write: WriteIn = args.take()?;
                let file = self.quoted(node);
                format!("pwrite({file}, {} bytes at {})", write.size, write.offset)
            }
            op::CREATE => {
                args.take::<CreateIn>()?;
                format!("open({}, O_CREAT)", self.child(node, args.name()?))
            }
            op::MKDIR => {
                args.take::<MkdirIn>()?;
                format!("mkdir({})", self.child(node, args.name()?))
            }
            op::MKNOD => {
                args.take::<MknodIn>()?;
                format!("mknod({})", self.child(node, args.name()?))
            }
            op::SYMLINK => {
                let name = self.child(node, args.name()?);
                format!("symlink({:?}, {name})", lossy(args.name()?))
            }
            op::LINK => {
                let source: LinkIn = args.take()?;
                let name = self.child(node, args.name()?);
                format!("link({}, {name})", self.quoted(source.node))
            }
            op::RENAME | op::RENAME2 => {
                let new_parent = match header.opcode {
                    op::RENAME => args.take::<RenameIn>()?.new_parent,
                    _ => args.take::<Rename2In>()?.new_parent,
                };
                let from = self.child(node, args.name()?);
                format!("rename({from}, {})", self.child(new_parent, args.name()?))
            }
            op::UNLINK => format!("unlink({})", self.child(node, args.name()?)),
            op::RMDIR => format!("rmdir({})", self.child(node, args.name()?)),
            op::SETATTR => attribute_change(&args.take()?, &self.quoted(node)),
            op::FALLOCATE => {
                let range: FallocateIn = args.take()?;
                let file = self.quoted(node);
                format!("fallocate({file}, {} bytes at {})", range.len, range.offset)
            }
            op::COPY_FILE_RANGE => {
                let copy: CopyFileRangeIn = args.take()?;
                let (from, to) = (self.quoted(node), self.quoted(copy.node_out));
                format!("copy_file_range({from}, {to}, {} bytes)", copy.len)
            }
            op::FSYNC => {
                let is_data_only = args.take::<FsyncIn>()?.flags & DATA_ONLY != 0;
                let name = if is_data_only { "fdatasync" } else { "fsync" };
                format!("{name}({})", self.quoted(node))
            }
            op::FSYNCDIR => format!("fsync({})", self.quoted(node)),
            op::SYNCFS => "syncfs()".to_owned(),
            op::SETXATTR => format!("setxattr({})", self.quoted(node)),
            op::REMOVEXATTR => format!("removexattr({})", self.quoted(node)),
            _ => return Ok(None),
        };
        Ok(Some(text))
    }

    /// Returns the path of a node, as last found.
    fn path(&self, node: u64) -> String {
        let mut names = Vec::new();
        let mut at = self.nodes.handle(node).ok();
        while let Some(handle) = at {
            let Some((_, name)) = handle.parent_and_name() else {
                break;
            };
            names.push(lossy(&name));
            at = handle.parent();
        }
        names.reverse();
        format!("/{}", names.join("/"))
    }

    fn quoted(&self, node: u64) -> String {
        format!("{:?}", self.path(node))
    }

    /// Returns the quoted path of a name in a directory.
    fn child(&self, parent: u64, name: &[u8]) -> String {
        let parent = self.path(parent);
        let path = format!("{}/{}", parent.trim_end_matches('/'), lossy(name));
        format!("{path:?}")
    }
}

/// Returns the bytes of a file that a request changes, if it names them.
fn changed_range(header: &InHeader, mut args: Arguments<'_>) -> Option<Range<u64>> {
    let (offset, len_bytes) = match header.opcode {
        op::WRITE => {
            let write: WriteIn = args.take().ok()?;
            (write.offset, u64::from(write.size))
        }
        op::FALLOCATE => {
            let range: FallocateIn = args.take().ok()?;
            (range.offset, range.len)
        }
        _ => return None,
    };
    Some(offset..offset.checked_add(len_bytes)?)
}

fn attribute_change(args: &SetattrIn, file: &str) -> String {
    match args.valid {
        valid if valid & set::SIZE != 0 => format!("truncate({file}, {})", args.size),
        valid if valid & set::MODE != 0 => format!("chmod({file}, {:o})", args.mode & 0o7777),
        valid if valid & (set::UID | set::GID) != 0 => format!("chown({file})"),
        _ => format!("utimensat({file})"),
    }
}

fn lossy(name: &[u8]) -> String {
    String::from_utf8_lossy(name).into_owned()
}
