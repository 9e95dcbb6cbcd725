//! The jobs, and each contender's way to do them.

use super::rounds::{Body, Implementation};
use super::targets::{DEEP_FILE, FILE, FolioTarget, KernelTarget, Memory};
use crate::outcome::Outcome;
use crate::random::Random;
use folio::syscall::{AtFlags, OpenFlags, ReadAt};
use rustix::fs::{Mode, OFlags};
use std::ffi::{c_int, c_void};
use std::hint::black_box;
use std::path::Path;

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

const fn job(name: &'static str, work: Work) -> Job {
    Job { name, work }
}

const fn read(name: &'static str, len_bytes: u64, is_random: bool) -> Job {
    let work = Work::Read {
        len_bytes,
        is_random,
    };
    Job { name, work }
}

const fn write(name: &'static str, len_bytes: u64, is_random: bool) -> Job {
    let work = Work::Write {
        len_bytes,
        is_random,
    };
    Job { name, work }
}

/// Reads of one batch.
const BATCH: usize = 16;
const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
/// Random offsets are multiples of this, or of the length if that is less: what programs ask for.
const ALIGNMENT: u64 = 4 * KIB;

/// The jobs on the set of the default size, which may exceed the processor's caches.
pub(crate) const JOBS: [Job; 21] = [
    job("offset", Work::Offset),
    read("pread-1-seq", 1, false),
    read("pread-1-random", 1, true),
    read("pread-512-seq", 512, false),
    read("pread-512-random", 512, true),
    read("pread-4k-seq", 4 * KIB, false),
    read("pread-4k-random", 4 * KIB, true),
    job("pread-4k-batch", Work::ReadBatch { len_bytes: 4 * KIB }),
    read("pread-64k-seq", 64 * KIB, false),
    read("pread-64k-random", 64 * KIB, true),
    read("pread-200k-seq", 200 * KIB, false),
    read("pread-200k-random", 200 * KIB, true),
    read("pread-1m-seq", MIB, false),
    read("pread-1m-random", MIB, true),
    read("pread-64m-seq", 64 * MIB, false),
    write("pwrite-4k-random", 4 * KIB, true),
    write("pwrite-200k-seq", 200 * KIB, false),
    job("stat-1", Work::Stat { is_deep: false }),
    job("stat-4", Work::Stat { is_deep: true }),
    job("fstat", Work::Fstat),
    job("open-close", Work::OpenClose),
];

/// The jobs on the large set.
pub(crate) const LARGE_JOBS: [Job; 2] = [
    read("pread-4k-random-large", 4 * KIB, true),
    job(
        "pread-4k-batch-large",
        Work::ReadBatch { len_bytes: 4 * KIB },
    ),
];
/// Not measured.
const WARM_JOB: Job = read("warm", MIB, false);
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

/// The thread of a body.
#[derive(Debug, Clone, Copy)]
struct Thread {
    index: u64,
    count: u64,
}

/// All that jobs work on.
pub(crate) struct Targets {
    pub(crate) folio: FolioTarget,
    pub(crate) kernel: KernelTarget,
    pub(crate) memory: Memory,
    pub(crate) set_bytes: u64,
}

type Make<'a> = fn(&'a Targets, Work, Thread) -> Outcome<Body<'a>>;

impl Targets {
    /// The same bytes in a ramfs of Folio, in the kernel's tmpfs and in bare memory, all touched.
    pub(crate) fn new(set_bytes: u64, tmpfs: &Path) -> Outcome<Self> {
        let targets = Self {
            folio: FolioTarget::new(set_bytes)?,
            kernel: KernelTarget::new(tmpfs, set_bytes)?,
            memory: Memory::new(set_bytes)?,
            set_bytes,
        };
        // Once through the file, so that no page of it is new to the host.
        for reader in targets.implementations(WARM_JOB) {
            (reader.make)(0, 1)?(set_bytes / MIB)?;
        }
        Ok(targets)
    }

