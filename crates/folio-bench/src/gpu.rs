//! The scenario `gpu`: files in a GPU's memory, read by the host and by kernels, and filled.

use crate::report::{Report, Row, Table, Unit, Verdict, owned};
use crate::rows::Sample;
use crate::run::{Case, Run, interleave};
use folio::fs::ramfs::FrameFiles;
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
const TITLES: [&str; 4] = [
    "host reads from a device file",
    "reads by one block of a kernel",
    "random gather by a kernel",
    "fill from the host's page cache",
];
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

fn text(error: folio::Error) -> String {
    error.to_string()
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

    /// Returns a case of preads of 200 KB, each at another offset.
    fn host_read(&self, contender: &'static str, fd: Fd) -> Case<'_> {
        let mut buf = vec![0; READ_BYTES];
        let mut offset = 0;
        Case::new(HOST_READ, contender, move || {
            let start = Instant::now();
            for _ in 0..CALLS {
                let count = self.process.pread(fd, &mut buf, offset).map_err(text)?;
                if count != READ_BYTES {
                    return Err(format!("{count} bytes"));
                }
                offset = (offset + 333_333) % (self.read_bytes - READ_BYTES as u64);
            }
            Ok(sample(start.elapsed().as_secs_f64() / CALLS as f64))
        })
    }

    /// Returns the device's time for what `work` starts, given the table of a launch of `fd`.
    fn timed(&self, fd: Fd, work: &dyn Fn(u64) -> folio::Result<()>) -> Result<f64, String> {
        let taken = Cell::new(0.0);
        let launch = Launch::new(&self.process, &*self.device, &self.files);
        let report = launch.file(fd, Absent::Zeros).run(&mut |table| {
            // The first one loads the code.
            work(table)?;
            taken.set(self.device.time(&mut || work(table))?);
            Ok(())
        });
        match report.map_err(text)?.misses {
            0 => Ok(taken.get()),
            misses => Err(format!("{misses} misses")),
        }
    }

    /// Returns a case of reads by one block.
    fn kernel_read(&self) -> Case<'_> {
        Case::new(KERNEL_READ, GPUFS, || {
            let len = READ_BYTES as u64;
            let buf = self.device.allocate(len).map_err(text)?;
            let taken = self.timed(self.read.0, &|table| {
                for call in 0..CALLS {
                    // Frames begin at multiples of 16, and so do these offsets.
                    let offset = (call * 333_328 % (self.read_bytes - len)) & !15;
                    let arguments = [table, offset, buf, len];
                    self.device
                        .start("folio_read_block", 1, LANES, &arguments)?;
                }
                Ok(())
            });
            self.device.release(buf);
            Ok(sample(taken? / CALLS as f64))
        })
    }

    /// Returns the cases of a gather and of copies, in MiB a second.
    fn gathers(&self) -> Vec<Case<'_>> {
        let len = self.large_bytes;
        let rate = move |seconds: f64| len as f64 / seconds / f64::from(1 << 20);
        let buffers = move |count: u64| self.device.allocate(len * count).map_err(text);
        let gather = Case::new(GATHER, GPUFS, move || {
            let buf = buffers(1)?;
            let taken = self.timed(self.large, &|table| {
                let arguments = [table, buf, len / PIECE_BYTES, 7];
                self.device.start("folio_gather", BLOCKS, 256, &arguments)
            });
            self.device.release(buf);
            Ok(sample(rate(taken?)))
        });
        let copy = Case::new(GATHER, COPY, move || {
            let buf = buffers(2)?;
            let work = || {
                let arguments = [buf, buf + len, len / PIECE_BYTES];
                self.device
                    .start("folio_copy_in_order", BLOCKS, 256, &arguments)
            };
            let taken = work().and_then(|()| self.device.time(&mut || work()));
            self.device.release(buf);
            Ok(sample(rate(taken.map_err(text)?)))
        });
        let driver = Case::new(GATHER, DRIVER_COPY, move || {
            let buf = buffers(2)?;
            let work = || self.device.copy(buf, buf + len, len);
            let taken = work().and_then(|()| self.device.time(&mut || work()));
            self.device.release(buf);
            Ok(sample(rate(taken.map_err(text)?)))
        });
        vec![gather, copy, driver]
    }

    /// Returns the cases of a fill, and of the same bytes from pinned memory.
    fn fills(&self) -> [Case<'_>; 2] {
        let len = self.fill_bytes;
        let rate = move |start: Instant| {
            sample(len as f64 / start.elapsed().as_secs_f64() / f64::from(1 << 20))
        };
        let fill = Case::new(FILL, GPUFS, move || {
            let start = Instant::now();
            let (device, files) = (&*self.device, &self.files);
            let (source, target) = self.fill;
            fill(&self.process, device, files, source, target, self.threads).map_err(text)?;
            Ok(rate(start))
        });
        let pinned = Case::new(FILL, PINNED, move || {
            const BUFFER: u64 = 4 << 20;
            let to = self.device.allocate(len).map_err(text)?;
            let copied = (|| {
                let mut buffers = [
                    self.device.staging(BUFFER as usize)?,
                    self.device.staging(BUFFER as usize)?,
                ];
                let start = Instant::now();
                for (offset, at) in (0..len).step_by(BUFFER as usize).zip((0..2).cycle()) {
                    let count = BUFFER.min(len - offset) as usize;
                    buffers[at].bytes()?;
                    buffers[at].submit(&[(to + offset, 0..count)])?;
                }
                for buffer in &mut buffers {
                    buffer.bytes()?;
                }
                Ok(rate(start))
            })();
            self.device.release(to);
            copied.map_err(text)
        });
        [fill, pinned]
    }
}

