//! `folio doctor --try -- COMMAND`: the command again with each cure, and what is left behind.

use super::workload::checked;
use super::*;
use crate::mount::FuseMount;
use crate::served::{Keeps, Pages, Served};
use std::fs::File;
use std::os::unix::process::ExitStatusExt;
use std::time::Duration;

const SYNC: &str = "os.pwrite(fd, b'x', 0); os.fsync(fd)";
const WRITE: &str = "os.pwrite(fd, b'x', 0)";

/// A script that counts its runs in the file `runs`, opens a file, and then repeats a statement for
/// half a second, as waits of a fast disk add up, too.
fn script(start: &str, statement: &str) -> String {
    format!(
        "import os, fcntl, time\n\
         open('runs', 'a').write('x')\n\
         fd = os.open('f', os.O_CREAT | os.O_RDWR)\n\
         {start}\n\
         end = time.monotonic() + 0.5\n\
         while time.monotonic() < end: {statement}"
    )
}

fn doctor_in(folder: &Path, options: &[&str], words: &[&str]) -> Command {
    let mut command = command(env!("CARGO_BIN_EXE_folio"));
    command.current_dir(folder).arg("doctor").args(options);
    command.arg("--").args(words).stdin(Stdio::null());
    command
}

/// Tries the cures of a command; returns the first finding.
#[track_caller]
fn tried(folder: &Path, options: &[&str], words: &[&str]) -> Value {
    let all = [&["--json", "--try"], options].concat();
    let output = doctor_in(folder, &all, words).output().unwrap();
    let first = checked(&output)["checks"][0].clone();
    assert!(first["trial"].is_object(), "{first:#}: {}", text(&output));
    first
}

/// Checks that the trial has three pairs of runs, and that its numbers follow from them.
#[track_caller]
fn is_measured(check: &Value, cause: &str) {
    let trial = &check["trial"];
    assert_eq!(
        (&check["cause"], &trial["result"]),
        (&cause.into(), &"measured".into()),
        "{check:#}"
    );
    let median_ms =
        ["baseline_s", "cured_s"].map(|times| (median_s(trial, times) * 1e3).round() as i64);
    let measured_ms = (trial["measured_s"].as_f64().unwrap() * 1e3).round() as i64;
    assert_eq!(measured_ms, median_ms[0] - median_ms[1], "{check:#}");
}

/// The median of three runs.
#[track_caller]
fn median_s(trial: &Value, times: &str) -> f64 {
    let times = trial[times].as_array().unwrap().iter();
    let mut times: Vec<_> = times.map(|time| time.as_f64().unwrap()).collect();
    times.sort_by(f64::total_cmp);
    assert_eq!(times.len(), 3, "{trial:#}");
    times[1]
}

#[track_caller]
fn reason(check: &Value) -> &str {
    assert_eq!(check["trial"]["result"], "not-tried", "{check:#}");
    check["trial"]["reason"].as_str().unwrap()
}

fn len(path: PathBuf) -> u64 {
    std::fs::metadata(path).unwrap().len()
}

#[test]
fn trial_runs_the_command_in_pairs() {
    requires!(tool("python3"));
    let folder = TempDir::new().unwrap();
    let script = script("", SYNC);
    let setup = ["--setup", "echo prepared; printf y >> setups"];
    let check = tried(folder.path(), &setup, &["python3", "-c", &script]);
    is_measured(&check, "fsync-waits");
    // Examined once, and three times each without and with the cure.
    let counts = ["runs", "setups"].map(|name| len(folder.path().join(name)));
    assert_eq!(counts, [7, 6]);
}

#[test]
fn synchronous_opens_are_tried_without_flags() {
    requires!(tool("python3"));
    let folder = TempDir::new().unwrap();
    let start = "fd = os.open('f', os.O_RDWR | os.O_DSYNC)\n\
                 is_sync = fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_DSYNC > 0\n\
                 open('flags', 'a').write(f'{int(is_sync)} ')";
    let check = tried(
        folder.path(),
        &[],
        &["python3", "-c", &script(start, WRITE)],
    );
    is_measured(&check, "synchronous-writes");
    let flags = std::fs::read_to_string(folder.path().join("flags")).unwrap();
    assert_eq!(flags, "1 1 0 0 1 1 0 ");
}

