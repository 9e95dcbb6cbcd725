//! Changes to some structures of the image, as an input asks for.

use super::base::{Base, Class};
use super::{exercise, seal};
use arbitrary::{Arbitrary, Unstructured};
use folio::block::Device;
use std::collections::BTreeMap;

/// Changes of one input, at most.
const EDITS_MAX: usize = 32;

/// One change.
#[derive(Debug, Arbitrary)]
struct Edit {
    /// Which structure, of those the target damages.
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
    /// A number that is often an end of something.
    Extreme(u8),
    Bytes([u8; 12]),
    /// What lies elsewhere in the same structure.
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

/// Damages structures of these classes as `data` says, and uses the image.
pub(crate) fn run(data: &[u8], classes: &[Class]) {
    let mut input = Unstructured::new(data);
    let mut edits = Vec::new();
    while edits.len() < EDITS_MAX && !input.is_empty() {
        let Ok(edit) = Edit::arbitrary(&mut input) else {
            break;
        };
        edits.push(edit);
    }
    let base = Base::get();
    let device = base.device();
    apply(base, &*device, classes, &edits);
    exercise::image(&device);
}

fn apply(base: &Base, device: &dyn Device, classes: &[Class], edits: &[Edit]) {
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
    // Inodes come before what hangs on them only by chance; a structure is sealed with its inode as
    // it is in the end.
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
        if structure.class == Class::Bitmap {
            let at = base.descriptor_offset(structure.owner);
            let mut descriptor = vec![0; 64];
            device
                .read_at(&mut descriptor, at as u64)
                .expect("memory can be read");
            seal::note_bitmap(base, structure, &bytes, &mut descriptor);
            write(&descriptor, at);
        }
    }
}
