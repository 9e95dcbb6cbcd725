//! Names: short ones of 8 and 3 characters, long ones in UTF-16 over several slots, and which of
//! them are the same. Linux: fs/fat/namei_vfat.c.

use super::layout::{ENTRY_BYTES, u16_at};
use crate::base::{Errno, Error, Result};

/// A short name as a directory entry has it, padded with spaces.
pub(crate) type ShortName = [u8; 11];

/// Longest name, in units of UTF-16.
const UNITS_MAX: usize = 255;
/// Units in one slot, and their offsets.
const SLOT_UNITS: usize = 13;
const UNIT_OFFSETS: [usize; SLOT_UNITS] = [1, 3, 5, 7, 9, 14, 16, 18, 20, 22, 24, 28, 30];
/// Attributes of a slot with a part of a long name.
pub(crate) const LONG_ATTRIBUTES: u8 = 0x0f;
/// Set in the number of the last slot of a long name, which is stored first.
const LAST_SLOT: u8 = 0x40;
/// Bits of byte 12 of an entry: base or extension are in lower case (Windows NT).
const LOWER_BASE: u8 = 0x08;
const LOWER_EXTENSION: u8 = 0x10;
/// The first byte of a short name that begins with 0xe5.
const KANJI: u8 = 0x05;
const DELETED: u8 = 0xe5;
/// Most tries of a number in a short name.
const NUMBER_MAX: u32 = 999_999;

/// The characters of code page 437 from 0x80 on, the default of Linux.
const CODE_PAGE: &str = "\u{c7}\u{fc}\u{e9}\u{e2}\u{e4}\u{e0}\u{e5}\u{e7}\u{ea}\u{eb}\u{e8}\u{ef}\
    \u{ee}\u{ec}\u{c4}\u{c5}\u{c9}\u{e6}\u{c6}\u{f4}\u{f6}\u{f2}\u{fb}\u{f9}\u{ff}\u{d6}\u{dc}\
    \u{a2}\u{a3}\u{a5}\u{20a7}\u{192}\u{e1}\u{ed}\u{f3}\u{fa}\u{f1}\u{d1}\u{aa}\u{ba}\u{bf}\
    \u{2310}\u{ac}\u{bd}\u{bc}\u{a1}\u{ab}\u{bb}\u{2591}\u{2592}\u{2593}\u{2502}\u{2524}\u{2561}\
    \u{2562}\u{2556}\u{2555}\u{2563}\u{2551}\u{2557}\u{255d}\u{255c}\u{255b}\u{2510}\u{2514}\
    \u{2534}\u{252c}\u{251c}\u{2500}\u{253c}\u{255e}\u{255f}\u{255a}\u{2554}\u{2569}\u{2566}\
    \u{2560}\u{2550}\u{256c}\u{2567}\u{2568}\u{2564}\u{2565}\u{2559}\u{2558}\u{2552}\u{2553}\
    \u{256b}\u{256a}\u{2518}\u{250c}\u{2588}\u{2584}\u{258c}\u{2590}\u{2580}\u{3b1}\u{df}\u{393}\
    \u{3c0}\u{3a3}\u{3c3}\u{b5}\u{3c4}\u{3a6}\u{398}\u{3a9}\u{3b4}\u{221e}\u{3c6}\u{3b5}\u{2229}\
    \u{2261}\u{b1}\u{2265}\u{2264}\u{2320}\u{2321}\u{f7}\u{2248}\u{b0}\u{2219}\u{b7}\u{221a}\
    \u{207f}\u{b2}\u{25a0}\u{a0}";

/// Returns the form of a name that all names have which are the same: in upper case, without dots
/// at the end. A character whose upper case is several characters stays.
pub(crate) fn fold(name: &str) -> String {
    let upper = |letter: char| {
        let mut upper = letter.to_uppercase();
        match (upper.next(), upper.next()) {
            (Some(upper), None) => upper,
            _ => letter,
        }
    };
    name.trim_end_matches('.').chars().map(upper).collect()
}

