//! Inode numbers: one for each inode of several host file systems, always the same.

use crate::base::InodeNumber;
use parking_lot::Mutex;
use std::collections::HashMap;

/// Bits that a number on the host may have, so that the device goes before it.
const HOST_BITS: u32 = 48;
/// What is set in numbers given out one after the other.
const COUNTED: u64 = 1 << 63;

/// The numbers of a share. Those of the first device are the host's own, as nearly all of them are
/// small.
#[derive(Default)]
pub(super) struct Numbers(Mutex<State>);

#[derive(Default)]
struct State {
    devices: Vec<(u32, u32)>,
    /// Those that do not fit, which keep what they were given.
    counted: HashMap<((u32, u32), u64), u64>,
}

impl Numbers {
    /// The number of inode `number` on the host's `device`.
    pub(super) fn number(&self, device: (u32, u32), number: u64) -> InodeNumber {
        let mut state = self.0.lock();
        let place = match state.devices.iter().position(|known| *known == device) {
            Some(place) => place,
            None => {
                state.devices.push(device);
                state.devices.len() - 1
            }
        };
        let place = place as u64;
        if number >> HOST_BITS == 0 && place >> (63 - HOST_BITS) == 0 {
            return InodeNumber(place << HOST_BITS | number);
        }
        let next = COUNTED | state.counted.len() as u64;
        InodeNumber(*state.counted.entry((device, number)).or_insert(next))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_inodes_have_the_same_number() {
        let numbers = Numbers::default();
        let mut seen = std::collections::HashSet::new();
        for device in 0..5 {
            for number in [1, 2, (1 << 48) - 1, 1 << 48, u64::MAX, 1 << 63, 1 << 63 | 1] {
                let given = numbers.number((8, device), number);
                assert!(seen.insert(given), "{device} {number}");
                assert_eq!(numbers.number((8, device), number), given);
            }
        }
        assert_eq!(numbers.number((8, 0), 77), InodeNumber(77));
    }
}
