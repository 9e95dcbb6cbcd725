//! The scenario `small-file`: one small file read out of the ext4 in an image, by a whole process.

use crate::Common;
use crate::bench::folio;
use crate::contender::find;
use crate::measure::{Cost, Meter};
use crate::report::{Machine, Report, Row, Table};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

const LIMITS: [&str; 2] = [
    "the image is in the host's memory; a cold one costs what the disk takes for some ten blocks",
    "debugfs reads the raw image: it knows no qcow2",
];
const FILES: usize = 1000;
/// Runs of one round: a process this short is mostly chance.
const RUNS: usize = 20;

/// Measures and prints.
pub(crate) fn run(common: &Common) -> Result<(), String> {
    let program = folio(common.folio.as_deref())?;
    let folder = tempfile::Builder::new().prefix("folio-bench-").tempdir_in(&common.dir);
    let folder = folder.map_err(|error| format!("{}: {error}", common.dir.display()))?;
    let tree = folder.path().join("tree");
    std::fs::create_dir(&tree).map_err(|error| error.to_string())?;
    for number in 0..FILES {
        std::fs::write(tree.join(format!("file-{number}")), format!("{number}\n"))
            .map_err(|error| error.to_string())?;
    }
    let size_mib = common.size_mib.unwrap_or(8192);
    let images = [folder.path().join("image.qcow2"), folder.path().join("image.raw")];
    for image in &images {
        let mut place = image.clone().into_os_string();
        place.push(":/");
        let create = format!("--create={size_mib}M");
        let arguments = [OsStr::new("cp"), OsStr::new("-a"), OsStr::new(&create), tree.as_os_str(), &place];
        Meter::default().run(program.as_os_str(), arguments)?;
    }
    let [qcow2, raw] = images;
    let mut contenders = vec![("folio cat, qcow2", true, qcow2), ("folio cat, raw", true, raw.clone())];
    let mut notes = Vec::new();
    match find("debugfs") {
        Some(_) => contenders.push(("debugfs cat, raw", false, raw)),
        None => notes.push("not measured: debugfs is not installed".to_owned()),
    }
    let mut costs = vec![Vec::new(); contenders.len()];
    for round in 0..common.repeats as usize {
        for turn in 0..contenders.len() {
            let at = (turn + round) % contenders.len();
            let (_, is_folio, image) = &contenders[at];
            costs[at].push(once(&program, *is_folio, image)?);
        }
    }
    let base = costs.get(2).map(|costs: &Vec<Cost>| Row::median(costs));
    let rows = contenders.iter().zip(&costs).map(|((name, ..), costs)| Row::new(name, costs, base)).collect();
    Report {
        scenario: "small-file".to_owned(),
        tree: format!("one of {FILES} files of a few bytes, mean of {RUNS} processes a round"),
        image_mib: size_mib,
        repeats: common.repeats,
        machine: Machine::here(&common.dir),
        tables: vec![Table { title: "read it".to_owned(), rival: "debugfs cat, raw".to_owned(), rows }],
        notes,
        limits: &LIMITS,
    }
    .print(common.json)
}

/// The mean of several processes.
fn once(folio: &Path, is_folio: bool, image: &Path) -> Result<Cost, String> {
    let mut meter = Meter::default();
    let name = format!("/tree/file-{}", FILES / 2);
    for _ in 0..RUNS {
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
    let runs = RUNS as f64;
    Ok(Cost { seconds: cost.seconds / runs, cpu_seconds: cost.cpu_seconds / runs, ..cost })
}
