//! `folio check` against e2fsck: it finds all damage that e2fsck reports, and nothing in sound
//! images.
//!
//! ```text
//!   images    small file systems with many feature sets, filled with every kind of structure
//!   map       the offsets of their structures, and the update of checksums after a change
//!   flips     random changes    fields   every number in turn    scenes   damage across structures
//!   clean     sound images              features   images with rare features
//!   judge     e2fsck -fn and folio check on the same bytes
//!   repair    generated damage, repaired: clean for e2fsck, same files, undone to the byte
//!   repair_scenes   the same, of damages with one answer
//! ```
//!
//! `FOLIO_CHECK_CASES=5000` sets the number of random changes per image, `FOLIO_CHECK_SEED` the
//! seed (default 1). `FOLIO_CHECK_KEEP=folder` keeps the images on which the two differ.

mod clean;
mod features;
mod fields;
mod flips;
mod images;
mod judge;
mod map;
mod repair;
mod repair_scenes;
use crate::support::random;
mod scenes;
