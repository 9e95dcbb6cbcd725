//! Programs in memory: the segments of an ELF file of the host or the image. Linux: elf(5),
//! fs/binfmt_elf.c.

use crate::client::Slot;
use crate::descriptors::is_image;
use crate::files::fill;
use crate::memory::Buffer;
use crate::system::{
    Errno, MAP_ANONYMOUS, MAP_FIXED, MAP_FIXED_NOREPLACE, MAP_NORESERVE, MAP_PRIVATE, MPROTECT,
    PREAD64, PROT_EXEC, PROT_READ, PROT_WRITE, Result, host, map,
};

const PAGE_BYTES: u64 = 4096;
const SEGMENTS_MAX: usize = 64;
/// Words of `Elf64_Phdr`: type and flags, offset, address, physical address, size in the file,
/// size in memory, alignment.
const SEGMENT_WORDS: usize = 7;

/// A file that is read into memory of this process.
#[derive(Clone, Copy)]
pub(crate) struct File {
    pub(crate) slot: Slot,
    pub(crate) fd: i32,
}

impl File {
    /// Reads up to the end of the file; returns the number of bytes, or the whole size for a file
    /// of the image.
    pub(crate) fn read_at(self, into: &mut [u8], offset: u64) -> Result<()> {
        if is_image(self.fd) {
            let buffer = Buffer { address: into.as_mut_ptr() as usize, len_bytes: into.len() };
            return fill(self.slot, self.fd, buffer, offset);
        }
        host!(PREAD64, self.fd, into.as_mut_ptr(), into.len(), offset).map(drop)
    }
}

/// A program or interpreter in memory.
#[derive(Clone, Copy)]
pub(crate) struct Loaded {
    pub(crate) entry: usize,
    /// The difference of addresses in memory and in the file.
    pub(crate) base: usize,
    pub(crate) headers: usize,
    pub(crate) header_count: usize,
}

/// A header of a segment.
#[derive(Clone, Copy)]
struct Segment {
    kind: u32,
    flags: u32,
    offset: u64,
    address: u64,
    file_bytes: u64,
    memory_bytes: u64,
    align: u64,
}

/// The header of a file, with its segments.
pub(crate) struct Program {
    is_fixed: bool,
    entry: u64,
    headers_at: u64,
    count: usize,
    segments: [Segment; SEGMENTS_MAX],
}

const LOAD: u32 = 1;
const INTERPRETER: u32 = 3;

fn word(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..at + 8).map_or(0, |word| u64::from_le_bytes(word.try_into().unwrap_or([0; 8])))
}

/// Returns whether the first bytes of a file are those of a program for this machine.
pub(crate) fn is_program(start: &[u8]) -> bool {
    const X86_64: [u8; 2] = [62, 0];
    start.starts_with(b"\x7fELF\x02\x01") && start.get(18..20) == Some(&X86_64)
}

impl Program {
    /// Reads the headers of a file; ENOEXEC unless they are those of a program.
    pub(crate) fn read(file: File) -> Result<Self> {
        const EXECUTABLE: u64 = 2;
        const SHARED: u64 = 3;
        let mut header = [0; 64];
        file.read_at(&mut header, 0)?;
        let kind = word(&header, 16) & 0xffff;
        let entry_bytes = word(&header, 54) & 0xffff;
        let count = (word(&header, 56) & 0xffff) as usize;
        let is_known = is_program(&header) && matches!(kind, EXECUTABLE | SHARED);
        if !is_known || entry_bytes as usize != 8 * SEGMENT_WORDS || count > SEGMENTS_MAX {
            return Err(Errno::NOEXEC);
        }
        let headers_at = word(&header, 32);
        let mut bytes = [0; 8 * SEGMENT_WORDS * SEGMENTS_MAX];
        let bytes = &mut bytes[..8 * SEGMENT_WORDS * count];
        file.read_at(bytes, headers_at)?;
        let none = Segment {
            kind: 0,
            flags: 0,
            offset: 0,
            address: 0,
            file_bytes: 0,
            memory_bytes: 0,
            align: 0,
        };
        let mut segments = [none; SEGMENTS_MAX];
        for (segment, bytes) in segments.iter_mut().zip(bytes.chunks_exact(8 * SEGMENT_WORDS)) {
            let first = word(bytes, 0);
            *segment = Segment {
                kind: first as u32,
                flags: (first >> 32) as u32,
                offset: word(bytes, 8),
                address: word(bytes, 16),
                file_bytes: word(bytes, 32),
                memory_bytes: word(bytes, 40),
                align: word(bytes, 48).max(PAGE_BYTES),
            };
        }
        let entry = word(&header, 24);
        Ok(Self { is_fixed: kind == EXECUTABLE, entry, headers_at, count, segments })
    }

