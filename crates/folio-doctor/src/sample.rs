//! Sampling: a few files that represent a directory.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// Entries that are looked at.
const ENTRIES_MAX: usize = 20_000;

/// The files that represent a directory.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Sample {
    /// The largest, the one changed last, and one of the size in the middle; each once.
    pub files: Vec<PathBuf>,
    /// Regular files that were met.
    pub met: usize,
    /// Whether the whole tree was looked at.
    pub is_complete: bool,
}

struct Met {
    path: PathBuf,
    size_bytes: u64,
    modified: SystemTime,
}

/// Picks files below `folder`, on its own file system, following no symbolic link.
pub fn sample(folder: &Path) -> Sample {
    let device = fs::metadata(folder).map(|metadata| metadata.dev()).ok();
    let mut open = vec![folder.to_path_buf()];
    let (mut met, mut entries) = (Vec::new(), 0);
    while let Some(folder) = open.pop() {
        for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
            entries += 1;
            if entries > ENTRIES_MAX {
                return pick(met, false);
            }
            let Ok(metadata) = entry.metadata() else {
                continue;
            };
            if metadata.is_dir() && Some(metadata.dev()) == device {
                open.push(entry.path());
            } else if metadata.is_file() && metadata.len() > 0 {
                let modified = metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH);
                met.push(Met {
                    path: entry.path(),
                    size_bytes: metadata.len(),
                    modified,
                });
            }
        }
    }
    pick(met, true)
}

fn pick(mut met: Vec<Met>, is_complete: bool) -> Sample {
    // By name where all else is equal, so that the same tree gives the same files.
    met.sort_by(|a, b| (b.size_bytes, &a.path).cmp(&(a.size_bytes, &b.path)));
    let latest = met
        .iter()
        .max_by(|a, b| (a.modified, &b.path).cmp(&(b.modified, &a.path)));
    let mut files: Vec<PathBuf> = Vec::new();
    for one in [met.first(), latest, met.get(met.len() / 2)]
        .into_iter()
        .flatten()
    {
        if !files.contains(&one.path) {
            files.push(one.path.clone());
        }
    }
    Sample {
        files,
        met: met.len(),
        is_complete,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn largest_latest_and_median_files_are_sampled() {
        let folder = tempfile::TempDir::new().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::create_dir(at("below")).unwrap();
        for (name, len) in [
            ("a", 10),
            ("below/big", 1000),
            ("c", 100),
            ("d", 50),
            ("empty", 0),
        ] {
            fs::write(at(name), vec![1; len]).unwrap();
            let second = std::time::Duration::from_secs(1_000_000 + len as u64);
            fs::File::options()
                .write(true)
                .open(at(name))
                .unwrap()
                .set_modified(SystemTime::UNIX_EPOCH + second)
                .unwrap();
        }
        fs::File::options()
            .write(true)
            .open(at("a"))
            .unwrap()
            .set_modified(SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(2_000_000))
            .unwrap();
        let found = sample(folder.path());
        assert_eq!(found.files, [at("below/big"), at("a"), at("d")]);
        assert_eq!((found.met, found.is_complete), (4, true));
        assert_eq!(sample(&at("below")).files, [at("below/big")]);
        assert_eq!(sample(&at("nowhere")).files, Vec::<PathBuf>::new());
    }
}
