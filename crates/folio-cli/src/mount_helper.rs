//! The manners of a helper of mount(8): `mount.fuse.folio SOURCE TARGET [-o OPTIONS]`, for
//! `mount -t fuse.folio` and /etc/fstab, and to remount.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

/// The names that select these manners. The kernel has the second type for a mount behind a block
/// device, as that of an image by root.
const NAMES: [&str; 2] = ["mount.fuse.folio", "mount.fuseblk.folio"];

/// Options of fstab(5) that concern mount(8) or systemd alone.
const OF_FSTAB: [&str; 10] = [
    "rw", "auto", "noauto", "user", "nouser", "users", "owner", "group", "nofail", "_netdev",
];

/// Returns the command line of `folio mount` if the program is called as a helper of mount(8).
pub(crate) fn command_line(words: Vec<OsString>) -> Vec<OsString> {
    let name = words.first().and_then(|word| Path::new(word).file_name());
    if !NAMES.iter().any(|known| name == Some(OsStr::new(known))) {
        return words;
    }
    let mut line: Vec<OsString> = ["folio", "mount", "--background"].map(Into::into).into();
    let (mut options, mut places) = (Vec::new(), Vec::new());
    let mut words = words.into_iter().skip(1);
    while let Some(word) = words.next() {
        match word.as_bytes() {
            b"-o" => options.extend(words.next()),
            // The type, the namespace: mount(8) has used them.
            b"-t" | b"-N" => drop(words.next()),
            // Unknown options are errors also with -s; -n: /etc/mtab is not a file today.
            b"-s" | b"-n" => {}
            _ => places.push(word),
        }
    }
    let mut kept: Vec<&[u8]> = Vec::new();
    let words = options
        .iter()
        .flat_map(|list| list.as_bytes().split(|byte| *byte == b','));
    let is_remount = words.clone().any(|word| word == b"remount");
    for option in words {
        match option.strip_prefix(b"key_file=") {
            // Only a remount makes a mount writable again.
            None if is_remount && option == b"rw" => kept.push(option),
            Some(path) => line.extend(["--key-file".into(), OsString::from_vec(path.into())]),
            None if is_of_fstab(option) => {}
            None => kept.push(option),
        }
    }
    if !kept.is_empty() {
        line.extend(["-o".into(), OsString::from_vec(kept.join(&b','))]);
    }
    line.extend(places);
    line
}

fn is_of_fstab(option: &[u8]) -> bool {
    option.starts_with(b"x-")
        || option.starts_with(b"comment=")
        || OF_FSTAB.iter().any(|name| name.as_bytes() == option)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(words: &[&str]) -> Vec<OsString> {
        command_line(words.iter().map(Into::into).collect())
    }

    #[test]
    fn options_of_mount_are_those_of_folio_mount() {
        let words = ["/sbin/mount.fuse.folio", "d.img@2", "/mnt", "-n", "-o"];
        let given = [
            &words[..],
            &["rw,nofail,noatime,x-systemd.automount,ttl=1s"],
        ]
        .concat();
        let expected = [
            "folio",
            "mount",
            "--background",
            "-o",
            "noatime,ttl=1s",
            "d.img@2",
            "/mnt",
        ];
        assert_eq!(line(&given), expected);
        let given = [
            &words[..],
            &["ro,key_file=/etc/a key", "-t", "fuse.folio", "-v"],
        ]
        .concat();
        let keyed = [
            "--key-file",
            "/etc/a key",
            "-o",
            "ro",
            "d.img@2",
            "/mnt",
            "-v",
        ];
        assert_eq!(line(&given), [&expected[..3], &keyed].concat());
        let given = [&words[..], &["rw,noauto,remount,ro"]].concat();
        assert_eq!(line(&given)[4], "rw,remount,ro");
        let other = ["folio", "mount", "-o", "rw"];
        assert_eq!(line(&other), other);
    }
}
