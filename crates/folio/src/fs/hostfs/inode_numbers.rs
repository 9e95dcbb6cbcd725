//! Inode numbers: a stable mapping from the inodes of several host file systems to one number
//! space.

use crate::base::lock::Mutex;
use crate::base::{DeviceNumber, InodeNumber};
use std::collections::HashMap;

/// Number of bits of a host inode number that fits below the device index.
const HOST_BITS: u32 = 48;
/// The bit that marks sequential numbers.
const SEQUENTIAL: u64 = 1 << 63;

/// The inode numbers of a mount. Small host numbers on the first device stay as they are.
#[derive(Default)]
pub(super) struct InodeNumbers(Mutex<State>);

#[derive(Default)]
struct State {
    devices: Vec<DeviceNumber>,
    /// Sequential numbers of inodes whose host number does not fit.
    sequential: HashMap<(DeviceNumber, u64), u64>,
}

impl InodeNumbers {
    /// Returns the number of inode `number` on the host's `device`.
    pub(super) fn number(&self, device: DeviceNumber, number: u64) -> InodeNumber {
        let mut state = self.0.lock();
        let index = match state.devices.iter().position(|known| *known == device) {
            Some(index) => index,
            None => {
                state.devices.push(device);
                state.devices.len() - 1
            }
        };
        let index = index as u64;
        if number >> HOST_BITS == 0 && index >> (63 - HOST_BITS) == 0 {
            return InodeNumber(index << HOST_BITS | number);
        }
        let next = SEQUENTIAL | state.sequential.len() as u64;
        InodeNumber(*state.sequential.entry((device, number)).or_insert(next))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inode_numbers_are_unique_and_stable() {
        let numbers = InodeNumbers::default();
        let mut seen = std::collections::HashSet::new();
        for device in 0..5 {
            for number in [1, 2, (1 << 48) - 1, 1 << 48, u64::MAX, 1 << 63, 1 << 63 | 1] {
                let given = numbers.number(DeviceNumber::new(8, device), number);
                assert!(seen.insert(given), "{device} {number}");
                assert_eq!(numbers.number(DeviceNumber::new(8, device), number), given);
            }
        }
        assert_eq!(numbers.number(DeviceNumber::new(8, 0), 77), InodeNumber(77));
    }
}
