//! The hot set: which parts of which files are in memory, kept in a file and brought back later.
//!
//! A hot set is a zstd frame of JSON lines: a head with the version, then a line for each file with
//! its path, size, time of change and the runs of pages that were in memory: `zstd -dc` shows it.
//! Files that changed since are left out: what was hot in them says nothing any more.

use crate::open::open_regular;
use crate::parallel;
use crate::residency::{Known, cached_ranges, look, page_bytes};
use crate::scan::{Found, reason};
use serde::{Deserialize, Serialize};
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, BufRead, BufReader, BufWriter, Read, Write};
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// What this library writes and reads.
const VERSION: u32 = 1;
const FORMAT: &str = "folio hot set";
/// zstd's own default: the set is small, and the machine may be about to go down.
const LEVEL: i32 = 3;
/// A line of a hostile file is no reason to use all memory: a path, and runs of a file of some
/// terabytes.
const LINE_BYTES_MAX: u64 = 64 << 20;
/// What a set is called until it is complete.
const UNFINISHED: &str = ".unfinished";

#[derive(Serialize, Deserialize)]
struct Head {
    format: String,
    version: u32,
    page_bytes: u64,
}

/// One file of a set.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Line {
    path: Name,
    size: u64,
    /// Seconds and nanoseconds.
    mtime: (i64, i64),
    inode: u64,
    /// Runs of pages: how many are skipped, how many follow.
    pages: Vec<(u64, u64)>,
}

/// A path, which need not be text.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
enum Name {
    Text(String),
    Bytes(Vec<u8>),
}

impl Name {
    fn new(path: &Path) -> Self {
        let bytes = path.as_os_str().as_bytes();
        std::str::from_utf8(bytes).map_or_else(
            |_| Self::Bytes(bytes.to_vec()),
            |text| Self::Text(text.to_owned()),
        )
    }

    fn path(self) -> PathBuf {
        match self {
            Self::Text(text) => text.into(),
            Self::Bytes(bytes) => OsStr::from_bytes(&bytes).into(),
        }
    }
}

/// What was kept, or what of it can be brought back.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Kept {
    /// Files of which something was in memory.
    pub files: u64,
    /// Bytes that were.
    pub bytes: u64,
    /// Files that are gone or were changed since.
    pub changed: u64,
    /// Files of which the kernel does not tell this user anything.
    pub not_told: u64,
    /// Paths that could not be looked at, and why.
    pub failures: Vec<(PathBuf, String)>,
}

/// Writes what of `files` is in memory to a new file that takes the place of `path` once it is
/// complete and on the disk. Only the owner may read it: it names files of all others.
pub fn save_at(files: &[Found], path: &Path) -> io::Result<Kept> {
    let mut name = path
        .file_name()
        .ok_or_else(|| invalid("is no name of a file"))?
        .to_owned();
    name.push(UNFINISHED);
    let unfinished = path.with_file_name(name);
    // Whoever left it there is gone, or about to replace what we write: the last one to finish
    // wins.
    let _ = std::fs::remove_file(&unfinished);
    let file = File::options()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&unfinished)?;
    let saved = save(files, &file).and_then(|kept| {
        file.sync_all()?;
        std::fs::rename(&unfinished, path)?;
        let folder = path
            .parent()
            .filter(|folder| !folder.as_os_str().is_empty());
        File::open(folder.unwrap_or(Path::new(".")))?.sync_all()?;
        Ok(kept)
    });
    if saved.is_err() {
        let _ = std::fs::remove_file(&unfinished);
    }
    saved
}

/// Writes what of `files` is in memory to `out`.
pub fn save(files: &[Found], out: impl Write) -> io::Result<Kept> {
    let (lines, kept) = survey(files);
    let mut out = zstd::Encoder::new(BufWriter::new(out), LEVEL)?;
    let head = Head {
        format: FORMAT.to_owned(),
        version: VERSION,
        page_bytes: page_bytes(),
    };
    serde_json::to_writer(&mut out, &head)?;
    for line in &lines {
        out.write_all(b"\n")?;
        serde_json::to_writer(&mut out, line)?;
    }
    out.write_all(b"\n")?;
    out.finish()?.flush()?;
    Ok(kept)
}

