//! The command told to people: help texts for a terminal, manual pages, and the tree of commands
//! they are made of.
//!
//! ```text
//!   clap's tree --- notes.rs   what stands below the options, shaped for any width
//!               --- roff.rs    the same as manual pages
//! ```

pub(crate) mod notes;
pub(crate) mod roff;
