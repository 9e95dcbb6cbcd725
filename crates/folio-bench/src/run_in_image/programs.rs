//! Usual programs that work in an image by `folio run --direct`, beside the kernel's loop mount,
//! `folio mount`, proot and a folder of the host.

use crate::command::{Meter, find, tool};
use crate::hosted::{Hosted, System};
use crate::outcome::{Context, Outcome};
use crate::race::{Race, Run, Turn, scratch_in};
use crate::report::{Report, Sample, Unit};
use crate::sample_tree::SampleTree;
use std::fs;
use std::path::Path;
use std::process::Command;

const LIMITS: [&str; 3] = [
    "each contender starts with an empty file system; the jobs follow one another in it, as they are listed",
    "programs, their start and the shell's part are in the figures; with the end: from the start of the shell until the \
     image is complete and clean (folio run, unmount, sync of the host's folder)",
    "on one processor: taskset -c 0 folio bench run --direct",
];
const RIVAL: &str = "kernel loop mount";
/// The job of the whole script.
const ALL: &str = "all jobs, with the end";
const IMAGE_MIB: u64 = 1024;

/// Each job: its title, the program that it needs, and its line of bash. `$tar` is the archive,
/// `$repository` a git repository of the host, `$sql` a function that prints statements.
const JOBS: [(&str, &str, &str); 8] = [
    ("tar -x", "tar", "mkdir tree; tar -xf \"$tar\" -C tree"),
    ("find -ls, again", "find", "find tree -ls >/dev/null"),
    ("grep -r, again", "grep", "! grep -rq 'no such text' tree"),
    (
        "git clone --shared",
        "git",
        "git clone --quiet --shared \"$repository\" clone",
    ),
    ("git status", "git", "git -C clone status >/dev/null"),
    (
        "sqlite3, 100,000 rows, an index",
        "sqlite3",
        "sqlite3 a.db 'CREATE TABLE t(a, b); INSERT INTO t WITH RECURSIVE c(n) AS (SELECT 1 UNION \
         ALL SELECT n + 1 FROM c WHERE n < 100000) SELECT n, hex(n * 7919) FROM c; \
         CREATE INDEX i ON t(b)'",
    ),
    (
        "sqlite3, 200 commits",
        "sqlite3",
        "{ echo 'CREATE TABLE t(a);'; for i in {1..199}; do echo \"INSERT INTO t VALUES($i);\"; \
         done; } | sqlite3 b.db",
    ),
    ("rm -rf", "rm", "rm -rf tree"),
];

/// Runs the scenario and returns its report.
pub(super) fn measure(dir: &Path, run: &Run<'_>) -> Outcome<Report> {
    let scratch = scratch_in(dir)?;
    let source = SampleTree::new(scratch.path(), run.sized(15_000, 60))?;
    let what = format!(
        "programs at work in an image: a tree of {} entries ({} MiB), databases",
        source.entries(),
        source.bytes >> 20
    );
    let mut report = Report::new("run", what, dir);
    let mut jobs = Vec::new();
    for job in JOBS {
        match find(job.1) {
            Some(_) => jobs.push(job),
            None => report.skip(job.0, format!("{} is not installed", job.1)),
        }
    }
    let script = script(&jobs, &source)?;
    let mut race = Race::new("jobs", Unit::Seconds, Some(RIVAL)).leave_out_failures();
    let contenders = [
        ("folio run --direct", Way::Direct),
        ("folio mount", Way::Mount(System::Folio(run.folio.clone()))),
        (RIVAL, Way::Mount(System::EXT4)),
        ("proot, the host's folder", Way::Proot),
        ("the host's folder", Way::Host),
    ];
    for (name, way) in contenders {
        let missing = match &way {
            Way::Mount(system) => system.missing(),
            Way::Proot => crate::command::lacking(&["proot"]),
            Way::Direct | Way::Host => None,
        };
        if let Some(reason) = missing {
            report.skip(name, reason);
            continue;
        }
        let (script, scratch) = (&script, scratch.path());
        race.contender(name, move |turn| {
            let folder = scratch_in(scratch)?;
            way.measure(folder.path(), script, run, turn)
        });
    }
    race.run(run, &mut report)?;
    report.limit(&LIMITS);
    Ok(report)
}

/// Returns a script that runs jobs in the folder of its first argument, and prints a line for each:
/// its title and its seconds.
fn script(jobs: &[(&str, &str, &str)], source: &SampleTree) -> Outcome<String> {
    let mut script = format!(
        "set -e; cd \"$1\"; tar={}; repository={}\n",
        quoted(&source.archive()?),
        quoted(&source.repository()?)
    );
    for (title, _, line) in jobs {
        // Once before: the second time is measured.
        if title.ends_with(", again") {
            script.push_str(&format!("{line}\n"));
        }
        script.push_str(&format!(
            "start=$EPOCHREALTIME; {line}; end=$EPOCHREALTIME\n\
             echo \"{title}\t$start\t$end\"\n"
        ));
    }
    Ok(script)
}

fn quoted(path: &Path) -> String {
    format!("'{}'", path.display().to_string().replace('\'', r"'\''"))
}

/// The way of the programs to their files.
enum Way {
    Direct,
    Mount(System),
    Proot,
    Host,
}

impl Way {
    fn measure(&self, folder: &Path, script: &str, run: &Run<'_>, turn: &mut Turn) -> Outcome {
        let place = folder.join("place");
        fs::create_dir(&place).at(&place)?;
        let bash = |mut command: Command, place: &Path| {
            command.args(["-c", script, "bash"]).arg(place);
            // The repository may be another user's.
            command.env("GIT_CONFIG_COUNT", "1");
            command.envs([
                ("GIT_CONFIG_KEY_0", "safe.directory"),
                ("GIT_CONFIG_VALUE_0", "*"),
            ]);
            command
        };
        let mut meter = Meter::default();
        let said = match self {
            Self::Direct => {
                let image = folder.join("direct.img");
                System::EXT4.make_image(&image, IMAGE_MIB)?;
                let mut folio = run.folio();
                folio.args(["run", "--direct", "--at"]).arg(&place);
                folio.arg(&image).args(["--", "bash"]);
                meter.run(&mut bash(folio, &place))?
            }
            Self::Mount(system) => {
                let mut hosted = Hosted::fresh(system.clone(), folder, IMAGE_MIB, "")?;
                let said = meter.run(&mut bash(tool("bash")?, &hosted.mount_point))?;
                meter.time(|| hosted.unmount())?;
                said
            }
            Self::Proot => {
                let mut proot = tool("proot")?;
                proot.arg("bash");
                meter.run(&mut bash(proot, &place))?
            }
            Self::Host => {
                let said = meter.run(&mut bash(tool("bash")?, &place))?;
                meter.run(tool("sync")?.arg("-f").arg(&place))?;
                said
            }
        };
        for line in said.lines() {
            let mut fields = line.split('\t');
            let title = fields.next().unwrap_or_default();
            let mut time = || fields.next().and_then(|field| field.parse::<f64>().ok());
            let (Some(start), Some(end)) = (time(), time()) else {
                return Err(format!("unexpected output {line:?}").into());
            };
            turn.add(title, Sample::of(end - start));
        }
        turn.add(ALL, meter.sample());
        Ok(())
    }
}
