//! Images and directories mounted through FUSE: every operation by system calls, whole trees, other
//! users, real programs, foreign test suites, external changes.
//!
//! ```text
//!   system calls --> kernel --> folio mount --> image     --> e2fsck, the kernel's own mount
//!                                           --> directory --> the same directory, without folio
//!     operations.rs   each operation once         trees.rs      cp -a, and ways to unmount
//!     users.rs        permissions and ACLs        suites.rs     pjdfstest, fsx
//!     programs.rs     git, cargo, SQLite          coherence.rs  external changes, and their delay
//!     service.rs      readiness, kill -9, no root     overlay.rs    below overlayfs; fstrim
//!     durability.rs   sync(2), and programs under kill -9
//!     direct.rs       O_DIRECT beside cached reads
//!     git_cuts.rs     git, and power cuts         opens.rs        files opened without a request
//!     uring.rs        requests over io_uring      generic.rs    subjects of xfstests
//!     background.rs   --background, --wait, --log, and the helper of mount(8)
//!     handles.rs      open_by_handle_at(2)        control.rs      orders by folio ctl
//!     events.rs       watchers of the mount, and changes on the host
//!     watchers.rs     programs that act on them
//! ```

mod background;
mod coherence;
mod control;
mod direct;
mod durability;
mod events;
mod generic;
mod git_cuts;
mod handles;
mod mount;
mod opens;
mod operations;
mod overlay;
mod powercut;
#[path = "../support/probe.rs"]
mod probe;
mod programs;
mod service;
mod suites;
#[path = "../support/mod.rs"]
mod support;
mod trees;
mod uring;
mod users;
mod watchers;

use mount::FuseMount;
use std::path::{Path, PathBuf};
use support::require::report_skip;
use support::tools::{fsck, mke2fs};
use support::{Manifest, Need, Scope};
use tempfile::TempDir;

/// The kind of file system behind the mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum MountSource {
    /// An image with an empty ext4.
    Image,
    /// An empty directory whose files go through the server.
    Directory,
    /// An empty directory whose files the kernel reads and writes by itself.
    Passthrough,
}

/// A mount of an empty file system.
struct Fixture {
    /// Before the folder, so that nothing is mounted in it when it is removed.
    mount: FuseMount,
    source: MountSource,
    /// The image or the directory.
    behind: PathBuf,
    /// Dropped last.
    folder: TempDir,
}

impl Fixture {
    #[track_caller]
    fn new(options: &str) -> Self {
        Self::on(MountSource::Image, options)
    }

    #[track_caller]
    fn on(source: MountSource, options: &str) -> Self {
        let folder = TempDir::new().unwrap();
        let behind = match source {
            MountSource::Image => empty(folder.path()),
            MountSource::Directory | MountSource::Passthrough => {
                let directory = folder.path().join("behind");
                std::fs::create_dir(&directory).unwrap();
                directory
            }
        };
        let mount = FuseMount::new(&behind, &format!("{options}{}", source.options()));
        Self {
            mount,
            source,
            behind,
            folder,
        }
    }

    /// Creates the fixture if the machine meets the needs; else reports the test as skipped.
    fn try_on(source: MountSource, options: &str, tools: &[&'static str]) -> Option<Self> {
        let tools = tools.iter().map(|tool| Need::Tool(tool));
        match [Need::Root, Need::Fuse]
            .into_iter()
            .chain(source.needs())
            .chain(tools)
            .try_for_each(Need::met)
        {
            Ok(()) => Some(Self::on(source, options)),
            Err(reason) => {
                report_skip(&reason);
                None
            }
        }
    }

    /// Mounts again, after the server has died.
    #[track_caller]
    fn again(self, options: &str) -> Self {
        Self {
            mount: self.mount.again(&self.behind, options),
            ..self
        }
    }

    fn at(&self, name: &str) -> PathBuf {
        self.mount.at(name)
    }

    /// Unmounts, and checks an image with e2fsck; a directory must have what the mount showed.
    #[track_caller]
    fn finish(self) {
        if self.source == MountSource::Image {
            self.mount.unmount();
            return fsck(&self.behind);
        }
        let scope = Scope {
            holes: true,
            below_root: true,
        };
        let seen = Manifest::of(&self.mount.path(), scope);
        self.mount.unmount();
        Manifest::of(&self.behind, scope).assert_same(&seen, "behind the mount, and through it");
    }
}

impl MountSource {
    fn needs(self) -> Vec<Need> {
        match self {
            Self::Image => vec![Need::Tool("mke2fs"), Need::Tool("e2fsck")],
            Self::Directory => Vec::new(),
            Self::Passthrough => vec![Need::Linux(6, 9)],
        }
    }

    fn options(self) -> &'static str {
        match self {
            Self::Image => "",
            Self::Directory => ",passthrough=off",
            Self::Passthrough => ",passthrough=on",
        }
    }
}

/// Tests a function with a fixture of each source, with `-o` options and the programs it needs.
macro_rules! for_each_source {
    ($($name:ident: $options:literal $(, $tool:literal)*;)+) => {
        $crate::for_each_source!(@on image Image: $($name: $options $(, $tool)*;)+);
        $crate::for_each_source!(@on directory Directory: $($name: $options $(, $tool)*;)+);
        $crate::for_each_source!(@on passthrough Passthrough: $($name: $options $(, $tool)*;)+);
    };
    (@on $module:ident $source:ident: $($name:ident: $options:literal $(, $tool:literal)*;)+) => {
        mod $module {
            $(
                #[test]
                fn $name() {
                    if let Some(fixture) = $crate::Fixture::try_on($crate::MountSource::$source, $options, &[$($tool),*]) {
                        super::$name(fixture);
                    }
                }
            )+
        }
    };
}
pub(crate) use for_each_source;

fn empty(folder: &Path) -> PathBuf {
    let image = folder.join("disk.img");
    mke2fs(&image, "512M", &["-b", "4096"]);
    image
}
