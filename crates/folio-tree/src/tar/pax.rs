//! The records of extended headers: `length key=value\n`, where the value may be any bytes.

use folio::{Errno, Error, Result, Timespec};
use std::collections::HashSet;

/// Most records of one entry. Each takes more memory than its bytes in a header.
const RECORDS_MAX: usize = 1 << 18;
/// Memory that a record takes beyond its bytes, about.
const RECORD_BYTES: usize = 64;

/// The records of one or several extended headers, later ones after earlier ones.
#[derive(Debug, Clone, Default)]
pub(super) struct Records(pub(super) Vec<(Vec<u8>, Vec<u8>)>);

impl Records {
    /// Adds the records of an extended header.
    ///
    /// # Errors
    ///
    /// EUCLEAN: a length or a separator is wrong. EFBIG: too many records.
    pub(super) fn add(&mut self, mut bytes: &[u8]) -> Result<()> {
        while !bytes.is_empty() && bytes[0] != 0 {
            let damaged = || Error::corrupt("invalid record in a PAX header");
            let space = bytes
                .iter()
                .take(20)
                .position(|byte| *byte == b' ')
                .ok_or_else(damaged)?;
            let len = decimal(&bytes[..space]).ok_or_else(damaged)?;
            let len = usize::try_from(len).map_err(|_| damaged())?;
            if len <= space + 2 || len > bytes.len() || bytes[len - 1] != b'\n' {
                return Err(damaged());
            }
            let record = &bytes[space + 1..len - 1];
            let equals = record
                .iter()
                .position(|byte| *byte == b'=')
                .ok_or_else(damaged)?;
            let (key, value) = (&record[..equals], &record[equals + 1..]);
            if self.0.len() >= RECORDS_MAX {
                let reason = format!("a file has more than {RECORDS_MAX} PAX records");
                return Err(Error::new(Errno::FBIG, reason));
            }
            self.0.push((key.to_vec(), value.to_vec()));
            bytes = &bytes[len..];
        }
        Ok(())
    }

    /// Drops all values of a key but the last one.
    pub(super) fn keep_last(&mut self) {
        let mut known = HashSet::new();
        self.0.reverse();
        self.0.retain(|(key, _)| known.insert(key.clone()));
        self.0.reverse();
    }

    /// Returns about the bytes that all records take in memory.
    pub(super) fn len_bytes(&self) -> usize {
        let len = |(key, value): &(Vec<u8>, Vec<u8>)| key.len() + value.len() + RECORD_BYTES;
        self.0.iter().map(len).sum()
    }

    /// Returns the last value of `key`; `None` if it is absent or was deleted by an empty value.
    pub(super) fn get(&self, key: &str) -> Option<&[u8]> {
        let found = self
            .0
            .iter()
            .rev()
            .find(|(known, _)| known == key.as_bytes());
        found
            .map(|(_, value)| value.as_slice())
            .filter(|value| !value.is_empty())
    }

    /// Returns the last value of `key` as a decimal number.
    pub(super) fn number(&self, key: &'static str) -> Result<Option<u64>> {
        let damaged = || Error::corrupt(format!("invalid value of {key} in a PAX header"));
        self.get(key)
            .map(|value| decimal(value).ok_or_else(damaged))
            .transpose()
    }

    /// Returns the last value of `key` as a time.
    pub(super) fn time(&self, key: &'static str) -> Result<Option<Timespec>> {
        let damaged = || Error::corrupt(format!("invalid value of {key} in a PAX header"));
        self.get(key)
            .map(|value| time(value).ok_or_else(damaged))
            .transpose()
    }

    /// Appends a record to the bytes of an extended header.
    pub(super) fn append(bytes: &mut Vec<u8>, key: &[u8], value: &[u8]) {
        // The length counts its own digits.
        let rest = key.len() + value.len() + 3;
        let mut len = rest + 1;
        while rest + len.to_string().len() != len {
            len = rest + len.to_string().len();
        }
        bytes.extend_from_slice(len.to_string().as_bytes());
        bytes.push(b' ');
        bytes.extend_from_slice(key);
        bytes.push(b'=');
        bytes.extend_from_slice(value);
        bytes.push(b'\n');
    }
}

/// Writes the name of an extended attribute as a part of a key, which ends at the first `=`. GNU
/// tar: `xattr_encode_keyword`.
pub(super) fn encoded_name(name: &[u8]) -> Vec<u8> {
    let mut encoded = Vec::with_capacity(name.len());
    for byte in name {
        match byte {
            b'%' => encoded.extend_from_slice(b"%25"),
            b'=' => encoded.extend_from_slice(b"%3D"),
            _ => encoded.push(*byte),
        }
    }
    encoded
}

/// Reads a name as [`encoded_name`] writes it. Any other `%` is kept.
pub(super) fn decoded_name(name: &[u8]) -> Vec<u8> {
    let mut decoded = Vec::with_capacity(name.len());
    let mut rest = name;
    while let Some((first, after)) = rest.split_first() {
        let (byte, after) = match after {
            [b'2', b'5', after @ ..] if *first == b'%' => (b'%', after),
            [b'3', b'D', after @ ..] if *first == b'%' => (b'=', after),
            _ => (*first, after),
        };
        decoded.push(byte);
        rest = after;
    }
    decoded
}

