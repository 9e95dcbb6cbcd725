//! What integration tests share: guards that report a skip, the tools that judge, manifests of
//! trees.
//!
//! ```text
//!   tests/library.rs  tests/command.rs   most topics, each a folder with mod.rs;  mod support;
//!   tests/<topic>/main.rs                topics that need a process of their own;
//!                                        #[path = "../support/mod.rs"] mod support;
//!        requires!(...)     skip with a reason                    require.rs
//!        Mounted            a raw image in the kernel's mount     mounted.rs
//!        fsck, qemu_check   the judges                            tools.rs
//!        real_tree          a large tree of the machine's own files    real_tree.rs
//!        Group              a control group with little memory   group.rs
//!        Guest              a Linux guest in QEMU                guest.rs
//!        two_sides          what a guest and its host do to one directory
//!        Manifest           all that a tree is, to be compared    manifest.rs
//! ```
#![allow(dead_code, unused_imports, unused_macros, unreachable_pub)]

pub mod group;
#[path = "../../crates/folio-bench/src/virtual_machine.rs"]
pub mod guest;
pub mod manifest;
pub mod mounted;
pub mod random;
#[path = "../../crates/folio-bench/src/real_tree.rs"]
pub mod real_tree;
#[macro_use]
pub mod require;
pub mod tools;
pub mod two_sides;

pub use group::Group;
pub use manifest::{Manifest, Scope};
pub use mounted::Mounted;
pub(crate) use require::requires;
pub use require::{Need, report_skip};
