//! `folio doctor` on mounts with and without faults: it names the right cause, and no other cause.
//!
//! ```text
//!   kernel's ext4 on a loop device   delayed allocation, flush at close, holes, fragments, cold, evicted   ext4.rs
//!   the kernel's xfs and btrfs       flush at close and rename, holes, fragments, compressed, shared       xfs_btrfs.rs
//!   FUSE, a test server and Folio    page cache, attributes                                                fuse.rs
//!   tmpfs, overlay, bind mounts      the chain of layers, no false alarm                                   stacked.rs
//!   commands                         the parts of their time, the causes of their waits                   workload.rs
//!   commands with their cures        --try                                                                 trial.rs
//!   static programs, processes       the same, by ptrace(2)                                                traced.rs
//!   the page of --html              its parts, files and timeline; hostile names                            html.rs
//!   a guest of QEMU                  a disk that allocates at first writes                                 guest.rs
//!   bindfs, 9p, NFS, SMB             the remedies, executed                                                remedies.rs
//! ```
//!
//! Verdicts that depend on timing (a slow copy, the device as the limit) are at most hints. These
//! tests ignore them.

mod ext4;
mod fuse;
mod guest;
mod html;
#[path = "../fuse/mount.rs"]
#[allow(dead_code)]
mod mount;
mod remedies;
mod served;
mod stacked;
#[path = "../support/mod.rs"]
mod support;
mod traced;
mod trial;
mod workload;
mod xfs_btrfs;

use serde_json::Value;
use std::ffi::OsStr;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::LazyLock;
use support::tools::{command, mke2fs, run, text};
use support::{Group, Mounted, dropped_pages, requires};
use tempfile::TempDir;

/// Causes whose verdict depends on timing.
const TIMED: [&str; 6] = [
    "allocates-at-first-write",
    "slow-copy",
    "sparse",
    "unwritten",
    "clusters-not-allocated",
    "fragmented",
];

/// Runs a remedy, in which `folio` is the command under test.
#[track_caller]
fn apply(remedy: &str) {
    let binaries = Path::new(env!("CARGO_BIN_EXE_folio")).parent().unwrap();
    let path = std::env::var_os("PATH").unwrap_or_default();
    let all = [binaries.to_owned()]
        .into_iter()
        .chain(std::env::split_paths(&path));
    let output = command("sh")
        .args(["-c", remedy])
        .env("PATH", std::env::join_paths(all).unwrap())
        .output()
        .unwrap();
    assert!(output.status.success(), "{remedy}: {}", text(&output));
}

fn doctor<A: AsRef<OsStr>>(arguments: impl IntoIterator<Item = A>) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_folio"));
    command
        .arg("doctor")
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .expect("folio runs")
}

/// The number of dropped pages before the first write or examination.
static DROPPED_BEFORE: LazyLock<u64> = LazyLock::new(dropped_pages);

/// A run of `folio doctor --json`: its arguments, report and exit code.
struct DoctorRun {
    path: PathBuf,
    options: Vec<String>,
    report: Value,
    code: Option<i32>,
}

impl DoctorRun {
    #[track_caller]
    fn of(path: &Path, options: &[&str]) -> Self {
        LazyLock::force(&DROPPED_BEFORE);
        let words = options
            .iter()
            .map(OsStr::new)
            .chain([OsStr::new("--json"), path.as_os_str()]);
        let output = doctor(words);
        let mut this = Self::read(path, &output.stdout);
        this.options = options.iter().map(|option| (*option).to_owned()).collect();
        this.code = output.status.code();
        this
    }

    /// Reads a report.
    #[track_caller]
    fn read(path: &Path, report: &[u8]) -> Self {
        let report = serde_json::from_slice(report).unwrap_or_else(|error| {
            let report = String::from_utf8_lossy(report);
            panic!("{}: {error}: {report}", path.display())
        });
        let wrong: Vec<_> = schema()
            .iter_errors(&report)
            .map(|error| error.to_string())
            .collect();
        assert!(wrong.is_empty(), "{wrong:?}: {report:#}");
        Self {
            path: path.to_path_buf(),
            options: Vec::new(),
            report,
            code: None,
        }
    }

    /// Returns all checks of all paths.
    fn checks(&self) -> Vec<&Value> {
        let paths = self.report["paths"].as_array().expect("a list of paths");
        paths
            .iter()
            .flat_map(|entry| entry["checks"].as_array().expect("a list of checks"))
            .collect()
    }

    /// Returns the causes of all faults that do not depend on timing.
    fn faults(&self) -> Vec<&str> {
        let faults = self
            .checks()
            .into_iter()
            .filter(|check| check["verdict"] == "fault");
        let causes = faults.filter_map(|check| check["cause"].as_str());
        causes.filter(|cause| !TIMED.contains(cause)).collect()
    }

