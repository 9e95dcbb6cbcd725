//! `folio powercut`: what is lost is found, and nothing else.

use crate::support::require::root;
use crate::support::requires;
use crate::support::tools::{command, fsck, text};
use std::fs;
use std::path::PathBuf;
use std::process::Output;
use std::time::{Duration, Instant};
use tempfile::TempDir;

const FOLIO: &str = env!("CARGO_BIN_EXE_folio");

/// Replaces a file by rename without fsync(2), and then commits.
const RENAME: &str = "echo new > $MNT/new; mv $MNT/new $MNT/config; \
                      echo x > $MNT/other; sync $MNT/other";
/// The old or the new content.
const OLD_OR_NEW: &str = "c=$(cat $MNT/config); [ \"$c\" = old ] || [ \"$c\" = new ] || \
                          { echo \"config: '$c'\"; exit 1; }";
const SETUP: &str = "echo old > $MNT/config";

fn powercut(folder: &TempDir, words: &[&str]) -> Output {
    let mut folio = command(FOLIO);
    folio.current_dir(folder.path()).arg("powercut").args(words);
    folio.env("TMPDIR", folder.path());
    folio.output().unwrap()
}

/// Runs the usual program with further words.
fn rename(folder: &TempDir, check: &str, words: &[&str]) -> Output {
    let mut all = vec!["--size", "16M", "--cuts", "100", "--setup", SETUP];
    all.extend(["--run", RENAME, "--check", check]);
    all.extend(words);
    powercut(folder, &all)
}

#[track_caller]
fn assert_ends(output: &Output, code: i32, words: &[&str]) {
    let printed = text(output);
    assert_eq!(output.status.code(), Some(code), "{printed}");
    for word in words {
        assert!(printed.contains(word), "{word:?} is not in:\n{printed}");
    }
}

/// Asserts that neither mounts nor loop devices of the commands in this folder are left.
#[track_caller]
fn assert_unmounted(folder: &TempDir) {
    let name = folder.path().file_name().unwrap().to_str().unwrap();
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    assert!(!mounts.contains(name), "{mounts}");
    // On a detached mount the kernel names only the path inside.
    let is_left = |file: &String| file.contains(name) || file.starts_with("/disk.img");
    // The device of another test may be there for a moment.
    let end = Instant::now() + Duration::from_secs(20);
    loop {
        let devices = fs::read_dir("/sys/block").into_iter().flatten();
        let files = devices.map(|device| device.unwrap().path().join("loop/backing_file"));
        let files = files.filter_map(|file| fs::read_to_string(file).ok());
        let left: Vec<_> = files.filter(is_left).collect();
        if left.is_empty() {
            return;
        }
        assert!(Instant::now() < end, "loop devices are left: {left:?}");
        std::thread::yield_now();
    }
}

fn saved(folder: &TempDir) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder.path()).unwrap();
    entries.map(|entry| entry.unwrap().path()).collect()
}

#[test]
fn rename_without_fsync_is_found_and_replayed() {
    requires!(fuse);
    let folder = TempDir::new().unwrap();
    let found = rename(&folder, OLD_OR_NEW, &["-o", "noauto_da_alloc"]);
    let words = [
        "failed the check",
        "config: ''",
        "rename(\"/new\", \"/config\")",
    ];
    assert_ends(&found, 1, &words);
    let [cut] = &saved(&folder)[..] else {
        panic!("one folder: {:?}", saved(&folder));
    };
    let name = cut.file_name().unwrap().to_str().unwrap();
    assert_ends(&found, 1, &[&format!("powercut --replay ./{name}")]);
    assert_ends(&powercut(&folder, &["--replay", name]), 1, &["config: ''"]);
    // Another check, and the state is as it was.
    let other = ["--replay", name, "--check", "echo y > $MNT/config"];
    assert_ends(&powercut(&folder, &other), 0, &["consistent"]);
    assert_ends(&powercut(&folder, &["--replay", name]), 1, &["config: ''"]);
}

