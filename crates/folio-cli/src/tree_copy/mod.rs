//! Copies of trees into images, with progress and messages: `folio cp`, and the content of disks.
//!
//! ```text
//!   mod.rs       all sources into one image, or into a new one
//!   plan.rs      maps sources to destinations by the rules of cp(1)
//! ```
//!
//! The copy itself is that of [`folio_tree`]. Above: the commands. Below: `arguments`, `image`,
//! `observer`, `progress`, `session`.

pub(crate) mod plan;

use crate::arguments::new_image::{NewImage, fitting_size, refuse_existing};
use crate::arguments::ownership::finish_rules;
use crate::exit::Outcome;
use crate::image::{Access, Image, with_image};
use crate::image_path::{ImagePath, PathArgument};
use crate::observer::{Files, SessionObserver};
use crate::progress::Progress;
use crate::session::{Session, fixed_time};
use folio::ext4::{ExtraSpace, FormatOptions, LeastSize};
use folio_tree::{
    CopiedContent, CopyJob, CopyOptions, FileId, HostSource, MountSource, MountTarget, NewSize,
    OwnerRules, Source, Target, check_fakeroot,
};
use std::path::Path;

/// A copy into an image.
pub(crate) struct ImageCopy<'a> {
    pub(crate) session: &'a Session,
    pub(crate) options: &'a CopyOptions,
    pub(crate) rules: &'a OwnerRules,
    pub(crate) place: &'a ImagePath,
    pub(crate) sources: &'a [PathArgument],
    /// `-T`.
    pub(crate) is_itself: bool,
}

impl ImageCopy<'_> {
    /// Copies all sources into a new image, which is removed again after a failure.
    pub(crate) fn run_in_new(&self, new_image: &NewImage, size: NewSize) -> Outcome {
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
        let stop = || session.is_interrupted();
        let mut listed = Ok(());
        let least = fitting_size(&place.path, extra, format_options, |content| {
            let mut copied = CopiedContent::new(content, options, self.rules);
            listed = plan::groups(self.sources).try_for_each(|group| {
                let jobs = plan::jobs(&plan::Request::into_new(place), group)?;
                match &group[0] {
                    PathArgument::Host(_) => {
                        copied.add(&HostSource::default(), &jobs, &stop);
                        Ok(())
                    }
                    PathArgument::Image(from) => with_image(session, from, Access::Read, |image| {
                        copied.add(&MountSource::new(image.process()), &jobs, &stop);
                        Ok(())
                    }),
                }
            });
            copied.finish();
        });
        listed?;
        session.check_interrupt()?;
        least
    }

    /// Copies all sources into one image, then closes it whether or not the copy succeeded.
    pub(crate) fn run(&self, image: Image) -> Outcome {
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

    /// Whether the image is to be one source, as it is: no later step looks at its names.
    fn is_direct(&self) -> bool {
        let options = self.options;
        let keeps_all = options.keeps_mode
            && options.keeps_owner
            && options.keeps_times
            && options.keeps_links
            && options.keeps_xattrs;
        keeps_all
            && self.sources.len() == 1
            && self.place.path == Path::new("/")
            && self.rules.is_empty()
    }

    /// Copies neighbors of the same image, or of the host.
    fn group(&self, image: &Image, group: &[PathArgument], progress: &Progress) -> Outcome {
        let (session, options, path) = (self.session, self.options, &self.place.path);
        let rules = self.rules.resolve(image.process(), image.is_new())?;
        let target = MountTarget::new(image.process(), options, rules);
        let target = target.with_contents(image.contents());
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
                let new_erofs = self.is_direct().then(|| image.direct_target()).flatten();
                match new_erofs {
                    Some(new) => copy.run(Files::Host, &source, new, &jobs),
                    None => copy.run(Files::Host, &source, &target, &jobs),
                }
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
    let kept = if keeps_all {
        CopyOptions::archive()
    } else {
        CopyOptions {
            keeps_times: true,
            umask: 0o022,
            ..CopyOptions::content()
        }
    };
    CopyOptions {
        latest: fixed_time(),
        ..kept
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

/// Copies the contents of a directory, of the host or of an image, into the root of a new image.
pub(crate) fn copy_into_new(
    session: &Session,
    tree: &PathArgument,
    place: &ImagePath,
    new_image: &NewImage,
) -> Outcome {
    check_fakeroot()?;
    let contents = match tree {
        PathArgument::Host(path) => PathArgument::Host(path.join(".")),
        PathArgument::Image(from) => PathArgument::Image(from.with_path(from.path.join("."))),
    };
    let copy = ImageCopy {
        session,
        options: &whole_tree(true),
        rules: &OwnerRules::default(),
        place,
        sources: &[contents],
        is_itself: false,
    };
    copy.run_in_new(new_image, NewSize::Auto(ExtraSpace::None))
}

/// A copy to one target, with its messages and progress.
pub(crate) struct Copy<'a> {
    pub(crate) session: &'a Session,
    pub(crate) options: &'a CopyOptions,
    pub(crate) progress: &'a Progress,
    pub(crate) target: Files<'a>,
}

impl Copy<'_> {
    /// Copies all jobs; `files` are those of the source.
    pub(crate) fn run(
        &self,
        files: Files<'_>,
        source: &impl Source,
        target: &impl Target,
        jobs: &[CopyJob],
    ) -> Outcome {
        let observer = SessionObserver::new(self.session, self.progress, files, self.target);
        let copied = folio_tree::copy(source, target, jobs, self.options, &observer);
        observer.count_created();
        copied.map_err(|failure| observer.end(failure))
    }
}
