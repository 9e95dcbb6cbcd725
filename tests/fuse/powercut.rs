//! `folio powercut`: what is lost is found, and nothing else.

use crate::support::requires;
use crate::support::tools::{command, fsck, text};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Output;
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
    let words = [
        "disk.qcow2",
        "--cuts",
        "10",
        "--run",
        "echo x > $MNT/x; sync $MNT/x; rmdir $MNT/lost+found",
        "--check",
        "[ -e $MNT/x ] || [ -e $MNT/lost+found ]",
    ];
    assert_ends(&powercut(&folder, &words), 0, &["0 failed the check"]);
    assert!(fs::read(&image).unwrap() == before);
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
    let stays = run("setsid sleep 300 & echo $! > pid", "true");
    let pid = fs::read_to_string(folder.path().join("pid")).unwrap();
    let kill = command("kill").arg(pid.trim()).status().unwrap();
    assert!(kill.success(), "the process has ended: it was waited for");
    assert_ends(&stays, 0, &["0 failed the check"]);
    fs::remove_file(folder.path().join("pid")).unwrap();
    // No mount is left.
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    assert!(!mounts.contains("folio-powercut-"), "{mounts}");
    assert!(saved(&folder).is_empty() && Path::new("/").exists());
}

#[test]
fn sqlite_is_judged_as_it_documents_itself() {
    requires!(fuse, tool("sqlite3"));
    let run = |sync: &str| {
        let folder = TempDir::new().unwrap();
        let program = format!(
            "for n in 1 2 3 4 5 6; do sqlite3 $MNT/db \
             \"PRAGMA synchronous={sync}; INSERT INTO t VALUES($n);\" && echo $n; done"
        );
        let setup = "sqlite3 $MNT/db 'PRAGMA journal_mode=TRUNCATE; CREATE TABLE t(n)' > /dev/null";
        let check = "[ \"$(sqlite3 $MNT/db 'PRAGMA integrity_check')\" = ok ] || exit 1; \
                     for n in $(cat $ACKED); do \
                     [ \"$(sqlite3 $MNT/db \"SELECT 1 FROM t WHERE n=$n\")\" = 1 ] || \
                     { echo \"row $n is lost\"; exit 1; }; done";
        let words = [
            "--size", "16M", "--cuts", "40", "--setup", setup, "--run", &program, "--check", check,
        ];
        powercut(&folder, &words)
    };
    assert_ends(&run("EXTRA"), 0, &[" 0 failed the check"]);
    assert_ends(&run("OFF"), 1, &["failed the check"]);
}
