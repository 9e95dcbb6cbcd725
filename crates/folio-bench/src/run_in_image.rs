//! The scenario `run`: commands of a Debian root in an image, by `folio run`, beside the same tree
//! under systemd-nspawn on a loop mount, under proot, and under chroot on the host.

use crate::contender::find;
use crate::measure::Meter;
use crate::report::{Place, Report, Table, Unit, owned, with_context};
use crate::rows::Sample;
use crate::run::{Case, Run, interleave, scratch_in};
use rustix::mount::UnmountFlags;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::{Path, PathBuf};

const LIMITS: [&str; 4] = [
    "folio run mounts the image anew for each command, so Folio's caches and the kernel's of the mount begin empty",
    "the loop mount and the host's tree stay, and the kernel's caches of them are warm",
    "times include the start and the end of each tool; folio run also syncs the image",
    "apt-get installs two small packages again, from files that were downloaded before",
];
const NAME: &str = "run";
const RIVAL: &str = "systemd-nspawn, loop mount";
const ROUNDS: u32 = 5;
/// Free space in the image, beyond the tree.
const ROOM_MIB: u64 = 1024;
/// Space that a Debian root needs, as a tree and as two images.
const SPACE_MIB: u64 = 6 << 10;
const PACKAGES: &str = "cron logrotate";
const PATH: &str = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// A job: its title, what it needs in the tree, and its script.
struct Job {
    title: &'static str,
    needs: &'static str,
    script: &'static str,
}

const JOBS: [Job; 5] = [
    Job {
        title: "start",
        needs: "bin/sh",
        script: "exit 0",
    },
    Job {
        title: "find / -xdev",
        needs: "usr/bin/find",
        script: "find / -xdev >/dev/null",
    },
    Job {
        title: "tar -c /usr",
        needs: "usr/bin/tar",
        script: "tar -c /usr 2>/dev/null | cat >/dev/null",
    },
    Job {
        title: "apt-get install",
        needs: "var/cache/apt/archives/lock",
        script: "export DEBIAN_FRONTEND=noninteractive; \
                 apt-get install -y -q --reinstall --no-download cron logrotate >/dev/null 2>&1",
    },
    Job {
        title: "compile 24 files of C",
        needs: "usr/bin/gcc",
        script: "set -e; rm -rf /var/tmp/c; mkdir -p /var/tmp/c; cd /var/tmp/c; \
                 for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24; do \
                 printf '#include <stdio.h>\\n#include <stdlib.h>\\n#include <string.h>\\n\
                 int f%d(char *s) { return printf(\"%%s\", s) + (int) strlen(s); }\\n' $i >f$i.c; \
                 gcc -O1 -c f$i.c; done; ar rc libf.a f*.o",
    },
];

/// What to run in, and where.
#[derive(Debug, Clone, clap::Args)]
pub struct Options {
    /// The tree; without it, a Debian that mmdebstrap makes
    #[arg(long)]
    tree: Option<PathBuf>,
    /// Where the images and the tree are made
    #[arg(long, default_value = "/tmp")]
    dir: PathBuf,
}

/// Runs the scenario and returns its report.
pub(crate) fn measure(options: &Options, run: &Run<'_>) -> Result<Report, String> {
    let mut report = Report::new(NAME, "", &options.dir);
    let scratch = scratch_in(&options.dir)?;
    let tree = match &options.tree {
        Some(tree) => tree.clone(),
        None => debian(scratch.path(), run)?,
    };
    let tree = tree.canonicalize().map_err(with_context(tree.display()))?;
    report.what = "commands in a root file system, from start to end".to_owned();
    let image = scratch.path().join("root.img");
    make_image(&tree, &image, run)?;
    let mut contenders = vec![(
        "folio run",
        words(&[
            run.folio.as_os_str(),
            "--quiet".as_ref(),
            "run".as_ref(),
            image.as_os_str(),
            "--".as_ref(),
        ]),
    )];
    let mounted = match loop_mount(&image, scratch.path()) {
        Ok((mounted, words)) => {
            contenders.push((RIVAL, words));
            Some(mounted)
        }
        Err(reason) => {
            report.skip(RIVAL, reason);
            None
        }
    };
    for (name, words) in [
        ("proot", proot(&tree)),
        ("chroot on the host", chroot(&tree)),
    ] {
        match words {
            Ok(words) => contenders.push((name, words)),
            Err(reason) => report.skip(name, reason),
        }
    }
    let mut cases = Vec::new();
    for job in &JOBS {
        if !tree.join(job.needs).exists() {
            report.skip(job.title, format!("the tree has no {}", job.needs));
            continue;
        }
        for (name, words) in &contenders {
            cases.push(Case::new(job.title, name, move || once(words, job.script)));
        }
    }
    let (rows, rounds) = interleave(run, NAME, &mut cases, ROUNDS)?;
    drop(mounted);
    report.repeats = rounds;
    report.tables = vec![Table::new("commands", Unit::Seconds, Some(RIVAL), rows)];
    report.limits = owned(&LIMITS);
    Ok(report)
}

fn words(words: &[&OsStr]) -> Vec<OsString> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

