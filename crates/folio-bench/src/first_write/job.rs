//! One job on one image, from the open to the close.

use crate::outcome::Outcome;
use folio::block::{Device, ImageFormat, OpenOptions, open};
use folio::ext4::{self, FormatOptions};
use std::io::{IoSlice, IoSliceMut};
use std::path::PathBuf;
use std::sync::Arc;

/// A job: the writes of one measurement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Job {
    /// A new ext4 whose inode tables are all written.
    Mkfs,
    /// From the start on, in order.
    Sequential,
    /// Blocks far apart.
    Random,
}

/// Arguments of the process of one job.
#[derive(Debug, Clone, clap::Args)]
pub struct Arguments {
    pub(crate) job: Job,
    pub(crate) format: ImageFormat,
    pub(crate) image: PathBuf,
    #[arg(long)]
    pub(crate) tiny: bool,
}

/// Writes of one size at a fixed distance, around the end of the disk.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Stride {
    pub(crate) count: u64,
    pub(crate) len_bytes: u64,
    pub(crate) step_bytes: u64,
}

impl Job {
    pub(crate) const ALL: [Self; 3] = [Self::Mkfs, Self::Sequential, Self::Random];

    /// Its name on the command line.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Mkfs => "mkfs",
            Self::Sequential => "sequential",
            Self::Random => "random",
        }
    }

    /// What it does.
    pub(crate) fn words(self) -> &'static str {
        match self {
            Self::Mkfs => "mkfs",
            Self::Sequential => "1 GiB in order",
            Self::Random => "50,000 x 4 KiB at random",
        }
    }

    /// Its writes on a disk of this size, if they are all alike.
    pub(crate) fn stride(self, size_bytes: u64, tiny: bool) -> Option<Stride> {
        let scaled = |count: u64| if tiny { count.div_ceil(100) } else { count };
        match self {
            Self::Mkfs => None,
            Self::Sequential => {
                let len_bytes = 512 << 10;
                Some(Stride {
                    count: scaled(2048).min(size_bytes / len_bytes),
                    len_bytes,
                    step_bytes: len_bytes,
                })
            }
            Self::Random => {
                // The golden section of what qemu-img bench can step over, in an odd number of
                // blocks: far apart, and not twice the same as long as the disk has a number of
                // blocks that is a power of two.
                let blocks = size_bytes >> 12;
                let step = ((blocks.min(1 << 19) as f64 * 0.618_033_988_75) as u64) | 1;
                Some(Stride {
                    count: scaled(50_000).min(blocks),
                    len_bytes: 4096,
                    step_bytes: step << 12,
                })
            }
        }
    }

    /// Does it, with one flush at the end.
    pub(crate) fn write(self, device: &Arc<dyn Device>, tiny: bool) -> folio::Result<()> {
        let size_bytes = device.len_bytes();
        match self.stride(size_bytes, tiny) {
            Some(stride) => {
                let bytes = vec![0x5a; stride.len_bytes as usize];
                let mut at = 0;
                for _ in 0..stride.count {
                    device.write_at(&bytes, at)?;
                    at = (at + stride.step_bytes) % size_bytes;
                }
            }
            None => {
                // Four times as many inodes as usual: the tables are what this job is about.
                let options = FormatOptions {
                    inode_ratio: Some(4096),
                    ..FormatOptions::default()
                };
                ext4::format(&ZeroesWritten(device.clone()), &options)?;
            }
        }
        device.flush()
    }
}

/// Runs the job only.
pub(crate) fn run(arguments: &Arguments) -> Outcome {
    let options = OpenOptions {
        format: Some(arguments.format),
        ..OpenOptions::default()
    };
    let device = open(&arguments.image, &options)?;
    Ok(arguments.job.write(&device, arguments.tiny)?)
}

/// A disk that knows of no zeroes but written ones, as the article's was.
struct ZeroesWritten(Arc<dyn Device>);

/// Zeros of one write.
static ZEROS: [u8; 1 << 20] = [0; 1 << 20];

impl Device for ZeroesWritten {
    fn len_bytes(&self) -> u64 {
        self.0.len_bytes()
    }

    fn is_read_only(&self) -> bool {
        self.0.is_read_only()
    }

    fn read_vectored_at(&self, bufs: &mut [IoSliceMut<'_>], offset: u64) -> folio::Result<()> {
        self.0.read_vectored_at(bufs, offset)
    }

    fn write_vectored_at(&self, bufs: &[IoSlice<'_>], offset: u64) -> folio::Result<()> {
        self.0.write_vectored_at(bufs, offset)
    }

    fn flush(&self) -> folio::Result<()> {
        self.0.flush()
    }

    fn write_zeroes(&self, offset: u64, len_bytes: u64) -> folio::Result<()> {
        let mut done = 0;
        while done < len_bytes {
            let count = (len_bytes - done).min(ZEROS.len() as u64);
            self.0.write_at(&ZEROS[..count as usize], offset + done)?;
            done += count;
        }
        Ok(())
    }
}
