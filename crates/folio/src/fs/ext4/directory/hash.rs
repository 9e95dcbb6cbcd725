//! The hash of a name, which orders an indexed directory. Linux: fs/ext4/hash.c.
//!
//! Three families, each with the bytes of the name as signed or as unsigned numbers: file systems
//! made on x86 hash signed bytes, those made on ARM unsigned ones. The superblock records it
//! (`s_flags`).

use crate::base::{Error, Result};

/// The family of hash that an index uses (`dx_root_info.hash_version`, `s_def_hash_version`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HashVersion {
    /// The first one, from 2002 (0).
    Legacy,
    /// Half of the MD4 transform; today's default (1).
    HalfMd4,
    /// The Tiny Encryption Algorithm (2).
    Tea,
}

impl HashVersion {
    /// Returns the version with this number on disk. The "unsigned" numbers 3 to 5 are never in an
    /// index, but some tools write them into the superblock's default.
    ///
    /// # Errors
    /// EOPNOTSUPP for siphash; EUCLEAN for an unknown number.
    pub(crate) fn from_disk(number: u8) -> Result<Self> {
        match number {
            0 | 3 => Ok(Self::Legacy),
            1 | 4 => Ok(Self::HalfMd4),
            2 | 5 => Ok(Self::Tea),
            6 => Err(Error::unsupported(
                "directory index by siphash (casefold with encrypt)",
            )),
            _ => Err(Error::corrupt(format!(
                "unknown directory hash version {number}"
            ))),
        }
    }

    /// Returns the number in an index.
    pub(crate) fn to_disk(self) -> u8 {
        match self {
            Self::Legacy => 0,
            Self::HalfMd4 => 1,
            Self::Tea => 2,
        }
    }
}

/// The largest hash of a name. Linux's readdir takes one more as the end of the directory.
const HASH_MAX: u32 = 0xffff_fffc;

/// Returns the hash of `name`. The lowest bit is always clear: in an index it marks a leaf that
/// continues its predecessor.
pub(crate) fn hash(name: &[u8], version: HashVersion, is_unsigned: bool, seed: &[u32; 4]) -> u32 {
    let value = match version {
        HashVersion::Legacy => legacy(name, is_unsigned),
        HashVersion::HalfMd4 => {
            let mut state = initial_state(seed);
            for chunk in chunks(name, 32) {
                half_md4(&mut state, &words::<8>(chunk, is_unsigned));
            }
            state[1]
        }
        HashVersion::Tea => {
            let mut state = initial_state(seed);
            for chunk in chunks(name, 16) {
                tea(&mut state, &words::<4>(chunk, is_unsigned));
            }
            state[0]
        }
    };
    (value & !1).min(HASH_MAX)
}

/// Returns the tail of the name from each multiple of `step` on. The padding depends on the whole
/// tail, not on the step.
fn chunks(name: &[u8], step: usize) -> impl Iterator<Item = &[u8]> {
    (0..name.len()).step_by(step).map(|start| &name[start..])
}

/// MD4's initial state, unless the file system has a seed of its own.
fn initial_state(seed: &[u32; 4]) -> [u32; 4] {
    if *seed == [0; 4] {
        [0x6745_2301, 0xefcd_ab89, 0x98ba_dcfe, 0x1032_5476]
    } else {
        *seed
    }
}

/// Returns one byte of a name as a number, sign-extended unless the file system hashes unsigned
/// bytes.
fn number(byte: u8, is_unsigned: bool) -> u32 {
    if is_unsigned {
        u32::from(byte)
    } else {
        byte as i8 as i32 as u32
    }
}

/// Returns the first `4 * N` bytes of `tail` as big-endian words, padded with the length of the
/// whole tail.
fn words<const N: usize>(tail: &[u8], is_unsigned: bool) -> [u32; N] {
    let pad = (tail.len() as u32 & 0xff) * 0x0101_0101;
    // The kernel forms the pad from the int `len | len << 8`; names are at most 255 bytes, so the
    // mask loses nothing.
    let mut out = [pad; N];
    for (word, bytes) in out.iter_mut().zip(tail.chunks(4)) {
        for &byte in bytes {
            *word = (*word << 8).wrapping_add(number(byte, is_unsigned));
        }
    }
    out
}

fn legacy(name: &[u8], is_unsigned: bool) -> u32 {
    let (mut current, mut previous) = (0x12a3_fe2d_u32, 0x37ab_e8f9_u32);
    for &byte in name {
        let mixed = number(byte, is_unsigned).wrapping_mul(7_152_373);
        let mut next = previous.wrapping_add(current ^ mixed);
        if next & 0x8000_0000 != 0 {
            next = next.wrapping_sub(0x7fff_ffff);
        }
        previous = current;
        current = next;
    }
    current << 1
}

/// Runs the three rounds of MD4, each over eight words instead of sixteen (RFC 1320 has the
/// functions and constants).
fn half_md4(state: &mut [u32; 4], input: &[u32; 8]) {
    type Mix = fn(u32, u32, u32) -> u32;
    const ROUNDS: [(Mix, u32, [usize; 8], [u32; 4]); 3] = [
        (
            |x, y, z| z ^ (x & (y ^ z)),
            0,
            [0, 1, 2, 3, 4, 5, 6, 7],
            [3, 7, 11, 19],
        ),
        (
            |x, y, z| (x & y).wrapping_add((x ^ y) & z),
            0x5a82_7999,
            [1, 3, 5, 7, 0, 2, 4, 6],
            [3, 5, 9, 13],
        ),
        (
            |x, y, z| x ^ y ^ z,
            0x6ed9_eba1,
            [3, 7, 2, 6, 1, 5, 0, 4],
            [3, 9, 11, 15],
        ),
    ];
    let [mut a, mut b, mut c, mut d] = *state;
    for (mix, constant, order, shifts) in ROUNDS {
        for (step, index) in order.into_iter().enumerate() {
            let sum = a
                .wrapping_add(mix(b, c, d))
                .wrapping_add(input[index])
                .wrapping_add(constant);
            (a, b, c, d) = (d, sum.rotate_left(shifts[step % 4]), b, c);
        }
    }
    for (word, add) in state.iter_mut().zip([a, b, c, d]) {
        *word = word.wrapping_add(add);
    }
}

