//! The memory that a front end shares: its regions, and the buffers of a request in it.

use smallvec::SmallVec;
use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use vm_memory::{
    Address, Bytes, FileOffset, GuestAddress, GuestMemoryBackend, GuestMemoryMmap, GuestRegionMmap,
    MmapRegion, VolatileSlice,
};

/// A guest's memory.
pub type Memory = GuestMemoryMmap<()>;

/// A region of guest memory, as the front end describes it. Lengths in bytes.
#[derive(Clone)]
pub(super) struct RegionPlace {
    pub(super) guest_address: u64,
    pub(super) len_bytes: u64,
    /// The address in the front end, by which it names the parts of a queue.
    pub(super) front_end_address: u64,
    pub(super) file_offset: u64,
}

impl RegionPlace {
    /// Whether both are the same region; the place in the file does not count.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        self.guest_address == other.guest_address
            && self.front_end_address == other.front_end_address
            && self.len_bytes == other.len_bytes
    }
}

/// A region, and where it is mapped.
#[derive(Clone)]
pub(super) struct Region {
    pub(super) place: RegionPlace,
    mapping: Arc<GuestRegionMmap<()>>,
}

impl Region {
    /// Maps a region.
    pub(super) fn map(place: RegionPlace, file: OwnedFd) -> io::Result<Self> {
        let ends = [
            place.guest_address.checked_add(place.len_bytes),
            place.front_end_address.checked_add(place.len_bytes),
            place.file_offset.checked_add(place.len_bytes),
        ];
        if place.len_bytes == 0 || ends.contains(&None) {
            return Err(super::message::invalid(
                "a region of memory has no such end",
            ));
        }
        let file = FileOffset::new(file.into(), place.file_offset);
        let mapping =
            MmapRegion::from_file(file, place.len_bytes as usize).map_err(io::Error::other)?;
        let mapping = GuestRegionMmap::new(mapping, GuestAddress(place.guest_address))
            .ok_or_else(|| super::message::invalid("a region of memory has no such end"))?;
        Ok(Self {
            place,
            mapping: Arc::new(mapping),
        })
    }
}

/// Returns the memory of some regions.
pub(super) fn memory_of(regions: &[Region]) -> io::Result<Memory> {
    if regions.is_empty() {
        return Ok(Memory::new());
    }
    let mut mappings: Vec<_> = regions
        .iter()
        .map(|region| Arc::clone(&region.mapping))
        .collect();
    mappings.sort_by_key(|mapping| vm_memory::GuestMemoryRegion::start_addr(&**mapping));
    Memory::from_arc_regions(mappings).map_err(io::Error::other)
}

/// Returns the guest's address for an address in the front end.
pub(super) fn guest_address(regions: &[Region], address: u64) -> io::Result<GuestAddress> {
    for Region { place, .. } in regions {
        let offset = address.wrapping_sub(place.front_end_address);
        if address >= place.front_end_address && offset < place.len_bytes {
            return Ok(GuestAddress(place.guest_address + offset));
        }
    }
    Err(super::message::invalid(
        "a queue is outside of guest memory",
    ))
}

/// A part of guest memory that a request names. It may be outside of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Buffer {
    pub(super) address: GuestAddress,
    pub(super) len_bytes: u32,
}

/// The buffers of a request, one after the other.
#[derive(Clone, Copy)]
pub struct Buffers<'a> {
    memory: &'a Memory,
    buffers: &'a [Buffer],
}

/// An access that left the buffers or guest memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OutOfMemory;

impl<'a> Buffers<'a> {
    pub(super) fn new(memory: &'a Memory, buffers: &'a [Buffer]) -> Self {
        Self { memory, buffers }
    }

    /// Returns the length in bytes.
    pub fn len_bytes(&self) -> usize {
        // A chain has at most 1,024 buffers of less than 4 GiB.
        self.buffers
            .iter()
            .map(|buffer| buffer.len_bytes as usize)
            .sum()
    }

    /// Fills `buf` with the bytes at `offset`.
    ///
    /// # Errors
    /// The range leaves the buffers, or they leave guest memory.
    pub fn read_at(&self, buf: &mut [u8], offset: usize) -> Result<(), OutOfMemory> {
        let mut done = 0;
        self.parts(offset, buf.len(), |address, len| {
            let part = &mut buf[done..done + len];
            done += len;
            self.memory.read_slice(part, address).is_ok()
        })
    }

    /// Writes `bytes` at `offset`.
    ///
    /// # Errors
    /// The range leaves the buffers, or they leave guest memory: a part may be written.
    pub fn write_at(&self, bytes: &[u8], offset: usize) -> Result<(), OutOfMemory> {
        let mut done = 0;
        self.parts(offset, bytes.len(), |address, len| {
            let part = &bytes[done..done + len];
            done += len;
            self.memory.write_slice(part, address).is_ok()
        })
    }

    /// Fills a range with the bytes of a file from `offset` on, by one preadv(2) without a
    /// copy in between; returns whether it has. A part may be filled even if it has not, and the
    /// range may be unreachable this way: then [`Buffers::write_at`] fills it, or says what is
    /// wrong.
    pub fn fill_from_file(&self, range: Range<usize>, file: BorrowedFd<'_>, offset: u64) -> bool {
        let (len, mut targets) = (range.len(), SmallTargets::new());
        let reached = self.parts(range.start, len, |address, part_len| {
            let slices = self.memory.get_slices(address, part_len);
            slices.into_iter().all(|slice| match slice {
                Ok(slice) => {
                    targets.push(slice);
                    targets.len() <= TARGETS_MAX
                }
                Err(_) => false,
            })
        });
        reached.is_ok() && read_file(file, &targets, offset) == Some(len)
    }

