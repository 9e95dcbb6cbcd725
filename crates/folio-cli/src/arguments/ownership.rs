//! Owners and modes that a copy gives to its files: `--chown`, `--chmod` and `--manifest`.

use super::mode::parse_mode;
use crate::exit::{Failure, Outcome, explain};
use crate::image::Image;
use crate::observer::SessionObserver;
use crate::session::Session;
use clap::Args;
use folio_tree::OwnerRules;
use std::path::{Path, PathBuf};

/// The heading of the options in help texts.
const HEADING: &str = "Owners and modes in the image";

/// Owners and modes in the image, for builders without root.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct Ownership {
    /// Owner of all files: OWNER, OWNER:GROUP or :GROUP; numbers, or names from the image's
    /// /etc/passwd and /etc/group, which may come with the files of a new image
    #[arg(long, help_heading = HEADING, value_name = "OWNER")]
    pub(crate) chown: Option<String>,
    /// Change all modes, as chmod(1): octal or symbolic, e.g. go-w
    #[arg(long, help_heading = HEADING, value_name = "MODE", value_parser = valid_mode)]
    pub(crate) chmod: Option<String>,
    /// Afterwards set owners, modes and times, and create device nodes, as this file lists them:
    /// mtree(5), a device table of makedevs, or pseudo files of mksquashfs
    #[arg(long, help_heading = HEADING, value_name = "FILE")]
    pub(crate) manifest: Option<PathBuf>,
}

fn valid_mode(text: &str) -> Result<String, String> {
    match parse_mode(text, 0o644, false) {
        Ok(_) => Ok(text.to_owned()),
        Err(failure) => Err(failure.message),
    }
}

impl Ownership {
    /// Reads the rules, before the first change.
    pub(crate) fn read(&self) -> Outcome<OwnerRules> {
        if let Some(mode) = &self.chmod {
            parse_mode(mode, 0o644, false)?;
        }
        let chown = self.chown.as_deref().unwrap_or("");
        let rules = OwnerRules::new(chown, self.chmod.as_deref(), self.manifest.as_deref());
        Ok(rules?)
    }
}

/// Gives files the owners of names that came with a copy, and applies the manifest.
pub(crate) fn finish_rules(
    session: &Session,
    rules: &OwnerRules,
    image: &Image,
    path: &Path,
    observer: &SessionObserver<'_>,
) -> Outcome {
    let finished = rules.finish(image.process(), path, observer);
    session.check_interrupt()?;
    finished.map_err(|error| {
        let hint = image.full_hint(&error);
        Failure::new(format!("{}{hint}", explain(&error))).caused_by(error)
    })
}
