//! Image locks between a running QEMU and Folio.

use crate::support::requires;
use crate::support::tools::{command, succeed};
use folio::block::{ImageFormat, OpenOptions, create, open};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use tempfile::TempDir;

/// A qemu-io process that has the image open and waits for commands.
struct Qemu(Child);

impl Qemu {
    fn new(path: &Path, options: &[&str]) -> Self {
        let mut command = command("qemu-io");
        command
            .args(options)
            .arg(path)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        // It prints the length once the image is open.
        use std::io::Write;
        child
            .stdin
            .as_mut()
            .unwrap()
            .write_all(b"length\n")
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap())
            .read_line(&mut line)
            .unwrap();
        assert!(line.contains("MiB"), "{line}");
        Self(child)
    }
}

impl Drop for Qemu {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn running_qemu_excludes_writers() {
    requires!(tool("qemu-io"), tool("qemu-img"));
    let folder = TempDir::new().unwrap();
    for (format, name) in [(ImageFormat::Raw, "raw"), (ImageFormat::Qcow2, "qcow2")] {
        let path = folder.path().join(name);
        drop(create(&path, format, 1 << 20).unwrap());
        let read_only = OpenOptions {
            read_only: true,
            format: Some(format),
            ..OpenOptions::default()
        };
        let writing = OpenOptions {
            format: Some(format),
            ..OpenOptions::default()
        };
        let qemu = Qemu::new(&path, &["-f", name]);
        for options in [&read_only, &writing] {
            let error = open(&path, options).err().expect("QEMU writes it");
            assert!(
                error.to_string().contains("is in use by another process"),
                "{error}"
            );
        }
        drop(qemu);
        let qemu = Qemu::new(&path, &["-r", "-f", name]);
        // A QEMU that reads a raw image allows writers; one that reads qcow2 does not.
        assert_eq!(
            open(&path, &writing).is_err(),
            format == ImageFormat::Qcow2,
            "QEMU reads it"
        );
        drop(open(&path, &read_only).unwrap());
        drop(qemu);
        // The reverse: Folio has the image open.
        let tries = |arguments: &[&str]| {
            let mut command = command("qemu-io");
            command
                .args(arguments)
                .args(["-f", name, "-c", "length"])
                .arg(&path)
                .output()
                .unwrap()
        };
        let device = open(&path, &writing).unwrap();
        assert!(!tries(&[]).status.success(), "a second writer");
        assert_eq!(
            tries(&["-r"]).status.success(),
            format == ImageFormat::Raw,
            "a reader beside the writer"
        );
        drop(device);
        let device = open(&path, &read_only).unwrap();
        assert!(!tries(&[]).status.success(), "a writer beside the reader");
        assert!(tries(&["-r"]).status.success(), "a second reader");
        drop(device);
        assert!(tries(&[]).status.success());
    }
}

/// A base of a format in a folder, with two overlays on it.
struct Overlays {
    folder: TempDir,
    format: ImageFormat,
    base_read: OpenOptions,
    base_write: OpenOptions,
    top: OpenOptions,
}

impl Overlays {
    fn new(format: ImageFormat) -> Self {
        let folder = TempDir::new().unwrap();
        drop(create(folder.path().join("base"), format, 1 << 20).unwrap());
        for top in ["one", "two"] {
            let line = format!("create -f qcow2 -b base -F {format} {top}");
            succeed(
                command("qemu-img")
                    .args(line.split(' '))
                    .current_dir(folder.path()),
            );
        }
        let base_write = OpenOptions {
            format: Some(format),
            ..OpenOptions::default()
        };
        Self {
            folder,
            format,
            base_read: OpenOptions {
                read_only: true,
                ..base_write.clone()
            },
            base_write,
            top: OpenOptions::default(),
        }
    }

    fn at(&self, file: &str) -> PathBuf {
        self.folder.path().join(file)
    }

    /// An open fails because this process or another one has the file open.
    #[track_caller]
    fn assert_busy(&self, file: &str, options: &OpenOptions) {
        let error = open(self.at(file), options).err().expect("it is in use");
        assert!(error.to_string().contains("is in use by "), "{error}");
    }

    /// Whether qemu-io opens and reads a file.
    fn qemu_reads(&self, file: &str, arguments: &[&str]) -> bool {
        let output = command("qemu-io")
            .args(arguments)
            .args(["-c", "read 0 512"])
            .arg(self.at(file))
            .output()
            .unwrap();
        output.status.success()
    }

    /// Two overlays open in Folio: QEMU and Folio may read the base only.
    fn open_here(&self) {
        let name = self.format.name();
        let devices = [
            open(self.at("one"), &self.top).unwrap(),
            open(self.at("two"), &self.top).unwrap(),
        ];
        devices[0].write_at(&[1; 512], 0).unwrap();
        self.assert_busy("base", &self.base_write);
        self.assert_busy("one", &self.top);
        drop(open(self.at("base"), &self.base_read).unwrap());
        assert!(
            !self.qemu_reads("base", &["-f", name]),
            "QEMU opens the backing file for writing"
        );
        assert!(
            self.qemu_reads("base", &["-r", "-f", name]),
            "QEMU cannot read the backing file"
        );
        let commit = command("qemu-img")
            .args(["commit", "two"])
            .current_dir(self.folder.path())
            .output()
            .unwrap();
        assert!(
            !commit.status.success(),
            "QEMU commits into the backing file"
        );
    }

    /// One overlay open in QEMU: Folio opens the other.
    fn open_in_qemu(&self) {
        let running = Qemu::new(&self.at("one"), &["-f", "qcow2"]);
        self.assert_busy("one", &self.top);
        // QEMU itself allows writers of a raw file that it reads.
        assert_eq!(
            open(self.at("base"), &self.base_write).is_err(),
            self.format == ImageFormat::Qcow2
        );
        drop(open(self.at("base"), &self.base_read).unwrap());
        drop(open(self.at("two"), &self.top).unwrap());
        drop(running);
    }

    /// The base open for writing: no overlay on it may be opened.
    fn open_base_for_writing(&self) {
        let device = open(self.at("base"), &self.base_write).unwrap();
        self.assert_busy("one", &self.top);
        self.assert_busy(
            "one",
            &OpenOptions {
                read_only: true,
                ..OpenOptions::default()
            },
        );
        assert_eq!(
            self.qemu_reads("one", &["-f", "qcow2"]),
            self.format == ImageFormat::Raw,
            "QEMU opens an overlay on a base that Folio writes"
        );
        drop(device);
        assert!(self.qemu_reads("one", &["-f", "qcow2"]));
    }
}

/// The backing file of an open overlay may be read by any process, and written by none.
#[test]
fn backing_file_of_open_overlay_is_not_written() {
    requires!(tool("qemu-io"), tool("qemu-img"));
    for format in ImageFormat::ALL {
        let overlays = Overlays::new(format);
        overlays.open_here();
        overlays.open_in_qemu();
        overlays.open_base_for_writing();
    }
}
