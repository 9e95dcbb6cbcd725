//! A running QEMU and Folio keep away from each other's images.

use crate::support::requires;
use crate::support::tools::{command, succeed};
use folio::block::{ImageFormat, OpenOptions, create, open};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Stdio};
use tempfile::TempDir;

/// A qemu-io that has the image open and waits for commands.
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
        // It answers once the image is open.
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
fn a_running_qemu_excludes_writers() {
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
        // A QEMU that reads a raw image bears writers; one that reads qcow2 does not.
        assert_eq!(
            open(&path, &writing).is_err(),
            format == ImageFormat::Qcow2,
            "QEMU reads it"
        );
        drop(open(&path, &read_only).unwrap());
        drop(qemu);
        // And the other way round.
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

/// What an open overlay stands on is read, and no more than read, whoever else comes.
#[test]
fn backing_files_of_open_images_are_not_written() {
    requires!(tool("qemu-io"), tool("qemu-img"));
    for (format, name) in [(ImageFormat::Raw, "raw"), (ImageFormat::Qcow2, "qcow2")] {
        let folder = TempDir::new().unwrap();
        let at = |file: &str| folder.path().join(file);
        drop(create(at("base"), format, 1 << 20).unwrap());
        for top in ["one", "two"] {
            let line = format!("create -f qcow2 -b base -F {name} {top}");
            succeed(
                command("qemu-img")
                    .args(line.split(' '))
                    .current_dir(folder.path()),
            );
        }
        let base_read = OpenOptions {
            read_only: true,
            format: Some(format),
            ..OpenOptions::default()
        };
        let base_write = OpenOptions {
            format: Some(format),
            ..OpenOptions::default()
        };
        let top = OpenOptions::default();
        let is_refused = |path: &Path, options: &OpenOptions| {
            let error = open(path, options).err().expect("it is in use");
            assert!(
                error.to_string().contains("is in use by another process"),
                "{error}"
            );
        };
        let qemu = |file: &str, arguments: &[&str]| {
            let mut command = command("qemu-io");
            let output = command
                .args(arguments)
                .args(["-c", "read 0 512"])
                .arg(at(file))
                .output()
                .unwrap();
            output.status.success()
        };
        // Two overlays of ours on one base.
        let devices = [
            open(at("one"), &top).unwrap(),
            open(at("two"), &top).unwrap(),
        ];
        devices[0].write_at(&[1; 512], 0).unwrap();
        is_refused(&at("base"), &base_write);
        is_refused(&at("one"), &top);
        drop(open(at("base"), &base_read).unwrap());
        assert!(!qemu("base", &["-f", name]), "QEMU writes our backing file");
        assert!(qemu("base", &["-r", "-f", name]), "QEMU reads it beside us");
        let commit = command("qemu-img")
            .args(["commit", "two"])
            .current_dir(folder.path())
            .output()
            .unwrap();
        assert!(
            !commit.status.success(),
            "QEMU commits into our backing file"
        );
        drop(devices);
        // One of QEMU's, and one of ours on the same base.
        let running = Qemu::new(&at("one"), &["-f", "qcow2"]);
        is_refused(&at("one"), &top);
        // QEMU itself bears writers of a raw file that it reads.
        assert_eq!(
            open(at("base"), &base_write).is_err(),
            format == ImageFormat::Qcow2
        );
        drop(open(at("base"), &base_read).unwrap());
        drop(open(at("two"), &top).unwrap());
        drop(running);
        // The base is written: nobody may stand on it.
        let device = open(at("base"), &base_write).unwrap();
        is_refused(&at("one"), &top);
        is_refused(
            &at("one"),
            &OpenOptions {
                read_only: true,
                ..OpenOptions::default()
            },
        );
        assert_eq!(
            qemu("one", &["-f", "qcow2"]),
            format == ImageFormat::Raw,
            "QEMU stands on a file that we write"
        );
        drop(device);
        assert!(qemu("one", &["-f", "qcow2"]));
    }
}
