//! Power cuts: after a cut at any write, synced data is present, no foreign data is, and the file
//! system is sound.
//!
//! ```text
//!   mix, workloads    sequences of calls    program    makes the calls and logs them
//!                                           names      the state after each call, as facts
//!                                           content    the bytes allowed at each offset
//!   images            file systems to start from
//!   cut               the device after a cut, from the record of writes
//!   judge             mounts that device, reads all of it, compares
//!   trial             all steps for one workload; e2fsck on a sample
//!   published         files that a rename, a link or an unlink makes the only copy
//!   sqlite            databases in each journal mode
//!   control           shows that the harness detects losses
//!   qcow2             the same for qcow2 images, with its own log and judge
//! ```
//!
//! `FOLIO_CRASH_CUTS=10000` is a full run. `FOLIO_CRASH_SEED` sets the seed (default 1).
//! `FOLIO_CRASH_KEEP=folder` keeps the images of failed cuts, as they were before recovery.

mod content;
mod control;
mod cut;
mod images;
mod judge;
mod mix;
mod names;
pub(crate) mod program;
mod published;
mod qcow2;
use crate::support::random;
mod sqlite;
use crate::support;
mod trial;
mod workloads;

use folio::vfs::MountOptions;
use mix::Mix;
use support::requires;
use trial::Trial;

type Workload = fn(&mut program::Program, &mut random::Random);
const REPLACING: [(&str, Workload); 2] = [
    ("by rename", workloads::replace_by_rename),
    ("by truncation", workloads::replace_by_truncation),
];

