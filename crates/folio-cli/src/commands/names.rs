//! `folio mkdir`, `rm`, `mv` and `ln`: commands that make, move and take away names.

use super::change::parse_mode;
use crate::exit::{Failure, Outcome};
use crate::image::{Access, Image, with_image};
use crate::place::ImagePath;
use crate::session::Session;
use crate::walk::{Met, Next, Visitor, walk};
use clap::Args;
use folio::Errno;
use folio::vfs::FileType;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// Make directories
#[derive(Args)]
#[command(after_help = "Example:\n  folio mkdir -p disk.qcow2:/etc/app/conf.d")]
pub(crate) struct Mkdir {
    /// Directories, written IMAGE:/path
    #[arg(required = true)]
    places: Vec<OsString>,
    /// Parents as well, and no complaint if it is there
    #[arg(short)]
    parents: bool,
    /// Mode of the directory, such as 750
    #[arg(short, value_name = "MODE")]
    mode: Option<String>,
}

/// Runs `mkdir`.
pub(crate) fn mkdir(mkdir: &Mkdir, session: &Session) -> Outcome {
    for word in &mkdir.places {
        let place = ImagePath::parse(word)?;
        let mode = mkdir
            .mode
            .as_deref()
            .map(|text| parse_mode(text, 0o777, true))
            .transpose()?;
        with_image(session, &place, Access::Write, |image| {
            if let Err(error) = make(image, &place.path, mkdir.parents, mode) {
                session.fail(image.name(error).message);
            }
            Ok(())
        })?;
    }
    Ok(())
}

fn make(image: &Image, path: &Path, parents: bool, mode: Option<u16>) -> folio::Result<()> {
    let process = image.process();
    if parents {
        let mut made = PathBuf::new();
        for part in path.components() {
            made.push(part);
            match process.mkdir(&made, 0o755) {
                Err(error) if error.errno() != Errno::EXIST => return Err(error),
                _ => {}
            }
        }
        if image.stat(path, true)?.file_type != FileType::Directory {
            return Err(folio::Error::from(Errno::EXIST).at(path.display().to_string()));
        }
    } else {
        process.mkdir(path, 0o777)?;
    }
    mode.map_or(Ok(()), |mode| process.chmod(path, mode))
}

/// Remove files and trees
#[derive(Args)]
#[command(after_help = "Example:\n  folio rm -r disk.qcow2:/var/cache")]
pub(crate) struct Rm {
    /// What to remove, written IMAGE:/path
    #[arg(required = true)]
    places: Vec<OsString>,
    /// Directories with all below them
    #[arg(short, visible_short_alias = 'R', long)]
    recursive: bool,
    /// No complaint about what is not there
    #[arg(short, long)]
    force: bool,
}

/// Runs `rm`.
pub(crate) fn rm(rm: &Rm, session: &Session) -> Outcome {
    for word in &rm.places {
        let place = ImagePath::parse(word)?;
        with_image(session, &place, Access::Write, |image| {
            let found = match image.stat(&place.path, false) {
                Err(error) if rm.force && error.errno() == Errno::NOENT => return Ok(()),
                Err(error) => {
                    session.fail(image.name(error).message);
                    return Ok(());
                }
                Ok(found) => found,
            };
            if found.file_type == FileType::Directory && !rm.recursive {
                session.fail(format_args!(
                    "{place}: is a directory; -r removes it with all below it"
                ));
                return Ok(());
            }
            let is_root = image
                .stat(Path::new("/"), true)
                .is_ok_and(|root| root.number == found.number);
            if is_root {
                session.fail(format_args!("{place}: the root directory stays"));
                return Ok(());
            }
            walk(
                session,
                image,
                (&place.path, found),
                &mut Remover { session, image },
            )
        })?;
    }
    Ok(())
}

struct Remover<'a> {
    session: &'a Session,
    image: &'a Image,
}

