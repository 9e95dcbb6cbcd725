//! Circles between the files of a crate, and the order of the folders of ext4.
//!
//! ```text
//!   scope.rs       modules, items, imports, paths of one file
//!   links.rs       file A -> file B, where A names an item that B defines
//!   components.rs  strongly connected components, and links whose removal breaks them
//! ```
//!
//! A re-export (`pub use`) in a `mod.rs` is a facade: it links nothing, and a name that comes
//! through it is linked to the file that defines it. Code for tests does not count.

mod components;
mod links;
mod scope;

use components::Edge;
use links::Links;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;
use std::process::ExitCode;

/// Links that may remain within a circle, one a line: `FROM -> TO: REASON`.
const ALLOWED: &str = "xtask/circles.txt";
/// The source folder of ext4.
const EXT4: &str = "crates/folio/src/fs/ext4/";
/// The folders of ext4, top first. Each may name what is in the same row or in a row below it.
const EXT4_LAYERS: [&[&str]; 15] = [
    &[
        "mod", "repair", "check", "inspect", "mkfs", "resize", "tune", "tests",
    ],
    &["mount"],
    &["mmp"],
    &["operations"],
    &["commit"],
    &["directory"],
    &["file"],
    &["xattr"],
    &["inode"],
    &["volume"],
    &["map"],
    &["space"],
    &["journal"],
    &["options"],
    &["layout"],
];
/// Number of mentions shown for a link that is to be cut.
const MENTIONS_SHOWN: usize = 3;

/// Counts by their key in the ratchet, with what makes them.
pub(crate) type Counts = BTreeMap<String, (usize, Vec<String>)>;

/// The sources of a crate: the folder with a slash at its end, and its files.
struct Source {
    name: String,
    folder: String,
    files: Vec<(String, String)>,
}

/// Counts files in circles and upward links; `files` are all Rust files of the repository.
///
/// # Errors
/// The list of allowed links is malformed or has an entry without a use.
pub(crate) fn counts(root: &Path, files: &[(String, String)]) -> Result<Counts, String> {
    let mut allowed = allowed(root)?;
    let mut out = Counts::new();
    for source in sources(files) {
        let mut links = Links::read(&source.folder, &source.files);
        allowed.retain(|(from, to)| !forget(&mut links, from, to));
        let found = circles(&links);
        let members = found.iter().map(|circle| circle.files.len()).sum();
        if members > 0 {
            let details = found.iter().map(|circle| circle.short(&links)).collect();
            out.insert(format!("circles {}", source.name), (members, details));
        }
        if EXT4.starts_with(&source.folder) {
            let upward = upward(&links);
            if !upward.is_empty() {
                out.insert("upward fs/ext4".to_owned(), (upward.len(), upward));
            }
        }
    }
    match allowed.first() {
        Some((from, to)) => Err(format!("{ALLOWED}: {from} -> {to} is not needed")),
        None => Ok(out),
    }
}

/// Prints circles, and every link within them, of one crate or all; or the layers of ext4.
pub(crate) fn main(files: &[(String, String)], name: Option<&str>, layers: bool) -> ExitCode {
    let sources = sources(files);
    if layers {
        for source in sources
            .iter()
            .filter(|source| EXT4.starts_with(&source.folder))
        {
            let upward = upward(&Links::read(&source.folder, &source.files));
            for line in &upward {
                println!("{line}");
            }
            println!("fs/ext4: {} upward links", upward.len());
        }
        return ExitCode::SUCCESS;
    }
    for source in sources {
        if name.is_some_and(|name| name != source.name) {
            continue;
        }
        let links = Links::read(&source.folder, &source.files);
        for circle in circles(&links) {
            println!("{}", circle.long(&links));
        }
    }
    ExitCode::SUCCESS
}

/// One strongly connected component of the files.
struct Circle {
    files: Vec<usize>,
    cuts: Vec<Edge>,
}

fn circles(links: &Links) -> Vec<Circle> {
    let edges = links.edges();
    let weight = |edge: &Edge| 2 + links.links[edge].len().min(20);
    components::components(links.files.len(), &edges)
        .into_iter()
        .map(|files| Circle {
            cuts: components::cuts(&files, &edges, weight),
            files,
        })
        .collect()
}

