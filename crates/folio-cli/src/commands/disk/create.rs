//! `folio disk create`: a disk image with partitions, by a specification.

use super::identity::IdentitySource;
use super::layout::{DiskLayout, in_partition};
use super::spec::DiskSpec;
use crate::exit::{Failure, Outcome};
use crate::image_path::{ImagePath, refuse_partition, refuse_protocol};
use crate::objects::refuse_new;
use crate::session::Session;
use clap::Args;
use folio::block::partition::PartitionName;
use folio::block::{self, Device, ImageFormat};
use std::path::{Path, PathBuf};
use std::sync::Arc;

const AFTER_HELP: &str = "\
The specification is TOML; docs/disk.md describes all of it. One [[partition]] with type = \"linux\", format = \"ext4\" and
source = \"root\" is a whole specification: the disk is as small as the tree root needs. Paths are below the directory of
the specification. With SOURCE_DATE_EPOCH, two disks from the same specification and trees are identical byte for byte.

Examples:
  folio disk create disk.qcow2 spec.toml
  SOURCE_DATE_EPOCH=1700000000 folio disk create disk.img spec.toml";

/// Create a disk image with partitions by a specification
#[derive(Args)]
#[command(after_help = AFTER_HELP)]
pub(super) struct Create {
    /// The new image
    image: PathBuf,
    /// The specification
    #[arg(value_name = "SPEC")]
    specification: PathBuf,
    /// Format of the image; the default follows from its name: qcow2 for .qcow2, else raw
    #[arg(long, value_name = "FORMAT", value_parser = crate::value_parsers::image_format())]
    format: Option<ImageFormat>,
}

/// Runs the command.
pub(super) fn run(create: &Create, session: &Session) -> Outcome {
    let path = create.image.as_path();
    let name = path.display();
    refuse_protocol(path).map_err(Failure::usage)?;
    refuse_new(path).map_err(Failure::usage)?;
    refuse_partition(path)?;
    if path.exists() {
        return Err(Failure::new(format!("{name}: already exists")));
    }
    let (spec, text) = DiskSpec::read(&create.specification)?;
    let spec_name = create.specification.display();
    let in_spec = |failure: Failure| Failure {
        message: format!("{spec_name}: {}", failure.message),
        ..failure
    };
    let layout = DiskLayout::new(session, &spec, &text).map_err(in_spec)?;
    session.check_interrupt()?;
    let format = create.format.unwrap_or_else(|| ImageFormat::of_name(path));
    let failed = |error: folio::Error| Failure::new(format!("{name}: {error}"));
    let device = block::create(path, format, layout.len_bytes).map_err(failed)?;
    let written = write(session, &device, path, &layout, &text).and_then(|()| {
        session.check_interrupt()?;
        device.flush().map_err(failed)
    });
    drop(device);
    if written.is_err() || session.has_failures() {
        // The cause of the failure is reported, and an incomplete disk is useless.
        let _ = std::fs::remove_file(path);
    }
    written
}

fn write(
    session: &Session,
    device: &Arc<dyn Device>,
    path: &Path,
    layout: &DiskLayout,
    text: &str,
) -> Outcome {
    let written = layout.table.write(&**device);
    written.map_err(|error| Failure::usage(error.to_string()))?;
    let partitions = layout.table.partitions.iter().zip(&layout.contents);
    for ((partition, content), number) in partitions.zip(1_u32..) {
        let place = ImagePath {
            image: path.to_owned(),
            partition: Some(PartitionName::Number(number)),
            path: "/".into(),
        };
        let mut identity = IdentitySource::new(text, number as usize);
        content
            .write(session, device, &place, partition, &mut identity)
            .map_err(|failure| in_partition(failure, number as usize))?;
    }
    Ok(())
}
