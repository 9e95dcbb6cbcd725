//! Container images as sources and destinations of `folio cp`.

use crate::arguments::excludes::exclude_entry;
use crate::arguments::new_image::NewImage;
use crate::arguments::ownership::Ownership;
use crate::exit::{Failure, Outcome};
use crate::image::{Access, with_image};
use crate::image_path::{ImagePath, PathArgument};
use crate::observer::{Files, SessionObserver};
use crate::progress::Progress;
use crate::session::{Session, fixed_time};
use crate::unpacking::{open_container, unpack_into};
use clap::Args;
use folio::{Errno, Error};
use folio_tree::oci::{NewContainerImage, Platform, Reference};
use folio_tree::{Entry, EntryKind, Excludes, Unpacker, is_whiteout};
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The heading of the options in help texts.
const HEADING: &str = "Container images";

/// Options of container images.
#[derive(Args)]
pub(crate) struct ContainerOptions {
    /// The image of this platform, e.g. linux/arm64; by default that of this machine
    #[arg(long, help_heading = HEADING, value_name = "OS/ARCHITECTURE")]
    platform: Option<Platform>,
    /// Write the image's configuration (entry point, environment, user) to this file, as JSON
    #[arg(long, help_heading = HEADING, value_name = "FILE")]
    config_out: Option<PathBuf>,
    /// Store only the difference to this image, as one more layer on top of its layers
    #[arg(long, help_heading = HEADING, value_name = "oci:DIR[:TAG]")]
    base: Option<String>,
    /// The configuration of the new image, as --config-out writes it
    #[arg(long, help_heading = HEADING, value_name = "FILE")]
    config: Option<PathBuf>,
}

/// A copy that may have a container image as its source or destination.
pub(super) struct ContainerCopy<'a> {
    pub(super) options: &'a ContainerOptions,
    pub(super) ownership: &'a Ownership,
    pub(super) sources: &'a [OsString],
    pub(super) destination: &'a OsStr,
    pub(super) is_archive: bool,
    pub(super) new_image: &'a NewImage,
    /// Names to leave out.
    pub(super) excludes: Option<Arc<Excludes>>,
}

/// Runs the copy if a container image is its source or destination; returns `None` otherwise.
pub(super) fn run(copy: &ContainerCopy<'_>, session: &Session) -> Option<Outcome> {
    let target = reference(copy.destination);
    let sources: Vec<_> = copy.sources.iter().map(|word| reference(word)).collect();
    if target.is_none() && sources.iter().all(Option::is_none) {
        let options = copy.options;
        let is_unused = options.platform.is_none()
            && options.config_out.is_none()
            && options.base.is_none()
            && options.config.is_none();
        return (!is_unused).then(|| {
            Err(Failure::usage(
                "--platform, --config-out, --base and --config need a container image, e.g. \
                 oci:DIR:TAG",
            ))
        });
    }
    if !copy.is_archive {
        return Some(Err(Failure::usage(
            "container images are copied with everything: use -a",
        )));
    }
    Some(match (&sources[..], target) {
        ([Some(source)], None) => unpack(copy, session, source),
        ([None], Some(Reference::Layout(folder, tag))) => pack(copy, session, folder, tag),
        (_, Some(Reference::Layout(..))) | ([_, _, ..], None) => {
            Err(Failure::usage("expected one source for a container image"))
        }
        (_, Some(other)) => Err(Failure::usage(format!(
            "{other}: only oci:DIR[:TAG] can be written; skopeo copies it elsewhere"
        ))),
        ([], None) | ([None], None) => Err(Failure::usage("expected a source")),
    })
}

/// Returns the container image that an argument names. The name of a file with these letters is
/// that of an image, as `oci:/srv` if there is a file `oci`.
fn reference(word: &OsStr) -> Option<Reference> {
    match PathArgument::parse(word, false) {
        PathArgument::Host(path) if !path.exists() => Reference::parse(word),
        _ => None,
    }
}

