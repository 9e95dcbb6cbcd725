//! SIGKILL at any moment, of the command or of folio: the image mounts, and nothing remains.

use crate::support::random::Random;
use crate::support::require::requires;
use crate::support::tools::{command, run};
use crate::{Fixture, for_each_caller};
use rustix::process::{Pid, Signal, kill_process};
use std::io::Read;
use std::process::Stdio;

/// Number of kills; FOLIO_RUN_KILLS overrides it.
const KILLS: u32 = 6;
/// Makes, renames and removes files, syncs some of them, and reports each one.
const WORK: &str = "i=0; while :; do i=$((i+1)); mkdir -p /w/$((i%7)); \
    dd if=/dev/zero of=/w/new bs=3k count=$((i%40)) 2>/dev/null; \
    [ $((i%5)) = 0 ] && sync; ln -sf new /w/$((i%7))/link; \
    busybox mv /w/new /w/$((i%7))/$((i%11)); rm -f /w/$(((i+3)%7))/$(((i+5)%11)); echo $i; done";

for_each_caller! {
    killed_folio_leaves_a_consistent_image;
}

fn killed_folio_leaves_a_consistent_image(fixture: &Fixture) {
    requires!(tool("ps"));
    let count = std::env::var("FOLIO_RUN_KILLS").ok();
    let count = count.and_then(|text| text.parse().ok()).unwrap_or(KILLS);
    let mut random = Random::new(18);
    for _ in 0..count {
        let work = ["busybox", "timeout", "300", "sh", "-c", WORK];
        let mut program = fixture.command(&[&["disk.img", "--"], &work[..]].concat());
        let mut child = program.stdout(Stdio::piped()).spawn().unwrap();
        // A number of bytes of progress, not a time.
        let wanted = 2 + random.below(400) as usize;
        let mut output = child.stdout.take().unwrap();
        output.read_exact(&mut vec![0; wanted]).unwrap();
        kill_process(Pid::from_child(&child), Signal::KILL).unwrap();
        child.wait().unwrap();
        // Closed by the last process of the namespace.
        output.read_to_end(&mut Vec::new()).unwrap();
        let image = fixture.path("disk.img");
        let journal = command("e2fsck")
            .arg("-fy")
            .arg("-E")
            .arg("journal_only")
            .arg(&image)
            .output();
        assert!(journal.unwrap().status.code().is_some_and(|code| code <= 1));
        fixture.check();
        assert!(fixture.run(&["disk.img", "true"]).status.success());
        fixture.check();
    }
    let folder = fixture.folder.path().to_str().unwrap().to_owned();
    assert!(
        !std::fs::read_to_string("/proc/mounts")
            .unwrap()
            .contains(&folder)
    );
    assert!(!run("ps", ["axww"]).contains(&folder));
}
