//! `folio image check`: are an image's tables what they should be, and can they be mended?

use super::shared_options::{OutputOptions, image_failure};
use crate::exit::{Exit, Failure, Outcome};
use crate::session::Session;
use clap::{Args, ValueEnum};
use folio::base::ErrorKind;
use folio::block::{self, Finding, ImageCheck, ImageFormat, Repair};
use serde_json::{Map, Value, json};
use std::io::Write;
use std::path::{Path, PathBuf};

const AFTER_HELP: &str = "\
A leaked cluster counts as used and is not: space is lost, no data. Everything else endangers data. Every finding is
told on the standard error, then the sums; after a repair the image is looked at again, and the sums are what is left.

With --repair leaks, leaked clusters are given back. With --repair all, refcounts that are too low are raised too, the
flags that follow from them are set, damaged refcount tables are written anew, and the marks \"dirty\" and \"corrupt\"
are taken from an image that has no errors any more. What would need a guess is told and left.

Exit codes, as qemu-img's:
  0    nothing is wrong, or all was mended
  1    it could not be checked
  2    errors that were left
  3    leaked clusters that were left, no errors
  63   the format has nothing to check

Examples:
  folio image check disk.qcow2
  folio image check --repair leaks disk.qcow2
  folio image check --output=json disk.qcow2";

/// Check an image's tables, and mend them
#[derive(Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Check {
    /// The image
    file: PathBuf,
    /// Format; found by the first bytes if not given
    #[arg(short, long, value_name = "FORMAT", value_parser = crate::value_parsers::image_format())]
    format: Option<ImageFormat>,
    /// What to mend
    #[arg(short, long, value_enum)]
    repair: Option<What>,
    #[command(flatten)]
    output: OutputOptions,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum What {
    Leaks,
    All,
}

/// Runs the command.
pub(crate) fn run(check: &Check, session: &Session) -> Outcome {
    session.check_interrupt()?;
    let repair = match check.repair {
        None => Repair::Nothing,
        Some(What::Leaks) => Repair::Leaks,
        Some(What::All) => Repair::All,
    };
    let mut tell = |finding: &Finding| {
        if !session.quiet {
            session.screen.suspend(|| eprintln!("{finding}"));
        }
    };
    let found = block::check(&check.file, check.format, repair, &mut tell);
    let report = found.map_err(|error| {
        let code = if error.kind() == ErrorKind::Unsupported {
            63
        } else {
            1
        };
        Failure {
            exit: Exit::QemuImg(code),
            ..image_failure(error, &check.file)
        }
    })?;
    if check.output.is_json() {
        session.print_json(&to_json(&check.file, &report))?;
    } else if !session.quiet {
        print_human(&report)?;
    }
    let code = match report {
        ImageCheck {
            check_errors: 1.., ..
        } => 1,
        ImageCheck {
            corruptions: 1.., ..
        } => 2,
        ImageCheck { leaks: 1.., .. } => 3,
        _ => return Ok(()),
    };
    Err(Failure {
        exit: Exit::QemuImg(code),
        message: String::new(),
    })
}

fn to_json(path: &Path, report: &ImageCheck) -> Value {
    let mut keys = Map::new();
    // qemu-img leaves these out where there are none.
    for (key, value) in [
        ("leaks", report.leaks),
        ("corruptions", report.corruptions),
        ("leaks-fixed", report.leaks_fixed),
        ("corruptions-fixed", report.corruptions_fixed),
        ("fragmented-clusters", report.fragmented_clusters),
        ("compressed-clusters", report.compressed_clusters),
        ("allocated-clusters", report.allocated_clusters),
    ] {
        if value > 0 {
            keys.insert(key.to_owned(), value.into());
        }
    }
    keys.insert("filename".to_owned(), json!(path.to_string_lossy()));
    keys.insert("format".to_owned(), json!("qcow2"));
    keys.insert("check-errors".to_owned(), report.check_errors.into());
    keys.insert(
        "image-end-offset".to_owned(),
        report.image_end_offset.into(),
    );
    keys.insert("total-clusters".to_owned(), report.total_clusters.into());
    Value::Object(keys)
}

fn print_human(report: &ImageCheck) -> std::io::Result<()> {
    let mut out = std::io::stdout();
    let ImageCheck {
        leaks_fixed,
        corruptions_fixed,
        ..
    } = report;
    if leaks_fixed + corruptions_fixed > 0 {
        writeln!(
            out,
            "Repaired: {leaks_fixed} leaked clusters, {corruptions_fixed} errors\n"
        )?;
    }
    if report.leaks + report.corruptions + report.check_errors == 0 {
        writeln!(out, "No errors were found on the image.")?;
    }
    if report.corruptions > 0 {
        writeln!(
            out,
            "{} errors were found on the image.",
            report.corruptions
        )?;
        writeln!(
            out,
            "Data may be damaged, or further writes may damage it.\n"
        )?;
    }
    if report.leaks > 0 {
        writeln!(
            out,
            "{} leaked clusters were found on the image.",
            report.leaks
        )?;
        writeln!(out, "Space is lost, no data.\n")?;
    }
    if report.check_errors > 0 {
        writeln!(
            out,
            "{} parts of the image could not be checked.\n",
            report.check_errors
        )?;
    }
    if report.allocated_clusters > 0 && report.total_clusters > 0 {
        let percent = |part: u64, whole: u64| part as f64 * 100.0 / whole as f64;
        let ImageCheck {
            allocated_clusters: allocated,
            total_clusters: total,
            ..
        } = *report;
        writeln!(
            out,
            "{allocated}/{total} = {:.2}% allocated, {:.2}% fragmented, {:.2}% compressed clusters",
            percent(allocated, total),
            percent(report.fragmented_clusters, allocated),
            percent(report.compressed_clusters, allocated),
        )?;
    }
    writeln!(out, "Image end offset: {}", report.image_end_offset)
}
