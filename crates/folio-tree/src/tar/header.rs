//! The 512 bytes of a tar header.

use super::BLOCK_BYTES;
use folio::{Errno, Error, Result};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

/// A header as its bytes. The fields after `version` differ in old GNU archives, which keep times
/// and a sparse map where ustar has `prefix`.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Clone)]
#[repr(C)]
pub(super) struct RawHeader {
    pub(super) name: [u8; 100],
    pub(super) mode: [u8; 8],
    pub(super) uid: [u8; 8],
    pub(super) gid: [u8; 8],
    pub(super) size: [u8; 12],
    pub(super) mtime: [u8; 12],
    pub(super) checksum: [u8; 8],
    pub(super) type_flag: u8,
    pub(super) link_name: [u8; 100],
    pub(super) magic: [u8; 6],
    pub(super) version: [u8; 2],
    pub(super) user_name: [u8; 32],
    pub(super) group_name: [u8; 32],
    pub(super) device_major: [u8; 8],
    pub(super) device_minor: [u8; 8],
    pub(super) prefix: [u8; 155],
    pub(super) padding: [u8; 12],
}

const _: () = assert!(size_of::<RawHeader>() == BLOCK_BYTES);

/// Where an old GNU header keeps its four segments of a sparse map, in the block.
pub(super) const GNU_SPARSE_AT: usize = 386;
/// The flag "another block of segments follows" of an old GNU header.
pub(super) const GNU_IS_EXTENDED_AT: usize = 482;
/// The size with holes of an old GNU header.
pub(super) const GNU_REAL_SIZE_AT: usize = 483;

/// The dialect of a header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Dialect {
    /// Before POSIX: neither prefix nor owner names.
    V7,
    /// POSIX.1-1988 and PAX.
    Ustar,
    /// GNU before PAX.
    Gnu,
}

impl RawHeader {
    /// Creates an empty ustar header.
    pub(super) fn ustar(type_flag: u8) -> Self {
        let mut header = Self::new_zeroed();
        header.type_flag = type_flag;
        header.magic = *b"ustar\0";
        header.version = *b"00";
        header
    }

    /// Returns the dialect.
    pub(super) fn dialect(&self) -> Dialect {
        match (&self.magic, &self.version) {
            (b"ustar\0", _) => Dialect::Ustar,
            (b"ustar ", b" \0") => Dialect::Gnu,
            _ => Dialect::V7,
        }
    }

    /// Fails unless the checksum agrees. Old programs added signed bytes.
    pub(super) fn check(&self) -> Result<()> {
        let stored = number(&self.checksum, "checksum").unwrap_or(-1);
        let (mut unsigned, mut signed) = (0_i64, 0_i64);
        for (at, byte) in self.as_bytes().iter().enumerate() {
            let byte = if (148..156).contains(&at) {
                b' '
            } else {
                *byte
            };
            unsigned += i64::from(byte);
            signed += i64::from(byte.cast_signed());
        }
        if stored == unsigned || stored == signed {
            Ok(())
        } else {
            Err(Error::corrupt("bad checksum of a tar header"))
        }
    }

    /// Stores the checksum.
    pub(super) fn seal(&mut self) {
        self.checksum = [b' '; 8];
        let sum: u32 = self.as_bytes().iter().map(|byte| u32::from(*byte)).sum();
        let digits = format!("{sum:06o}\0 ");
        self.checksum.copy_from_slice(digits.as_bytes());
    }

    /// Returns the name with its prefix.
    pub(super) fn path(&self) -> Vec<u8> {
        let name = text(&self.name);
        let prefix = text(&self.prefix);
        if self.dialect() != Dialect::Ustar || prefix.is_empty() {
            return name.to_vec();
        }
        [prefix, b"/", name].concat()
    }
}

/// Returns the bytes before the first NUL.
pub(super) fn text(field: &[u8]) -> &[u8] {
    let end = field.iter().position(|byte| *byte == 0);
    &field[..end.unwrap_or(field.len())]
}

/// Parses a number: octal digits, or binary with the highest bit set (GNU's base 256).
///
/// # Errors
///
/// EUCLEAN: neither form, or beyond `i64`.
pub(super) fn number(field: &[u8], name: &'static str) -> Result<i64> {
    let damaged = || Error::corrupt(format!("invalid {name} in a tar header"));
    match field.first() {
        Some(0x80) => field[1..]
            .iter()
            .try_fold(0_i64, |value, byte| {
                value.checked_mul(256)?.checked_add(i64::from(*byte))
            })
            .ok_or_else(damaged),
        Some(0xff) => field[1..]
            .iter()
            .try_fold(-1_i64, |value, byte| {
                value.checked_mul(256)?.checked_add(i64::from(*byte))
            })
            .ok_or_else(damaged),
        _ => {
            let digits = field.trim_ascii_start();
            let end = digits.iter().position(|byte| matches!(byte, 0 | b' '));
            digits[..end.unwrap_or(digits.len())]
                .iter()
                .try_fold(0_i64, |value, byte| match byte {
                    b'0'..=b'7' => value.checked_mul(8)?.checked_add(i64::from(byte - b'0')),
                    _ => None,
                })
                .ok_or_else(damaged)
        }
    }
}

/// Writes `value` as octal digits and a NUL; returns whether it fits.
pub(super) fn set_number(field: &mut [u8], value: u64) -> bool {
    let width = field.len() - 1;
    let digits = format!("{value:0width$o}");
    if digits.len() > width {
        return false;
    }
    field[..width].copy_from_slice(digits.as_bytes());
    field[width] = 0;
    true
}

/// Returns an id, or the error of one beyond 32 bits.
pub(super) fn id(value: i64, name: &'static str) -> Result<u32> {
    u32::try_from(value).map_err(|_| Error::new(Errno::OVERFLOW, format!("invalid {name} {value}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn number_is_octal_or_binary() {
        assert_eq!(number(b"0000644\0", "mode").unwrap(), 0o644);
        assert_eq!(number(b"   644 \0", "mode").unwrap(), 0o644);
        assert_eq!(number(b"\0\0\0\0\0\0\0\0", "mode").unwrap(), 0);
        assert_eq!(
            number(&[0x80, 0, 0, 1, 0, 0, 0, 0], "uid").unwrap(),
            1 << 32
        );
        assert_eq!(number(&[0xff; 12], "mtime").unwrap(), -1);
        for bad in [
            &b"12345678"[..],
            b"-1\0",
            &[0x80, 255, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
        ] {
            assert!(number(bad, "size").is_err(), "{bad:?}");
        }
    }

    #[test]
    fn sealed_header_passes_its_check() {
        let mut header = RawHeader::ustar(b'0');
        header.name[..3].copy_from_slice(b"abc");
        assert!(set_number(&mut header.size, 0o77777777777));
        assert!(!set_number(&mut header.size, 0o100000000000));
        header.seal();
        header.check().unwrap();
        header.name[0] = b'x';
        assert!(header.check().is_err());
    }
}
