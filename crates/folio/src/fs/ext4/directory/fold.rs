//! Names without case (`casefold`): the case folding of Unicode 12.1, whose tables Linux and
//! e2fsprogs have. Linux: fs/unicode (`utf8_casefold`).
//!
//! Each character is folded (all of Unicode's full case folding), decomposed, and its combining
//! marks are ordered. Characters that are ignorable by default are left out, and marks never move
//! across them.

use crate::fs::ext4::layout::disk::inode_flags;
use caseless::Caseless;
use unicode_normalization::UnicodeNormalization;

/// Characters that later versions of Unicode added with a case, a decomposition or a combining
/// class. Version 12.1 does not know them: they stay as they are.
const LATER: [(u32, u32); 62] = [
    (0x05c8, 0x05c9),
    (0x0897, 0x089f),
    (0x08ca, 0x08d2),
    (0x0c3c, 0x0c3c),
    (0x1715, 0x1715),
    (0x1abf, 0x1af0),
    (0x1c89, 0x1c89),
    (0x1dfa, 0x1dfa),
    (0x2c2f, 0x2c2f),
    (0xa7c0, 0xa7c0),
    (0xa7c7, 0xa7c7),
    (0xa7c9, 0xa7c9),
    (0xa7cb, 0xa7cc),
    (0xa7d0, 0xa7d0),
    (0xa7d6, 0xa7d6),
    (0xa7d8, 0xa7d8),
    (0xa7da, 0xa7da),
    (0xa7dc, 0xa7dc),
    (0xa7f5, 0xa7f5),
    (0xa82c, 0xa82c),
    (0x10570, 0x1057a),
    (0x1057c, 0x1058a),
    (0x1058c, 0x10592),
    (0x10594, 0x10595),
    (0x105c9, 0x105c9),
    (0x105e4, 0x105e4),
    (0x10d50, 0x10d65),
    (0x10d69, 0x10d6d),
    (0x10eab, 0x10eac),
    (0x10ecb, 0x10ecf),
    (0x10ef0, 0x10efb),
    (0x10efd, 0x10eff),
    (0x10f82, 0x10f85),
    (0x11070, 0x11070),
    (0x11383, 0x11383),
    (0x11385, 0x11385),
    (0x1138e, 0x1138e),
    (0x11391, 0x11391),
    (0x113c5, 0x113c5),
    (0x113c7, 0x113c8),
    (0x113ce, 0x113d0),
    (0x11938, 0x11938),
    (0x1193d, 0x1193e),
    (0x11943, 0x11943),
    (0x11f41, 0x11f42),
    (0x16121, 0x16128),
    (0x1612f, 0x1612f),
    (0x16d68, 0x16d6a),
    (0x16ff0, 0x16ff1),
    (0x1d127, 0x1d128),
    (0x1d250, 0x1d252),
    (0x1d25b, 0x1d25c),
    (0x1d25f, 0x1d25f),
    (0x1d280, 0x1d281),
    (0x1e08f, 0x1e08f),
    (0x1e2ae, 0x1e2ae),
    (0x1e4ec, 0x1e4ef),
    (0x1e5ee, 0x1e5ef),
    (0x1e6e3, 0x1e6e3),
    (0x1e6e6, 0x1e6e6),
    (0x1e6ee, 0x1e6ef),
    (0x1e6f5, 0x1e6f5),
];

/// Code points that are ignorable by default (DerivedCoreProperties.txt of Unicode 12.1).
const IGNORABLE: [(u32, u32); 17] = [
    (0x00ad, 0x00ad),
    (0x034f, 0x034f),
    (0x061c, 0x061c),
    (0x115f, 0x1160),
    (0x17b4, 0x17b5),
    (0x180b, 0x180e),
    (0x200b, 0x200f),
    (0x202a, 0x202e),
    (0x2060, 0x206f),
    (0x3164, 0x3164),
    (0xfe00, 0xfe0f),
    (0xfeff, 0xfeff),
    (0xffa0, 0xffa0),
    (0xfff0, 0xfff8),
    (0x1bca0, 0x1bca3),
    (0x1d173, 0x1d17a),
    (0xe0000, 0xe0fff),
];

fn is_in(ranges: &[(u32, u32)], character: char) -> bool {
    let code = u32::from(character);
    let after = ranges.partition_point(|(first, _)| *first <= code);
    after > 0 && code <= ranges[after - 1].1
}

