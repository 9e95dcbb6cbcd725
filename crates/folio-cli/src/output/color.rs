//! Colors: whether they are wanted, and what for.
//!
//! `--color` decides. Without it NO_COLOR and `CLICOLOR_FORCE=1` do, and else there are colors on
//! a terminal whose TERM is not `dumb`; that an automatic build runs (`CI`) does not count. Data
//! that passes through (`folio cat`) never has any.

use anstream::{AutoStream, ColorChoice};
use anstyle::{AnsiColor, Style};
use clap::ValueEnum;
use std::ffi::OsString;
use std::fmt::Display;

/// When there are colors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum When {
    /// On a terminal
    Auto,
    Always,
    Never,
}

/// Titles of help texts and tables.
pub(crate) const HEADING: Style = Style::new().bold();
/// What went wrong.
pub(crate) const FAILURE: Style = AnsiColor::Red.on_default().bold();
/// What is worth knowing.
pub(crate) const WARNING: Style = AnsiColor::Yellow.on_default();
/// What is as it should be.
pub(crate) const FINE: Style = AnsiColor::Green.on_default();
/// Names of directories.
pub(crate) const DIRECTORY: Style = AnsiColor::Blue.on_default().bold();
/// Names of symbolic links.
pub(crate) const LINK: Style = AnsiColor::Cyan.on_default();

/// Obeys `--color` before the command line is read, so that what is wrong with it is told in the
/// right colors.
pub(crate) fn choose(words: &[OsString]) -> clap::ColorChoice {
    let is_forced = std::env::var_os("CLICOLOR_FORCE").is_some_and(|value| value != "0");
    let when = match asked(words).unwrap_or(When::Auto) {
        // Else `anstream` takes the variable CI for a promise that colors are shown.
        When::Auto if is_dumb_terminal() && !is_forced => When::Never,
        when => when,
    };
    let (ours, claps) = match when {
        When::Auto => (ColorChoice::Auto, clap::ColorChoice::Auto),
        When::Always => (ColorChoice::Always, clap::ColorChoice::Always),
        When::Never => (ColorChoice::Never, clap::ColorChoice::Never),
    };
    ours.write_global();
    claps
}

/// Whether the terminal is one that knows nothing but lines of text.
pub(crate) fn is_dumb_terminal() -> bool {
    std::env::var_os("TERM").is_some_and(|name| name == "dumb")
}

/// The last `--color` among the words.
fn asked(words: &[OsString]) -> Option<When> {
    let words = words
        .iter()
        .take_while(|word| *word != "--")
        .filter_map(|word| word.to_str());
    let (mut asked, mut is_next) = (None, false);
    for word in words {
        if is_next || word.starts_with("--color=") {
            let word = word.strip_prefix("--color=").unwrap_or(word);
            asked = When::from_str(word, false).ok().or(asked);
        }
        is_next = word == "--color";
    }
    asked
}

/// Whether the standard output shows colors.
pub(crate) fn on_stdout() -> bool {
    AutoStream::choice(&std::io::stdout()) != ColorChoice::Never
}

/// Whether the standard error does.
pub(crate) fn on_stderr() -> bool {
    AutoStream::choice(&std::io::stderr()) != ColorChoice::Never
}

/// The head of a table on the standard output.
pub(crate) fn heading(text: impl Display) -> String {
    paint(on_stdout(), HEADING, text)
}

/// The text in a style, if colors are shown.
pub(crate) fn paint(is_shown: bool, style: Style, text: impl Display) -> String {
    if is_shown {
        format!("{style}{text}{style:#}")
    } else {
        text.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_word_about_colors_counts() {
        let asked = |text: &str| asked(&text.split(' ').map(OsString::from).collect::<Vec<_>>());
        assert_eq!(asked("ls disk.img"), None);
        assert_eq!(asked("--color always ls --color=never"), Some(When::Never));
        assert_eq!(asked("--color=never --color always"), Some(When::Always));
        assert_eq!(asked("ls -- --color=never"), None);
        assert_eq!(asked("--color purple"), None);
    }
}
