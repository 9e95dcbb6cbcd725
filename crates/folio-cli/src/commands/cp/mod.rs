//! `folio cp`: copies files and trees between the host and images.
//!
//! ```text
//!   mod.rs         host and images         container.rs   container images
//! ```
//!
//! Above: the dispatch in `commands`. Below: `tree_copy`, `object_copy`, `unpacking`.

mod container;

use crate::arguments::excludes::ExcludeOptions;
use crate::arguments::force_share::ForceShare;
use crate::arguments::new_image::NewImage;
use crate::arguments::ownership::Ownership;
use crate::exit::{Failure, Outcome};
use crate::image::{Access, Image};
use crate::image_path::PathArgument;
#[cfg(feature = "object-store")]
use crate::object_copy;
#[cfg(feature = "object-store")]
use crate::objects::has_inner_path;
use crate::objects::{check_built, is_url};
use crate::observer::Files;
use crate::progress::Progress;
use crate::session::{Session, fixed_time};
use crate::tree_copy::{Copy, ImageCopy, plan};
use clap::Args;
use container::{ContainerCopy, ContainerOptions};
use folio_tree::{
    CopyOptions, Excludes, FileId, HostTarget, MountSource, OwnerRules, check_fakeroot,
};
use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::sync::Arc;

const EXAMPLES: &str = "\
Examples:
  folio cp -a ./tree disk.qcow2:/srv --create 2G   a new image with a new ext4, and the tree as /srv in it
  folio cp -a ./root/. root.img:/ --create auto    as small as the tree needs; auto+20% or auto+64M leaves room
  folio cp -a ./root/. root.erofs:/ --create       a read-only EROFS; --compress zstd makes it smaller
  folio cp -a disk.qcow2:/srv ./back               out of the image again
  folio cp app.conf disk.img:/etc/                 one file into a directory of an image
  folio cp -r a.img:/home b.img@2:/                from image to image, into the second partition
  docker save app:1 | folio cp -a docker-archive:- app.qcow2:/ --create 2G       a container image as a root
  folio cp -a app.qcow2:/ oci:./out:app            a root as a container image of one layer

Container images are named as skopeo(1) names them: oci:DIR[:TAG], oci-archive:FILE[:TAG], docker-archive:FILE[:NAME],
and registry:NAME[:TAG]. Digests are verified while the layers are unpacked, straight into the image.

An argument names an image if it has a ':' with '/' or nothing after it, and the text before that is an existing file.
With --create the file of DESTINATION need not exist. Any other argument is a path on the host.

If DESTINATION is a directory, sources go into it under their own names. An existing file is written in place, also
through symbolic and hard links, as cp(1) does; devices, FIFOs and sockets are refused. With SOURCE_DATE_EPOCH and
--uuid, two copies of the same tree are identical byte for byte: later modification times become that time, and access
times the modification times.";

/// Copy files and trees between the host and images
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Cp {
    /// Keep everything: -r with modes, owners, times, extended attributes and links
    #[arg(short, long)]
    archive: bool,
    /// Copy directories and their contents
    #[arg(short, long, visible_short_alias = 'R')]
    recursive: bool,
    /// Keep mode, owner and times
    #[arg(short)]
    preserve: bool,
    /// Copy symbolic links as links, and keep hard links
    #[arg(short = 'd')]
    no_dereference: bool,
    /// Treat DESTINATION as the copy itself, never as a directory to copy into
    #[arg(short = 'T', long)]
    no_target_directory: bool,
    #[command(flatten)]
    new_image: NewImage,
    #[command(flatten)]
    ownership: Ownership,
    #[command(flatten)]
    container: ContainerOptions,
    #[command(flatten)]
    excludes: ExcludeOptions,
    #[command(flatten)]
    share: ForceShare,
    /// What to copy (* ? [ ] match names in an image), then the copy or the directory to copy into
    #[arg(required = true, num_args = 1.., value_names = ["SOURCE", "DESTINATION"])]
    places: Vec<OsString>,
}

impl Cp {
    /// Splits the arguments into sources and destination.
    fn places(&self) -> Outcome<(&[OsString], &OsString)> {
        match &self.places[..] {
            [sources @ .., destination] if !sources.is_empty() => Ok((sources, destination)),
            _ => Err(Failure::usage("expected SOURCE and DESTINATION")),
        }
    }

    /// Fails if an argument is a URL that this build cannot open.
    fn check_urls(&self) -> Outcome {
        let mut urls = self.places.iter().filter(|word| is_url(word));
        urls.try_for_each(|url| check_built(Path::new(url)).map_err(Failure::usage))
    }

