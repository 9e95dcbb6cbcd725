//! `folio image check`: checks the tables of an image, and repairs them.

use crate::arguments::image_options::{OutputOptions, SourceCacheOptions, image_failure};
use crate::exit::{Exit, Failure, Outcome};
use crate::image_name::NameOptions;
use crate::output::counted;
use crate::qemu_words::reword_finding;
use crate::session::Session;
use clap::{Args, ValueEnum};
use folio::base::ErrorKind;
use folio::block::qcow2::{Finding, ImageCheck, Repair};
use folio::block::{self, ImageFormat};
use serde_json::{Map, Value, json};
use std::io::Write;
use std::path::{Path, PathBuf};

const AFTER_HELP: &str = "\
A leaked cluster is marked as used but is not: space is lost, but no data. All other errors endanger data. Findings go
to standard error, then follow the totals. After a repair the image is checked again, and the totals are what remains.

--repair leaks frees leaked clusters. --repair all also raises refcounts that are too low, sets the flags that follow
from them, rewrites damaged refcount tables, and clears the marks \"dirty\" and \"corrupt\" of an image without
remaining errors. Errors whose repair would be a guess are reported and left.

Exit codes, as qemu-img's:
  0    no errors, or all of them were repaired
  1    the check failed to run
  2    errors remain
  3    leaked clusters remain, but no errors
  63   the format has no tables to check

Examples:
  folio image check disk.qcow2
  folio image check --repair leaks disk.qcow2
  folio image check --output=json disk.qcow2";

/// Check an image's tables, and repair them
#[derive(Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Check {
    /// The image
    #[arg(value_parser = crate::image_name::value_parser())]
    file: PathBuf,
    /// Format; the default is detected from the first bytes
    #[arg(short, long, value_name = "FORMAT", value_parser = crate::value_parsers::image_format())]
    format: Option<ImageFormat>,
    /// Errors to repair
    #[arg(short, long, value_enum)]
    repair: Option<RepairScope>,
    /// Check the image even if another process writes it, which then may cause findings
    #[arg(short = 'U', long, conflicts_with = "repair")]
    force_share: bool,
    #[command(flatten)]
    source_cache: SourceCacheOptions,
    #[command(flatten)]
    output: OutputOptions,
    #[command(flatten)]
    name: NameOptions,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum RepairScope {
    Leaks,
    All,
}

/// Runs the command.
pub(crate) fn run(check: &Check, session: &Session) -> Outcome {
    session.check_interrupt()?;
    let repair = match check.repair {
        None => Repair::Nothing,
        Some(RepairScope::Leaks) => Repair::Leaks,
        Some(RepairScope::All) => Repair::All,
    };
    let mut print_finding = |finding: &Finding| {
        if !session.quiet {
            let text = if session.is_qemu_img() {
                reword_finding(finding)
            } else {
                finding.to_string()
            };
            session.screen.suspend(|| eprintln!("{text}"));
        }
    };
    let named = check.name.resolve(&check.file, check.format)?;
    let found = if check.force_share {
        block::tools::check_shared(&named.path, named.format, &mut print_finding)
    } else {
        block::tools::check(&named.path, named.format, repair, &mut print_finding)
    };
    let report = found.map_err(|error| {
        let code = if error.kind() == ErrorKind::Unsupported {
            63
        } else {
            1
        };
        Failure {
            exit: Exit::QemuImg(code),
            ..image_failure(error, &named.path)
        }
    })?;
    if check.output.is_json() {
        session.print_json(&to_json(&check.file, &report))?;
    } else if !session.quiet {
        print_human(&report, session.is_qemu_img())?;
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
    Err(Failure::exiting(Exit::QemuImg(code), String::new()))
}

fn to_json(path: &Path, report: &ImageCheck) -> Value {
    let mut keys = Map::new();
    // Like qemu-img, leave out zero values.
    for (key, value) in [
        ("leaks", report.leaks),
        ("corruptions", report.corruptions),
        ("leaks-fixed", report.leaks_fixed),
        ("corruptions-fixed", report.corruptions_fixed),
        ("fragmented-clusters", report.fragmented_clusters),
        ("compressed-clusters", report.compressed_clusters),
        ("allocated-clusters", report.allocated_clusters),
        ("total-clusters", report.total_clusters),
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
    Value::Object(keys)
}

fn print_human(report: &ImageCheck, is_qemu_img: bool) -> std::io::Result<()> {
    let mut out = std::io::stdout();
    let ImageCheck {
        leaks_fixed,
        corruptions_fixed,
        ..
    } = report;
    if is_qemu_img {
        out.write_all(qemu_img_report(report).as_bytes())?;
        return print_totals(report);
    }
    if leaks_fixed + corruptions_fixed > 0 {
        writeln!(
            out,
            "Repaired: {}, {}\n",
            counted(*leaks_fixed, "leaked cluster"),
            counted(*corruptions_fixed, "error")
        )?;
    }
    if report.leaks + report.corruptions + report.check_errors == 0 {
        writeln!(out, "No errors were found on the image.")?;
    }
    if report.corruptions > 0 {
        writeln!(
            out,
            "{} found on the image.",
            counted(report.corruptions, "error")
        )?;
        writeln!(out, "Data may be damaged, or later writes may damage it.\n")?;
    }
    if report.leaks > 0 {
        writeln!(
            out,
            "{} found on the image.",
            counted(report.leaks, "leaked cluster")
        )?;
        writeln!(out, "Space is lost, no data.\n")?;
    }
    if report.check_errors > 0 {
        writeln!(
            out,
            "{} of the image could not be checked.\n",
            counted(report.check_errors, "part")
        )?;
    }
    print_totals(report)
}

fn print_totals(report: &ImageCheck) -> std::io::Result<()> {
    let mut out = std::io::stdout();
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

/// Returns the lines that scripts compare with qemu-img's.
fn qemu_img_report(report: &ImageCheck) -> String {
    let mut text = String::new();
    if report.leaks_fixed + report.corruptions_fixed > 0 {
        text.push_str(&format!(
            "The following inconsistencies were found and repaired:\n\n    {} leaked clusters\n    \
             {} corruptions\n\nDouble checking the fixed image now...\n",
            report.leaks_fixed, report.corruptions_fixed
        ));
    }
    if report.leaks + report.corruptions + report.check_errors == 0 {
        text.push_str("No errors were found on the image.\n");
    }
    for (count, words) in [
        (
            report.corruptions,
            "errors were found on the image.\n\
             Data may be corrupted, or further writes to the image may corrupt it.",
        ),
        (
            report.leaks,
            "leaked clusters were found on the image.\n\
             This means waste of disk space, but no harm to data.",
        ),
        (
            report.check_errors,
            "internal errors have occurred during the check.",
        ),
    ] {
        if count > 0 {
            text.push_str(&format!("\n{count} {words}\n"));
        }
    }
    text
}
