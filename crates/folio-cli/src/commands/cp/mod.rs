//! `folio cp`: copies files and trees between the host and images.
//!
//! ```text
//!   plan.rs      maps sources to destinations by the rules of cp(1)
//!   container.rs container images, which folio_tree unpacks and packs
//!   object.rs    image files to and from object storage, as they are
//! ```
//!
//! The copy itself is that of [`folio_tree`]. Above: the dispatch in `commands`. Below: `image`,
//! `image_path`, `observer`, `progress`, `session`.

mod container;
#[cfg(feature = "object-store")]
pub(crate) mod object;
mod plan;

use super::excludes::ExcludeOptions;
use super::new_image::{NewImage, fitting_size, refuse_existing};
use super::ownership::{Ownership, finish_rules};
use crate::exit::{Failure, Outcome};
use crate::image::{Access, Image, with_image};
use crate::image_path::{ImagePath, PathArgument};
#[cfg(feature = "object-store")]
use crate::objects::has_inner_path;
use crate::objects::{check_built, is_url};
use crate::observer::{Files, SessionObserver};
use crate::progress::Progress;
use crate::session::{Session, fixed_time};
use clap::Args;
use container::{ContainerCopy, ContainerOptions};
use folio::ext4::{ExtraSpace, FormatOptions, LeastSize};
use folio_tree::{
    CopiedPaths, CopyJob, CopyOptions, FileId, HostSource, HostTarget, MountSource, MountTarget,
    NewSize, OwnerRules, Source, Target, add_content, check_fakeroot,
};
use std::ffi::{OsStr, OsString};
use std::path::Path;

const EXAMPLES: &str = "\
Examples:
  folio cp -a ./tree disk.qcow2:/srv --create 2G   a new image with a new ext4, and the tree as /srv in it
  folio cp -a ./root/. root.img:/ --create auto    as small as the tree needs; auto+20% or auto+64M leaves room
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
    share: super::force_share::ForceShare,
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
    ) -> Outcome<ContainerCopy<'a>> {
        Ok(ContainerCopy {
            options: &self.container,
            ownership: &self.ownership,
            sources,
            destination,
            is_archive: self.archive,
            new_image: &self.new_image,
            excludes: self.excludes.read()?,
        })
    }

    fn options(&self) -> Outcome<CopyOptions> {
        let is_recursive = self.archive || self.recursive;
        let keeps = self.archive || self.preserve;
        Ok(CopyOptions {
            is_recursive,
            follows_links: !is_recursive && !self.no_dereference,
            keeps_mode: keeps,
            keeps_owner: keeps,
            keeps_times: keeps,
            keeps_links: self.archive || self.no_dereference,
            keeps_xattrs: self.archive,
            excludes: self.excludes.read()?,
            latest: fixed_time(),
            ..CopyOptions::content()
        })
    }
}

/// Runs the command.
pub(crate) fn run(cp: &Cp, session: &Session) -> Outcome {
    cp.share.apply(session);
    let (sources, destination) = cp.places()?;
    if let Some(copied) = container::run(&cp.container_copy(sources, destination)?, session) {
        return copied;
    }
    #[cfg(feature = "object-store")]
    if let [source] = sources
        && !has_inner_path(source)
        && !has_inner_path(destination)
        && !PathArgument::parse(destination, false).is_image()
        && let Some(copied) = object::run(source, destination, session)
    {
        return copied;
    }
    for word in &cp.places {
        if is_url(word) {
            check_built(Path::new(word)).map_err(Failure::usage)?;
        }
    }
    let target = PathArgument::parse(destination, cp.new_image.create.is_some());
    let mut sources: Vec<_> = sources
        .iter()
        .map(|word| PathArgument::parse(word, false))
        .collect();
    if target.is_image() {
        sources = plan::expand_all(session, sources)?;
    }
    let options = cp.options()?;
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

/// A copy into an image.
struct ImageCopy<'a> {
    session: &'a Session,
    options: &'a CopyOptions,
    rules: &'a OwnerRules,
    place: &'a ImagePath,
    sources: &'a [PathArgument],
    /// `-T`.
    is_itself: bool,
}

