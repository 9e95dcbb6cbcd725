//! `folio doctor` on mounts that have a fault and on those that have not: the right cause is named,
//! and no other.
//!
//! ```text
//!   kernel's ext4 on a loop device   delayed allocation, flush at close, holes, fragments, cold, evicted   ext4.rs
//!   the kernel's xfs and btrfs       flush at close and rename, holes, fragments, compressed, shared       xfs_btrfs.rs
//!   FUSE, made for this and ours     page cache, attributes                                                fuse.rs
//!   tmpfs, overlay, bind mounts      the chain of layers, no false alarm                                   stacked.rs
//! ```
//!
//! What rests on time (a slow copy, the device as the limit) is at most a hint, and is left out
//! here.

mod ext4;
mod fuse;
#[path = "../fuse/mount.rs"]
#[allow(dead_code)]
mod mount;
mod served;
mod stacked;
#[path = "../support/mod.rs"]
mod support;
mod xfs_btrfs;

use serde_json::Value;
use std::ffi::OsStr;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::LazyLock;
use support::tools::{command, mke2fs, run, text};
use support::{Group, Mounted, requires};
use tempfile::TempDir;

/// Causes whose verdict rests on time.
const TIMED: [&str; 2] = ["slow-copy", "device-limit"];

fn doctor<A: AsRef<OsStr>>(arguments: impl IntoIterator<Item = A>) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_folio"));
    command
        .arg("doctor")
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .expect("folio runs")
}

/// Pages that were taken from the page cache on this machine: by reclaim, and by who writes to
/// drop_caches.
fn taken() -> u64 {
    let text = std::fs::read_to_string("/proc/vmstat").unwrap_or_default();
    let count = |name: &str| {
        text.lines()
            .find_map(|line| line.strip_prefix(name)?.trim().parse::<u64>().ok())
    };
    ["drop_pagecache ", "pgsteal_file "]
        .into_iter()
        .filter_map(count)
        .sum()
}

/// The same before anything was written or looked at.
static TAKEN_BEFORE: LazyLock<u64> = LazyLock::new(taken);

/// What `folio doctor --json` tells.
struct Told {
    path: PathBuf,
    options: Vec<String>,
    report: Value,
    code: Option<i32>,
}

impl Told {
    #[track_caller]
    fn of(path: &Path, options: &[&str]) -> Self {
        LazyLock::force(&TAKEN_BEFORE);
        let words = options
            .iter()
            .map(OsStr::new)
            .chain([OsStr::new("--json"), path.as_os_str()]);
        let output = doctor(words);
        let report = serde_json::from_slice(&output.stdout);
        let report =
            report.unwrap_or_else(|error| panic!("{}: {error}: {}", path.display(), text(&output)));
        let wrong: Vec<_> = schema()
            .iter_errors(&report)
            .map(|error| error.to_string())
            .collect();
        assert!(wrong.is_empty(), "{wrong:?}: {report:#}");
        let options = options.iter().map(|option| (*option).to_owned()).collect();
        Self {
            path: path.to_path_buf(),
            options,
            report,
            code: output.status.code(),
        }
    }

    /// All checks of all paths.
    fn checks(&self) -> Vec<&Value> {
        let paths = self.report["paths"].as_array().expect("a list of paths");
        paths
            .iter()
            .flat_map(|told| told["checks"].as_array().expect("a list of checks"))
            .collect()
    }

    /// The causes of all faults that do not rest on time.
    fn faults(&self) -> Vec<&str> {
        let faults = self
            .checks()
            .into_iter()
            .filter(|check| check["verdict"] == "fault");
        let causes = faults.filter_map(|check| check["cause"].as_str());
        causes.filter(|cause| !TIMED.contains(cause)).collect()
    }

    /// The check for this cause.
    #[track_caller]
    fn check(&self, cause: &str) -> &Value {
        let found = self
            .checks()
            .into_iter()
            .find(|check| check["cause"] == cause);
        found.unwrap_or_else(|| panic!("no check for {cause}: {:#}", self.report))
    }

    /// The layers of the first path, as `kind fs_type-or-name`.
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

    /// Whether a disk below is known to seek.
    fn seeks(&self) -> bool {
        let steps = self.report["paths"][0]["chain"]
            .as_array()
            .expect("a chain");
        steps.iter().any(|step| step["rotational"] == true)
    }

