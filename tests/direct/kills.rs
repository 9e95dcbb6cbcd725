//! SIGKILL at any moment, of a program or of folio: the image mounts, what was synced is there, and
//! nothing remains.

use crate::support::random::Random;
use crate::support::require::requires;
use crate::support::rounds;
use crate::support::tools::{command, fsck, run, text};
use crate::{Fixture, finish, timed};
use rustix::process::{Pid, Signal, kill_process};
use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::process::Stdio;

/// Makes, syncs, renames and removes files in processes of its own, and reports each synced one.
const WORK: &str = "i=0; while :; do i=$((i+1)); mkdir -p w/$((i%7)); \
    dd if=/dev/zero of=w/new bs=3k count=$((i%40)) 2>/dev/null; \
    mv w/new w/$((i%7))/$((i%11)); rm -f w/$(((i+3)%7))/$(((i+5)%11)); \
    echo $i >synced-$i && sync synced-$i && echo $i; done";

/// Replays the journal of an image that was not closed.
fn replay(fixture: &Fixture) {
    let mut journal = command("e2fsck");
    let output = journal
        .args(["-fy", "-E", "journal_only"])
        .arg(fixture.image())
        .output();
    assert!(output.unwrap().status.code().is_some_and(|code| code <= 1));
}

/// The number of moments at which a test kills: 500 in a long run.
fn moments(short: usize) -> usize {
    if rounds::is_long() { 500 } else { short }
}

#[test]
fn killed_folio_loses_nothing_that_was_synced() {
    requires!(tool("ps"));
    let mut random = Random::new(37);
    for _ in 0..moments(2) {
        let fixture = Fixture::new("64M");
        let script = format!("cd '{}' && {WORK}", fixture.place().display());
        let program = fixture.command(&["sh", "-c", &script]);
        // The first line is the process of folio.
        let mut shell = command("sh");
        shell.args(["-c", "echo $$; exec \"$0\" \"$@\""]);
        shell.arg(program.get_program()).args(program.get_args());
        let mut child = timed(&shell).stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let folio = lines.next().unwrap().unwrap().parse().unwrap();
        let wanted = 1 + random.below(40) as usize;
        let mut synced: BTreeSet<String> =
            lines.by_ref().take(wanted).map(Result::unwrap).collect();
        kill_process(Pid::from_raw(folio).unwrap(), Signal::KILL).unwrap();
        child.wait().unwrap();
        // Closed by the last program: each ends with the server.
        synced.extend(lines.map_while(Result::ok));
        replay(&fixture);
        fsck(&fixture.image());
        for number in synced {
            let ask = format!("cat synced-{number}");
            let kept = command("debugfs")
                .args(["-R", &ask])
                .arg(fixture.image())
                .output();
            assert_eq!(kept.unwrap().stdout, format!("{number}\n").as_bytes());
        }
        let folder = fixture.folder.path().to_str().unwrap().to_owned();
        assert!(!run("ps", ["axww"]).contains(&folder), "a process is left");
    }
}

#[test]
fn killed_programs_leave_nothing() {
    requires!(tool("flock"));
    let fixture = Fixture::new("64M");
    // Programs that hold locks and open files are killed again and again; the lock is free at once.
    let script = "for i in $(seq MOMENTS); do \
        (exec 9>l; flock 9; exec 8>f$((i%5)); while :; do echo x >&8; done) & p=$!; \
        sleep 0.0$((i%9)); kill -9 $p; wait $p 2>/dev/null; \
        flock -w 100 l true || exit 9; done; rm -f f? l; ls";
    let output = fixture.bash(&script.replace("MOMENTS", &moments(40).to_string()));
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert_eq!(output.stdout, b"lost+found\n", "{output:?}");
    fixture.check();
}

#[test]
fn programs_left_by_the_command_end() {
    let fixture = Fixture::new("16M");
    let script = format!(
        "cd '{}'; sleep 1000 3>f & echo $!",
        fixture.place().display()
    );
    let output = finish(&mut fixture.command(&["sh", "-c", &script]));
    assert!(output.status.success(), "{output:?}");
    let pid = text(&output).trim().to_owned();
    assert!(
        !std::path::Path::new(&format!("/proc/{pid}/fd"))
            .join("3")
            .exists(),
        "{pid}"
    );
    fixture.check();
}
