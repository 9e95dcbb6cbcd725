//! The maps of files with holes: GNU's old form, and the PAX forms 0.0, 0.1 and 1.0.

use super::BLOCK_BYTES;
use super::header::{GNU_IS_EXTENDED_AT, GNU_REAL_SIZE_AT, GNU_SPARSE_AT, number};
use super::pax::{Records, decimal};
use folio::{Errno, Error, Result};
use std::ops::Range;

/// Most data ranges of a file: 16 MiB of them in memory.
const SEGMENTS_MAX: usize = 1 << 20;

/// The data ranges of a file, ascending; between them are holes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SparseMap {
    pub(super) segments: Vec<Range<u64>>,
    /// The size with holes.
    pub(super) size_bytes: u64,
}

impl SparseMap {
    /// Creates an empty map of a file of this size.
    pub(super) fn new(size_bytes: u64) -> Self {
        Self {
            segments: Vec::new(),
            size_bytes,
        }
    }

    /// Appends a data range.
    ///
    /// # Errors
    ///
    /// EUCLEAN: the range begins before the end of the previous one, or ends behind the file.
    pub(super) fn push(&mut self, offset: u64, len: u64) -> Result<()> {
        let previous = self.segments.last().map_or(0, |range| range.end);
        let end = offset
            .checked_add(len)
            .filter(|end| *end <= self.size_bytes);
        let Some(end) = end.filter(|_| offset >= previous) else {
            return Err(Error::corrupt("invalid map of a sparse file"));
        };
        if self.segments.len() >= SEGMENTS_MAX {
            return Err(Error::new(
                Errno::FBIG,
                format!("a sparse file has more than {SEGMENTS_MAX} data ranges"),
            ));
        }
        if len > 0 {
            self.segments.push(offset..end);
        }
        Ok(())
    }

    /// Returns the bytes of all data ranges.
    pub(super) fn data_bytes(&self) -> u64 {
        self.segments
            .iter()
            .map(|range| range.end - range.start)
            .sum()
    }

    /// Reads the segments of an old GNU header; returns whether a block of segments follows it.
    pub(super) fn old_gnu(header: &[u8; BLOCK_BYTES]) -> Result<(Self, bool)> {
        let size = &header[GNU_REAL_SIZE_AT..GNU_REAL_SIZE_AT + 12];
        let mut map = Self::new(size_of(size)?);
        map.add_old_gnu(&header[GNU_SPARSE_AT..GNU_SPARSE_AT + 4 * 24])?;
        Ok((map, header[GNU_IS_EXTENDED_AT] != 0))
    }

    /// Reads a block of 21 segments; returns whether another block follows it.
    pub(super) fn extend_old_gnu(&mut self, block: &[u8; BLOCK_BYTES]) -> Result<bool> {
        self.add_old_gnu(&block[..21 * 24])?;
        Ok(block[21 * 24] != 0)
    }

    fn add_old_gnu(&mut self, segments: &[u8]) -> Result<()> {
        for segment in segments.chunks_exact(24) {
            if segment[0] == 0 {
                break;
            }
            self.push(size_of(&segment[..12])?, size_of(&segment[12..])?)?;
        }
        Ok(())
    }

    /// Reads the map of the PAX forms 0.0 and 0.1; `None` if the records have neither.
    pub(super) fn from_records(records: &Records) -> Result<Option<Self>> {
        let Some(size_bytes) = records.number("GNU.sparse.size")? else {
            return Ok(None);
        };
        let mut map = Self::new(size_bytes);
        let damaged = || Error::corrupt("invalid map of a sparse file in a PAX header");
        if let Some(list) = records.get("GNU.sparse.map") {
            let mut numbers = list.split(|byte| *byte == b',').map(decimal);
            while let Some(offset) = numbers.next() {
                let len = numbers.next().flatten().ok_or_else(damaged)?;
                map.push(offset.ok_or_else(damaged)?, len)?;
            }
            return Ok(Some(map));
        }
        let mut offset = None;
        for (key, value) in &records.0 {
            match key.as_slice() {
                b"GNU.sparse.offset" => offset = Some(decimal(value).ok_or_else(damaged)?),
                b"GNU.sparse.numbytes" => {
                    let offset = offset.take().ok_or_else(damaged)?;
                    map.push(offset, decimal(value).ok_or_else(damaged)?)?;
                }
                _ => {}
            }
        }
        Ok(Some(map))
    }
}

