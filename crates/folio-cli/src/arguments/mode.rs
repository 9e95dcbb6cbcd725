//! File modes on the command line.

use crate::exit::{Failure, Outcome};

/// Parses an octal or symbolic mode as in chmod(1). A symbolic mode changes `old`.
pub(crate) fn parse_mode(text: &str, old: u16, is_directory: bool) -> Outcome<u16> {
    let parsed = folio_tree::parse_mode(text, old, is_directory);
    parsed.map_err(|error| Failure::usage(error.to_string()))
}
