//! Images that stay open while they are forked, snapshotted, resized and compacted.

mod compact;
mod fork;
mod killed;
mod reflink;
mod writers;

use crate::support::tools::{command, qemu_check, succeed};
use folio::block::{LiveImage, OpenOptions, open};
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// A folder with an open image of [`writers::LEN_BYTES`] bytes in it.
struct Scene {
    folder: TempDir,
    image: LiveImage,
}

impl Scene {
    /// Creates the image with qemu-img's options.
    fn new(options: &str) -> Self {
        let folder = TempDir::new().unwrap();
        let size = writers::LEN_BYTES.to_string();
        let line = [
            "create",
            "-q",
            "-f",
            "qcow2",
            "-o",
            options,
            "disk.qcow2",
            &size,
        ];
        succeed(command("qemu-img").args(line).current_dir(&folder));
        Self::open(folder, &OpenOptions::default())
    }

    fn open(folder: TempDir, options: &OpenOptions) -> Self {
        let image = LiveImage::open(folder.path().join("disk.qcow2"), options).unwrap();
        Self { folder, image }
    }

    fn at(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Closes the image, and asserts that qemu-img finds every file correct.
    fn close(self) -> TempDir {
        drop(self.image);
        for entry in std::fs::read_dir(self.folder.path()).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_str().unwrap();
            assert!(!name.starts_with(".folio-"), "{name} was left");
            if name.ends_with(".qcow2") {
                qemu_check(&path);
            }
        }
        self.folder
    }
}

/// Returns the disk's bytes as Folio reads them.
fn content(path: &Path) -> Vec<u8> {
    let options = OpenOptions {
        read_only: true,
        ..OpenOptions::default()
    };
    let device = open(path, &options).unwrap();
    let mut bytes = vec![0xaa; device.len_bytes() as usize];
    device.read_at(&mut bytes, 0).unwrap();
    bytes
}

/// Asserts that QEMU reads these bytes.
#[track_caller]
fn assert_qemu_reads(path: &Path, bytes: &[u8]) {
    let raw = path.with_extension("read");
    crate::support::tools::to_raw(path, &raw);
    assert!(std::fs::read(&raw).unwrap() == bytes, "{}", path.display());
    std::fs::remove_file(raw).unwrap();
}

fn names(paths: &[PathBuf]) -> Vec<&str> {
    let names = paths.iter().map(|path| path.file_name().unwrap());
    names.map(|name| name.to_str().unwrap()).collect()
}
