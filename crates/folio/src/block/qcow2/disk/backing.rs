//! Paths of the files that an image names: its backing file and its external data file, if the
//! policy allows them.

use crate::base::{Detail, Errno, Error, Result};
use crate::block::Device;
use crate::block::file::{remote, resolve_remote};
use crate::block::image::{BackingPolicy, Chain};
use std::borrow::Cow;
use std::path::{Path, PathBuf};

/// Largest number of images in a chain.
pub(crate) const DEPTH_MAX: usize = 64;

/// Returns the path of the file `name` that the image at `image` names as its `what`.
///
/// # Errors
///
/// EPERM if the chain's policy forbids it, EOPNOTSUPP for a name with a protocol, ELOOP for a chain
/// that is too long.
pub(crate) fn resolve(image: &Path, what: &str, name: &str, chain: &Chain) -> Result<PathBuf> {
    let at_name = |error: Error| error.at(format!("{what} {name:?}"));
    if chain.depth() >= DEPTH_MAX {
        return Err(at_name(Error::new(
            Errno::LOOP,
            "the chain of backing files is too long",
        )));
    }
    if let Some(url) = resolve_remote(image, name) {
        let url = url.map_err(at_name)?;
        return check_remote(image, &url, chain)
            .map(|()| url)
            .map_err(at_name);
    }
    // As in QEMU: "file:" is a path; "json:", "nbd:" and so on are protocols.
    let path = match name.split_once(':') {
        Some(("file", path)) => path,
        Some((protocol, _)) if !protocol.contains('/') => {
            return Err(at_name(Error::unsupported(format!(
                "protocol {protocol:?}"
            ))));
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
            return Err(at_name(refused(format!("{what}s are not allowed here"))));
        }
        BackingPolicy::Beside => (
            folder,
            "is outside the image's folder, the only one that the backing policy allows",
        ),
        BackingPolicy::Within(allowed) => (
            allowed.as_path(),
            "is outside the folder that the backing policy allows",
        ),
    };
    // Both with symbolic links resolved: a link beside the image must not point outside.
    let real = |path: &Path| {
        path.canonicalize()
            .map_err(|error| at_name(Error::io("open", error)))
    };
    let (real_allowed, real_path) = (real(allowed)?, real(&path)?);
    if !real_path.starts_with(&real_allowed) {
        return Err(at_name(refused(why)));
    }
    // A device node gives access to a device outside, wherever the node is. The open checks it
    // again, and follows no links ([`Chain::open_file`]).
    if !std::fs::metadata(&real_path).is_ok_and(|found| found.is_file()) {
        let why = "is not a regular file, as the backing policy requires";
        return Err(at_name(refused(why)));
    }
    Ok(real_path)
}

/// Compares the version of a backing file with the recorded one.
///
/// # Errors
///
/// ESTALE for another version.
pub(crate) fn check_version(recorded: Option<&str>, backing: &dyn Device) -> Result<()> {
    let (Some(recorded), Some(found)) = (recorded, backing.version()) else {
        return Ok(());
    };
    if recorded == found {
        return Ok(());
    }
    let why = format!(
        "the backing file has changed since this image was written: its version was {recorded}, \
         and is {found}; both together would be a mixture (if the content is the same: folio image \
         rebase -u -b BACKING -F FORMAT IMAGE)"
    );
    Err(Error::new(Errno::STALE, why).at("backing file"))
}

/// Checks the URL of a file that the image at `image` names.
///
/// # Errors
///
/// EPERM if the chain's policy forbids it.
fn check_remote(image: &Path, url: &Path, chain: &Chain) -> Result<()> {
    let is_allowed = match chain.policy() {
        BackingPolicy::Anywhere => true,
        BackingPolicy::Refuse => false,
        // URLs have no symbolic links, and `..` is resolved.
        BackingPolicy::Within(allowed) => url.starts_with(allowed),
        BackingPolicy::Beside => remote(url).is_some_and(|file| file.is_allowed(image)),
    };
    if is_allowed {
        return Ok(());
    }
    let why = format!(
        "the backing policy does not allow {}: allow it with --backing-url if the image is \
         trustworthy",
        url.display()
    );
    Err(refused(why))
}

fn refused(why: impl Into<Cow<'static, str>>) -> Error {
    Error::new(Errno::PERM, why).about(Detail::BackingRefused)
}
