//! `folio find`: finds files by name, type and size.

use crate::exit::{Failure, Outcome};
use crate::image::{Access, Image, with_image};
use crate::image_path::ImagePath;
use crate::output::{FileRecord, NamePrinter, type_letter};
use crate::session::Session;
use crate::walk::{Visit, Visitor, WalkControl, walk};
use clap::Args;
use folio_tree::manifest::{MTREE_HEADER, mtree_line};
use globset::{GlobBuilder, GlobMatcher};
use std::ffi::OsString;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Find files by name, type and size
#[derive(Args)]
#[command(
    after_help = "Examples:\n  folio find disk.qcow2:/srv --name '*.rs' --type f\n  folio find disk.qcow2 --size +1M --json\n  folio find disk.qcow2 --mtree >owners.mtree"
)]
pub(crate) struct Find {
    /// The directory to search, as IMAGE:/path
    place: OsString,
    #[command(flatten)]
    share: crate::arguments::force_share::ForceShare,
    /// Match the last component, with * ? [ ]
    #[arg(long, value_name = "GLOB")]
    name: Option<String>,
    /// Like --name, ignoring case
    #[arg(long, value_name = "GLOB")]
    iname: Option<String>,
    /// Match the whole path
    #[arg(long, value_name = "GLOB")]
    path: Option<String>,
    /// Type: f file, d directory, l symbolic link, c, b, p, s
    #[arg(long = "type", value_name = "LETTER", value_parser = ["f", "d", "l", "c", "b", "p", "s"])]
    file_type: Option<String>,
    /// +SIZE for larger, -SIZE for smaller, SIZE for exactly this size
    #[arg(long, allow_hyphen_values = true, value_name = "SIZE", value_parser = bound)]
    size: Option<(char, u64)>,
    /// Descend at most this many levels
    #[arg(long, value_name = "LEVELS")]
    maxdepth: Option<usize>,
    /// End each path with NUL instead of a newline
    #[arg(long)]
    print0: bool,
    /// Print a manifest in the format of mtree(5), which folio cp --manifest reads
    #[arg(long, conflicts_with_all = ["print0", "json"])]
    mtree: bool,
    /// Print JSON
    #[arg(long, conflicts_with = "print0")]
    json: bool,
}

fn bound(text: &str) -> Result<(char, u64), String> {
    let sign = text.chars().next().filter(|sign| matches!(sign, '+' | '-'));
    let digits = if sign.is_some() { &text[1..] } else { text };
    Ok((sign.unwrap_or('='), crate::value_parsers::size(digits)?))
}

fn glob(text: &str, any_case: bool) -> Outcome<GlobMatcher> {
    let glob = GlobBuilder::new(text)
        .case_insensitive(any_case)
        .literal_separator(false)
        .build();
    glob.map(|glob| glob.compile_matcher())
        .map_err(|error| Failure::usage(error.to_string()))
}

/// Runs the command.
pub(crate) fn run(find: &Find, session: &Session) -> Outcome {
    find.share.apply(session);
    let place = ImagePath::parse(&find.place)?;
    let named =
        |text: &Option<String>, any| text.as_deref().map(|text| glob(text, any)).transpose();
    let names = [named(&find.name, false)?, named(&find.iname, true)?];
    let path = named(&find.path, false)?;
    with_image(session, &place, Access::Read, |image| {
        let top = image
            .stat(&place.path, false)
            .map_err(|error| image.name(error))?;
        let out = std::io::BufWriter::new(std::io::stdout().lock());
        let shown = NamePrinter::on_stdout();
        let mut finder = Finder {
            find,
            image,
            top: &place.path,
            names,
            path,
            shown,
            records: Vec::new(),
            out,
        };
        if find.mtree {
            writeln!(finder.out, "{MTREE_HEADER}")?;
        }
        walk(session, image, &place.path, top, &mut finder)?;
        finder.out.flush()?;
        let Finder { records, out, .. } = finder;
        drop(out);
        if find.json {
            session.print_json(&records)
        } else {
            Ok(())
        }
    })
}

struct Finder<'a, W: Write> {
    find: &'a Find,
    image: &'a Image,
    /// The directory to search.
    top: &'a Path,
    names: [Option<GlobMatcher>; 2],
    path: Option<GlobMatcher>,
    shown: NamePrinter,
    records: Vec<FileRecord>,
    out: W,
}

impl<W: Write> Finder<'_, W> {
    fn matches(&self, visit: &Visit<'_>) -> bool {
        let name = visit.path.file_name().unwrap_or(visit.path.as_os_str());
        let letter = type_letter(visit.attributes.file_type);
        let letter = if letter == '-' { 'f' } else { letter };
        let size = visit.attributes.size_bytes;
        self.names.iter().flatten().all(|glob| glob.is_match(name))
            && self
                .path
                .as_ref()
                .is_none_or(|glob| glob.is_match(visit.path))
            && self
                .find
                .file_type
                .as_ref()
                .is_none_or(|wanted| wanted.starts_with(letter))
            && self.find.size.is_none_or(|(sign, bound)| match sign {
                '+' => size > bound,
                '-' => size < bound,
                _ => size == bound,
            })
    }
}

impl<W: Write> Visitor for Finder<'_, W> {
    fn visit(&mut self, visit: &Visit<'_>) -> Outcome<WalkControl> {
        if self.matches(visit) {
            if self.find.mtree {
                let below = visit.path.strip_prefix(self.top).unwrap_or(visit.path);
                let below = below.as_os_str().as_bytes();
                let slash: &[u8] = if below.is_empty() { b"" } else { b"/" };
                let path = [b".", slash, below].concat();
                let target = self.image.link_target(visit.path, visit.attributes);
                let line = mtree_line(&path, visit.attributes, target.as_deref());
                writeln!(self.out, "{line}")?;
            } else if self.find.json {
                let target = self.image.link_target(visit.path, visit.attributes);
                self.records.push(FileRecord::new(
                    visit.path,
                    visit.attributes,
                    target.as_deref(),
                ));
            } else {
                // As find(1), which prints its argument before each path: other commands take it.
                let path = [
                    self.image.name.as_bytes(),
                    b":",
                    visit.path.as_os_str().as_bytes(),
                ];
                self.out.write_all(&self.shown.plain(&path.concat()))?;
                self.out
                    .write_all(if self.find.print0 { b"\0" } else { b"\n" })?;
            }
        }
        let is_deepest = self.find.maxdepth.is_some_and(|max| visit.depth >= max);
        Ok(if is_deepest {
            WalkControl::Skip
        } else {
            WalkControl::Enter
        })
    }
}