#[test]
fn saved_state_is_a_sound_image() {
    requires!(fuse, tool("e2fsck"));
    let folder = TempDir::new().unwrap();
    rename(&folder, OLD_OR_NEW, &["-o", "noauto_da_alloc"]);
    let image = saved(&folder).remove(0).join("disk.img");
    // The journal is replayed by e2fsck itself.
    let mut check = command("e2fsck");
    let replayed = check.args(["-f", "-y"]).arg(&image).output().unwrap();
    assert!(replayed.status.code() <= Some(1), "{}", text(&replayed));
    fsck(&image);
}

#[test]
fn rename_is_safe_by_default_and_after_fsync() {
    requires!(fuse);
    let folder = TempDir::new().unwrap();
    let all = [" power cuts in ", " consistent, 0 failed the check"];
    assert_ends(&rename(&folder, OLD_OR_NEW, &[]), 0, &all);
    let synced = "echo new > $MNT/new; sync $MNT/new; mv $MNT/new $MNT/config; sync $MNT";
    let words = [
        "--size",
        "16M",
        "--cuts",
        "100",
        "--setup",
        SETUP,
        "--run",
        synced,
        "--check",
        OLD_OR_NEW,
        "-o",
        "noauto_da_alloc",
    ];
    assert_ends(&powercut(&folder, &words), 0, &[" 0 failed the check"]);
    assert_eq!(saved(&folder), Vec::<PathBuf>::new());
}

#[test]
fn acknowledged_output_is_known_to_the_check() {
    requires!(fuse);
    let run = |folder: &TempDir, sync: &str| {
        let program =
            format!("for n in 1 2 3; do echo $n > $MNT/$n; {sync} echo $n; done; sleep 0.1");
        let check = "for n in $(cat $ACKED); do \
                     [ -s $MNT/$n ] || { echo \"$n is lost\"; exit 1; }; done";
        let words = [
            "--size", "16M", "--cuts", "60", "--run", &program, "--check", check,
        ];
        powercut(folder, &words)
    };
    let folder = TempDir::new().unwrap();
    assert_ends(&run(&folder, ""), 1, &["is lost"]);
    let folder = TempDir::new().unwrap();
    let synced = "sync $MNT/$n; sync $MNT;";
    assert_ends(&run(&folder, synced), 0, &[" 0 failed the check"]);
}

#[test]
fn options_are_compared() {
    requires!(fuse);
    let folder = TempDir::new().unwrap();
    let words = ["--compare", "--json"];
    let compared = rename(&folder, OLD_OR_NEW, &words);
    assert_eq!(compared.status.code(), Some(1), "{}", text(&compared));
    let report: serde_json::Value = serde_json::from_slice(&compared.stdout).unwrap();
    let runs = report["runs"].as_array().unwrap();
    let failing = |options: &str| {
        let run = runs.iter().find(|run| run["options"] == options).unwrap();
        run["failing"].as_u64().unwrap()
    };
    assert_eq!(failing("auto_da_alloc=commit"), 0);
    assert_eq!(failing("auto_da_alloc=close"), 0);
    assert!(failing("noauto_da_alloc") > 0 && failing("nobarrier") > 0);
    // The table prints the same.
    let table = rename(&folder, OLD_OR_NEW, &["--compare"]);
    assert_ends(&table, 1, &["options", "noauto_da_alloc", "config: ''"]);
    assert_eq!(saved(&folder), Vec::<PathBuf>::new());
}

