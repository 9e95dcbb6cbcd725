//! Device tables of makedevs and genext2fs, and pseudo files of mksquashfs.
//!
//! ```text
//!   table:   NAME TYPE MODE UID GID MAJOR MINOR START INC COUNT      "-" for columns without use
//!            |xattr CAPABILITIES                                     of the file above
//!   pseudo:  NAME TYPE MODE UID GID [MAJOR MINOR | TARGET]           also m, s, l, x, and D B C M S
//! ```
//!
//! Both are read line by line, so a file may mix them. The types `f` and `F` of pseudo files run
//! commands and are refused; in a table `f` is an existing file, and `F` one that may be missing.
//! The mode, user and group -1 of a table stay as they are.

use super::capabilities;
use super::entry::{ManifestEntries, ManifestEntry, ManifestKind, Owner, line_error, plain_path};
use crate::base64::base64_decoded;
use folio::{Result, Timespec};
use std::borrow::Cow;

/// Most device nodes of one line.
const COUNT_MAX: u32 = 4096;

/// Parses a table.
pub(super) fn parse(text: &[u8]) -> Result<Vec<ManifestEntry>> {
    let mut entries = ManifestEntries::new(text.len());
    for (at, line) in text.split(|byte| *byte == b'\n').enumerate() {
        let line_number = at + 1;
        let text = String::from_utf8_lossy(line);
        let text = text.trim_start().trim_end_matches('\r');
        if text.is_empty() || text.starts_with('#') {
            continue;
        }
        if let Some(xattr) = text.strip_prefix("|xattr") {
            let last = entries.last_mut();
            let last = last.ok_or_else(|| line_error(line_number, "|xattr without a file"))?;
            let (name, value) = split_xattr(xattr.trim(), line_number)?;
            last.xattrs.push((name.to_vec(), value.to_vec()));
            continue;
        }
        if let (head, Some(xattr)) = columns(text, 2)
            && head[1] == "x"
        {
            let mut entry = ManifestEntry::new(path(&head[0], line_number)?, line_number);
            let (name, value) = split_xattr(xattr, line_number)?;
            let value = decode(&value).map_err(|form| {
                line_error(
                    line_number,
                    format!("invalid value of an extended attribute: expected {form}"),
                )
            })?;
            entry.xattrs.push((name.to_vec(), value));
            entries.push(entry)?;
            continue;
        }
        parse_line(&columns(text, usize::MAX).0, line_number, &mut entries)?;
    }
    Ok(entries.into_vec())
}

/// Splits at blanks; double quotes and backslashes keep them, as mksquashfs reads names. After
/// `count` columns it returns the rest of the line as it is.
fn columns(text: &str, count: usize) -> (Vec<String>, Option<&str>) {
    let (mut columns, mut word, mut is_quoted) = (Vec::new(), None, false);
    let mut letters = text.chars();
    loop {
        if columns.len() == count {
            return (columns, Some(letters.as_str().trim_start()));
        }
        let Some(letter) = letters.next() else { break };
        match letter {
            '"' => {
                is_quoted = !is_quoted;
                word.get_or_insert_with(String::new);
            }
            '\\' => word.get_or_insert_with(String::new).extend(letters.next()),
            blank if blank.is_whitespace() && !is_quoted => columns.extend(word.take()),
            letter => word.get_or_insert_with(String::new).push(letter),
        }
    }
    columns.extend(word);
    (columns, None)
}

fn split_xattr(text: &str, line: usize) -> Result<(Cow<'_, [u8]>, Cow<'_, [u8]>)> {
    if capabilities::is_text(text) {
        let value = capabilities::parse(text).map_err(|why| line_error(line, why))?;
        return Ok((capabilities::XATTR.into(), value.into()));
    }
    let (name, value) = text
        .split_once('=')
        .ok_or_else(|| line_error(line, "invalid extended attribute: expected NAME=VALUE"))?;
    Ok((name.as_bytes().into(), value.as_bytes().into()))
}

/// Decodes the value of an extended attribute, whose prefix is its form, as mksquashfs 4.6 does:
/// `0s` base64, `0x` hexadecimal, `0t` text with backslashes and three octal digits, `0b` bytes.
///
/// # Errors
///
/// The name of the form that the value contradicts.
fn decode(value: &[u8]) -> std::result::Result<Vec<u8>, &'static str> {
    let [b'0', form, rest @ ..] = value else {
        return Ok(value.to_vec());
    };
    let (name, decoded) = match form.to_ascii_lowercase() {
        b's' => ("base64 after 0s", base64_decoded(rest)),
        b'x' => ("pairs of hexadecimal digits after 0x", hex_decoded(rest)),
        b't' => ("text with \\ooo for a byte after 0t", octal_decoded(rest)),
        b'b' => ("bytes after 0b", Some(rest.to_vec())),
        _ => return Ok(value.to_vec()),
    };
    decoded.filter(|_| !rest.is_empty()).ok_or(name)
}

