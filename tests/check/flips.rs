//! Random changes of structures: folio check finds all damage that e2fsck reports.

use crate::check::images::{Image, RECIPES, Recipe};
use crate::check::judge::{Verdict, compare};
use crate::check::map::{ImageMap, Piece};
use crate::check::random::{Random, mix};
use crate::support::requires;
use std::fs::{File, OpenOptions};
use std::mem::discriminant;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

/// Returns the number in an environment variable.
pub(crate) fn number(variable: &str, default: u64) -> u64 {
    std::env::var(variable)
        .ok()
        .map_or(default, |text| text.parse().expect("a number"))
}

/// The verdicts on all changes to one image.
#[derive(Debug, Default)]
struct Tally {
    cases: u64,
    sound: u64,
    damaged: u64,
    stricter: Vec<String>,
    missed: Vec<String>,
}

/// Changes some bytes of a piece.
fn change(bytes: &mut [u8], random: &mut Random) {
    // Most fields are at the start, or are numbers of two or four bytes.
    let reach = if random.percent(50) {
        bytes.len().min(64)
    } else {
        bytes.len()
    };
    let at = random.below(reach);
    match random.below(6) {
        0 => bytes[at] ^= 1 << random.below(8),
        1 => bytes[at] = random.next() as u8,
        2 => {
            let at = at & !1;
            let value = random.pick(&[
                0_u16,
                1,
                2,
                0x7FFF,
                0x8000,
                0xFFFF,
                random.clone().next() as u16,
            ]);
            bytes[at..at + 2].copy_from_slice(&value.to_le_bytes());
        }
        3 | 4 => {
            let at = at & !3;
            let old = u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
            let near = [
                old.wrapping_add(1),
                old.wrapping_sub(1),
                old ^ 0x100,
                old >> 1,
            ];
            let value = if random.percent(50) {
                random.pick(&near)
            } else {
                random.pick(&[
                    0,
                    1,
                    2,
                    11,
                    12,
                    100,
                    5000,
                    0x7FFF_FFFF,
                    0x8000_0000,
                    u32::MAX,
                ])
            };
            bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
        }
        _ => {
            let len = random.pick(&[4_usize, 8, 16, 128]).min(bytes.len() - at);
            bytes[at..at + len].fill(0);
        }
    }
}

/// Returns a random piece; all kinds are equally likely.
fn pick(map: &ImageMap, random: &mut Random) -> Piece {
    let mut kinds: Vec<_> = map
        .pieces
        .iter()
        .map(|piece| discriminant(&piece.kind))
        .collect();
    kinds.dedup();
    let kind = random.pick(&kinds);
    let of_kind: Vec<_> = map
        .pieces
        .iter()
        .filter(|piece| discriminant(&piece.kind) == kind)
        .copied()
        .collect();
    random.pick(&of_kind)
}

/// Returns a random piece of the same kind and length.
fn pick_like(map: &ImageMap, piece: &Piece, random: &mut Random) -> Piece {
    let is_alike = |other: &&Piece| {
        discriminant(&other.kind) == discriminant(&piece.kind) && other.len == piece.len
    };
    let alike: Vec<_> = map.pieces.iter().filter(is_alike).copied().collect();
    random.pick(&alike)
}

/// An image that is changed, checked and restored.
pub(crate) struct CheckBench {
    image: Image,
    file: File,
    pub(crate) map: ImageMap,
    /// The original image.
    pub(crate) sound: Vec<u8>,
    /// The image to be checked next.
    pub(crate) bytes: Vec<u8>,
    tally: Tally,
}

impl CheckBench {
    /// Creates an image from a recipe.
    pub(crate) fn new(recipe: &Recipe) -> Self {
        let image = recipe.filled();
        let sound = std::fs::read(&image.path).expect("the image");
        let file = OpenOptions::new()
            .write(true)
            .open(&image.path)
            .expect("the image");
        let map = ImageMap::new(&sound);
        Self {
            image,
            file,
            map,
            bytes: sound.clone(),
            sound,
            tally: Tally::default(),
        }
    }

