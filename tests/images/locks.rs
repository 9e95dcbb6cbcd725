//! A running QEMU and Folio keep away from each other's images.

use crate::support::requires;
use crate::support::tools::command;
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
        command.args(options).arg(path).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        // It answers once the image is open.
        use std::io::Write;
        child.stdin.as_mut().unwrap().write_all(b"length\n").unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
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
        let read_only = OpenOptions { read_only: true, format: Some(format), ..OpenOptions::default() };
        let writing = OpenOptions { format: Some(format), ..OpenOptions::default() };
        let qemu = Qemu::new(&path, &["-f", name]);
        for options in [&read_only, &writing] {
            let error = open(&path, options).err().expect("QEMU writes it");
            assert!(error.to_string().contains("is in use by another process"), "{error}");
        }
        drop(qemu);
        let qemu = Qemu::new(&path, &["-r", "-f", name]);
        // A QEMU that reads a raw image bears writers; one that reads qcow2 does not.
        assert_eq!(open(&path, &writing).is_err(), format == ImageFormat::Qcow2, "QEMU reads it");
        drop(open(&path, &read_only).unwrap());
        drop(qemu);
        // And the other way round.
        let tries = |arguments: &[&str]| {
            let mut command = command("qemu-io");
            command.args(arguments).args(["-f", name, "-c", "length"]).arg(&path).output().unwrap()
        };
        let device = open(&path, &writing).unwrap();
        assert!(!tries(&[]).status.success(), "a second writer");
        assert_eq!(tries(&["-r"]).status.success(), format == ImageFormat::Raw, "a reader beside the writer");
        drop(device);
        let device = open(&path, &read_only).unwrap();
        assert!(!tries(&[]).status.success(), "a writer beside the reader");
        assert!(tries(&["-r"]).status.success(), "a second reader");
        drop(device);
        assert!(tries(&[]).status.success());
    }
}