#[test]
fn image_stays_as_it_is() {
    requires!(fuse);
    let folder = TempDir::new().unwrap();
    let image = folder.path().join("disk.qcow2");
    let mut folio = command(FOLIO);
    let made = folio
        .args(["mkfs", "--size", "16M"])
        .arg(&image)
        .output()
        .unwrap();
    assert!(made.status.success(), "{}", text(&made));
    let before = fs::read(&image).unwrap();
    let overlay = folder.path().join("overlay.qcow2");
    let made = command(FOLIO)
        .args(["image", "create", "-f", "qcow2", "-F", "qcow2", "-b"])
        .args([&image, &overlay])
        .output()
        .unwrap();
    assert!(made.status.success(), "{}", text(&made));
    for (image, words, format) in [
        ("disk.qcow2", &[][..], "qcow2"),
        ("disk.qcow2", &["--format", "raw"][..], "raw"),
        ("overlay.qcow2", &[][..], "qcow2"),
    ] {
        let run = "echo x > $MNT/x; sync $MNT/x; rmdir $MNT/lost+found";
        let check = "[ -e $MNT/x ] || [ -e $MNT/lost+found ]";
        let mut all = vec![image, "--cuts", "10", "--run", run, "--check", check];
        all.extend(["--json"].iter().chain(words));
        let found = powercut(&folder, &all);
        assert_ends(&found, 0, &["\"failing\": 0"]);
        let report: serde_json::Value = serde_json::from_slice(&found.stdout).unwrap();
        assert_eq!(report["runs"][0]["format"], format);
    }
    assert!(fs::read(&image).unwrap() == before);
}

/// The tables of qcow2 are recorded and cut with the data.
#[test]
fn qcow2_state_is_found_saved_and_replayed() {
    requires!(fuse, tool("qemu-img"));
    let folder = TempDir::new().unwrap();
    let on_qcow2 = ["--format", "qcow2"];
    assert_ends(&rename(&folder, OLD_OR_NEW, &on_qcow2), 0, &[" 0 failed"]);
    let words = [&on_qcow2[..], &["-o", "noauto_da_alloc"]].concat();
    assert_ends(&rename(&folder, OLD_OR_NEW, &words), 1, &["config: ''"]);
    let cut = saved(&folder).remove(0);
    let image = cut.join("disk.qcow2");
    let mut check = command("qemu-img");
    let checked = check.args(["check", "-r", "leaks"]).arg(&image).output();
    let checked = checked.unwrap();
    assert!(checked.status.success(), "{}", text(&checked));
    let name = cut.file_name().unwrap().to_str().unwrap();
    assert_ends(&powercut(&folder, &["--replay", name]), 1, &["config: ''"]);
}

/// The saved file ends where the qcow2 does, and grows as the check runs on it.
#[test]
fn qcow2_state_of_large_disk_is_small() {
    requires!(fuse);
    let folder = TempDir::new().unwrap();
    let words = [
        "--size",
        "2T",
        "--format",
        "qcow2",
        "--cuts",
        "4",
        "--run",
        "echo x > $MNT/x; sync $MNT/x; sync $MNT",
        "--check",
        "[ -s $MNT/x ] && head -c 9000000 /dev/zero > $MNT/y && sync $MNT/y",
    ];
    assert_ends(&powercut(&folder, &words), 1, &["failed the check"]);
    let cut = saved(&folder).remove(0);
    let len_bytes = fs::metadata(cut.join("disk.qcow2")).unwrap().len();
    assert!(len_bytes < 1 << 30, "{len_bytes}");
    let name = cut.file_name().unwrap().to_str().unwrap();
    let grow = "head -c 9000000 /dev/zero > $MNT/y && sync $MNT/y";
    let grown = powercut(&folder, &["--replay", name, "--check", grow]);
    assert_ends(&grown, 0, &["consistent"]);
}

#[test]
fn saved_state_without_format_is_raw() {
    requires!(fuse);
    let folder = TempDir::new().unwrap();
    rename(&folder, OLD_OR_NEW, &["-o", "noauto_da_alloc"]);
    let cut = saved(&folder).remove(0);
    let (json, name) = (cut.join("cut.json"), cut.to_str().unwrap());
    let mut saved: serde_json::Value = serde_json::from_slice(&fs::read(&json).unwrap()).unwrap();
    let fields = saved.as_object_mut().unwrap();
    for field in ["format", "room_bytes"] {
        assert!(fields.remove(field).is_some());
    }
    fs::write(&json, saved.to_string()).unwrap();
    let replay = || powercut(&folder, &["--replay", name]);
    assert_ends(&replay(), 1, &["config: ''"]);
    saved["format"] = "floppy".into();
    fs::write(&json, saved.to_string()).unwrap();
    assert_ends(&replay(), 2, &["--replay", "cut.json", "floppy"]);
    fs::write(&json, "{").unwrap();
    assert_ends(&replay(), 2, &["--replay", "cut.json"]);
}

