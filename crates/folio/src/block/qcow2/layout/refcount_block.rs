//! Refcount blocks: entries of 1 to 64 bits.
//!
//! Source: QEMU, docs/interop/qcow2.txt ("Host cluster management").

/// Returns entry `index` of a block whose entries have `1 << order` bits.
pub(crate) fn get(bytes: &[u8], order: u32, index: u64) -> u64 {
    let index = index as usize;
    match order {
        0..=2 => {
            let per_byte = 8 >> order;
            let shift = (index % per_byte) << order;
            u64::from(bytes[index / per_byte] >> shift) & ((1 << (1 << order)) - 1)
        }
        _ => {
            let width = 1 << (order - 3);
            bytes[index * width..(index + 1) * width]
                .iter()
                .fold(0, |value, byte| (value << 8) | u64::from(*byte))
        }
    }
}

/// Sets entry `index` of a block whose entries have `1 << order` bits.
pub(crate) fn put(bytes: &mut [u8], order: u32, index: u64, value: u64) {
    let index = index as usize;
    match order {
        0..=2 => {
            let per_byte = 8 >> order;
            let shift = (index % per_byte) << order;
            let mask = (((1u16 << (1 << order)) - 1) as u8) << shift;
            let byte = &mut bytes[index / per_byte];
            *byte = (*byte & !mask) | ((value as u8) << shift);
        }
        _ => {
            let width = 1 << (order - 3);
            bytes[index * width..(index + 1) * width]
                .copy_from_slice(&value.to_be_bytes()[8 - width..]);
        }
    }
}