    /// Compares both programs on the changed image, then restores it. `case` describes the change.
    pub(crate) fn judge(&mut self, case: String) {
        // Write all changed parts, because a bitmap's checksum is in another block.
        let is_changed = |at: &usize| self.sound[*at..at + 1024] != self.bytes[*at..at + 1024];
        let touched: Vec<usize> = (0..self.bytes.len())
            .step_by(1024)
            .filter(is_changed)
            .collect();
        self.write(&touched);
        self.tally.cases += 1;
        match compare(&self.image.path) {
            (Verdict::Sound, _) => self.tally.sound += 1,
            (Verdict::Damaged, _) => self.tally.damaged += 1,
            (Verdict::Stricter, output) => self.tally.stricter.push(format!("{case}\n{output}")),
            (Verdict::Missed, output) => {
                self.keep(&case);
                self.tally.missed.push(format!("{case}\n{output}"));
            }
        }
        for at in &touched {
            self.bytes[*at..at + 1024].copy_from_slice(&self.sound[*at..at + 1024]);
        }
        self.write(&touched);
    }

    fn write(&self, touched: &[usize]) {
        for at in touched {
            self.file
                .write_all_at(&self.bytes[*at..at + 1024], *at as u64)
                .expect("the image");
        }
    }

    fn keep(&self, case: &str) {
        if let Some(folder) = std::env::var_os("FOLIO_CHECK_KEEP") {
            let name: String = case
                .chars()
                .take(80)
                .map(|c| if c.is_ascii_alphanumeric() { c } else { '-' })
                .collect();
            std::fs::copy(&self.image.path, PathBuf::from(folder).join(name))
                .expect("a copy to keep");
        }
    }

    /// Prints the totals; panics if folio check missed damage.
    pub(crate) fn conclude(self, what: &str) {
        let Tally {
            cases,
            sound,
            damaged,
            stricter,
            missed,
        } = self.tally;
        let (strict, only_fsck) = (stricter.len(), missed.len());
        println!(
            "{what}: {cases} changes: {sound} sound, {damaged} reported by both, {strict} by folio check only, \
             {only_fsck} by e2fsck only"
        );
        if std::env::var_os("FOLIO_CHECK_STRICTER").is_some() {
            println!("{}", stricter.join("\n"));
        }
        assert!(
            missed.is_empty(),
            "{only_fsck} missed:\n{}",
            missed.join("\n")
        );
    }
}

/// One test per image, so that they run in parallel.
macro_rules! flips {
    ($($name:ident: $index:expr;)+) => {
        $(
            #[test]
            fn $name() {
                requires!(tool("mke2fs"), tool("e2fsck"), tool("debugfs"));
                run(&RECIPES[$index]);
            }
        )+
    };
}

flips! {
    random_changes_of_1k_checksums_are_reported: 0;
    random_changes_of_4k_checksums_are_reported: 1;
    random_changes_of_1k_plain_are_reported: 2;
    random_changes_of_4k_plain_are_reported: 3;
    random_changes_of_inline_are_reported: 4;
    random_changes_of_inline_checksums_are_reported: 5;
    random_changes_of_ext3_are_reported: 6;
    random_changes_of_ext2_are_reported: 7;
    random_changes_of_uninit_bg_are_reported: 8;
    random_changes_of_meta_bg_are_reported: 9;
    random_changes_of_quota_are_reported: 10;
    random_changes_of_bigalloc_are_reported: 11;
}

fn run(recipe: &Recipe) {
    let (seed, cases) = (
        number("FOLIO_CHECK_SEED", 1),
        number("FOLIO_CHECK_CASES", 60),
    );
    let mut bench = CheckBench::new(recipe);
    let name: u64 = recipe
        .name
        .bytes()
        .fold(0, |sum, byte| mix(sum ^ u64::from(byte)));
    for case in 0..cases {
        let mut random = Random::new(seed ^ name ^ case << 32);
        let mut description = format!("{} seed {seed} case {case}", recipe.name);
        for _ in 0..if random.percent(80) { 1 } else { 3 } {
            let piece = pick(&bench.map, &mut random);
            let range = piece.offset..piece.offset + piece.len;
            if random.percent(12) {
                // A misdirected write of another block.
                let other = pick_like(&bench.map, &piece, &mut random);
                bench
                    .bytes
                    .copy_within(other.offset..other.offset + other.len, piece.offset);
            } else {
                change(&mut bench.bytes[range.clone()], &mut random);
            }
            let is_sealed = random.percent(65);
            if is_sealed {
                bench.map.seal(&mut bench.bytes, &piece);
            }
            let first = range
                .clone()
                .find(|at| bench.sound[*at] != bench.bytes[*at])
                .map(|at| at - range.start);
            let sealed = if is_sealed { "sealed" } else { "as is" };
            description.push_str(&format!(
                "; {:x?} at {:#x}, byte {first:x?}, {sealed}",
                piece.kind, range.start
            ));
        }
        bench.judge(description);
    }
    bench.conclude(&format!("{}: seed {seed}", recipe.name));
}
