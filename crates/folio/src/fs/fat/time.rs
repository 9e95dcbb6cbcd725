//! Timestamps of FAT: local times without a zone, here UTC, from 1980 to 2107.

use crate::base::Timespec;
use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;

/// 1980-01-01 and 2107-12-31 23:59:58.
const RANGE: (i64, i64) = (315_532_800, 4_354_819_198);

/// A time as a directory entry has it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FatTime {
    /// Years since 1980, month and day, in 7, 4 and 5 bits.
    pub(crate) date: u16,
    /// Hour, minute and half of the second, in 5, 6 and 5 bits.
    pub(crate) time: u16,
    /// Units of 10 ms past it, below 200; only of the time of creation.
    pub(crate) tens_ms: u8,
}

/// Converts a time; one outside of FAT's range becomes the nearest.
pub(crate) fn to_fat(time: Timespec) -> FatTime {
    let secs = time.secs.clamp(RANGE.0, RANGE.1);
    let nanos = if secs == time.secs { time.nanos } else { 0 };
    let utc = Timestamp::from_second(secs).unwrap_or_default();
    let utc = utc.to_zoned(TimeZone::UTC);
    // Each is positive and small.
    let year = (utc.year() - 1980) as u16;
    FatTime {
        date: year << 9 | (utc.month() as u16) << 5 | utc.day() as u16,
        time: (utc.hour() as u16) << 11 | (utc.minute() as u16) << 5 | (utc.second() as u16 / 2),
        tens_ms: (secs % 2) as u8 * 100 + (nanos / 10_000_000) as u8,
    }
}

/// Converts a time of FAT; an invalid one is 1980.
pub(crate) fn from_fat(time: FatTime) -> Timespec {
    let field = |from: u16, shift: u16, bits: u16| (from >> shift & ((1 << bits) - 1)) as i8;
    let civil = DateTime::new(
        1980 + (time.date >> 9) as i16,
        field(time.date, 5, 4),
        field(time.date, 0, 5),
        field(time.time, 11, 5),
        field(time.time, 5, 6),
        2 * field(time.time, 0, 5),
        0,
    );
    let zoned = civil.and_then(|civil| civil.to_zoned(TimeZone::UTC));
    let secs = zoned.map_or(RANGE.0, |zoned| zoned.timestamp().as_second());
    let tens_ms = u32::from(time.tens_ms.min(199));
    Timespec::new(secs + i64::from(tens_ms / 100), tens_ms % 100 * 10_000_000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_round_down_and_clamp() {
        for (secs, want) in [
            (0, 315_532_800),
            (1_700_000_001, 1_700_000_000),
            (i64::MAX, 4_354_819_198),
        ] {
            let stored = to_fat(Timespec::new(secs, 5));
            let stored = FatTime {
                tens_ms: 0,
                ..stored
            };
            assert_eq!(from_fat(stored), Timespec::new(want, 0));
        }
        let created = Timespec::new(1_700_000_001, 990_000_000);
        assert_eq!(from_fat(to_fat(created)), created);
    }
}
