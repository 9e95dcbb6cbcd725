//! The scenario `gpu`: files in a GPU's memory, read by the host and by kernels, and filled.

use crate::evidence::mib_per_second;
use crate::outcome::Outcome;
use crate::race::{Race, Run};
use crate::report::{Bound, Report, Sample, Unit};
use folio::ramfs::FrameFiles;
use folio::syscall::{Credentials, Fd, OpenFlags};
use folio::vfs::{FallocateMode, MountOptions};
use folio::{Kernel, KernelOptions, Process};
use folio_cuda::{Absent, Device, HostDevice, Launch, fill};
use std::cell::Cell;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

/// Options of the scenario.
#[derive(Debug, Clone, Copy, clap::Args)]
pub struct Options {
    /// Where the files are: `cuda`, or `host` to see that everything runs without a GPU
    #[arg(long, value_enum, default_value = "cuda")]
    device: DeviceKind,
    /// Number of the GPU
    #[arg(long, default_value_t = 0)]
    ordinal: u32,
    /// Threads that fill a file [default: 8]
    #[arg(long)]
    threads: Option<usize>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum DeviceKind {
    Cuda,
    Host,
}

/// The size of the articles' read.
const READ_BYTES: usize = 200_000;
/// Size of a piece of a gather.
const PIECE_BYTES: u64 = 4096;
/// Threads of a block, and blocks of a gather.
const LANES: u32 = 1024;
const BLOCKS: u32 = 1056;
const ROUNDS: u32 = 15;
/// Host reads and kernel launches of one measurement.
const CALLS: u64 = 100;

const HOST_READ: &str = "pread 200 KB";
const KERNEL_READ: &str = "read 200 KB";
const GATHER: &str = "gather 4 KiB";
const FILL: &str = "fill";
const HOST_READS: &str = "host reads from a device file";
const KERNEL_READS: &str = "reads by one block of a kernel";
const GATHERS: &str = "random gather by a kernel";
const FILLS: &str = "fill from the host's page cache";
const GPUFS: &str = "gpufs";
const RAMFS: &str = "folio ramfs";
const COPY: &str = "copy in order, by a kernel";
const DRIVER_COPY: &str = "copy in order, by the driver";
const PINNED: &str = "copy from pinned memory";

const LIMITS: [&str; 5] = [
    "a program that reads on the host gains nothing: the ramfs beside it is in the host's memory",
    "reads by a kernel are device time between two events, launches in a row divided by their number",
    "gathers and copies count the bytes read, not also those written",
    "the copy from pinned memory uses one stream and buffers of the same size as the fill",
    "with --device host, lanes run one after the other on this processor: figures without meaning",
];

/// A gpufs, and a ramfs beside it.
struct Fixture {
    device: Arc<dyn Device>,
    process: Process,
    files: FrameFiles,
    /// The file that calls read, on each of the two.
    read: (Fd, Fd),
    read_bytes: u64,
    /// The file of gathers.
    large: Fd,
    large_bytes: u64,
    /// Source and target of fills.
    fill: (Fd, Fd),
    fill_bytes: u64,
    threads: usize,
}

impl Fixture {
    fn new(device: Arc<dyn Device>, threads: usize, run: &Run<'_>) -> folio::Result<Self> {
        let is_host = device.name() == "this processor";
        let tiny = run.is_quick || is_host;
        let sized = |usual: u64, least: u64| if tiny { least } else { usual };
        let (read_bytes, large_bytes) = (sized(64 << 20, 1 << 20), sized(4 << 30, 1 << 20));
        let fill_bytes = sized(2 << 30, 9 << 20);
        let kernel = Kernel::new(KernelOptions {
            cache_bytes: fill_bytes + 2 * read_bytes + (64 << 20),
            ..KernelOptions::default()
        });
        let process = kernel.process(Credentials::root());
        process.mkdir("/gpu", 0o755)?;
        let options = MountOptions::parse("size=90%")?;
        let files = kernel.mount_gpufs("/gpu", device.clone(), &options)?;
        let open = |path: &str| process.open(path, OpenFlags::CREAT | OpenFlags::RDWR, 0o644);
        let read = (open("/gpu/read")?, open("/read")?);
        let large = open("/gpu/large")?;
        let fds = (open("/source")?, open("/gpu/target")?);
        let bytes: Vec<u8> = (0..1_u32 << 20).map(|at| (at / 3) as u8).collect();
        for (fd, len) in [
            (read.0, read_bytes),
            (read.1, read_bytes),
            (fds.0, fill_bytes),
        ] {
            for offset in (0..len).step_by(bytes.len()) {
                process.pwrite(fd, &bytes, offset)?;
            }
        }
        process.fallocate(large, FallocateMode::Allocate, 0, large_bytes)?;
        Ok(Self {
            device,
            process,
            files,
            read,
            read_bytes,
            large,
            large_bytes,
            fill: fds,
            fill_bytes,
            threads,
        })
    }