fn hex_decoded(text: &[u8]) -> Option<Vec<u8>> {
    let digit = |letter: u8| (letter as char).to_digit(16);
    let (pairs, rest) = text.as_chunks::<2>();
    let byte = |[high, low]: &[u8; 2]| Some((digit(*high)? << 4 | digit(*low)?) as u8);
    pairs
        .iter()
        .map(byte)
        .collect::<Option<_>>()
        .filter(|_| rest.is_empty())
}

fn octal_decoded(mut text: &[u8]) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len());
    while let Some((first, mut rest)) = text.split_first() {
        let mut byte = *first;
        if byte == b'\\' {
            let (digits, after) = rest.split_first_chunk::<3>()?;
            let digit = |sum: u32, letter: &u8| Some(sum << 3 | (*letter as char).to_digit(8)?);
            byte = u8::try_from(digits.iter().try_fold(0, digit)?).ok()?;
            rest = after;
        }
        bytes.push(byte);
        text = rest;
    }
    Some(bytes)
}

fn path(name: &str, line: usize) -> Result<Vec<u8>> {
    plain_path(name.as_bytes()).ok_or_else(|| line_error(line, "the name has '..'"))
}

fn parse_line(columns: &[String], line: usize, entries: &mut ManifestEntries) -> Result<()> {
    let column = |at: usize| {
        columns
            .get(at)
            .map(String::as_str)
            .filter(|text| !matches!(*text, "-" | "-1"))
    };
    let missing = || line_error(line, "invalid line: expected NAME TYPE MODE UID GID ...");
    let name = columns.first().ok_or_else(missing)?;
    let mut entry = ManifestEntry::new(path(name, line)?, line);
    let letter = column(1).ok_or_else(missing)?;
    let is_timed = matches!(letter, "D" | "B" | "C" | "M" | "S" | "I");
    if letter == "l" {
        let target = column(2).and_then(|target| plain_path(target.as_bytes()));
        entry.kind = Some(ManifestKind::HardLink(target.ok_or_else(missing)?));
        return entries.push(entry);
    }
    let skip = usize::from(is_timed);
    if is_timed {
        let secs = column(2).and_then(|text| text.parse().ok());
        let secs = secs.ok_or_else(|| line_error(line, "invalid time: expected seconds"))?;
        entry.modified = Some(Timespec::new(secs, 0));
    }
    let is_number = |text: &String| text == "-" || text.parse::<u32>().is_ok();
    let is_table = columns.len() >= 8 && columns[5..].iter().all(is_number);
    let mode = column(2 + skip).map(|text| {
        u16::from_str_radix(text, 8)
            .ok()
            .filter(|mode| *mode <= 0o7777)
            .ok_or_else(|| {
                line_error(
                    line,
                    format!("invalid mode {text:?}: expected octal digits"),
                )
            })
    });
    entry.mode = mode.transpose()?;
    entry.user = column(3 + skip).map(Owner::parse);
    entry.group = column(4 + skip).map(Owner::parse);
    entry.is_recursive = letter == "r";
    entry.is_optional = letter == "F";
    entry.kind = kind(
        letter,
        &columns[(5 + skip).min(columns.len())..],
        is_table,
        line,
    )?;
    add_nodes(&entry, &column, entries)
}

/// Returns the kind of a type letter; `rest` are the columns after the group.
fn kind(
    letter: &str,
    rest: &[String],
    is_table: bool,
    line: usize,
) -> Result<Option<ManifestKind>> {
    let missing = || line_error(line, format!("type {letter:?} needs more columns"));
    let number = |at: usize| rest.get(at).and_then(|text| text.parse::<u32>().ok());
    let device = || number(0).zip(number(1)).ok_or_else(missing);
    let kind = match letter {
        "d" | "D" => ManifestKind::Directory,
        "m" | "M" => return Ok(None),
        "f" | "F" | "r" if is_table => return Ok(None),
        "p" => ManifestKind::Fifo,
        "i" | "I" if rest.first().is_some_and(|kind| kind == "s") => ManifestKind::Socket,
        "i" | "I" => ManifestKind::Fifo,
        "s" | "S" => ManifestKind::Symlink(rest.first().ok_or_else(missing)?.clone().into_bytes()),
        "c" | "C" => device().map(|(major, minor)| ManifestKind::CharacterDevice(major, minor))?,
        "b" | "B" => device().map(|(major, minor)| ManifestKind::BlockDevice(major, minor))?,
        "x" => return Err(missing()),
        "f" | "F" => {
            return Err(line_error(line, "files made by commands are not supported"));
        }
        other => return Err(line_error(line, format!("unknown type {other:?}"))),
    };
    Ok(Some(kind))
}

