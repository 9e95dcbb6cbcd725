//! Folio's measurements, side by side with its rivals; `folio bench` is their command.
//!
//! ```text
//!   Scenario       the list of measurements          race    rounds in which contenders take turns
//!   Results        report: figures with their spread, evidence, aims; published: figures of the articles
//!     text         as text    html/   as a page with charts    compare   two of them
//!
//!   the five published cases
//!   shared_folder/ a host folder beside folio mount, Folio in process, and bindfs
//!   ext4/          files rewritten, made and removed beside the kernel's ext4 and fuse2fs
//!   memcpy         a ramfs with a copy loop of bytes, and with memcpy
//!   page_cache     files of a database, cold and warm, warmed, in tmpfs and in Folio's cache
//!   first_write/   first and second writes into fresh and preallocated images beside QEMU
//!
//!   mount/         folio mount beside the kernel's loop mount and fuse2fs, and its FUSE requests
//!   warm           large and small files into the page cache, beside vmtouch and the device
//!
//!   any path       probe: reads, stats, writes           evidence   cache state, bytes from the device, switches
//!   python/        foliofs beside plain Python, and the readers of ext4 on PyPI
//!   build/         container images, archives and trees into images, beside umoci, tar and mke2fs
//!
//!   object_store/  images and volumes in a store with latency, beside plain GETs and PUTs
//!
//!   the rest       images: trees into images and out again; convert; image_tools; nbd; run_in_image;
//!                  cache/: cached reads, writes and lookups
//!   doctor/        folio doctor: injected faults, healthy commands, predictions, overhead
//!   gpu            files in a GPU's memory, beside the device's own copies
//!
//!   command        programs and their cost     server    a server or mount by a command
//!   hosted         mounts by the kernel        view      a directory, by the kernel or by Folio
//!   random         reproducible content        real_tree the machine's own files
//!   sample_tree    a generated tree, as an archive and a repository
//!   options, outcome   options and errors that all have in common
//! ```

mod build;
mod cache;
mod command;
mod compare;
mod convert;
mod doctor;
mod evidence;
mod ext4;
mod first_write;
mod gpu;
mod hosted;
mod html;
mod image_tools;
mod images;
mod memcpy;
mod mount;
mod nbd;
#[cfg(feature = "object-store")]
mod object_store;
mod options;
mod outcome;
mod page_cache;
mod probe;
mod published;
mod python;
mod race;
mod random;
mod real_tree;
mod report;
mod rows;
mod run_in_image;
mod sample_tree;
mod scenario;
#[cfg(test)]
#[path = "../../../tests/support/schema.rs"]
mod schema;
mod server;
mod shared_folder;
mod text;
mod vhost_user_blk;
mod view;
// Shared with tests/support, which uses more of it.
#[allow(dead_code, unreachable_pub)]
mod virtual_machine;
mod warm;

pub use compare::{Comparison, compare};
pub use html::html;
pub use options::Common;
pub use race::Run;
pub use report::{FORMAT, Machine, Results};
pub use scenario::{Helper, Scenario};