#[test]
fn mistakes_are_explained() {
    requires!(fuse);
    let folder = TempDir::new().unwrap();
    let run = |run: &str, check: &str| {
        powercut(
            &folder,
            &[
                "--size", "16M", "--cuts", "5", "--run", run, "--check", check,
            ],
        )
    };
    assert_ends(&run("exit 7", "true"), 1, &["--run failed", "status: 7"]);
    let words = ["--check fails without a power cut", "no such app"];
    assert_ends(&run("true", "echo no such app; exit 1"), 1, &words);
    let small = ["--size", "1K", "--run", "true", "--check", "true"];
    assert_ends(&powercut(&folder, &small), 2, &["--size"]);
    assert_ends(
        &powercut(&folder, &["--replay", "none"]),
        2,
        &["none/cut.json"],
    );
    assert_ends(&powercut(&folder, &["--run", "true"]), 2, &["--check"]);
    let unknown = ["--run", "true", "--check", "true", "-o", "nonsense"];
    assert_ends(&powercut(&folder, &unknown), 1, &["nonsense"]);
    // A program that does not end is killed.
    let endless = [
        "--size",
        "16M",
        "--cuts",
        "5",
        "--for",
        "200ms",
        "--run",
        "cat /dev/zero > /dev/null",
        "--check",
        "true",
    ];
    assert_ends(&powercut(&folder, &endless), 0, &["0 failed the check"]);
    // A process that leaves the program, and keeps its standard output, is not waited for.
    let leaves = "setsid sh -c 'echo $$ > pid; exec sleep 300' 2> pid.err & \
                  until [ -s pid ]; do sleep 0.01; done";
    let stays = run(leaves, "true");
    let pid = fs::read_to_string(folder.path().join("pid")).unwrap();
    let kill = command("kill").arg(pid.trim()).status().unwrap();
    assert!(kill.success(), "the process has ended: it was waited for");
    assert_ends(&stays, 0, &["0 failed the check"]);
    for file in ["pid", "pid.err"] {
        fs::remove_file(folder.path().join(file)).unwrap();
    }
    assert_unmounted(&folder);
    assert_eq!(saved(&folder), Vec::<PathBuf>::new());
}

/// Saves numbers: overwrites a file, calls fsync(2), and says so; `on_error` follows a failed call.
fn counter(on_error: &str) -> String {
    format!(
        "for n in 1 2 3; do printf %5d $n | dd of=$MNT/count conv=notrunc status=none; \
         sync $MNT/count || {on_error}; echo $n; done"
    )
}

/// Runs a program that says what it has saved, with the check that it is there.
fn counted(folder: &TempDir, program: &str, words: &[&str]) -> Output {
    let setup = "printf %5d 0 > $MNT/count";
    let check = "said=$(tail -n 1 $ACKED); [ $(cat $MNT/count) -ge ${said:-0} ] || \
                 { echo $said is lost; exit 1; }";
    let mut all = vec!["--size", "16M", "--setup", setup, "--run", program];
    all.extend(["--check", check]);
    all.extend(words);
    powercut(folder, &all)
}

/// As PostgreSQL until 2018: the second fsync(2) succeeds, and what the first one lost stays lost.
#[test]
fn ignored_and_repeated_fsync_lose_data() {
    requires!(fuse);
    for on_error in ["true", "sync $MNT/count"] {
        let folder = TempDir::new().unwrap();
        let fault = ["--fault", "eio@fsync:3", "--cuts", "20"];
        let found = counted(&folder, &counter(on_error), &fault);
        let words = [
            "also without a power cut: 3 is lost",
            "= EIO",
            "--replay ./cut-",
        ];
        assert_ends(&found, 1, &words);
        let cut = saved(&folder).remove(0);
        let replay = ["--replay", cut.to_str().unwrap()];
        assert_ends(&powercut(&folder, &replay), 1, &["3 is lost"]);
    }
}

