//! The jobs, and each contender's way to do them.

use super::rounds::{Body, Contender, Random};
use super::targets::{DEEP_FILE, FILE, FolioTarget, KernelTarget, Memory};
use crate::report::with_context;
use folio::syscall::{AtFlags, OpenFlags, ReadAt};
use rustix::fs::{Mode, OFlags};
use std::ffi::{c_int, c_void};
use std::hint::black_box;

/// The operation that a job repeats.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Work {
    /// pread of `len_bytes`.
    Read { len_bytes: u64, is_random: bool },
    /// Reads of `len_bytes` at random, several in a call where the contender has such a call.
    ReadBatch { len_bytes: u64 },
    /// pwrite of `len_bytes` over cached ones; each thread in its own part of the file.
    Write { len_bytes: u64, is_random: bool },
    /// stat of a path of one component, or of four.
    Stat { is_deep: bool },
    /// fstat of an open file.
    Fstat,
    /// open of a path of one component, and close.
    OpenClose,
    /// The drawing of an offset, which every random job does too.
    Offset,
}

/// A row of the table.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Job {
    pub(crate) name: &'static str,
    pub(crate) work: Work,
}

const fn read(name: &'static str, len_bytes: u64, is_random: bool) -> Job {
    Job {
        name,
        work: Work::Read {
            len_bytes,
            is_random,
        },
    }
}

const fn write(name: &'static str, len_bytes: u64, is_random: bool) -> Job {
    Job {
        name,
        work: Work::Write {
            len_bytes,
            is_random,
        },
    }
}

const fn read_batch(name: &'static str, len_bytes: u64) -> Job {
    Job {
        name,
        work: Work::ReadBatch { len_bytes },
    }
}

/// Reads of one batch.
const BATCH: usize = 16;
const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
/// Random offsets are multiples of this, or of the length if that is less: what programs ask for.
const ALIGNMENT: u64 = 4 * KIB;

/// The jobs on the set of the default size, which may exceed the processor's caches.
pub(crate) const JOBS: [Job; 21] = [
    Job {
        name: "offset",
        work: Work::Offset,
    },
    read("pread-1-seq", 1, false),
    read("pread-1-random", 1, true),
    read("pread-512-seq", 512, false),
    read("pread-512-random", 512, true),
    read("pread-4k-seq", 4 * KIB, false),
    read("pread-4k-random", 4 * KIB, true),
    read_batch("pread-4k-batch", 4 * KIB),
    read("pread-64k-seq", 64 * KIB, false),
    read("pread-64k-random", 64 * KIB, true),
    read("pread-200k-seq", 200 * KIB, false),
    read("pread-200k-random", 200 * KIB, true),
    read("pread-1m-seq", MIB, false),
    read("pread-1m-random", MIB, true),
    read("pread-64m-seq", 64 * MIB, false),
    write("pwrite-4k-random", 4 * KIB, true),
    write("pwrite-200k-seq", 200 * KIB, false),
    Job {
        name: "stat-1",
        work: Work::Stat { is_deep: false },
    },
    Job {
        name: "stat-4",
        work: Work::Stat { is_deep: true },
    },
    Job {
        name: "fstat",
        work: Work::Fstat,
    },
    Job {
        name: "open-close",
        work: Work::OpenClose,
    },
];

/// The jobs on the large set.
pub(crate) const LARGE_JOBS: [Job; 2] = [
    read("pread-4k-random-large", 4 * KIB, true),
    read_batch("pread-4k-batch-large", 4 * KIB),
];
/// Not measured: once through the file, so that no page of it is new to the host.
pub(crate) const WARM_JOB: Job = read("warm", MIB, false);
/// The job that has the byte-wise copy beside it.
const BYTE_WISE: &str = "pread-200k-seq";
/// The job whose time is that of the call.
pub(crate) const CALL: &str = "pread-1-seq";
/// The reads of the scenario memcpy.
pub(crate) const COPY_JOBS: [Job; 4] = [
    read(CALL, 1, false),
    read("pread-4k-seq", 4 * KIB, false),
    read(BYTE_WISE, 200 * KIB, false),
    read("pread-1m-seq", MIB, false),
];

/// Offsets of the operations, in order or at random.
struct Offsets {
    random: Option<Random>,
    first: u64,
    /// Distance of two places, and how many there are.
    unit: u64,
    places: u64,
    next: u64,
}

