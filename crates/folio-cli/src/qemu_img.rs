//! The manners of qemu-img: its name, defaults, exit codes and messages, for scripts that call it.

use crate::exit::Exit;
use crate::value_parsers::InvalidSize;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use std::error::Error as StdError;
use std::ffi::{OsStr, OsString};
use std::path::Path;

/// The version of qemu-img whose command line is followed.
const QEMU_VERSION: &str = "7.2.0";
/// The name that selects these manners.
const NAME: &str = "qemu-img";

/// The program whose behavior a command follows where two programs differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Manners {
    /// `folio`.
    Folio,
    /// `qemu-img`.
    QemuImg,
}

impl Manners {
    /// Returns the exit code of these manners: qemu-img has one for all failures.
    pub(crate) fn exit(self, exit: Exit) -> Exit {
        match (self, exit) {
            (Self::QemuImg, Exit::Failed | Exit::Usage | Exit::Image) => Exit::Failed,
            (_, exit) => exit,
        }
    }
}

/// Returns the command line as `folio image --qemu` has it if the program is called qemu-img.
pub(crate) fn command_line(words: Vec<OsString>) -> Vec<OsString> {
    let name = words.first().and_then(|word| Path::new(word).file_name());
    if name != Some(OsStr::new(NAME)) {
        return words;
    }
    let mut line: Vec<OsString> = [NAME, "image", "--qemu"].map(OsString::from).into();
    line.extend(words.into_iter().skip(1));
    line
}

/// Whether a command line asks for these manners.
pub(crate) fn is_requested(words: &[OsString]) -> bool {
    arguments(words).is_some()
}

/// Returns the words behind `image --qemu`.
fn arguments(words: &[OsString]) -> Option<&[OsString]> {
    let at = words
        .windows(2)
        .position(|pair| pair[0] == "image" && pair[1] == "--qemu")?;
    Some(&words[at + 2..])
}

/// Whether qemu-img's version is requested.
pub(crate) fn is_version_requested(words: &[OsString]) -> bool {
    arguments(words)
        .and_then(<[_]>::first)
        .is_some_and(|word| word == "--version" || word == "-V")
}

/// Returns the answer to `--version`. Scripts read the number behind "version".
pub(crate) fn version() -> String {
    let own = env!("CARGO_PKG_VERSION");
    format!("qemu-img version {QEMU_VERSION} (Folio {own})\n")
}

/// Gives clap's tree the defaults of qemu-img: existing targets are overwritten, any backing file
/// is opened, a new image is raw, and the last one of several equal options counts.
pub(crate) fn shape(tree: clap::Command) -> clap::Command {
    tree.mut_subcommand("image", |image| {
        image
            .args_override_self(true)
            .infer_long_args(true)
            .mut_subcommands(|command| {
                let creates = command.get_name() == "create";
                command.mut_args(|argument| match argument.get_id().as_str() {
                    "force" => argument.default_value("true"),
                    "policy" => argument.default_value("allow"),
                    "output_format" => argument.default_value("raw"),
                    "format" if creates => argument.default_value("raw"),
                    _ => argument,
                })
            })
    })
}

/// Prints a usage error as qemu-img does, and returns the exit code.
pub(crate) fn usage_error(error: &clap::Error) -> Exit {
    let message = match (error.kind(), error.get(ContextKind::InvalidSubcommand)) {
        (ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand, _) => {
            "Not enough arguments".to_owned()
        }
        (_, Some(ContextValue::String(word))) => format!("Command not found: {word}"),
        _ => {
            let text = error.to_string();
            let text = text.strip_prefix("error: ").unwrap_or(&text);
            let end = text.find("\n\n").unwrap_or(text.len());
            text[..end].trim_end().to_owned()
        }
    };
    let is_size = |cause: &(dyn StdError + 'static)| cause.is::<InvalidSize>();
    if StdError::source(error).is_some_and(is_size) {
        eprintln!(
            "{NAME}: Invalid image size specified. You may use k, M, G, T, P or E suffixes for\n\
             {NAME}: kilobytes, megabytes, gigabytes, terabytes, petabytes and exabytes."
        );
        return Exit::Failed;
    }
    eprintln!("{NAME}: {message}\nTry '{NAME} --help' for more information");
    Exit::Failed
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<OsString> {
        line.split_whitespace().map(OsString::from).collect()
    }

    #[test]
    fn program_name_selects_the_manners() {
        let line = command_line(words("/usr/bin/qemu-img info x"));
        assert_eq!(line, words("qemu-img image --qemu info x"));
        assert!(is_requested(&line) && !is_version_requested(&line));
        assert!(is_version_requested(&command_line(words("qemu-img -V"))));
        let own = words("folio image info x");
        assert_eq!(command_line(own.clone()), own);
        assert!(!is_requested(&own));
    }

    #[test]
    fn failures_have_one_exit_code() {
        for exit in [Exit::Failed, Exit::Usage, Exit::Image] {
            assert_eq!(Manners::QemuImg.exit(exit), Exit::Failed);
            assert_eq!(Manners::Folio.exit(exit), exit);
        }
        assert_eq!(Manners::QemuImg.exit(Exit::QemuImg(63)), Exit::QemuImg(63));
    }
}
