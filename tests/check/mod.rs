//! `folio check` against e2fsck: what e2fsck complains of is found, and nothing is found where
//! nothing is wrong.
//!
//! ```text
//!   images    small file systems with many sets of features, filled with every kind of structure
//!   map       where their structures lie, and how their checksums are made good after a change
//!   flips     bytes changed at random    fields   every number in turn    scenes   damage that spans structures
//!   clean     images with nothing wrong in them
//!   judge     e2fsck -fn and folio check on the same bytes
//! ```
//!
//! `FOLIO_CHECK_CASES=5000` asks for that many random changes of each image, `FOLIO_CHECK_SEED` for
//! other ones than those of seed 1, `FOLIO_CHECK_KEEP=folder` keeps the images on which the two
//! differ.

mod clean;
mod fields;
mod flips;
mod images;
mod judge;
mod map;
use crate::support::random;
mod scenes;
