//! Hot sets: the resident ranges of files, saved to a file and loaded later.
//!
//! A hot set is a zstd frame of JSON lines: a header with the version, then a line for each file
//! with its path, size, modification time and runs of resident pages. `zstd -dc` prints it. Loading
//! skips files that were removed or replaced since: their old hot ranges no longer mean anything.
//! A file that was written in place, as databases do, keeps its ranges up to its present size.

use crate::open::open_regular;
use crate::parallel;
use crate::residency::{ResidencyReport, cached_ranges, look, page_bytes};
use crate::scan::{Found, reason};
use serde::{Deserialize, Serialize};
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, BufRead, BufReader, BufWriter, Read, Write};
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Version of the format that this library writes and reads.
const VERSION: u32 = 1;
const FORMAT: &str = "folio hot set";
/// zstd's default level: the set is small, and the machine may be shutting down.
const LEVEL: i32 = 3;
/// Maximum line length: a path, and the runs of a file of some terabytes. A hostile file must not
/// exhaust memory.
const LINE_BYTES_MAX: u64 = 64 << 20;
/// Memory for the files of a set, in bytes. A few bytes of zstd may decompress to gigabytes.
const SET_BYTES_MAX: usize = 1 << 30;
/// Suffix of an incomplete set.
const UNFINISHED: &str = ".unfinished";

#[derive(Serialize, Deserialize)]
struct Header {
    format: String,
    version: u32,
    page_bytes: u64,
}

/// One file of a hot set.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Line {
    path: SavedPath,
    size: u64,
    /// Seconds and nanoseconds.
    mtime: (i64, i64),
    inode: u64,
    /// Runs of resident pages: pages to skip, then pages in the run.
    pages: Vec<(u64, u64)>,
}

/// A path, as text where it is valid UTF-8.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
enum SavedPath {
    Text(String),
    Bytes(Vec<u8>),
}

impl SavedPath {
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

/// Which files of a hot set are loaded.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Match {
    /// Those that were not replaced: size and modification time are the same, or the inode is.
    #[default]
    SameFile,
    /// Those whose size and modification time are the same.
    Unchanged,
}

/// The result of saving or loading a hot set.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct HotSetReport {
    /// Files with resident pages.
    pub files: u64,
    /// Resident bytes.
    pub bytes: u64,
    /// Files that were removed or replaced since, and with [`Match::Unchanged`] changed.
    pub changed: u64,
    /// Files whose residency the kernel hides from this user.
    pub unknown: u64,
    /// Paths that could not be examined, each with the reason.
    pub failures: Vec<(PathBuf, String)>,
}

/// Saves the resident ranges of `files` to `path`. Writes a new file, and renames it to `path` once
/// it is complete and durable. Its mode is 0600, because it names files of all users. Where nothing
/// is resident, an older set at `path` stays: an empty one has no use.
///
/// # Errors
/// `InvalidData` if `path` is a file with other content, which stays; those of writing a file.
pub fn save_at(files: &[Found], path: &Path) -> io::Result<HotSetReport> {
    check_replaced(path)?;
    let (lines, report) = survey(files);
    if lines.is_empty() && path.exists() {
        return Ok(report);
    }
    let mut name = path
        .file_name()
        .ok_or_else(|| invalid("not a file name"))?
        .to_owned();
    name.push(UNFINISHED);
    let unfinished = path.with_file_name(name);
    // Left by an interrupted save, or by a concurrent one: the last save to finish wins.
    let _ = std::fs::remove_file(&unfinished);
    let file = File::options()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&unfinished)?;
    let saved = write(&lines, &file).and_then(|()| {
        file.sync_all()?;
        std::fs::rename(&unfinished, path)?;
        let folder = path
            .parent()
            .filter(|folder| !folder.as_os_str().is_empty());
        File::open(folder.unwrap_or(Path::new(".")))?.sync_all()?;
        Ok(report)
    });
    if saved.is_err() {
        let _ = std::fs::remove_file(&unfinished);
    }
    saved
}

/// Saves the resident ranges of `files` to `out`.
pub fn save(files: &[Found], out: impl Write) -> io::Result<HotSetReport> {
    let (lines, report) = survey(files);
    write(&lines, out)?;
    Ok(report)
}