#[test]
fn program_that_stops_at_failed_fsync_is_clean() {
    requires!(fuse);
    let folder = TempDir::new().unwrap();
    let each = ["--fault", "eio@fsync", "--cuts", "30"];
    let found = counted(&folder, &counter("exit 1"), &each);
    assert_ends(&found, 0, &["eio@fsync:1", "eio@fsync:3"]);
    let one = ["--fault", "eio@fsync:2", "--cuts", "10"];
    let found = counted(&folder, &counter("exit 1"), &one);
    assert_ends(
        &found,
        0,
        &["eio@fsync:2: the program failed (exit status: 1)"],
    );
    // It can also write the data again.
    let again = "{ printf %5d $n | dd of=$MNT/count conv=notrunc status=none; sync $MNT/count; }";
    assert_ends(
        &counted(&folder, &counter(again), &each),
        0,
        &["eio@fsync:3"],
    );
    assert_eq!(saved(&folder), Vec::<PathBuf>::new());
}

#[test]
fn full_disk_finds_an_ignored_failed_write() {
    requires!(fuse);
    let folder = TempDir::new().unwrap();
    let full = ["--fault", "enospc@write:2..", "--cuts", "20"];
    let found = counted(&folder, &counter("exit 1"), &full);
    assert_ends(
        &found,
        1,
        &["also without a power cut: 3 is lost", "= ENOSPC"],
    );
    let careful = counter("exit 1").replace("status=none;", "status=none || exit 1;");
    let found = counted(
        &folder,
        &careful,
        &["--fault", "enospc@write", "--cuts", "30"],
    );
    assert_ends(&found, 0, &["enospc@write:3"]);
}

#[test]
fn killed_program_keeps_what_it_wrote() {
    requires!(fuse);
    let folder = TempDir::new().unwrap();
    // Without any fsync(2): what was written outlives the program, though not a power cut.
    let program = "for n in 1 2 3; do printf %5d $n | dd of=$MNT/count conv=notrunc status=none; \
                   echo $n; done";
    let found = counted(&folder, program, &["--fault", "kill@write", "--cuts", "3"]);
    assert_ends(&found, 0, &["kill@write:1", "kill@write:3"]);
    assert_ends(
        &counted(&folder, program, &["--cuts", "60"]),
        1,
        &["is lost"],
    );
    // What the program keeps to itself is lost with it.
    let buffered = "for n in 1 2 3; do echo $n; done; printf %5d 3 > $MNT/count";
    let found = counted(&folder, buffered, &["--fault", "kill@any:1", "--cuts", "1"]);
    assert_ends(
        &found,
        1,
        &["the program failed (signal: 9", "= killed", "3 is lost"],
    );
}

#[test]
fn fault_that_does_not_occur_is_an_error() {
    requires!(fuse);
    let folder = TempDir::new().unwrap();
    let ninth = ["--fault", "eio@fsync:9"];
    let found = counted(&folder, &counter("exit 1"), &ninth);
    assert_ends(&found, 1, &["the program makes only 3 such calls"]);
    let found = counted(&folder, "true", &["--fault", "eio@fsync"]);
    assert_ends(&found, 1, &["the program makes no such call"]);
    let found = counted(&folder, "true", &["--fault", "eio@read"]);
    assert_ends(&found, 2, &["eio@fsync:3"]);
    // The runs with a fault make fewer calls than the first run, without one.
    let each = ["--fault", "eio@fsync", "--cuts", "10"];
    let once = "[ -e once ] || sync $MNT/count; touch once";
    let found = counted(&folder, once, &each);
    assert_ends(&found, 1, &["eio@fsync:all: no run made the call"]);
    let fewer = "sync $MNT/count; [ -e twice ] || sync $MNT/count; touch twice";
    let found = counted(&folder, fewer, &each);
    assert_ends(&found, 0, &["eio@fsync:1", "1 of 2 runs made fewer calls"]);
}