fn sample(value: f64) -> Sample {
    Sample {
        value,
        ..Sample::default()
    }
}

/// Runs the scenario and returns its report.
pub(crate) fn measure(options: &Options, run: &Run<'_>) -> Result<Report, String> {
    let device: Arc<dyn Device> = match options.device {
        DeviceKind::Cuda => folio_cuda::open(options.ordinal).map_err(text)?,
        DeviceKind::Host => Arc::new(HostDevice::new(96 << 20).map_err(text)?),
    };
    let what = format!("files in the memory of {}", device.name());
    let mut report = Report::new("gpu", what, Path::new("."));
    let threads = options.threads.unwrap_or(8);
    let fixture = Fixture::new(device, threads, run).map_err(text)?;
    let reads = vec![
        fixture.host_read(GPUFS, fixture.read.0),
        fixture.host_read(RAMFS, fixture.read.1),
    ];
    let groups = [
        (Unit::Seconds, RAMFS, reads),
        (Unit::Seconds, GPUFS, vec![fixture.kernel_read()]),
        (Unit::MibPerSecond, COPY, fixture.gathers()),
        (Unit::MibPerSecond, PINNED, fixture.fills().into()),
    ];
    for ((unit, base, mut cases), title) in groups.into_iter().zip(TITLES) {
        (run.step)(&format!("gpu: {title}"))?;
        let (rows, rounds) = interleave(run, "gpu", &mut cases, ROUNDS)?;
        report.repeats = report.repeats.max(rounds);
        report
            .tables
            .push(Table::new(title, unit, Some(base), rows));
    }
    if options.device == DeviceKind::Cuda {
        report.verdicts = verdicts(&report);
    }
    report.limits = owned(&LIMITS);
    Ok(report)
}

/// Returns the aims, which are those of one H200.
fn verdicts(report: &Report) -> Vec<Verdict> {
    let row = |title: usize, job| report.row(TITLES[title], job, GPUFS);
    let seconds = |row: &Row, most: f64| Verdict {
        aim: format!("{}: at most {}", row.job, Unit::Seconds.figure(most)),
        is_met: row.median <= most,
        figures: Unit::Seconds.figure(row.median),
    };
    let share = |row: &Row, least: f64| {
        let ratio = row.ratio.unwrap_or(0.0);
        Verdict {
            aim: format!("{}: at least {least} of the copy's rate", row.job),
            is_met: ratio >= least,
            figures: crate::rows::ratio(ratio),
        }
    };
    let all = [
        row(0, HOST_READ).map(|row| seconds(row, 20e-6)),
        row(1, KERNEL_READ).map(|row| seconds(row, 5e-6)),
        row(2, GATHER).map(|row| share(row, 0.6)),
        row(3, FILL).map(|row| share(row, 0.8)),
    ];
    all.into_iter().flatten().collect()
}
