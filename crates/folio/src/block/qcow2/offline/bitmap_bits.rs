//! The bits of a dirty bitmap in memory, and their clusters in the file.
//!
//! Source: QEMU, docs/interop/qcow2.txt ("Bitmap table", "Bitmap data").

use crate::base::{Errno, Error, Result};
use crate::block::file::ImageFile;
use crate::block::qcow2::layout::bitmaps::BitmapEntry;
use crate::block::qcow2::layout::roots::Roots;
use crate::block::qcow2::layout::table::{OFFSET_MASK, numbers};
use std::io::IoSliceMut;
use std::ops::Range;

/// Largest size of the bits in bytes, as in QEMU.
const BYTES_MAX: u64 = 512 << 20;
/// In a table entry without an offset: all bits of the cluster are set.
const ALL_ONES: u64 = 1;

/// A piece of the bits, as large as a cluster of the file that they come from.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Piece {
    Zeros,
    Ones,
    Mixed(Vec<u8>),
}

/// The bits of a bitmap: one for each block of the disk, the lowest bit of a byte first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BitmapBits {
    granularity_bits: u32,
    disk_bytes: u64,
    piece_bytes: u64,
    pieces: Vec<Piece>,
}

impl BitmapBits {
    /// Creates bits that are zero.
    ///
    /// # Errors
    ///
    /// EFBIG for more than 512 MiB.
    pub(crate) fn zeros(roots: &Roots, granularity_bits: u32) -> Result<Self> {
        let piece_bytes = roots.cluster_bytes();
        let blocks = roots.len_bytes.div_ceil(1 << granularity_bits);
        let bytes = blocks.div_ceil(8);
        if bytes > BYTES_MAX {
            let why = format!("{bytes} bytes of bits: use a larger granularity");
            return Err(Error::new(Errno::FBIG, why));
        }
        Ok(Self {
            granularity_bits,
            disk_bytes: roots.len_bytes,
            piece_bytes,
            pieces: vec![Piece::Zeros; bytes.div_ceil(piece_bytes) as usize],
        })
    }

    /// Reads the bits of a bitmap.
    ///
    /// # Errors
    ///
    /// EUCLEAN for a table that does not fit the disk, or leaves the file.
    pub(crate) fn read(file: &dyn ImageFile, roots: &Roots, entry: &BitmapEntry) -> Result<Self> {
        if !(9..=31).contains(&entry.granularity_bits) {
            let what = format!("a granularity of 2^{} bytes", entry.granularity_bits);
            return Err(Error::corrupt(what));
        }
        let mut this = Self::zeros(roots, entry.granularity_bits.into())?;
        let table = entry.table;
        let file_bytes = file.len_bytes()?;
        let is_inside = |at: u64, len_bytes: u64| {
            at.is_multiple_of(this.piece_bytes)
                && at
                    .checked_add(len_bytes)
                    .is_some_and(|end| end <= file_bytes)
        };
        if table.len_bytes != this.pieces.len() as u64 * 8 || !is_inside(table.at, table.len_bytes)
        {
            let what = format!("a table of {} bytes at {:#x}", table.len_bytes, table.at);
            return Err(Error::corrupt(what));
        }
        // At most 8 MiB: one entry for each piece of 512 bytes or more.
        let mut bytes = vec![0; table.len_bytes as usize];
        file.read(&mut [IoSliceMut::new(&mut bytes)], table.at)?;
        let entries: Vec<u64> = numbers(&bytes).collect();
        for (index, entry) in entries.into_iter().enumerate() {
            let at = entry & OFFSET_MASK;
            this.pieces[index] = match at {
                0 if entry & ALL_ONES != 0 => Piece::Ones,
                0 => Piece::Zeros,
                _ if !is_inside(at, 1) => {
                    return Err(Error::corrupt(format!("table entry {index} is {entry:#x}")));
                }
                _ => {
                    let mut bytes = vec![0; this.piece_bytes as usize];
                    file.read_or_zeros(&mut [IoSliceMut::new(&mut bytes)], at)?;
                    Piece::Mixed(bytes)
                }
            };
        }
        Ok(this)
    }

    /// Sets the bits of all blocks that overlap a block of `other` whose bit is set.
    ///
    /// # Errors
    ///
    /// EINVAL for bitmaps of disks with different sizes.
    pub(crate) fn merge(&mut self, other: &Self) -> Result<()> {
        if self.disk_bytes != other.disk_bytes {
            let why = format!(
                "the disks have different sizes: {} and {} bytes",
                self.disk_bytes, other.disk_bytes
            );
            return Err(Error::new(Errno::INVAL, why));
        }
        other.each_run(&mut |blocks| {
            let start = blocks.start << other.granularity_bits;
            let end = (blocks.end << other.granularity_bits).min(self.disk_bytes);
            if start < end {
                self.set(
                    (start >> self.granularity_bits)..((end - 1) >> self.granularity_bits) + 1,
                );
            }
        });
        Ok(())
    }