    /// preads of 200 KB, each at another offset.
    fn host_read(&self, fd: Fd) -> Outcome<Sample> {
        let mut buf = vec![0; READ_BYTES];
        let start = Instant::now();
        for call in 0..CALLS {
            let offset = call * 333_333 % (self.read_bytes - READ_BYTES as u64);
            let count = self.process.pread(fd, &mut buf, offset)?;
            if count != READ_BYTES {
                return Err(format!("{count} bytes").into());
            }
        }
        Ok(Sample::of(start.elapsed().as_secs_f64() / CALLS as f64))
    }

    /// Returns the device's time for what `work` starts, given the table of a launch of `fd`.
    fn launched(&self, fd: Fd, work: &dyn Fn(u64) -> folio::Result<()>) -> Outcome<f64> {
        let taken = Cell::new(0.0);
        let launch = Launch::new(&self.process, &*self.device, &self.files);
        let report = launch.file(fd, Absent::Zeros).run(&mut |table| {
            // The first one loads the code.
            work(table)?;
            taken.set(self.device.time(&mut || work(table))?);
            Ok(())
        });
        match report?.misses {
            0 => Ok(taken.get()),
            misses => Err(format!("{misses} misses").into()),
        }
    }

    /// Gives `work` memory of the device, which is released afterwards.
    fn with_memory<T>(&self, len: u64, work: impl FnOnce(u64) -> Outcome<T>) -> Outcome<T> {
        let buf = self.device.allocate(len)?;
        let done = work(buf);
        self.device.release(buf);
        done
    }

    /// Reads by one block.
    fn kernel_read(&self) -> Outcome<Sample> {
        let len = READ_BYTES as u64;
        let seconds = self.with_memory(len, |buf| {
            self.launched(self.read.0, &|table| {
                for call in 0..CALLS {
                    // Frames begin at multiples of 16, and so do these offsets.
                    let offset = (call * 333_328 % (self.read_bytes - len)) & !15;
                    let arguments = [table, offset, buf, len];
                    self.device
                        .start("folio_read_block", 1, LANES, &arguments)?;
                }
                Ok(())
            })
        })?;
        Ok(Sample::of(seconds / CALLS as f64))
    }

    /// A gather at random, in MiB a second.
    fn gather(&self) -> Outcome<Sample> {
        let len = self.large_bytes;
        let seconds = self.with_memory(len, |buf| {
            self.launched(self.large, &|table| {
                let arguments = [table, buf, len / PIECE_BYTES, 7];
                self.device.start("folio_gather", BLOCKS, 256, &arguments)
            })
        })?;
        Ok(Sample::of(mib_per_second(len, seconds)))
    }

    /// A copy of as many bytes in order, in MiB a second.
    fn copy(&self, copy: impl Fn(u64) -> folio::Result<()>) -> Outcome<Sample> {
        let seconds = self.with_memory(2 * self.large_bytes, |buf| {
            copy(buf)?;
            Ok(self.device.time(&mut || copy(buf))?)
        })?;
        Ok(Sample::of(mib_per_second(self.large_bytes, seconds)))
    }

    fn fill(&self) -> Outcome<Sample> {
        let start = Instant::now();
        fill(
            &self.process,
            &*self.device,
            &self.files,
            self.fill.0,
            self.fill.1,
            self.threads,
        )?;
        let seconds = start.elapsed().as_secs_f64();
        Ok(Sample::of(mib_per_second(self.fill_bytes, seconds)))
    }

