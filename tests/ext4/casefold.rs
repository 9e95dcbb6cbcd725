//! Casefolded directories: names are equal without case, and indexed by their folded form.

use super::{debugfs, write};
use crate::names::{names, touch, with_image};
use crate::support::random::Random;
use crate::support::requires;
use crate::support::tools::{fsck, mke2fs};
use folio::base::Errno;
use folio::syscall::Process;
use std::collections::BTreeMap;
use std::path::Path;
use tempfile::TempDir;

/// EXT4_CASEFOLD_FL with EXT4_EXTENTS_FL or EXT4_INLINE_DATA_FL, of an empty directory.
const CASEFOLD: u32 = 0x4008_0000;
const CASEFOLD_INLINE: u32 = 0x5000_0000;

/// Spellings of one name each, by Unicode 12.1.
const SPELLINGS: [[&str; 3]; 8] = [
    ["readme", "README", "ReadMe"],
    ["Stra\u{df}e", "STRASSE", "strasse"],
    [
        "\u{c5}ngstr\u{f6}m",
        "a\u{30a}NGSTRO\u{308}M",
        "\u{212b}ngstr\u{d6}m",
    ],
    ["\u{3a3}\u{3b9}", "\u{3c3}\u{399}", "\u{3c2}\u{3b9}"],
    ["\u{ac00}", "\u{1100}\u{1161}", "\u{1100}\u{ad}\u{1161}"],
    ["\u{130}x", "i\u{307}X", "I\u{307}x"],
    ["a\u{301}\u{323}", "A\u{323}\u{301}", "\u{e1}\u{323}"],
    ["plain", "PLAIN", "pl\u{200b}ain"],
];

/// Makes an image whose directory `/d` is casefolded.
fn prepared(image: &Path, options: &[&str]) {
    mke2fs(image, "32M", &[&["-O", "casefold"], options].concat());
    with_image(image, false, |process| process.mkdir("/i/d", 0o755)).unwrap();
    let is_inline = options.iter().any(|words| words.contains("inline_data"));
    let flags = if is_inline { CASEFOLD_INLINE } else { CASEFOLD };
    debugfs(image, &format!("set_inode_field /d flags {flags}"));
    fsck(image);
}

#[test]
fn name_in_any_spelling_is_one_file() {
    requires!(tool("mke2fs"), tool("e2fsck"), tool("debugfs"));
    let scratch = TempDir::new().unwrap();
    let image = scratch.path().join("disk.img");
    prepared(&image, &[]);
    with_image(&image, false, |process| {
        for [first, second, third] in SPELLINGS {
            let path = |name: &str| format!("/i/d/{name}");
            // A name that is known to be missing is missing in all spellings.
            let missing = process.stat(path(second)).unwrap_err();
            assert_eq!(missing.errno(), Errno::NOENT);
            touch(process, &path(first));
            let number = process.stat(path(first)).unwrap().number;
            assert_eq!(process.stat(path(second)).unwrap().number, number);
            let again = process.mkdir(path(third), 0o755).unwrap_err();
            assert_eq!(again.errno(), Errno::EXIST, "{third}");
            // As in Linux, the name stays as it is.
            process.rename(path(first), path(second)).unwrap();
            assert!(names(process, "/i/d").contains(first.as_bytes()));
            process.link(path(third), "/i/linked").unwrap();
            process.rename("/i/linked", path(third)).unwrap();
            process.unlink("/i/linked").unwrap();
            process.unlink(path(third)).unwrap();
            for name in [first, second, third] {
                let missing = process.stat(path(name)).unwrap_err();
                assert_eq!(missing.errno(), Errno::NOENT, "{name}");
            }
        }
        // Directories inherit the flag, files elsewhere do not.
        process.mkdir("/i/d/sub", 0o755).unwrap();
        touch(process, "/i/d/SUB/File");
        process.stat("/i/D").unwrap_err();
        process.stat("/i/d/Sub/fILE").unwrap();
    });
    fsck(&image);
}

#[test]
fn names_that_are_not_utf8_equal_themselves() {
    requires!(tool("mke2fs"), tool("e2fsck"), tool("debugfs"));
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;
    let scratch = TempDir::new().unwrap();
    let image = scratch.path().join("disk.img");
    let path = |last: u8| [b"/i/d/\xff\xfe".as_slice(), &[last]].concat();
    for (options, is_strict) in [(vec![], false), (vec!["-E", "encoding_flags=strict"], true)] {
        prepared(&image, &options);
        with_image(&image, false, |process| {
            let make = |last| process.mkdir(OsStr::from_bytes(&path(last)), 0o755);
            if is_strict {
                assert_eq!(make(b'a').unwrap_err().errno(), Errno::INVAL);
            } else {
                make(b'a').unwrap();
                make(b'A').unwrap();
                assert_eq!(make(b'a').unwrap_err().errno(), Errno::EXIST);
            }
        });
        fsck(&image);
        std::fs::remove_file(&image).unwrap();
    }
}

