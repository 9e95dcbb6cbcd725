//! Support for integration tests: guards that report a skip, external checkers, manifests of trees.
//!
//! ```text
//!   tests/library.rs  tests/command.rs   most topics, each a folder with mod.rs;  mod support;
//!   tests/<topic>/main.rs                topics that need a process of their own;
//!                                        #[path = "../support/mod.rs"] mod support;
//!     requires!(...)     skips the test with a reason              require.rs
//!     Mounted            a raw image in a mount of the kernel       mounted.rs
//!     fsck, qemu_check   checks by e2fsck and qemu-img              tools.rs
//!     real_tree          a large tree of the machine's own files    folio-bench
//!     images             a tree in each file system                 file_systems.rs
//!     PageCache          a hold on the machine's page cache         page_cache.rs
//!     Group              a control group with a memory limit        group.rs
//!     Guest              a Linux guest in QEMU                      folio-bench
//!     terminal           a program on a terminal, and a dialog       terminal.rs
//!     two_sides          a directory that guest and host change     two_sides.rs
//!     Manifest           names, attributes and content of a tree    manifest.rs
//!     Random             reproducible random numbers                random.rs
//!     rounds             how many rounds a long test makes          rounds.rs
//!     scratch            a scratch folder in memory                 scratch.rs
//!     WatchedTree        a folder and its mount, both watched       watched_tree.rs
//! ```
#![allow(dead_code, unused_imports, unused_macros, unreachable_pub)]

pub mod file_systems;
pub mod group;
#[path = "../../crates/folio-bench/src/virtual_machine.rs"]
pub mod guest;
pub mod manifest;
pub mod mounted;
pub mod page_cache;
pub mod random;
#[path = "../../crates/folio-bench/src/real_tree.rs"]
pub mod real_tree;
#[macro_use]
pub mod require;
pub mod rounds;
pub mod scratch;
pub mod terminal;
pub mod tools;
pub mod two_sides;
pub mod watched_tree;

pub use group::Group;
pub use manifest::{Manifest, Scope};
pub use mounted::Mounted;
pub use page_cache::{PageCache, dropped_pages};
pub(crate) use require::requires;
pub use require::{Need, report_skip};
