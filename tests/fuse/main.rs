//! Images and directories mounted through FUSE: every operation by calls of the host, whole trees,
//! other users, real programs, foreign suites, and changes by others.
//!
//! ```text
//!   calls of the host --> kernel --> folio mount --> image     --> e2fsck, the kernel's own mount
//!                                               --> directory --> the same directory, without folio
//!     operations.rs   each operation once         trees.rs      cp -a, and who unmounts how
//!     users.rs        permissions and ACLs        suites.rs     pjdfstest, fsx
//!     programs.rs     git, cargo, SQLite          coherence.rs  what others change is seen, and when
//!     manners.rs      readiness, kill -9, no root
//! ```

mod coherence;
mod manners;
mod mount;
mod operations;
#[path = "../support/probe.rs"]
mod probe;
mod programs;
mod suites;
#[path = "../support/mod.rs"]
mod support;
mod trees;
mod users;

use mount::FuseMount;
use std::path::{Path, PathBuf};
use support::require::report_skip;
use support::tools::{fsck, mke2fs};
use support::{Manifest, Need, Scope};
use tempfile::TempDir;

/// What is mounted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ground {
    /// An image with an empty ext4.
    Image,
    /// An empty directory, whose files go through the server.
    Directory,
    /// An empty directory, whose files the kernel reads and writes by itself.
    Passthrough,
}

/// A mount of something that was empty.
struct Bench {
    /// Before the folder, so that nothing is mounted when that goes.
    mount: FuseMount,
    ground: Ground,
    /// The image or the directory.
    behind: PathBuf,
    /// Last.
    folder: TempDir,
}

impl Bench {
    #[track_caller]
    fn new(words: &str) -> Self {
        Self::on(Ground::Image, words)
    }

    #[track_caller]
    fn on(ground: Ground, words: &str) -> Self {
        let folder = TempDir::new().unwrap();
        let behind = match ground {
            Ground::Image => empty(folder.path()),
            Ground::Directory | Ground::Passthrough => {
                let directory = folder.path().join("behind");
                std::fs::create_dir(&directory).unwrap();
                directory
            }
        };
        let mount = FuseMount::new(&behind, &format!("{words}{}", ground.words()));
        Self {
            mount,
            ground,
            behind,
            folder,
        }
    }

    /// The same, if the machine has what that takes; else the test is reported as skipped.
    fn try_on(ground: Ground, words: &str, tools: &[&'static str]) -> Option<Self> {
        let tools = tools.iter().map(|tool| Need::Tool(tool));
        match [Need::Root, Need::Fuse]
            .into_iter()
            .chain(ground.needs())
            .chain(tools)
            .try_for_each(Need::met)
        {
            Ok(()) => Some(Self::on(ground, words)),
            Err(reason) => {
                report_skip(&reason);
                None
            }
        }
    }

    fn at(&self, name: &str) -> PathBuf {
        self.mount.at(name)
    }

    /// Unmounts, and has e2fsck look; of a directory the mount showed what is there.
    #[track_caller]
    fn finish(self) {
        if self.ground == Ground::Image {
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

impl Ground {
    fn needs(self) -> Vec<Need> {
        match self {
            Self::Image => vec![Need::Tool("mke2fs"), Need::Tool("e2fsck")],
            Self::Directory => Vec::new(),
            Self::Passthrough => vec![Need::Linux(6, 9)],
        }
    }

    fn words(self) -> &'static str {
        match self {
            Self::Image => "",
            Self::Directory => ",passthrough=off",
            Self::Passthrough => ",passthrough=on",
        }
    }
}

/// Tests on every ground of functions that take a bench, with the words of `-o` and the programs
/// that are needed.
macro_rules! everywhere {
    ($($name:ident: $words:literal $(, $tool:literal)*;)+) => {
        $crate::everywhere!(@on on_an_image Image: $($name: $words $(, $tool)*;)+);
        $crate::everywhere!(@on on_a_directory Directory: $($name: $words $(, $tool)*;)+);
        $crate::everywhere!(@on passed_through Passthrough: $($name: $words $(, $tool)*;)+);
    };
    (@on $module:ident $ground:ident: $($name:ident: $words:literal $(, $tool:literal)*;)+) => {
        mod $module {
            $(
                #[test]
                fn $name() {
                    if let Some(bench) = $crate::Bench::try_on($crate::Ground::$ground, $words, &[$($tool),*]) {
                        super::$name(bench);
                    }
                }
            )+
        }
    };
}
pub(crate) use everywhere;

fn empty(folder: &Path) -> PathBuf {
    let image = folder.join("disk.img");
    mke2fs(&image, "512M", &["-b", "4096"]);
    image
}