impl Offsets {
    /// Offsets of operations of `len_bytes` in the part of `set_bytes` that begins at `first`.
    fn new(is_random: bool, len_bytes: u64, first: u64, set_bytes: u64, seed: u64) -> Self {
        let (unit, places) = match is_random {
            // Any byte of any page.
            true if len_bytes == 1 => (1, set_bytes),
            true => {
                let unit = len_bytes.min(ALIGNMENT);
                (unit, set_bytes.saturating_sub(len_bytes) / unit + 1)
            }
            false => (len_bytes, (set_bytes / len_bytes).max(1)),
        };
        Self {
            random: is_random.then(|| Random::new(seed)),
            first,
            unit,
            places,
            next: 0,
        }
    }

    #[inline]
    fn draw(&mut self) -> u64 {
        let place = match &mut self.random {
            Some(random) => random.below(self.places),
            None => {
                let place = self.next;
                self.next = if place + 1 == self.places {
                    0
                } else {
                    place + 1
                };
                place
            }
        };
        self.first + place * self.unit
    }
}

/// All that jobs work on.
pub(crate) struct Targets {
    pub(crate) folio: FolioTarget,
    pub(crate) kernel: KernelTarget,
    pub(crate) memory: Memory,
    pub(crate) set_bytes: u64,
}