impl Visitor for Remover<'_> {
    fn meet(&mut self, met: &Met<'_>) -> Outcome<Next> {
        if met.attributes.file_type != FileType::Directory
            && let Err(error) = self.image.process().unlink(met.path)
        {
            self.session.fail(self.image.name(error).message);
        }
        Ok(Next::Enter)
    }

    fn leave(&mut self, met: &Met<'_>) -> Outcome {
        if let Err(error) = self.image.process().rmdir(met.path) {
            self.session.fail(self.image.name(error).message);
        }
        Ok(())
    }
}

/// Move or rename inside an image
#[derive(Args)]
#[command(after_help = "Example:\n  folio mv disk.qcow2:/etc/old.conf disk.qcow2:/etc/new.conf")]
pub(crate) struct Mv {
    /// What to move, and where to; all in one image, written IMAGE:/path
    #[arg(required = true, num_args = 2.., value_names = ["SOURCE", "DESTINATION"])]
    places: Vec<OsString>,
}

/// Runs `mv`.
pub(crate) fn mv(mv: &Mv, session: &Session) -> Outcome {
    let places = mv
        .places
        .iter()
        .map(|word| ImagePath::parse(word))
        .collect::<Outcome<Vec<_>>>()?;
    let Some((target, sources)) = places.split_last() else {
        return Ok(());
    };
    one_image(&places)?;
    with_image(session, target, Access::Write, |image| {
        for source in sources {
            let path = into(image, target, source, sources.len() > 1)?;
            if let Err(error) = image.process().rename(&source.path, path) {
                session.fail(image.name(error).message);
            }
        }
        Ok(())
    })
}

/// Make links
#[derive(Args)]
#[command(
    after_help = "Examples:\n  folio ln -s ../run disk.qcow2:/var/run\n  folio ln disk.qcow2:/a disk.qcow2:/b"
)]
pub(crate) struct Ln {
    /// A symbolic link; TARGET is then its text, not a place
    #[arg(short, long)]
    symbolic: bool,
    /// Replace what has the name, unless it is a directory
    #[arg(short, long)]
    force: bool,
    /// What the link leads to
    target: OsString,
    /// The link, written IMAGE:/path
    link: OsString,
}

/// Runs `ln`.
pub(crate) fn ln(ln: &Ln, session: &Session) -> Outcome {
    let link = ImagePath::parse(&ln.link)?;
    let target = if ln.symbolic {
        // Only for its last name, should the link go into a directory.
        link.with_path(PathBuf::from(&ln.target))
    } else {
        ImagePath::parse(&ln.target)?
    };
    if !ln.symbolic {
        one_image(&[target.clone(), link.clone()])?;
    }
    with_image(session, &link, Access::Write, |image| {
        let path = into(image, &link, &target, false)?;
        if ln.force && image.stat(&path, false).is_ok() {
            image
                .process()
                .unlink(&path)
                .map_err(|error| image.name(error))?;
        }
        let made = if ln.symbolic {
            image.process().symlink(Path::new(&ln.target), &path)
        } else {
            image.process().link(&target.path, &path)
        };
        made.map_err(|error| image.name(error))
    })
}

/// Where something goes: into the target if that is a directory.
fn into(image: &Image, target: &ImagePath, source: &ImagePath, must: bool) -> Outcome<PathBuf> {
    let is_directory = image
        .stat(&target.path, true)
        .is_ok_and(|f| f.file_type == FileType::Directory);
    match source.path.file_name() {
        Some(name) if is_directory => Ok(target.path.join(name)),
        _ if must => Err(Failure::new(format!("{target}: is no directory"))),
        _ => Ok(target.path.clone()),
    }
}

fn one_image(places: &[ImagePath]) -> Outcome {
    let is_one = places.windows(2).all(|pair| match pair {
        [a, b] => a.image == b.image && a.partition == b.partition,
        _ => true,
    });
    if is_one {
        Ok(())
    } else {
        Err(Failure::usage(
            "all places must be in one image; `folio cp` goes between them",
        ))
    }
}