#[test]
fn program_that_repeats_failed_call_is_killed() {
    requires!(fuse);
    let folder = TempDir::new().unwrap();
    let repeats = "until sync $MNT/count; do sleep 0.1; done";
    let words = ["--fault", "eio@fsync:1..", "--for", "1s", "--cuts", "5"];
    let found = counted(&folder, repeats, &words);
    let words = ["eio@fsync:1..: the program failed (killed after 1s)"];
    assert_ends(&found, 0, &words);
}

/// Runs a program whose fsync(2) of a directory, which has only metadata to write, fails.
fn assert_journal_is_aborted(words: &[&str]) {
    let folder = TempDir::new().unwrap();
    let program = "mkdir $MNT/a; sync $MNT && echo synced; mkdir $MNT/b 2> refused; true";
    let mut all = vec!["--size", "16M", "--cuts", "10", "--run", program];
    all.extend(["--check", "[ ! -s $ACKED ] && [ ! -e $MNT/b ]"]);
    all.extend(words);
    assert_ends(&powercut(&folder, &all), 0, &[" 0 failed the check"]);
    let refused = fs::read_to_string(folder.path().join("refused")).unwrap();
    assert!(refused.contains("Read-only file system"), "{refused:?}");
    assert_unmounted(&folder);
}

#[test]
fn failed_directory_fsync_aborts_the_journal() {
    requires!(fuse);
    assert_journal_is_aborted(&["--fault", "eio@fsync:1"]);
    assert_journal_is_aborted(&["--fault", "eio@fsync:1", "--format", "qcow2"]);
}

#[test]
fn kernel_aborts_the_journal_too() {
    requires!(root, loop_devices, fuse, file_system("ext4"));
    // The first write is that of the journal's superblock.
    assert_journal_is_aborted(&["--kernel", "--fault", "eio@write:2"]);
}

/// On the kernel's ext4 a fault strikes the disk, and the kernel loses what it could not write.
#[test]
fn kernel_loses_what_a_failed_write_had() {
    requires!(root, loop_devices, fuse, file_system("ext4"));
    let each = ["--kernel", "--fault", "eio@write", "--cuts", "40"];
    let folder = TempDir::new().unwrap();
    let ignores = counted(&folder, &counter("true"), &each);
    assert_ends(&ignores, 1, &["eio@write:1 ", "is lost"]);
    let stops = counted(&folder, &counter("exit 1"), &each);
    assert_ends(&stops, 0, &["eio@write:1 ", "eio@write:3 "]);
    let flush = ["--kernel", "--fault", "eio@fsync:1", "--format", "qcow2"];
    let flush = counted(&folder, &counter("exit 1"), &flush);
    let words = ["eio@fsync:1: the program failed (exit status: 1)"];
    assert_ends(&flush, 0, &words);
    let full = ["--kernel", "--fault", "enospc@write:1..", "--cuts", "20"];
    let full = counted(&folder, &counter("exit 1"), &full);
    assert_ends(&full, 0, &["the program failed (exit status: 1)"]);
    let killed = ["--kernel", "--fault", "kill@write:2", "--cuts", "20"];
    let killed = counted(&folder, &counter("exit 1"), &killed);
    assert_ends(&killed, 0, &["the program failed (signal: 9"]);
    let ninth = ["--kernel", "--fault", "eio@write:999"];
    let ninth = counted(&folder, &counter("exit 1"), &ninth);
    assert_ends(&ninth, 1, &["the disk gets only "]);
    assert_unmounted(&folder);
}

/// Runs a program on the kernel's ext4 with blocks of 4 KiB, whose directories are its reports.
fn directories(folder: &TempDir, program: &str, words: &[&str]) -> Output {
    let check = "for i in $(cat $ACKED); do [ -d $MNT/a$i ] || { echo lost $i; exit 1; }; done";
    let mut all = vec!["--size", "600M", "--kernel", "-o", "init_itable=0"];
    all.extend(["--setup", "mkdir $MNT/s; sync $MNT", "--cuts", "24"]);
    all.extend(["--run", program, "--check", check]);
    all.extend(words);
    powercut(folder, &all)
}

