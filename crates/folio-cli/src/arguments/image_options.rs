//! Options that several subcommands of `folio image` share.

use crate::exit::{Exit, Failure, Outcome};
use crate::image_name::split_commas;
use crate::objects::is_url;
use clap::{Args, ValueEnum};
use folio::block::{BackingPolicy, Device, ImageFormat, OpenOptions, SnapshotSelector};
use folio::{Detail, Errno, Error};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Options of the output format.
#[derive(Args)]
pub(crate) struct OutputOptions {
    /// Output format
    #[arg(long, value_enum, default_value = "human", hide_default_value = true)]
    output: OutputFormat,
    /// Print JSON, like --output=json
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum OutputFormat {
    Human,
    Json,
}

impl OutputOptions {
    /// Whether to print JSON.
    pub(crate) fn is_json(&self) -> bool {
        self.json || self.output == OutputFormat::Json
    }
}

/// Options of qemu-img about the host's page cache, which change no result.
#[derive(Args)]
pub(crate) struct SourceCacheOptions {
    /// Cache mode of the source: accepted without effect
    #[arg(short = 'T', value_name = "CACHE", hide = true)]
    source_cache: Option<CacheMode>,
}

/// When written data reaches the disk, with the names of qemu-img.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum CacheMode {
    /// Whenever the host writes it.
    Unsafe,
    /// At the end.
    Writeback,
    /// At the end.
    Writethrough,
    /// At the end.
    #[value(alias = "off")]
    None,
    /// At the end.
    Directsync,
}

/// The policy for backing files.
#[derive(Args)]
pub(crate) struct BackingOptions {
    /// Backing files that may be opened; allow: any; deny: none; dir=FOLDER: those in FOLDER or
    /// below. The default is the image's own directory or below
    #[arg(long = "backing", value_name = "allow|deny|dir=FOLDER", value_parser = policy)]
    policy: Option<BackingPolicy>,
}

fn policy(text: &str) -> Result<BackingPolicy, String> {
    match text {
        "allow" => Ok(BackingPolicy::Anywhere),
        "deny" => Ok(BackingPolicy::Refuse),
        _ => match text.strip_prefix("dir=") {
            Some(folder) if !folder.is_empty() => Ok(BackingPolicy::Within(folder.into())),
            _ => Err("expected allow, deny or dir=FOLDER".to_owned()),
        },
    }
}

impl BackingOptions {
    /// Returns the policy for the library.
    pub(crate) fn policy(&self) -> BackingPolicy {
        self.policy.clone().unwrap_or_default()
    }

    /// Opens an image for reading; with `is_shared`, even if another process writes it.
    pub(crate) fn open(
        &self,
        path: &Path,
        format: Option<ImageFormat>,
        is_shared: bool,
    ) -> Result<Arc<dyn Device>, Failure> {
        self.open_at(path, format, is_shared, None)
    }

    /// Opens an image as [`BackingOptions::open`] does, at an internal snapshot if one is given.
    pub(crate) fn open_at(
        &self,
        path: &Path,
        format: Option<ImageFormat>,
        is_shared: bool,
        snapshot: Option<SnapshotSelector>,
    ) -> Result<Arc<dyn Device>, Failure> {
        let options = OpenOptions {
            read_only: true,
            format,
            backing: self.policy(),
            is_shared,
            snapshot,
            ..OpenOptions::default()
        };
        folio::block::open(path, &options).map_err(|error| image_failure(error, path))
    }
}

/// Parses the value of `-l`: an ID or a tag, or `snapshot.id=ID,snapshot.name=TAG`.
pub(crate) fn snapshot_selector(text: &str) -> Result<SnapshotSelector, String> {
    if !text.starts_with("snapshot.") {
        return Ok(SnapshotSelector::IdOrName(text.to_owned()));
    }
    let (mut id, mut name) = (None, None);
    for word in split_commas(text) {
        match word.split_once('=') {
            Some(("snapshot.id", value)) => id = Some(value.to_owned()),
            Some(("snapshot.name", value)) => name = Some(value.to_owned()),
            _ => {
                return Err(format!(
                    "invalid {word:?}: expected snapshot.id or snapshot.name"
                ));
            }
        }
    }
    Ok(SnapshotSelector::Exact { id, name })
}

/// Rounds a size up to whole sectors, as qemu-img does.
pub(crate) fn whole_sectors(len_bytes: u64) -> Outcome<u64> {
    len_bytes
        .checked_next_multiple_of(512)
        .ok_or_else(|| Failure::usage("invalid size: the size is out of range"))
}

/// Resolves a name in the image at `image`: a relative name is relative to the image's directory.
pub(crate) fn beside(image: &Path, name: &Path) -> PathBuf {
    if is_url(name.as_os_str()) {
        return name.to_owned();
    }
    image.parent().unwrap_or(Path::new("")).join(name)
}

/// Returns the failure to create the image at `path`: a usage error for an invalid option.
pub(crate) fn new_image_failure(error: Error, path: &Path) -> Failure {
    let name = path.display().to_string();
    if error.errno() == Errno::EXIST && error.place() == Some(&name) {
        let why = "already exists; use --force to replace it";
        return Failure::new(format!("{name}: {why}"));
    }
    // EINVAL has another cause only for files that cannot be replaced, such as FIFOs.
    let is_option = error.errno() == Errno::INVAL && (path.is_file() || !path.exists());
    let mut failure = image_failure(error, path);
    if is_option {
        failure.exit = Exit::Usage;
    }
    failure
}

/// Returns the failure of a call on the image at `path`, which is named only once.
pub(crate) fn image_failure(error: Error, path: &Path) -> Failure {
    let failure = Failure::image(error.within(path.display().to_string()));
    failure.hint(
        &Detail::BackingRefused,
        "; use --backing allow for any file, or --backing dir=FOLDER for those in a directory",
    )
}
