//! The scenario `small-file`: one small file read out of the ext4 in an image, by a whole process.

use crate::Common;
use crate::contender::find;
use crate::measure::{Cost, Meter};
use crate::report::{Report, Row, Table, Unit, owned};
use crate::run::{Run, scratch_in};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

const LIMITS: [&str; 2] = [
    "the image is in the host's memory; a cold one costs what the disk takes for some ten blocks",
    "debugfs reads the raw image: it knows no qcow2",
];
const FILES: usize = 1000;
/// Runs of one round: a process this short is mostly chance.
const RUNS: usize = 20;

const ROUNDS: u32 = 5;
const RIVAL: &str = "debugfs cat, raw";

/// Runs the scenario and returns its report.
pub(crate) fn measure(common: &Common, run: &Run<'_>) -> Result<Report, String> {
    let program = &run.folio;
    let folder = scratch_in(&common.dir)?;
    let tree = folder.path().join("tree");
    std::fs::create_dir(&tree).map_err(|error| error.to_string())?;
    for number in 0..FILES {
        std::fs::write(tree.join(format!("file-{number}")), format!("{number}\n"))
            .map_err(|error| error.to_string())?;
    }
    let size_mib = common.size_mib.unwrap_or_else(|| run.sized(8192, 64));
    let images = [
        folder.path().join("image.qcow2"),
        folder.path().join("image.raw"),
    ];
    for image in &images {
        let mut place = image.clone().into_os_string();
        place.push(":/");
        let create = format!("--create={size_mib}M");
        let arguments = [
            OsStr::new("cp"),
            OsStr::new("-a"),
            OsStr::new(&create),
            tree.as_os_str(),
            &place,
        ];
        Meter::default().run(program.as_os_str(), arguments)?;
    }
    let [qcow2, raw] = images;
    let mut contenders = vec![
        ("folio cat, qcow2", true, qcow2),
        ("folio cat, raw", true, raw.clone()),
    ];
    let runs = run.sized(RUNS, 2);
    let what = format!(
        "one of {FILES} files of a few bytes out of an image of {size_mib} MiB; mean of {runs} processes a round"
    );
    let mut report = Report::new("small-file", what, &common.dir);
    match find("debugfs") {
        Some(_) => contenders.push((RIVAL, false, raw)),
        None => report.skip(RIVAL, "debugfs is not installed"),
    }
    let mut costs = vec![Vec::new(); contenders.len()];
    while run.goes_on("small-file", report.repeats, ROUNDS)? {
        for turn in 0..contenders.len() {
            let at = (turn + report.repeats as usize) % contenders.len();
            let (_, is_folio, image) = &contenders[at];
            costs[at].push(once(program, *is_folio, image, runs)?);
        }
        report.repeats += 1;
    }
    let rows = contenders.iter().zip(&costs);
    let rows = rows
        .map(|((name, ..), costs)| Row::of_costs("read it", name, costs))
        .collect();
    report
        .tables
        .push(Table::new("read it", Unit::Seconds, Some(RIVAL), rows));
    report.limits = owned(&LIMITS);
    Ok(report)
}

/// The mean of several processes.
fn once(folio: &Path, is_folio: bool, image: &Path, runs: usize) -> Result<Cost, String> {
    let mut meter = Meter::default();
    let name = format!("/tree/file-{}", FILES / 2);
    for _ in 0..runs {
        let said = if is_folio {
            let place = PathBuf::from(format!("{}:{name}", image.display()));
            meter.run(folio.as_os_str(), [OsStr::new("cat"), place.as_os_str()])?
        } else {
            let program = find("debugfs").ok_or("debugfs is not installed")?;
            let request = format!("cat {name}");
            let arguments = [OsStr::new("-R"), OsStr::new(&request), image.as_os_str()];
            meter.run(program.as_os_str(), arguments)?
        };
        if said != format!("{}\n", FILES / 2) {
            return Err(format!("{}: read {said:?}", image.display()));
        }
    }
    let cost = meter.cost;
    let runs = runs as f64;
    Ok(Cost {
        seconds: cost.seconds / runs,
        cpu_seconds: cost.cpu_seconds / runs,
        ..cost
    })
}
