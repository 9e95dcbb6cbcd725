//! Folio's measurements, side by side with its rivals: `cargo run --release -p folio-bench -- image`.
//!
//! ```text
//!   main        what is asked: image, one-dir, file; cache; auto-da-alloc, ext4-ops; first-write, small-file, convert; reclaim
//!   tree        the tree to copy
//!   contender   how each rival builds an image, or extracts one
//!   bench       interleaved rounds, checks            measure: one command, its time and memory
//!   report      table or JSON, machine facts, what the numbers do not mean
//!   cache/      cached reads, writes and lookups beside the kernel's tmpfs and bare memcpy
//!   ext4/       files rewritten, made and removed beside the kernel's ext4 and fuse2fs
//!   first_write/ first and second writes into fresh and preallocated images beside QEMU
//!   small_file  one small file out of an image
//!   convert     an image into other formats, beside qemu-img
//!   nbd         images served to fio, beside nbdkit and qemu-nbd
//!   shared_folder/ a host folder beside folio mount, Folio in process, and bindfs
//!   reclaim     hit ratios of Folio's page cache and of policies/ on traces
//! ```

mod bench;
mod cache;
mod contender;
mod convert;
mod ext4;
mod first_write;
// Made for the tests, which use more of it.
#[allow(dead_code, unreachable_pub)]
#[path = "../../../tests/support/guest.rs"]
mod machine_guest;
mod measure;
mod nbd;
mod policies;
#[path = "../../../tests/support/real_tree.rs"]
mod real_tree;
mod reclaim;
mod report;
mod shared_folder;
mod small_file;
mod traces;
mod tree;

use clap::{Args, Parser, Subcommand};
use std::path::PathBuf;
use std::process::ExitCode;

#[derive(Parser)]
#[command(about = "Folio's measurements, side by side with its rivals")]
struct Arguments {
    #[command(subcommand)]
    scenario: Scenario,
}

#[derive(Subcommand)]
enum Scenario {
    /// A tree into an image and out again.
    Image {
        /// The tree; without it, some 22,000 of the machine's own files.
        #[arg(long)]
        tree: Option<PathBuf>,
        #[command(flatten)]
        common: Common,
    },
    /// 20,000 files of 100 bytes in one folder.
    OneDir {
        #[command(flatten)]
        common: Common,
    },
    /// One file of 500 MB; its extents are counted.
    File {
        #[command(flatten)]
        common: Common,
    },
    /// Cached reads, writes and lookups beside the kernel's tmpfs and bare memcpy.
    Cache(cache::Options),
    /// 64 KiB x 1024 written ten times over, in each mode of delayed allocation, beside the kernel's ext4.
    AutoDaAlloc(ext4::Options),
    /// Files made and removed, bytes in order and at random, beside the kernel's ext4 and fuse2fs.
    Ext4Ops(ext4::Options),
    /// mkfs, 1 GiB in order and 50,000 blocks at random into fresh and preallocated images, beside QEMU.
    FirstWrite(first_write::Options),
    /// One job of first-write, in a process of its own.
    #[command(hide = true)]
    FirstWriteJob(first_write::JobArguments),
    /// Uses memory and gives it back.
    #[command(hide = true)]
    TouchMemory { mib: usize },
    /// One small file read out of the ext4 in an image, by a whole process.
    SmallFile {
        #[command(flatten)]
        common: Common,
    },
    /// An image with a tree and random data into other formats and back, beside qemu-img; 4 GiB unless told.
    Convert {
        #[command(flatten)]
        common: Common,
    },
    /// Requests a second of folio serve nbd, beside nbdkit and qemu-nbd, with fio as the client.
    Nbd(nbd::Options),
    /// A host folder as it is, through folio mount, in this process, and through bindfs: reads, stats, changes seen.
    SharedFolder(shared_folder::Options),
    /// What of that runs in a guest.
    #[command(hide = true)]
    SharedFolderGuest { root: PathBuf },
    /// Which accesses of some traces Folio's page cache and known policies answer from memory.
    Reclaim(reclaim::Options),
}

/// What all scenarios take.
#[derive(Args)]
struct Common {
    /// Rounds; each runs every contender once.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..1000))]
    repeats: u32,
    /// Print JSON instead of tables.
    #[arg(long)]
    json: bool,
    /// Where images and extracted trees lie; should be in memory.
    #[arg(long, default_value = "/dev/shm")]
    dir: PathBuf,
    /// Size of the images in MiB; without it, twice the tree and at least 2 GiB.
    #[arg(long)]
    size_mib: Option<u64>,
    /// The folio command to measure; without it, this workspace's is built.
    #[arg(long)]
    folio: Option<PathBuf>,
}

fn main() -> ExitCode {
    let outcome = match Arguments::parse().scenario {
        Scenario::Image { tree: Some(tree), common } => bench::run("image", &tree::Source::At(tree), &common),
        Scenario::Image { tree: None, common } => bench::run("image", &tree::Source::Machine, &common),
        Scenario::OneDir { common } => bench::run("one-dir", &tree::Source::OneFolder, &common),
        Scenario::File { common } => bench::run("file", &tree::Source::OneFile, &common),
        Scenario::Cache(options) => cache::run(&options),
        Scenario::AutoDaAlloc(options) => ext4::run_rewrite(&options),
        Scenario::Ext4Ops(options) => ext4::run_ops(&options),
        Scenario::FirstWrite(options) => first_write::run(&options),
        Scenario::FirstWriteJob(arguments) => first_write::run_job(&arguments),
        Scenario::TouchMemory { mib } => measure::use_memory(mib),
        Scenario::Convert { common } => convert::run(&common),
        Scenario::SmallFile { common } => small_file::run(&common),
        Scenario::Nbd(options) => nbd::run(&options),
        Scenario::SharedFolder(options) => shared_folder::run(&options),
        Scenario::SharedFolderGuest { root } => shared_folder::run_in_guest(&root),
        Scenario::Reclaim(options) => reclaim::run(&options),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("folio-bench: {error}");
            ExitCode::FAILURE
        }
    }
}
