//! New images with a tree in them: their size, and the whole job in one call.

use crate::copy::{CopiedContent, CopyJob, copy};
use crate::observer::FirstFailure;
use crate::options::CopyOptions;
use crate::rules::OwnerRules;
use crate::source::{FileId, HostSource};
use crate::target::{MountTarget, check_fakeroot};
use folio::block::ImageFormat;
use folio::ext4::{ExtraSpace, FileTreeSize, FormatOptions, LeastSize, least_size};
use folio::{Errno, Error, Fs, Image, Result};
use parse_size::Config;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::str::FromStr;

/// The size of a new file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NewSize {
    /// This many bytes.
    Bytes(u64),
    /// What the content needs, and some more.
    Auto(ExtraSpace),
}

impl FromStr for NewSize {
    type Err = Error;

    /// Parses a size, `auto`, `auto+20%` or `auto+64M`.
    fn from_str(text: &str) -> Result<Self> {
        let invalid = |what: &str| {
            Error::new(
                Errno::INVAL,
                format!("invalid size {text:?}: expected {what}"),
            )
        };
        let Some(more) = text.strip_prefix("auto") else {
            let size = parse_size(text)
                .ok_or_else(|| invalid("a number with K, M, G or T (e.g. 512M)"))?;
            return match size {
                0 => {
                    let reason = format!("invalid size {text:?}: a disk needs at least 1 byte");
                    Err(Error::new(Errno::INVAL, reason))
                }
                size => Ok(Self::Bytes(size)),
            };
        };
        let invalid = || invalid("auto, auto+20% or auto+64M");
        let extra = match more.strip_prefix('+') {
            None if more.is_empty() => ExtraSpace::None,
            None => return Err(invalid()),
            Some(more) => match more.strip_suffix('%') {
                Some(percent) => ExtraSpace::Percent(percent.parse().map_err(|_| invalid())?),
                None => ExtraSpace::Bytes(parse_size(more).ok_or_else(invalid)?),
            },
        };
        Ok(Self::Auto(extra))
    }
}

/// Parses a size in bytes: a number with K, M, G, T or P, in units of 1024 as in mke2fs and
/// qemu-img, or one in hexadecimal with 0x.
pub fn parse_size(text: &str) -> Option<u64> {
    match text.strip_prefix("0x").or(text.strip_prefix("0X")) {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => Config::new().with_binary().parse_size(text).ok(),
    }
}

/// Returns the least size of an ext4 for the content that `add` lists, in the directory `target`.
/// No blocks are reserved for root.
///
/// # Errors
///
/// EINVAL: invalid format options; EFBIG: the content is larger than any ext4.
pub fn fitting_size(
    target: &Path,
    extra: ExtraSpace,
    options: FormatOptions,
    add: impl FnOnce(&mut FileTreeSize),
) -> Result<LeastSize> {
    let options = FormatOptions {
        reserved_percent: 0.0,
        ..options
    };
    let mut content = FileTreeSize::new(&options);
    let mut above = target;
    while let Some(parent) = above.parent() {
        content.add_directory(above.file_name().map(OsStrExt::as_bytes));
        above = parent;
    }
    add(&mut content);
    let least = least_size(&content, extra, &options)?;
    tracing::info!(bytes = least.len_bytes, "least size for the content");
    Ok(least)
}

/// A new image with an ext4 and the contents of a directory of the host as its root.
#[derive(Debug)]
pub struct NewImage {
    /// The size of the disk.
    pub size: NewSize,
    /// The format; `None` follows from the name: qcow2 for `.qcow2`, else raw.
    pub format: Option<ImageFormat>,
    /// The volume label, at most 16 bytes.
    pub label: String,
    /// The UUID of the file system; `None` for a random one. With a UUID and a latest time in
    /// `copy`, the same tree gives the same bytes.
    pub uuid: Option<[u8; 16]>,
    /// What is kept of the files.
    pub copy: CopyOptions,
    /// Owners and modes that the files get instead.
    pub rules: OwnerRules,
}

impl Default for NewImage {
    fn default() -> Self {
        Self {
            size: NewSize::Auto(ExtraSpace::None),
            format: None,
            label: String::new(),
            uuid: None,
            copy: CopyOptions::archive(),
            rules: OwnerRules::default(),
        }
    }
}

