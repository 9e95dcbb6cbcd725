//! Parsers of option values: sizes, image formats and UUIDs.

use crate::image_name;
use clap::builder::{PathBufValueParser, PossibleValuesParser, TypedValueParser};
use folio::block::ImageFormat;
use folio::ext4::ExtraSpace;
use parse_size::Config;
use std::fmt;
use std::path::PathBuf;

/// Returns a parser of image format names.
pub(crate) fn image_format() -> impl TypedValueParser<Value = ImageFormat> {
    PossibleValuesParser::new(ImageFormat::ALL.map(ImageFormat::name))
        .try_map(|name| name.parse::<ImageFormat>())
}

/// Returns a parser of the names of image files. [`crate::image_name`] reads `file:` and `json:`.
pub(crate) fn image_file() -> impl TypedValueParser<Value = PathBuf> {
    PathBufValueParser::new().try_map(|path| image_name::local(&path).map(|_| path))
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
    let size = match text.strip_prefix("0x").or(text.strip_prefix("0X")) {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => Config::new().with_binary().parse_size(text).ok(),
    };
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

/// The size of a new file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NewSize {
    /// This many bytes.
    Bytes(u64),
    /// What the content needs, and some more.
    Auto(ExtraSpace),
}

/// Parses the size of a new file system: a size, `auto`, `auto+20%` or `auto+64M`.
pub(crate) fn new_size(text: &str) -> Result<NewSize, String> {
    let Some(more) = text.strip_prefix("auto") else {
        return disk_size(text).map(NewSize::Bytes);
    };
    let invalid = || format!("invalid size {text:?}: expected auto, auto+20% or auto+64M");
    let extra = match more.strip_prefix('+') {
        None if more.is_empty() => ExtraSpace::None,
        None => return Err(invalid()),
        Some(more) => match more.strip_suffix('%') {
            Some(percent) => ExtraSpace::Percent(percent.parse().map_err(|_| invalid())?),
            None => ExtraSpace::Bytes(size(more).map_err(|_| invalid())?),
        },
    };
    Ok(NewSize::Auto(extra))
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
    fn new_size_is_bytes_or_auto() {
        assert_eq!(new_size("2M"), Ok(NewSize::Bytes(2 << 20)));
        assert_eq!(new_size("auto"), Ok(NewSize::Auto(ExtraSpace::None)));
        let percent = NewSize::Auto(ExtraSpace::Percent(20));
        assert_eq!(new_size("auto+20%"), Ok(percent));
        let bytes = NewSize::Auto(ExtraSpace::Bytes(64 << 20));
        assert_eq!(new_size("auto+64M"), Ok(bytes));
        for text in [
            "auto+",
            "auto20%",
            "auto-5%",
            "automatic",
            "auto+x",
            "auto+%",
        ] {
            assert!(new_size(text).unwrap_err().contains("auto+20%"), "{text}");
        }
    }
}
