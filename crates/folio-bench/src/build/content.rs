//! Files as container images have them: mostly small, some large; text, programs and data that is
//! already compressed. The same seed gives the same tree.

use crate::outcome::{Context, Outcome};
use crate::random::Random;
use std::fs;
use std::ops::Range;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

const FILES_PER_FOLDER: u64 = 25;
const WORDS: usize = 4096;
/// Bytes of a fragment of a program, and how many different ones there are.
const FRAGMENT_BYTES: usize = 48;
const FRAGMENTS: usize = 512;
/// Of 100 files, those of each size: up to 16 KiB, 256 KiB and 8 MiB.
const MIDDLE_PERCENT: u64 = 12;
const LARGE_PERCENT: u64 = 1;

/// Returns a number below `end`; small ones are more frequent, as words are in a language.
fn skewed(random: &mut Random, end: usize) -> usize {
    (random.unit().powi(3) * end as f64) as usize
}

/// Returns a size between two powers of two; each power is as frequent as another.
fn size(random: &mut Random, powers: Range<u64>) -> usize {
    let power = powers.start + random.below(powers.end - powers.start);
    (1 << power) + random.below(1 << power) as usize
}

/// What files consist of.
pub(super) struct Vocabulary {
    words: Vec<Vec<u8>>,
    fragments: Vec<[u8; FRAGMENT_BYTES]>,
}

impl Vocabulary {
    pub(super) fn new(random: &mut Random) -> Self {
        let word = |random: &mut Random| {
            let len = 2 + random.below(9);
            (0..len).map(|_| b'a' + random.below(26) as u8).collect()
        };
        let fragment = |random: &mut Random| {
            let mut fragment = [0; FRAGMENT_BYTES];
            // Opcodes repeat; half of the operands are small.
            for (at, byte) in fragment.iter_mut().enumerate() {
                *byte = match at % 4 {
                    0 => skewed(random, 64) as u8,
                    1 | 2 => random.below(256) as u8,
                    _ => 0,
                };
            }
            fragment
        };
        Self {
            words: (0..WORDS).map(|_| word(random)).collect(),
            fragments: (0..FRAGMENTS).map(|_| fragment(random)).collect(),
        }
    }

    /// Fills `bytes` with one kind of content: text, a program, or data without patterns.
    fn fill(&self, random: &mut Random, bytes: &mut Vec<u8>, len: usize) {
        bytes.clear();
        bytes.reserve(len + FRAGMENT_BYTES);
        let kind = random.below(100);
        while bytes.len() < len {
            match kind {
                0..40 => {
                    bytes.extend_from_slice(&self.words[skewed(random, WORDS)]);
                    let is_end = random.below(12) == 0;
                    bytes.push(if is_end { b'\n' } else { b' ' });
                }
                40..85 => {
                    let mut fragment = self.fragments[skewed(random, FRAGMENTS)];
                    // An address.
                    let at = random.below(FRAGMENT_BYTES as u64 - 4) as usize;
                    fragment[at..at + 3].copy_from_slice(&random.next().to_le_bytes()[..3]);
                    bytes.extend_from_slice(&fragment);
                }
                _ => bytes.extend_from_slice(&random.next().to_le_bytes()),
            }
        }
        bytes.truncate(len);
    }

    /// Writes files with `bytes_max` bytes of content into the new folder `root`.
    pub(super) fn write_tree(&self, random: &mut Random, root: &Path, bytes_max: u64) -> Outcome {
        let mut folder = root.to_owned();
        fs::create_dir(&folder).at(&folder)?;
        let (mut bytes, mut buf, mut count) = (0, Vec::new(), 0);
        let mut last = PathBuf::from("/etc/hostname");
        while bytes < bytes_max {
            if count % FILES_PER_FOLDER == 0 {
                folder = next_folder(random, root, &folder);
                fs::create_dir_all(&folder).at(&folder)?;
            }
            let number = random.below(100);
            let len = if number < LARGE_PERCENT {
                size(random, 18..23)
            } else if number < LARGE_PERCENT + MIDDLE_PERCENT {
                size(random, 14..18)
            } else {
                size(random, 6..14)
            };
            let len = len.min((bytes_max - bytes) as usize);
            self.fill(random, &mut buf, len);
            let path = folder.join(self.name(random, count));
            fs::write(&path, &buf).at(&path)?;
            let is_program = random.below(8) == 0;
            let mode = if is_program { 0o755 } else { 0o644 };
            fs::set_permissions(&path, fs::Permissions::from_mode(mode))?;
            if count % 16 == 15 {
                symlink(&last, folder.join(format!("link-{count}")))?;
            }
            last = path.strip_prefix(root).unwrap_or(&path).to_owned();
            bytes += len as u64;
            count += 1;
        }
        Ok(())
    }

    fn name(&self, random: &mut Random, count: u64) -> String {
        let word = &self.words[random.below(WORDS as u64) as usize];
        format!("{}-{count}.dat", String::from_utf8_lossy(word))
    }
}

/// Returns a folder below the last one, beside it, or far from it.
fn next_folder(random: &mut Random, root: &Path, last: &Path) -> PathBuf {
    let depth = last.components().count() - root.components().count();
    let base = match random.below(4) {
        0 if depth < 6 => last,
        1 => root,
        _ => last.parent().filter(|_| depth > 0).unwrap_or(root),
    };
    base.join(format!("d{:x}", random.below(1 << 24)))
}
