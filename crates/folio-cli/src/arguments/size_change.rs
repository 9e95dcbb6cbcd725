//! A new size of a disk, or the difference to the old one.

use crate::value_parsers::size;
use serde::{Deserialize, Serialize};

/// A size in bytes, or a difference.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum SizeChange {
    Whole(u64),
    More(u64),
    Less(u64),
}

impl SizeChange {
    /// Returns the new size of a disk of `now` bytes; `None` outside of the range of sizes.
    pub(crate) fn of(self, now: u64) -> Option<u64> {
        match self {
            Self::Whole(size) => Some(size),
            Self::More(more) => now.checked_add(more),
            Self::Less(less) => now.checked_sub(less),
        }
    }
}

/// Parses `SIZE`, `+SIZE` or `-SIZE`.
pub(crate) fn size_change(text: &str) -> Result<SizeChange, String> {
    match (text.strip_prefix('+'), text.strip_prefix('-')) {
        (Some(more), _) => Ok(SizeChange::More(size(more)?)),
        (_, Some(less)) => Ok(SizeChange::Less(size(less)?)),
        _ => Ok(SizeChange::Whole(size(text)?)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn size_sign_selects_difference() {
        assert_eq!(size_change("+1K"), Ok(SizeChange::More(1024)));
        assert_eq!(size_change("-2"), Ok(SizeChange::Less(2)));
        assert_eq!(size_change("3M"), Ok(SizeChange::Whole(3 << 20)));
        assert!(size_change("+-1").is_err());
    }
}
