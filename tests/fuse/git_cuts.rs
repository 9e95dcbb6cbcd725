//! git on a mount whose device records every write: after a power cut or a killed server, the
//! repository is whole.
//!
//! git syncs packs but, by default, neither loose objects nor refs. Another program syncs its own
//! file all the time, so that transactions end at every moment.
//!
//! `FOLIO_GIT_CUTS=1000` is a full run.

use crate::support::random::Random;
use crate::support::requires;
use crate::support::tools::{command, succeed, text};
use folio::block::{Device, MemoryDevice, OverlayDevice};
use folio::ext4::{self, FormatOptions};
use folio::syscall::{Credentials, OpenFlags};
use folio::testing::{RecordDevice, Recorded};
use folio::vfs::MountOptions;
use folio::{Kernel, KernelOptions};
use folio_fuse::{Session, SessionOptions, Unmounter};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;
use tempfile::TempDir;

const CUTS_DEFAULT: usize = 40;
const ROUNDS: usize = 8;

/// A device mounted through FUSE and served by threads of this process.
struct LocalMount {
    folder: TempDir,
    unmounter: Unmounter,
    server: Option<JoinHandle<folio::Result<()>>>,
    kernel: Arc<Kernel>,
}

impl LocalMount {
    fn new(device: Arc<dyn Device>, options: &str) -> folio::Result<Self> {
        let kernel = Kernel::new(KernelOptions::default());
        let options = MountOptions::parse(options)?;
        kernel.mount_ext4(device, "/", &options)?;
        let folder = TempDir::with_prefix("folio-git-").unwrap();
        // A program that calls sync(2) all the time would make everything durable.
        let mut apart = SessionOptions::new("folio-git");
        apart.sends_sync = false;
        let session = Session::mount(kernel.clone(), &options, folder.path(), &apart)?;
        Ok(Self {
            folder,
            unmounter: session.unmounter(),
            server: Some(std::thread::spawn(move || session.serve())),
            kernel,
        })
    }

    fn repository(&self) -> PathBuf {
        self.folder.path().join("repository")
    }
}

impl Drop for LocalMount {
    fn drop(&mut self) {
        // Lazily: a child of another test may hold copies of files until its exec(2).
        let _ = self.unmounter.unmount(true);
        if let Some(server) = self.server.take() {
            let _ = server.join();
        }
        let _ = self.kernel.unmount("/");
    }
}

fn git(folder: &Path) -> Command {
    let mut git = command("git");
    git.env("GIT_CONFIG_GLOBAL", "/dev/null")
        .args([
            "-c",
            "user.name=Folio",
            "-c",
            "user.email=folio@example.org",
        ])
        .args(["-c", "init.defaultBranch=main", "-C"])
        .arg(folder);
    git
}

fn run_git(folder: &Path, arguments: &str) {
    succeed(git(folder).args(arguments.split_whitespace()));
}

fn commit_files(repository: &Path, round: usize) {
    for number in 0..4 {
        let line = format!("file {number} of round {round}\n");
        let path = repository.join(format!("file-{number}"));
        std::fs::write(path, line.repeat(1 + number * 300)).unwrap();
    }
    run_git(repository, "add .");
    run_git(repository, &format!("commit -qm round-{round}"));
}

/// Commits, branches, packs and collects garbage.
fn work(repository: &Path) {
    for round in 1..=ROUNDS {
        commit_files(repository, round);
        run_git(repository, &format!("branch branch-{round}"));
        match round % 4 {
            0 => run_git(repository, "gc -q --prune=now"),
            1 => run_git(repository, "pack-refs --all"),
            2 => run_git(repository, &format!("tag -a -m message tag-{round}")),
            _ => run_git(repository, &format!("branch -qD branch-{}", round - 1)),
        }
    }
}

/// Syncs a file of its own until `is_over` is set.
#[expect(clippy::disallowed_methods, reason = "the pace bounds the record")]
fn commit_all_the_time(kernel: &Arc<Kernel>, is_over: &AtomicBool) {
    let process = kernel.process(Credentials::root());
    let flags = OpenFlags::CREAT | OpenFlags::RDWR;
    let fd = process.open("/synced", flags, 0o644).unwrap();
    while !is_over.load(Ordering::Acquire) {
        process.pwrite(fd, b"synced", 0).unwrap();
        process.fsync(fd).unwrap();
        std::thread::sleep(Duration::from_millis(3));
    }
}

/// The recorded work of git: the device before, and all writes since.
struct GitRecord {
    before: Arc<MemoryDevice>,
    record: Vec<Recorded>,
    /// Length of the record when the repository was first complete and synced.
    ready: usize,
}