    fn owner_rules(&self, target: &PathArgument) -> Outcome<OwnerRules> {
        let rules = self.ownership.read()?;
        if matches!(target, PathArgument::Host(_)) && !rules.is_empty() {
            return Err(Failure::usage(
                "--chown, --chmod and --manifest: the destination must be IMAGE:/path",
            ));
        }
        Ok(rules)
    }

    fn container_copy<'a>(
        &'a self,
        sources: &'a [OsString],
        destination: &'a OsStr,
        excludes: Option<Arc<Excludes>>,
    ) -> ContainerCopy<'a> {
        ContainerCopy {
            options: &self.container,
            ownership: &self.ownership,
            sources,
            destination,
            is_archive: self.archive,
            new_image: &self.new_image,
            excludes,
        }
    }

    fn options(&self, excludes: Option<Arc<Excludes>>) -> CopyOptions {
        let is_recursive = self.archive || self.recursive;
        let keeps = self.archive || self.preserve;
        CopyOptions {
            is_recursive,
            follows_links: !is_recursive && !self.no_dereference,
            keeps_mode: keeps,
            keeps_owner: keeps,
            keeps_times: keeps,
            keeps_links: self.archive || self.no_dereference,
            keeps_xattrs: self.archive,
            excludes,
            latest: fixed_time(),
            ..CopyOptions::content()
        }
    }
}

/// Runs the command.
pub(crate) fn run(cp: &Cp, session: &Session) -> Outcome {
    cp.share.apply(session);
    let (sources, destination) = cp.places()?;
    // Once: a file of patterns may be a pipe.
    let excludes = cp.excludes.read()?;
    let container = cp.container_copy(sources, destination, excludes.clone());
    if let Some(copied) = container::run(&container, session) {
        return copied;
    }
    #[cfg(feature = "object-store")]
    if let [source] = sources
        && !has_inner_path(source)
        && !has_inner_path(destination)
        && !PathArgument::parse(destination, false).is_image()
        && let Some(copied) = object_copy::run(source, destination, session)
    {
        return copied;
    }
    cp.check_urls()?;
    let target = PathArgument::parse(destination, cp.new_image.create.is_some());
    let mut sources: Vec<_> = sources
        .iter()
        .map(|word| PathArgument::parse(word, false))
        .collect();
    if target.is_image() {
        sources = plan::expand_all(session, sources)?;
    }
    let options = cp.options(excludes);
    let rules = cp.owner_rules(&target)?;
    if options.keeps_owner {
        check_fakeroot()?;
    }
    match (&target, cp.new_image.create) {
        (PathArgument::Image(place), size) => {
            let copy = ImageCopy {
                session,
                options: &options,
                rules: &rules,
                place,
                sources: &sources,
                is_itself: cp.no_target_directory,
            };
            match size {
                Some(size) => copy.run_in_new(&cp.new_image, size),
                None => copy.run(Image::open(session, place, Access::Write)?),
            }
        }
        (PathArgument::Host(_), Some(_)) => Err(Failure::usage(
            "--create creates an image, so the destination must be IMAGE:/path",
        )),
        (PathArgument::Host(path), None) => {
            let (mut progress, mut any) = (Progress::new(session), false);
            for group in plan::groups(&sources) {
                let PathArgument::Image(place) = &group[0] else {
                    return Err(plan::no_image(&group[0], path));
                };
                if any {
                    progress = Progress::new(session);
                }
                any = true;
                let image = Image::open(session, place, Access::Read)?;
                let copied = out_of_image(cp, session, &options, &image, group, &target, &progress);
                let closed = image.close();
                copied.and(closed)?;
            }
            Ok(())
        }
    }
}

fn out_of_image(
    cp: &Cp,
    session: &Session,
    options: &CopyOptions,
    image: &Image,
    group: &[PathArgument],
    target: &PathArgument,
    progress: &Progress,
) -> Outcome {
    let (PathArgument::Image(place), PathArgument::Host(path)) = (&group[0], target) else {
        return Ok(());
    };
    let group = plan::expanded(image, group);
    let request = plan::Request {
        target: path,
        name: path.display().to_string(),
        is_directory: path.is_dir(),
        // The destination is a place too.
        has_many: cp.places.len() > 2 || group.len() > 1,
        is_itself: cp.no_target_directory,
    };
    let jobs = plan::jobs(&request, &group)?;
    let target = HostTarget::new(options, Vec::from_iter(FileId::at(&place.image)));
    let source = MountSource::new(image.process());
    let copy = Copy {
        session,
        options,
        progress,
        target: Files::Host,
    };
    let copied = copy.run(Files::Image(image), &source, &target, &jobs);
    progress.finish();
    copied
}
