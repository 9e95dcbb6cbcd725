//! The scenario `run`: commands of a Debian root in an image, by `folio run`, beside the same tree
//! under systemd-nspawn on a loop mount, under proot, and under chroot on the host.
//!
//! ```text
//!   mod        whole commands of a Debian
//!   programs   programs of this machine, by folio run --direct
//! ```

mod programs;

use crate::command::{self, inside, timed, tool, used_mib};
use crate::outcome::{Context, Outcome};
use crate::race::{Race, Run, scratch_in};
use crate::report::{Report, Unit, require_space};
use rustix::mount::UnmountFlags;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const LIMITS: [&str; 4] = [
    "folio run mounts the image anew for each command, so Folio's caches and the kernel's of the mount begin empty",
    "the loop mount and the host's tree stay, and the kernel's caches of them are warm",
    "times include the start and the end of each tool; folio run also syncs the image",
    "apt-get installs two small packages again, from files that were downloaded before",
];
const RIVAL: &str = "systemd-nspawn, loop mount";
/// Free space in the image, beyond the tree.
const ROOM_MIB: u64 = 1024;
/// Space that a Debian root needs, as a tree and as two images.
const SPACE_MIB: u64 = 6 << 10;
const PACKAGES: &str = "cron logrotate";
const PATH: &str = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Each job: its title, what it needs in the tree, and its script.
const JOBS: [(&str, &str, &str); 5] = [
    ("start", "bin/sh", "exit 0"),
    ("find / -xdev", "usr/bin/find", "find / -xdev >/dev/null"),
    (
        "tar -c /usr",
        "usr/bin/tar",
        "tar -c /usr 2>/dev/null | cat >/dev/null",
    ),
    (
        "apt-get install",
        "var/cache/apt/archives/lock",
        "export DEBIAN_FRONTEND=noninteractive; \
         apt-get install -y -q --reinstall --no-download cron logrotate >/dev/null 2>&1",
    ),
    (
        "compile 24 files of C",
        "usr/bin/gcc",
        "set -e; rm -rf /var/tmp/c; mkdir -p /var/tmp/c; cd /var/tmp/c; \
         for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24; do \
         printf '#include <stdio.h>\\n#include <stdlib.h>\\n#include <string.h>\\n\
         int f%d(char *s) { return printf(\"%%s\", s) + (int) strlen(s); }\\n' $i >f$i.c; \
         gcc -O1 -c f$i.c; done; ar rc libf.a f*.o",
    ),
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
    /// Instead, programs of this machine that work in an image by folio run --direct, beside the
    /// kernel's loop mount, folio mount, proot and the host
    #[arg(long, conflicts_with = "tree")]
    direct: bool,
}

/// Runs the scenario and returns its report.
pub(crate) fn measure(options: &Options, run: &Run<'_>) -> Outcome<Report> {
    if options.direct {
        return programs::measure(&options.dir, run);
    }
    let what = "commands in a root file system, from start to end";
    let mut report = Report::new("run", what, &options.dir);
    let scratch = scratch_in(&options.dir)?;
    let tree = match &options.tree {
        Some(tree) => tree.clone(),
        None => debian(scratch.path(), run)?,
    };
    let tree = tree.canonicalize().at(&tree)?;
    let image = scratch.path().join("root.img");
    make_image(&tree, &image, run)?;
    let mount = tool("systemd-nspawn").and_then(|_| LoopMount::of_copy(&image, scratch.path()));
    let folio = || {
        let mut folio = run.folio();
        folio.arg("run").arg(&image).arg("--");
        Ok(folio)
    };
    let nspawn = || {
        let mount = mount.as_ref().map_err(|reason| reason.to_string())?;
        let mut nspawn = tool("systemd-nspawn")?;
        nspawn
            .args(["--quiet", "--register=no", "--keep-unit", "-D"])
            .arg(&mount.0);
        Ok(nspawn)
    };
    let (proot, chroot) = (|| proot(&tree), || chroot(&tree));
    let contenders: [(&str, &dyn Fn() -> Outcome<Command>); 4] = [
        ("folio run", &folio),
        (RIVAL, &nspawn),
        ("proot", &proot),
        ("chroot on the host", &chroot),
    ];
    let with_script = |make: &dyn Fn() -> Outcome<Command>, script: &str| {
        let mut command = make()?;
        command.args(["/bin/sh", "-c", script]);
        Outcome::Ok(command)
    };
    let mut working = Vec::new();
    for (name, make) in contenders {
        match with_script(make, "exit 0").and_then(|mut trial| command::run(&mut trial)) {
            Err(reason) if name != "folio run" => report.skip(name, reason.to_string()),
            _ => working.push((name, make)),
        }
    }
    let mut race = Race::new("commands", Unit::Seconds, Some(RIVAL));
    for (title, needs, script) in JOBS {
        if !tree.join(needs).exists() {
            report.skip(title, format!("the tree has no {needs}"));
            continue;
        }
        for (name, make) in &working {
            let mut commands = [with_script(*make, script)?];
            race.case(title, name, move || timed(&mut commands));
        }
    }
    race.run(run, &mut report)?;
    report.limit(&LIMITS);
    Ok(report)
}

