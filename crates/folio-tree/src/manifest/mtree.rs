//! mtree(5): paths, or names within directories, with KEY=VALUE words.

use super::entry::{ManifestEntries, ManifestEntry, ManifestKind, Owner, line_error, plain_path};
use crate::mode::parse_mode;
use folio::vfs::{Attributes, FileType};
use folio::{Result, Timespec};
use std::collections::BTreeMap;
use std::fmt::Write;

/// The first line of a written manifest.
pub const MTREE_HEADER: &str = "#mtree";

/// Whether a text is in this format.
pub(super) fn is_mtree(text: &[u8]) -> bool {
    let has_key = |word: &str| {
        ["type=", "mode=", "uid=", "gid=", "uname=", "gname="]
            .iter()
            .any(|key| word.starts_with(key))
    };
    String::from_utf8_lossy(text)
        .lines()
        .take(1000)
        .any(|line| {
            line.starts_with(MTREE_HEADER)
                || line.starts_with("/set")
                || line.split_whitespace().skip(1).any(has_key)
        })
}

/// Parses a manifest.
pub(super) fn parse(text: &[u8]) -> Result<Vec<ManifestEntry>> {
    let mut entries = ManifestEntries::new(text.len());
    let mut defaults: BTreeMap<String, String> = BTreeMap::new();
    // The directories of names without a slash.
    let mut folders: Vec<Vec<u8>> = Vec::new();
    let mut logical = String::new();
    for (at, line) in String::from_utf8_lossy(text).lines().enumerate() {
        let number = at + 1;
        let part = line.trim();
        if let Some(part) = part.strip_suffix('\\') {
            logical.push_str(part);
            logical.push(' ');
            continue;
        }
        logical.push_str(part);
        let line = std::mem::take(&mut logical);
        let mut words = line.split_whitespace();
        let Some(name) = words.next().filter(|name| !name.starts_with('#')) else {
            continue;
        };
        match name {
            "/set" => {
                let owned = |(key, value): (&str, &str)| (key.to_owned(), value.to_owned());
                defaults.extend(words.map(pair).map(owned));
                continue;
            }
            "/unset" => {
                words.for_each(|word| drop(defaults.remove(word)));
                continue;
            }
            ".." => {
                folders
                    .pop()
                    .ok_or_else(|| line_error(number, "'..' above the root"))?;
                continue;
            }
            _ => {}
        }
        let keys = Keys {
            own: words.map(pair).collect(),
            defaults: &defaults,
        };
        let name = decoded(name);
        let is_path = name.contains(&b'/');
        let path = if is_path {
            name
        } else {
            let folder = folders.join(&b'/');
            [&folder[..], b"/", &name].concat()
        };
        let has_dots = || line_error(number, "the name has '..'");
        let path = plain_path(&path).ok_or_else(has_dots)?;
        let entry = entry(path, &keys, number)?;
        if !is_path && entry.kind == Some(ManifestKind::Directory) {
            let name = entry
                .path
                .rsplit(|byte| *byte == b'/')
                .next()
                .unwrap_or(b"");
            folders.push(name.to_vec());
        }
        entries.push(entry)?;
    }
    Ok(entries.into_vec())
}

/// The words of a line, and the defaults of `/set`. They are not merged: a copy of all defaults for
/// each line takes a time that grows with the square of the manifest.
struct Keys<'a> {
    own: BTreeMap<&'a str, &'a str>,
    defaults: &'a BTreeMap<String, String>,
}

impl Keys<'_> {
    fn get(&self, key: &str) -> Option<&str> {
        let default = || self.defaults.get(key).map(String::as_str);
        self.own.get(key).copied().or_else(default)
    }
}

fn pair(word: &str) -> (&str, &str) {
    word.split_once('=').unwrap_or((word, ""))
}

fn entry(path: Vec<u8>, keys: &Keys<'_>, line: usize) -> Result<ManifestEntry> {
    let value = |key: &str| keys.get(key);
    let invalid = |key: &str| line_error(line, format!("invalid value of {key}"));
    let mut entry = ManifestEntry::new(path, line);
    entry.is_optional = value("optional").is_some();
    // A symbolic mode changes mode 0, as in mtree(8).
    let is_directory = value("type") == Some("dir");
    entry.mode = value("mode")
        .map(|text| parse_mode(text, 0, is_directory).map_err(|_| invalid("mode")))
        .transpose()?;
    let owner = |number: &str, name: &str| -> Result<Option<Owner>> {
        match (value(number), value(name)) {
            (Some(text), _) => Ok(Some(Owner::Number(
                text.parse().map_err(|_| invalid(number))?,
            ))),
            (None, Some(name)) => Ok(Some(Owner::Name(name.to_owned()))),
            (None, None) => Ok(None),
        }
    };
    entry.user = owner("uid", "uname")?;
    entry.group = owner("gid", "gname")?;
    entry.modified = value("time")
        .map(|text| time(text).ok_or_else(|| invalid("time")))
        .transpose()?;
    let device = || {
        value("device")
            .and_then(device)
            .ok_or_else(|| invalid("device"))
    };
    entry.kind = match value("type") {
        None => None,
        Some("file") => Some(ManifestKind::File),
        Some("dir") => Some(ManifestKind::Directory),
        Some("link") => {
            let target = value("link").ok_or_else(|| invalid("link"))?;
            Some(ManifestKind::Symlink(decoded(target)))
        }
        Some("char") => {
            device().map(|(major, minor)| Some(ManifestKind::CharacterDevice(major, minor)))?
        }
        Some("block") => {
            device().map(|(major, minor)| Some(ManifestKind::BlockDevice(major, minor)))?
        }
        Some("fifo") => Some(ManifestKind::Fifo),
        Some("socket") => Some(ManifestKind::Socket),
        Some(_) => return Err(invalid("type")),
    };
    Ok(entry)
}