impl NewImage {
    /// Creates the image `path`, and copies the contents of the directory `tree` into it. After a
    /// failure no file is left.
    ///
    /// ```
    /// # fn main() -> std::io::Result<()> {
    /// use folio_tree::NewImage;
    ///
    /// # let folder = tempfile::tempdir()?;
    /// # let (disk, tree) = (folder.path().join("disk.qcow2"), folder.path().join("tree"));
    /// # std::fs::create_dir(&tree)?;
    /// # std::fs::write(tree.join("motd"), "hello")?;
    /// NewImage::default().build(&disk, &tree)?;
    ///
    /// let fs = folio::Image::file(&disk).mount()?;
    /// assert_eq!(fs.read_to_string("/motd")?, "hello");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// `AlreadyExists`; the first failure of a file, which it names; those of formatting.
    pub fn build(&self, path: &Path, tree: &Path) -> io::Result<()> {
        if self.copy.keeps_owner {
            check_fakeroot()?;
        }
        if path.symlink_metadata().is_ok() {
            return Err(Error::from(Errno::EXIST)
                .at(path.display().to_string())
                .into());
        }
        // `tree/.` fails unless it is a directory, and through a link.
        let from = tree.join(".");
        from.metadata()
            .map_err(|error| Error::io("read the tree", error).at(tree.display().to_string()))?;
        let jobs = [CopyJob::into_directory(&from, Path::new("/"))];
        let size = self.least_size(&jobs)?;
        // A failure to create the file leaves what has its name.
        let fs = self.create(path, &size)?;
        let built = self.fill(path, &jobs, fs);
        if built.is_err() {
            // The cause of the failure is returned, and an incomplete image is useless.
            let _ = std::fs::remove_file(path);
        }
        built
    }

    fn least_size(&self, jobs: &[CopyJob]) -> Result<LeastSize> {
        let options = FormatOptions {
            label: self.label.clone(),
            uuid: self.uuid,
            ..FormatOptions::default()
        };
        let extra = match self.size {
            NewSize::Bytes(len_bytes) => return Ok(LeastSize { len_bytes, options }),
            NewSize::Auto(extra) => extra,
        };
        let source = HostSource::default();
        fitting_size(Path::new("/"), extra, options, |content| {
            let mut copied = CopiedContent::new(content, &self.copy, &self.rules);
            copied.add(&source, jobs, &|| false);
            copied.finish();
        })
    }

    fn create(&self, path: &Path, size: &LeastSize) -> io::Result<Fs> {
        let mut image = Image::create(path, size.len_bytes)
            .format_options(size.options.clone())
            // A new image is useless after a failure, so nothing goes through a journal.
            .options("noatime,noload")?;
        if let Some(format) = self.format {
            image = image.image_format(format);
        }
        if let Some(latest) = self.copy.latest {
            image = image.fixed_time(latest);
        }
        image.mount()
    }

    fn fill(&self, path: &Path, jobs: &[CopyJob], fs: Fs) -> io::Result<()> {
        let process = fs.process();
        let failures = FirstFailure::default();
        let rules = self.rules.resolve(process, true)?;
        let target = MountTarget::new(process, &self.copy, rules);
        let source = HostSource::new(Vec::from_iter(FileId::at(path)));
        copy(&source, &target, jobs, &self.copy, &failures)?;
        self.rules.finish(process, Path::new("/"), &failures)?;
        failures.into_result()?;
        fs.close()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn new_size_is_bytes_or_auto() {
        let parsed = |text: &str| text.parse::<NewSize>().ok();
        assert_eq!(parsed("2M"), Some(NewSize::Bytes(2 << 20)));
        assert_eq!(parsed("auto"), Some(NewSize::Auto(ExtraSpace::None)));
        let percent = NewSize::Auto(ExtraSpace::Percent(20));
        assert_eq!(parsed("auto+20%"), Some(percent));
        let bytes = NewSize::Auto(ExtraSpace::Bytes(64 << 20));
        assert_eq!(parsed("auto+64M"), Some(bytes));
        for text in [
            "auto+",
            "auto20%",
            "auto-5%",
            "automatic",
            "auto+x",
            "auto+%",
        ] {
            let error = text.parse::<NewSize>().unwrap_err();
            assert!(error.to_string().contains("auto+20%"), "{text}");
        }
    }
}
