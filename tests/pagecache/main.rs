//! `folio warm` and `folio cache`, run as commands and compared with the kernel's own counters.

mod images;
#[path = "../support/mod.rs"]
mod support;

use rustix::io::ReadWriteFlags;
use serde_json::Value;
use std::fs::{self, File};
use std::io::{IoSliceMut, Read};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use support::tools::{command, run};
use support::{Group, report_skip, requires};
use tempfile::TempDir;

const PAGE: u64 = 4096;
const MIB: u64 = 1 << 20;

/// A folder on the disk that holds the build. Pages of a file system in memory, such as tmpfs,
/// cannot be dropped.
struct Bench {
    folder: TempDir,
    _cache: Cache,
}

/// All tests share the page cache: a test that drops all of it holds this lock exclusively.
static CACHE: RwLock<()> = RwLock::new(());

enum Cache {
    Shared(#[allow(dead_code)] RwLockReadGuard<'static, ()>),
    Alone(#[allow(dead_code)] RwLockWriteGuard<'static, ()>),
}

fn shared() -> Cache {
    Cache::Shared(CACHE.read().unwrap_or_else(PoisonError::into_inner))
}

impl Bench {
    fn new() -> Self {
        Self {
            folder: TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap(),
            _cache: shared(),
        }
    }

    /// Returns a bench that excludes all others while it exists.
    fn alone() -> Self {
        let cache = Cache::Alone(CACHE.write().unwrap_or_else(PoisonError::into_inner));
        Self {
            folder: TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap(),
            _cache: cache,
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Creates a file of this size without pages in memory.
    fn cold(&self, name: &str, size_bytes: u64) -> PathBuf {
        let path = self.path(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        let bytes: Vec<u8> = (0..size_bytes)
            .map(|at| (at >> 8) as u8 ^ at as u8)
            .collect();
        fs::write(&path, bytes).unwrap();
        forget(&path);
        assert_eq!(resident(&path), 0, "{}", path.display());
        path
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_folio"));
        command
            .args(arguments)
            .current_dir(self.folder.path())
            .stdin(Stdio::null());
        command
    }

    fn output(&self, arguments: &[&str]) -> (Output, String) {
        let output = self.command(arguments).output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!stderr.contains("panicked"), "{arguments:?}: {stderr}");
        (output, stderr)
    }

    #[track_caller]
    fn ok(&self, arguments: &[&str]) -> String {
        let (output, stderr) = self.output(arguments);
        assert!(
            output.status.success() && stderr.is_empty(),
            "{arguments:?}: {stderr}"
        );
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    #[track_caller]
    fn json(&self, arguments: &[&str]) -> Value {
        serde_json::from_str(&self.ok(&[arguments, &["--json"]].concat())).unwrap()
    }

    /// Runs a command that fails with exit code 1 and these words, and returns its JSON report.
    #[track_caller]
    fn partly(&self, arguments: &[&str], words: &str) -> Value {
        let arguments = [arguments, &["--json"]].concat();
        let (output, stderr) = self.output(&arguments);
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {stderr}");
        assert!(
            stderr.contains(words),
            "{arguments:?}: {stderr:?} lacks {words:?}"
        );
        serde_json::from_slice(&output.stdout).unwrap()
    }
}

/// Drops the pages of a file from the page cache, without Folio.
fn forget(path: &Path) {
    let file = File::open(path).unwrap();
    file.sync_all().unwrap();
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
}

/// Returns the bytes in memory, as fincore(1) counts them: whole pages.
fn resident(path: &Path) -> u64 {
    let arguments = ["--bytes", "--noheadings", "--output", "RES"].map(Into::into);
    let said = run(
        "fincore",
        arguments.into_iter().chain([path.as_os_str().to_owned()]),
    );
    said.trim()
        .parse()
        .unwrap_or_else(|_| panic!("fincore: {said}"))
}

/// Returns which pages of a file are in memory: those that can be read without waiting. The check
/// itself reads the others in the background.
fn pages(path: &Path) -> Vec<bool> {
    let file = File::open(path).unwrap();
    let size_bytes = file.metadata().unwrap().len();
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::Random).unwrap();
    let is_there = |page: u64| {
        let mut byte = [0];
        let mut bufs = [IoSliceMut::new(&mut byte)];
        rustix::io::preadv2(&file, &mut bufs, page * PAGE, ReadWriteFlags::NOWAIT) == Ok(1)
    };
    (0..size_bytes.div_ceil(PAGE)).map(is_there).collect()
}

/// Reads exactly these pages of a file.
fn touch(path: &Path, pages: impl IntoIterator<Item = u64>) {
    let file = File::open(path).unwrap();
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::Random).unwrap();
    for page in pages {
        file.read_exact_at(&mut [0; PAGE as usize], page * PAGE)
            .unwrap();
    }
}

#[test]
fn status_matches_fincore() {
    requires!(tool("fincore"));
    let bench = Bench::new();
    let file = bench.cold("tree/a", 2 * MIB);
    touch(&file, (0..100).map(|page| page * 5));
    bench.cold("tree/deep/b", MIB);
    fs::hard_link(&file, bench.path("tree/deep/again")).unwrap();
    let report = bench.json(&["cache", "status", "tree"]);
    assert_eq!(report["resident_bytes"], 100 * PAGE);
    assert_eq!(report["resident_bytes"].as_u64(), Some(resident(&file)));
    assert_eq!(
        (&report["files"], &report["size_bytes"]),
        (&2.into(), &(3 * MIB).into()),
        "a hard link is not counted twice"
    );
    assert_eq!(report["entries"].as_array().unwrap().len(), 3);
    let report = bench.json(&["cache", "status", "--tree", "tree"]);
    let paths: Vec<_> = report["entries"]
        .as_array()
        .unwrap()
        .iter()
        .map(|entry| &entry["path"])
        .collect();
    assert_eq!(paths, ["tree", "tree/deep"]);
    let text = bench.ok(&["cache", "status", "--sort", "cached", "-n", "1", "tree"]);
    assert!(
        text.contains("400K") && text.contains("tree/a") && !text.contains("deep/b"),
        "{text}"
    );
    let lines = bench.ok(&[
        "cache", "status", "-s", "--watch", "0.01", "--count", "3", "--json", "tree",
    ]);
    assert_eq!(lines.lines().count(), 3);
}

#[test]
fn resident_pages_are_not_read_again() {
    requires!(tool("fincore"));
    let bench = Bench::new();
    let large = bench.cold("tree/large", 20 * MIB + 5);
    touch(&large, 100..600);
    for number in 0..50 {
        bench.cold(
            &format!("tree/{}/small{number}", number % 5),
            1 + number * 300,
        );
    }
    let small: u64 = (0..50).map(|number| 1 + number * 300).sum();
    for order in ["inode", "physical"] {
        let report = bench.json(&["warm", "--order", order, "tree"]);
        assert_eq!(report["files"], 51);
        assert_eq!(report["resident_before_bytes"], 500 * PAGE);
        assert_eq!(
            report["read_bytes"],
            20 * MIB + 5 + small - 500 * PAGE,
            "{report}"
        );
        assert!(pages(&large).iter().all(|is_there| *is_there));
        let report = bench.json(&["warm", "tree"]);
        assert_eq!(
            (&report["read_bytes"], &report["over_budget_bytes"]),
            (&0.into(), &0.into())
        );
        let status = bench.json(&["cache", "status", "tree"]);
        assert_eq!(status["resident_bytes"], status["size_bytes"]);
        bench.ok(&["cache", "drop", "tree"]);
        touch(&large, 100..600);
    }
    let report = bench.json(&["warm", "--dry-run", "tree"]);
    assert_eq!(
        (&report["read_bytes"], resident(&large)),
        (&0.into(), 500 * PAGE)
    );
    let report = bench.json(&["warm", "--include", "small1*", "--exclude", "3", "tree"]);
    assert_eq!(
        report["files"], 9,
        "small1 and small10 to small19 without those in folder 3"
    );
}

#[test]
fn holes_are_not_read() {
    requires!(tool("fincore"));
    let bench = Bench::new();
    let file = File::create(bench.path("sparse")).unwrap();
    file.set_len(1 << 30).unwrap();
    file.write_all_at(&vec![7; MIB as usize], 512 * MIB)
        .unwrap();
    forget(&bench.path("sparse"));
    let report = bench.json(&["warm", "sparse"]);
    assert_eq!(
        (&report["read_bytes"], resident(&bench.path("sparse"))),
        (&MIB.into(), MIB)
    );
}

#[test]
fn warm_never_exceeds_budget() {
    requires!(tool("fincore"));
    let bench = Bench::new();
    let files: Vec<_> = (0..6)
        .map(|n| bench.cold(&format!("tree/{n}"), (1 + n) * MIB + n * 100))
        .collect();
    for order in ["inode", "physical"] {
        for budget in [0, PAGE, 10 * PAGE + 1, 3 * MIB, 7 * MIB + 123, 100 * MIB] {
            files.iter().for_each(|file| forget(file));
            // Some scattered pages are in memory already.
            files
                .iter()
                .skip(1)
                .for_each(|file| touch(file, (0..100).map(|page| page * 2)));
            let before: u64 = files.iter().map(|file| resident(file)).sum();
            let budget_text = budget.to_string();
            let report = bench.json(&["warm", "--order", order, "--budget", &budget_text, "tree"]);
            let after: u64 = files.iter().map(|file| resident(file)).sum();
            // Less than before: another program on this machine has dropped the cache.
            let Some(came) = after.checked_sub(before) else {
                continue;
            };
            assert!(
                came <= budget,
                "{order}, {budget}: {came} came in; {report}"
            );
            // Only whole pages are read.
            assert!(
                came + 7 * PAGE >= budget.min(21 * MIB - before),
                "{order}, {budget}: only {came}; {report}"
            );
            let sum = ["resident_before_bytes", "read_bytes", "over_budget_bytes"]
                .map(|key| report[key].as_u64().unwrap());
            assert_eq!(
                Some(sum.iter().sum()),
                report["size_bytes"].as_u64(),
                "{report}"
            );
        }
    }
    let (output, stderr) = bench.output(&["warm", "--budget", "100000G", "--json", "tree"]);
    assert!(
        output.status.success() && stderr.contains("is cut to"),
        "{stderr}"
    );
}

/// Runs a command of folio as an unprivileged user.
fn as_unprivileged(bench: &Bench, arguments: &[&str]) -> (Output, String) {
    let program = bench.path("folio");
    if !program.exists() {
        // The user may have no access to the build directory.
        fs::copy(env!("CARGO_BIN_EXE_folio"), &program).unwrap();
    }
    let mut command = command("setpriv");
    command
        .args(["--reuid", "65534", "--regid", "65534", "--clear-groups"])
        .arg(&program)
        .args(arguments);
    let output = command.current_dir(bench.folder.path()).output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    (output, stderr)
}

/// Returns a bench that all users can read.
fn open_bench() -> Bench {
    let bench = Bench {
        folder: TempDir::new_in("/var/tmp").unwrap(),
        _cache: shared(),
    };
    fs::set_permissions(bench.folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    bench
}

#[test]
fn unknown_residency_respects_budget() {
    requires!(root, tool("setpriv"), tool("fincore"));
    let bench = open_bench();
    let file = bench.path("theirs");
    fs::write(&file, vec![1; 4 << 20]).unwrap();
    forget(&file);
    let (output, stderr) = as_unprivileged(&bench, &["cache", "status", "--json", "theirs"]);
    assert!(output.status.success(), "{stderr}");
    let status: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(
        (&status["unknown_files"], &status["entries"][0]["unknown"]),
        (&1.into(), &"rights".into())
    );
    let (output, _) = as_unprivileged(&bench, &["cache", "status", "theirs"]);
    assert!(String::from_utf8_lossy(&output.stdout).contains("?       ?     ?"));
    for (budget, most) in [("1M", MIB), ("8M", 4 * MIB)] {
        forget(&file);
        let (output, stderr) = as_unprivileged(&bench, &["warm", "--budget", budget, "theirs"]);
        assert!(output.status.success(), "{stderr}");
        assert_eq!(resident(&file), most);
    }
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
    fs::write(bench.path("readable"), "x").unwrap();
    for arguments in [
        &["warm", "."][..],
        &["cache", "status", "."],
        &["cache", "drop", "."],
    ] {
        let (output, stderr) = as_unprivileged(&bench, arguments);
        assert_eq!(output.status.code(), Some(1), "{arguments:?}");
        assert!(
            stderr.contains("theirs: Permission denied"),
            "{arguments:?}: {stderr}"
        );
    }
}

#[test]
fn warmed_pages_stay_when_memory_runs_short() {
    requires!(root, tool("unshare"), tool("dd"), tool("fincore"));
    let bench = Bench::new();
    let Some(group) = Group::new(512 * MIB) else {
        return report_skip("needs control groups that limit memory");
    };
    let files: Vec<_> = (0..8)
        .map(|n| bench.cold(&format!("tree/{n}"), 8 * MIB))
        .collect();
    fs::create_dir(bench.path("taken")).unwrap();
    // Files of a tmpfs take memory that the kernel cannot reclaim, until the mount ends with its
    // namespace. 30 MiB are left: the budget is 27 MiB, and 10 MiB, 2% of all, have to stay free.
    let in_group = |words: &str| {
        files.iter().for_each(|file| forget(file));
        let script = format!(
            "{} && mount -t tmpfs none taken && dd if=/dev/zero of=taken/file bs=1M count=482 status=none && \
             exec {} warm {words} tree",
            group.entry(),
            env!("CARGO_BIN_EXE_folio")
        );
        let mut command = command("unshare");
        command
            .args(["--mount", "sh", "-ec", &script])
            .current_dir(bench.folder.path());
        let output = command.output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(
            output.status.success() && stderr.is_empty(),
            "{words}: {:?}: {stderr}",
            output.status
        );
        (
            String::from_utf8_lossy(&output.stdout).into_owned(),
            files.iter().map(|file| resident(file)).sum::<u64>(),
        )
    };
    let (stdout, there) = in_group("--json");
    let report: Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!(report["memory_short"], true, "{report}");
    let read = report["read_bytes"].as_u64().unwrap();
    // So near the limit the kernel may reclaim some pages of the group.
    assert!(
        (read * 3 / 4..=read).contains(&there),
        "only the pages that were read are in memory: {there}, {report}"
    );
    assert_eq!(
        read + report["over_budget_bytes"].as_u64().unwrap(),
        64 * MIB,
        "{report}"
    );
    assert!((5 * MIB..30 * MIB).contains(&there), "{report}");
    let (stdout, _) = in_group("");
    assert!(
        stdout.contains("M left out: memory ran short before the budget of "),
        "{stdout}"
    );
}

#[test]
fn hot_set_restores_exactly_its_pages() {
    requires!(tool("fincore"));
    let bench = Bench::new();
    let names = [
        "tree/stripes",
        "tree/full",
        "tree/cold",
        "tree/odd name\u{e9}",
    ];
    let files: Vec<_> = names
        .iter()
        .map(|name| bench.cold(name, 4 * MIB + 10))
        .collect();
    let stripes: Vec<u64> = (0..1024).filter(|page| page / 7 % 3 == 0).collect();
    touch(&files[0], stripes.iter().copied());
    touch(&files[1], 0..1024);
    fs::read(&files[1]).unwrap();
    touch(&files[3], [1000]);
    let report = bench.json(&["cache", "save", "hot", "tree"]);
    assert_eq!(report["files"], 3);
    assert_eq!(
        report["hot_bytes"],
        (stripes.len() as u64 + 1) * PAGE + 4 * MIB + 10
    );
    assert!(report["file_bytes"].as_u64().unwrap() < 2000, "{report}");
    let before: Vec<u64> = files.iter().map(|file| resident(file)).collect();
    for order in ["auto", "inode", "physical"] {
        let restore = || {
            files.iter().for_each(|file| forget(file));
            let report = bench.json(&["cache", "restore", "--order", order, "hot"]);
            assert_eq!(
                (&report["files"], &report["changed_files"]),
                (&3.into(), &0.into())
            );
            let after: Vec<u64> = files.iter().map(|file| resident(file)).collect();
            let there = pages(&files[0]);
            (
                after,
                (0..1025)
                    .filter(|page| there[*page as usize])
                    .collect::<Vec<u64>>(),
            )
        };
        // Other programs on the machine use the page cache, too: one attempt of four has to be
        // undisturbed.
        let wanted = (before.clone(), stripes.clone());
        let last = (0..3)
            .map(|_| restore())
            .find(|found| *found == wanted)
            .unwrap_or_else(&restore);
        assert_eq!(last, wanted, "{order}: exactly the hot pages");
    }
    files.iter().for_each(|file| forget(file));
    let report = bench.json(&["cache", "restore", "--budget", "1M", "hot"]);
    assert_eq!(report["read_bytes"], MIB);
    assert_eq!(files.iter().map(|file| resident(file)).sum::<u64>(), MIB);
}

#[test]
fn hot_set_survives_drop_caches() {
    requires!(root, tool("fincore"));
    let bench = Bench::alone();
    let file = bench.cold("hot-file", 2 * MIB);
    touch(&file, 10..200);
    bench.ok(&["cache", "save", "set", "hot-file"]);
    rustix::fs::sync();
    if let Err(error) = fs::write("/proc/sys/vm/drop_caches", "1") {
        return support::report_skip(&format!("drop_caches: {error}"));
    }
    assert_eq!(resident(&file), 0);
    bench.ok(&["cache", "restore", "set"]);
    assert_eq!(resident(&file), 190 * PAGE);
}

#[test]
fn changed_files_are_not_restored() {
    let bench = Bench::new();
    for name in [
        "same", "written", "grown", "shrunk", "unlinked", "fifo", "folder",
    ] {
        fs::write(bench.path(name), vec![7; 100_000]).unwrap();
    }
    bench.ok(&["cache", "save", "hot", "."]);
    let open = |name: &str| File::options().write(true).open(bench.path(name)).unwrap();
    open("written").write_all_at(b"x", 50).unwrap();
    open("grown").write_all_at(b"x", 200_000).unwrap();
    open("shrunk").set_len(1000).unwrap();
    for name in ["unlinked", "fifo", "folder"] {
        fs::remove_file(bench.path(name)).unwrap();
    }
    run("mkfifo", [bench.path("fifo")]);
    fs::create_dir(bench.path("folder")).unwrap();
    let report = bench.json(&["cache", "restore", "hot"]);
    assert_eq!(
        (&report["files"], &report["changed_files"]),
        (&1.into(), &6.into())
    );
    let text = bench.ok(&["cache", "restore", "hot"]);
    assert!(text.contains("6 files left out"), "{text}");
    fs::write(bench.path("no-set"), "no set").unwrap();
    for (name, words) in [
        ("no-set", "no-set: not a hot set"),
        ("nothing", "nothing: No such file"),
    ] {
        let (output, stderr) = bench.output(&["cache", "restore", name]);
        assert!(
            output.status.code() == Some(1) && stderr.contains(words),
            "{stderr}"
        );
    }
    let (output, stderr) = bench.output(&["cache", "save", "no/folder", "same"]);
    assert!(
        output.status.code() == Some(1) && stderr.contains("no/folder: No such file"),
        "{stderr}"
    );
}

#[test]
fn special_files_are_counted_and_skipped() {
    let bench = Bench::new();
    fs::create_dir(bench.path("tree")).unwrap();
    run("mkfifo", [bench.path("tree/fifo")]);
    let socket = std::os::unix::net::UnixListener::bind(bench.path("tree/socket")).unwrap();
    std::os::unix::fs::symlink("/etc", bench.path("tree/etc")).unwrap();
    fs::write(bench.path("tree/file"), "x").unwrap();
    for arguments in [
        &["warm", "tree"][..],
        &["cache", "status", "tree"],
        &["cache", "drop", "tree"],
    ] {
        let report = bench.json(arguments);
        assert_eq!(
            (&report["files"], &report["not_regular"]),
            (&1.into(), &2.into()),
            "{arguments:?}"
        );
    }
    assert_eq!(
        bench.json(&["cache", "save", "set", "tree"])["not_regular"],
        2
    );
    drop(socket);
    let report = bench.json(&[
        "warm",
        "/dev/null",
        "/dev/zero",
        "/proc/self/status",
        "/proc/meminfo",
    ]);
    assert_eq!(
        (&report["not_regular"], &report["read_bytes"]),
        (&2.into(), &0.into())
    );
    // Some of these files are unreadable, some disappear; the command must not hang.
    bench.output(&["warm", "/proc/self", "/sys/kernel/mm"]);
    bench.output(&["cache", "status", "-s", "/proc/self", "/sys/kernel/mm"]);
    bench.partly(&["warm", "tree", "not/there"], "not/there: No such file");
    bench.partly(
        &["cache", "status", "tree", "not/there"],
        "not/there: No such file",
    );
    fs::remove_file(bench.path("tree/etc")).unwrap();
    fs::create_dir(bench.path("elsewhere")).unwrap();
    fs::write(bench.path("elsewhere/file"), "x").unwrap();
    std::os::unix::fs::symlink("../elsewhere", bench.path("tree/link")).unwrap();
    assert_eq!(bench.json(&["warm", "tree"])["files"], 1);
    assert_eq!(
        bench.json(&["warm", "-L", "tree"])["files"],
        2,
        "links are followed if asked"
    );
}

#[test]
fn files_may_change_during_warm() {
    let bench = Bench::new();
    let path = |number: usize| bench.path(&format!("tree/{number}"));
    fs::create_dir(bench.path("tree")).unwrap();
    (0..200).for_each(|number| fs::write(path(number), vec![1; 30_000]).unwrap());
    let is_over = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for round in 0.. {
                if is_over.load(std::sync::atomic::Ordering::Relaxed) {
                    return;
                }
                let number = round * 7 % 200;
                match round % 4 {
                    0 => drop(fs::remove_file(path(number))),
                    1 => fs::write(path(number), vec![2; round % 90_000]).unwrap(),
                    2 => drop(File::create(path(number)).unwrap().set_len(1 << 20)),
                    _ => drop(File::create(path(number)).unwrap().set_len(10)),
                }
            }
        });
        for command in [
            &["warm"][..],
            &["warm", "--order", "physical"],
            &["cache", "drop", "--sync"],
        ]
        .repeat(5)
        {
            let (output, stderr) = bench.output(&[command, &["tree"]].concat());
            // The only errors are files that were unlinked after they were found.
            let is_unlinked = |line: &str| line.ends_with("No such file or directory");
            assert!(
                output.status.success() || stderr.lines().all(is_unlinked),
                "{stderr}"
            );
        }
        is_over.store(true, std::sync::atomic::Ordering::Relaxed);
    });
}