fn size_of(field: &[u8]) -> Result<u64> {
    let value = number(field, "sparse map")?;
    u64::try_from(value).map_err(|_| Error::corrupt("invalid sparse map in a tar header"))
}

/// The map of the PAX form 1.0, which precedes the content: decimal numbers in lines, padded to
/// whole blocks.
pub(super) struct MapLines {
    map: SparseMap,
    line: Vec<u8>,
    /// Ranges to come; `None` before the first line.
    remaining: Option<u64>,
    offset: Option<u64>,
}

impl MapLines {
    /// Creates the parser for a file of this size.
    pub(super) fn new(size_bytes: u64) -> Self {
        Self {
            map: SparseMap::new(size_bytes),
            line: Vec::new(),
            remaining: None,
            offset: None,
        }
    }

    /// Reads a block; returns whether the map is complete.
    pub(super) fn block(&mut self, block: &[u8; BLOCK_BYTES]) -> Result<bool> {
        let damaged = || Error::corrupt("invalid map of a sparse file");
        for byte in block {
            if *byte != b'\n' {
                self.line.push(*byte);
                if self.line.len() > 20 {
                    return Err(damaged());
                }
                continue;
            }
            let value = decimal(&self.line).ok_or_else(damaged)?;
            self.line.clear();
            match (self.remaining, self.offset.take()) {
                (None, _) => self.remaining = Some(value),
                (Some(_), None) => self.offset = Some(value),
                (Some(remaining), Some(offset)) => {
                    self.map.push(offset, value)?;
                    self.remaining = Some(remaining - 1);
                }
            }
            if self.remaining == Some(0) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Returns the map.
    pub(super) fn into_map(self) -> SparseMap {
        self.map
    }

    /// Returns the bytes of a map as [`MapLines::block`] reads it, padded to whole blocks. GNU tar
    /// finds the size of a file that ends in a hole by an empty range at its end.
    pub(super) fn format(segments: &[Range<u64>], size_bytes: u64) -> Vec<u8> {
        let ends_in_hole = segments.last().is_none_or(|range| range.end < size_bytes);
        let end = ends_in_hole.then_some(size_bytes..size_bytes);
        let count = segments.len() + usize::from(ends_in_hole);
        let mut bytes = format!("{count}\n").into_bytes();
        for range in segments.iter().chain(&end) {
            bytes.extend_from_slice(
                format!("{}\n{}\n", range.start, range.end - range.start).as_bytes(),
            );
        }
        bytes.resize(bytes.len().next_multiple_of(BLOCK_BYTES), 0);
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn map_must_ascend_within_the_file() {
        let mut map = SparseMap::new(100);
        map.push(0, 10).unwrap();
        map.push(10, 0).unwrap();
        map.push(50, 50).unwrap();
        assert_eq!((map.segments.len(), map.data_bytes()), (2, 60));
        assert!(map.push(60, 1).is_err() && map.push(100, 1).is_err());
        assert!(map.push(u64::MAX, 2).is_err());
    }

    #[test]
    fn map_lines_span_blocks() {
        let segments: Vec<_> = (0..200).map(|at| at * 1000..at * 1000 + 7).collect();
        let bytes = MapLines::format(&segments, 200_000);
        let mut lines = MapLines::new(200_000);
        let blocks: Vec<_> = bytes.chunks_exact(BLOCK_BYTES).collect();
        for (at, block) in blocks.iter().enumerate() {
            let is_complete = lines.block((*block).try_into().unwrap()).unwrap();
            assert_eq!(is_complete, at + 1 == blocks.len());
        }
        assert_eq!(lines.into_map().segments, segments);
    }
}