    /// The bytes of a fill from pinned memory.
    fn copy_pinned(&self) -> Outcome<Sample> {
        const BUFFER: u64 = 4 << 20;
        let len = self.fill_bytes;
        self.with_memory(len, |to| {
            let staging = || self.device.staging(BUFFER as usize);
            let mut buffers = [staging()?, staging()?];
            let start = Instant::now();
            for (offset, at) in (0..len).step_by(BUFFER as usize).zip((0..2).cycle()) {
                let count = BUFFER.min(len - offset) as usize;
                buffers[at].bytes()?;
                buffers[at].submit(&[(to + offset, 0..count)])?;
            }
            for buffer in &mut buffers {
                buffer.bytes()?;
            }
            Ok(Sample::of(mib_per_second(
                len,
                start.elapsed().as_secs_f64(),
            )))
        })
    }
}

/// Runs the scenario and returns its report.
pub(crate) fn measure(options: &Options, run: &Run<'_>) -> Outcome<Report> {
    let device: Arc<dyn Device> = match options.device {
        DeviceKind::Cuda => folio_cuda::open(options.ordinal)?,
        DeviceKind::Host => Arc::new(HostDevice::new(96 << 20)?),
    };
    let what = format!("files in the memory of {}", device.name());
    let mut report = Report::new("gpu", what, Path::new("."));
    let fixture = Fixture::new(device, options.threads.unwrap_or(8), run)?;
    let race = |title, unit, base| Race::new(title, unit, Some(base)).rounds(ROUNDS);

    let mut reads = race(HOST_READS, Unit::Seconds, RAMFS);
    reads.case(HOST_READ, GPUFS, || fixture.host_read(fixture.read.0));
    reads.case(HOST_READ, RAMFS, || fixture.host_read(fixture.read.1));
    reads.run(run, &mut report)?;

    let mut reads = race(KERNEL_READS, Unit::Seconds, GPUFS);
    reads.case(KERNEL_READ, GPUFS, || fixture.kernel_read());
    reads.run(run, &mut report)?;

    let (device, len) = (&fixture.device, fixture.large_bytes);
    let by_kernel = |buf| {
        let arguments = [buf, buf + len, len / PIECE_BYTES];
        device.start("folio_copy_in_order", BLOCKS, 256, &arguments)
    };
    let mut gathers = race(GATHERS, Unit::MibPerSecond, COPY);
    gathers.case(GATHER, GPUFS, || fixture.gather());
    gathers.case(GATHER, COPY, || fixture.copy(by_kernel));
    gathers.case(GATHER, DRIVER_COPY, || {
        fixture.copy(|buf| device.copy(buf, buf + len, len))
    });
    gathers.run(run, &mut report)?;

    let mut fills = race(FILLS, Unit::MibPerSecond, PINNED);
    fills.case(FILL, GPUFS, || fixture.fill());
    fills.case(FILL, PINNED, || fixture.copy_pinned());
    fills.run(run, &mut report)?;

    if options.device == DeviceKind::Cuda {
        judge(&mut report);
    }
    report.limit(&LIMITS);
    Ok(report)
}

/// Judges the aims, which are those of one H200.
fn judge(report: &mut Report) {
    for (table, job, most) in [
        (HOST_READS, HOST_READ, 20e-6),
        (KERNEL_READS, KERNEL_READ, 5e-6),
    ] {
        if let Some(seconds) = report.row(table, job, GPUFS).map(|row| row.median) {
            let [most_words, figure] = [most, seconds].map(|value| Unit::Seconds.figure(value));
            report.add_verdict(
                format!("{job}: at most {most_words}"),
                seconds <= most,
                figure,
            );
        }
    }
    for (table, job, least) in [(GATHERS, GATHER, 0.6), (FILLS, FILL, 0.8)] {
        let ratio = report.row(table, job, GPUFS).and_then(|row| row.ratio);
        let aim = format!("{job}: at least {least} of the copy's rate");
        report.judge(aim, ratio, Bound::AtLeast(least));
    }
}
