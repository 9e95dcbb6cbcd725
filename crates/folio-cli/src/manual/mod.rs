//! The manual: help texts for a terminal, and manual pages, from clap's tree of commands.
//!
//! ```text
//!   clap's tree --- notes.rs   the text below the options, wrapped for any width
//!               --- roff.rs    manual pages
//! ```
//!
//! Above: `cli` and `folio man`. Below: `output::color`.

pub(crate) mod notes;
pub(crate) mod roff;