#[test]
fn command_that_fails_again_is_not_tried() {
    requires!(tool("python3"));
    let folder = TempDir::new().unwrap();
    let script = script("os.mkdir('new')", SYNC);
    let words = ["python3", "-c", &script];
    let check = tried(folder.path(), &[], &words);
    assert!(reason(&check).contains("exit status: 1"), "{check:#}");
    assert!(reason(&check).contains("--setup"), "{check:#}");
    std::fs::remove_dir(folder.path().join("new")).unwrap();
    let check = tried(folder.path(), &["--setup", "rmdir new"], &words);
    is_measured(&check, "fsync-waits");
}

#[test]
fn failing_setup_ends_the_trial() {
    requires!(tool("python3"));
    let folder = TempDir::new().unwrap();
    let script = script("", SYNC);
    let check = tried(
        folder.path(),
        &["--setup", "exit 3"],
        &["python3", "-c", &script],
    );
    assert_eq!(reason(&check), "--setup failed: exit status: 3");
}

#[test]
fn traced_command_keeps_its_syncs() {
    requires!(tool("python3"));
    if !cfg!(target_arch = "x86_64") {
        return support::report_skip("system calls are traced on x86-64 only");
    }
    let folder = TempDir::new().unwrap();
    // Longer than the start, whose many calls are traced too.
    let script = script("", SYNC).replace("+ 0.5", "+ 2");
    let words = ["python3", "-I", "-S", "-c", &script];
    let check = tried(folder.path(), &["--trace"], &words);
    assert!(reason(&check).contains("traced"), "{check:#}");
    assert_eq!(len(folder.path().join("runs")), 1);
}

#[test]
fn write_probe_of_a_command_leaves_no_file() {
    requires!(tool("python3"));
    let folder = TempDir::new().unwrap();
    let script = script("", SYNC);
    let options = ["--write-probe"];
    let check = tried(folder.path(), &options, &["python3", "-c", &script]);
    is_measured(&check, "fsync-waits");
    let number = |name: &str| check["numbers"][name].as_f64().unwrap();
    assert!(number("saves_s") <= number("cost_s"), "{check:#}");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 2);
}

/// Whether a mount has the option sync.
fn is_sync(mount_point: &Path) -> bool {
    let table = std::fs::read_to_string("/proc/mounts").unwrap();
    let place = mount_point.to_string_lossy();
    let line = table.lines().find(|line| line.contains(&*place)).unwrap();
    line.split([' ', ',']).any(|word| word == "sync")
}

#[test]
fn option_is_restored_after_the_trial() {
    requires!(root, loop_devices, tool("python3"));
    let folder = TempDir::new().unwrap();
    let mounted = ext4_mount(&folder, "rw,sync");
    let place = mounted.path();
    let start = "open('options', 'a').write(open('/proc/mounts').read())";
    let check = tried(&place, &[], &["python3", "-c", &script(start, WRITE)]);
    is_measured(&check, "synchronous-writes");
    assert!(is_sync(&place));
    let seen = std::fs::read_to_string(place.join("options")).unwrap();
    let lines = seen
        .lines()
        .filter(|line| line.contains(&*place.to_string_lossy()));
    let options: Vec<_> = lines.map(|line| line.contains(",sync")).collect();
    assert_eq!(options, [true, true, false, false, true, true, false]);
}

#[test]
fn option_is_restored_after_a_kill() {
    requires!(root, loop_devices, tool("python3"));
    let folder = TempDir::new().unwrap();
    let mounted = ext4_mount(&folder, "rw,sync");
    // With the cure, the command kills the doctor.
    let place = mounted.path();
    let start = format!(
        "lines = [line for line in open('/proc/mounts') if '{}' in line]\n\
         if ',sync' not in lines[0]: os.kill(os.getppid(), 9); os._exit(0)",
        place.display()
    );
    let script = script(&start, WRITE);
    // Its output ends with the process that remounts.
    let words = ["python3", "-c", &script];
    let output = doctor_in(&place, &["--try"], &words).output().unwrap();
    assert_eq!(output.status.signal(), Some(9), "{}", text(&output));
    assert!(is_sync(&place));
}