fn unpack(copy: &ContainerCopy<'_>, session: &Session, source: &Reference) -> Outcome {
    let creates = copy.new_image.create.is_some();
    let PathArgument::Image(place) = PathArgument::parse(copy.destination, creates) else {
        return Err(Failure::usage(format!(
            "{}: a container image is unpacked into an image: expected IMAGE:/path",
            copy.destination.display()
        )));
    };
    if copy.options.base.is_some() || copy.options.config.is_some() {
        return Err(Failure::usage(
            "--base and --config: only with a destination oci:DIR[:TAG]",
        ));
    }
    let rules = copy.ownership.read()?;
    let image = open_container(session, source, copy.options.platform.as_ref())?;
    // Patterns match files of the image, and a whiteout is not one.
    let is_kept = |path: &[u8], kind: &EntryKind| {
        is_whiteout(path)
            || !exclude_entry(copy.excludes.as_ref(), path, *kind == EntryKind::Directory)
    };
    let contents = || {
        let mut contents = image.contents()?;
        contents.retain(|path, file| is_kept(path, &file.kind));
        Ok(contents)
    };
    copy.new_image
        .fill(session, &place, &rules, contents, |target| {
            let unpack = |unpacker: &mut Unpacker<'_>| image.unpack(unpacker);
            let input = Some(image.progress().clone());
            let select = |entry: &mut Entry| is_kept(&entry.path, &entry.kind);
            unpack_into(session, target, &place.path, &rules, input, select, unpack)
        })?;
    if let Some(path) = &copy.options.config_out {
        std::fs::write(path, image.config()).map_err(|error| host_failure(path, &error))?;
    }
    Ok(())
}

fn pack(
    copy: &ContainerCopy<'_>,
    session: &Session,
    folder: PathBuf,
    tag: Option<String>,
) -> Outcome {
    let place = ImagePath::parse(&copy.sources[0])?;
    if !copy.ownership.read()?.is_empty() {
        return Err(Failure::usage(
            "--chown, --chmod and --manifest: the destination must be IMAGE:/path",
        ));
    }
    if copy.new_image.create.is_some() || copy.options.config_out.is_some() {
        return Err(Failure::usage(
            "--create and --config-out: only with a destination IMAGE:/path",
        ));
    }
    let options = copy.options;
    let base = options.base.as_ref().map(|base| {
        let reference = Reference::parse(OsStr::new(base)).ok_or_else(|| {
            Failure::usage(format!(
                "--base {base}: expected a container image, e.g. oci:DIR:TAG"
            ))
        })?;
        open_container(session, &reference, options.platform.as_ref())
    });
    let base = base.transpose()?;
    let read = |path: &PathBuf| std::fs::read(path).map_err(|error| host_failure(path, &error));
    let (latest, excludes) = (fixed_time(), copy.excludes.clone());
    let new = NewContainerImage {
        folder,
        tag,
        base: base.as_ref(),
        config: options.config.as_ref().map(read).transpose()?,
        platform: options.platform.clone().unwrap_or_else(Platform::host),
        latest,
        created: latest
            .and_then(|time| jiff::Timestamp::from_second(time.secs).ok())
            .map(|time| time.to_string()),
        is_excluded: Box::new(move |path, is_directory| {
            exclude_entry(excludes.as_ref(), path, is_directory)
        }),
    };
    with_image(session, &place, Access::Read, |image| {
        image
            .stat(&place.path, true)
            .map_err(|error| image.name(error))?;
        let progress = Progress::new(session);
        let observer = SessionObserver::new(session, &progress, Files::Image(image), Files::Host);
        let stored = new.store(image.process(), &place.path, &observer);
        progress.finish();
        session.check_interrupt()?;
        Ok(stored.map(drop)?)
    })
}

fn host_failure(path: &Path, error: &std::io::Error) -> Failure {
    let error = Error::from(Errno::from_io_error(error).unwrap_or(Errno::IO));
    Failure::new(format!("{}: {error}", path.display()))
}