fn write(lines: &[Line], out: impl Write) -> io::Result<()> {
    let mut out = zstd::Encoder::new(BufWriter::new(out), LEVEL)?;
    let header = Header {
        format: FORMAT.to_owned(),
        version: VERSION,
        page_bytes: page_bytes(),
    };
    serde_json::to_writer(&mut out, &header)?;
    for line in lines {
        out.write_all(b"\n")?;
        serde_json::to_writer(&mut out, line)?;
    }
    out.write_all(b"\n")?;
    out.finish()?.flush()
}

/// Returns the lines of all files with resident pages.
fn survey(files: &[Found]) -> (Vec<Line>, HotSetReport) {
    let (mut lines, mut report) = (Vec::new(), HotSetReport::default());
    for (found, looked) in files
        .iter()
        .zip(parallel::map(files, |found| hot(&found.path)))
    {
        match looked {
            Ok(Some(line)) => lines.push(line),
            Ok(None) => {}
            Err(Failure::ResidencyUnknown) => report.unknown += 1,
            Err(Failure::Io(error)) => report.failures.push((found.path.clone(), reason(&error))),
        }
    }
    lines.sort_unstable_by_key(|line| (line.inode, line.size));
    report.files = lines.len() as u64;
    let hot = lines
        .iter()
        .flat_map(|line| ranges(&line.pages, page_bytes(), line.size).unwrap_or_default());
    report.bytes = hot.map(|range| range.end - range.start).sum();
    (lines, report)
}

enum Failure {
    ResidencyUnknown,
    Io(io::Error),
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// Returns the resident ranges of a file; `None` if it has none.
fn hot(path: &Path) -> Result<Option<Line>, Failure> {
    let (file, found) = open_regular(path)?;
    let ResidencyReport::Known(state) = look(&file, &found, 0..found.len())? else {
        return Err(Failure::ResidencyUnknown);
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
        path: SavedPath::new(&absolute),
        size: found.len(),
        mtime,
        inode: found.ino(),
        pages,
    };
    Ok((!line.pages.is_empty()).then_some(line))
}

/// Reads the first line of a hot set of any version.
fn read_header(input: &mut impl BufRead) -> io::Result<Header> {
    // Anything but a zstd frame fails here.
    let first = next_line(input).map_err(|_| invalid("not a hot set"))?;
    let Some(line) = first else {
        return Err(invalid("not a hot set: the file is empty"));
    };
    let header: Header = serde_json::from_slice(&line).map_err(|_| invalid("not a hot set"))?;
    if header.format != FORMAT {
        return Err(invalid("not a hot set"));
    }
    Ok(header)
}

/// Checks that what is at `path` may be replaced: nothing, an empty file, or a hot set.
fn check_replaced(path: &Path) -> io::Result<()> {
    let file = match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        file => file?,
    };
    let found = file.metadata()?;
    if found.is_file() && found.len() == 0 {
        return Ok(());
    }
    let is_hot_set = found.is_file()
        && zstd::Decoder::new(file)
            .and_then(|input| read_header(&mut BufReader::new(input)))
            .is_ok();
    if is_hot_set {
        Ok(())
    } else {
        Err(invalid("exists, and is not a hot set; it was not replaced"))
    }
}

/// Loads a hot set: returns the saved ranges of the files that match, for warming.
pub fn load(input: impl Read, rule: Match) -> io::Result<(Vec<Found>, HotSetReport)> {
    let parts = read_parts(input, SET_BYTES_MAX)?;
    let sizes = parallel::map(&parts, |part| part.size_now(rule));
    let (mut files, mut report) = (Vec::new(), HotSetReport::default());
    for (mut part, size_bytes) in parts.into_iter().zip(sizes) {
        let Some(size_bytes) = size_bytes else {
            report.changed += 1;
            continue;
        };
        part.found.ranges = part.found.clipped(size_bytes);
        if !part.found.ranges.is_empty() {
            report.files += 1;
            let len = |range: &Range<u64>| range.end - range.start;
            let bytes: u64 = part.found.ranges.iter().map(len).sum();
            // A hostile set may list a large file many times.
            report.bytes = report.bytes.saturating_add(bytes);
            files.push(part.found);
        }
    }
    Ok((files, report))
}

