//! Single numbers of every kind of structure, changed with valid checksums: folio check finds all
//! damage that e2fsck reports.
//!
//! A number is any two bytes at an even offset. By default every twelfth number gets one of the
//! values, in turn; `FOLIO_CHECK_ALL=1` changes each number once, `FOLIO_CHECK_ALL=2` to all
//! values.

use crate::check::flips::{CheckBench, number};
use crate::check::images::{RECIPES, Recipe};
use crate::check::map::{ImageMap, Piece, PieceKind};
use crate::support::requires;
use std::mem::discriminant;

/// Bytes at the start of a piece that contain all fields outside of lists.
const REACH: usize = 256;

/// Returns one piece of each kind, and inodes of each type.
fn chosen(map: &ImageMap, image: &[u8]) -> Vec<Piece> {
    let mut chosen: Vec<Piece> = Vec::new();
    for piece in &map.pieces {
        let sort = |piece: &Piece| match piece.kind {
            PieceKind::Inode(number) if number <= 11 => (number, 0),
            // File type and flags: extents, index, inline data.
            PieceKind::Inode(_) => (
                0,
                u32::from(image[piece.offset + 1] >> 4) << 16 | flags(image, piece),
            ),
            _ => (0, 0),
        };
        let is_known = |other: &Piece| {
            discriminant(&other.kind) == discriminant(&piece.kind) && sort(other) == sort(piece)
        };
        if !chosen.iter().any(is_known) {
            chosen.push(*piece);
        }
    }
    chosen
}

fn flags(image: &[u8], piece: &Piece) -> u32 {
    let at = piece.offset + 0x20;
    let depth = image[piece.offset + 0x2E];
    let flags = u32::from_le_bytes([image[at], image[at + 1], image[at + 2], image[at + 3]]);
    flags >> 12 & 0xFFFF ^ u32::from(depth)
}

fn values(old: u16) -> [u16; 8] {
    [
        0,
        1,
        old.wrapping_add(1),
        old.wrapping_sub(1),
        0xFFFF,
        0x8000,
        old ^ 0x10,
        old ^ 0x400,
    ]
}

fn run(recipe: &Recipe) {
    let mut bench = CheckBench::new(recipe);
    let how = number("FOLIO_CHECK_ALL", 0);
    let mut turn = 0;
    for piece in chosen(&bench.map, &bench.sound) {
        let reach = if piece.kind == PieceKind::Superblock {
            piece.len
        } else {
            piece.len.min(REACH)
        };
        for at in (0..reach).step_by(2) {
            let place = piece.offset + at;
            let old = u16::from_le_bytes([bench.sound[place], bench.sound[place + 1]]);
            turn += 1;
            if how == 0 && turn % 12 != 0 {
                continue;
            }
            let picked = if how == 2 {
                0..8
            } else {
                turn / 12 % 8..turn / 12 % 8 + 1
            };
            for value in values(old)[picked].iter().filter(|value| **value != old) {
                bench.bytes[place..place + 2].copy_from_slice(&value.to_le_bytes());
                bench.map.seal(&mut bench.bytes, &piece);
                bench.judge(format!(
                    "{}: {:x?}: byte {at:#x} from {old:#x} to {value:#x}",
                    recipe.name, piece.kind
                ));
            }
        }
    }
    bench.conclude(&format!("{}: fields", recipe.name));
}

/// One test per image, so that they run in parallel.
macro_rules! fields {
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

fields! {
    changed_fields_of_1k_checksums_are_reported: 0;
    changed_fields_of_4k_checksums_are_reported: 1;
    changed_fields_of_1k_plain_are_reported: 2;
    changed_fields_of_inline_checksums_are_reported: 5;
    changed_fields_of_ext3_are_reported: 6;
    changed_fields_of_uninit_bg_are_reported: 8;
    changed_fields_of_quota_are_reported: 10;
    changed_fields_of_bigalloc_are_reported: 11;
}
