//! Small file systems with every kind of structure.

use crate::support::tools::{command, run};
use std::ffi::OsStr;
use std::fmt::Write as _;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// A recipe for mke2fs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Recipe {
    /// For messages.
    pub(crate) name: &'static str,
    size: &'static str,
    options: &'static [&'static str],
}

const fn recipe(
    name: &'static str,
    size: &'static str,
    options: &'static [&'static str],
) -> Recipe {
    Recipe {
        name,
        size,
        options,
    }
}

/// The tested feature sets.
pub(crate) const RECIPES: [Recipe; 12] = [
    recipe(
        "1k-checksums",
        "12M",
        &["-b", "1024", "-O", "metadata_csum,64bit", "-J", "size=1"],
    ),
    recipe(
        "4k-checksums",
        "20M",
        &[
            "-b",
            "4096",
            "-O",
            "metadata_csum,64bit,metadata_csum_seed,orphan_file",
        ],
    ),
    recipe(
        "1k-plain",
        "12M",
        &["-b", "1024", "-O", "^metadata_csum,^64bit,^has_journal"],
    ),
    recipe(
        "4k-plain",
        "20M",
        &["-b", "4096", "-O", "^metadata_csum,64bit,^has_journal"],
    ),
    recipe(
        "inline",
        "12M",
        &[
            "-b",
            "1024",
            "-O",
            "inline_data,^has_journal,^metadata_csum",
            "-I",
            "256",
        ],
    ),
    recipe(
        "inline-checksums",
        "12M",
        &["-b", "1024", "-O", "inline_data,metadata_csum,^has_journal"],
    ),
    recipe(
        "ext3",
        "12M",
        &[
            "-b",
            "1024",
            "-O",
            "^extent,^64bit,^metadata_csum,^flex_bg,^huge_file",
            "-J",
            "size=1",
        ],
    ),
    recipe(
        "ext2-128",
        "12M",
        &[
            "-b",
            "1024",
            "-I",
            "128",
            "-O",
            "^extent,^64bit,^metadata_csum,^has_journal",
        ],
    ),
    recipe(
        "uninit-bg",
        "20M",
        &["-b", "1024", "-O", "uninit_bg,^metadata_csum,^has_journal"],
    ),
    recipe(
        "meta-bg",
        "20M",
        &[
            "-b",
            "1024",
            "-O",
            "meta_bg,^resize_inode,metadata_csum,^has_journal",
        ],
    ),
    recipe(
        "quota",
        "20M",
        &[
            "-b",
            "1024",
            "-O",
            "quota,project,metadata_csum,^has_journal",
        ],
    ),
    recipe(
        "bigalloc",
        "32M",
        &[
            "-b",
            "1024",
            "-C",
            "4096",
            "-O",
            "bigalloc,metadata_csum,^has_journal",
        ],
    ),
];

/// An image in its own folder.
pub(crate) struct Image {
    folder: TempDir,
    /// The image file.
    pub(crate) path: PathBuf,
}

impl Recipe {
    /// Creates the empty file system.
    pub(crate) fn empty(&self) -> Image {
        let folder = tempfile::tempdir().expect("a folder for an image");
        let path = folder.path().join("image");
        let fixed = [
            "-q",
            "-F",
            "-t",
            "ext4",
            "-N",
            "1600",
            "-U",
            "6f6c6966-6f2d-6368-6563-6b2d74657374",
        ];
        let seed = [
            "-E",
            "hash_seed=0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0,lazy_itable_init=0",
        ];
        let arguments = fixed
            .iter()
            .chain(&seed)
            .chain(self.options)
            .map(OsStr::new);
        run(
            "mke2fs",
            arguments.chain([path.as_os_str(), OsStr::new(self.size)]),
        );
        Image { folder, path }
    }

    /// Creates the file system with every kind of structure.
    pub(crate) fn filled(&self) -> Image {
        let image = self.empty();
        let folder = image.folder.path();
        let sources = Sources::new(folder);
        debugfs(&image.path, folder, &sources.script());
        // e2fsck builds directory indexes and repairs link counts and quota, which debugfs omits.
        let repaired = command("e2fsck")
            .arg("-fyD")
            .arg(&image.path)
            .output()
            .expect("e2fsck runs");
        assert!(
            repaired.status.code().is_some_and(|code| code < 4),
            "{}",
            crate::support::tools::text(&repaired)
        );
        image
    }
}

/// Host files that debugfs copies.
struct Sources {
    small: PathBuf,
    empty: PathBuf,
    medium: PathBuf,
    sparse: PathBuf,
    long: PathBuf,
}

impl Sources {
    fn new(folder: &Path) -> Self {
        let file = |name: &str| folder.join(name);
        let (small, empty, medium) = (file("small"), file("empty"), file("medium"));
        std::fs::write(&small, b"a few bytes\n").expect("a source file");
        std::fs::write(&empty, b"").expect("a source file");
        std::fs::write(&medium, vec![0xDA; 150_000]).expect("a source file");
        let make_sparse = |path: &Path, count: u64, step: u64| {
            let out = File::create(path).expect("a source file");
            for i in 0..count {
                out.write_all_at(&[0xDA; 4096], i * step)
                    .expect("a source file");
            }
        };
        let (sparse, long) = (file("sparse"), file("long"));
        make_sparse(&sparse, 12, 3 * 4096);
        make_sparse(&long, 400, 2 * 4096);
        Self {
            small,
            empty,
            medium,
            sparse,
            long,
        }
    }

    /// Returns the commands for debugfs.
    fn script(&self) -> String {
        let mut text = String::new();
        let show = |path: &PathBuf| path.display().to_string();
        let [small, empty, medium, sparse, long] = [
            &self.small,
            &self.empty,
            &self.medium,
            &self.sparse,
            &self.long,
        ]
        .map(show);
        let _ = write!(
            text,
            "write {small} small\nwrite {medium} medium\nwrite {sparse} sparse\nwrite {long} long\n\
             mkdir folder\nmkdir folder/inner\nmkdir folder/inner/most\nwrite {small} folder/inner/file\n\
             symlink short small\nsymlink slow {}\nmknod pipe p\nmknod disk b 8 1\nmknod line c 4 64\n\
             ea_set small user.one value\nea_set medium user.large {}\nea_set medium user.other thing\n\
             ea_set folder trusted.mark yes\nmkdir linear\nmkdir many\nmkdir deep\n",
            "x/".repeat(150),
            "v".repeat(500),
        );
        for i in 0..30 {
            let _ = writeln!(text, "write {empty} linear/name-{i}");
        }
        for i in 0..120 {
            let _ = writeln!(text, "write {empty} many/a-name-of-some-length-{i}");
        }
        for i in 0..500 {
            let _ = writeln!(text, "write {empty} deep/{i}-{}", "n".repeat(200));
        }
        text
    }
}

/// Runs debugfs commands on an image.
pub(crate) fn debugfs(image: &Path, folder: &Path, script: &str) {
    let file = folder.join("script");
    std::fs::write(&file, script).expect("a script");
    run(
        "debugfs",
        [
            OsStr::new("-w"),
            OsStr::new("-f"),
            file.as_os_str(),
            image.as_os_str(),
        ],
    );
}
