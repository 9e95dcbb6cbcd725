//! A qcow2 overlay that receives the changes of an image for the time of a command.

use crate::exit::{Failure, Outcome};
use crate::objects::is_url;
use folio::block::{
    self, BackingName, BackingPolicy, CreateOptions, Device, ImageFormat, OpenOptions,
};
use rustix::fs::Mode;
use std::fs::Permissions;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tempfile::TempPath;

/// A qcow2 overlay to be created.
pub(crate) struct NewOverlay {
    len_bytes: u64,
    options: CreateOptions,
}

impl NewOverlay {
    /// Returns the overlay of the image `base`, with this name of it.
    pub(crate) fn of(base: &Path, name: &str, format: Option<ImageFormat>) -> folio::Result<Self> {
        let options = OpenOptions {
            read_only: true,
            format,
            ..OpenOptions::default()
        };
        let len_bytes = block::open(base, &options)?.len_bytes();
        let format = match format {
            Some(format) => format,
            None => block::format_of(base)?,
        };
        let options = CreateOptions {
            backing: Some(BackingName {
                name: name.to_owned(),
                format: Some(format),
            }),
            ..CreateOptions::default()
        };
        Ok(Self { len_bytes, options })
    }

    pub(crate) fn create(&self, path: &Path) -> folio::Result<()> {
        block::create_with(path, ImageFormat::Qcow2, self.len_bytes, &self.options).map(drop)
    }
}

/// An overlay that exists as long as this value, or is never seen once it is opened.
pub(crate) struct TemporaryOverlay {
    /// Where it is, until it is opened to be thrown away.
    pub(crate) path: TempPath,
    /// The image below it.
    pub(crate) base: PathBuf,
    is_thrown_away: bool,
}

impl TemporaryOverlay {
    /// Creates an overlay whose changes are lost, in the folder for temporary files.
    pub(crate) fn new(image: &Path, format: Option<ImageFormat>) -> Outcome<Self> {
        let hint = "; TMPDIR names another folder";
        let (path, base) = Self::create(image, format, &std::env::temp_dir(), hint)?;
        Ok(Self {
            path,
            base,
            is_thrown_away: true,
        })
    }

    /// Creates an overlay in the folder of the image.
    pub(crate) fn beside(image: &Path) -> Outcome<Self> {
        let folder = match image.parent() {
            Some(folder) if !folder.as_os_str().is_empty() => folder,
            _ => Path::new("."),
        };
        let (path, base) = Self::create(image, None, folder, "")?;
        Ok(Self {
            path,
            base,
            is_thrown_away: false,
        })
    }

    fn create(
        image: &Path,
        format: Option<ImageFormat>,
        folder: &Path,
        hint: &str,
    ) -> Outcome<(TempPath, PathBuf)> {
        let cannot = |error| Failure::new(format!("{}: {error}", image.display()));
        let (base, mode) = if is_url(image.as_os_str()) {
            (image.to_owned(), 0o600)
        } else {
            let base = image.canonicalize().map_err(cannot)?;
            let mode = base.metadata().map_err(cannot)?.mode() & 0o666;
            (base, mode)
        };
        let Some(name) = base.to_str() else {
            let text = format!(
                "{}: the name of a backing file must be UTF-8",
                base.display()
            );
            return Err(Failure::new(text));
        };
        let overlay = NewOverlay::of(&base, name, format).map_err(Failure::image)?;
        let stem = base.file_stem().unwrap_or_default().display();
        let mut builder = tempfile::Builder::new();
        let prefix = format!("{stem}.run-");
        builder.prefix(&prefix).suffix(".qcow2");
        // The overlay gets what is written: as private as the image.
        let umask = rustix::process::umask(Mode::from_raw_mode(0o077));
        let made = builder.make_in(folder, |path| {
            overlay.create(path).map_err(std::io::Error::other)?;
            std::fs::set_permissions(path, Permissions::from_mode(mode))
        });
        rustix::process::umask(umask);
        let made =
            made.map_err(|error| Failure::new(format!("cannot create an overlay: {error}{hint}")))?;
        Ok((made.into_temp_path(), base))
    }

    /// Opens the overlay.
    pub(crate) fn open(&self) -> Outcome<Arc<dyn Device>> {
        let options = OpenOptions {
            backing: BackingPolicy::Anywhere,
            ..OpenOptions::default()
        };
        let device = block::open(&self.path, &options).map_err(Failure::image)?;
        if self.is_thrown_away {
            // Nothing remains of it, however this process ends.
            std::fs::remove_file(&self.path)
                .map_err(|error| Failure::new(format!("{}: {error}", self.path.display())))?;
        }
        Ok(device)
    }
}
