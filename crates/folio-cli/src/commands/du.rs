//! `folio du`: shows the space that trees use.

use crate::arguments::usage_options::UsageOptions;
use crate::exit::Outcome;
use crate::image::{Access, with_image};
use crate::image_path::ImagePath;
use crate::output::NamePrinter;
use crate::session::Session;
use crate::walk::{Visit, Visitor, WalkControl, walk};
use clap::Args;
use folio::vfs::FileType;
use serde::Serialize;
use std::collections::HashSet;
use std::ffi::OsString;
use std::io::Write;

/// Show the space that directories use
#[derive(Args)]
#[command(
    after_help = "Example:\n  folio du -h disk.qcow2:/srv",
    disable_help_flag = true
)]
pub(crate) struct Du {
    /// Directories and files, as IMAGE:/path; * ? [ ] match names
    #[arg(required = true)]
    places: Vec<OsString>,
    /// Show only the total of each argument
    #[arg(short)]
    summarize: bool,
    /// Show files too
    #[arg(short)]
    all: bool,
    #[command(flatten)]
    share: crate::arguments::force_share::ForceShare,
    #[command(flatten)]
    options: UsageOptions,
}

#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(super) struct DirectoryUsage {
    /// Path in the image.
    path: String,
    /// Bytes, including everything below.
    allocated: u64,
}

/// Runs the command.
pub(crate) fn run(du: &Du, session: &Session) -> Outcome {
    du.share.apply(session);
    let mut lines = Vec::new();
    for word in &du.places {
        let place = ImagePath::parse(word)?;
        with_image(session, &place, Access::Read, |image| {
            let mut seen = HashSet::new();
            for path in image.expand(&place.path) {
                let mut adder = Adder {
                    du,
                    sums: Vec::new(),
                    seen: &mut seen,
                    lines: &mut lines,
                };
                match image.stat(&path, false) {
                    Ok(top) => walk(session, image, &path, top, &mut adder)?,
                    Err(error) => session.fail(image.name(error).message),
                }
            }
            Ok(())
        })?;
    }
    if du.options.json {
        return session.print_json(&lines);
    }
    let names = NamePrinter::on_stdout();
    let mut out = std::io::BufWriter::new(std::io::stdout().lock());
    for line in lines {
        let size = du.options.size(line.allocated);
        writeln!(out, "{size}\t{}", names.text(&line.path))?;
    }
    Ok(out.flush()?)
}

struct Adder<'a> {
    du: &'a Du,
    /// The running total of each open directory.
    sums: Vec<u64>,
    /// Inodes with several names that are already counted.
    seen: &'a mut HashSet<u64>,
    lines: &'a mut Vec<DirectoryUsage>,
}

impl Adder<'_> {
    fn add(&mut self, visit: &Visit<'_>, allocated: u64, is_directory: bool) {
        if visit.depth == 0 || !self.du.summarize && (is_directory || self.du.all) {
            self.lines.push(DirectoryUsage {
                path: visit.path.to_string_lossy().into_owned(),
                allocated,
            });
        }
        if let Some(sum) = self.sums.last_mut() {
            *sum += allocated;
        }
    }
}

impl Visitor for Adder<'_> {
    fn visit(&mut self, visit: &Visit<'_>) -> Outcome<WalkControl> {
        let found = visit.attributes;
        let allocated = found.blocks_512.saturating_mul(512);
        if found.file_type == FileType::Directory {
            self.sums.push(allocated);
        } else if found.link_count < 2 || self.seen.insert(found.number.0) {
            self.add(visit, allocated, false);
        }
        Ok(WalkControl::Enter)
    }

    fn leave(&mut self, visit: &Visit<'_>) -> Outcome {
        let sum = self.sums.pop().unwrap_or(0);
        self.add(visit, sum, true);
        Ok(())
    }
}
