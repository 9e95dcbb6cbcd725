//! Timestamps of FAT: local times without a zone, here UTC, from 1980 to 2107.

use fatfs::{Date, DateTime, Time, TimeProvider};
use folio::Timespec;
use jiff::Timestamp;
use jiff::tz::TimeZone;
use std::cell::Cell;

thread_local! {
    /// The time of the operation that this thread runs.
    static NOW: Cell<Timespec> = const { Cell::new(Timespec { secs: 0, nanos: 0 }) };
}

/// Sets the time for changes that this thread makes.
pub(crate) fn set_now(now: Timespec) {
    NOW.set(now);
}

/// The source of timestamps for `fatfs`.
#[derive(Debug)]
pub(crate) struct ThreadTime;

pub(crate) static THREAD_TIME: ThreadTime = ThreadTime;

impl TimeProvider for ThreadTime {
    fn get_current_date(&self) -> Date {
        to_fat(NOW.get()).date
    }

    fn get_current_date_time(&self) -> DateTime {
        to_fat(NOW.get())
    }
}

/// Converts a time; one outside of FAT's range becomes the nearest.
pub(crate) fn to_fat(time: Timespec) -> DateTime {
    /// 1980-01-01 and 2107-12-31 23:59:58.
    const RANGE: (i64, i64) = (315_532_800, 4_354_819_198);
    let secs = time.secs.clamp(RANGE.0, RANGE.1);
    let date = Timestamp::from_second(secs)
        .unwrap_or_default()
        .to_zoned(TimeZone::UTC);
    // Each is positive and small.
    DateTime {
        date: Date {
            year: date.year() as u16,
            month: date.month() as u16,
            day: date.day() as u16,
        },
        time: Time {
            hour: date.hour() as u16,
            min: date.minute() as u16,
            sec: date.second() as u16,
            millis: 0,
        },
    }
}

/// Converts a time of FAT; an invalid one is 1980.
pub(crate) fn from_fat(time: DateTime) -> Timespec {
    let (date, clock) = (time.date, time.time);
    let small = |value: u16| i8::try_from(value).unwrap_or(0);
    let civil = jiff::civil::DateTime::new(
        i16::try_from(date.year).unwrap_or(1980),
        small(date.month),
        small(date.day),
        small(clock.hour),
        small(clock.min),
        small(clock.sec),
        0,
    );
    let zoned = civil.and_then(|civil| civil.to_zoned(TimeZone::UTC));
    let secs = zoned.map_or(315_532_800, |zoned| zoned.timestamp().as_second());
    Timespec::new(secs, 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_round_down_and_clamp() {
        for (secs, want) in [
            (0, 315_532_800),
            (1_700_000_000, 1_700_000_000),
            (i64::MAX, 4_354_819_198),
        ] {
            assert_eq!(from_fat(to_fat(Timespec::new(secs, 5))).secs, want);
        }
    }
}
