//! `folio image convert --bitmaps`: copies persistent dirty bitmaps.

use crate::arguments::image_options::image_failure;
use crate::exit::{Failure, Outcome};
use crate::image_name::NamedImage;
use crate::session::Session;
use clap::Args;
use folio::block::qcow2::{BitmapChange, DirtyBitmap};
use folio::block::{self, Compat, CreateOptions, ImageFormat, OpenOptions};
use std::path::Path;

/// Options about the bitmaps.
#[derive(Args)]
pub(super) struct BitmapOptions {
    /// Copy the persistent dirty bitmaps too
    #[arg(long)]
    bitmaps: bool,
    /// With --bitmaps: omit bitmaps that are marked in-use
    #[arg(long, requires = "bitmaps")]
    skip_broken_bitmaps: bool,
}

/// The bitmaps to copy.
pub(super) struct CopiedBitmaps<'a> {
    source: &'a NamedImage,
    is_shared: bool,
    bitmaps: Vec<DirtyBitmap>,
}

impl BitmapOptions {
    /// Finds the bitmaps to copy, before anything is written.
    pub(super) fn find<'a>(
        &self,
        sources: &'a [NamedImage],
        is_shared: bool,
        target_format: ImageFormat,
        target_options: &CreateOptions,
        session: &Session,
    ) -> Outcome<Option<CopiedBitmaps<'a>>> {
        if !self.bitmaps {
            return Ok(None);
        }
        let [source] = sources else {
            return Err(Failure::usage("--bitmaps: expected one source image"));
        };
        if target_format != ImageFormat::Qcow2 || target_options.compat != Compat::V1_1 {
            let why = "--bitmaps: the target must be qcow2 with compat 1.1";
            return Err(Failure::usage(why));
        }
        let options = OpenOptions {
            format: source.format,
            is_shared,
            ..OpenOptions::default()
        };
        let info = block::tools::info(&source.path, &options);
        let info = info.map_err(|error| image_failure(error, &source.path))?;
        let is_v3 = |qcow2: &block::Qcow2Info| qcow2.compat == Compat::V1_1;
        if !info.qcow2.as_ref().is_some_and(is_v3) {
            let why = "--bitmaps: the source must be qcow2 with compat 1.1";
            return Err(Failure::usage(why));
        }
        let (broken, bitmaps): (Vec<_>, Vec<_>) = info
            .bitmaps
            .into_iter()
            .partition(|bitmap| bitmap.is_in_use);
        for bitmap in broken {
            let name = bitmap.name;
            if !self.skip_broken_bitmaps {
                return Err(Failure::new(format!(
                    "bitmap {name:?} is marked in-use: it may lack changes; use \
                     --skip-broken-bitmaps, or folio image bitmap --remove"
                )));
            }
            session.note(format!(
                "warning: skipping bitmap {name:?}, which is marked in-use"
            ));
        }
        Ok(Some(CopiedBitmaps {
            source,
            is_shared,
            bitmaps,
        }))
    }
}

impl CopiedBitmaps<'_> {
    /// Adds the bitmaps to the image at `target`, which no process has open.
    pub(super) fn copy(&self, target: &Path) -> Outcome {
        let options = OpenOptions {
            format: self.source.format,
            is_shared: self.is_shared,
            ..OpenOptions::default()
        };
        for bitmap in &self.bitmaps {
            let name = &bitmap.name;
            let path = &self.source.path;
            let bits = block::tools::read_bitmap(path, &options, name);
            let bits = bits.map_err(|error| image_failure(error, path))?;
            let change = BitmapChange::Add {
                granularity_bytes: Some(bitmap.granularity_bytes),
                is_enabled: bitmap.is_auto,
                bits: Some(&bits),
            };
            block::tools::change_bitmap(target, Some(ImageFormat::Qcow2), name, &change)
                .map_err(|error| image_failure(error, target))?;
        }
        Ok(())
    }
}
