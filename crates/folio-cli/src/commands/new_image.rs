//! Options of a new image that a command fills, and its creation.

use crate::exit::{Failure, Outcome};
use crate::image::{self, Access, Image};
use crate::image_path::ImagePath;
use crate::session::{Session, clock};
use crate::value_parsers::disk_size;
use clap::Args;
use folio::Errno;
use folio::block::ImageFormat;
use folio::kernel::FormatOptions;
use std::path::{Path, PathBuf};

/// A new image for the files.
#[derive(Args, Clone)]
pub(crate) struct NewImage {
    /// Create a new image of this size with an empty ext4; removed again if the command fails
    #[arg(long, value_name = "SIZE", value_parser = disk_size)]
    pub(crate) create: Option<u64>,
    /// Format of the new image; the default follows from its name: qcow2 for .qcow2, else raw
    #[arg(long, value_name = "FORMAT", requires = "create", value_parser = crate::value_parsers::image_format())]
    pub(crate) format: Option<ImageFormat>,
    /// UUID of the new file system
    #[arg(long, value_name = "UUID", requires = "create", value_parser = crate::value_parsers::uuid)]
    pub(crate) uuid: Option<[u8; 16]>,
    /// Label of the new file system
    #[arg(long, requires = "create")]
    pub(crate) label: Option<String>,
}

impl NewImage {
    /// Creates or opens the image of `place`, lets `fill` write into it, and closes it. A new image
    /// gets the directory of `place`, and is removed if `fill` fails or creates nothing.
    pub(crate) fn fill(
        &self,
        session: &Session,
        place: &ImagePath,
        fill: impl FnOnce(&Image) -> Outcome,
    ) -> Outcome {
        let Some(len_bytes) = self.create else {
            let image = Image::open(session, place, Access::Write)?;
            let filled = fill(&image);
            return filled.and(image.close());
        };
        if place.image.exists() {
            return Err(Failure::new(format!(
                "{}: already exists; omit --create to write into it",
                place.image.display()
            )));
        }
        let format = image::format_of(&place.image, self.format);
        let options = FormatOptions {
            label: self.label.clone().unwrap_or_default(),
            uuid: self.uuid,
            clock: clock(),
            ..FormatOptions::default()
        };
        let device = image::create(session, place, format, len_bytes, &options)?;
        let filled = Image::mount(session, place, device, Access::Fill).and_then(|image| {
            let filled = make_directories(&image, &place.path).and_then(|()| fill(&image));
            filled.and(image.close())
        });
        if filled.is_err() || session.has_only_failures() {
            // The cause of the failure is reported, and an incomplete image is useless.
            let _ = std::fs::remove_file(&place.image);
        }
        filled
    }
}

/// Creates a directory and those above it.
fn make_directories(image: &Image, path: &Path) -> Outcome {
    let mut made = PathBuf::from("/");
    for part in path.components() {
        made.push(part);
        match image.process().mkdir(&made, 0o755) {
            Err(error) if error.errno() != Errno::EXIST => return Err(image.name(error)),
            _ => {}
        }
    }
    Ok(())
}
