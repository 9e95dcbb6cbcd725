//! `folio image amend`: changes options of an image.

use super::formatting::amend_help;
use super::new_image::NewImageOptions;
use crate::arguments::image_options::{BackingOptions, CacheMode, image_failure};
use crate::exit::{Failure, Outcome};
use crate::image_name::{NameOptions, split_commas};
use crate::progress::Progress;
use crate::session::Session;
use clap::Args;
use folio::Errno;
use folio::block::qcow2::AmendOptions;
use folio::block::{self, ImageFormat};
use std::io::Write;
use std::path::PathBuf;

/// The options that an existing image can change.
const AMENDABLE: [&str; 8] = [
    "backing_file",
    "backing_fmt",
    "compat",
    "data_file",
    "data_file_raw",
    "lazy_refcounts",
    "refcount_bits",
    "size",
];

const AFTER_HELP: &str = "\
Options that can change: compat, lazy_refcounts, refcount_bits, size, data_file, and data_file_raw=off. The backing file
changes with folio image rebase. All other options are fixed when an image is created.

Examples:
  folio image amend -o compat=1.1,lazy_refcounts=on disk.qcow2
  folio image amend -o compat=0.10 disk.qcow2                    for QEMU before 1.1
  folio image amend -o help                                      the list";

/// Change options of an image
#[derive(Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Amend {
    /// The image
    #[arg(value_parser = crate::image_name::value_parser())]
    file: Option<PathBuf>,
    /// Options to change, with the names of create
    #[arg(short = 'o', value_name = "KEY=VALUE,...", required = true)]
    options: Vec<String>,
    /// Format; the default is detected from the first bytes
    #[arg(short, long, value_name = "FORMAT", value_parser = crate::value_parsers::image_format())]
    format: Option<ImageFormat>,
    /// Show progress
    #[arg(short = 'p')]
    progress: bool,
    /// Accepted without effect: it concerns encryption
    #[arg(long, hide = true)]
    force: bool,
    /// Accepted without effect: the result is on the disk at the end
    #[arg(short = 't', value_name = "CACHE", hide = true)]
    cache_mode: Option<CacheMode>,
    #[command(flatten)]
    backing: BackingOptions,
    #[command(flatten)]
    name: NameOptions,
}

/// Runs the command.
pub(crate) fn run(amend: &Amend, session: &Session) -> Outcome {
    session.check_interrupt()?;
    let words: Vec<String> = amend
        .options
        .iter()
        .flat_map(|text| split_commas(text))
        .collect();
    if words.iter().any(|word| word == "help" || word == "?") {
        if amend.format == Some(ImageFormat::Raw) {
            return Err(Failure::usage("the raw format has no options to change"));
        }
        return Ok(std::io::stdout().write_all(amend_help(&AMENDABLE).as_bytes())?);
    }
    let Some(file) = &amend.file else {
        return Err(Failure::usage("missing FILE: expected an image file name"));
    };
    for word in &words {
        let key = word.split_once('=').map_or(&**word, |(key, _)| key);
        if !AMENDABLE.contains(&key) {
            let list = AMENDABLE.join(", ");
            let why = "cannot change in an existing image; expected one of";
            return Err(Failure::usage(format!("-o {word}: {why} {list}")));
        }
        if key.starts_with("backing") {
            let why = "the backing file is changed by folio image rebase";
            return Err(Failure::usage(format!("-o {word}: {why}")));
        }
    }
    let named = amend.name.resolve(file, amend.format)?;
    let (options, size) = parse(&words)?;
    let progress = Progress::requested(session, amend.progress);
    let policy = amend.backing.policy();
    // The new tables are written beside the old ones: after an end in the middle the image is as
    // before a step, or as after it.
    let amended = session.until_interrupt(
        || (),
        || block::tools::amend(&named.path, named.format, &options, size, &policy),
    );
    if amended.is_ok() {
        progress.complete();
    }
    progress.finish();
    amended.map_err(|error| {
        let is_usage = error.errno() == Errno::INVAL;
        let failure = image_failure(error, &named.path);
        if is_usage {
            Failure::usage(failure.message)
        } else {
            failure
        }
    })
}

/// Returns the options and the size.
fn parse(words: &[String]) -> Outcome<(AmendOptions, Option<u64>)> {
    // A name alone needs no data_file: the image has one.
    let has = |key: &str| words.iter().any(|word| word.split('=').next() == Some(key));
    let value = |key: &str| {
        let mut found = words.iter().rev().filter_map(|word| word.split_once('='));
        found
            .find(|(name, _)| *name == key)
            .map(|(_, value)| value.to_owned())
    };
    let without_file: Vec<String> = words
        .iter()
        .filter(|word| !word.starts_with("data_file"))
        .cloned()
        .collect();
    let parsed = NewImageOptions::of(&without_file);
    let (created, size) = parsed.create_options(ImageFormat::Qcow2)?;
    let data_file_raw = match value("data_file_raw").as_deref() {
        None => has("data_file_raw").then_some(true),
        Some(word) => Some(
            super::new_image::switch(word)
                .map_err(|why| Failure::usage(format!("-o data_file_raw={word}: {why}")))?,
        ),
    };
    let size = size.filter(|size| *size > 0);
    if size.is_some_and(|size| !size.is_multiple_of(512)) {
        return Err(Failure::usage("-o size: expected a multiple of 512"));
    }
    let mut options = AmendOptions::default();
    options.compat = has("compat").then_some(created.compat);
    options.lazy_refcounts = has("lazy_refcounts").then_some(created.lazy_refcounts);
    options.refcount_bits = has("refcount_bits").then_some(created.refcount_bits);
    options.data_file = value("data_file");
    options.data_file_raw = data_file_raw;
    Ok((options, size))
}
