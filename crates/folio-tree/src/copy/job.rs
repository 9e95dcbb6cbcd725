//! One tree to copy, and its place in the target.

use crate::entry::join;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// One file or directory to copy, and what becomes of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CopyJob {
    /// The path in the source.
    pub from: Vec<u8>,
    /// The directory of the target to copy into.
    pub parent: Vec<u8>,
    /// The name of the copy in it; "." is the directory itself.
    pub name: Vec<u8>,
}

impl CopyJob {
    /// A copy that has the path `to`, as with `cp -T`. Its parent exists. If both are directories,
    /// the contents of `from` are added to those of `to`.
    pub fn to(from: &Path, to: &Path) -> Self {
        let to = to.as_os_str().as_bytes();
        let from = from.as_os_str().as_bytes().to_vec();
        let Some(name) = last_name(to) else {
            return Self {
                from,
                parent: to.to_vec(),
                name: b".".to_vec(),
            };
        };
        let end = to.iter().rposition(|byte| *byte != b'/');
        let end = end.map_or(0, |at| at + 1);
        let parent = &to[..end - name.len()];
        Self {
            from,
            parent: if parent.is_empty() { b"." } else { parent }.to_vec(),
            // It keeps a slash at its end, which only a directory may have.
            name: to[parent.len()..(end + 1).min(to.len())].to_vec(),
        }
    }

    /// A copy in the existing directory `directory`, under its own name. `tree/.` and `/` have no
    /// name of their own: their contents are copied.
    pub fn into_directory(from: &Path, directory: &Path) -> Self {
        let from = from.as_os_str().as_bytes();
        Self {
            from: from.to_vec(),
            parent: directory.as_os_str().as_bytes().to_vec(),
            name: last_name(from).unwrap_or(b".").to_vec(),
        }
    }

    /// Returns the path of the copy.
    pub fn target(&self) -> Vec<u8> {
        join(&self.parent, &self.name)
    }
}

/// Returns the last component; `None` for `/`, `.` and `..`.
fn last_name(path: &[u8]) -> Option<&[u8]> {
    let end = path.iter().rposition(|byte| *byte != b'/')? + 1;
    let start = path[..end]
        .iter()
        .rposition(|byte| *byte == b'/')
        .map_or(0, |at| at + 1);
    Some(&path[start..end]).filter(|name| !matches!(*name, b"." | b".."))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(job: CopyJob) -> (String, String) {
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        (text(job.parent), text(job.name))
    }

    #[test]
    fn destination_follows_cp() {
        let to = |from: &str, to: &str| shown(CopyJob::to(from.as_ref(), to.as_ref()));
        let into = |from: &str, to: &str| {
            let job = CopyJob::into_directory(from.as_ref(), to.as_ref());
            shown(job)
        };
        let pair = |a: &str, b: &str| (a.to_owned(), b.to_owned());
        assert_eq!(to("a/tree", "/srv"), pair("/", "srv"));
        assert_eq!(into("a/tree/", "/srv"), pair("/srv", "tree"));
        assert_eq!(into("a/tree/.", "/srv"), pair("/srv", "."));
        assert_eq!(to("a/tree", "/"), pair("/", "."));
        assert_eq!(to("a/tree", "/srv//"), pair("/", "srv/"));
        assert_eq!(to("/", "back"), pair(".", "back"));
        assert_eq!(to("f", "x/y"), pair("x/", "y"));
    }
}