/// The commit block follows the blocks of its transaction on the disk, with a flush in between.
#[test]
fn fault_strikes_each_commit_block_of_the_kernel() {
    requires!(root, loop_devices, fuse, file_system("ext4"));
    let folder = TempDir::new().unwrap();
    let ignores = "mkdir $MNT/a1; sync $MNT || exit 1; echo 1; mkdir $MNT/a2; sync $MNT; echo 2";
    let each = directories(&folder, ignores, &["--fault", "eio@write"]);
    assert_ends(&each, 1, &["eio@write:4 ", "lost 2"]);
    let all = "mkdir $MNT/a1; sync $MNT; mkdir $MNT/a2; sync $MNT; sync -f $MNT";
    let report = directories(&folder, all, &["--json"]);
    assert_ends(&report, 0, &[]);
    let report: serde_json::Value = serde_json::from_slice(&report.stdout).unwrap();
    let writes = report["runs"][0]["writes"].as_u64().unwrap();
    let counted = directories(&folder, all, &["--fault", "eio@any:999"]);
    // The sync after the program has no more to write, and flushes at most.
    let is_counted = |calls: &u64| text(&counted).contains(&format!("only {calls} such calls"));
    let calls = (0..=writes).find(is_counted);
    assert!(
        calls >= Some(writes - 1),
        "{writes} writes: {}",
        text(&counted)
    );
    assert_unmounted(&folder);
}

#[test]
fn kernel_without_root_is_a_usage_error() {
    if root().met().is_ok() {
        return;
    }
    let folder = TempDir::new().unwrap();
    let found = rename(&folder, OLD_OR_NEW, &["--compare", "--kernel"]);
    assert_ends(&found, 2, &["--kernel: run as root"]);
}

/// Runs a program that prints the names of logs in `db` which it has stored.
fn logs(folder: &TempDir, program: &str, words: &[&str]) -> Output {
    let check = "for n in $(cat $ACKED); do grep -qx $n $MNT/db/*.log || \
                 { echo $n is lost; exit 1; }; done";
    let mut all = vec!["--size", "16M", "--cuts", "60", "--setup", "mkdir $MNT/db"];
    all.extend(["--run", program, "--check", check]);
    all.extend(words);
    powercut(folder, &all)
}

/// On ext4, fsync(2) of a new file stores its name, too; of a renamed one the old name.
#[test]
fn new_log_vanishes_without_directory_fsync() {
    requires!(fuse);
    let folder = TempDir::new().unwrap();
    let run = |rotate: &str| {
        let program = format!("for n in 1 2 3; do {rotate}; echo $n; done; sleep 0.1");
        logs(&folder, &program, &[])
    };
    let created = "echo $n > $MNT/db/$n.log; sync $MNT/db/$n.log";
    assert_ends(&run(created), 0, &[" 0 failed the check"]);
    let renamed = "echo $n > $MNT/db/tmp; sync $MNT/db/tmp; mv $MNT/db/tmp $MNT/db/$n.log";
    assert_ends(&run(renamed), 1, &["is lost"]);
    let synced = format!("{renamed}; sync $MNT/db");
    assert_ends(&run(&synced), 0, &[" 0 failed the check"]);
}

#[test]
fn kernel_ext4_loses_what_folio_loses() {
    requires!(root, loop_devices, fuse, file_system("ext4"));
    let renamed = "for n in 1 2 3; do echo $n > $MNT/db/tmp; sync $MNT/db/tmp; \
                   mv $MNT/db/tmp $MNT/db/$n.log; SYNC echo $n; done; sleep 0.1";
    let folder = TempDir::new().unwrap();
    let found = logs(&folder, &renamed.replace("SYNC", ""), &["--kernel"]);
    assert_ends(&found, 1, &["is lost", "first: after write "]);
    let synced = renamed.replace("SYNC", "sync $MNT/db;");
    let clean = logs(&folder, &synced, &["--kernel"]);
    assert_ends(&clean, 0, &[" 0 failed the check"]);
    assert_unmounted(&folder);
}