    /// Returns the check for this cause.
    #[track_caller]
    fn check(&self, cause: &str) -> &Value {
        let found = self
            .checks()
            .into_iter()
            .find(|check| check["cause"] == cause);
        found.unwrap_or_else(|| panic!("no check for {cause}: {:#}", self.report))
    }

    /// Checks that the report has no fault, and a note on this cause; returns its first remedy.
    #[track_caller]
    fn notes(&self, cause: &str) -> String {
        self.has(&[]);
        let check = self.check(cause);
        assert_eq!(check["verdict"], "note", "{:#}", self.report);
        check["remedies"][0].as_str().unwrap_or_default().to_owned()
    }

    /// Returns the layers of the first path, as `kind fs_type-or-name`.
    fn chain(&self) -> Vec<String> {
        let steps = self.report["paths"][0]["chain"]
            .as_array()
            .expect("a chain");
        let name = |step: &Value| {
            let name = ["fs_type", "name", "path"]
                .iter()
                .find_map(|key| step[*key].as_str());
            format!(
                "{} {}",
                step["kind"].as_str().unwrap_or("?"),
                name.unwrap_or_default()
            )
        };
        steps.iter().map(name).collect()
    }

    /// Checks that the report has exactly these faults, each with evidence, numbers and remedies.
    /// Checks the exit code as well.
    #[track_caller]
    fn has(&self, wanted: &[&str]) {
        // Another program may have emptied the page cache just before. The examination itself reads
        // the file, so its pages are in memory when the test looks again.
        let is_lost = |outcome: &Self| {
            let lost = |cause: &&str| ["evicted"].contains(cause) && !wanted.contains(cause);
            outcome.faults().iter().any(lost) && dropped_pages() != *DROPPED_BEFORE
        };
        let mut again = None;
        for _ in 0..3 {
            if !is_lost(again.as_ref().unwrap_or(self)) {
                break;
            }
            let options: Vec<&str> = self.options.iter().map(String::as_str).collect();
            again = Some(Self::of(&self.path, &options));
        }
        again.as_ref().unwrap_or(self).has_now(wanted);
    }

    #[track_caller]
    fn has_now(&self, wanted: &[&str]) {
        assert_eq!(self.faults(), wanted, "{:#}", self.report);
        for check in self
            .checks()
            .into_iter()
            .filter(|check| check["verdict"] == "fault")
        {
            assert!(
                check["evidence"]
                    .as_str()
                    .is_some_and(|text| !text.is_empty()),
                "{check:#}"
            );
            assert!(
                check["numbers"]
                    .as_object()
                    .is_some_and(|numbers| !numbers.is_empty()),
                "{check:#}"
            );
            assert!(
                check["remedies"]
                    .as_array()
                    .is_some_and(|list| !list.is_empty()),
                "{check:#}"
            );
            assert!(check["certainty"].is_string(), "{check:#}");
        }
        let all = self
            .checks()
            .into_iter()
            .filter(|check| check["verdict"] == "fault")
            .count();
        assert_eq!(self.code, Some(i32::from(all > 0)), "{:#}", self.report);
        assert_eq!(self.report["faults"], all);
    }
}

/// Returns the validator for docs/schema/doctor.json.
fn schema() -> &'static jsonschema::Validator {
    static SCHEMA: LazyLock<jsonschema::Validator> = LazyLock::new(|| {
        let schema =
            serde_json::from_str(include_str!("../../docs/schema/doctor.json")).expect("JSON");
        jsonschema::validator_for(&schema).expect("a schema")
    });
    &SCHEMA
}

/// Returns bytes that no file system stores as a hole or compresses.
fn noise(len: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut step = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    (0..len / 8 + 1)
        .flat_map(|_| step().to_le_bytes())
        .take(len)
        .collect()
}

/// Writes and syncs a file.
fn written(path: &Path, len: usize) {
    LazyLock::force(&DROPPED_BEFORE);
    let file = std::fs::File::create(path).unwrap();
    file.write_all_at(&noise(len), 0).unwrap();
    file.sync_all().unwrap();
}

/// Mounts an empty ext4 of 256 MiB with these options, by the kernel.
fn ext4_mount(folder: &TempDir, options: &str) -> Mounted {
    let image = folder.path().join("disk.img");
    mke2fs(&image, "256M", &["-b", "4096"]);
    Mounted::new(&image, options)
}

/// A loop device that remains after an unmount; dropping it detaches the device.
struct LoopDevice(String);

