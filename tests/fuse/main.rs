//! Images mounted through FUSE: every operation by calls of the host, whole trees, other users, foreign suites.
//!
//! ```text
//!   calls of the host --> kernel --> folio mount --> image --> e2fsck, the kernel's own mount
//!     operations.rs   each operation once         trees.rs    cp -a, and who unmounts how
//!     users.rs        permissions and ACLs        suites.rs   pjdfstest, fsx
//! ```

mod mount;
mod operations;
mod suites;
#[path = "../support/mod.rs"]
mod support;
mod trees;
mod users;

use mount::FuseMount;
use std::path::{Path, PathBuf};
use support::tools::{fsck, mke2fs};
use tempfile::TempDir;

/// An image with an empty ext4, and a mount of it.
struct Bench {
    /// Before the folder, so that nothing is mounted when that goes.
    mount: FuseMount,
    image: PathBuf,
    /// Last.
    folder: TempDir,
}

impl Bench {
    #[track_caller]
    fn new(words: &str) -> Self {
        let folder = TempDir::new().unwrap();
        let image = empty(folder.path());
        Self { mount: FuseMount::new(&image, words), image, folder }
    }

    fn at(&self, name: &str) -> PathBuf {
        self.mount.at(name)
    }

    /// Unmounts, and has e2fsck look.
    #[track_caller]
    fn finish(self) {
        self.mount.unmount();
        fsck(&self.image);
    }
}

fn empty(folder: &Path) -> PathBuf {
    let image = folder.join("disk.img");
    mke2fs(&image, "512M", &["-b", "4096"]);
    image
}
