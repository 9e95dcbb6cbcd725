//! Power cuts: what was synced is there, nothing foreign is, and the file system is sound, wherever
//! the power goes.
//!
//! ```text
//!   mix, workloads    what programs do, call by call     world    makes the calls and notes them
//!                                                        names    the state after each call, as facts
//!                                                        content  which bytes may be where
//!   images            what they do it on
//!   cut               what a cut leaves of the record of writes
//!   judge             mounts that, reads everything, compares
//!   trial             all of it, for one workload; e2fsck on a sample
//!   sqlite            databases in each journal mode
//!   control           the harness sees losses
//!   qcow2             the same under an image: its own notes and judges
//! ```
//!
//! `FOLIO_CRASH_CUTS=10000` asks for a full run, `FOLIO_CRASH_SEED` for other numbers than those of
//! seed 1, `FOLIO_CRASH_KEEP=folder` keeps the images of cuts that went wrong, as they were before
//! recovery.

mod content;
mod control;
mod cut;
mod images;
mod judge;
mod mix;
mod names;
mod qcow2;
use crate::support::random;
mod sqlite;
use crate::support;
mod trial;
mod workloads;
mod world;

use folio::vfs::MountOptions;
use mix::Mix;
use support::requires;
use trial::Trial;

type Workload = fn(&mut world::World, &mut random::Random);
const REPLACING: [(&str, Workload); 2] = [
    ("by rename", workloads::replace_by_rename),
    ("by truncation", workloads::replace_by_truncation),
];

/// The harness itself: without a cut, its notes are what is there.
#[test]
fn notes_are_what_is_there_after_each_sync() {
    let trial = Trial::new("sync");
    let run = trial.record(images::folio(16, 1024), |world, random| {
        mix::run(
            world,
            random,
            Mix {
                sync_permille: 100,
                operations: 1500,
                ..Mix::default()
            },
        );
    });
    let outcome = trial.cut_at_syncs(&run);
    assert!(
        outcome.failures.is_empty(),
        "{}",
        outcome.failures.join("\n")
    );
}

/// Trials on a file system that Folio made: 16 MiB with blocks of 1 KiB, a journal of 1 MiB.
macro_rules! trials {
    ($($name:ident: $workload:expr;)+) => {
        $(
            #[test]
            fn $name() {
                Trial::new(stringify!($name)).run(images::folio(16, 1024), $workload);
            }
        )+
    };
}

trials! {
    mix_of_everything: |world, random| mix::run(world, random, Mix::default());
    mix_with_many_syncs: |world, random| {
        mix::run(world, random, Mix { fsync_permille: 300, sync_permille: 60, ..Mix::default() });
    };
    mix_with_few_syncs: |world, random| {
        mix::run(world, random, Mix { fsync_permille: 5, sync_permille: 3, operations: 1000, ..Mix::default() });
    };
    journal_that_wraps: |world, random| {
        mix::run(world, random, Mix { operations: 2500, sync_permille: 40, ..Mix::default() });
    };
    orphans: workloads::orphans;
    replace_by_rename: workloads::replace_by_rename;
    replace_by_truncation: workloads::replace_by_truncation;
    copy_of_a_tree: workloads::copy_of_a_tree;
    large_directory: workloads::large_directory;
    no_space: workloads::no_space;
    metadata_becomes_data: workloads::metadata_becomes_data;
    many_extents: workloads::many_extents;
}

#[test]
fn mix_on_blocks_of_4_kib() {
    Trial::new("mix_4k").run(images::folio(32, 4096), |world, random| {
        mix::run(
            world,
            random,
            Mix {
                file_bytes_max: 100_000,
                ..Mix::default()
            },
        );
    });
}

/// Programs at work at the same time: of each a prefix of what it did.
#[test]
fn programs_side_by_side() {
    let trial = Trial::new("programs_side_by_side");
    let run = trial.record_threads(images::folio(24, 1024), 4, |world, random| {
        mix::run(
            world,
            random,
            Mix {
                operations: 250,
                names_max: 40,
                ..Mix::default()
            },
        );
    });
    trial.judge(&run);
}

/// With threads that write on their own, the record is another in each run; what it may lead to is
/// not.
#[test]
fn mix_with_background_threads() {
    let mut trial = Trial::new("mix_background");
    trial.setup.background_writeback = true;
    trial.setup.cache_bytes = 1 << 20;
    trial.run(images::folio(16, 1024), |world, random| {
        mix::run(
            world,
            random,
            Mix {
                operations: 1500,
                ..Mix::default()
            },
        );
    });
}

/// Mixes under mount options that change how things reach the device.
macro_rules! option_trials {
    ($($name:ident: $options:literal;)+) => {
        $(
            #[test]
            fn $name() {
                let mut trial = Trial::new(stringify!($name));
                trial.setup.mount = MountOptions::parse($options).unwrap();
                trial.run(images::folio(16, 1024), |world, random| {
                    mix::run(world, random, Mix::default());
                });
            }
        )+
    };
}

option_trials! {
    option_nodelalloc: "nodelalloc";
    option_data_writeback: "data=writeback";
    option_data_journal: "data=journal";
    option_discard: "discard";
    option_noauto_da_alloc: "noauto_da_alloc";
    option_auto_da_alloc_at_close: "auto_da_alloc=close";
    option_sync: "sync";
}

/// Where the protection is another or none, files may be found damaged: that is told, and that the
/// judge sees it.
#[test]
fn replaced_files_in_other_modes() {
    let mut lost = 0;
    for options in [
        "auto_da_alloc=close",
        "noauto_da_alloc",
        "nodelalloc",
        "noauto_da_alloc,nodelalloc",
    ] {
        for (name, workload) in REPLACING {
            let mut trial = Trial::new(name);
            trial.may_tear = true;
            trial.setup.mount = MountOptions::parse(options).unwrap();
            let run = trial.record(images::folio(16, 1024), workload);
            let outcome = trial.cut(&run);
            assert!(
                outcome.failures.is_empty(),
                "{options}: {}",
                outcome.failures.join("\n")
            );
            println!(
                "{options}: {name}: {:?} in {} cuts",
                outcome.replaced, outcome.cuts
            );
            lost += outcome.replaced.lost();
        }
    }
    assert!(lost > 0, "without protection something gets lost");
}

/// Trials on what mke2fs makes with these options.
macro_rules! mke2fs_trials {
    ($($name:ident: $size:literal $options:expr;)+) => {
        $(
            #[test]
            fn $name() {
                requires!(tool("mke2fs"));
                Trial::new(stringify!($name)).run(images::by_mke2fs($size, &$options), |world, random| {
                    mix::run(world, random, Mix::default());
                });
            }
        )+
    };
}

mke2fs_trials! {
    mke2fs_orphan_file: "24M" ["-O", "orphan_file", "-b", "1024"];
    mke2fs_without_64bit: "24M" ["-O", "^64bit", "-b", "4096"];
    mke2fs_without_checksums: "24M" ["-O", "^metadata_csum", "-b", "1024"];
    mke2fs_of_two_kib_blocks: "32M" ["-b", "2048", "-O", "orphan_file,metadata_csum_seed"];
}
