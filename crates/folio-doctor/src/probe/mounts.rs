//! `/proc/self/mountinfo`, read.

use folio::vfs::DeviceNumber;
use std::path::{Path, PathBuf};

/// A line of mountinfo (proc_pid_mountinfo(5)).
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Mount {
    pub(crate) id: u64,
    /// `st_dev` of its files, as most file systems have it.
    pub(crate) device: DeviceNumber,
    /// Which directory of the file system is its root here.
    pub(crate) root: PathBuf,
    pub(crate) mount_point: PathBuf,
    pub(crate) fs_type: String,
    pub(crate) source: String,
    /// Those of the mount and those of the file system.
    pub(crate) options: Vec<String>,
}

/// Parses the mounts of this process; skips malformed lines.
pub(crate) fn parse(text: &str) -> Vec<Mount> {
    text.lines().filter_map(line).collect()
}

/// Returns the options that the kernel shows for the mount on `target`, of the mount and of its
/// file system; none if nothing is mounted there.
pub fn shown_options(target: &Path) -> Vec<String> {
    let target = target.canonicalize().unwrap_or_else(|_| target.into());
    let text = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    // The last one is the one on top.
    let mounts = parse(&text).into_iter().rev();
    mounts
        .filter(|mount| mount.mount_point == target)
        .map(|mount| mount.options)
        .next()
        .unwrap_or_default()
}

fn line(line: &str) -> Option<Mount> {
    let (mount, file_system) = line.split_once(" - ")?;
    let mut words = mount.split(' ');
    let id = words.next()?.parse().ok()?;
    let (major, minor) = words.nth(1)?.split_once(':')?;
    let device = DeviceNumber::new(major.parse().ok()?, minor.parse().ok()?);
    let (root, mount_point, options) = (words.next()?, words.next()?, words.next()?);
    let mut words = file_system.split(' ');
    let (fs_type, source, super_options) =
        (words.next()?, words.next()?, words.next().unwrap_or(""));
    let mut all: Vec<String> = Vec::new();
    for option in options
        .split(',')
        .chain(super_options.split(','))
        .filter(|option| !option.is_empty())
    {
        let option = unescape(option);
        if !all.contains(&option) {
            all.push(option);
        }
    }
    Some(Mount {
        id,
        device,
        root: unescape(root).into(),
        mount_point: unescape(mount_point).into(),
        fs_type: fs_type.to_owned(),
        source: unescape(source),
        options: all,
    })
}

/// `\040` and the like are bytes in base 8.
fn unescape(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((&first, tail)) = rest.split_first() {
        let digits = tail
            .get(..3)
            .filter(|_| first == b'\\')
            .and_then(|digits| std::str::from_utf8(digits).ok());
        match digits.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = &tail[3..];
            }
            None => {
                bytes.push(first);
                rest = tail;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// The mount that `path` (absolute) is on: by its number if that is known, else the last of the
/// longest mount points.
pub(crate) fn of<'a>(mounts: &'a [Mount], id: Option<u64>, path: &Path) -> Option<&'a Mount> {
    let by_id = id.and_then(|id| mounts.iter().find(|mount| mount.id == id));
    by_id.or_else(|| {
        let covers = mounts
            .iter()
            .filter(|mount| path.starts_with(&mount.mount_point));
        covers.max_by_key(|mount| mount.mount_point.components().count())
    })
}

impl Mount {
    /// The value of `name=value`.
    pub(crate) fn option(&self, name: &str) -> Option<&str> {
        self.options
            .iter()
            .find_map(|option| option.strip_prefix(name)?.strip_prefix('='))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
21 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw,discard
40 21 0:45 / /mnt/with\\040space rw,nosuid - fuse.bindfs /srv rw,user_id=0
41 21 254:0 /srv/data /data ro - ext4 /dev/vda rw,discard
nonsense
42 21 0:50 / / rw - overlay overlay rw,lowerdir=/a:/b\\134:c,upperdir=/u,workdir=/w
";

    #[test]
    fn lines_are_read_with_escapes_and_optional_fields() {
        let mounts = parse(TEXT);
        assert_eq!(mounts.len(), 4);
        assert_eq!(mounts[0].device, DeviceNumber::new(254, 0));
        assert_eq!(mounts[1].mount_point, Path::new("/mnt/with space"));
        assert_eq!(mounts[2].root, Path::new("/srv/data"));
        assert_eq!(mounts[2].options, ["ro", "rw", "discard"]);
        assert_eq!(mounts[3].option("lowerdir"), Some("/a:/b\\:c"));
    }

    #[test]
    fn a_mount_is_found_by_number_or_by_path() {
        let mounts = parse(TEXT);
        let id = |id, path: &str| of(&mounts, id, Path::new(path)).map(|mount| mount.id);
        assert_eq!(id(Some(41), "/anywhere"), Some(41));
        assert_eq!(id(None, "/data/x"), Some(41));
        assert_eq!(id(None, "/database"), Some(42), "the one on top");
        assert_eq!(id(Some(7), "/mnt/with space/a"), Some(40));
    }
}
