//! Parsers of option values: sizes, times, image formats and UUIDs.

use clap::builder::{PossibleValuesParser, TypedValueParser};
use folio::block::ImageFormat;
use folio_tree::NewSize;
use std::fmt;
use std::time::Duration;

/// Returns a parser of image format names.
pub(crate) fn image_format() -> impl TypedValueParser<Value = ImageFormat> {
    PossibleValuesParser::new(ImageFormat::ALL.map(ImageFormat::name))
        .try_map(|name| name.parse::<ImageFormat>())
}

/// A word that cannot be read as a size.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct InvalidSize(String);

impl fmt::Display for InvalidSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(word) = self;
        write!(
            f,
            "invalid size {word:?}: expected a number with K, M, G or T (e.g. 512M)"
        )
    }
}

impl std::error::Error for InvalidSize {}

impl From<InvalidSize> for String {
    fn from(invalid: InvalidSize) -> Self {
        invalid.to_string()
    }
}

/// Parses a size in bytes: a number with K, M, G, T or P, in units of 1024 as in mke2fs and
/// qemu-img.
pub(crate) fn size(text: &str) -> Result<u64, InvalidSize> {
    let size = folio_tree::parse_size(text);
    size.ok_or_else(|| InvalidSize(text.to_owned()))
}

/// Parses the size of a page cache, in bytes.
pub(crate) fn cache_size(text: &str) -> Result<u64, String> {
    let size = size(text)?;
    if size < 1 << 20 {
        Err(format!(
            "invalid size {text:?}: the page cache needs at least 1M"
        ))
    } else {
        Ok(size)
    }
}

/// Parses the size of a disk, in bytes; zero is invalid.
pub(crate) fn disk_size(text: &str) -> Result<u64, String> {
    match size(text)? {
        0 => Err(format!(
            "invalid size {text:?}: a disk needs at least 1 byte"
        )),
        size => Ok(size),
    }
}

/// Parses the size of a new file system: a size, `auto`, `auto+20%` or `auto+64M`.
pub(crate) fn new_size(text: &str) -> Result<NewSize, String> {
    text.parse()
        .map_err(|error: folio::Error| error.to_string())
}

/// Parses a time up to a day: a number with `us`, `ms`, `s`, `m` or `h`, or without a unit seconds.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    time_from(0.0, text)
}

/// Parses the time of a measurement, from 2 seconds to a day.
pub(crate) fn measured_time(text: &str) -> Result<Duration, String> {
    time_from(2.0, text)
}

/// Parses the time between two rounds, from 10 milliseconds to a day.
pub(crate) fn interval(text: &str) -> Result<Duration, String> {
    time_from(0.01, text)
}

fn time_from(least_s: f64, text: &str) -> Result<Duration, String> {
    let digits = text.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
    let unit_s = match &text[digits.len()..] {
        "us" => 1e-6,
        "ms" => 1e-3,
        "" | "s" => 1.0,
        "m" => 60.0,
        "h" => 3600.0,
        _ => f64::NAN,
    };
    match digits.parse::<f64>().map(|number| number * unit_s) {
        Ok(seconds) if (least_s..=86_400.0).contains(&seconds) => {
            Ok(Duration::from_secs_f64(seconds))
        }
        _ => Err(format!(
            "invalid time {text:?}: expected {least_s}s to 24h, with us, ms, s, m or h (e.g. 30s)"
        )),
    }
}

/// Parses a UUID, with or without dashes.
pub(crate) fn uuid(text: &str) -> Result<[u8; 16], String> {
    let digits: String = text.chars().filter(|c| *c != '-').collect();
    let error = || {
        format!(
            "invalid UUID {text:?}: expected 32 hexadecimal digits \
             (e.g. 2f1d9c34-6f0e-4a6e-9d0c-5a3b7f2e8c11)"
        )
    };
    if digits.len() != 32 {
        return Err(error());
    }
    u128::from_str_radix(&digits, 16)
        .map(u128::to_be_bytes)
        .map_err(|_| error())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn size_units_are_powers_of_1024() {
        assert_eq!(size("4k"), Ok(4096));
        assert_eq!(size("10G"), Ok(10 << 30));
        assert_eq!(size("1.5M"), Ok(3 << 19));
        assert_eq!(size("0x10000"), Ok(1 << 16));
        assert!(
            size("ten").is_err()
                && size("").is_err()
                && size("-1").is_err()
                && disk_size("0").is_err()
        );
    }

    #[test]
    fn time_units_are_those_of_systemd() {
        let micros = |text| duration(text).map(|time| time.as_micros());
        assert_eq!(micros("0"), Ok(0));
        assert_eq!(micros("250us"), Ok(250));
        assert_eq!(micros("1.5s"), micros("1500ms"));
        assert_eq!(micros("30"), micros("0.5m"));
        assert_eq!(micros("24h"), Ok(86_400_000_000));
        for text in ["", "m", "-1s", "25h", "1d", "nan", "infs", "1 s"] {
            assert!(duration(text).is_err(), "{text}");
        }
        measured_time("1s").expect_err("too short");
        interval("5ms").expect_err("too short");
    }
}
