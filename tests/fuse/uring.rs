//! FUSE over io_uring: the same mount, but each request is served on the CPU that made it.

use crate::suites::fsx_passes;
use crate::support::random::Random;
use crate::support::require::{report_skip, requires};
use crate::support::terminal::converse;
use crate::support::tools::{command, text};
use crate::{Fixture, MountSource, empty};
use rustix::process::Signal;
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::Path;
use tempfile::TempDir;

/// The parameter by which the administrator permits it.
const PARAMETER: &str = "/sys/module/fuse/parameters/enable_uring";
/// More than the requests that a queue has room for.
const THREADS: u64 = 20;

/// The parameter with another value, until this is dropped.
struct Parameter {
    before: String,
    /// Its lock holds back the other tests, which may be processes of their own.
    _only: File,
}

impl Parameter {
    /// Sets the parameter; reports a skip if the kernel has none.
    fn set(value: &str) -> Option<Self> {
        let set = || {
            let only = File::open(PARAMETER)?;
            rustix::fs::flock(&only, rustix::fs::FlockOperation::LockExclusive)?;
            let before = fs::read_to_string(PARAMETER)?;
            fs::write(PARAMETER, value)?;
            Ok::<_, std::io::Error>(Self {
                before,
                _only: only,
            })
        };
        match set() {
            Ok(set) => Some(set),
            Err(error) => {
                report_skip(&format!("needs FUSE over io_uring: {PARAMETER}: {error}"));
                None
            }
        }
    }
}

impl Drop for Parameter {
    fn drop(&mut self) {
        let _ = fs::write(PARAMETER, self.before.trim());
    }
}

/// Writes, syncs, renames and reads files of one folder.
fn work(folder: &Path, seed: u64) {
    let mut random = Random::new(seed);
    fs::create_dir(folder).unwrap();
    for number in 0..12 {
        let (path, moved) = (
            folder.join(format!("file {number}")),
            folder.join(format!("moved {number}")),
        );
        let len = random.below(3 << 20) as usize;
        let byte = (seed + number) as u8;
        let mut file = File::create(&path).unwrap();
        file.write_all(&vec![byte; len]).unwrap();
        if number % 3 == 0 {
            file.sync_all().unwrap();
        }
        fs::rename(&path, &moved).unwrap();
        let mut file = OpenOptions::new().append(true).open(&moved).unwrap();
        file.write_all(&[byte; 5000]).unwrap();
        assert!(!path.exists() && moved.exists());
        let content = fs::read(&moved).unwrap();
        assert_eq!(content.len(), len + 5000);
        assert!(content.iter().all(|found| *found == byte), "{number}");
    }
    assert_eq!(fs::read_dir(folder).unwrap().count(), 12);
}

#[test]
fn threads_over_uring_keep_their_bytes() {
    requires!(root, fuse);
    let Some(_parameter) = Parameter::set("Y") else {
        return;
    };
    for source in [MountSource::Image, MountSource::Directory] {
        let Some(fixture) = Fixture::try_on(source, "rw,io_uring=on", &[]) else {
            return;
        };
        std::thread::scope(|scope| {
            for seed in 0..THREADS {
                let folder = fixture.at(&format!("{seed}"));
                scope.spawn(move || work(&folder, seed));
            }
        });
        fixture.finish();
    }
}

#[test]
fn fsx_over_uring_passes() {
    requires!(root, fuse);
    let Some(_parameter) = Parameter::set("Y") else {
        return;
    };
    for options in ["rw,io_uring=on", "rw,io_uring=on,nowriteback"] {
        if let Some(fixture) = Fixture::try_on(MountSource::Image, options, &["fsx"]) {
            fsx_passes(fixture);
        }
    }
}

#[test]
fn killed_uring_server_ends_requests() {
    requires!(root, fuse);
    let Some(_parameter) = Parameter::set("Y") else {
        return;
    };
    let Some(mut fixture) = Fixture::try_on(MountSource::Image, "rw,io_uring=on", &[]) else {
        return;
    };
    let path = fixture.at("f");
    let file = File::create(&path).unwrap();
    file.write_all_at(b"synced", 0).unwrap();
    file.sync_all().unwrap();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| while file.sync_all().is_ok() && fs::metadata(&path).is_ok() {});
        }
        rustix::process::kill_process(fixture.mount.process(), Signal::KILL).unwrap();
    });
    fixture.mount.ended();
    fixture = fixture.again("rw,io_uring=off");
    assert_eq!(fs::read(fixture.at("f")).unwrap(), b"synced");
    fixture.finish();
}

#[test]
fn required_uring_without_permission_is_refused() {
    requires!(root, fuse, tool("mke2fs"));
    let Some(_parameter) = Parameter::set("N") else {
        return;
    };
    let folder = TempDir::new().unwrap();
    let image = empty(folder.path());
    let mut folio = command(env!("CARGO_BIN_EXE_folio"));
    folio.args(["mount", "-o", "io_uring=on"]);
    let output = folio.arg(&image).arg(folder.path()).output().unwrap();
    let printed = text(&output);
    assert!(
        !output.status.success() && printed.contains(PARAMETER),
        "{printed}"
    );
}

/// On a terminal, root reads what io_uring would gain, if the kernel has it off.
#[test]
fn hint_on_a_terminal_names_the_parameter() {
    requires!(root, fuse, tool("python3"));
    let folders = [TempDir::new().unwrap(), TempDir::new().unwrap()];
    let Some(_parameter) = Parameter::set("N") else {
        return;
    };
    let mut mount = command(env!("CARGO_BIN_EXE_folio"));
    mount.arg("mount").args(folders.iter().map(TempDir::path));
    mount.env("TERM", "xterm");
    let (code, errors) = converse(&mount, &format!("{PARAMETER}|\nuntil Ctrl-C|\\x03\n"));
    assert_eq!(code, Some(0), "{errors}");
}
