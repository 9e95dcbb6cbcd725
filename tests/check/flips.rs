//! Random changes of structures: whatever e2fsck complains of then, folio check finds.

use crate::images::{Image, RECIPES, Recipe};
use crate::judge::{Verdict, compare};
use crate::map::{Map, Piece};
use crate::random::Random;
use crate::support::requires;
use std::fs::OpenOptions;
use std::mem::discriminant;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

fn number(variable: &str, default: u64) -> u64 {
    std::env::var(variable).ok().map_or(default, |text| text.parse().expect("a number"))
}

/// What came of all changes to one image.
#[derive(Debug, Default)]
struct Tally {
    cases: u64,
    sound: u64,
    damaged: u64,
    stricter: Vec<String>,
    missed: Vec<String>,
}

/// Changes something in a piece.
fn change(bytes: &mut [u8], random: &mut Random) {
    // Most of what matters stands at the start, or is a number of two or four bytes.
    let reach = if random.percent(50) { bytes.len().min(64) } else { bytes.len() };
    let at = random.below(reach);
    match random.below(6) {
        0 => bytes[at] ^= 1 << random.below(8),
        1 => bytes[at] = random.next() as u8,
        2 => {
            let at = at & !1;
            let value = random.pick(&[0_u16, 1, 2, 0x7FFF, 0x8000, 0xFFFF, random.clone().next() as u16]);
            bytes[at..at + 2].copy_from_slice(&value.to_le_bytes());
        }
        3 | 4 => {
            let at = at & !3;
            let old = u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
            let near = [old.wrapping_add(1), old.wrapping_sub(1), old ^ 0x100, old >> 1];
            let value = match random.percent(50) {
                true => random.pick(&near),
                false => random.pick(&[0, 1, 2, 11, 12, 100, 5000, 0x7FFF_FFFF, 0x8000_0000, u32::MAX]),
            };
            bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
        }
        _ => {
            let len = random.pick(&[4_usize, 8, 16, 128]).min(bytes.len() - at);
            bytes[at..at + len].fill(0);
        }
    }
}

/// A piece: each kind is as likely as any other.
fn pick(map: &Map, random: &mut Random) -> Piece {
    let mut kinds: Vec<_> = map.pieces.iter().map(|piece| discriminant(&piece.kind)).collect();
    kinds.dedup();
    let kind = random.pick(&kinds);
    let of_kind: Vec<_> =
        map.pieces.iter().filter(|piece| discriminant(&piece.kind) == kind).copied().collect();
    random.pick(&of_kind)
}

fn keep(name: &str, case: u64, image: &Image) {
    if let Some(folder) = std::env::var_os("FOLIO_CHECK_KEEP") {
        let copy = PathBuf::from(folder).join(format!("{name}-{case}"));
        std::fs::copy(&image.path, copy).expect("a copy to keep");
    }
}

fn try_image(recipe: &Recipe, seed: u64, cases: u64) -> Tally {
    let image = recipe.filled();
    let sound = std::fs::read(&image.path).expect("the image");
    let map = Map::new(&sound);
    let file = OpenOptions::new().write(true).open(&image.path).expect("the image");
    let (mut tally, mut bytes) = (Tally::default(), sound.clone());
    for case in 0..cases {
        let mut random = Random::new(seed ^ case << 20);
        let mut told = format!("{} seed {seed} case {case}", recipe.name);
        let mut changed = Vec::new();
        for _ in 0..if random.percent(80) { 1 } else { 3 } {
            let piece = pick(&map, &mut random);
            change(&mut bytes[piece.offset..piece.offset + piece.len], &mut random);
            let is_sealed = random.percent(65);
            if is_sealed {
                map.seal(&mut bytes, &piece);
            }
            let first = (0..piece.len).find(|i| sound[piece.offset + i] != bytes[piece.offset + i]);
            let (at, sealed) = (piece.offset, if is_sealed { "sealed" } else { "as is" });
            told.push_str(&format!("; {:x?} at {at:#x}, byte {first:x?}, {sealed}", piece.kind));
            changed.push(piece);
        }
        // A bitmap's checksum lies in a descriptor: everything that may have changed is written.
        let touched: Vec<usize> = (0..bytes.len())
            .step_by(1024)
            .filter(|at| sound[*at..at + 1024] != bytes[*at..at + 1024])
            .collect();
        for at in &touched {
            file.write_all_at(&bytes[*at..at + 1024], *at as u64).expect("the image");
        }
        tally.cases += 1;
        match compare(&image.path) {
            (Verdict::Sound, _) => tally.sound += 1,
            (Verdict::Damaged, _) => tally.damaged += 1,
            (Verdict::Stricter, said) => {
                tally.stricter.push(format!("{told}\n{said}"));
            }
            (Verdict::Missed, said) => {
                keep(recipe.name, case, &image);
                tally.missed.push(format!("{told}\n{said}"));
            }
        }
        for at in touched {
            file.write_all_at(&sound[at..at + 1024], at as u64).expect("the image");
            bytes[at..at + 1024].copy_from_slice(&sound[at..at + 1024]);
        }
    }
    tally
}

/// One test for each image, so that they run side by side.
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
    changes_of_1k_checksums: 0;
    changes_of_4k_checksums: 1;
    changes_of_1k_plain: 2;
    changes_of_4k_plain: 3;
    changes_of_inline: 4;
    changes_of_inline_checksums: 5;
    changes_of_ext3: 6;
    changes_of_ext2: 7;
    changes_of_uninit_bg: 8;
    changes_of_meta_bg: 9;
    changes_of_quota: 10;
    changes_of_bigalloc: 11;
}

fn run(recipe: &Recipe) {
    let (seed, cases) = (number("FOLIO_CHECK_SEED", 1), number("FOLIO_CHECK_CASES", 60));
    let tally = try_image(recipe, seed, cases);
    println!(
        "{}: seed {seed}, {} changes: {} sound, {} damaged to both, {} only to folio check, {} only to e2fsck",
        recipe.name,
        tally.cases,
        tally.sound,
        tally.damaged,
        tally.stricter.len(),
        tally.missed.len()
    );
    if std::env::var_os("FOLIO_CHECK_STRICTER").is_some() {
        println!("{}", tally.stricter.join("\n"));
    }
    assert!(tally.missed.is_empty(), "{} missed:\n{}", tally.missed.len(), tally.missed.join("\n"));
}
