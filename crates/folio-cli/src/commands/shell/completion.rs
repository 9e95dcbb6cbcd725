//! Completion of commands, paths inside the image, and paths of the host.

use super::names::{COMMANDS, OWN_COMMANDS};
use crate::image::{Access, with_image};
use crate::image_path::ImagePath;
use crate::session::Session;
use folio::vfs::FileType;
use rustyline::completion::{Completer, FilenameCompleter, Pair, Quote, escape, unescape};
use rustyline::highlight::Highlighter;
use rustyline::hint::Hinter;
use rustyline::validate::Validator;
use rustyline::{Context, Helper};
use std::path::Path;

/// Characters that a name may have only after a backslash.
const SPECIAL: &str = " \t\n\"'\\|<>#*?[];&$`()!";

/// The completion at one prompt.
pub(super) struct Completion<'a> {
    place: ImagePath,
    session: &'a Session,
    host: FilenameCompleter,
}

impl<'a> Completion<'a> {
    pub(super) fn new(place: ImagePath, session: &'a Session) -> Self {
        Self {
            place,
            session,
            host: FilenameCompleter::new(),
        }
    }

    /// Returns the names inside the image that start with `word`.
    fn paths(&self, word: &str) -> Vec<Pair> {
        let (above, start) = match word.rsplit_once('/') {
            Some((above, start)) => (format!("{above}/"), start),
            None => (String::new(), word),
        };
        let directory = self.place.path.join(Path::new(&above));
        // A locked or damaged image has no completions; the command itself reports the reason.
        let found = with_image(self.session, &self.place, Access::Read, |image| {
            let names = image.names(&directory).map_err(|error| image.name(error))?;
            let names = names
                .into_iter()
                .filter_map(|name| String::from_utf8(name).ok());
            let is_meant = |name: &String| {
                name.starts_with(start) && (start.starts_with('.') || !name.starts_with('.'))
            };
            let pair = |name: String| {
                let found = image.stat(&directory.join(&name), true);
                let is_directory = found.is_ok_and(|found| found.file_type == FileType::Directory);
                let end = if is_directory { "/" } else { "" };
                let path = format!("{above}{name}{end}");
                Pair {
                    display: format!("{name}{end}"),
                    replacement: escape(path, Some('\\'), is_special, Quote::None),
                }
            };
            Ok(names.filter(is_meant).map(pair).collect())
        });
        found.unwrap_or_default()
    }
}

fn is_special(char: char) -> bool {
    SPECIAL.contains(char)
}

/// Returns the start of the word before `end`.
fn word_start(line: &str, end: usize) -> usize {
    let mut start = 0;
    let mut is_escaped = false;
    for (at, char) in line[..end].char_indices() {
        if std::mem::take(&mut is_escaped) {
            continue;
        }
        match char {
            '\\' => is_escaped = true,
            ' ' | '\t' => start = at + 1,
            _ => {}
        }
    }
    start
}

impl Completer for Completion<'_> {
    type Candidate = Pair;

    fn complete(
        &self,
        line: &str,
        end: usize,
        context: &Context<'_>,
    ) -> rustyline::Result<(usize, Vec<Pair>)> {
        let start = word_start(line, end);
        let word = unescape(&line[start..end], Some('\\'));
        let before: Vec<_> = line[..start].split_whitespace().collect();
        let Some(command) = before.first() else {
            let names = OWN_COMMANDS.iter().map(|(name, _)| *name).chain(COMMANDS);
            let found = names.filter(|name| name.starts_with(&*word));
            let found = found.map(|name| Pair {
                display: name.to_owned(),
                replacement: format!("{name} "),
            });
            return Ok((start, found.collect()));
        };
        match *command {
            "put" | "lcd" => self.host.complete(line, end, context),
            command if command.starts_with('!') => self.host.complete(line, end, context),
            _ => Ok((start, self.paths(&word))),
        }
    }
}

impl Hinter for Completion<'_> {
    type Hint = String;
}

impl Highlighter for Completion<'_> {}
impl Validator for Completion<'_> {}
impl Helper for Completion<'_> {}