impl LoopDevice {
    /// Attaches an image, with options of losetup(8).
    #[track_caller]
    fn attach(image: &Path, options: &[&str]) -> Self {
        let words = [&["--find", "--show"], options].concat();
        let words = words.into_iter().map(OsStr::new);
        Self(
            run("losetup", words.chain([image.as_os_str()]))
                .trim()
                .to_owned(),
        )
    }

    #[track_caller]
    fn mount(&self, fs_type: &str, options: &str) -> HostMount {
        HostMount::new(&["-t", fs_type, "-o", options, &self.0].map(OsStr::new))
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        let _ = command("losetup").args(["--detach", &self.0]).status();
    }
}

/// Any other mount; dropping it unmounts, even if the test fails.
struct HostMount {
    folder: TempDir,
}

impl HostMount {
    /// Mounts with the arguments of mount(8), without the target.
    #[track_caller]
    fn new(words: &[&OsStr]) -> Self {
        let folder = TempDir::with_prefix("folio-doctor-").unwrap();
        run(
            "mount",
            words.iter().copied().chain([folder.path().as_os_str()]),
        );
        Self { folder }
    }

    fn at(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }
}

impl Drop for HostMount {
    fn drop(&mut self) {
        let _ = command("umount")
            .arg("--lazy")
            .arg(self.folder.path())
            .status();
    }
}

/// A process that reads a file twice within the memory limit of a group, and keeps it open until
/// it is dropped.
struct GroupReader(std::process::Child);

impl GroupReader {
    #[track_caller]
    fn start(group: &Group, file: &Path) -> Self {
        let script = format!(
            "{0} && cat {1} {1} > /dev/null && exec 3< {1} && echo ready && read -r _",
            group.entry(),
            file.display()
        );
        let mut child = command("sh")
            .args(["-c", &script])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut ready = [0; 6];
        let out = child.stdout.as_mut().unwrap();
        std::io::Read::read_exact(out, &mut ready).expect("the reader is ready");
        Self(child)
    }
}