/// Parses `SECONDS.NANOSECONDS`, where the second number is a count and not a fraction.
fn time(text: &str) -> Option<Timespec> {
    let (secs, nanos) = text.split_once('.').unwrap_or((text, "0"));
    let nanos: u32 = nanos.parse().ok()?;
    (nanos < 1_000_000_000).then_some(Timespec::new(secs.parse().ok()?, nanos))
}

/// Parses `native,MAJOR,MINOR` or a number as Linux packs it.
fn device(text: &str) -> Option<(u32, u32)> {
    let number = |text: &str| match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    };
    let parts: Vec<_> = text.split(',').collect();
    match parts[..] {
        [_, major, minor] => Some((
            u32::try_from(number(major)?).ok()?,
            u32::try_from(number(minor)?).ok()?,
        )),
        // Linux: makedev(3), of numbers below 2^32.
        [packed] => {
            let packed = u32::try_from(number(packed)?).ok()?;
            Some((packed >> 8 & 0xfff, packed & 0xff | packed >> 12 & 0xfff00))
        }
        _ => None,
    }
}

/// Decodes the escapes of vis(3) that mtree writes: `\ooo`, and a backslash before itself.
fn decoded(text: &str) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let digits = after
            .get(..3)
            .filter(|digits| digits.iter().all(|d| (b'0'..=b'7').contains(d)));
        match (first, digits) {
            (b'\\', Some(digits)) => {
                let value = digits
                    .iter()
                    .fold(0_u16, |value, digit| value * 8 + u16::from(digit - b'0'));
                bytes.push(value as u8);
                rest = &after[3..];
            }
            (b'\\', None) => {
                let (letter, after) = after.split_first().map_or((b'\\', after), |(l, a)| (*l, a));
                bytes.push(match letter {
                    b's' => b' ',
                    b't' => b'\t',
                    b'n' => b'\n',
                    other => other,
                });
                rest = after;
            }
            (byte, _) => {
                bytes.push(*byte);
                rest = after;
            }
        }
    }
    bytes
}

fn encoded(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for byte in bytes {
        match byte {
            b'\\' | b'#' | b'=' | 0..=b' ' | 0x7f.. => drop(write!(text, "\\{byte:03o}")),
            byte => text.push(char::from(*byte)),
        }
    }
    text
}

/// Returns the line of a file, without line feed. `path` begins with `.`, as in `./etc/passwd`.
pub fn mtree_line(path: &[u8], found: &Attributes, target: Option<&[u8]>) -> String {
    let kind = match found.file_type {
        FileType::Regular => "file",
        FileType::Directory => "dir",
        FileType::Symlink => "link",
        FileType::CharacterDevice => "char",
        FileType::BlockDevice => "block",
        FileType::Fifo => "fifo",
        FileType::Socket => "socket",
    };
    let mut line = format!(
        "{} type={kind} mode={:04o} uid={} gid={} time={}.{:09}",
        encoded(path),
        found.mode,
        found.uid,
        found.gid,
        found.modified.secs,
        found.modified.nanos
    );
    let more = match found.file_type {
        FileType::Regular => format!(" size={}", found.size_bytes),
        FileType::CharacterDevice | FileType::BlockDevice => {
            format!(
                " device=linux,{},{}",
                found.device.major, found.device.minor
            )
        }
        _ => target
            .map(|target| format!(" link={}", encoded(target)))
            .unwrap_or_default(),
    };
    line.push_str(&more);
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nested_names_and_paths_are_read() {
        let text = b"#mtree\n/set type=file uid=0 gid=0 mode=0644\n. type=dir mode=0755\n\
            etc type=dir\n    passwd uname=root \\\n        time=12.000000034\n    odd\\040name optional\n..\n\
            dev type=dir\nnull type=char device=native,1,3 mode=0666\n..\n\
            ./usr/bin/su mode=u=srwx,go=rx\n/unset uid\n./l type=link link=a\\134b\n";
        let entries = parse(text).unwrap();
        let paths: Vec<_> = entries
            .iter()
            .map(|one| String::from_utf8_lossy(&one.path).into_owned())
            .collect();
        assert_eq!(
            paths,
            [
                "",
                "etc",
                "etc/passwd",
                "etc/odd name",
                "dev",
                "dev/null",
                "usr/bin/su",
                "l"
            ]
        );
        assert_eq!(entries[2].modified, Some(Timespec::new(12, 34)));
        assert!(entries[3].is_optional && entries[3].user == Some(Owner::Number(0)));
        assert_eq!(entries[5].kind, Some(ManifestKind::CharacterDevice(1, 3)));
        assert_eq!(entries[6].mode, Some(0o4755));
        assert_eq!(
            entries[7].kind,
            Some(ManifestKind::Symlink(b"a\\b".to_vec()))
        );
        assert_eq!(entries[7].user, None);
        assert!(is_mtree(text) && !is_mtree(b"/dev d 755 0 0 - - - - -"));
        for bad in [
            "..",
            "./a/../b type=file",
            "x type=what",
            "x mode=9",
            "x type=char",
        ] {
            assert!(parse(bad.as_bytes()).is_err(), "{bad}");
        }
    }

    #[test]
    fn names_with_any_bytes_are_read_back() {
        let name: Vec<u8> = (1..=255).collect();
        assert_eq!(decoded(&encoded(&name)), name);
        assert!(encoded(&name).is_ascii() && !encoded(&name).contains(' '));
    }
}