impl Circle {
    fn short(&self, links: &Links) -> String {
        let mut out = format!("a circle of {} files; links to cut:", self.files.len());
        for edge in self.cuts.iter().take(6) {
            let _ = write!(out, "\n    {}", shown(links, edge, 1));
        }
        if self.cuts.len() > 6 {
            let _ = write!(out, "\n    and {} more", self.cuts.len() - 6);
        }
        out
    }

    fn long(&self, links: &Links) -> String {
        let mut out = format!("a circle of {} files:\n", self.files.len());
        for &file in &self.files {
            let _ = writeln!(out, "  {}", links.files[file]);
        }
        let _ = writeln!(out, "without these {} links it is broken:", self.cuts.len());
        for edge in &self.cuts {
            let _ = writeln!(out, "  {}", shown(links, edge, MENTIONS_SHOWN));
        }
        let _ = writeln!(out, "all links in it:");
        for (edge, _) in links
            .links
            .iter()
            .filter(|((from, to), _)| self.files.contains(from) && self.files.contains(to))
        {
            let _ = writeln!(out, "  {}", shown(links, edge, usize::MAX));
        }
        out
    }
}

/// A link on one line: where the first mentions are, and the file that defines what they name.
fn shown(links: &Links, edge: &Edge, most: usize) -> String {
    let mentions = &links.links[edge];
    let listed: Vec<String> = mentions
        .iter()
        .take(most)
        .map(|(line, path)| format!("{line} {path}"))
        .collect();
    let more = mentions.len().saturating_sub(most);
    let more = match more {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let (from, to) = (&links.files[edge.0], &links.files[edge.1]);
    format!("{from}:{}{more} -> {to}", listed.join(", "))
}

/// Links of ext4 from a folder to one above it, and files without a row in the table.
fn upward(links: &Links) -> Vec<String> {
    let mut out = Vec::new();
    let row = |file: usize| {
        let inside = links.files[file].strip_prefix(EXT4)?;
        let first = inside.split('/').next().unwrap_or(inside);
        let first = first.strip_suffix(".rs").unwrap_or(first);
        Some(EXT4_LAYERS.iter().position(|row| row.contains(&first)))
    };
    for file in 0..links.files.len() {
        if row(file) == Some(None) {
            out.push(format!("{}: in no row of EXT4_LAYERS", links.files[file]));
        }
    }
    for edge in links.links.keys() {
        if let (Some(Some(from)), Some(Some(to))) = (row(edge.0), row(edge.1))
            && to < from
        {
            out.push(shown(links, edge, MENTIONS_SHOWN));
        }
    }
    out
}

/// The crates, with their files outside of `tests/`.
fn sources(files: &[(String, String)]) -> Vec<Source> {
    let mut out: BTreeMap<String, Source> = BTreeMap::new();
    for (file, text) in files {
        let Some((folder, _)) = file.split_once("/src/") else {
            continue;
        };
        let source = out.entry(folder.to_owned()).or_insert_with(|| Source {
            name: folder.strip_prefix("crates/").unwrap_or(folder).to_owned(),
            folder: format!("{folder}/src/"),
            files: Vec::new(),
        });
        source.files.push((file.clone(), text.clone()));
    }
    out.into_values().collect()
}

/// Removes a link; whether it was there.
fn forget(links: &mut Links, from: &str, to: &str) -> bool {
    let index = |name: &str| links.files.iter().position(|file| file == name);
    match (index(from), index(to)) {
        (Some(from), Some(to)) => links.links.remove(&(from, to)).is_some(),
        _ => false,
    }
}

fn allowed(root: &Path) -> Result<Vec<(String, String)>, String> {
    let path = root.join(ALLOWED);
    let text = std::fs::read_to_string(&path).map_err(|error| format!("{ALLOWED}: {error}"))?;
    parse_allowed(&text)
}

fn parse_allowed(text: &str) -> Result<Vec<(String, String)>, String> {
    let entries = text
        .lines()
        .filter(|line| !line.starts_with('#') && !line.trim().is_empty());
    entries
        .map(|line| {
            let (link, reason) = line.split_once(": ").unwrap_or((line, ""));
            match link.split_once(" -> ") {
                Some((from, to)) if !reason.trim().is_empty() => {
                    Ok((from.to_owned(), to.to_owned()))
                }
                _ => Err(format!("{ALLOWED}: {line}: expected FROM -> TO: REASON")),
            }
        })
        .collect()
}

#[cfg(test)]
mod tests;