    /// Calls `each` with runs of blocks whose bits are set.
    fn each_run(&self, each: &mut dyn FnMut(Range<u64>)) {
        let piece_bits = self.piece_bytes * 8;
        for (piece, first) in self.pieces.iter().zip((0..).step_by(piece_bits as usize)) {
            match piece {
                Piece::Zeros => {}
                Piece::Ones => each(first..first + piece_bits),
                Piece::Mixed(bytes) => {
                    for (byte, at) in bytes.iter().zip((first..).step_by(8)) {
                        match byte {
                            0 => {}
                            0xff => each(at..at + 8),
                            _ => (0..8)
                                .filter(|bit| byte >> bit & 1 != 0)
                                .for_each(|bit| each(at + bit..at + bit + 1)),
                        }
                    }
                }
            }
        }
    }

    /// Sets the bits of a range of blocks of the disk.
    fn set(&mut self, blocks: Range<u64>) {
        let piece_bits = self.piece_bytes * 8;
        let mut at = blocks.start;
        while at < blocks.end {
            let (index, first) = ((at / piece_bits) as usize, at / piece_bits * piece_bits);
            let end = blocks.end.min(first + piece_bits);
            let Some(piece) = self.pieces.get_mut(index) else {
                return;
            };
            if end - at == piece_bits {
                *piece = Piece::Ones;
            }
            if *piece == Piece::Zeros {
                *piece = Piece::Mixed(vec![0; self.piece_bytes as usize]);
            }
            if let Piece::Mixed(bytes) = piece {
                set_bits(bytes, (at - first) as usize..(end - first) as usize);
            }
            at = end;
        }
    }

    /// Returns the pieces that need a cluster, and a function that builds the table from the
    /// offset of the first of them.
    pub(crate) fn encode(&self) -> (Vec<u8>, impl Fn(u64) -> Vec<u8> + '_) {
        let mut data = Vec::new();
        for piece in &self.pieces {
            if let Piece::Mixed(bytes) = piece {
                data.extend_from_slice(bytes);
            }
        }
        let table = |first: u64| {
            let mut next = first;
            let mut table = Vec::with_capacity(self.pieces.len() * 8);
            for piece in &self.pieces {
                let entry = match piece {
                    Piece::Zeros => 0,
                    Piece::Ones => ALL_ONES,
                    Piece::Mixed(_) => {
                        next += self.piece_bytes;
                        next - self.piece_bytes
                    }
                };
                table.extend(entry.to_be_bytes());
            }
            table
        };
        (data, table)
    }
}

/// Sets a range of bits.
fn set_bits(bytes: &mut [u8], bits: Range<usize>) {
    let mut at = bits.start;
    while at < bits.end {
        if at.is_multiple_of(8) && bits.end - at >= 8 {
            let end = bits.end / 8;
            bytes[at / 8..end].fill(0xff);
            at = end * 8;
        } else {
            bytes[at / 8] |= 1 << (at % 8);
            at += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bits(granularity_bits: u32, disk_bytes: u64) -> BitmapBits {
        BitmapBits {
            granularity_bits,
            disk_bytes,
            piece_bytes: 512,
            pieces: vec![
                Piece::Zeros;
                disk_bytes.div_ceil(1 << granularity_bits).div_ceil(4096) as usize
            ],
        }
    }

    fn blocks(bits: &BitmapBits) -> Vec<u64> {
        let mut found = Vec::new();
        bits.each_run(&mut |run| found.extend(run));
        found
    }

    #[test]
    fn merge_converts_the_granularity() {
        let disk = 40_000 << 9;
        let mut fine = bits(9, disk);
        fine.set(3..6);
        fine.set(4096..8192);
        fine.set(39_999..40_000);
        let mut coarse = bits(11, disk);
        coarse.merge(&fine).unwrap();
        let mut want = vec![0, 1];
        want.extend(1024..2048);
        want.push(9999);
        assert_eq!(blocks(&coarse), want);
        let mut back = bits(9, disk);
        back.merge(&coarse).unwrap();
        assert_eq!(fine.pieces[1], Piece::Ones);
        assert_eq!(blocks(&back).len(), want.len() * 4);
        assert!(fine.merge(&bits(9, disk + 512)).is_err());
    }

    #[test]
    fn set_bits_fills_whole_and_partial_bytes() {
        for range in [0..1, 3..21, 8..16, 7..9, 0..32] {
            let mut bytes = [0; 4];
            set_bits(&mut bytes, range.clone());
            for bit in 0..32 {
                assert_eq!(
                    bytes[bit / 8] >> (bit % 8) & 1 == 1,
                    range.contains(&bit),
                    "{range:?}"
                );
            }
        }
    }
}
