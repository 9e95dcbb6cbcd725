//! Colors: whether they are shown, and the style of each kind of text.
//!
//! `--color` decides. Without it NO_COLOR and `CLICOLOR_FORCE=1` do. Without these, colors are
//! shown on a terminal whose TERM is not `dumb`; the variable CI, which automatic builds set, has
//! no effect. Data that passes through (`folio cat`) never gets colors.

use anstream::{AutoStream, ColorChoice};
use anstyle::{AnsiColor, Style};
use clap::ValueEnum;
use std::ffi::OsString;
use std::fmt::Display;

/// When to show colors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum When {
    /// On a terminal
    Auto,
    Always,
    Never,
}

/// Headings of help texts and tables.
pub(crate) const HEADING: Style = Style::new().bold();
/// Failures and errors.
pub(crate) const FAILURE: Style = AnsiColor::Red.on_default().bold();
/// Warnings.
pub(crate) const WARNING: Style = AnsiColor::Yellow.on_default();
/// Checks that found no fault.
pub(crate) const FINE: Style = AnsiColor::Green.on_default();
/// Names of directories.
pub(crate) const DIRECTORY: Style = AnsiColor::Blue.on_default().bold();
/// Names of symbolic links.
pub(crate) const LINK: Style = AnsiColor::Cyan.on_default();

/// Applies `--color` before the command line is parsed, so that usage errors have the right colors.
pub(crate) fn choose(words: &[OsString]) -> clap::ColorChoice {
    let is_forced = std::env::var_os("CLICOLOR_FORCE").is_some_and(|value| value != "0");
    let when = match requested(words).unwrap_or(When::Auto) {
        // Otherwise `anstream` would show colors if the variable CI is set.
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

/// Whether the terminal supports only lines of text.
pub(crate) fn is_dumb_terminal() -> bool {
    std::env::var_os("TERM").is_some_and(|name| name == "dumb")
}

/// Returns the last `--color` among the words.
fn requested(words: &[OsString]) -> Option<When> {
    let words = words
        .iter()
        .take_while(|word| *word != "--")
        .filter_map(|word| word.to_str());
    let (mut requested, mut is_next) = (None, false);
    for word in words {
        if is_next || word.starts_with("--color=") {
            let word = word.strip_prefix("--color=").unwrap_or(word);
            requested = When::from_str(word, false).ok().or(requested);
        }
        is_next = word == "--color";
    }
    requested
}

/// Whether standard output shows colors.
pub(crate) fn on_stdout() -> bool {
    AutoStream::choice(&std::io::stdout()) != ColorChoice::Never
}

/// Whether standard error shows colors.
pub(crate) fn on_stderr() -> bool {
    AutoStream::choice(&std::io::stderr()) != ColorChoice::Never
}

/// Formats the heading of a table on standard output.
pub(crate) fn heading(text: impl Display) -> String {
    paint(on_stdout(), HEADING, text)
}

/// Formats the text in a style, if colors are shown.
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
    fn last_color_option_wins() {
        let requested =
            |text: &str| requested(&text.split(' ').map(OsString::from).collect::<Vec<_>>());
        assert_eq!(requested("ls disk.img"), None);
        assert_eq!(
            requested("--color always ls --color=never"),
            Some(When::Never)
        );
        assert_eq!(
            requested("--color=never --color always"),
            Some(When::Always)
        );
        assert_eq!(requested("ls -- --color=never"), None);
        assert_eq!(requested("--color purple"), None);
    }
}