/// The harness itself: without a cut, its model equals the file system.
#[test]
fn model_equals_the_image_after_each_sync() {
    let trial = Trial::new("sync");
    let run = trial.record(images::folio(16, 1024), |program, random| {
        mix::run(
            program,
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

/// Trials on a file system of Folio: 16 MiB with blocks of 1 KiB, a journal of 1 MiB. The label
/// selects the random numbers.
macro_rules! trials {
    ($($name:ident($label:literal): $workload:expr;)+) => {
        $(
            #[test]
            fn $name() {
                Trial::new($label).run(images::folio(16, 1024), $workload);
            }
        )+
    };
}

trials! {
    random_mix_survives_cuts("mix_of_everything"): |program, random| mix::run(program, random, Mix::default());
    mix_with_many_syncs_survives_cuts("mix_with_many_syncs"): |program, random| {
        mix::run(program, random, Mix { fsync_permille: 300, sync_permille: 60, ..Mix::default() });
    };
    mix_with_few_syncs_survives_cuts("mix_with_few_syncs"): |program, random| {
        mix::run(program, random, Mix { fsync_permille: 5, sync_permille: 3, operations: 1000, ..Mix::default() });
    };
    wrapping_journal_survives_cuts("journal_that_wraps"): |program, random| {
        mix::run(program, random, Mix { operations: 2500, sync_permille: 40, ..Mix::default() });
    };
    orphans_survive_cuts("orphans"): workloads::orphans;
    replace_by_rename_survives_cuts("replace_by_rename"): workloads::replace_by_rename;
    replace_by_truncation_survives_cuts("replace_by_truncation"): workloads::replace_by_truncation;
    copy_of_a_tree_survives_cuts("copy_of_a_tree"): workloads::copy_of_a_tree;
    large_directory_survives_cuts("large_directory"): workloads::large_directory;
    full_disk_survives_cuts("no_space"): workloads::no_space;
    metadata_reused_as_data_survives_cuts("metadata_becomes_data"): workloads::metadata_becomes_data;
    many_extents_survive_cuts("many_extents"): workloads::many_extents;
}

#[test]
fn mix_on_4_kib_blocks_survives_cuts() {
    Trial::new("mix_4k").run(images::folio(32, 4096), |program, random| {
        mix::run(
            program,
            random,
            Mix {
                file_bytes_max: 100_000,
                ..Mix::default()
            },
        );
    });
}

/// Freezes: the mark that demands a replay is cleared and set again. In the second part a program
/// is frozen in the midst of its calls.
#[test]
fn mix_with_freezes_survives_cuts() {
    let mix = Mix {
        freeze_permille: 60,
        fsync_permille: 30,
        ..Mix::default()
    };
    let work = |program: &mut program::Program, random: &mut random::Random| {
        mix::run(program, random, mix);
    };
    Trial::new("mix_with_freezes").run(images::folio(16, 1024), work);
    let trial = Trial::new("freezes_side_by_side");
    trial.judge(&trial.record_threads(images::folio(24, 1024), 3, work));
}

/// Parallel programs: a cut leaves a prefix of the operations of each.
#[test]
fn parallel_programs_survive_cuts() {
    let trial = Trial::new("programs_side_by_side");
    let run = trial.record_threads(images::folio(24, 1024), 4, |program, random| {
        mix::run(
            program,
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

/// With background writeback the record differs in each run; the allowed states do not.
#[test]
fn mix_with_background_writeback_survives_cuts() {
    let mut trial = Trial::new("mix_background");
    trial.setup.background_writeback = true;
    trial.setup.cache_bytes = 1 << 20;
    trial.run(images::folio(16, 1024), |program, random| {
        mix::run(
            program,
            random,
            Mix {
                operations: 1500,
                ..Mix::default()
            },
        );
    });
}

/// Mixes under mount options that change the writes to the device.
macro_rules! option_trials {
    ($($name:ident($label:literal): $options:literal;)+) => {
        $(
            #[test]
            fn $name() {
                let mut trial = Trial::new($label);
                trial.setup.mount = MountOptions::parse($options).unwrap();
                trial.run(images::folio(16, 1024), |program, random| {
                    mix::run(program, random, Mix::default());
                });
            }
        )+
    };
}

option_trials! {
    mix_with_nodelalloc_survives_cuts("option_nodelalloc"): "nodelalloc";
    mix_with_data_writeback_survives_cuts("option_data_writeback"): "data=writeback";
    mix_with_data_journal_survives_cuts("option_data_journal"): "data=journal";
    mix_with_discard_survives_cuts("option_discard"): "discard";
    mix_with_noauto_da_alloc_survives_cuts("option_noauto_da_alloc"): "noauto_da_alloc";
    mix_with_auto_da_alloc_close_survives_cuts("option_auto_da_alloc_at_close"): "auto_da_alloc=close";
    mix_with_sync_survives_cuts("option_sync"): "sync";
}

/// With another protection or none, replaced files may be damaged. The judge detects and counts
/// them.
#[test]
fn unprotected_replaced_files_are_reported() {
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
    assert!(lost > 0, "no file was lost without protection");
}

/// Trials on file systems of mke2fs with these options.
macro_rules! mke2fs_trials {
    ($($name:ident($label:literal): $size:literal $options:expr;)+) => {
        $(
            #[test]
            fn $name() {
                requires!(tool("mke2fs"));
                Trial::new($label).run(images::by_mke2fs($size, &$options), |program, random| {
                    mix::run(program, random, Mix::default());
                });
            }
        )+
    };
}

/// Runs the mix on a file system of mke2fs whose files have block maps.
fn trial_with_pointers(label: &'static str, options: &[&str]) {
    requires!(tool("mke2fs"));
    let mix = Mix {
        has_unwritten_space: false,
        ..Mix::default()
    };
    Trial::new(label).run(images::by_mke2fs("24M", options), |program, random| {
        mix::run(program, random, mix);
    });
}

#[test]
fn mix_on_ext3_survives_cuts() {
    trial_with_pointers("mke2fs_ext3", &["-t", "ext3", "-b", "1024"]);
}

#[test]
fn mix_without_extents_survives_cuts() {
    let options = ["-O", "^extent,^64bit", "-b", "1024"];
    trial_with_pointers("mke2fs_without_extents", &options);
}

#[test]
fn mix_in_casefolded_directories_survives_cuts() {
    requires!(tool("mke2fs"), tool("debugfs"));
    Trial::new("mke2fs_casefold").run(images::casefolded("24M"), |program, random| {
        mix::run(program, random, Mix::default());
    });
}

mke2fs_trials! {
    mix_with_orphan_file_survives_cuts("mke2fs_orphan_file"): "24M" ["-O", "orphan_file", "-b", "1024"];
    mix_without_64bit_survives_cuts("mke2fs_without_64bit"): "24M" ["-O", "^64bit", "-b", "4096"];
    mix_without_checksums_survives_cuts("mke2fs_without_checksums"): "24M" ["-O", "^metadata_csum", "-b", "1024"];
    mix_with_inline_data_survives_cuts("mke2fs_inline_data"): "24M" ["-O", "inline_data", "-I", "512", "-b", "1024"];
    mix_with_bigalloc_survives_cuts("mke2fs_bigalloc"): "48M" ["-O", "bigalloc", "-C", "4096", "-b", "1024"];
    mix_with_ea_inode_survives_cuts("mke2fs_ea_inode"): "24M" ["-O", "ea_inode", "-I", "128", "-b", "1024"];
    mix_with_quota_survives_cuts("mke2fs_quota"): "24M" ["-O", "quota,project", "-b", "1024"];
    mix_on_2_kib_blocks_survives_cuts("mke2fs_of_two_kib_blocks"): "32M" ["-b", "2048", "-O", "orphan_file,metadata_csum_seed"];
}