    /// These faults and no other, each with what a reader needs, and the exit code that says so.
    #[track_caller]
    fn has(&self, wanted: &[&str]) {
        // Somebody else may have emptied the page cache just before: what was read by looking is
        // there when we look again.
        let is_lost = |told: &Self| {
            let lost =
                |cause: &&str| ["cold", "evicted"].contains(cause) && !wanted.contains(cause);
            told.faults().iter().any(lost) && taken() != *TAKEN_BEFORE
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

/// What docs/schema says of the report.
fn schema() -> &'static jsonschema::Validator {
    static SCHEMA: LazyLock<jsonschema::Validator> = LazyLock::new(|| {
        let schema =
            serde_json::from_str(include_str!("../../docs/schema/doctor.json")).expect("JSON");
        jsonschema::validator_for(&schema).expect("a schema")
    });
    &SCHEMA
}

/// Bytes that no file system stores as a hole or packs.
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

/// A written and synced file.
fn written(path: &Path, len: usize) {
    LazyLock::force(&TAKEN_BEFORE);
    let file = std::fs::File::create(path).unwrap();
    file.write_all_at(&noise(len), 0).unwrap();
    file.sync_all().unwrap();
}

/// An empty ext4 of 256 MiB, mounted by the kernel with these options.
fn ext4_mount(folder: &TempDir, options: &str) -> Mounted {
    let image = folder.path().join("disk.img");
    mke2fs(&image, "256M", &["-b", "4096"]);
    Mounted::new(&image, options)
}

/// Any other mount, taken down again whatever happens.
struct HostMount {
    folder: TempDir,
}

impl HostMount {
    /// Mounts with the words of mount(8), the target left out.
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

/// Reads a file twice with no more memory than the group has.
fn read_twice(group: &Group, file: &Path) {
    let script = format!(
        "{0} && cat {1} {1} > /dev/null",
        group.entry(),
        file.display()
    );
    run("sh", ["-c", &script]);
}

/// A device is what lies below it, not where its node is.
#[test]
fn a_block_device_is_followed_down() {
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
    let told = Told::of(Path::new(device.trim()), &["--write-probe"]);
    told.has(&[]);
    assert_eq!(told.report["paths"][0]["kind"], "block-device");
    let chain = told.chain();
    assert!(chain[0].starts_with("disk loop"), "{chain:?}");
    assert_eq!(
        chain[1],
        format!("path {}", folder.path().join("disk.img").display())
    );
    mounted.unmount();
}

/// One reason is told once for each layer, without the kernel's number.
#[test]
fn reasons_are_not_repeated() {
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
    // Read-only, and not tried: there is nothing to try.
    assert_eq!(
        Told::of(&mounted.path(), &[]).check("flush-on-truncate")["verdict"],
        "fine"
    );
    mounted.unmount();
}

#[test]
fn exit_codes_tell_what_was_found() {
    let folder = TempDir::new().unwrap();
    let missing = folder.path().join("missing");
    let output = doctor([&missing]);
    assert_eq!(output.status.code(), Some(3), "{}", text(&output));
    assert!(text(&output).contains("missing"), "{}", text(&output));
    let told = Told::of(&missing, &[]);
    assert_eq!(
        (
            told.code,
            told.report["not_probed"].as_array().map(Vec::len)
        ),
        (Some(3), Some(1))
    );
    assert_eq!(doctor(["--read-limit", "much", "/"]).status.code(), Some(2));
    assert_eq!(doctor([""; 0]).status.code(), Some(2));
}

/// Nothing is opened that may wait for ever or do something.
#[test]
fn special_files_are_not_opened() {
    requires!(tool("mkfifo"));
    let folder = TempDir::new().unwrap();
    let fifo = folder.path().join("fifo");
    run("mkfifo", [&fifo]);
    let told = Told::of(&fifo, &[]);
    assert_eq!(told.report["paths"][0]["kind"], "special");
    told.has(&[]);
    let told = Told::of(Path::new("/dev/null"), &[]);
    assert_eq!(told.report["paths"][0]["kind"], "special");
    // Nothing is written beside a device.
    Told::of(Path::new("/dev/null"), &["--write-probe"]).has(&[]);
    // A file of no size that has contents all the same.
    Told::of(Path::new("/proc/version"), &[]).has(&[]);
}

/// What was not asked for is not done: no file is written, no byte of the file changes, and no more
/// is read than allowed.
#[test]
fn looking_changes_nothing() {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("file");
    written(&file, 4 << 20);
    let before = std::fs::metadata(&file).unwrap();
    let told = Told::of(&file, &["--read-limit", "1M"]);
    let check = told.check("page-cache-bypassed");
    assert!(
        check["evidence"]
            .as_str()
            .is_some_and(|text| text.contains("256 KiB")),
        "{check:#}"
    );
    let after = std::fs::metadata(&file).unwrap();
    assert_eq!(before.modified().unwrap(), after.modified().unwrap());
    for options in [&["--write-probe"][..], &[]] {
        Told::of(folder.path(), options);
        let names: Vec<_> = std::fs::read_dir(folder.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .collect();
        assert_eq!(names, ["file"], "{options:?}");
    }
    let none = Told::of(&file, &["--read-limit", "0"]);
    assert_eq!(none.check("page-cache-bypassed")["verdict"], "unknown");
}

/// A file inside an image is judged by Folio's own counters, and the image beside it.
#[test]
fn a_file_inside_an_image_is_read_through_folio() {
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
    let told = Told::of(&place, &[]);
    assert_eq!(
        told.check("evicted")["verdict"],
        "fine",
        "{:#}",
        told.report
    );
    assert_eq!(told.check("evicted")["numbers"]["misses"], 0);
    assert_eq!(told.check("fragmented")["verdict"], "fine");
    assert_eq!(
        told.chain()[..2],
        [
            "file-system ext4".to_owned(),
            format!("path {}", image.display())
        ]
    );
    assert_eq!(told.report["paths"][1]["path"], image.display().to_string());
    // With a cache too small for it.
    let told = Told::of(&place, &["--cache", "1M"]);
    assert!(told.faults().contains(&"evicted"), "{:#}", told.report);
    let none = Told::of(Path::new(&format!("{}:/none", image.display())), &[]);
    assert_eq!(none.code, Some(3));
}

/// What is told for people has the same faults, and unknown things are told as such.
#[test]
fn text_tells_what_json_tells() {
    let folder = TempDir::new().unwrap();
    written(&folder.path().join("a"), 2 << 20);
    written(&folder.path().join("b"), 1 << 20);
    let output = doctor([folder.path()]);
    let shown = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        shown.contains("attributes") && shown.contains("page-cache"),
        "{shown}"
    );
    assert!(
        String::from_utf8_lossy(&output.stderr).contains("as samples of"),
        "{}",
        text(&output)
    );
    let told = Told::of(folder.path(), &[]);
    assert_eq!(
        told.report["paths"].as_array().map(Vec::len),
        Some(3),
        "{:#}",
        told.report
    );
}
