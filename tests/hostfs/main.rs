//! hostfs: external changes are seen within the TTL, changes reach the host, no path leaves the
//! share.

#[path = "../support/mod.rs"]
#[macro_use]
mod support;

mod coherence;
mod directory_ops;
mod escape;
mod notifications;
mod stress;
mod writes;

use folio::syscall::{Credentials, Fd, OpenFlags};
use folio::vfs::MountOptions;
use folio::{Errno, Kernel, KernelOptions, Process};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Tolerance beyond the time to live: tests run on busy machines.
const MARGIN: Duration = Duration::from_millis(250);

/// A notification that has not arrived by then is lost: the thread that receives them may have to
/// wait for a processor.
const LOST: Duration = Duration::from_secs(120);

/// A folder of the host, and a kernel that has it mounted at `/h`.
struct World {
    // Dropped in this order.
    p: Process,
    kernel: Arc<Kernel>,
    folder: tempfile::TempDir,
}

impl World {
    fn new(words: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("share")).unwrap();
        Self::on(folder, words)
    }

    /// Mounts `share` in a folder.
    fn on(folder: tempfile::TempDir, words: &str) -> Self {
        let kernel = Kernel::new(KernelOptions {
            cache_bytes: 16 << 20,
            ..KernelOptions::default()
        });
        let p = kernel.process(Credentials::root());
        p.umask(0);
        p.mkdir("/h", 0o755).unwrap();
        p.mkdir("/r", 0o755).unwrap();
        let options = MountOptions::parse(words).unwrap();
        kernel
            .mount_hostfs(folder.path().join("share"), "/h", &options)
            .unwrap();
        Self { p, kernel, folder }
    }

    /// Returns a path on the host, in the share.
    fn host(&self, name: &str) -> PathBuf {
        self.folder.path().join("share").join(name)
    }

    /// Returns a path on the host, beside the share.
    fn outside(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn read(&self, path: &str) -> folio::Result<Vec<u8>> {
        let fd = self.p.open(path, OpenFlags::empty(), 0)?;
        let bytes = read_all(&self.p, fd);
        self.p.close(fd)?;
        bytes
    }

    fn write(&self, path: &str, bytes: &[u8]) -> folio::Result<()> {
        let fd = self.p.open(
            path,
            OpenFlags::CREAT | OpenFlags::TRUNC | OpenFlags::WRONLY,
            0o644,
        )?;
        assert_eq!(self.p.pwrite(fd, bytes, 0)?, bytes.len());
        self.p.close(fd)
    }

    fn list(&self, path: &str) -> Vec<String> {
        self.try_list(path).unwrap()
    }

    fn try_list(&self, path: &str) -> folio::Result<Vec<String>> {
        let fd = self.p.open(path, OpenFlags::DIRECTORY, 0)?;
        let listed = self.p.getdents(fd, usize::MAX);
        self.p.close(fd)?;
        let entries = listed?;
        let mut names: Vec<_> = entries
            .into_iter()
            .map(|entry| String::from_utf8_lossy(&entry.name).into_owned())
            .collect();
        names.retain(|name| name != "." && name != "..");
        names.sort();
        Ok(names)
    }
}

fn read_all(p: &Process, fd: Fd) -> folio::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let mut buf = vec![0; 64 << 10];
    loop {
        match p.pread(fd, &mut buf, bytes.len() as u64)? {
            0 => return Ok(bytes),
            count => bytes.extend_from_slice(&buf[..count]),
        }
    }
}

fn errno<T>(result: folio::Result<T>) -> Option<Errno> {
    result.err().map(|error| error.errno())
}

/// A flag that ends the other threads of a test, also if the test fails.
#[derive(Default)]
struct Over(AtomicBool);

impl Over {
    fn is_over(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Returns a guard that ends the other threads when it is dropped.
    fn ender(&self) -> Ender<'_> {
        Ender(self)
    }
}

struct Ender<'a>(&'a Over);

impl Drop for Ender<'_> {
    fn drop(&mut self) {
        self.0.0.store(true, Ordering::Relaxed);
    }
}

/// Sleeps: the guarantees under test are about time, and another thread makes changes meanwhile.
#[allow(clippy::disallowed_methods)]
fn pause(time: Duration) {
    std::thread::sleep(time);
}

/// Waits until `is_seen`; a check that starts after the TTL must succeed.
#[track_caller]
fn eventually(what: &str, ttl: Duration, mut is_seen: impl FnMut() -> bool) {
    let start = Instant::now();
    loop {
        let asked = start.elapsed();
        if is_seen() {
            return;
        }
        assert!(
            asked < ttl + MARGIN,
            "{what}: not seen {asked:?} after it was made"
        );
        pause(Duration::from_micros(100));
    }
}

/// Returns the mounts under test: options, and the maximum age of an answer.
fn mounts_and_ttls() -> [(&'static str, Duration); 5] {
    let ms = Duration::from_millis;
    [
        ("ttl=0,push=off", ms(0)),
        ("push=off", ms(1)),
        ("ttl=50ms,push=off", ms(50)),
        ("push=inotify", ms(5)),
        ("cache=host,push=off", ms(1)),
    ]
}

fn write_host(path: &Path, bytes: &[u8]) {
    std::fs::write(path, bytes).unwrap();
}