impl Drop for GroupReader {
    fn drop(&mut self) {
        // The end of its input ends it.
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}

/// The chain of a device follows the device, not the file system of its node.
#[test]
fn block_device_chain_reaches_image_file() {
    requires!(root, loop_devices, tool("mke2fs"), tool("findmnt"));
    let folder = TempDir::new().unwrap();
    let mounted = ext4_mount(&folder, "rw");
    let device = run(
        "findmnt",
        [
            "-n".as_ref(),
            "-o".as_ref(),
            "SOURCE".as_ref(),
            mounted.path().as_os_str(),
        ],
    );
    let outcome = DoctorRun::of(Path::new(device.trim()), &["--write-probe"]);
    outcome.has(&[]);
    assert_eq!(outcome.report["paths"][0]["kind"], "block-device");
    let chain = outcome.chain();
    assert!(chain[0].starts_with("disk loop"), "{chain:?}");
    assert_eq!(
        chain[1],
        format!("path {}", folder.path().join("disk.img").display())
    );
    mounted.unmount();
}

/// Each reason is printed once, not once per layer, and without the errno.
#[test]
fn reason_is_printed_once_without_errno() {
    requires!(root, loop_devices, tool("mke2fs"));
    let folder = TempDir::new().unwrap();
    let mounted = ext4_mount(&folder, "ro");
    let output = doctor(["--write-probe".as_ref(), mounted.path().as_os_str()]);
    let shown = text(&output);
    assert_eq!(
        shown.matches("no temporary file can be written").count(),
        1,
        "{shown}"
    );
    assert!(shown.contains("Read-only file system\n"), "{shown}");
    let missing = text(&doctor([folder.path().join("missing")]));
    assert!(missing.contains("No such file or directory\n"), "{missing}");
    // On a read-only mount without the probe, no rewrite can flush.
    assert_eq!(
        DoctorRun::of(&mounted.path(), &[]).check("flush-on-truncate")["verdict"],
        "fine"
    );
    mounted.unmount();
}

#[test]
fn missing_path_and_usage_error_set_exit_code() {
    let folder = TempDir::new().unwrap();
    let missing = folder.path().join("missing");
    let output = doctor([&missing]);
    assert_eq!(output.status.code(), Some(3), "{}", text(&output));
    assert!(text(&output).contains("missing"), "{}", text(&output));
    assert!(!text(&output).contains("0 faults"), "{}", text(&output));
    let outcome = DoctorRun::of(&missing, &[]);
    assert_eq!(
        (
            outcome.code,
            outcome.report["not_probed"].as_array().map(Vec::len)
        ),
        (Some(3), Some(1))
    );
    assert_eq!(doctor(["--read-limit", "much", "/"]).status.code(), Some(2));
    assert_eq!(doctor([""; 0]).status.code(), Some(2));
}

/// The command does not open files that may block forever or have side effects.
#[test]
fn special_files_are_not_opened() {
    requires!(tool("mkfifo"));
    let folder = TempDir::new().unwrap();
    let fifo = folder.path().join("fifo");
    run("mkfifo", [&fifo]);
    let outcome = DoctorRun::of(&fifo, &[]);
    assert_eq!(outcome.report["paths"][0]["kind"], "special");
    outcome.has(&[]);
    let outcome = DoctorRun::of(Path::new("/dev/null"), &[]);
    assert_eq!(outcome.report["paths"][0]["kind"], "special");
    // The write probe writes no file beside a device.
    DoctorRun::of(Path::new("/dev/null"), &["--write-probe"]).has(&[]);
    // A file of size 0 that has contents.
    DoctorRun::of(Path::new("/proc/version"), &[]).has(&[]);
}

/// Without the write probe no file is written. No byte of the file changes, and the command reads
/// at most the read limit.
#[test]
fn doctor_leaves_files_unchanged() {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("file");
    written(&file, 4 << 20);
    let before = std::fs::metadata(&file).unwrap();
    let outcome = DoctorRun::of(&file, &["--read-limit", "1M"]);
    let check = outcome.check("page-cache-bypassed");
    assert!(
        check["evidence"]
            .as_str()
            .is_some_and(|text| text.contains("256 KiB")),
        "{check:#}"
    );
    let after = std::fs::metadata(&file).unwrap();
    assert_eq!(before.modified().unwrap(), after.modified().unwrap());
    for options in [&["--write-probe"][..], &[]] {
        DoctorRun::of(folder.path(), options);
        let names: Vec<_> = std::fs::read_dir(folder.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .collect();
        assert_eq!(names, ["file"], "{options:?}");
    }
    let none = DoctorRun::of(&file, &["--read-limit", "0"]);
    assert_eq!(none.check("page-cache-bypassed")["verdict"], "unknown");
}

/// A file inside an image is judged by Folio's own counters. The image file is judged as well.
#[test]
fn file_inside_image_is_read_through_folio() {
    let folder = TempDir::new().unwrap();
    let image = folder.path().join("disk.img");
    written(&folder.path().join("file"), 12 << 20);
    let folio = |words: &[&OsStr]| {
        let output = Command::new(env!("CARGO_BIN_EXE_folio"))
            .args(words)
            .output()
            .unwrap();
        assert!(output.status.success(), "{words:?}: {}", text(&output));
    };
    let place = PathBuf::from(format!("{}:/file", image.display()));
    let file = folder.path().join("file");
    let (size, create) = (OsStr::new("64M"), OsStr::new("--create"));
    folio(&[
        "cp".as_ref(),
        file.as_os_str(),
        place.as_os_str(),
        create,
        size,
    ]);
    let outcome = DoctorRun::of(&place, &[]);
    assert_eq!(
        outcome.check("evicted")["verdict"],
        "fine",
        "{:#}",
        outcome.report
    );
    assert_eq!(outcome.check("evicted")["numbers"]["misses"], 0);
    assert_eq!(outcome.check("fragmented")["verdict"], "fine");
    assert_eq!(
        outcome.chain()[..2],
        [
            "file-system ext4".to_owned(),
            format!("path {}", image.display())
        ]
    );
    assert_eq!(
        outcome.report["paths"][1]["path"],
        image.display().to_string()
    );
    // With a cache too small for it.
    let outcome = DoctorRun::of(&place, &["--cache", "1M"]);
    assert!(
        outcome.faults().contains(&"evicted"),
        "{:#}",
        outcome.report
    );
    let none = DoctorRun::of(Path::new(&format!("{}:/none", image.display())), &[]);
    assert_eq!(none.code, Some(3));
}

/// The text output names the layers and the samples; the JSON report has an entry for each path.
#[test]
fn text_and_json_cover_same_files() {
    let folder = TempDir::new().unwrap();
    written(&folder.path().join("a"), 2 << 20);
    written(&folder.path().join("b"), 1 << 20);
    let output = doctor(["--all".as_ref(), folder.path().as_os_str()]);
    let shown = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        shown.contains("attributes") && shown.contains("page-cache"),
        "{shown}"
    );
    // Without it, what is fine is only counted.
    let short = text(&doctor([folder.path()]));
    assert!(
        !short.contains('\u{2713}') && short.contains(" fine"),
        "{short}"
    );
    assert!(
        String::from_utf8_lossy(&output.stderr).contains("as samples of"),
        "{}",
        text(&output)
    );
    let outcome = DoctorRun::of(folder.path(), &[]);
    assert_eq!(
        outcome.report["paths"].as_array().map(Vec::len),
        Some(3),
        "{:#}",
        outcome.report
    );
}