impl ImageCopy<'_> {
    /// Copies all sources into a new image, which is removed again after a failure.
    fn run_in_new(&self, new_image: &NewImage, size: NewSize) -> Outcome {
        refuse_existing(self.place, "copy")?;
        for source in self.sources {
            plan::check_host(source, self.options)?;
        }
        let least_size = |extra, options| self.least_size(extra, options);
        new_image.make(self.session, self.place, size, least_size, |image| {
            plan::make_parents(&image, self.place, self.sources)?;
            self.run(image)
        })
    }

    /// Returns the least size of a new image for the content of all sources, and for the manifest.
    fn least_size(&self, extra: ExtraSpace, format_options: FormatOptions) -> Outcome<LeastSize> {
        let (session, options, place) = (self.session, self.options, self.place);
        let mut created = CopiedPaths::new(options, self.rules);
        let stop = || session.is_interrupted();
        let mut listed = Ok(());
        let least = fitting_size(&place.path, extra, format_options, |content| {
            listed = plan::groups(self.sources).try_for_each(|group| {
                let jobs = plan::jobs(&plan::Request::into_new(place), group)?;
                match &group[0] {
                    PathArgument::Host(_) => {
                        let source = HostSource::default();
                        created.find(&source, &jobs);
                        add_content(content, &source, &jobs, options, &stop);
                        Ok(())
                    }
                    PathArgument::Image(from) => with_image(session, from, Access::Read, |image| {
                        let source = MountSource::new(image.process());
                        created.find(&source, &jobs);
                        add_content(content, &source, &jobs, options, &stop);
                        Ok(())
                    }),
                }
            });
            self.rules
                .add_created(content, |path| created.contains(path));
        });
        listed?;
        session.check_interrupt()?;
        least
    }

    /// Copies all sources into one image, then closes it whether or not the copy succeeded.
    fn run(&self, image: Image) -> Outcome {
        let progress = Progress::new(self.session);
        let copied = plan::groups(self.sources)
            .try_for_each(|group| self.group(&image, group, &progress))
            .and_then(|()| {
                let files = Files::Image(&image);
                let observer = SessionObserver::new(self.session, &progress, files, files);
                finish_rules(
                    self.session,
                    self.rules,
                    &image,
                    &self.place.path,
                    &observer,
                )
            });
        progress.flushing();
        let closed = image.close();
        progress.finish();
        copied.and(closed)
    }

    /// Copies neighbors of the same image, or of the host.
    fn group(&self, image: &Image, group: &[PathArgument], progress: &Progress) -> Outcome {
        let (session, options, path) = (self.session, self.options, &self.place.path);
        let rules = self.rules.resolve(image.process(), image.is_new())?;
        let target = MountTarget::new(image.process(), options, rules);
        let copy = Copy {
            session,
            options,
            progress,
            target: Files::Image(image),
        };
        let is_directory = image
            .stat(path, true)
            .is_ok_and(|found| plan::is_directory(&found));
        let request = plan::Request {
            target: path,
            name: self.place.to_string(),
            is_directory,
            has_many: self.sources.len() > 1,
            is_itself: self.is_itself,
        };
        let jobs = plan::jobs(&request, group)?;
        match &group[0] {
            PathArgument::Host(_) => {
                let source = HostSource::new(Vec::from_iter(FileId::at(&self.place.image)));
                copy.run(Files::Host, &source, &target, &jobs)
            }
            PathArgument::Image(from) if image.holds(from) => {
                for job in &jobs {
                    plan::check_within(image, job)?;
                }
                let source = MountSource::new(image.process());
                copy.run(Files::Image(image), &source, &target, &jobs)
            }
            PathArgument::Image(from) => {
                let other = image.open_beside(session, from)?;
                let source = MountSource::new(other.process());
                let copied = copy.run(Files::Image(&other), &source, &target, &jobs);
                let closed = other.close();
                copied.and(closed)
            }
        }
    }
}

/// Returns the options of a copy that keeps everything, or only what a FAT stores.
fn whole_tree(keeps_all: bool) -> CopyOptions {
    if keeps_all {
        CopyOptions {
            latest: fixed_time(),
            ..CopyOptions::archive()
        }
    } else {
        CopyOptions {
            keeps_times: true,
            umask: 0o022,
            latest: fixed_time(),
            ..CopyOptions::content()
        }
    }
}

/// Returns the least size of an ext4 for the contents of a host directory.
pub(crate) fn tree_size(
    session: &Session,
    tree: &Path,
    rules: &OwnerRules,
    extra: ExtraSpace,
    options: FormatOptions,
) -> Outcome<LeastSize> {
    let copy = ImageCopy {
        session,
        options: &whole_tree(true),
        rules,
        place: &ImagePath::parse("new:/".as_ref())?,
        sources: &[PathArgument::Host(tree.join("."))],
        is_itself: false,
    };
    copy.least_size(extra, options)
}

/// Copies the contents of a host directory into the root of an image, and closes it. `keeps_all`:
/// as with -a, and with the owners of `rules`; else without owners, modes, links and extended
/// attributes.
pub(crate) fn copy_tree(
    session: &Session,
    tree: &Path,
    image: Image,
    place: &ImagePath,
    rules: &OwnerRules,
    keeps_all: bool,
) -> Outcome {
    if keeps_all {
        check_fakeroot()?;
    }
    let copy = ImageCopy {
        session,
        options: &whole_tree(keeps_all),
        rules,
        place,
        sources: &[PathArgument::Host(tree.join("."))],
        is_itself: false,
    };
    copy.run(image)
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

/// A copy to one target, with its messages and progress.
struct Copy<'a> {
    session: &'a Session,
    options: &'a CopyOptions,
    progress: &'a Progress,
    target: Files<'a>,
}

impl Copy<'_> {
    fn run(
        &self,
        files: Files<'_>,
        source: &impl Source,
        target: &impl Target,
        jobs: &[CopyJob],
    ) -> Outcome {
        let observer = SessionObserver::new(self.session, self.progress, files, self.target)
            .with_recursion(self.options.is_recursive);
        let copied = folio_tree::copy(source, target, jobs, self.options, &observer);
        observer.count_created();
        copied.map_err(|failure| observer.end(failure))
    }
}
