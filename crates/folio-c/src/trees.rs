//! Trees of files, between the host and mounted file systems.

use crate::argument::{Text, handle};
use crate::call::call;
use crate::constants::*;
use crate::process::FolioProcess;
use folio::{Errno, Error};
use folio_tree::{CopyOptions, copy_in, copy_out};
use std::ffi::c_int;

/// Copies a file, or a directory with everything below it, between the host and what the process
/// sees. `flags` has FOLIO_COPY_IN (`from` is a path of the host) or FOLIO_COPY_OUT (`to` is one).
/// The copy has the path `to`, whose parent exists; if both are directories, the contents of `from`
/// are added to those of `to`. Modes, owners, times, extended attributes and hard links are kept,
/// unless FOLIO_COPY_CONTENT is given, too: then new files have the modes that the umask of the
/// program leaves. Symbolic links are copied as links; on the host, those that were there before
/// are followed. After the failure of one file the copy continues, and the result is the first
/// failure. One that ends the copy, as ENOSPC, is returned instead. folio_last_error() names the
/// file.
#[unsafe(no_mangle)]
pub extern "C" fn folio_copy_tree(
    process: Option<&FolioProcess>,
    from: Text,
    to: Text,
    flags: c_int,
) -> c_int {
    call("copy_tree", || {
        let process = &handle(process)?.process;
        let options = if flags & FOLIO_COPY_CONTENT == 0 {
            CopyOptions::archive()
        } else {
            CopyOptions::content()
        };
        let copied = match flags & !FOLIO_COPY_CONTENT {
            FOLIO_COPY_IN => copy_in(process, from.path()?, to.path()?, &options),
            FOLIO_COPY_OUT => copy_out(process, from.path()?, to.path()?, &options),
            _ => return Err(Error::from(Errno::INVAL)),
        };
        copied?;
        Ok(0)
    })
}