impl GitRecord {
    fn new(options: &str) -> Self {
        let before = Arc::new(MemoryDevice::new(64 << 20));
        ext4::format(&*before, &FormatOptions::default()).unwrap();
        let device = Arc::new(RecordDevice::new(Arc::new(OverlayDevice::new(
            before.clone(),
        ))));
        let mount = LocalMount::new(device.clone(), options).unwrap();
        let repository = mount.repository();
        std::fs::create_dir(&repository).unwrap();
        run_git(&repository, "init -q");
        commit_files(&repository, 0);
        mount.kernel.process(Credentials::root()).sync().unwrap();
        let ready = device.recorded_len();
        let is_over = AtomicBool::new(false);
        let worked = std::thread::scope(|scope| {
            scope.spawn(|| commit_all_the_time(&mount.kernel, &is_over));
            let worked = std::panic::catch_unwind(|| work(&repository));
            is_over.store(true, Ordering::Release);
            worked
        });
        drop(mount);
        worked.unwrap();
        let record = device.recorded();
        Self {
            before,
            record,
            ready,
        }
    }

    /// Cuts the power at this many moments; returns what `git fsck` says of broken repositories.
    fn broken(&self, cuts: usize) -> Vec<String> {
        let mut random = Random::new(1);
        let span = self.record.len() - self.ready;
        let mut positions: Vec<usize> = (0..cuts)
            .map(|n| self.ready + (n * span / cuts + random.below(span.div_ceil(cuts))) % span)
            .collect();
        positions.sort_unstable();
        let whole = Arc::new(OverlayDevice::new(self.before.clone()));
        let mut done = 0;
        let mut broken = Vec::new();
        for (n, at) in positions.into_iter().enumerate() {
            // Every second cut is a killed server, which loses no write; the rest lose power.
            let loses_power = n % 2 == 1;
            let kept = if loses_power { self.last_flush(at) } else { at };
            self.replay(done..kept.max(done), &*whole, |_| true);
            done = kept.max(done);
            let device = Arc::new(OverlayDevice::new(whole.clone()));
            let percent = [10, 50, 90][n / 2 % 3];
            self.replay(done..at, &*device, |_| random.percent(percent));
            if let Err(said) = check(device) {
                broken.push(format!("cut at {at}, power lost: {loses_power}: {said}"));
            }
        }
        broken
    }

    fn last_flush(&self, at: usize) -> usize {
        let flush = |entry: &Recorded| *entry == Recorded::Flush;
        self.record[..at]
            .iter()
            .rposition(flush)
            .map_or(0, |at| at + 1)
    }

    fn replay(
        &self,
        range: std::ops::Range<usize>,
        onto: &dyn Device,
        mut is_kept: impl FnMut(&Recorded) -> bool,
    ) {
        for entry in self.record[range].iter().filter(|entry| is_kept(entry)) {
            entry.replay(onto).unwrap();
        }
    }
}

/// Mounts the device, which replays its journal, and lets git check the repository.
fn check(device: Arc<dyn Device>) -> Result<(), String> {
    let mount = LocalMount::new(device, "defaults").map_err(|error| error.to_string())?;
    let repository = mount.repository();
    let output = git(&repository)
        .args(["fsck", "--full", "--no-dangling"])
        .output()
        .unwrap();
    let said = text(&output);
    let is_whole = output.status.success() && !said.contains("unborn") && !said.contains("error");
    if is_whole {
        succeed(git(&repository).args(["rev-parse", "--verify", "-q", "HEAD^{tree}"]));
        Ok(())
    } else {
        Err(said)
    }
}

fn cuts() -> usize {
    std::env::var("FOLIO_GIT_CUTS").map_or(CUTS_DEFAULT, |text| text.parse().unwrap())
}

#[test]
fn git_repository_survives_cuts() {
    requires!(root, fuse, tool("git"));
    let cuts = cuts();
    let broken = GitRecord::new("defaults").broken(cuts);
    println!("git: {} of {cuts} cuts broke the repository", broken.len());
    assert!(
        broken.is_empty(),
        "{} of {cuts}: {}",
        broken.len(),
        broken[0]
    );
}

/// The control: without protection, the same work loses objects and refs. On a slow machine the
/// timers would write the data before the next fsync.
#[test]
fn unprotected_git_repository_breaks() {
    requires!(root, fuse, tool("git"));
    let broken = GitRecord::new("noauto_da_alloc,commit=300").broken(CUTS_DEFAULT);
    println!("git, noauto_da_alloc: {} of {CUTS_DEFAULT}", broken.len());
    assert!(!broken.is_empty(), "no cut broke the repository");
}