    /// Returns the implementations of `job`: folio, the kernel's tmpfs, and bare memcpy if it
    /// applies.
    pub(crate) fn implementations(&self, job: Job) -> Vec<Implementation<'_>> {
        if job.work == Work::Offset {
            return self.all(job, &[("generator", Self::generator)]);
        }
        let mut makers: Vec<(_, Make<'_>)> = vec![(FOLIO, Self::folio), (KERNEL, Self::kernel)];
        if let Work::Read { .. } | Work::ReadBatch { .. } | Work::Write { .. } = job.work {
            makers.push((MEMCPY, Self::memcpy));
        }
        if job.name == BYTE_WISE {
            makers.push((BYTES, Self::byte_wise));
        }
        self.all(job, &makers)
    }

    /// Returns the implementations that read 200 KB as the library-OS article did: with a copy loop
    /// of single bytes, and with other copy routines.
    pub(crate) fn copiers(&self, job: Job) -> Vec<Implementation<'_>> {
        self.all(
            job,
            &[
                (RAMFS_BYTES, Self::folio_byte_wise),
                (FOLIO, Self::folio),
                (FOLIO_C, Self::folio_c),
                (KERNEL, Self::kernel),
                (BYTES, Self::byte_wise),
                (MEMCPY, Self::memcpy),
            ],
        )
    }

    fn all<'a>(&'a self, job: Job, makers: &[(&'static str, Make<'a>)]) -> Vec<Implementation<'a>> {
        let implementation = |(name, make): &(&'static str, Make<'a>)| {
            let make = *make;
            Implementation::new(name, move |index, count| {
                make(self, job.work, Thread { index, count })
            })
        };
        makers.iter().map(implementation).collect()
    }

    /// Folio's ramfs, with the one copy loop exchanged: the pages are borrowed, and copied byte by
    /// byte.
    fn folio_byte_wise(&self, work: Work, thread: Thread) -> Outcome<Body<'_>> {
        let FolioTarget { process, file, .. } = &self.folio;
        let (mut buffer, mut offsets) = self.transfer(work, thread)?;
        Ok(body(move || {
            let bytes = buffer.as_mut_slice();
            let offset = offsets.draw();
            let mut done = 0;
            while done < bytes.len() {
                let rest = bytes.len() - done;
                let borrowed = process.read_borrowed(*file, offset + done as u64, rest)?;
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

    /// Returns a buffer of the job's length, and the offsets of its operations; each thread that
    /// writes has a part of the file.
    fn transfer(&self, work: Work, thread: Thread) -> Outcome<(Memory, Offsets)> {
        let (len_bytes, is_random) = match work {
            Work::Read {
                len_bytes,
                is_random,
            }
            | Work::Write {
                len_bytes,
                is_random,
            } => (len_bytes, is_random),
            Work::ReadBatch { len_bytes } => (len_bytes, true),
            _ => (1, true),
        };
        let (mut first, mut part_bytes) = (0, self.set_bytes);
        if matches!(work, Work::Write { .. }) {
            part_bytes = self.set_bytes / thread.count / ALIGNMENT * ALIGNMENT;
            first = thread.index * part_bytes;
        }
        // Any byte of any page, if it is one.
        let unit = if is_random {
            len_bytes.min(ALIGNMENT)
        } else {
            len_bytes
        };
        let offsets = Offsets {
            random: is_random.then(|| Random::new(thread.index)),
            first,
            unit,
            places: part_bytes.saturating_sub(len_bytes) / unit + 1,
            next: 0,
        };
        Ok((Memory::new(len_bytes)?, offsets))
    }

    fn generator(&self, work: Work, thread: Thread) -> Outcome<Body<'_>> {
        let (_, mut offsets) = self.transfer(work, thread)?;
        Ok(Box::new(move |count| {
            for _ in 0..count {
                black_box(offsets.draw());
            }
            Ok(())
        }))
    }

    /// Folio's call of many reads.
    fn folio_batch(&self, work: Work, thread: Thread) -> Outcome<Body<'_>> {
        let FolioTarget { process, file, .. } = &self.folio;
        let (buffer, mut offsets) = self.transfer(work, thread)?;
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
                let made = process.pread_batch(*file, reads)?;
                whole(made, reads.len())?;
                reads
                    .iter()
                    .try_for_each(|read| whole(read.len, len_bytes))?;
                rest -= made as u64;
            }
            Ok(())
        }))
    }

    fn folio(&self, work: Work, thread: Thread) -> Outcome<Body<'_>> {
        let FolioTarget {
            process, dir, file, ..
        } = &self.folio;
        let (dir, file) = (*dir, *file);
        let (mut buffer, mut offsets) = self.transfer(work, thread)?;
        Ok(match work {
            Work::ReadBatch { .. } => self.folio_batch(work, thread)?,
            Work::Read { .. } => body(move || {
                let bytes = buffer.as_mut_slice();
                let count = process.pread(file, bytes, offsets.draw())?;
                whole(count, bytes.len())
            }),
            Work::Write { .. } => body(move || {
                let bytes = buffer.as_mut_slice();
                let count = process.pwrite(file, bytes, offsets.draw())?;
                whole(count, bytes.len())
            }),
            Work::Stat { is_deep } => {
                let path = if is_deep { DEEP_FILE } else { FILE };
                body(move || {
                    black_box(process.fstatat(dir, path, AtFlags::empty())?);
                    Ok(())
                })
            }
            Work::Fstat | Work::Offset => body(move || {
                black_box(process.fstat(file)?);
                Ok(())
            }),
            Work::OpenClose => body(move || {
                let fd = process.openat(dir, FILE, OpenFlags::empty(), 0)?;
                Ok(process.close(fd)?)
            }),
        })
    }

    /// Folio's read as a C program calls it.
    fn folio_c(&self, work: Work, thread: Thread) -> Outcome<Body<'_>> {
        let (process, file) = (&self.folio.c_process, self.folio.c_file.as_raw() as c_int);
        let (mut buffer, mut offsets) = self.transfer(work, thread)?;
        Ok(body(move || {
            let bytes = buffer.as_mut_slice();
            let (start, len) = (bytes.as_mut_ptr().cast(), bytes.len());
            let handle = std::ptr::from_ref(process).cast();
            // SAFETY: the process lives, and the buffer has this length.
            let count = unsafe { folio_pread(handle, file, start, len, offsets.draw() as i64) };
            whole(usize::try_from(count).unwrap_or(0), len)
        }))
    }

    fn kernel(&self, work: Work, thread: Thread) -> Outcome<Body<'_>> {
        let KernelTarget { dir, file, .. } = &self.kernel;
        let (mut buffer, mut offsets) = self.transfer(work, thread)?;
        Ok(match work {
            Work::Read { .. } | Work::ReadBatch { .. } => body(move || {
                let bytes = buffer.as_mut_slice();
                let count = rustix::io::pread(file, &mut *bytes, offsets.draw())?;
                whole(count, bytes.len())
            }),
            Work::Write { .. } => body(move || {
                let bytes = buffer.as_mut_slice();
                let count = rustix::io::pwrite(file, bytes, offsets.draw())?;
                whole(count, bytes.len())
            }),
            Work::Stat { is_deep } => {
                let path = if is_deep { c"a/b/c/file" } else { c"file" };
                body(move || {
                    black_box(rustix::fs::statat(dir, path, rustix::fs::AtFlags::empty())?);
                    Ok(())
                })
            }
            Work::Fstat | Work::Offset => body(move || {
                black_box(rustix::fs::fstat(file)?);
                Ok(())
            }),
            Work::OpenClose => body(move || {
                let flags = OFlags::RDONLY | OFlags::CLOEXEC;
                drop(rustix::fs::openat(dir, c"file", flags, Mode::empty())?);
                Ok(())
            }),
        })
    }

    fn memcpy(&self, work: Work, thread: Thread) -> Outcome<Body<'_>> {
        let (mut buffer, mut offsets) = self.transfer(work, thread)?;
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

    fn byte_wise(&self, work: Work, thread: Thread) -> Outcome<Body<'_>> {
        let (mut buffer, mut offsets) = self.transfer(work, thread)?;
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

fn body<'a>(mut one: impl FnMut() -> Outcome + Send + 'a) -> Body<'a> {
    Box::new(move |count| (0..count).try_for_each(|_| one()))
}

fn whole(count: usize, want: usize) -> Outcome {
    if count == want {
        Ok(())
    } else {
        Err(format!("{count} of {want} bytes").into())
    }
}