impl Targets {
    /// Returns the contenders of `job`: folio, the kernel's tmpfs, and bare memcpy if it applies.
    pub(crate) fn contenders(&self, job: Job) -> Vec<Contender<'_>> {
        let contender = |name, body: fn(&Self, Work, u64, u64) -> Result<Body<'_>, String>| {
            Contender::new(name, move |index, threads| {
                body(self, job.work, index, threads)
            })
        };
        let mut all = Vec::new();
        if job.work == Work::Offset {
            return vec![contender("generator", Self::generator)];
        }
        all.push(contender(FOLIO, Self::folio));
        all.push(contender(KERNEL, Self::kernel));
        if let Work::Read { .. } | Work::ReadBatch { .. } | Work::Write { .. } = job.work {
            all.push(contender(MEMCPY, Self::memcpy));
        }
        if job.name == BYTE_WISE {
            all.push(contender(BYTES, Self::byte_wise));
        }
        all
    }

    /// Returns the contenders that read 200 KB as the library-OS article did: with a copy loop of
    /// single bytes, and with other copy routines.
    pub(crate) fn copiers(&self, job: Job) -> Vec<Contender<'_>> {
        let contender = |name, body: fn(&Self, Work, u64, u64) -> Result<Body<'_>, String>| {
            Contender::new(name, move |index, threads| {
                body(self, job.work, index, threads)
            })
        };
        vec![
            contender(RAMFS_BYTES, Self::folio_byte_wise),
            contender(FOLIO, Self::folio),
            contender(FOLIO_C, Self::folio_c),
            contender(KERNEL, Self::kernel),
            contender(BYTES, Self::byte_wise),
            contender(MEMCPY, Self::memcpy),
        ]
    }

    /// Folio's ramfs, with the one copy loop exchanged: the pages are borrowed, and copied byte by
    /// byte.
    fn folio_byte_wise(&self, work: Work, index: u64, threads: u64) -> Result<Body<'_>, String> {
        let FolioTarget { process, file, .. } = &self.folio;
        let (mut buffer, mut offsets) = self.transfer(work, index, threads)?;
        Ok(body(move || {
            let bytes = buffer.as_mut_slice();
            let offset = offsets.draw();
            let mut done = 0;
            while done < bytes.len() {
                let rest = bytes.len() - done;
                let borrowed = process
                    .read_borrowed(*file, offset + done as u64, rest)
                    .map_err(with_context("read"))?;
                let before = done;
                for slice in borrowed.read().slices() {
                    let (to, _) = bytes[done..].split_at_mut(slice.len());
                    to.iter_mut()
                        .zip(slice)
                        .for_each(|(to, from)| *to = black_box(*from));
                    done += slice.len();
                }
                if done == before {
                    return whole(done, bytes.len());
                }
            }
            Ok(())
        }))
    }

    /// Reads the whole file once in every target.
    pub(crate) fn warm(&self) -> Result<(), String> {
        self.contenders(WARM_JOB)
            .iter()
            .try_for_each(|contender| (contender.make)(0, 1)?(self.set_bytes / MIB))
    }

    /// Returns a buffer of the job's length, and the offsets of its operations.
    fn transfer(&self, work: Work, index: u64, threads: u64) -> Result<(Memory, Offsets), String> {
        let (len_bytes, is_random, first, part_bytes) = match work {
            Work::Write {
                len_bytes,
                is_random,
            } => {
                let part_bytes = self.set_bytes / threads / ALIGNMENT * ALIGNMENT;
                (len_bytes, is_random, index * part_bytes, part_bytes)
            }
            Work::Read {
                len_bytes,
                is_random,
            } => (len_bytes, is_random, 0, self.set_bytes),
            Work::ReadBatch { len_bytes } => (len_bytes, true, 0, self.set_bytes),
            _ => (1, true, 0, self.set_bytes),
        };
        Ok((
            Memory::new(len_bytes)?,
            Offsets::new(is_random, len_bytes, first, part_bytes, index),
        ))
    }

    fn generator(&self, work: Work, index: u64, threads: u64) -> Result<Body<'_>, String> {
        let (_, mut offsets) = self.transfer(work, index, threads)?;
        Ok(Box::new(move |count| {
            for _ in 0..count {
                black_box(offsets.draw());
            }
            Ok(())
        }))
    }

    /// Folio's call of many reads.
    fn folio_batch(&self, work: Work, index: u64, threads: u64) -> Result<Body<'_>, String> {
        let FolioTarget { process, file, .. } = &self.folio;
        let (buffer, mut offsets) = self.transfer(work, index, threads)?;
        let len_bytes = buffer.len_bytes();
        let mut buffers = vec![0; BATCH * len_bytes];
        Ok(Box::new(move |count| {
            let mut rest = count;
            while rest > 0 {
                let mut parts = buffers.chunks_exact_mut(len_bytes);
                let mut reads: [ReadAt<'_>; BATCH] = std::array::from_fn(|_| {
                    ReadAt::new(offsets.draw(), parts.next().unwrap_or_default())
                });
                let reads = &mut reads[..rest.min(BATCH as u64) as usize];
                let made = process
                    .pread_batch(*file, reads)
                    .map_err(with_context("pread_batch"))?;
                whole(made, reads.len())?;
                reads
                    .iter()
                    .try_for_each(|read| whole(read.len, len_bytes))?;
                rest -= made as u64;
            }
            Ok(())
        }))
    }

    fn folio(&self, work: Work, index: u64, threads: u64) -> Result<Body<'_>, String> {
        let FolioTarget {
            process, dir, file, ..
        } = &self.folio;
        let (dir, file) = (*dir, *file);
        let (mut buffer, mut offsets) = self.transfer(work, index, threads)?;
        Ok(match work {
            Work::ReadBatch { .. } => self.folio_batch(work, index, threads)?,
            Work::Read { .. } => body(move || {
                let bytes = buffer.as_mut_slice();
                let count = process
                    .pread(file, bytes, offsets.draw())
                    .map_err(with_context("pread"))?;
                whole(count, bytes.len())
            }),
            Work::Write { .. } => body(move || {
                let bytes = buffer.as_mut_slice();
                let count = process
                    .pwrite(file, bytes, offsets.draw())
                    .map_err(with_context("pwrite"))?;
                whole(count, bytes.len())
            }),
            Work::Stat { is_deep } => {
                let path = if is_deep { DEEP_FILE } else { FILE };
                body(move || {
                    black_box(
                        process
                            .fstatat(dir, path, AtFlags::empty())
                            .map_err(with_context("stat"))?,
                    );
                    Ok(())
                })
            }
            Work::Fstat | Work::Offset => body(move || {
                black_box(process.fstat(file).map_err(with_context("fstat"))?);
                Ok(())
            }),
            Work::OpenClose => body(move || {
                let fd = process
                    .openat(dir, FILE, OpenFlags::empty(), 0)
                    .map_err(with_context("open"))?;
                process.close(fd).map_err(with_context("close"))
            }),
        })
    }

    /// Folio's read as a C program calls it.
    fn folio_c(&self, work: Work, index: u64, threads: u64) -> Result<Body<'_>, String> {
        let (process, file) = (&self.folio.c_process, self.folio.c_file.0 as c_int);
        let (mut buffer, mut offsets) = self.transfer(work, index, threads)?;
        Ok(body(move || {
            let bytes = buffer.as_mut_slice();
            let (start, len) = (bytes.as_mut_ptr().cast(), bytes.len());
            let handle = std::ptr::from_ref(process).cast();
            // SAFETY: the process lives, and the buffer has this length.
            let count = unsafe { folio_pread(handle, file, start, len, offsets.draw() as i64) };
            whole(usize::try_from(count).unwrap_or(0), len)
        }))
    }

    fn kernel(&self, work: Work, index: u64, threads: u64) -> Result<Body<'_>, String> {
        let KernelTarget { dir, file, .. } = &self.kernel;
        let (mut buffer, mut offsets) = self.transfer(work, index, threads)?;
        Ok(match work {
            Work::Read { .. } | Work::ReadBatch { .. } => body(move || {
                let bytes = buffer.as_mut_slice();
                let count = rustix::io::pread(file, &mut *bytes, offsets.draw())
                    .map_err(with_context("pread"))?;
                whole(count, bytes.len())
            }),
            Work::Write { .. } => body(move || {
                let bytes = buffer.as_mut_slice();
                let count = rustix::io::pwrite(file, bytes, offsets.draw())
                    .map_err(with_context("pwrite"))?;
                whole(count, bytes.len())
            }),
            Work::Stat { is_deep } => {
                let path = if is_deep { c"a/b/c/file" } else { c"file" };
                body(move || {
                    black_box(
                        rustix::fs::statat(dir, path, rustix::fs::AtFlags::empty())
                            .map_err(with_context("stat"))?,
                    );
                    Ok(())
                })
            }
            Work::Fstat | Work::Offset => body(move || {
                black_box(rustix::fs::fstat(file).map_err(with_context("fstat"))?);
                Ok(())
            }),
            Work::OpenClose => body(move || {
                let flags = OFlags::RDONLY | OFlags::CLOEXEC;
                drop(
                    rustix::fs::openat(dir, c"file", flags, Mode::empty())
                        .map_err(with_context("open"))?,
                );
                Ok(())
            }),
        })
    }

    fn memcpy(&self, work: Work, index: u64, threads: u64) -> Result<Body<'_>, String> {
        let (mut buffer, mut offsets) = self.transfer(work, index, threads)?;
        let is_write = matches!(work, Work::Write { .. });
        let memory = &self.memory;
        Ok(body(move || {
            let bytes = buffer.as_mut_slice();
            // Hidden from the compiler, as a library's caller hides it: memcpy is called, not laid
            // out in line.
            let len = black_box(bytes.len());
            let set = memory.at(offsets.draw());
            let (from, to) = if is_write {
                (bytes.as_ptr(), set)
            } else {
                (set.cast_const(), bytes.as_mut_ptr())
            };
            // SAFETY: both point to `len` valid bytes; the buffer does not overlap the set; each
            // writer has a part of its own.
            unsafe { std::ptr::copy_nonoverlapping(from, to, len) };
            black_box(bytes);
            Ok(())
        }))
    }

    fn byte_wise(&self, work: Work, index: u64, threads: u64) -> Result<Body<'_>, String> {
        let (mut buffer, mut offsets) = self.transfer(work, index, threads)?;
        let memory = &self.memory;
        Ok(body(move || {
            let set = memory.at(offsets.draw());
            for (at, byte) in buffer.as_mut_slice().iter_mut().enumerate() {
                // SAFETY: inside the set, which no thread writes meanwhile. The volatile read keeps
                // the compiler from turning the loop into a memcpy.
                let value = unsafe { set.wrapping_add(at).read_volatile() };
                // SAFETY: a byte of our own.
                unsafe { std::ptr::from_mut(byte).write_volatile(value) };
            }
            Ok(())
        }))
    }
}

/// Names of the contenders that ratios are taken of.
pub(crate) const FOLIO: &str = "folio";
pub(crate) const FOLIO_C: &str = "folio, from C";
pub(crate) const KERNEL: &str = "kernel tmpfs";
pub(crate) const MEMCPY: &str = "memcpy";
pub(crate) const BYTES: &str = "byte-wise copy";
pub(crate) const RAMFS_BYTES: &str = "folio, copied byte by byte";

unsafe extern "C" {
    /// As folio.h declares it.
    fn folio_pread(
        process: *const c_void,
        fd: c_int,
        buf: *mut c_void,
        count: usize,
        offset: i64,
    ) -> isize;
}

fn body<'a>(mut one: impl FnMut() -> Result<(), String> + Send + 'a) -> Body<'a> {
    Box::new(move |count| (0..count).try_for_each(|_| one()))
}

fn whole(count: usize, want: usize) -> Result<(), String> {
    if count == want {
        Ok(())
    } else {
        Err(format!("{count} of {want} bytes"))
    }
}
