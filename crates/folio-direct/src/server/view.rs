//! The tree that programs see: the image, and the host around it or inside it.

use folio::base::{Errno, Result};
use folio::vfs::{HostNames, MountOptions};
use folio::{Detail, Kernel, Process};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Folders of the host that programs see with the image as their root.
const HOST_FOLDERS: [&str; 3] = ["proc", "dev", "sys"];

/// The place of the image in the tree that programs see.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum View {
    /// The image is `/`, with /proc, /dev and /sys of the host, and a new /tmp.
    Root,
    /// The host's tree, with the image at this directory: an absolute path without links.
    At(PathBuf),
}

impl View {
    /// Gives the names around or inside the mounted image to the host.
    pub(super) fn join_host(&self, kernel: &Arc<Kernel>) -> Result<()> {
        match self {
            Self::At(_) => kernel.set_host_names("/", HostNames::Rest),
            Self::Root => {
                let options = MountOptions::parse("mode=1777")?;
                match kernel.mount_tmpfs("/tmp", &options) {
                    // An image without the folder has no temporary files.
                    Err(error) if matches!(error.errno(), Errno::NOENT | Errno::NOTDIR) => {}
                    mounted => mounted?,
                }
                let folders = HOST_FOLDERS.map(|name| name.as_bytes().to_vec());
                kernel.set_host_names("/", HostNames::InRoot(folders.to_vec()))
            }
        }
    }

    /// Unmounts what [`View::join_host`] has mounted on the image.
    pub(super) fn leave_host(&self, kernel: &Arc<Kernel>) {
        if *self == Self::Root {
            // An image without the folder has nothing there.
            let _ = kernel.unmount("/tmp");
        }
    }

    /// Returns the directory to mount the image on.
    pub fn target(&self) -> &Path {
        match self {
            Self::Root => Path::new("/"),
            Self::At(target) => target,
        }
    }

    /// Returns the prefixes of the host inside the image, separated by colons.
    pub(super) fn host_prefixes(&self) -> String {
        match self {
            Self::Root => HOST_FOLDERS.map(|name| format!("/{name}")).join(":"),
            Self::At(_) => String::new(),
        }
    }
}

/// Makes a directory of the view the working directory. If it is one of the host, returns its path.
pub(super) fn change_directory(process: &Process, path: &Path) -> Result<Option<PathBuf>> {
    let changed = process.chdir(path);
    match &changed {
        Err(error) => match error.detail() {
            Some(Detail::Elsewhere { path }) => Ok(Some(OsStr::from_bytes(path).into())),
            _ => changed.map(|()| None),
        },
        Ok(()) => Ok(None),
    }
}
