//! The scenario `image-tools`: the subcommands of qemu-img, with the same words for `folio image
//! --qemu`. `convert` has a scenario of its own.

use crate::command::{self, find, timed};
use crate::convert::{make_tree, random_file};
use crate::options::Common;
use crate::outcome::{Context, Outcome};
use crate::race::{Race, Run, scratch_in};
use crate::report::{Report, Unit, require_space};
use std::ffi::OsString;
use std::fs;
use std::path::Path;
use std::process::Command;

const LIMITS: [&str; 4] = [
    "the images are in the host's memory, and neither program waits for the disk unless its subcommand does",
    "a command of a few milliseconds is mostly the start of a process",
    "each command works on a fresh copy of its image, whose making is not measured",
    "one set of images: their size and how they were written decide much of this",
];
const RIVAL: &str = "qemu-img";

/// One subcommand.
struct Job {
    title: &'static str,
    /// Images that the command changes: a copy of the first is made at the second.
    copies: &'static [(&'static str, &'static str)],
    /// The words of both programs. `@` is the folder of the images.
    words: &'static [&'static str],
}

const fn reads(title: &'static str, words: &'static [&'static str]) -> Job {
    Job {
        title,
        copies: &[],
        words,
    }
}

const fn changes(
    title: &'static str,
    copies: &'static [(&'static str, &'static str)],
    words: &'static [&'static str],
) -> Job {
    Job {
        title,
        copies,
        words,
    }
}

const SNAPSHOTS: &[(&str, &str)] = &[("snapshots.qcow2", "work.qcow2")];
const BASE: &[(&str, &str)] = &[("base.qcow2", "work.qcow2")];
const OVERLAY: &[(&str, &str)] = &[("overlay.qcow2", "work.qcow2")];

#[rustfmt::skip]
const JOBS: [Job; 25] = [
    reads("create", &["create", "-q", "-f", "qcow2", "@new", "100G"]),
    reads("create, preallocation=metadata", &["create", "-q", "-f", "qcow2", "-o", "preallocation=metadata", "@new", "100G"]),
    reads("create, preallocation=falloc", &["create", "-q", "-f", "raw", "-o", "preallocation=falloc", "@new", "256M"]),
    reads("create over a backing file", &["create", "-q", "-f", "qcow2", "-b", "@base.qcow2", "-F", "qcow2", "@new"]),
    reads("info", &["info", "--output=json", "@base.qcow2"]),
    reads("info of a chain", &["info", "--output=json", "--backing-chain", "@overlay.qcow2"]),
    reads("check", &["check", "-q", "@base.qcow2"]),
    reads("check, with snapshots", &["check", "-q", "@snapshots.qcow2"]),
    reads("map", &["map", "--output=json", "@overlay.qcow2"]),
    reads("map of a raw image", &["map", "--output=json", "-f", "raw", "@base.raw"]),
    reads("measure", &["measure", "--output=json", "-O", "qcow2", "-f", "raw", "@base.raw"]),
    reads("compare", &["compare", "-q", "-f", "raw", "-F", "qcow2", "@base.raw", "@base.qcow2"]),
    reads("snapshot -l", &["snapshot", "-l", "@snapshots.qcow2"]),
    changes("snapshot -c", SNAPSHOTS, &["snapshot", "-q", "-c", "new", "@work.qcow2"]),
    changes("snapshot -a", SNAPSHOTS, &["snapshot", "-q", "-a", "s2", "@work.qcow2"]),
    changes("snapshot -d", SNAPSHOTS, &["snapshot", "-q", "-d", "s2", "@work.qcow2"]),
    changes("bitmap --add", BASE, &["bitmap", "--add", "@work.qcow2", "b0"]),
    changes("amend", BASE, &["amend", "-q", "-f", "qcow2", "-o", "lazy_refcounts=on", "@work.qcow2"]),
    changes("resize", BASE, &["resize", "-q", "@work.qcow2", "2T"]),
    changes("resize --shrink", BASE, &["resize", "-q", "--shrink", "@work.qcow2", "64M"]),
    changes("rebase", OVERLAY, &["rebase", "-q", "-b", "@other.qcow2", "-F", "qcow2", "@work.qcow2"]),
    changes("rebase to none", OVERLAY, &["rebase", "-q", "-b", "", "@work.qcow2"]),
    changes("rebase -u", OVERLAY, &["rebase", "-q", "-u", "-b", "@other.qcow2", "-F", "qcow2", "@work.qcow2"]),
    changes("commit", &[("base.qcow2", "below.qcow2"), ("above.qcow2", "work.qcow2")], &["commit", "-q", "@work.qcow2"]),
    reads("dd", &["dd", "-f", "qcow2", "-O", "raw", "bs=1M", "if=@base.qcow2", "of=@new"]),
];

