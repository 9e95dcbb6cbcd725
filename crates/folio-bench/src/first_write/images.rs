//! The images of the scenario: their forms before the first write, the programs that write into
//! them, and the article's figures for the forms.

use crate::command::{self, tool};
use crate::evidence::forget;
use crate::outcome::{Context, Outcome};
use crate::published::{PublishedCase, Today};
use crate::report::{Row, Unit};
use folio::block::{self, ImageFormat};
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

/// State of the image before the first write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Qcow2,
    Sparse,
    Falloc,
    Written,
}

impl Kind {
    pub(super) const ALL: [Self; 4] = [Self::Qcow2, Self::Sparse, Self::Falloc, Self::Written];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Qcow2 => "fresh qcow2",
            Self::Sparse => "sparse raw",
            Self::Falloc => "falloc raw",
            Self::Written => "written raw",
        }
    }

    pub(super) fn format(self) -> ImageFormat {
        if self == Self::Qcow2 {
            ImageFormat::Qcow2
        } else {
            ImageFormat::Raw
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Tool {
    Folio,
    Qemu,
}

impl Tool {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Folio => "folio",
            Self::Qemu => "qemu",
        }
    }
}

/// Memory that is used before each run: more than any job needs.
pub(super) const TOUCHED_MIB: u64 = 1536;

/// Returns the name of a form with its writer.
pub(super) fn cell_name(kind: Kind, tool: Tool) -> String {
    format!("{}, {}", kind.name(), tool.name())
}

/// The images of a run. The written one stays from round to round.
#[derive(Debug, Clone, Copy)]
pub(super) struct Images<'a> {
    pub(super) folder: &'a Path,
    pub(super) size_mib: u64,
}

impl Images<'_> {
    pub(super) fn path(&self, kind: Kind) -> PathBuf {
        let name = if kind == Kind::Written {
            "written"
        } else {
            "image"
        };
        self.folder.join(name)
    }

    /// Makes the image as it is before the first write; returns its path.
    pub(super) fn prepare(&self, kind: Kind) -> Outcome<PathBuf> {
        let image = self.path(kind);
        if kind == Kind::Written && image.exists() {
            // As a fresh image: the other tool's last run has left it in memory.
            forget(&[&File::open(&image).at(&image)?])?;
        } else {
            self.create(kind)?;
        }
        Ok(image)
    }

    /// Removes the image after a round, unless it is the written one. The first qcow2 of Folio is
    /// checked before.
    pub(super) fn remove(&self, kind: Kind, writer: Tool, round: u32) -> Outcome {
        if kind == Kind::Written {
            return Ok(());
        }
        let image = self.path(kind);
        if round == 0
            && kind == Kind::Qcow2
            && writer == Tool::Folio
            && let Ok(mut qemu_img) = tool("qemu-img")
        {
            command::run(qemu_img.arg("check").arg(&image))?;
        }
        fs::remove_file(&image).at(&image)
    }

    /// Makes the image as it is before the first write, with no dirty pages left in the host.
    pub(super) fn create(&self, kind: Kind) -> Outcome {
        let path = &self.path(kind);
        let _ = fs::remove_file(path);
        let bytes = self.size_mib << 20;
        let device = block::create(path, kind.format(), bytes)?;
        device.flush()?;
        drop(device);
        let mut file = File::options().write(true).open(path).at(path)?;
        match kind {
            Kind::Qcow2 | Kind::Sparse => {}
            Kind::Falloc => {
                let flags = rustix::fs::FallocateFlags::empty();
                rustix::fs::fallocate(&file, flags, 0, bytes).at(path)?;
            }
            Kind::Written => {
                let ones = vec![1; 1 << 20];
                (0..self.size_mib)
                    .try_for_each(|_| file.write_all(&ones))
                    .at(path)?;
            }
        }
        file.sync_all().at(path)
    }
}

/// Returns the article's figures beside the rows of mkfs, as multiples of those of `base`.
pub(super) fn published_case<'a>(
    row: impl Fn(Kind, Tool) -> Option<&'a Row>,
    base: Kind,
) -> PublishedCase {
    let today = |kind: Kind| {
        let times = |tool: Tool| {
            let name = format!("{}: {}", tool.name(), kind.name());
            Today::times(&name, row(kind, tool), row(base, tool))
        };
        [times(Tool::Qemu), times(Tool::Folio)]
    };
    // 39, 20 and 2 minutes.
    PublishedCase::new(
        "First writes into images",
        "formatting a fresh disk of 100 GB in a KVM guest took 39 minutes on qcow2, 20 on a sparse raw file, 2 on a \
         raw file allocated before",
        "preallocate the image, with folio image create -o preallocation=full or falloc",
    )
    .with(
        "mkfs on a fresh qcow2, as a multiple of the time on a preallocated raw file",
        Unit::Times,
        39.0 / 2.0,
        today(Kind::Qcow2),
    )
    .with("mkfs on a sparse raw file, as a multiple of the same", Unit::Times, 20.0 / 2.0, today(Kind::Sparse))
}