/// Checks a new name, and returns it as it is stored: without dots at the end.
///
/// # Errors
///
/// EINVAL if FAT cannot store it, ENAMETOOLONG.
pub(crate) fn checked(name: &[u8]) -> Result<&str> {
    let invalid = |what: &'static str| Error::new(Errno::INVAL, what);
    let name = std::str::from_utf8(name)
        .map_err(|_| invalid("FAT cannot store a name that is not UTF-8"))?
        .trim_end_matches('.');
    if name.is_empty() || name.ends_with(' ') {
        return Err(invalid(
            "FAT cannot store a name that ends in a space or dot",
        ));
    }
    if name
        .chars()
        .any(|letter| letter < ' ' || "\"*/:<>?\\|".contains(letter))
    {
        return Err(invalid("FAT cannot store a name with these characters"));
    }
    if name.encode_utf16().count() > UNITS_MAX {
        return Err(Errno::NAMETOOLONG.into());
    }
    Ok(name)
}

/// Returns the characters of a short name. `case` is byte 12 of the entry.
pub(crate) fn decode_short(short: &ShortName, case: u8) -> String {
    let letter = |(at, byte): (usize, u8)| match byte {
        KANJI if at == 0 => code_page(DELETED),
        0..0x20 | b'/' => '_',
        byte => code_page(byte),
    };
    let part = |bytes: &[u8], is_lower: bool| {
        let text: String = bytes.iter().copied().enumerate().map(letter).collect();
        let text = text.trim_end_matches(' ');
        if is_lower {
            text.to_lowercase()
        } else {
            text.to_owned()
        }
    };
    let mut name = part(&short[..8], case & LOWER_BASE != 0);
    let extension = part(&short[8..], case & LOWER_EXTENSION != 0);
    if !extension.is_empty() {
        name.push('.');
        name.push_str(&extension);
    }
    name
}

fn code_page(byte: u8) -> char {
    match byte.checked_sub(0x80) {
        None => char::from(byte),
        Some(at) => CODE_PAGE.chars().nth(at.into()).unwrap_or('_'),
    }
}

/// Returns the short name to begin with, and whether `name` is that name but for case.
pub(crate) fn short_basis(name: &str) -> (ShortName, bool) {
    let stem = name.trim_start_matches('.');
    let (base, extension) = stem.rsplit_once('.').unwrap_or((stem, ""));
    let mut is_exact = stem.len() == name.len();
    let mut short = [b' '; 11];
    for (text, range) in [(base, 0..8), (extension, 8..11)] {
        let field = &mut short[range];
        let mut used = 0;
        for letter in text.chars() {
            let byte = match letter {
                ' ' | '.' => None,
                'a'..='z' | 'A'..='Z' | '0'..='9' => Some(letter.to_ascii_uppercase() as u8),
                _ if "!#$%&'()-@^_`{}~".contains(letter) => Some(letter as u8),
                _ => Some(b'_'),
            };
            is_exact &= byte.is_some_and(|byte| {
                used < field.len() && char::from(byte) == letter.to_ascii_uppercase()
            });
            if let Some(byte) = byte
                && used < field.len()
            {
                field[used] = byte;
                used += 1;
            }
        }
    }
    if short[0] == b' ' {
        (short[0], is_exact) = (b'_', false);
    }
    (short, is_exact)
}

/// Returns the first short name like `basis` with a number that is not taken, from number `from`
/// on, and that number.
pub(crate) fn numbered(
    basis: &ShortName,
    from: u32,
    is_taken: impl Fn(&ShortName) -> bool,
) -> Option<(ShortName, u32)> {
    let base_len = basis[..8].iter().take_while(|byte| **byte != b' ').count();
    (from..=NUMBER_MAX).find_map(|number| {
        let tail = format!("~{number}");
        let mut short = *basis;
        let at = base_len.min(8 - tail.len());
        short[at..at + tail.len()].copy_from_slice(tail.as_bytes());
        short[at + tail.len()..8].fill(b' ');
        (!is_taken(&short)).then_some((short, number))
    })
}

fn checksum(short: &ShortName) -> u8 {
    short
        .iter()
        .fold(0u8, |sum, byte| sum.rotate_right(1).wrapping_add(*byte))
}

