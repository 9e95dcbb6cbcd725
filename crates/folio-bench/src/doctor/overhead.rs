//! Usual commands with and without the recorder of `folio doctor`.

use crate::command::lacking;
use crate::outcome::{Context, Outcome};
use crate::race::{Race, Run};
use crate::report::{Bound, Report, Sample, Unit};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

const TABLE: &str = "overhead";
const PLAIN: &str = "plain";
const RECORDED: &str = "folio doctor --";
/// Time with the recorder, at most, as a multiple of the time without.
const AIM: f64 = 1.05;
const ROUNDS: u32 = 11;

/// Commands, with the programs that each needs and a script that makes its files.
const JOBS: [(&str, &[&str], &str, &str); 4] = [
    (
        "tar",
        &["tar"],
        "",
        "for n in 1 2 3; do tar -cf tree.tar /usr/include; done",
    ),
    (
        "git status",
        &["git"],
        "git init -q tree && cp -r /usr/include tree/include && git -C tree add -A",
        "for n in 1 2 3 4 5 6 7 8; do git -C tree status --short > status; done",
    ),
    (
        "SQLite",
        &["sqlite3"],
        "{ echo 'create table t(a, b); begin;'; seq 200000 | sed 's/.*/insert into t values(&, &);/'; \
         echo 'commit;'; } > rows.sql && sqlite3 base < rows.sql",
        "for n in 1 2 3 4 5 6 7 8; do sqlite3 base 'select sum(a * b) from t where a % 3 = 1' > sum; done",
    ),
    (
        "make",
        &["make", "gcc"],
        "for n in 1 2 3 4 5 6; do echo \"int f$n(void) { return $n; }\" > f$n.c; done; \
         printf 'all: f1.o f2.o f3.o f4.o f5.o f6.o\\n%%.o: %%.c\\n\\tgcc -O2 -c -o $@ $<\\n' > Makefile",
        "make -s -B",
    ),
];

/// Measures them, and judges them.
pub(super) fn measure(scratch: &Path, run: &Run<'_>, report: &mut Report) -> Outcome {
    let folder = scratch.join("overhead");
    std::fs::create_dir_all(&folder).at(&folder)?;
    let mut jobs = Vec::new();
    for (job, programs, prepare, script) in JOBS {
        if let Some(reason) = lacking(programs) {
            report.skip(format!("overhead of {job}"), reason);
            continue;
        }
        timed(shell(prepare), &folder, 0)?;
        jobs.push((job, script));
    }
    let mut race = Race::new(TABLE, Unit::Seconds, Some(PLAIN)).rounds(ROUNDS);
    for is_recorded in [false, true] {
        let (jobs, folder) = (&jobs, &folder);
        race.contender(if is_recorded { RECORDED } else { PLAIN }, move |turn| {
            for (job, script) in jobs {
                let mut command = shell(script);
                if is_recorded {
                    let plain = command;
                    command = run.folio();
                    command.args(["doctor", "--json", "--"]);
                    command.arg(plain.get_program()).args(plain.get_args());
                }
                // 1 is the status of a verdict with faults.
                turn.add(job, timed(command, folder, i32::from(is_recorded))?);
            }
            Ok(())
        });
    }
    race.run(run, report)?;
    for (job, ..) in JOBS {
        let aim = format!("{job}: the recorder costs at most 5 %");
        report.judge_pair(aim, TABLE, job, [RECORDED, PLAIN], Bound::AtMost(AIM));
    }
    Ok(())
}

fn shell(script: &str) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", script]);
    command
}

/// Runs a command that ends with at most this status.
fn timed(mut command: Command, folder: &Path, status_max: i32) -> Outcome<Sample> {
    command.current_dir(folder).env("LC_ALL", "C");
    let start = Instant::now();
    let output = command.stdin(Stdio::null()).output().at(folder)?;
    let seconds = start.elapsed().as_secs_f64();
    if output.status.code().is_some_and(|code| code <= status_max) {
        return Ok(Sample::of(seconds));
    }
    let says = String::from_utf8_lossy(&output.stderr);
    Err(format!("{}: {}", output.status, says.trim()).into())
}