/// Runs the scenario and returns its report.
pub(crate) fn measure(common: &Common, run: &Run<'_>) -> Outcome<Report> {
    let rival = find(RIVAL).ok_or("qemu-img is not installed, and makes the images")?;
    let size_mib = common.size_mib.unwrap_or_else(|| run.sized(1024, 64));
    require_space(&common.dir, size_mib * 4, "--dir and --size-mib")?;
    let scratch = scratch_in(&common.dir)?;
    let folder = scratch.path();
    make_images(folder, size_mib, run, &rival)?;
    let what = format!(
        "the subcommands of qemu-img, on images of {size_mib} MiB that are half full with files"
    );
    let mut report = Report::new("image-tools", what, &common.dir);
    let mut race = Race::new("subcommands", Unit::Seconds, Some(RIVAL));
    for job in &JOBS {
        let mut folio = run.folio();
        folio.args(["image", "--qemu"]);
        for (contender, command) in [("folio", folio), (RIVAL, Command::new(&rival))] {
            let mut commands = [command];
            commands[0].args(job.words.iter().map(|word| in_folder(word, folder)));
            race.case(job.title, contender, move || {
                // On fresh copies.
                let _ = fs::remove_file(folder.join("new"));
                for (from, to) in job.copies {
                    fs::copy(folder.join(from), folder.join(to)).at(from)?;
                }
                timed(&mut commands)
            });
        }
    }
    race.run(run, &mut report)?;
    report.limit(&LIMITS);
    Ok(report)
}

/// Returns a word with the folder in the place of `@`.
fn in_folder(word: &str, folder: &Path) -> OsString {
    let Some((before, name)) = word.split_once('@') else {
        return word.into();
    };
    let mut word = OsString::from(before);
    word.push(folder.join(name));
    word
}

/// Makes a raw image with files, and from it: a qcow2, overlays with a file more, another qcow2
/// with a file more, and one with snapshots.
fn make_images(folder: &Path, size_mib: u64, run: &Run<'_>, rival: &Path) -> Outcome {
    let tree = folder.join("tree");
    make_tree(&tree, size_mib)?;
    random_file(&folder.join("more"), (size_mib << 20) / 16)?;
    let start = |mut command: Command, words: &str| {
        let words = words.split(' ').map(|word| in_folder(word, folder));
        command::run(command.args(words)).map(drop)
    };
    let folio = |words: &str| start(run.folio(), words);
    let qemu_img = |words: &str| start(Command::new(rival), words);
    folio(&format!("cp -a --create={size_mib}M @tree @base.raw:/tree"))?;
    fs::remove_dir_all(&tree).at(&tree)?;
    qemu_img("convert -f raw -O qcow2 @base.raw @base.qcow2")?;
    for copy in ["other.qcow2", "below.qcow2", "snapshots.qcow2"] {
        fs::copy(folder.join("base.qcow2"), folder.join(copy)).at(copy)?;
    }
    folio("cp @more @other.qcow2:/other")?;
    for (below, above) in [("base", "overlay"), ("below", "above")] {
        qemu_img(&format!(
            "create -q -f qcow2 -b @{below}.qcow2 -F qcow2 @{above}.qcow2"
        ))?;
        folio(&format!("cp @more @{above}.qcow2:/more"))?;
    }
    for number in 1..4 {
        qemu_img(&format!("snapshot -c s{number} @snapshots.qcow2"))?;
        folio(&format!("cp @more @snapshots.qcow2:/s{number}"))?;
    }
    Ok(())
}