/// A server whose attributes are valid for no time, and a folder for the script.
fn share() -> (Served, TempDir) {
    let served = Served::new(Keeps {
        pages: Pages::Kept,
        ttl: Duration::ZERO,
    });
    (served, TempDir::new().unwrap())
}

/// A script that asks a share for a file again and again; `start` has `is_cached`, whether a
/// private mount is over the share, and `folder`, where it is.
fn share_script(served: &Served, start: &str) -> String {
    let (file, folder) = (served.file(), served.file());
    let folder = folder.parent().unwrap().display();
    let start = format!(
        "folder = '{folder}'\n\
         is_cached = sum(f' {{folder}} ' in line for line in open('/proc/mounts')) > 1\n\
         {start}"
    );
    script(&start, &format!("os.stat('{}')", file.display()))
}

/// The mounts of a share that this process sees.
fn mounts_of(served: &Served) -> usize {
    let table = std::fs::read_to_string("/proc/mounts").unwrap();
    let file = served.file();
    let place = file.parent().unwrap().to_string_lossy();
    table.lines().filter(|line| line.contains(&*place)).count()
}

#[test]
fn share_is_tried_below_a_cache() {
    requires!(root, fuse, tool("python3"));
    let (served, folder) = share();
    let start = "open('cached', 'a').write(f'{int(is_cached)} ')";
    let script = share_script(&served, start);
    let check = tried(folder.path(), &[], &["python3", "-c", &script]);
    is_measured(&check, "attributes-not-trusted");
    let seen = std::fs::read_to_string(folder.path().join("cached")).unwrap();
    assert_eq!(seen, "0 0 1 1 0 0 1 ");
    assert_eq!(mounts_of(&served), 1);
}

#[test]
fn private_mount_ends_after_a_kill() {
    requires!(root, fuse, tool("python3"));
    let (served, folder) = share();
    let start = "if is_cached: os.kill(os.getppid(), 9); os._exit(0)";
    let script = share_script(&served, start);
    // Its output ends with the server of the private mount.
    let words = ["python3", "-c", &script];
    let output = doctor_in(folder.path(), &["--try"], &words)
        .output()
        .unwrap();
    assert_eq!(output.status.signal(), Some(9), "{}", text(&output));
    assert_eq!(mounts_of(&served), 1);
}

#[test]
fn daemon_in_a_private_mount_is_not_waited_for() {
    requires!(root, fuse, tool("python3"));
    let (served, folder) = share();
    // The daemon ends with this pipe, which has no writer after the test.
    let pipe = folder.path().join("pipe");
    run("mkfifo", [&pipe]);
    let start = "if is_cached and os.fork() == 0:\n    \
                 os.setsid(); os.chdir(folder); os.closerange(0, 3)\n    \
                 open(pipe).read(); os._exit(0)";
    let start = format!("pipe = '{}'\n{start}", pipe.display());
    let script = share_script(&served, &start);
    let pipe = File::options().read(true).write(true).open(&pipe).unwrap();
    let check = tried(folder.path(), &[], &["python3", "-c", &script]);
    drop(pipe);
    assert!(reason(&check).contains("still use"), "{check:#}");
    assert_eq!(mounts_of(&served), 1);
}