/// Whether a directory with the inode flags `flags` ignores case. Encrypted names are compared as
/// they are.
pub(crate) fn is_casefolded(flags: u32) -> bool {
    flags & (inode_flags::CASEFOLD | inode_flags::ENCRYPT) == inode_flags::CASEFOLD
}

/// Returns `name` without case; `None` if it is not UTF-8: such a name equals only itself.
pub(crate) fn fold(name: &[u8]) -> Option<Vec<u8>> {
    if name.is_ascii() {
        return Some(name.to_ascii_lowercase());
    }
    let name = std::str::from_utf8(name).ok()?;
    let mut folded = String::with_capacity(name.len());
    let is_special = |c: char| is_in(&IGNORABLE, c) || is_in(&LATER, c);
    let mut rest = name;
    while let Some(at) = rest.find(is_special) {
        let (before, after) = rest.split_at(at);
        folded.extend(before.chars().default_case_fold().nfd());
        let mut characters = after.chars();
        folded.extend(characters.next().filter(|c| !is_in(&IGNORABLE, *c)));
        rest = characters.as_str();
    }
    folded.extend(rest.chars().default_case_fold().nfd());
    Some(folded.into_bytes())
}

/// A name to look for in a directory.
#[derive(Debug, Clone)]
pub(crate) struct SoughtName<'a> {
    bytes: &'a [u8],
    /// Without case, in a casefolded directory.
    folded: Option<Vec<u8>>,
}

impl<'a> SoughtName<'a> {
    /// Returns `name`, to look for it in a directory that ignores case with `is_folded`.
    pub(crate) fn new(name: &'a [u8], is_folded: bool) -> Self {
        Self {
            bytes: name,
            folded: is_folded.then(|| fold(name)).flatten(),
        }
    }

    /// Returns the name as the caller wrote it.
    pub(crate) fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// Returns the bytes that indexes hash.
    pub(crate) fn hashed(&self) -> &[u8] {
        self.folded.as_deref().unwrap_or(self.bytes)
    }

    /// Whether the directory's entry `stored` has this name. Names in one directory often differ
    /// only at their ends, so the last byte is compared first.
    #[inline]
    pub(crate) fn is(&self, stored: &[u8]) -> bool {
        let name = self.bytes;
        let is_same = stored.len() == name.len() && stored.last() == name.last() && stored == name;
        is_same || (self.folded.is_some() && fold(stored) == self.folded)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use unicode_normalization::char::canonical_combining_class;

    #[test]
    fn names_equal_without_case_and_composition() {
        for (left, right) in [
            ("README", "readme"),
            ("Stra\u{df}e", "STRASSE"),
            ("\u{c5}ngstr\u{f6}m", "a\u{30a}ngstro\u{308}m"),
            ("\u{212b}", "\u{e5}"),
            ("\u{1f88}", "\u{3b1}\u{313}\u{3b9}"),
            ("\u{ac00}", "\u{1100}\u{1161}"),
            ("soft\u{ad}hyphen", "softhyphen"),
            ("a\u{301}\u{323}", "A\u{323}\u{301}"),
        ] {
            assert_eq!(
                fold(left.as_bytes()),
                fold(right.as_bytes()),
                "{left} {right}"
            );
        }
        // Marks do not move across an ignorable character.
        let apart = fold("a\u{301}\u{200b}\u{323}".as_bytes());
        assert_ne!(apart, fold("a\u{323}\u{301}".as_bytes()));
        // Known since version 13 and 14.
        for later in ["\u{a7c7}", "\u{10570}"] {
            assert_eq!(fold(later.as_bytes()).unwrap(), later.as_bytes());
        }
        assert_eq!(fold(b"\xff"), None);
        assert!(SoughtName::new(b"\xffA", true).is(b"\xffA"));
        assert!(!SoughtName::new(b"\xffA", true).is(b"\xffa"));
        assert!(!SoughtName::new(b"A", false).is(b"a"));
    }

    /// Fails if a new version of a crate knows more characters: they belong into [`LATER`].
    #[test]
    fn characters_of_later_versions_are_kept() {
        let is_special = |c: &char| {
            let text = c.to_string();
            let folded: String = text.chars().default_case_fold().nfd().collect();
            folded != text || canonical_combining_class(*c) != 0
        };
        let known = ('\0'..=char::MAX).filter(|c| !is_in(&LATER, *c));
        assert_eq!(known.filter(is_special).count(), 15_135);
    }
}
