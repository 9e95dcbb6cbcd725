//! O_DIRECT: direct writes beside readers of the page cache, and reads that bypass it.

use crate::support::tools::command;
use crate::{Fixture, MountSource, for_each_source};
use rustix::fs::{AtFlags, CWD, Timespec, Timestamps};
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};

/// Bytes of each direct write.
const LEN: usize = 640 << 10;

/// qemu-io with O_DIRECT and asynchronous I/O of the kernel.
struct DirectWriter {
    process: Child,
    commands: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl DirectWriter {
    fn new(file: &Path, engine: &str) -> Self {
        let mut qemu_io = command("qemu-io");
        qemu_io.args(["-n", "-i", engine, "-f", "raw"]).arg(file);
        let mut process = qemu_io
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let commands = process.stdin.take().unwrap();
        let output = BufReader::new(process.stdout.take().unwrap());
        Self {
            process,
            commands,
            output,
        }
    }

    /// Writes `byte` to the whole file, and waits for the completion.
    fn write(&mut self, byte: u8) {
        writeln!(self.commands, "write -P {byte} 0 {LEN}").unwrap();
        let mut line = String::new();
        while !line.contains("ops") {
            line.clear();
            let len = self.output.read_line(&mut line).unwrap();
            assert!(len > 0 && !line.contains("failed"), "qemu-io: {line}");
        }
    }
}

impl Drop for DirectWriter {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

for_each_source! {
    read_after_async_direct_write_is_new: "rw", "qemu-io";
}

/// The kernel drops cached pages after a direct write, but not after one that completes
/// asynchronously.
fn read_after_async_direct_write_is_new(fixture: Fixture) {
    let path = fixture.at("f");
    fs::write(&path, vec![0; LEN]).unwrap();
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let (file, mut buf) = (File::open(&path).unwrap(), vec![0; LEN]);
                while !is_done.load(Ordering::Relaxed) {
                    file.read_exact_at(&mut buf, 0).unwrap();
                }
            });
        }
        let write = || {
            let (file, mut buf) = (File::open(&path).unwrap(), vec![0; LEN]);
            let mut writer = DirectWriter::new(&path, "native");
            (1..=100).find(|&byte| {
                writer.write(byte);
                file.read_exact_at(&mut buf, 0).unwrap();
                buf.iter().any(|found| *found != byte)
            })
        };
        // The readers end even if it panics.
        let stale = std::panic::catch_unwind(std::panic::AssertUnwindSafe(write));
        is_done.store(true, Ordering::Relaxed);
        assert_eq!(
            stale.unwrap(),
            None,
            "write after which old bytes were read"
        );
    });
    fixture.finish();
}

/// The server sets the access time, and cached reads would not reach it.
#[test]
fn strictatime_read_sets_access_time() {
    let Some(fixture) = Fixture::try_on(MountSource::Image, "rw,strictatime", &[]) else {
        return;
    };
    let (file, directory) = (fixture.at("d/f"), fixture.at("d"));
    fs::create_dir(&directory).unwrap();
    fs::write(&file, "text").unwrap();
    let is_read_at = |path: &Path, read: &dyn Fn()| {
        let time = Timespec {
            tv_sec: 1,
            tv_nsec: 0,
        };
        let old = Timestamps {
            last_access: time,
            last_modification: time,
        };
        rustix::fs::utimensat(CWD, path, &old, AtFlags::empty()).unwrap();
        assert_eq!(fs::metadata(path).unwrap().atime(), 1);
        read();
        fs::metadata(path).unwrap().atime() > 1
    };
    for _ in 0..2 {
        assert!(is_read_at(&file, &|| drop(fs::read(&file).unwrap())));
        let list = || assert_eq!(fs::read_dir(&directory).unwrap().count(), 1);
        assert!(is_read_at(&directory, &list));
    }
    fixture.finish();
}
