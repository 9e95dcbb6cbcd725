//! `folio image bitmap`: changes persistent dirty bitmaps.

use crate::arguments::image_options::image_failure;
use crate::exit::{Failure, Outcome};
use crate::image_name::{NameOptions, NamedImage};
use crate::session::Session;
use crate::value_parsers::size;
use clap::parser::ValueSource;
use clap::{ArgAction, ArgMatches, Args, FromArgMatches};
use folio::Error;
use folio::block::qcow2::BitmapChange;
use folio::block::{self, ImageFormat, OpenOptions};
use std::path::{Path, PathBuf};

const AFTER_HELP: &str = "\
A bitmap has a bit for each block of the disk: an enabled one records which blocks change. Backup programs copy those.
folio image info lists the bitmaps. Several actions are done in the order in which they are given.

Examples:
  folio image bitmap --add disk.qcow2 backup
  folio image bitmap --add -g 4k --disable disk.qcow2 fine
  folio image bitmap --merge monday --clear disk.qcow2 week
  folio image bitmap --merge monday -b other.qcow2 -F qcow2 disk.qcow2 week";

/// Change persistent dirty bitmaps
#[derive(Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Bitmap {
    /// The image
    #[arg(value_parser = crate::image_name::value_parser())]
    file: PathBuf,
    /// Name of the bitmap
    #[arg(value_name = "BITMAP")]
    bitmap: String,
    /// Format of the image; the default is detected from its first bytes
    #[arg(short, long, value_name = "FORMAT", value_parser = crate::value_parsers::image_format())]
    format: Option<ImageFormat>,
    #[command(flatten)]
    actions: Actions,
    /// With --add: size of a block; the default is the cluster size, from 4k to 64k
    #[arg(short, long, value_name = "SIZE", value_parser = size)]
    granularity: Option<u64>,
    /// With --merge: image with the bitmap to merge, in place of FILE
    #[arg(short = 'b', long, value_name = "FILE")]
    source_file: Option<PathBuf>,
    /// Format of the image of -b
    #[arg(short = 'F', long, value_name = "FORMAT", value_parser = crate::value_parsers::image_format())]
    source_format: Option<ImageFormat>,
    #[command(flatten)]
    name: NameOptions,
}

/// An action on the bitmap.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Action {
    Add,
    Remove,
    Clear,
    Enable,
    Disable,
    Merge(String),
}

impl Action {
    /// Returns the name of the action, for messages.
    fn name(&self) -> &'static str {
        match self {
            Self::Add => "add",
            Self::Remove => "remove",
            Self::Clear => "clear",
            Self::Enable => "enable",
            Self::Disable => "disable",
            Self::Merge(_) => "merge",
        }
    }
}

/// The actions in the order of the command line.
struct Actions(Vec<Action>);

/// The options of actions without a value.
const FLAGS: [(&str, Action, &str); 5] = [
    (
        "add",
        Action::Add,
        "Create the bitmap, enabled and with all bits clear",
    ),
    ("remove", Action::Remove, "Delete the bitmap"),
    ("clear", Action::Clear, "Clear all bits"),
    (
        "enable",
        Action::Enable,
        "Record changes of the disk from now on",
    ),
    ("disable", Action::Disable, "Record no changes of the disk"),
];

impl Args for Actions {
    fn augment_args(command: clap::Command) -> clap::Command {
        let flags = FLAGS.map(|(name, _, help)| {
            clap::Arg::new(name)
                .long(name)
                .action(ArgAction::Append)
                .num_args(0)
                .default_missing_value("")
                .help(help)
        });
        let merge = clap::Arg::new("merge")
            .long("merge")
            .value_name("BITMAP")
            .action(ArgAction::Append)
            .help("Set all bits that are set in another bitmap");
        command.args(flags).arg(merge)
    }

    fn augment_args_for_update(command: clap::Command) -> clap::Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for Actions {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut found = Vec::new();
        let mut take = |name: &str, action: &dyn Fn(&str) -> Action| {
            if matches.value_source(name) != Some(ValueSource::CommandLine) {
                return;
            }
            let places = matches.indices_of(name).into_iter().flatten();
            let values = matches.get_many::<String>(name).into_iter().flatten();
            found.extend(
                places
                    .zip(values)
                    .map(|(place, value)| (place, action(value))),
            );
        };
        for (name, action, _) in FLAGS {
            take(name, &|_| action.clone());
        }
        take("merge", &|source| Action::Merge(source.to_owned()));
        found.sort_by_key(|(place, _)| *place);
        Ok(Self(found.into_iter().map(|(_, action)| action).collect()))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

/// Runs the command.
pub(crate) fn run(bitmap: &Bitmap, session: &Session) -> Outcome {
    let actions = &bitmap.actions.0;
    let merges = actions
        .iter()
        .any(|action| matches!(action, Action::Merge(_)));
    let usage = if actions.is_empty() {
        Some("expected --add, --remove, --clear, --enable, --disable or --merge")
    } else if bitmap.granularity.is_some() && !actions.contains(&Action::Add) {
        Some("-g: a granularity requires --add")
    } else if bitmap.source_file.is_some() && !merges {
        Some("-b: an image to merge from requires --merge")
    } else if bitmap.source_format.is_some() && bitmap.source_file.is_none() {
        Some("-F: the format of an image to merge from requires its name (-b)")
    } else {
        None
    };
    if let Some(why) = usage {
        return Err(Failure::usage(why));
    }
    let named = bitmap.name.resolve(&bitmap.file, bitmap.format)?;
    for action in actions {
        session.check_interrupt()?;
        apply(bitmap, &named, action).map_err(|(error, path)| {
            let mut failure = image_failure(error, &path);
            let (action, name) = (action.name(), &bitmap.bitmap);
            failure.message = format!("{action} bitmap {name:?}: {}", failure.message);
            failure
        })?;
    }
    Ok(())
}

fn apply(bitmap: &Bitmap, named: &NamedImage, action: &Action) -> Result<(), (Error, PathBuf)> {
    let target = |error| (error, named.path.clone());
    let bits;
    let change = match action {
        Action::Add => BitmapChange::Add {
            granularity_bytes: bitmap.granularity,
            is_enabled: true,
            bits: None,
        },
        Action::Remove => BitmapChange::Remove,
        Action::Clear => BitmapChange::Clear,
        Action::Enable => BitmapChange::Enable,
        Action::Disable => BitmapChange::Disable,
        Action::Merge(name) => {
            let (path, format) = match &bitmap.source_file {
                Some(path) => (path.as_path(), bitmap.source_format),
                None => (named.path.as_path(), named.format),
            };
            bits = read(path, format, name).map_err(|error| (error, path.to_owned()))?;
            BitmapChange::Merge(&bits)
        }
    };
    block::tools::change_bitmap(&named.path, named.format, &bitmap.bitmap, &change).map_err(target)
}

fn read(
    path: &Path,
    format: Option<ImageFormat>,
    name: &str,
) -> Result<block::qcow2::BitmapBits, Error> {
    let options = OpenOptions {
        format,
        ..OpenOptions::default()
    };
    block::tools::read_bitmap(path, &options, name)
}