/// Adds an entry, or those of a table's line with a count: NAME followed by START and the following
/// numbers, where the minor number grows by INC.
fn add_nodes<'a>(
    entry: &ManifestEntry,
    column: &dyn Fn(usize) -> Option<&'a str>,
    entries: &mut ManifestEntries,
) -> Result<()> {
    let number = |at: usize| column(at).and_then(|text| text.parse::<u32>().ok());
    let count = number(9).unwrap_or(0);
    if count == 0 {
        return entries.push(entry.clone());
    }
    if count > COUNT_MAX {
        return Err(line_error(
            entry.line,
            format!("more than {COUNT_MAX} device nodes"),
        ));
    }
    let (start, step) = (number(7).unwrap_or(0), number(8).unwrap_or(1));
    for at in 0..count {
        let mut one = entry.clone();
        one.path
            .extend_from_slice(start.saturating_add(at).to_string().as_bytes());
        let grown = at.saturating_mul(step);
        if let Some(ManifestKind::CharacterDevice(_, minor) | ManifestKind::BlockDevice(_, minor)) =
            &mut one.kind
        {
            *minor = minor.saturating_add(grown);
        }
        entries.push(one)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_of_buildroot_are_read() {
        let text = b"/bin/ping F 4755 0 0 - - - - -\n|xattr cap_net_raw+ep\n\
            /srv r -1 -1 100 - - - - -\n";
        let entries = parse(text).unwrap();
        assert!(entries[0].is_optional && entries[0].kind.is_none());
        assert_eq!(entries[0].xattrs[0].0, b"security.capability");
        let srv = &entries[1];
        assert!(srv.is_recursive && srv.mode.is_none() && srv.user.is_none());
        assert_eq!(srv.group, Some(Owner::Number(100)));
        // A command with arguments has as many columns as a table.
        for bad in [
            "/x f 644 0 0 cat a b",
            "/x F 1 644 0 0 echo a",
            "/x m 644 0 0\n|xattr cap_a+p",
        ] {
            assert!(parse(bad.as_bytes()).is_err(), "{bad}");
        }
    }

    #[test]
    fn table_and_pseudo_file_are_read() {
        let text = b"# makedevs\n\
            /dev d 755 0 0 - - - - -\n\
            /dev/tty c 666 0 5 5 0 0 0 -\n\
            /dev/ram b 640 root disk 1 1 0 1 3\n\
            /srv r -1 1000 100 - - - - -\n";
        let entries = parse(text).unwrap();
        assert_eq!(entries.len(), 6);
        assert_eq!(entries[1].kind, Some(ManifestKind::CharacterDevice(5, 0)));
        assert_eq!(entries[4].path, b"dev/ram2");
        assert_eq!(entries[4].kind, Some(ManifestKind::BlockDevice(1, 3)));
        assert_eq!(entries[4].group, Some(Owner::Name("disk".to_owned())));
        assert!(entries[5].is_recursive && entries[5].mode.is_none());
        let text = "\"a b\" s 777 0 0 target\n/x m 4755 1 2\n/y D 99 700 0 0\n/y x user.a=b c\n\
            /l l /x\n/c c 600 0 0 1 3\n";
        let entries = parse(text.as_bytes()).unwrap();
        assert_eq!(entries[0].path, b"a b");
        assert_eq!(
            (entries[1].kind.clone(), entries[1].mode),
            (None, Some(0o4755))
        );
        assert_eq!(entries[2].modified, Some(Timespec::new(99, 0)));
        assert_eq!(entries[3].xattrs, [(b"user.a".to_vec(), b"b c".to_vec())]);
        assert_eq!(entries[4].kind, Some(ManifestKind::HardLink(b"x".to_vec())));
        for bad in [
            "/x f 644 0 0 ls",
            "/x q 644 0 0",
            "/../x m 644 0 0",
            "/x",
            "/x c 644 0 0 1",
            "/x x",
            "/x x user.a",
        ] {
            let error = parse(bad.as_bytes()).unwrap_err().to_string();
            assert!(error.starts_with("line 1: "), "{bad}: {error}");
        }
    }

    #[test]
    fn pseudo_xattr_value_is_decoded_by_prefix() {
        let value = |text: &str| {
            let mut entries = parse(format!("\"a b\"  x  user.a={text}\n").as_bytes())?;
            assert_eq!(entries[0].path, b"a b");
            Ok::<_, folio::Error>(entries.pop().unwrap().xattrs.pop().unwrap().1)
        };
        for (text, want) in [
            ("0saGk=", &b"hi"[..]),
            ("0SaGk", b"hi"),
            ("0x00fF", b"\0\xff"),
            ("0X6869", b"hi"),
            (r"0ta\000\134b \377", b"a\0\\b \xff"),
            ("0b0x00", b"0x00"),
            // Nothing else changes a value: neither quotes nor backslashes nor blanks.
            (r#"a  "b\n" "#, br#"a  "b\n" "#),
            ("0", b"0"),
            ("0q", b"0q"),
        ] {
            assert_eq!(value(text).unwrap(), want, "{text}");
        }
        for bad in [
            "0s", "0sa", "0s!", "0x", "0x1", "0xzz", "0t", r"0t\n", r"0t\400", "0b",
        ] {
            let error = value(bad).unwrap_err().to_string();
            assert!(error.contains("line 1: invalid value"), "{bad}: {error}");
        }
    }
}