#[test]
fn cure_of_two_findings_is_tried_once() {
    requires!(root, fuse, tool("python3"));
    let folders = [(); 2].map(|()| TempDir::new().unwrap());
    let mount = FuseMount::new(folders[0].path(), "ttl=0,push=off,passthrough=off");
    std::fs::create_dir_all(mount.at("a/b/c/d")).unwrap();
    let [file, deep] = ["file", "a/b/c/d/file"].map(|name| mount.at(name));
    for file in [&file, &deep] {
        std::fs::write(file, "x").unwrap();
    }
    // As many calls on a busy machine. The names above the deep file are most of what its open
    // costs: the open itself remains.
    let script = format!(
        "import os\n\
         for _ in range(4000): \
         [os.stat('{}') for _ in range(3)]; os.close(os.open('{}', os.O_RDONLY))",
        file.display(),
        deep.display()
    );
    let words = ["python3", "-c", &script];
    let options = ["--json", "--try"];
    let output = doctor_in(folders[1].path(), &options, &words)
        .output()
        .unwrap();
    let report = checked(&output);
    let [first, second] = [0, 1].map(|index| &report["checks"][index]);
    assert_eq!(first["trial"]["result"], "measured", "{report:#}");
    assert_eq!(reason(second), "its cure is that of finding 1");
    let saves_s = [first, second].map(|check| check["numbers"]["saves_s"].as_f64().unwrap());
    // The same share of the runs without the cure.
    let trial = &first["trial"];
    let share = saves_s.iter().sum::<f64>() / report["wall_s"].as_f64().unwrap();
    let difference_s =
        trial["predicted_s"].as_f64().unwrap() - share * median_s(trial, "baseline_s");
    assert!(difference_s.abs() < 0.01, "{report:#}");
}

#[test]
fn cold_file_is_tried_in_memory_and_on_disk() {
    requires!(
        root,
        loop_devices,
        tool("mke2fs"),
        linux(6, 5),
        tool("python3")
    );
    let folder = TempDir::new().unwrap();
    let image = folder.path().join("disk.img");
    mke2fs(&image, "256M", &["-b", "4096"]);
    // Reads past the page cache of the image wait for its disk: those of pages in memory need not.
    let device = LoopDevice::attach(&image, &["--direct-io=on"]);
    let mounted = device.mount("ext4", "rw");
    let file = mounted.at("file");
    std::fs::write(&file, vec![1; 16 << 20]).unwrap();
    run("sync", [&file]);
    // Without readahead, which reads most pages beforehand.
    let script = "import os, re\n\
                  def read(): return int(re.search('read_bytes: (.*)', open('/proc/self/io').read())[1])\n\
                  fd = os.open('file', os.O_RDONLY)\n\
                  os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)\n\
                  before = read()\n\
                  for page in range(4096): os.pread(fd, 4096, page * 4096)\n\
                  open('cold', 'a').write(f'{int(read() - before > 8 << 20)} ')";
    let dropped = command(env!("CARGO_BIN_EXE_folio"))
        .args(["cache", "drop"])
        .arg(&file)
        .output()
        .unwrap();
    assert!(dropped.status.success(), "{}", text(&dropped));
    let check = tried(mounted.folder.path(), &[], &["python3", "-c", script]);
    is_measured(&check, "cold");
    let cold = std::fs::read_to_string(mounted.at("cold")).unwrap();
    assert_eq!(cold, "1 1 0 0 1 1 0 ");
}

#[test]
fn text_has_the_trial_after_the_report() {
    requires!(tool("python3"));
    let folder = TempDir::new().unwrap();
    let words = ["python3", "-c", &script("", SYNC)];
    let output = doctor_in(folder.path(), &["--try"], &words)
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", text(&output));
    let shown = String::from_utf8(output.stdout).unwrap();
    let (_, trial) = shown.split_once("1 fault\n").unwrap();
    assert!(trial.starts_with("1. tried: saves "), "{shown}");
    assert!(trial.contains(" s, predicted "), "{shown}");
    assert!(
        trial.ends_with("could have lost what the command wrote\n"),
        "{shown}"
    );
}

#[test]
fn options_of_trials_need_one() {
    for (options, what) in [
        (&["--setup", "true", "--", "true"][..], "--try"),
        (&["--repeats", "4", "--", "true"], "--try"),
        (&["--try", "--repeats", "2", "--", "true"], "3.."),
        (&["--try", "."], "PATHS"),
    ] {
        let output = doctor(options);
        assert_eq!(output.status.code(), Some(2), "{}", text(&output));
        assert!(text(&output).contains(what), "{}", text(&output));
    }
}