/// Runs sixteen cycles of TEA (Wheeler and Needham, 1994) with the name as key.
fn tea(state: &mut [u32; 4], key: &[u32; 4]) {
    let (mut low, mut high, mut sum) = (state[0], state[1], 0_u32);
    for _ in 0..16 {
        sum = sum.wrapping_add(0x9e37_79b9);
        low = low.wrapping_add(
            (high << 4).wrapping_add(key[0])
                ^ high.wrapping_add(sum)
                ^ (high >> 5).wrapping_add(key[1]),
        );
        high = high.wrapping_add(
            (low << 4).wrapping_add(key[2])
                ^ low.wrapping_add(sum)
                ^ (low >> 5).wrapping_add(key[3]),
        );
    }
    state[0] = state[0].wrapping_add(low);
    state[1] = state[1].wrapping_add(high);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 01234567-89ab-cdef-0123-456789abcdef, as little-endian words of the superblock.
    const SEED: [u32; 4] = [0x6745_2301, 0xefcd_ab89, 0x6745_2301, 0xefcd_ab89];

    /// Hashes without a seed and with [`SEED`], from
    /// `debugfs -R "dx_hash -h VERSION [-s SEED] NAME"`.
    fn check(version: HashVersion, is_unsigned: bool, name: &str, plain: u32, seeded: u32) {
        assert_eq!(
            hash(name.as_bytes(), version, is_unsigned, &[0; 4]),
            plain,
            "{version:?} {name}"
        );
        assert_eq!(
            hash(name.as_bytes(), version, is_unsigned, &SEED),
            seeded,
            "{version:?} {name}, seeded"
        );
    }

    #[test]
    fn legacy_agrees_with_debugfs() {
        use HashVersion::Legacy;
        check(Legacy, false, "a", 0xe74b_53e2, 0xe74b_53e2);
        check(Legacy, false, "file-0001.txt", 0xd9b2_df9c, 0xd9b2_df9c);
        check(Legacy, false, &"a".repeat(72), 0xf9d9_0cc4, 0xf9d9_0cc4);
        check(
            Legacy,
            false,
            "na\u{ef}ve-Gr\u{f6}\u{df}e",
            0x0275_3fd8,
            0x0275_3fd8,
        );
        check(
            Legacy,
            true,
            "na\u{ef}ve-Gr\u{f6}\u{df}e",
            0x40b7_e6b8,
            0x40b7_e6b8,
        );
    }

    #[test]
    fn half_md4_agrees_with_debugfs() {
        use HashVersion::HalfMd4;
        check(HalfMd4, false, "a", 0xd5fa_7d7a, 0x35dc_0cc4);
        check(HalfMd4, false, "foo", 0x74c6_57ac, 0x0317_e9c8);
        check(HalfMd4, false, &"a".repeat(72), 0xe7d7_f214, 0xfb15_e146);
        check(
            HalfMd4,
            false,
            "exactly-thirty-two-bytes-long-ab",
            0xeb66_e27e,
            0x5d8e_884e,
        );
        check(
            HalfMd4,
            false,
            "na\u{ef}ve-Gr\u{f6}\u{df}e",
            0x9d73_5570,
            0x1423_4fcc,
        );
        check(
            HalfMd4,
            true,
            "na\u{ef}ve-Gr\u{f6}\u{df}e",
            0x55a1_3bc2,
            0xb1c6_ead2,
        );
    }

    #[test]
    fn tea_agrees_with_debugfs() {
        use HashVersion::Tea;
        // The seed's first two words are those of MD4, and TEA reads only these.
        check(Tea, false, "a", 0x6d0e_a4c0, 0x6d0e_a4c0);
        check(Tea, false, "foo", 0x901b_3376, 0x901b_3376);
        check(Tea, false, &"a".repeat(72), 0xcfac_5c42, 0xcfac_5c42);
        check(
            Tea,
            false,
            "na\u{ef}ve-Gr\u{f6}\u{df}e",
            0xc130_bc3e,
            0xc130_bc3e,
        );
        check(
            Tea,
            true,
            "na\u{ef}ve-Gr\u{f6}\u{df}e",
            0x0694_f28c,
            0x0694_f28c,
        );
        // fedcba98-89ab-cdef-0123-456789abcdef
        let seed = [0x98ba_dcfe, 0xefcd_ab89, 0x6745_2301, 0xefcd_ab89];
        assert_eq!(hash(b"foo", Tea, false, &seed), 0x91da_c278);
        assert_eq!(
            hash(
                "na\u{ef}ve-Gr\u{f6}\u{df}e-0123456789".as_bytes(),
                Tea,
                false,
                &seed
            ),
            0x1cde_21d6
        );
    }

    #[test]
    fn siphash_error_names_the_hash() {
        let error = HashVersion::from_disk(6).unwrap_err();
        assert_eq!(error.kind(), crate::base::ErrorKind::Unsupported);
        assert!(error.to_string().contains("siphash"));
        assert_eq!(
            HashVersion::from_disk(9).unwrap_err().kind(),
            crate::base::ErrorKind::Corrupt
        );
    }
}