/// A child process; dropping it kills it.
struct Held(Child);

impl Drop for Held {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn locked_pages_stay_and_drop_reports_them() {
    requires!(tool("fincore"));
    let bench = Bench::new();
    let file = bench.cold("locked", MIB);
    let over = bench.cold("over", MIB);
    let arguments = [
        "warm", "--lock", "--json", "--order", "inode", "--budget", "1M", "locked", "over",
    ];
    let mut child = bench
        .command(&arguments)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut stdout = child.stdout.take().unwrap();
    let mut held = Held(child);
    let mut text = Vec::new();
    while !text.ends_with(b"\n}\n") {
        let mut byte = [0];
        assert_eq!(
            stdout.read(&mut byte).unwrap(),
            1,
            "the command keeps running"
        );
        text.push(byte[0]);
    }
    let report: Value = serde_json::from_slice(&text).unwrap();
    assert_eq!(
        (&report["locked_bytes"], resident(&file) + resident(&over)),
        (&MIB.into(), MIB),
        "{report}"
    );
    let report = bench.json(&["cache", "drop", "locked", "over"]);
    assert_eq!(
        (&report["stayed_bytes"], &report["stayed"][0]["reason"]),
        (&MIB.into(), &"in-use".into())
    );
    run("kill", ["-INT", &held.0.id().to_string()]);
    assert!(held.0.wait().unwrap().success());
    assert_eq!(
        bench.json(&["cache", "drop", "locked", "over"])["stayed_bytes"],
        0
    );
}

#[test]
fn dirty_pages_stay_until_synced() {
    let bench = Bench::new();
    fs::write(bench.path("fresh"), vec![7; 8 << 20]).unwrap();
    let report = bench.json(&["cache", "drop", "fresh"]);
    let of = |report: &Value, key: &str| report[key].as_u64().unwrap();
    assert_eq!(
        of(&report, "dropped_bytes") + of(&report, "stayed_bytes"),
        8 * MIB
    );
    let report = bench.json(&["cache", "drop", "--sync", "fresh"]);
    assert_eq!(of(&report, "stayed_bytes"), 0, "{report}");
}

/// An overlay; dropping it unmounts.
struct Overlay(PathBuf);

impl Drop for Overlay {
    fn drop(&mut self) {
        let _ = command("umount").arg("--lazy").arg(&self.0).status();
    }
}

#[test]
fn overlay_residency_comes_from_mincore() {
    requires!(root, tool("mount"), tool("fincore"));
    let bench = Bench::new();
    let below = bench.cold("lower/file", 2 * MIB);
    for name in ["upper", "work", "merged"] {
        fs::create_dir(bench.path(name)).unwrap();
    }
    let options =
        ["lower", "upper", "work"].map(|name| format!("{name}dir={}", bench.path(name).display()));
    let merged = bench.path("merged");
    let mut mount = command("mount");
    mount
        .args(["-t", "overlay", "overlay", "-o", &options.join(",")])
        .arg(&merged);
    let output = mount.output().unwrap();
    if !output.status.success() {
        return support::report_skip("overlays cannot be mounted here");
    }
    let overlay = Overlay(merged);
    touch(&below, 0..50);
    let report = bench.json(&["cache", "status", "merged"]);
    assert_eq!(
        (&report["resident_bytes"], &report["dirty_bytes"]),
        (&(50 * PAGE).into(), &Value::Null)
    );
    let report = bench.json(&["warm", "merged"]);
    assert_eq!(report["read_bytes"], 2 * MIB - 50 * PAGE);
    assert_eq!(resident(&below), 2 * MIB);
    assert_eq!(bench.json(&["warm", "merged"])["read_bytes"], 0);
    bench.ok(&["cache", "save", "set", "merged"]);
    assert_eq!(bench.json(&["cache", "drop", "merged"])["stayed_bytes"], 0);
    assert_eq!(resident(&below), 0);
    let report = bench.json(&["warm", "--budget", "100K", "merged"]);
    assert_eq!(
        (&report["read_bytes"], resident(&below)),
        (&(25 * PAGE).into(), 25 * PAGE)
    );
    assert_eq!(bench.json(&["cache", "restore", "set"])["files"], 1);
    assert_eq!(resident(&below), 2 * MIB);
    drop(overlay);
}

#[test]
fn recipe_selects_files_to_warm() {
    let bench = Bench::new();
    bench.ok(&["mkfs", "disk.img", "--size", "8M"]);
    for name in ["data/a.ibd", "data/b.log", "more/c.ibd"] {
        fs::create_dir_all(bench.path(name).parent().unwrap()).unwrap();
        fs::write(bench.path(name), "x").unwrap();
    }
    fs::write(
        bench.path("recipe"),
        "# tables\ndata\nmore\n+ *.ibd\n- more\n",
    )
    .unwrap();
    assert_eq!(
        bench.json(&["warm", "--recipe", "recipe"])["files"],
        2,
        "named paths are not excluded"
    );
    let (output, stderr) = bench.output(&["warm", "--recipe", "none"]);
    assert!(
        output.status.code() == Some(1) && stderr.contains("none: No such file"),
        "{stderr}"
    );
}

#[test]
fn meminfo_matches_proc() {
    let bench = Bench::new();
    let report = bench.json(&["cache", "meminfo"]);
    let text = fs::read_to_string("/proc/meminfo").unwrap();
    let total = text
        .split_whitespace()
        .nth(1)
        .unwrap()
        .parse::<u64>()
        .unwrap()
        * 1024;
    assert_eq!(report["total_bytes"], total);
    let lines = bench.ok(&[
        "cache", "meminfo", "--watch", "0.01", "--count", "3", "--json",
    ]);
    let lines: Vec<Value> = lines
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(lines.len(), 3);
    assert!(
        lines[0]["per_second"].is_null() && lines[2]["per_second"]["refaulted_pages"].is_number()
    );
    assert_eq!(
        bench
            .ok(&["cache", "meminfo", "--watch", "0.01", "--count", "2"])
            .lines()
            .count(),
        3
    );
    assert!(bench.ok(&["cache", "meminfo"]).contains("available"));
    for arguments in [
        &["cache", "meminfo", "--watch", "soon"][..],
        &["cache", "meminfo", "--count", "2"],
    ] {
        assert_eq!(
            bench.output(arguments).0.status.code(),
            Some(2),
            "{arguments:?}"
        );
    }
}

#[test]
fn top_lists_fullest_files_and_folders() {
    let bench = Bench::new();
    for (name, len) in [
        ("a/large", 3 << 20),
        ("a/small", 5000),
        ("b/middle", 1 << 20),
    ] {
        fs::create_dir_all(bench.path(name).parent().unwrap()).unwrap();
        fs::write(bench.path(name), vec![1; len]).unwrap();
    }
    let paths = |report: &Value| -> Vec<String> {
        report["entries"]
            .as_array()
            .unwrap()
            .iter()
            .map(|entry| entry["path"].as_str().unwrap().to_owned())
            .collect()
    };
    let report = bench.json(&["cache", "top", "-n", "2", "a", "b"]);
    assert_eq!(paths(&report), ["a/large", "b/middle"]);
    assert_eq!(
        (&report["files"], &report["cached_bytes"]),
        (&3.into(), &Value::Null)
    );
    let deep = bench.folder.path().components().count();
    let report = bench.json(&[
        "cache",
        "top",
        "--by",
        "folder",
        "--depth",
        &deep.to_string(),
        "a",
        "b",
    ]);
    let wanted = ["a", "b"].map(|name| {
        bench
            .path(name)
            .canonicalize()
            .unwrap()
            .display()
            .to_string()
    });
    assert_eq!(paths(&report), wanted);
    assert_eq!(report["entries"][0]["files"], 2);
}