/// Reads the files of a hot set, which take at most `bytes_max` in memory.
fn read_parts(input: impl Read, bytes_max: usize) -> io::Result<Vec<SavedFile>> {
    let mut input = BufReader::new(zstd::Decoder::new(input)?);
    let header = read_header(&mut input)?;
    if header.version != VERSION || !header.page_bytes.is_power_of_two() {
        return Err(invalid(&format!(
            "hot set of version {}; this folio reads version {VERSION}",
            header.version
        )));
    }
    let (mut parts, mut left) = (Vec::new(), bytes_max);
    while let Some(line) = next_line(&mut input)? {
        let line: Line = serde_json::from_slice(&line).map_err(|_| invalid("damaged hot set"))?;
        let (size_bytes, mtime, inode) = (line.size, line.mtime, line.inode);
        let ranges = ranges(&line.pages, header.page_bytes, size_bytes);
        let ranges = ranges.ok_or_else(|| invalid("damaged hot set"))?;
        let part = SavedFile {
            found: Found {
                path: line.path.path(),
                inode,
                ranges,
            },
            size_bytes,
            mtime,
        };
        left = left
            .checked_sub(part.len_bytes())
            .ok_or_else(|| invalid("the hot set describes too many files"))?;
        parts.push(part);
    }
    Ok(parts)
}

/// A file of a hot set, with its attributes at the time of the save.
struct SavedFile {
    found: Found,
    size_bytes: u64,
    mtime: (i64, i64),
}

impl SavedFile {
    /// Returns about the number of bytes in memory.
    fn len_bytes(&self) -> usize {
        let Found { path, ranges, .. } = &self.found;
        size_of::<Self>() + path.as_os_str().len() + size_of_val(ranges.as_slice())
    }

    /// Returns the present size of the file, `None` for one that does not match.
    fn size_now(&self, rule: Match) -> Option<u64> {
        let now = std::fs::metadata(&self.found.path).ok()?;
        let is_unchanged =
            now.len() == self.size_bytes && (now.mtime(), now.mtime_nsec()) == self.mtime;
        let is_same_file = rule == Match::SameFile && now.ino() == self.found.inode;
        (now.is_file() && (is_unchanged || is_same_file)).then_some(now.len())
    }
}

/// Reads the next line, without its newline.
fn next_line(input: &mut impl BufRead) -> io::Result<Option<Vec<u8>>> {
    let mut line = Vec::new();
    input.take(LINE_BYTES_MAX).read_until(b'\n', &mut line)?;
    match line.pop() {
        None => Ok(None),
        Some(b'\n') => Ok(Some(line)),
        Some(_) => Err(invalid("damaged hot set: the last line is incomplete")),
    }
}