/// Looks at all files.
fn survey(files: &[Found]) -> (Vec<Line>, Kept) {
    let (mut lines, mut kept) = (Vec::new(), Kept::default());
    for (found, looked) in files
        .iter()
        .zip(parallel::map(files, |found| hot(&found.path)))
    {
        match looked {
            Ok(Some(line)) => lines.push(line),
            Ok(None) => {}
            Err(Failure::NotTold) => kept.not_told += 1,
            Err(Failure::Io(error)) => kept.failures.push((found.path.clone(), reason(&error))),
        }
    }
    lines.sort_unstable_by_key(|line| (line.inode, line.size));
    kept.files = lines.len() as u64;
    let hot = lines
        .iter()
        .flat_map(|line| ranges(&line.pages, page_bytes(), line.size).unwrap_or_default());
    kept.bytes = hot.map(|range| range.end - range.start).sum();
    (lines, kept)
}

enum Failure {
    NotTold,
    Io(io::Error),
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// What of a file is in memory; `None` if nothing is.
fn hot(path: &Path) -> Result<Option<Line>, Failure> {
    let (file, found) = open_regular(path)?;
    let Known::Is(state) = look(&file, &found, 0..found.len())? else {
        return Err(Failure::NotTold);
    };
    if state.resident_bytes == 0 {
        return Ok(None);
    }
    let mut pages = Vec::new();
    let (page, mut at) = (page_bytes(), 0);
    cached_ranges(&file, 0..found.len(), |range| {
        let run = range.start / page..range.end.div_ceil(page);
        pages.push((run.start - at, run.end - run.start));
        at = run.end;
    })?;
    let mtime = (found.mtime(), found.mtime_nsec());
    let absolute = std::path::absolute(path)?;
    let line = Line {
        path: Name::new(&absolute),
        size: found.len(),
        mtime,
        inode: found.ino(),
        pages,
    };
    Ok((!line.pages.is_empty()).then_some(line))
}

/// Reads a hot set: the parts of the files that are as they were, to be warmed.
pub fn load(input: impl Read) -> io::Result<(Vec<Found>, Kept)> {
    let mut input = BufReader::new(zstd::Decoder::new(input)?);
    // What is no zstd frame fails here.
    let first = next_line(&mut input).map_err(|_| invalid("is no hot set"))?;
    let Some(line) = first else {
        return Err(invalid("is no hot set: it is empty"));
    };
    let head: Head = serde_json::from_slice(&line).map_err(|_| invalid("is no hot set"))?;
    if head.format != FORMAT {
        return Err(invalid("is no hot set"));
    }
    if head.version != VERSION || !head.page_bytes.is_power_of_two() {
        return Err(invalid(&format!(
            "is a hot set of version {}; this folio reads {VERSION}",
            head.version
        )));
    }
    let mut parts = Vec::new();
    while let Some(line) = next_line(&mut input)? {
        let line: Line =
            serde_json::from_slice(&line).map_err(|_| invalid("is a damaged hot set"))?;
        let (size_bytes, mtime, inode) = (line.size, line.mtime, line.inode);
        let ranges = ranges(&line.pages, head.page_bytes, size_bytes);
        let ranges = ranges.ok_or_else(|| invalid("is a damaged hot set"))?;
        parts.push(Part {
            found: Found {
                path: line.path.path(),
                inode,
                ranges,
            },
            size_bytes,
            mtime,
        });
    }
    let are_same = parallel::map(&parts, Part::is_same);
    let (mut files, mut kept) = (Vec::new(), Kept::default());
    for (part, is_same) in parts.into_iter().zip(are_same) {
        if !is_same {
            kept.changed += 1;
        } else if !part.found.ranges.is_empty() {
            kept.files += 1;
            kept.bytes += part
                .found
                .ranges
                .iter()
                .map(|range| range.end - range.start)
                .sum::<u64>();
            files.push(part.found);
        }
    }
    Ok((files, kept))
}

/// A file of a set, and how it was.
struct Part {
    found: Found,
    size_bytes: u64,
    mtime: (i64, i64),
}

impl Part {
    fn is_same(&self) -> bool {
        let now = std::fs::metadata(&self.found.path);
        now.is_ok_and(|now| {
            now.is_file()
                && now.len() == self.size_bytes
                && (now.mtime(), now.mtime_nsec()) == self.mtime
        })
    }
}

/// The next line, without its end.
fn next_line(input: &mut impl BufRead) -> io::Result<Option<Vec<u8>>> {
    let mut line = Vec::new();
    input.take(LINE_BYTES_MAX).read_until(b'\n', &mut line)?;
    match line.pop() {
        None => Ok(None),
        Some(b'\n') => Ok(Some(line)),
        Some(_) => Err(invalid(
            "is a damaged hot set: it ends in the middle of a line",
        )),
    }
}

/// The bytes of runs of pages, neighbours joined; `None` if they make no sense.
fn ranges(pages: &[(u64, u64)], page_bytes: u64, size_bytes: u64) -> Option<Vec<Range<u64>>> {
    let mut ranges: Vec<Range<u64>> = Vec::new();
    let mut at = 0_u64;
    for (skipped, count) in pages {
        let start = at.checked_add(skipped.checked_mul(page_bytes)?)?;
        let end = start.checked_add(count.checked_mul(page_bytes)?)?;
        at = end;
        let range = start..end.min(size_bytes);
        match ranges.last_mut() {
            _ if range.is_empty() => {}
            Some(last) if range.start == last.end => last.end = range.end,
            _ => ranges.push(range),
        }
    }
    Some(ranges)
}

fn invalid(text: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::FileExt;

    #[test]
    fn a_set_is_loaded_as_it_was_saved_without_what_changed() {
        let folder = tempfile::TempDir::new().unwrap();
        let path = |name: &str| folder.path().join(name);
        let mut found = Vec::new();
        for name in ["one", "two", "three"] {
            std::fs::write(path(name), vec![7; 3 << 20]).unwrap();
            found.push(Found::whole(path(name), 1));
        }
        let odd = path("").join(OsStr::from_bytes(b"\xff\xfe"));
        std::fs::write(&odd, "bytes").unwrap();
        found.push(Found::whole(odd.clone(), 2));
        found.push(Found::whole(path("gone"), 3));
        let mut set = Vec::new();
        let kept = save(&found, &mut set).unwrap();
        assert_eq!((kept.files, kept.failures.len()), (4, 1));
        assert!(set.len() < 1000, "{}", set.len());
        File::options()
            .write(true)
            .open(path("two"))
            .unwrap()
            .write_all_at(b"x", 0)
            .unwrap();
        std::fs::remove_file(path("three")).unwrap();
        let (files, kept) = load(&set[..]).unwrap();
        assert_eq!((kept.files, kept.changed), (2, 2));
        assert_eq!(
            files.iter().find(|file| file.path == odd).unwrap().ranges,
            one(0..5)
        );
        assert_eq!(
            files
                .iter()
                .find(|file| file.path == path("one"))
                .unwrap()
                .ranges,
            one(0..3 << 20)
        );
    }

    fn one(range: Range<u64>) -> Vec<Range<u64>> {
        std::iter::once(range).collect()
    }

    #[test]
    fn what_is_no_set_is_refused() {
        let pack = |text: &str| zstd::encode_all(text.as_bytes(), 3).unwrap();
        let head = format!("{{\"format\":\"{FORMAT}\",\"version\":1,\"page_bytes\":4096}}\n");
        let refused = |bytes: &[u8]| load(bytes).unwrap_err().to_string();
        assert!(load(&pack(&head)[..]).unwrap().0.is_empty());
        assert!(refused(b"no zstd at all").contains("no hot set"));
        assert!(refused(&pack("")).contains("empty"));
        assert!(refused(&pack("{}\n")).contains("no hot set"));
        assert!(refused(&pack(&head.replace(":1,", ":2,"))).contains("version 2"));
        assert!(refused(&pack(&format!("{head}x\n"))).contains("damaged"));
        let line = "{\"path\":\"/x\",\"size\":9,\"mtime\":[0,0],\"inode\":1,\"pages\":[[0,18446744073709551615]]}";
        assert!(refused(&pack(&format!("{head}{line}\n"))).contains("damaged"));
        assert!(refused(&pack(&format!("{head}{line}"))).contains("middle"));
    }

    #[test]
    fn neighbours_are_joined_and_what_is_beyond_the_end_is_left_out() {
        let pages = [(1, 1), (0, 1), (2, 1), (100, 5)];
        let found = ranges(&pages, 4096, 20 * 4096).unwrap();
        assert_eq!(found, [4096..3 * 4096, 5 * 4096..6 * 4096]);
    }

    #[test]
    fn a_set_takes_its_place_only_when_it_is_complete() {
        let folder = tempfile::TempDir::new().unwrap();
        let path = folder.path().join("set");
        std::fs::write(folder.path().join("hot"), "hot").unwrap();
        let found = [Found::whole(folder.path().join("hot"), 1)];
        std::fs::write(folder.path().join("set.unfinished"), "left by a power cut").unwrap();
        assert_eq!(save_at(&found, &path).unwrap().files, 1);
        let (files, _) = load(File::open(&path).unwrap()).unwrap();
        assert_eq!(files.len(), 1);
        assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        std::fs::remove_file(&path).unwrap();
        std::fs::create_dir(&path).unwrap();
        assert!(save_at(&found, &path).is_err());
        assert_eq!(
            std::fs::read_dir(folder.path()).unwrap().count(),
            2,
            "nothing unfinished stays"
        );
        assert!(save_at(&found, Path::new("/")).is_err());
    }
}
