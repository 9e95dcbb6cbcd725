//! New images with a new ext4, with progress, until Ctrl-C.

use crate::exit::{Failure, Outcome, explain};
use crate::image_path::{ImagePath, refuse_protocol};
use crate::interruptible::{InterruptibleDevice, WriteObserver};
use crate::objects::{check_built, is_url};
use crate::progress::Progress;
use crate::session::Session;
use crate::volumes;
use folio::base::{Errno, Error};
use folio::block::{self, Device, ImageFormat};
use folio::ext4::{self, FormatOptions};
use std::path::Path;
use std::sync::Arc;

/// Creates an image with a new ext4. The file must not exist.
pub(crate) fn create(
    session: &Session,
    place: &ImagePath,
    format: ImageFormat,
    len_bytes: u64,
    options: &FormatOptions,
) -> Outcome<Arc<dyn Device>> {
    let path = place.image.as_path();
    if let Some(name) = &place.partition {
        return Err(Failure::usage(format!(
            "{}: a new image has no partition {name}: omit @{name}, or make the disk first with \
             folio disk create",
            place.image_name()
        )));
    }
    refuse_protocol(path).map_err(Failure::usage)?;
    let device = if is_url(path.as_os_str()) {
        check_built(path).map_err(Failure::usage)?;
        if format == ImageFormat::Qcow2 {
            return Err(Failure::usage(format!(
                "{}: --create makes a volume at a URL, which is a raw disk: give another name, or \
                 make a local qcow2 image and copy it with folio cp IMAGE URL",
                path.display()
            )));
        }
        volumes::create(path, len_bytes)?
    } else {
        block::create(path, format, len_bytes).map_err(|error| Failure::new(text(error, path)))?
    };
    match format_device(session, path, &*device, options) {
        Ok(()) => Ok(device),
        Err(failure) => {
            drop(device);
            // The file is new and useless, and the cause is reported.
            let _ = std::fs::remove_file(path);
            Err(failure)
        }
    }
}

struct FormatObserver<'a> {
    session: &'a Session,
    progress: &'a Progress,
}

impl WriteObserver for FormatObserver<'_> {
    fn is_interrupted(&self) -> bool {
        self.session.is_interrupted()
    }

    fn written(&self, len_bytes: u64) {
        self.progress.add(len_bytes);
    }

    fn flushing(&self) {
        self.progress.flushing();
    }
}

/// Writes a new ext4, with a progress bar, until Ctrl-C.
pub(crate) fn format_device(
    session: &Session,
    path: &Path,
    device: &dyn Device,
    options: &FormatOptions,
) -> Outcome {
    let progress = Progress::new(session);
    let observer = FormatObserver {
        session,
        progress: &progress,
    };
    let formatted = ext4::format(&InterruptibleDevice::new(device, &observer), options);
    progress.finish();
    session.check_interrupt()?;
    formatted.map(drop).map_err(|error| {
        // The value of an option, or a size that is too small.
        let is_usage = error.errno() == Errno::INVAL;
        let text = text(error, path);
        if is_usage {
            Failure::usage(text)
        } else {
            Failure::new(text)
        }
    })
}

fn text(error: Error, path: &Path) -> String {
    explain(&error.within(path.display().to_string()))
}
