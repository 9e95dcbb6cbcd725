//! The nearest valid word, for messages about an invalid one.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Names of a directory that are compared.
const NAMES_MAX: usize = 100_000;

/// Returns the known word with the smallest edit distance, if that is small enough for a typing
/// mistake.
pub(crate) fn nearest<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let lower = word.to_lowercase();
    let mistakes_max = (word.chars().count() / 3).max(1);
    known
        .into_iter()
        .filter(|candidate| *candidate != word)
        .map(|candidate| {
            (
                strsim::osa_distance(&lower, &candidate.to_lowercase()),
                candidate,
            )
        })
        .filter(|(distance, candidate)| {
            *distance <= mistakes_max && *distance < candidate.chars().count()
        })
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

/// Returns a missing path with its first missing name replaced by the nearest existing one. `names`
/// lists a directory, and returns `None` if it does not exist.
pub(crate) fn nearest_path(
    path: &Path,
    names: impl Fn(&Path) -> Option<Vec<Vec<u8>>>,
) -> Option<String> {
    let parts: Vec<_> = path.components().collect();
    // The root always exists.
    for len in 1..parts.len() {
        let above: std::path::PathBuf = parts[..len].iter().collect();
        let part = parts[len].as_os_str();
        let found = names(&above)?;
        if found.iter().any(|name| name == part.as_bytes()) {
            continue;
        }
        let found: Vec<_> = found
            .iter()
            .take(NAMES_MAX)
            .filter_map(|name| std::str::from_utf8(name).ok())
            .collect();
        let name = nearest(part.to_str()?, found)?;
        return above.join(OsStr::new(name)).to_str().map(str::to_owned);
    }
    None
}

/// Returns the name in the directory of `path` on the host that is nearest to its own.
pub(crate) fn nearest_file(path: &Path) -> Option<String> {
    let folder = path
        .parent()
        .filter(|folder| !folder.as_os_str().is_empty())
        .unwrap_or(Path::new("."));
    let names = std::fs::read_dir(folder).ok()?.take(NAMES_MAX);
    let names: Vec<_> = names
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .collect();
    let name = nearest(
        path.file_name()?.to_str()?,
        names.iter().map(String::as_str),
    )?;
    path.with_file_name(name).to_str().map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nearest_ignores_distant_words() {
        let words = ["cache", "ttl", "push", "squash"];
        assert_eq!(nearest("chache", words), Some("cache"));
        assert_eq!(nearest("ttk", words), Some("ttl"));
        assert_eq!(nearest("CACHE", words), Some("cache"));
        assert_eq!(nearest("push", words), None);
        assert_eq!(nearest("threads", words), None);
        assert_eq!(nearest("x", ["y"]), None);
    }

    #[test]
    fn nearest_path_replaces_first_missing_name() {
        let names = |path: &Path| {
            let names: &[&str] = match path.to_str()? {
                "/" => &["etc", "srv"],
                "/etc" => &["passwd", "group"],
                _ => return None,
            };
            Some(names.iter().map(|name| name.as_bytes().to_vec()).collect())
        };
        let nearest = |path: &str| nearest_path(Path::new(path), names);
        assert_eq!(nearest("/ect/passwd"), Some("/etc".to_owned()));
        assert_eq!(nearest("/etc/paswd"), Some("/etc/passwd".to_owned()));
        assert_eq!(nearest("/etc/shells"), None);
        assert_eq!(nearest("/srv/x/y"), None);
    }
}