    fn loads(&self) -> impl Iterator<Item = &Segment> {
        self.segments[..self.count].iter().filter(|segment| segment.kind == LOAD)
    }

    /// Reads the path of the interpreter; returns its length, 0 if there is none.
    pub(crate) fn interpreter(&self, file: File, into: &mut [u8]) -> Result<usize> {
        let mut all = self.segments[..self.count].iter();
        let Some(segment) = all.find(|segment| segment.kind == INTERPRETER) else {
            return Ok(0);
        };
        let len = segment.file_bytes as usize;
        if !(2..=into.len()).contains(&len) {
            return Err(Errno::NOEXEC);
        }
        file.read_at(&mut into[..len], segment.offset)?;
        into[..len].iter().position(|byte| *byte == 0).ok_or(Errno::NOEXEC)
    }

    /// Maps the segments.
    pub(crate) fn load(&self, file: File) -> Result<Loaded> {
        let start = self.loads().map(|segment| down(segment.address)).min();
        let ends = self.loads().map(|segment| segment.address.checked_add(segment.memory_bytes));
        let end = ends.max().flatten();
        let (Some(start), Some(end)) = (start, end) else {
            return Err(Errno::NOEXEC);
        };
        let base = self.reserve(start, up(end) - start)?.wrapping_sub(start);
        for segment in self.loads() {
            segment.load(file, base)?;
        }
        let headers = self.loads().find(|segment| {
            let within = self.headers_at.wrapping_sub(segment.offset);
            within < segment.file_bytes
        });
        let headers = headers.map_or(0, |segment| {
            base.wrapping_add(segment.address + self.headers_at - segment.offset)
        });
        Ok(Loaded {
            entry: base.wrapping_add(self.entry) as usize,
            base: base as usize,
            headers: headers as usize,
            header_count: self.count,
        })
    }

    /// Takes the address space of all segments; returns where they start.
    fn reserve(&self, start: u64, len: u64) -> Result<u64> {
        let flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
        if self.is_fixed {
            let flags = flags | MAP_FIXED_NOREPLACE;
            return map(start as usize, len as usize, 0, flags, -1, 0).map(|at| at as u64);
        }
        let align = self.loads().map(|segment| segment.align).max().unwrap_or(PAGE_BYTES);
        if !align.is_power_of_two() || align > 1 << 30 {
            return Err(Errno::NOEXEC);
        }
        let more = align - PAGE_BYTES;
        let at = map(0, (len + more) as usize, 0, flags, -1, 0)? as u64;
        Ok((at + more) & !(align - 1))
    }
}

impl Segment {
    fn protection(&self) -> usize {
        let has = |bit: u32| self.flags & bit != 0;
        let part = |is: bool, protection| if is { protection } else { 0 };
        part(has(4), PROT_READ) | part(has(2), PROT_WRITE) | part(has(1), PROT_EXEC)
    }

    fn load(&self, file: File, base: u64) -> Result<()> {
        let start = base.wrapping_add(down(self.address));
        let file_end = base.wrapping_add(self.address + self.file_bytes);
        let end = up(base.wrapping_add(self.address + self.memory_bytes));
        let protection = self.protection();
        let before = self.address - down(self.address);
        if self.file_bytes > 0 {
            let len = (up(file_end) - start) as usize;
            let offset = self.offset.wrapping_sub(before);
            if is_image(file.fd) {
                let flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED;
                map(start as usize, len, PROT_READ | PROT_WRITE, flags, -1, 0)?;
                let used = (file_end - start) as usize;
                let into = Buffer { address: start as usize, len_bytes: used };
                fill(file.slot, file.fd, into, offset)?;
                host!(MPROTECT, start, len, protection)?;
            } else {
                map(start as usize, len, protection, MAP_PRIVATE | MAP_FIXED, file.fd, offset)?;
            }
        }
        if self.memory_bytes > self.file_bytes {
            let pages_from = if self.file_bytes == 0 { start } else { up(file_end) };
            if self.flags & 2 != 0 && self.file_bytes > 0 {
                let count = (pages_from.min(end) - file_end) as usize;
                // SAFETY: the rest of the last page of the mapping above, which can be written.
                unsafe { core::ptr::write_bytes(file_end as *mut u8, 0, count) };
            }
            if pages_from < end {
                let flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED;
                let len = (end - pages_from) as usize;
                map(pages_from as usize, len, protection, flags, -1, 0)?;
            }
        }
        Ok(())
    }
}

const fn down(address: u64) -> u64 {
    address & !(PAGE_BYTES - 1)
}

const fn up(address: u64) -> u64 {
    down(address.wrapping_add(PAGE_BYTES - 1))
}
