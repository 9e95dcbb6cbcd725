//! The scenario `image-tools`: the subcommands of qemu-img, with the same words for `folio image
//! --qemu`. `convert` has a scenario of its own.

use crate::Common;
use crate::contender::find;
use crate::measure::Meter;
use crate::real_tree::{self, Limits};
use crate::report::{Place, Report, Table, Unit, owned, with_context};
use crate::rows::Sample;
use crate::run::{Case, Run, interleave, scratch_in};
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::Read;
use std::path::Path;

const LIMITS: [&str; 4] = [
    "the images are in the host's memory, and neither program waits for the disk unless its subcommand does",
    "a command of a few milliseconds is mostly the start of a process",
    "each command works on a fresh copy of its image, whose making is not measured",
    "one set of images: their size and how they were written decide much of this",
];
const NAME: &str = "image-tools";
const RIVAL: &str = "qemu-img";
const ROUNDS: u32 = 5;

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
pub(crate) fn measure(common: &Common, run: &Run<'_>) -> Result<Report, String> {
    let rival = find(RIVAL).ok_or("qemu-img is not installed, and makes the images")?;
    let size_mib = common.size_mib.unwrap_or_else(|| run.sized(1024, 64));
    let (dir, free) = (common.dir.display(), Place::of(&common.dir).free_mib);
    if free < size_mib * 4 {
        let need = size_mib * 4;
        return Err(format!(
            "{dir} has {free} MiB free, {need} are needed: see --dir and --size-mib"
        ));
    }
    let folder = scratch_in(&common.dir)?;
    let folder = folder.path();
    make_images(folder, size_mib, &run.folio, &rival)?;
    let mut report = Report::new(NAME, "", &common.dir);
    report.what = format!(
        "the subcommands of qemu-img, on images of {size_mib} MiB that are half full with files"
    );
    let mut cases = Vec::new();
    for job in &JOBS {
        for (contender, program, before) in [
            ("folio", &run.folio, &["image", "--qemu"][..]),
            (RIVAL, &rival, &[]),
        ] {
            cases.push(Case::new(job.title, contender, move || {
                once(job, folder, program.as_os_str(), before)
            }));
        }
    }
    let (rows, rounds) = interleave(run, NAME, &mut cases, ROUNDS)?;
    report.repeats = rounds;
    report.tables = vec![Table::new("subcommands", Unit::Seconds, Some(RIVAL), rows)];
    report.limits = owned(&LIMITS);
    Ok(report)
}

/// Runs one command on fresh copies.
fn once(job: &Job, folder: &Path, program: &OsStr, before: &[&str]) -> Result<Sample, String> {
    let _ = fs::remove_file(folder.join("new"));
    for (from, to) in job.copies {
        fs::copy(folder.join(from), folder.join(to)).map_err(with_context(from))?;
    }
    let words = job.words.iter().map(|word| in_folder(word, folder));
    let mut meter = Meter::default();
    meter.run(program, before.iter().map(OsString::from).chain(words))?;
    Ok(Sample {
        value: meter.cost.seconds,
        ..Sample::default()
    })
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
fn make_images(folder: &Path, size_mib: u64, folio: &Path, rival: &Path) -> Result<(), String> {
    let tree = folder.join("tree");
    fs::create_dir(&tree).map_err(with_context("tree"))?;
    let limits = Limits {
        files_min: 10,
        files_max: 200_000,
        bytes_max: (size_mib << 20) / 4,
    };
    real_tree::copy_to(&tree, limits)?;
    random_file(&tree.join("random"), size_mib / 4)?;
    random_file(&folder.join("more"), size_mib / 16)?;
    let run = |program: &Path, words: &[&str]| {
        let words = words.iter().map(|word| in_folder(word, folder));
        Meter::default().run(program.as_os_str(), words).map(drop)
    };
    let create = format!("--create={size_mib}M");
    run(folio, &["cp", "-a", &create, "@tree", "@base.raw:/tree"])?;
    fs::remove_dir_all(&tree).map_err(with_context("tree"))?;
    let convert = [
        "convert",
        "-f",
        "raw",
        "-O",
        "qcow2",
        "@base.raw",
        "@base.qcow2",
    ];
    run(rival, &convert)?;
    for copy in ["other.qcow2", "below.qcow2", "snapshots.qcow2"] {
        fs::copy(folder.join("base.qcow2"), folder.join(copy)).map_err(with_context(copy))?;
    }
    run(folio, &["cp", "@more", "@other.qcow2:/other"])?;
    for (below, above) in [
        ("@base.qcow2", "overlay.qcow2"),
        ("@below.qcow2", "above.qcow2"),
    ] {
        let at = format!("@{above}");
        run(
            rival,
            &[
                "create", "-q", "-f", "qcow2", "-b", below, "-F", "qcow2", &at,
            ],
        )?;
        run(folio, &["cp", "@more", &format!("@{above}:/more")])?;
    }
    for number in 1..4 {
        let name = format!("s{number}");
        run(rival, &["snapshot", "-c", &name, "@snapshots.qcow2"])?;
        run(
            folio,
            &["cp", "@more", &format!("@snapshots.qcow2:/{name}")],
        )?;
    }
    Ok(())
}

fn random_file(path: &Path, size_mib: u64) -> Result<(), String> {
    let fill = || {
        let mut from = fs::File::open("/dev/urandom")?.take(size_mib << 20);
        std::io::copy(&mut from, &mut fs::File::create(path)?)
    };
    fill().map(drop).map_err(with_context(path.display()))
}
