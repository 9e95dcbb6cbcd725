//! Calls on extended attributes. Without a path the file is a descriptor.

use super::files::done;
use super::request::Request;
use crate::shared::calls::Call;
use folio::Process;
use folio::base::{Errno, Result};
use folio::vfs::XattrFlags;

/// Makes a call on extended attributes.
pub(super) fn serve(process: &Process, request: &Request<'_>, output: &mut Vec<u8>) -> Result<i64> {
    let mut parts = request.parts();
    let path = parts.path()?;
    let is_fd = path.as_os_str().is_empty();
    let fd = || request.fd(0);
    let follows = request.arguments[2] != 0;
    match request.call {
        Call::GetAttribute => {
            let name = parts.text()?;
            let value = match (is_fd, follows) {
                (true, _) => process.fgetxattr(fd()?, name)?,
                (_, true) => process.getxattr(path, name)?,
                (_, false) => process.lgetxattr(path, name)?,
            };
            output.extend_from_slice(&value);
            sized(request, output)
        }
        Call::SetAttribute => {
            let (name, value) = (parts.text()?, parts.rest());
            let flags = XattrFlags::from_bits(request.word(1)).ok_or(Errno::INVAL)?;
            let set = match (is_fd, follows) {
                (true, _) => process.fsetxattr(fd()?, name, value, flags),
                (_, true) => process.setxattr(path, name, value, flags),
                (_, false) => process.lsetxattr(path, name, value, flags),
            };
            set.map(done)
        }
        Call::ListAttributes => {
            let names = match (is_fd, follows) {
                (true, _) => process.flistxattr(fd()?)?,
                (_, true) => process.listxattr(path)?,
                (_, false) => process.llistxattr(path)?,
            };
            for name in names {
                output.extend_from_slice(&name);
                output.push(0);
            }
            sized(request, output)
        }
        Call::RemoveAttribute => {
            let name = parts.text()?;
            let removed = match (is_fd, follows) {
                (true, _) => process.fremovexattr(fd()?, name),
                (_, true) => process.removexattr(path, name),
                (_, false) => process.lremovexattr(path, name),
            };
            removed.map(done)
        }
        _ => Err(Errno::NOSYS.into()),
    }
}

/// Returns the size of an output; ERANGE if the caller's buffer is smaller, unless it asks for the
/// size with a buffer of 0 bytes.
fn sized(request: &Request<'_>, output: &mut Vec<u8>) -> Result<i64> {
    let len = output.len();
    match request.arguments[1] {
        0 => output.clear(),
        size if size < len as u64 => return Err(Errno::RANGE.into()),
        _ => {}
    }
    Ok(len as i64)
}
