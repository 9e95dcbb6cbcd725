//! ACLs as the text of acl(5), which archives keep, and as the bytes of `system.posix_acl_*`.

use folio::{Error, Result};

/// Returns the number of a user (`true`) or group of this name: ACLs of GNU tar have names.
pub(super) type FindOwner<'a> = &'a dyn Fn(bool, &[u8]) -> Option<u32>;

/// The version of the bytes. Linux: `POSIX_ACL_XATTR_VERSION`.
const VERSION: u32 = 2;
/// The id of entries without one. Linux: `ACL_UNDEFINED_ID`.
const NO_ID: u32 = u32::MAX;
/// Tags with their names in the text. Linux: `ACL_USER_OBJ` and the like.
const TAGS: [(u16, &str); 6] = [
    (0x01, "user"),
    (0x02, "user"),
    (0x04, "group"),
    (0x08, "group"),
    (0x10, "mask"),
    (0x20, "other"),
];

/// Converts the text to bytes: `user::rwx,group::r-x,user:joe:rw-:1000`. A number after the
/// permissions is the id; star(1) writes it. `find` returns the number of other names.
///
/// # Errors
///
/// EUCLEAN: the text is invalid or names an unknown user or group.
pub(super) fn from_text(text: &[u8], find: FindOwner<'_>) -> Result<Vec<u8>> {
    let shown = || String::from_utf8_lossy(&text[..text.len().min(80)]).into_owned();
    let damaged = || Error::corrupt(format!("invalid ACL {:?}", shown()));
    let mut entries = Vec::new();
    for entry in text.split(|byte| matches!(byte, b',' | b'\n')) {
        let entry = entry
            .split(|byte| *byte == b'#')
            .next()
            .unwrap_or(b"")
            .trim_ascii();
        if entry.is_empty() {
            continue;
        }
        let fields: Vec<_> = entry.split(|byte| *byte == b':').collect();
        // `mask:rwx` and `other:rwx` may omit the empty name.
        let (name, permissions) = match fields[..] {
            [_, permissions] => (&b""[..], permissions),
            [_, name, permissions, ..] => (name, permissions),
            _ => return Err(damaged()),
        };
        let is_named = !name.is_empty();
        let tag = match (fields[0], is_named) {
            (b"user" | b"u", false) => 0x01_u16,
            (b"user" | b"u", true) => 0x02,
            (b"group" | b"g", false) => 0x04,
            (b"group" | b"g", true) => 0x08,
            (b"mask" | b"m", _) => 0x10,
            (b"other" | b"o", _) => 0x20,
            _ => return Err(damaged()),
        };
        let id = if is_named {
            let number = |digits: &[u8]| std::str::from_utf8(digits).ok()?.parse().ok();
            let stored = fields.get(3).and_then(|digits| number(digits));
            let id = stored
                .or_else(|| number(name))
                .or_else(|| find(tag == 0x02, name));
            id.ok_or_else(|| {
                let name = String::from_utf8_lossy(name);
                Error::corrupt(format!("ACL with the unknown owner {name}"))
            })?
        } else {
            NO_ID
        };
        let bits = permissions
            .iter()
            .try_fold(0_u16, |bits, letter| match letter {
                b'r' => Some(bits | 4),
                b'w' => Some(bits | 2),
                b'x' => Some(bits | 1),
                b'-' => Some(bits),
                _ => None,
            });
        entries.push((tag, id, bits.ok_or_else(damaged)?));
    }
    entries.sort_unstable();
    let mut bytes = VERSION.to_le_bytes().to_vec();
    for (tag, id, bits) in entries {
        bytes.extend_from_slice(&tag.to_le_bytes());
        bytes.extend_from_slice(&bits.to_le_bytes());
        bytes.extend_from_slice(&id.to_le_bytes());
    }
    Ok(bytes)
}

/// Converts the bytes to text; `None` if they are not an ACL.
pub(super) fn to_text(bytes: &[u8]) -> Option<String> {
    let (version, entries) = bytes.split_first_chunk::<4>()?;
    if u32::from_le_bytes(*version) != VERSION || entries.len() % 8 != 0 {
        return None;
    }
    let mut words = Vec::new();
    for entry in entries.chunks_exact(8) {
        let tag = u16::from_le_bytes([entry[0], entry[1]]);
        let bits = u16::from_le_bytes([entry[2], entry[3]]);
        let id = u32::from_le_bytes([entry[4], entry[5], entry[6], entry[7]]);
        let (_, name) = TAGS.iter().find(|(known, _)| *known == tag)?;
        let letter = |bit, letter| if bits & bit == 0 { '-' } else { letter };
        let id = if matches!(tag, 0x02 | 0x08) {
            id.to_string()
        } else {
            String::new()
        };
        words.push(format!(
            "{name}:{id}:{}{}{}",
            letter(4, 'r'),
            letter(2, 'w'),
            letter(1, 'x')
        ));
    }
    Some(words.join(","))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn joe(is_user: bool, name: &[u8]) -> Option<u32> {
        (is_user && name == b"joe").then_some(1000)
    }

    #[test]
    fn text_is_read_back() {
        let text = "user::rw-,user:1000:r--,group::r-x,group:7:---,mask::rwx,other::--x";
        let bytes = from_text(text.as_bytes(), &joe).unwrap();
        assert_eq!(bytes.len(), 4 + 6 * 8);
        assert_eq!(to_text(&bytes).as_deref(), Some(text));
        let other = "other::--x\nu::rw-\nuser:joe:r--,g::r-x,group:adm:---:7\nm:rwx # effective";
        assert_eq!(from_text(other.as_bytes(), &joe).unwrap(), bytes);
    }

    #[test]
    fn invalid_text_is_refused() {
        for bad in [
            "user",
            "user:ann:rwx",
            "u::rwq",
            "boss::rwx",
            "user:5000000000:rwx",
            "group:joe:rwx",
        ] {
            assert!(from_text(bad.as_bytes(), &joe).is_err(), "{bad}");
        }
        assert!(to_text(b"\x02\0\0\0abc").is_none() && to_text(b"").is_none());
    }
}