/// Names with each character that has a case, and more; e2fsck has tables of its own.
#[test]
fn index_of_all_cased_characters_passes_e2fsck() {
    requires!(tool("mke2fs"), tool("e2fsck"), tool("debugfs"));
    let scratch = TempDir::new().unwrap();
    let image = scratch.path().join("disk.img");
    prepared(&image, &["-b", "1024", "-N", "16"]);
    let has_case = |c: &char| !c.to_lowercase().eq([*c]) || !c.to_uppercase().eq([*c]);
    let is_mark =
        |c: &char| matches!(u32::from(*c), 0x300..0x370 | 0xAC00..0xAC40 | 0xF900..0xFA00);
    let is_ignorable = |c: &char| matches!(u32::from(*c), 0xAD | 0x180B..0x180F | 0x2060..0x2070);
    let characters: Vec<char> = ('\u{80}'..=char::MAX)
        .filter(|c| has_case(c) || is_mark(c) || is_ignorable(c))
        .collect();
    assert!(characters.len() > 2500);
    // The number keeps apart what is equal without case.
    let name = |prefix: &str, c: char| format!("{prefix}{:x}-e\u{323}{c}\u{301}", u32::from(c));
    with_image(&image, false, |process| {
        touch(process, "/i/target");
        for &c in &characters {
            let path = format!("/i/d/{}", name("N", c));
            process.link("/i/target", path).unwrap();
        }
    });
    fsck(&image);
    with_image(&image, false, |process| {
        assert_eq!(names(process, "/i/d").len(), characters.len());
        for &c in characters.iter().step_by(3) {
            let path = format!("/i/d/{}", name("n", c));
            process
                .unlink(&path)
                .unwrap_or_else(|error| panic!("{path}: {error}"));
        }
    });
    fsck(&image);
}

/// Makes 1,000 random changes in random spellings, and compares them with a map.
#[test]
fn random_spellings_match_a_map() {
    requires!(tool("mke2fs"), tool("e2fsck"), tool("debugfs"));
    for options in [
        &["-b", "1024"][..],
        &["-O", "inline_data,^dir_index", "-I", "256"],
    ] {
        let scratch = TempDir::new().unwrap();
        let image = scratch.path().join("disk.img");
        prepared(&image, options);
        let mut random = Random::new(12);
        // The size of each file.
        let mut files: BTreeMap<FoldedName, u64> = BTreeMap::new();
        for _ in 0..5 {
            with_image(&image, false, |process| {
                for _ in 0..200 {
                    change(process, &mut random, &mut files);
                }
                assert_eq!(names(process, "/i/d").len(), files.len());
            });
            fsck(&image);
            with_image(&image, true, |process| {
                for (key, size) in &files {
                    let path = key.spelled(&mut random);
                    assert_eq!(process.stat(&path).unwrap().size_bytes, *size, "{path}");
                }
            });
        }
    }
}

/// A name with several spellings, and the number after it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct FoldedName {
    spellings: usize,
    number: u32,
}

impl FoldedName {
    /// Returns a random name.
    fn any(random: &mut Random) -> Self {
        Self {
            spellings: random.below(SPELLINGS.len()),
            number: random.below(30_u32),
        }
    }

    /// Returns the path of the name in a random spelling.
    fn spelled(self, random: &mut Random) -> String {
        let name = random.pick(&SPELLINGS[self.spellings]);
        format!("/i/d/{name}{}", self.number)
    }
}

fn change(process: &Process, random: &mut Random, files: &mut BTreeMap<FoldedName, u64>) {
    let (from, to) = (FoldedName::any(random), FoldedName::any(random));
    let path = from.spelled(random);
    match random.below(4_u32) {
        0 | 1 => {
            let len = random.below(3000_usize);
            write(process, &path, len);
            let size = files.entry(from).or_default();
            *size = (*size).max(len as u64);
        }
        2 => {
            let renamed = process.rename(&path, to.spelled(random));
            assert_eq!(renamed.is_ok(), files.contains_key(&from), "{path}");
            if let Some(size) = files.remove(&from) {
                files.insert(to, size);
            }
        }
        _ => {
            let unlinked = process.unlink(&path);
            assert_eq!(unlinked.is_ok(), files.remove(&from).is_some(), "{path}");
        }
    }
}
