//! The source of `folio image convert`: one image or several, a snapshot, a damaged one.

use crate::arguments::image_options::{BackingOptions, snapshot_selector};
use crate::exit::{Failure, Outcome, explain};
use crate::image_name::NamedImage;
use crate::session::Session;
use clap::Args;
use folio::Error;
use folio::block::partition::{PartitionName, split_partition};
use folio::block::{self, ConcatenatedDevice, Device, SnapshotSelector};
use folio::testing::SalvageDevice;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Options of the source.
#[derive(Args)]
pub(super) struct SourceOptions {
    /// Copy an internal snapshot: its ID or tag, or snapshot.id=ID,snapshot.name=TAG
    #[arg(short = 'l', value_name = "SNAPSHOT", value_parser = snapshot_selector)]
    snapshot: Option<SnapshotSelector>,
    /// Copy zeros in place of what cannot be read, and print it
    #[arg(long, conflicts_with = "copy_offloading")]
    salvage: bool,
    /// Read the source even if another process writes it
    #[arg(short = 'U', long)]
    pub(super) force_share: bool,
}

impl SourceOptions {
    /// Whether a snapshot is copied, and not the present content.
    pub(super) fn is_snapshot(&self) -> bool {
        self.snapshot.is_some()
    }

    /// Opens the images for reading, one after the other.
    pub(super) fn open(
        &self,
        images: &[NamedImage],
        backing: &BackingOptions,
        session: &Session,
    ) -> Outcome<Arc<dyn Device>> {
        if images.len() > 1 && self.snapshot.is_some() {
            let why = "-l: a snapshot cannot be copied from several images";
            return Err(Failure::usage(why));
        }
        let open = |image: &NamedImage| -> Outcome<Arc<dyn Device>> {
            let snapshot = self.snapshot.clone();
            let (path, partition) = disk_and_partition(&image.path);
            let mut device = backing.open_at(&path, image.format, self.force_share, snapshot)?;
            if let Some(partition) = partition {
                let number = partition.number(&*device);
                let selected =
                    number.and_then(|number| block::partition::select(device, Some(number)));
                device = selected
                    .map_err(|error| Failure::image(error.at(image.path.display().to_string())))?;
            }
            if !self.salvage {
                return Ok(device);
            }
            let (print, is_quiet) = (session.note_printer(), session.quiet);
            let report = move |offset: u64, error: &Error| {
                if !is_quiet {
                    let why = explain(error);
                    print(&format!(
                        "warning: error while reading offset {offset}: {why}"
                    ));
                }
            };
            Ok(Arc::new(SalvageDevice::new(device, Box::new(report))))
        };
        let mut devices = images.iter().map(open).collect::<Outcome<Vec<_>>>()?;
        if devices.len() == 1 {
            return Ok(devices.remove(0));
        }
        Ok(Arc::new(ConcatenatedDevice::new(devices)?))
    }
}

/// Splits `IMAGE@2` or `IMAGE@label`, unless a file has this name.
fn disk_and_partition(path: &Path) -> (PathBuf, Option<PartitionName>) {
    match split_partition(path.as_os_str()) {
        (disk, Some(partition)) if !path.exists() && disk.exists() => (disk, Some(partition)),
        _ => (path.to_owned(), None),
    }
}
