//! `folio doctor --try -- COMMAND`: the command again with each cure, and what is left behind.

use super::workload::checked;
use super::*;
use crate::served::{Keeps, Pages, Served};
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

/// Checks that the trial has three pairs of runs, and its numbers.
#[track_caller]
fn is_measured(check: &Value, cause: &str) {
    let trial = &check["trial"];
    assert_eq!(
        (&check["cause"], &trial["result"]),
        (&cause.into(), &"measured".into()),
        "{check:#}"
    );
    for times in ["baseline_s", "cured_s"] {
        assert_eq!(trial[times].as_array().unwrap().len(), 3, "{check:#}");
    }
    assert_eq!(trial["predicted_s"], check["numbers"]["saves_s"]);
    assert!(trial["measured_s"].is_number(), "{check:#}");
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
    let script = script("", SYNC);
    let check = tried(folder.path(), &["--trace"], &["python3", "-c", &script]);
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

#[test]
fn share_is_tried_below_a_cache() {
    requires!(root, fuse, tool("python3"));
    let served = Served::new(Keeps {
        pages: Pages::Kept,
        ttl: Duration::ZERO,
    });
    let folder = TempDir::new().unwrap();
    let file = served.file();
    let script = script("", &format!("os.stat('{}')", file.display()));
    let check = tried(folder.path(), &[], &["python3", "-c", &script]);
    is_measured(&check, "attributes-not-trusted");
    let table = std::fs::read_to_string("/proc/mounts").unwrap();
    let place = file.parent().unwrap().to_string_lossy().into_owned();
    assert_eq!(
        table.lines().filter(|line| line.contains(&place)).count(),
        1
    );
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