    /// Calls `access` with each part of a range.
    fn parts(
        &self,
        mut offset: usize,
        mut len: usize,
        mut access: impl FnMut(GuestAddress, usize) -> bool,
    ) -> Result<(), OutOfMemory> {
        for buffer in self.buffers {
            if len == 0 {
                break;
            }
            let buffer_len = buffer.len_bytes as usize;
            if offset >= buffer_len {
                offset -= buffer_len;
                continue;
            }
            let part = len.min(buffer_len - offset);
            let address = buffer.address.checked_add(offset as u64);
            if !address.is_some_and(|address| access(address, part)) {
                return Err(OutOfMemory);
            }
            len -= part;
            offset = 0;
        }
        if len == 0 { Ok(()) } else { Err(OutOfMemory) }
    }
}

/// Most parts of memory that one call fills: `IOV_MAX` is 1,024.
const TARGETS_MAX: usize = 256;

/// Parts of guest memory to be filled; one for most requests.
type SmallTargets<'a> = SmallVec<[VolatileSlice<'a>; 8]>;

/// Fills parts of guest memory from a file; returns the number of bytes, none for an error.
#[allow(unsafe_code)]
fn read_file(file: BorrowedFd<'_>, targets: &SmallTargets<'_>, offset: u64) -> Option<usize> {
    let guards: SmallVec<[_; 8]> = targets.iter().map(VolatileSlice::ptr_guard_mut).collect();
    let parts: SmallVec<[libc::iovec; 8]> = guards
        .iter()
        .map(|guard| libc::iovec {
            iov_base: guard.as_ptr().cast(),
            iov_len: guard.len(),
        })
        .collect();
    let offset = libc::off64_t::try_from(offset).ok()?;
    // SAFETY: each part is guest memory that the guards keep mapped. This process never borrows it,
    // and the guest may write to it at any time; what its file has lost is EFAULT. At most
    // TARGETS_MAX parts.
    let count = unsafe {
        libc::preadv64(
            file.as_raw_fd(),
            parts.as_ptr(),
            parts.len() as libc::c_int,
            offset,
        )
    };
    usize::try_from(count).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn file_fills_buffers_up_to_its_end() {
        let memory = memory();
        let parts = [buffer(0x1ff0, 0x10), buffer(0x4000, 0x20)];
        let buffers = Buffers::new(&memory, &parts);
        let mut file = tempfile::tempfile().unwrap();
        let bytes: Vec<u8> = (0..64).collect();
        std::io::Write::write_all(&mut file, &bytes).unwrap();
        assert!(buffers.fill_from_file(4..44, file.as_fd(), 20));
        let mut found = [0; 0x30];
        buffers.read_at(&mut found, 0).unwrap();
        assert_eq!(found[..4], [0; 4]);
        assert_eq!(found[4..44], bytes[20..60]);
        assert_eq!(found[44..], [0; 4]);
        assert!(
            !buffers.fill_from_file(4..44, file.as_fd(), 30),
            "end of file"
        );
        assert!(
            !buffers.fill_from_file(4..49, file.as_fd(), 0),
            "beyond the buffers"
        );
        let outside = [buffer(0x1ff0, 0x20)];
        let buffers = Buffers::new(&memory, &outside);
        assert!(!buffers.fill_from_file(0..0x20, file.as_fd(), 0));
    }

    fn memory() -> Memory {
        Memory::from_ranges(&[
            (GuestAddress(0x1000), 0x1000),
            (GuestAddress(0x4000), 0x1000),
        ])
        .unwrap()
    }

    fn buffer(address: u64, len_bytes: u32) -> Buffer {
        Buffer {
            address: GuestAddress(address),
            len_bytes,
        }
    }

    #[test]
    fn ranges_span_buffer_boundaries() {
        let memory = memory();
        let parts = [
            buffer(0x1000, 10),
            buffer(0x1100, 0),
            buffer(0x4000, 9),
            buffer(0x1200, 100),
        ];
        let buffers = Buffers::new(&memory, &parts);
        assert_eq!(buffers.len_bytes(), 119);
        buffers.write_at(b"abcdefghijklm", 8).unwrap();
        let mut bytes = [0; 9];
        memory
            .read_slice(&mut bytes[..2], GuestAddress(0x1008))
            .unwrap();
        assert_eq!(&bytes[..2], b"ab");
        memory.read_slice(&mut bytes, GuestAddress(0x4000)).unwrap();
        assert_eq!(&bytes, b"cdefghijk");
        memory
            .read_slice(&mut bytes[..2], GuestAddress(0x1200))
            .unwrap();
        assert_eq!(&bytes[..2], b"lm");
        let mut back = [0; 13];
        buffers.read_at(&mut back, 8).unwrap();
        assert_eq!(&back, b"abcdefghijklm");
        assert_eq!(buffers.read_at(&mut back, 107), Err(OutOfMemory));
        assert_eq!(buffers.write_at(&back, usize::MAX), Err(OutOfMemory));
    }

    #[test]
    fn buffers_outside_memory_are_errors() {
        let memory = memory();
        for parts in [
            vec![buffer(0x1ffc, 64)],
            vec![buffer(u64::MAX - 7, 64)],
            vec![buffer(0x1000, 15)],
            vec![],
        ] {
            let buffers = Buffers::new(&memory, &parts);
            assert_eq!(buffers.write_at(&[7; 16], 0), Err(OutOfMemory), "{parts:?}");
            assert_eq!(
                buffers.read_at(&mut [0; 16], 0),
                Err(OutOfMemory),
                "{parts:?}"
            );
        }
    }
}