/// Blocks of a removed file get a new file, whose size is stored before its bytes.
#[test]
fn stale_bytes_show_on_the_kernel_alone() {
    requires!(root, loop_devices, fuse, file_system("ext4"));
    let run = |words: &[&str]| {
        let folder = TempDir::new().unwrap();
        let setup = "touch $MNT/other; mkdir $MNT/d; \
                     yes SECRET | dd of=$MNT/d/secret bs=64k iflag=fullblock status=none; \
                     sync -f $MNT; rm $MNT/d/secret; sync -f $MNT";
        let program = "head -c 300000 /dev/zero > $MNT/file; echo x > $MNT/other; sync $MNT/other";
        let check = "! grep -aq SECRET $MNT/file || { echo bytes of another file; exit 1; }";
        let mut all = vec!["--size", "16M", "--cuts", "60", "--setup", setup];
        all.extend(["--run", program, "--check", check]);
        all.extend(words);
        powercut(&folder, &all)
    };
    let unordered = ["-o", "data=writeback,nodelalloc"];
    assert_ends(&run(&unordered), 0, &[" 0 failed the check"]);
    let found = run(&["--kernel", unordered[0], unordered[1]]);
    assert_ends(&found, 1, &["bytes of another file"]);
    let ordered = run(&["--kernel", "-o", "nodelalloc"]);
    assert_ends(&ordered, 0, &[" 0 failed the check"]);
}

#[test]
fn kernel_is_compared() {
    requires!(root, loop_devices, fuse, file_system("ext4"));
    let folder = TempDir::new().unwrap();
    let compared = rename(&folder, OLD_OR_NEW, &["--compare", "--kernel"]);
    assert_ends(
        &compared,
        1,
        &["\nkernel noauto_da_alloc ", "kernel nobarrier"],
    );
    let fault = ["--compare", "--kernel", "--fault", "eio@fsync"];
    let fault = rename(&folder, OLD_OR_NEW, &fault);
    assert_ends(&fault, 2, &["those of the disk: run them one by one"]);
    let unknown = rename(&folder, OLD_OR_NEW, &["--kernel", "-o", "nonsense"]);
    assert_ends(&unknown, 1, &["--kernel: mount: "]);
}

#[test]
fn sqlite_is_judged_as_it_documents_itself() {
    requires!(fuse, tool("sqlite3"));
    let run = |journal: &str, sync: &str, format: &str| {
        let folder = TempDir::new().unwrap();
        let program = format!(
            "for n in 1 2 3 4 5 6; do sqlite3 $MNT/db \
             \"PRAGMA synchronous={sync}; INSERT INTO t VALUES($n);\" && echo $n; done"
        );
        let setup = &format!(
            "sqlite3 $MNT/db 'PRAGMA journal_mode={journal}; CREATE TABLE t(n)' > /dev/null"
        );
        let check = "[ \"$(sqlite3 $MNT/db 'PRAGMA integrity_check')\" = ok ] || exit 1; \
                     for n in $(cat $ACKED); do \
                     [ \"$(sqlite3 $MNT/db \"SELECT 1 FROM t WHERE n=$n\")\" = 1 ] || \
                     { echo \"row $n is lost\"; exit 1; }; done";
        let words = [
            "--size", "16M", "--cuts", "40", "--setup", setup, "--run", &program, "--check", check,
            "--format", format,
        ];
        powercut(&folder, &words)
    };
    let clean = [" 0 failed the check"];
    assert_ends(&run("TRUNCATE", "EXTRA", "raw"), 0, &clean);
    assert_ends(&run("WAL", "FULL", "qcow2"), 0, &clean);
    assert_ends(&run("TRUNCATE", "OFF", "raw"), 1, &["failed the check"]);
}
