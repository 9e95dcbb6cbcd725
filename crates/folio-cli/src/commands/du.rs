//! `folio du`: space that trees take.

use crate::exit::Outcome;
use crate::image::{Access, with_image};
use crate::output::human;
use crate::place::ImagePath;
use crate::session::Session;
use crate::walk::{Met, Next, Visitor, walk};
use clap::Args;
use folio::vfs::FileType;
use serde::Serialize;
use std::collections::HashSet;
use std::ffi::OsString;
use std::io::Write;

/// Show the space that directories take
#[derive(Args)]
#[command(
    after_help = "Example:\n  folio du -h disk.qcow2:/srv",
    disable_help_flag = true
)]
pub(crate) struct Du {
    /// Places, written IMAGE:/path
    #[arg(required = true)]
    places: Vec<OsString>,
    /// Sizes as 1.5M; else in units of 1024 bytes
    #[arg(short)]
    human: bool,
    /// Only the sum of each place
    #[arg(short)]
    summarize: bool,
    /// Files as well
    #[arg(short)]
    all: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Print help
    #[arg(long, action = clap::ArgAction::Help)]
    help: Option<bool>,
}

#[derive(Serialize)]
struct Line {
    path: String,
    allocated: u64,
}

/// Runs the command.
pub(crate) fn run(du: &Du, session: &Session) -> Outcome {
    let mut lines = Vec::new();
    for word in &du.places {
        let place = ImagePath::parse(word)?;
        with_image(session, &place, Access::Read, |image| {
            match image.stat(&place.path, false) {
                Ok(top) => {
                    let mut adder = Adder {
                        du,
                        sums: Vec::new(),
                        seen: HashSet::new(),
                        lines: &mut lines,
                    };
                    walk(session, image, (&place.path, top), &mut adder)
                }
                Err(error) => {
                    session.fail(image.name(error).message);
                    Ok(())
                }
            }
        })?;
    }
    if du.json {
        return session.print_json(&lines);
    }
    let mut out = std::io::BufWriter::new(std::io::stdout().lock());
    for line in lines {
        let size = if du.human {
            human(line.allocated)
        } else {
            line.allocated.div_ceil(1024).to_string()
        };
        writeln!(out, "{size}\t{}", line.path)?;
    }
    Ok(out.flush()?)
}

struct Adder<'a> {
    du: &'a Du,
    /// Of each open directory, so far.
    sums: Vec<u64>,
    /// Inodes with several names that have been counted.
    seen: HashSet<u64>,
    lines: &'a mut Vec<Line>,
}

impl Adder<'_> {
    fn tell(&mut self, met: &Met<'_>, allocated: u64, is_directory: bool) {
        if met.depth == 0 || !self.du.summarize && (is_directory || self.du.all) {
            self.lines.push(Line {
                path: met.path.to_string_lossy().into_owned(),
                allocated,
            });
        }
        if let Some(sum) = self.sums.last_mut() {
            *sum += allocated;
        }
    }
}

impl Visitor for Adder<'_> {
    fn meet(&mut self, met: &Met<'_>) -> Outcome<Next> {
        let found = met.attributes;
        let allocated = found.blocks_512.saturating_mul(512);
        if found.file_type == FileType::Directory {
            self.sums.push(allocated);
        } else if found.link_count < 2 || self.seen.insert(found.number.0) {
            self.tell(met, allocated, false);
        }
        Ok(Next::Enter)
    }

    fn leave(&mut self, met: &Met<'_>) -> Outcome {
        let sum = self.sums.pop().unwrap_or(0);
        self.tell(met, sum, true);
        Ok(())
    }
}
