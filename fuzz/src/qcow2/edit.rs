//! Changes to structures of an image, given by an input.

use super::base::{BaseImage, StructureClass};
use super::exercise;
use arbitrary::{Arbitrary, Unstructured};

/// Maximum number of changes per input.
const EDITS_MAX: usize = 32;

/// One change.
#[derive(Debug, Arbitrary)]
struct Edit {
    /// Index of the structure among those of the target.
    structure: u16,
    offset: u16,
    patch: Patch,
}

#[derive(Debug, Arbitrary)]
enum Patch {
    Byte(u8),
    Flip(u8),
    Long(u32),
    /// A number of 8, 4 or 2 bytes that is often a limit.
    Extreme(u8),
    /// The offset of a cluster with flags, as in table entries.
    Entry {
        cluster: u16,
        low: u16,
        flags: u8,
    },
    Bytes([u8; 12]),
    /// Bytes of another part of the same structure.
    Copy(u16, u8),
    Zero(u8),
}

const EXTREMES: [u64; 10] = [
    0,
    1,
    0x7f,
    0xff,
    0x7fff,
    0xffff,
    0x7fff_ffff,
    u32::MAX as u64,
    0x00ff_ffff_ffff_fe00,
    u64::MAX,
];

impl Patch {
    /// Returns whether the patch goes to a multiple of 8, like table entries.
    fn is_aligned(&self) -> bool {
        matches!(self, Self::Entry { .. } | Self::Extreme(_))
    }

    fn bytes(&self, old: &[u8], at: usize, cluster_bits: u32) -> Vec<u8> {
        match self {
            Self::Byte(byte) => vec![*byte],
            Self::Flip(bit) => vec![old[at] ^ 1 << (bit % 8)],
            Self::Long(long) => long.to_be_bytes().to_vec(),
            Self::Extreme(which) => {
                let number = EXTREMES[usize::from(which >> 2) % EXTREMES.len()].to_be_bytes();
                number[[0, 4, 6, 7][usize::from(which & 3)]..].to_vec()
            }
            Self::Entry {
                cluster,
                low,
                flags,
            } => {
                let place = u64::from(*cluster) << cluster_bits;
                // The flags "copied" and "compressed" and the bits above the offset; the bits below
                // are zero in half of the cases.
                let low = if flags & 1 == 0 {
                    u64::from(*low) & 1
                } else {
                    u64::from(*low)
                };
                (place | low | u64::from(flags >> 1) << 57)
                    .to_be_bytes()
                    .to_vec()
            }
            Self::Bytes(all) => all.to_vec(),
            Self::Copy(from, len) => {
                let from = usize::from(*from) % old.len();
                old[from..(from + usize::from(*len)).min(old.len())].to_vec()
            }
            Self::Zero(len) => vec![0; usize::from(*len)],
        }
    }

    fn apply(&self, bytes: &mut [u8], at: usize, cluster_bits: u32) {
        let at = if self.is_aligned() { at & !7 } else { at };
        let new = self.bytes(bytes, at, cluster_bits);
        let end = (at + new.len()).min(bytes.len());
        bytes[at..end].copy_from_slice(&new[..end - at]);
    }
}

/// Damages structures of these classes as given by `data`, in the image it selects, and uses it.
pub(super) fn run(data: &[u8], classes: &[StructureClass]) {
    let mut input = Unstructured::new(data);
    let bases = BaseImage::all();
    let base = &bases[usize::from(u8::arbitrary(&mut input).unwrap_or(0)) % bases.len()];
    let chosen: Vec<_> = base
        .structures
        .iter()
        .filter(|found| classes.contains(&found.class))
        .collect();
    let mut bytes = base.bytes.clone();
    let mut edits = 0;
    while edits < EDITS_MAX && !input.is_empty() && !chosen.is_empty() {
        let Ok(edit) = Edit::arbitrary(&mut input) else {
            break;
        };
        let structure = chosen[usize::from(edit.structure) % chosen.len()];
        let there = &mut bytes[structure.offset..][..structure.len];
        edit.patch.apply(
            there,
            usize::from(edit.offset) % structure.len,
            base.cluster_bits,
        );
        edits += 1;
    }
    let device = base.device();
    for (index, (new, old)) in bytes.chunks(512).zip(base.bytes.chunks(512)).enumerate() {
        if new != old {
            device
                .write_at(new, index as u64 * 512)
                .expect("memory can be written");
        }
    }
    exercise::image(base, &device);
}