/// Makes a Debian with a compiler, and with the files of two packages.
fn debian(scratch: &Path, run: &Run<'_>) -> Result<PathBuf, String> {
    let program = find("mmdebstrap").ok_or("mmdebstrap is not installed: see --tree")?;
    let free = Place::of(scratch).free_mib;
    if free < SPACE_MIB {
        return Err(format!(
            "{free} MiB are free, {SPACE_MIB} are needed: see --dir"
        ));
    }
    (run.step)("making a Debian with mmdebstrap")?;
    let tree = scratch.join("tree");
    let hook =
        format!("--customize-hook=chroot \"$1\" apt-get install -y -d --reinstall {PACKAGES}");
    let include = format!("--include=gcc,libc6-dev,{}", PACKAGES.replace(' ', ","));
    let flags = ["--quiet", "--variant=apt", "--skip=cleanup/apt"].map(OsString::from);
    let rest = [
        OsString::from(include),
        hook.into(),
        "bookworm".into(),
        tree.clone().into(),
    ];
    Meter::default().run(program.as_os_str(), flags.into_iter().chain(rest))?;
    Ok(tree)
}

fn make_image(tree: &Path, image: &Path, run: &Run<'_>) -> Result<(), String> {
    let du = Meter::default().run(OsStr::new("du"), [OsStr::new("-sm"), tree.as_os_str()])?;
    let used_mib: u64 = du
        .split_whitespace()
        .next()
        .and_then(|mib| mib.parse().ok())
        .unwrap_or(0);
    let size = format!("{}M", used_mib + used_mib / 8 + ROOM_MIB);
    let (mut from, mut to) = (
        tree.to_owned().into_os_string(),
        image.to_owned().into_os_string(),
    );
    from.push("/.");
    to.push(":/");
    let words = [
        OsString::from("cp"),
        "-a".into(),
        "--quiet".into(),
        from,
        to,
        "--create".into(),
        size.into(),
    ];
    Meter::default().run(run.folio.as_os_str(), words).map(drop)
}

/// A loop mount that ends when the value drops.
struct LoopMount(PathBuf);

impl Drop for LoopMount {
    fn drop(&mut self) {
        // Nothing else can be done about it.
        let _ = rustix::mount::unmount(&self.0, UnmountFlags::DETACH);
    }
}

/// Mounts a copy of the image, and returns the words that run a program in it.
fn loop_mount(image: &Path, scratch: &Path) -> Result<(LoopMount, Vec<OsString>), String> {
    let nspawn = find("systemd-nspawn").ok_or("systemd-nspawn is not installed")?;
    let (copy, mount) = (scratch.join("loop.img"), scratch.join("mnt"));
    let mut meter = Meter::default();
    meter.run(
        OsStr::new("cp"),
        [
            OsStr::new("--sparse=always"),
            image.as_os_str(),
            copy.as_os_str(),
        ],
    )?;
    fs::create_dir(&mount).map_err(with_context(mount.display()))?;
    meter.run(
        OsStr::new("mount"),
        [OsStr::new("-oloop"), copy.as_os_str(), mount.as_os_str()],
    )?;
    let guard = LoopMount(mount.clone());
    let words = words(&[
        nspawn.as_os_str(),
        "--quiet".as_ref(),
        "--register=no".as_ref(),
        "--keep-unit".as_ref(),
        "-D".as_ref(),
        mount.as_os_str(),
    ]);
    once(&words, "exit 0")?;
    Ok((guard, words))
}

fn proot(tree: &Path) -> Result<Vec<OsString>, String> {
    let proot = find("proot").ok_or("proot is not installed")?;
    let mut all = words(&[
        "env".as_ref(),
        "-i".as_ref(),
        PATH.as_ref(),
        proot.as_os_str(),
        "-0".as_ref(),
    ]);
    all.extend(["-r".into(), tree.to_owned().into_os_string()]);
    all.extend(["-b", "/dev", "-b", "/proc", "-w", "/"].map(OsString::from));
    once(&all, "exit 0")?;
    Ok(all)
}

fn chroot(tree: &Path) -> Result<Vec<OsString>, String> {
    const SCRIPT: &str = "mount --bind /dev \"$0/dev\" && mount -t proc proc \"$0/proc\" && \
                          exec chroot \"$0\" \"$@\"";
    let all = words(&[
        "env".as_ref(),
        "-i".as_ref(),
        PATH.as_ref(),
        "unshare".as_ref(),
        "--mount".as_ref(),
        "sh".as_ref(),
        "-c".as_ref(),
        SCRIPT.as_ref(),
        tree.as_os_str(),
    ]);
    once(&all, "exit 0")?;
    Ok(all)
}

/// Runs a script by the tool that `words` begin.
fn once(words: &[OsString], script: &str) -> Result<Sample, String> {
    let (program, arguments) = words.split_first().ok_or("no program")?;
    let script = ["/bin/sh", "-c", script].map(OsString::from);
    let mut meter = Meter::default();
    meter.run(program, arguments.iter().cloned().chain(script))?;
    Ok(Sample {
        value: meter.cost.seconds,
        ..Sample::default()
    })
}