/// Makes a Debian with a compiler, and with the files of two packages.
fn debian(scratch: &Path, run: &Run<'_>) -> Outcome<PathBuf> {
    let mut mmdebstrap = tool("mmdebstrap").map_err(|reason| format!("{reason}: see --tree"))?;
    require_space(scratch, SPACE_MIB, "--dir")?;
    (run.step)("making a Debian with mmdebstrap")?;
    let tree = scratch.join("tree");
    let download =
        format!("--customize-hook=chroot \"$1\" apt-get install -y -d --reinstall {PACKAGES}");
    let include = format!("--include=gcc,libc6-dev,{}", PACKAGES.replace(' ', ","));
    mmdebstrap.args([
        "--quiet",
        "--variant=apt",
        "--skip=cleanup/apt",
        &include,
        &download,
    ]);
    command::run(mmdebstrap.arg("bookworm").arg(&tree))?;
    Ok(tree)
}

fn make_image(tree: &Path, image: &Path, run: &Run<'_>) -> Outcome {
    let used_mib = used_mib(tree)?;
    let size = format!("{}M", used_mib + used_mib / 8 + ROOM_MIB);
    let mut copy = run.folio();
    copy.args(["cp", "-a", "--create", &size])
        .arg(tree.join("."));
    command::run(copy.arg(inside(image, "/"))).map(drop)
}

/// A loop mount that ends when the value drops.
struct LoopMount(PathBuf);

impl LoopMount {
    /// Mounts a copy of the image.
    fn of_copy(image: &Path, scratch: &Path) -> Outcome<Self> {
        let (copy, mount_point) = (scratch.join("loop.img"), scratch.join("mnt"));
        command::run(tool("cp")?.arg("--sparse=always").arg(image).arg(&copy))?;
        fs::create_dir(&mount_point).at(&mount_point)?;
        command::run(tool("mount")?.arg("-oloop").arg(&copy).arg(&mount_point))?;
        Ok(Self(mount_point))
    }
}

impl Drop for LoopMount {
    fn drop(&mut self) {
        // Nothing else can be done about it.
        let _ = rustix::mount::unmount(&self.0, UnmountFlags::DETACH);
    }
}

fn proot(tree: &Path) -> Outcome<Command> {
    let proot = tool("proot")?;
    let mut env = tool("env")?;
    env.args(["-i", PATH])
        .arg(proot.get_program())
        .args(["-0", "-r"])
        .arg(tree);
    env.args(["-b", "/dev", "-b", "/proc", "-w", "/"]);
    Ok(env)
}

fn chroot(tree: &Path) -> Outcome<Command> {
    const SCRIPT: &str = "mount --bind /dev \"$0/dev\" && mount -t proc proc \"$0/proc\" && \
                          exec chroot \"$0\" \"$@\"";
    let mut env = tool("env")?;
    env.args(["-i", PATH, "unshare", "--mount", "sh", "-c", SCRIPT])
        .arg(tree);
    Ok(env)
}
