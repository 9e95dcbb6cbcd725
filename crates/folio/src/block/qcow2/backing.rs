//! Files that an image names, above all what it is a difference to: found as far as the caller
//! allows.

use super::super::image::{BackingPolicy, Chain};
use crate::base::{Errno, Error, Result};
use std::path::{Path, PathBuf};

/// Longest chain of backing files.
const DEPTH_MAX: usize = 64;

/// The path of the file `name` of the image at `image`, its `what`, if `chain` allows it to be
/// opened.
///
/// Errors: EPERM if the policy forbids it, EOPNOTSUPP for a name that is no path, ELOOP for a chain
/// too long.
pub(super) fn resolve(image: &Path, what: &str, name: &str, chain: &Chain) -> Result<PathBuf> {
    let place = |error: Error| error.at(format!("{what} {name:?}"));
    if chain.depth() >= DEPTH_MAX {
        return Err(place(Error::new(
            Errno::LOOP,
            "the chain of backing files is too long",
        )));
    }
    // QEMU takes "file:" for a path, "json:" and "nbd:" and others for what they say.
    let path = match name.split_once(':') {
        Some(("file", path)) => path,
        Some((protocol, _)) if !protocol.contains('/') => {
            return Err(place(Error::unsupported(format!("protocol {protocol:?}"))));
        }
        _ => name,
    };
    let folder = match image.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    let path = folder.join(path);
    let (allowed, why) = match chain.policy() {
        BackingPolicy::Anywhere => return Ok(path),
        BackingPolicy::Refuse => {
            return Err(place(Error::new(
                Errno::PERM,
                format!("{what}s are not allowed here"),
            )));
        }
        BackingPolicy::Beside => (
            folder,
            "lies outside the image's folder, and files there are opened only if allowed",
        ),
        BackingPolicy::Within(allowed) => (
            allowed.as_path(),
            "lies outside the folder that backing files may be opened in",
        ),
    };
    // Both with symbolic links followed: a link beside the image leads nowhere else.
    let real = |path: &Path| {
        path.canonicalize()
            .map_err(|error| place(Error::io("open", error)))
    };
    let (real_allowed, real_path) = (real(allowed)?, real(&path)?);
    if !real_path.starts_with(&real_allowed) {
        return Err(place(Error::new(Errno::PERM, why)));
    }
    // A device node is no file of this folder, wherever the node lies.
    if !std::fs::metadata(&real_path).is_ok_and(|found| found.is_file()) {
        let why = "is no regular file, and anything else is opened only if allowed";
        return Err(place(Error::new(Errno::PERM, why)));
    }
    Ok(real_path)
}
