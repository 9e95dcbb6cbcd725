//! Options of a resize.

use crate::base::Clock;

/// Options of [`resize`](super::resize).
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct ResizeOptions {
    /// New size in bytes, rounded down to whole pages of 4 KiB; `None` for the device's size.
    pub len_bytes: Option<u64>,
    /// Shrink as far as possible, whatever `len_bytes` says (`resize2fs -M`).
    pub to_minimum: bool,
    /// The source of all timestamps.
    pub clock: Clock,
}

impl Default for ResizeOptions {
    fn default() -> Self {
        Self {
            len_bytes: None,
            to_minimum: false,
            clock: Clock::System,
        }
    }
}