/// Returns the slots of a long name, in the order of the directory.
pub(crate) fn long_slots(name: &str, short: &ShortName) -> Vec<[u8; ENTRY_BYTES]> {
    let units: Vec<u16> = name.encode_utf16().collect();
    let mut slots = Vec::new();
    for (part, number) in units.chunks(SLOT_UNITS).zip(1u8..) {
        let mut slot = [0xff; ENTRY_BYTES];
        slot[0] = number;
        slot[11] = LONG_ATTRIBUTES;
        slot[12] = 0;
        slot[13] = checksum(short);
        slot[26..28].fill(0);
        // A part that is not full ends with a zero.
        for (at, unit) in UNIT_OFFSETS.iter().zip(part.iter().chain([&0])) {
            slot[*at..at + 2].copy_from_slice(&unit.to_le_bytes());
        }
        slots.push(slot);
    }
    if let Some(last) = slots.last_mut() {
        last[0] |= LAST_SLOT;
    }
    slots.reverse();
    slots
}

/// A long name whose slots are being read.
#[derive(Default)]
pub(crate) struct LongName {
    /// Units of the slots so far, the last slot first.
    parts: Vec<[u16; SLOT_UNITS]>,
    /// Number of the next slot.
    expected: u8,
    checksum: u8,
}

impl LongName {
    /// Returns the number of slots that were read.
    pub(crate) fn slot_count(&self) -> u32 {
        self.parts.len() as u32
    }

    /// Adds the next slot; one that does not continue the name begins anew.
    pub(crate) fn push(&mut self, slot: &[u8; ENTRY_BYTES]) {
        let is_last = slot[0] & LAST_SLOT != 0;
        let number = slot[0] & !LAST_SLOT;
        if is_last {
            *self = Self {
                parts: Vec::new(),
                expected: number,
                checksum: slot[13],
            };
        }
        let is_valid =
            (1..=20).contains(&number) && number == self.expected && slot[13] == self.checksum;
        if is_valid {
            self.parts.push(UNIT_OFFSETS.map(|at| u16_at(slot, at)));
            self.expected -= 1;
        } else {
            *self = Self::default();
        }
    }

    /// Returns the name, if it is complete, belongs to `short` and can be a name in a path.
    pub(crate) fn finish(&self, short: &ShortName) -> Option<String> {
        if self.parts.is_empty() || self.expected != 0 || self.checksum != checksum(short) {
            return None;
        }
        let units = self.parts.iter().rev().flatten().copied();
        let units: Vec<u16> = units.take_while(|unit| *unit != 0).collect();
        let name = String::from_utf16_lossy(&units);
        let is_valid = units.len() <= UNITS_MAX
            && !name.trim_end_matches('.').is_empty()
            && !name.contains('/');
        is_valid.then_some(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_names_follow_long_ones() {
        for (name, short, is_exact) in [
            ("README.TXT", b"README  TXT", true),
            ("readme.txt", b"README  TXT", true),
            ("a long name.html", b"ALONGNAMHTM", false),
            (".bashrc", b"BASHRC     ", false),
            ("a.tar.gz", b"ATAR    GZ ", false),
            ("a+b", b"A_B        ", false),
            (" .x", b"_       X  ", false),
        ] {
            assert_eq!(short_basis(name), (*short, is_exact), "{name}");
        }
    }

    #[test]
    fn number_shortens_the_name() {
        let basis = b"ALONGNAMHTM";
        let found = numbered(basis, 1, |short| short[7] < b'3' && short[6] == b'~');
        assert_eq!(found, Some((*b"ALONGN~3HTM", 3)));
        assert_eq!(numbered(basis, 10, |_| false), Some((*b"ALONG~10HTM", 10)));
        assert_eq!(
            numbered(b"A       X  ", 1, |_| false),
            Some((*b"A~1     X  ", 1))
        );
    }

    #[test]
    fn long_name_returns_from_its_slots() {
        for len in [1, 12, 13, 14, 26, 255] {
            let name: String = ('a'..='z').cycle().take(len).collect();
            let mut read = LongName::default();
            for slot in long_slots(&name, b"A~1        ") {
                read.push(&slot);
            }
            assert_eq!(read.finish(b"A~1        ").as_ref(), Some(&name));
            assert_eq!(read.finish(b"B~1        "), None);
        }
        assert_eq!(CODE_PAGE.chars().count(), 128);
    }

    #[test]
    fn names_equal_but_for_case_fold_to_one() {
        assert_eq!(fold("\u{e4}b.C."), fold("\u{c4}B.c"));
        assert_ne!(fold("\u{df}"), fold("SS"));
    }
}