/// Parses decimal digits.
pub(super) fn decimal(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    std::str::from_utf8(digits).ok()?.parse().ok()
}

/// Parses seconds with an optional fraction and sign. Digits below a nanosecond are dropped.
fn time(value: &[u8]) -> Option<Timespec> {
    let (is_negative, value) = match value.strip_prefix(b"-") {
        Some(rest) => (true, rest),
        None => (false, value),
    };
    let point = value
        .iter()
        .position(|byte| *byte == b'.')
        .unwrap_or(value.len());
    let secs = i64::try_from(decimal(&value[..point])?).ok()?;
    let fraction = value.get(point + 1..).unwrap_or(b"");
    if !fraction.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let digits = fraction.iter().chain(std::iter::repeat(&b'0')).take(9);
    let nanos = digits.fold(0, |nanos, digit| nanos * 10 + u32::from(digit - b'0'));
    Some(match (is_negative, nanos) {
        (false, _) => Timespec::new(secs, nanos),
        (true, 0) => Timespec::new(-secs, 0),
        (true, _) => Timespec::new(-secs - 1, 1_000_000_000 - nanos),
    })
}

/// Formats a time as [`Records::time`] reads it.
pub(super) fn time_text(time: Timespec) -> String {
    match (time.secs, time.nanos) {
        (secs, 0) => secs.to_string(),
        (secs, nanos) if secs >= 0 => trimmed(format!("{secs}.{nanos:09}")),
        (secs, nanos) => trimmed(format!("-{}.{:09}", -(secs + 1), 1_000_000_000 - nanos)),
    }
}

fn trimmed(text: String) -> String {
    text.trim_end_matches('0').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn record_with_any_bytes_is_read_back() {
        let value: Vec<u8> = (0..=255).chain(*b"\n12 a=b\n").collect();
        let mut bytes = Vec::new();
        for len in 0..120 {
            Records::append(&mut bytes, b"key", &value[..len]);
        }
        Records::append(&mut bytes, b"SCHILY.xattr.user.x", &value);
        let mut records = Records::default();
        records.add(&bytes).unwrap();
        assert_eq!(records.0.len(), 121);
        assert!((0..120).all(|len| records.0[len].1 == value[..len]));
        assert_eq!(records.get("SCHILY.xattr.user.x"), Some(value.as_slice()));
    }

    #[test]
    fn records_beyond_the_limit_are_refused() {
        let mut records = Records::default();
        let bytes = b"4 =\n".repeat(RECORDS_MAX);
        records.add(&bytes).unwrap();
        assert_eq!(records.add(b"4 =\n").unwrap_err().errno(), Errno::FBIG);
        records.keep_last();
        assert_eq!(records.0.len(), 1);
        records.add(b"6 k=1\n6 j=2\n6 k=3\n").unwrap();
        records.keep_last();
        assert_eq!(records.get("k"), Some(&b"3"[..]));
        assert_eq!(records.0.len(), 3);
        // Small records take more memory than their bytes.
        assert!(records.len_bytes() > 3 * RECORD_BYTES);
    }

    #[test]
    fn attribute_name_has_equals_and_percent_signs() {
        for (name, key) in [
            ("user.a=b", "user.a%3Db"),
            ("user.50%3D", "user.50%253D"),
            ("user.plain", "user.plain"),
        ] {
            assert_eq!(encoded_name(name.as_bytes()), key.as_bytes());
            assert_eq!(decoded_name(key.as_bytes()), name.as_bytes());
        }
        assert_eq!(decoded_name(b"100%"), b"100%");
        assert_eq!(decoded_name(b"%3d%41"), b"%3d%41");
    }

    #[test]
    fn damaged_record_is_refused() {
        for bad in [
            "5 a=b",
            "99 a=b\n",
            "6 ab\n",
            "0 a=b\n",
            "x a=b\n",
            "3 \n",
            "18446744073709551616 a=b\n",
        ] {
            assert!(Records::default().add(bad.as_bytes()).is_err(), "{bad}");
        }
    }

    #[test]
    fn time_has_nanoseconds_and_a_sign() {
        for (text, secs, nanos) in [
            ("0", 0, 0),
            ("1.5", 1, 500_000_000),
            ("1700000000.123456789", 1_700_000_000, 123_456_789),
            ("-1", -1, 0),
            ("-0.25", -1, 750_000_000),
            ("-2.000000001", -3, 999_999_999),
        ] {
            assert_eq!(
                time(text.as_bytes()),
                Some(Timespec::new(secs, nanos)),
                "{text}"
            );
            assert_eq!(time_text(Timespec::new(secs, nanos)), text);
        }
        assert_eq!(time(b"1.1234567891"), Some(Timespec::new(1, 123_456_789)));
        assert!(time(b"").is_none() && time(b"1.x").is_none() && time(b"--1").is_none());
    }
}
