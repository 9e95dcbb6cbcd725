//! Changes to structures of the image, given by an input.

use super::base::{BaseImage, StructureClass};
use super::{exercise, seal};
use arbitrary::{Arbitrary, Unstructured};
use folio::block::Device;
use std::collections::BTreeMap;

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
    Word(u16),
    Long(u32),
    Flip(u8),
    /// A number that is often a limit.
    Extreme(u8),
    Bytes([u8; 12]),
    /// Bytes of another part of the same structure.
    Copy(u16, u8),
    Zero(u8),
}

const EXTREMES: [u32; 8] = [0, 1, 0x7F, 0xFF, 0x7FFF, 0xFFFF, 0x7FFF_FFFF, u32::MAX];

impl Patch {
    fn apply(&self, bytes: &mut [u8], at: usize) {
        let extreme;
        let copied;
        let new: &[u8] = match self {
            Self::Byte(byte) => &[*byte],
            Self::Word(word) => &word.to_le_bytes(),
            Self::Long(long) => &long.to_le_bytes(),
            Self::Flip(bit) => &[bytes[at] ^ 1 << (bit % 8)],
            Self::Extreme(which) => {
                extreme = EXTREMES[usize::from(which % 8)].to_le_bytes();
                &extreme[..if which & 8 == 0 { 4 } else { 2 }]
            }
            Self::Bytes(all) => all,
            Self::Copy(from, len) => {
                let from = usize::from(*from) % bytes.len();
                copied = bytes[from..(from + usize::from(*len)).min(bytes.len())].to_vec();
                &copied
            }
            Self::Zero(len) => &[0; 256][..usize::from(*len)],
        };
        let end = (at + new.len()).min(bytes.len());
        bytes[at..end].copy_from_slice(&new[..end - at]);
    }
}

/// Damages structures of these classes as given by `data`, and uses the image.
pub(crate) fn run(data: &[u8], classes: &[StructureClass]) {
    let mut input = Unstructured::new(data);
    let mut edits = Vec::new();
    while edits.len() < EDITS_MAX && !input.is_empty() {
        let Ok(edit) = Edit::arbitrary(&mut input) else {
            break;
        };
        edits.push(edit);
    }
    let base = BaseImage::get();
    let device = base.device();
    apply(base, &*device, classes, &edits);
    exercise::image(&device);
}

fn apply(base: &BaseImage, device: &dyn Device, classes: &[StructureClass], edits: &[Edit]) {
    let chosen: Vec<_> = base
        .structures
        .iter()
        .filter(|found| classes.contains(&found.class))
        .collect();
    let mut changed: BTreeMap<usize, Vec<u8>> = BTreeMap::new();
    for edit in edits {
        let which = usize::from(edit.structure) % chosen.len();
        let structure = chosen[which];
        let bytes = changed
            .entry(which)
            .or_insert_with(|| base.bytes[structure.offset..][..structure.len].to_vec());
        edit.patch
            .apply(bytes, usize::from(edit.offset) % structure.len);
    }
    let write = |bytes: &[u8], offset: usize| {
        device
            .write_at(bytes, offset as u64)
            .expect("memory can be written");
    };
    // Inodes may come after the structures that belong to them, so seal each structure with the
    // final bytes of its inode.
    let now: Vec<(usize, Vec<u8>)> = changed
        .iter()
        .map(|(which, bytes)| (chosen[*which].offset, bytes.clone()))
        .collect();
    let inode_len = usize::from(super::base::u16_at(&base.bytes, 1024 + 0x58));
    for (which, mut bytes) in changed {
        let structure = chosen[which];
        let inode = now
            .iter()
            .find(|(offset, _)| *offset == structure.owner_offset && structure.owner_offset != 0)
            .map_or_else(
                || &base.bytes[structure.owner_offset..][..inode_len],
                |(_, bytes)| bytes,
            );
        seal::seal(base, structure, &mut bytes, inode);
        write(&bytes, structure.offset);
        if structure.class == StructureClass::Bitmap {
            let at = base.descriptor_offset(structure.owner);
            let mut descriptor = vec![0; 64];
            device
                .read_at(&mut descriptor, at as u64)
                .expect("memory can be read");
            seal::store_bitmap_checksum(base, structure, &bytes, &mut descriptor);
            write(&descriptor, at);
        }
    }
}
