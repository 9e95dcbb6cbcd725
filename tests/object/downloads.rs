//! Downloads onto files of every kind: the kind of the destination stays what it was.

use crate::support::requires;
use crate::support::tools::{command, run, succeed, text};
use std::os::unix::fs::{FileTypeExt, MetadataExt, symlink};
use std::path::PathBuf;
use tempfile::TempDir;

/// An object in a folder, which needs no server.
struct Source {
    folder: TempDir,
    bytes: Vec<u8>,
}

impl Source {
    fn new() -> Self {
        let folder = TempDir::with_prefix("folio-download-").unwrap();
        // Not a multiple of a sector.
        let mut bytes = vec![7; 300_001];
        bytes[100_000..280_000].fill(0);
        std::fs::write(folder.path().join("object"), &bytes).unwrap();
        Self { folder, bytes }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn copy(&self, to: &str) -> std::process::Command {
        let mut copy = command(env!("CARGO_BIN_EXE_folio"));
        copy.arg("cp")
            .arg(format!("file://{}", self.path("object").display()))
            .arg(self.path(to));
        copy
    }

    #[track_caller]
    fn refuses(&self, to: &str, why: &str) {
        let output = self.copy(to).output().unwrap();
        let printed = text(&output);
        assert!(
            !output.status.success() && printed.contains(why),
            "{printed}"
        );
    }
}

#[test]
fn download_follows_links_and_keeps_names() {
    let source = Source::new();
    std::fs::write(source.path("old"), vec![1; 500_000]).unwrap();
    std::fs::hard_link(source.path("old"), source.path("other")).unwrap();
    symlink("old", source.path("link")).unwrap();
    symlink("later", source.path("dangling")).unwrap();
    for (to, file) in [("link", "other"), ("dangling", "later"), ("new", "new")] {
        succeed(&mut source.copy(to));
        assert!(
            std::fs::read(source.path(file)).unwrap() == source.bytes,
            "{to}"
        );
    }
    for link in ["link", "dangling"] {
        assert!(source.path(link).is_symlink(), "{link}");
    }
    let blocks = source.path("new").metadata().unwrap().blocks();
    assert!(blocks * 512 < 300_000, "{blocks}");
}

#[test]
fn download_onto_its_own_source_is_refused() {
    let source = Source::new();
    symlink("object", source.path("link")).unwrap();
    for to in ["object", "link"] {
        source.refuses(to, "source and destination are the same file");
    }
    assert!(std::fs::read(source.path("object")).unwrap() == source.bytes);
}

#[test]
fn download_refuses_fifos_and_sockets() {
    requires!(tool("mkfifo"));
    let source = Source::new();
    run("mkfifo", [source.path("fifo")]);
    source.refuses(
        "fifo",
        "a FIFO: an image is a regular file or a block device",
    );
    assert!(
        source
            .path("fifo")
            .metadata()
            .unwrap()
            .file_type()
            .is_fifo()
    );
    let _socket = std::os::unix::net::UnixListener::bind(source.path("socket")).unwrap();
    source.refuses("socket", "a socket: an image is");
    let kind = source.path("socket").metadata().unwrap().file_type();
    assert!(kind.is_socket());
}

#[test]
fn download_refuses_character_devices() {
    requires!(root, tool("mknod"));
    let source = Source::new();
    let null = source.path("null");
    let words = [null.to_str().unwrap(), "c", "1", "3"];
    run("mknod", words);
    symlink("null", source.path("link")).unwrap();
    for to in ["null", "link"] {
        source.refuses(to, "a character device: an image is");
        assert!(null.metadata().unwrap().file_type().is_char_device());
    }
}

#[test]
fn download_writes_every_byte_of_a_block_device() {
    requires!(root, loop_devices);
    let source = Source::new();
    std::fs::write(source.path("disk"), vec![1; 1 << 20]).unwrap();
    let disk = source.path("disk");
    let shown = run(
        "losetup",
        ["--find".as_ref(), "--show".as_ref(), disk.as_os_str()],
    );
    let device = shown.trim();
    symlink(device, source.path("link")).unwrap();
    let output = source.copy("link").output();
    run("losetup", ["--detach", device]);
    let output = output.unwrap();
    assert!(output.status.success(), "{}", text(&output));
    let written = std::fs::read(&disk).unwrap();
    assert!(written[..300_001] == source.bytes);
}
