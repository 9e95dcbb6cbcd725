//! File modes on the command line.

use crate::exit::{Failure, Outcome};

/// Parses an octal or symbolic mode as in chmod(1). A symbolic mode changes `old`.
pub(crate) fn parse_mode(text: &str, old: u16, is_directory: bool) -> Outcome<u16> {
    folio_archive::parse_mode(text, old, is_directory).ok_or_else(|| {
        Failure::usage(format!(
            "invalid mode {text:?}: expected an octal or symbolic mode (e.g. 644 or u=rwX,go-w)"
        ))
    })
}