/// Converts runs of pages to byte ranges, with adjacent runs joined; `None` if a run overflows.
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
    fn loaded_set_omits_changed_files() {
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
        let report = save(&found, &mut set).unwrap();
        assert_eq!((report.files, report.failures.len()), (4, 1));
        assert!(set.len() < 1000, "{}", set.len());
        File::options()
            .write(true)
            .open(path("two"))
            .unwrap()
            .write_all_at(b"x", 0)
            .unwrap();
        std::fs::remove_file(path("three")).unwrap();
        let (files, report) = load(&set[..], Match::Unchanged).unwrap();
        assert_eq!((report.files, report.changed), (2, 2));
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

    #[test]
    fn set_that_exceeds_the_memory_is_refused() {
        let mut text = format!("{{\"format\":{FORMAT:?},\"version\":1,\"page_bytes\":4096}}\n");
        text.push_str(
            &"{\"path\":\"/\",\"size\":0,\"mtime\":[0,0],\"inode\":1,\"pages\":[]}\n"
                .repeat(50_000),
        );
        let set = zstd::encode_all(text.as_bytes(), LEVEL).unwrap();
        assert!(set.len() < 5000, "{}", set.len());
        assert_eq!(read_parts(&set[..], 50 << 20).unwrap().len(), 50_000);
        assert!(read_parts(&set[..], 1 << 20).is_err());
    }

    #[test]
    fn file_written_in_place_keeps_its_ranges() {
        let folder = tempfile::TempDir::new().unwrap();
        let path = |name: &str| folder.path().join(name);
        let names = ["written", "cut", "replaced"];
        let found = names.map(|name| {
            std::fs::write(path(name), vec![7; 1 << 20]).unwrap();
            let inode = std::fs::metadata(path(name)).unwrap().ino();
            Found::whole(path(name), inode)
        });
        let mut set = Vec::new();
        assert_eq!(save(&found, &mut set).unwrap().files, 3);
        let open = |name| File::options().append(true).open(path(name)).unwrap();
        open("written").write_all(&[8; 100]).unwrap();
        open("cut").set_len(5000).unwrap();
        std::fs::write(path("new"), vec![7; 2 << 20]).unwrap();
        std::fs::rename(path("new"), path("replaced")).unwrap();
        let (files, report) = load(&set[..], Match::SameFile).unwrap();
        let ranges = |name: &str| {
            let file = files.iter().find(|file| file.path == path(name));
            file.map(|file| file.ranges.clone())
        };
        assert_eq!(ranges("written"), Some(one(0..1 << 20)));
        assert_eq!(ranges("cut"), Some(one(0..5000)));
        assert_eq!((ranges("replaced"), report.changed), (None, 1));
        assert_eq!(load(&set[..], Match::Unchanged).unwrap().1.changed, 3);
    }

    #[test]
    fn empty_set_does_not_replace_an_older_one() {
        let folder = tempfile::TempDir::new().unwrap();
        let path = folder.path().join("set");
        assert_eq!(save_at(&[], &path).unwrap().files, 0);
        assert!(path.exists(), "the first set may be empty");
        let inode = || std::fs::metadata(&path).unwrap().ino();
        let older = inode();
        assert_eq!(save_at(&[], &path).unwrap().files, 0);
        assert_eq!(inode(), older);
    }

    #[test]
    fn set_replaces_no_other_file() {
        let folder = tempfile::TempDir::new().unwrap();
        let path = folder.path().join("image");
        std::fs::write(&path, "content").unwrap();
        let refused = save_at(&[], &path).unwrap_err();
        assert!(refused.to_string().contains("not a hot set"), "{refused}");
        assert_eq!(std::fs::read(&path).unwrap(), b"content");
    }

    fn one(range: Range<u64>) -> Vec<Range<u64>> {
        std::iter::once(range).collect()
    }

    #[test]
    fn invalid_set_is_rejected() {
        let pack = |text: &str| zstd::encode_all(text.as_bytes(), 3).unwrap();
        let header = format!("{{\"format\":\"{FORMAT}\",\"version\":1,\"page_bytes\":4096}}\n");
        let refused = |bytes: &[u8]| load(bytes, Match::SameFile).unwrap_err().to_string();
        assert!(
            load(&pack(&header)[..], Match::SameFile)
                .unwrap()
                .0
                .is_empty()
        );
        assert!(refused(b"no zstd at all").contains("not a hot set"));
        assert!(refused(&pack("")).contains("empty"));
        assert!(refused(&pack("{}\n")).contains("not a hot set"));
        assert!(refused(&pack(&header.replace(":1,", ":2,"))).contains("version 2"));
        assert!(refused(&pack(&format!("{header}x\n"))).contains("damaged"));
        let line = "{\"path\":\"/x\",\"size\":9,\"mtime\":[0,0],\"inode\":1,\"pages\":[[0,18446744073709551615]]}";
        assert!(refused(&pack(&format!("{header}{line}\n"))).contains("damaged"));
        assert!(refused(&pack(&format!("{header}{line}"))).contains("incomplete"));
    }

    #[test]
    fn adjacent_runs_join_and_end_at_the_file_size() {
        let pages = [(1, 1), (0, 1), (2, 1), (100, 5)];
        let found = ranges(&pages, 4096, 20 * 4096).unwrap();
        assert_eq!(found, [4096..3 * 4096, 5 * 4096..6 * 4096]);
    }

    #[test]
    fn set_is_renamed_only_when_complete() {
        let folder = tempfile::TempDir::new().unwrap();
        let path = folder.path().join("set");
        std::fs::write(folder.path().join("hot"), "hot").unwrap();
        let found = [Found::whole(folder.path().join("hot"), 1)];
        std::fs::write(folder.path().join("set.unfinished"), "left by a power cut").unwrap();
        assert_eq!(save_at(&found, &path).unwrap().files, 1);
        let (files, _) = load(File::open(&path).unwrap(), Match::SameFile).unwrap();
        assert_eq!(files.len(), 1);
        assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        std::fs::remove_file(&path).unwrap();
        std::fs::create_dir(&path).unwrap();
        assert!(save_at(&found, &path).is_err());
        assert_eq!(
            std::fs::read_dir(folder.path()).unwrap().count(),
            2,
            "no unfinished file remains"
        );
        assert!(save_at(&found, Path::new("/")).is_err());
    }
}
