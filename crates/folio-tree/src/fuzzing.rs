//! Entries of the fuzz targets: archives and manifests into a small file system. Not public API.

use crate::compression::decoder;
use crate::entry::{Entry, EntryKind};
use crate::manifest;
use crate::observer::FirstFailure;
use crate::tar::{BLOCK_BYTES, Reader, Writer};
use crate::unpack::Unpacker;
use folio::syscall::{Credentials, OpenFlags};
use folio::vfs::MountOptions;
use folio::{Kernel, KernelOptions, Process, Result};
use std::io::{Cursor, Read};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

pub use crate::oci::fuzzing::{docker_archive, documents};

/// Most bytes of a decompressed input.
const DECODED_BYTES_MAX: u64 = 1 << 20;
/// Where a header of tar has its magic number and its checksum.
const MAGIC_AT: usize = 257;
const CHECKSUM: Range<usize> = 148..156;
/// Directories that inputs are unpacked into.
const PLAIN: &str = "/plain";
const LAYERED: &str = "/layered";

/// An entry with its content: the data ranges, and their bytes.
struct WholeEntry {
    entry: Entry,
    ranges: Vec<Range<u64>>,
    data: Vec<u8>,
}

/// Reads `data` as an archive, compressed or not: unpacks it, alone and as a layer of a container
/// image, and writes its entries into a second archive, which must give the same entries.
pub fn tar(data: &[u8]) {
    let Ok(decoded) = decoder(Cursor::new(data.to_vec())) else {
        return;
    };
    let mut bytes = Vec::new();
    let _ = decoded.take(DECODED_BYTES_MAX).read_to_end(&mut bytes);
    seal(&mut bytes);
    check_written(&kept_entries(&bytes));
    let Some((kernel, process)) = file_system() else {
        return;
    };
    for destination in [PLAIN, LAYERED] {
        let _ = unpack(&process, destination, &bytes);
    }
    assert_names(&process);
    drop(process);
    let _ = kernel.unmount("/");
}

/// Updates the checksums of headers, so that damage reaches the code behind them.
fn seal(bytes: &mut [u8]) {
    for block in bytes.chunks_exact_mut(BLOCK_BYTES) {
        if block[MAGIC_AT..].starts_with(b"ustar") {
            block[CHECKSUM].fill(b' ');
            let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
            block[CHECKSUM].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        }
    }
}

/// Returns the entries that a written archive must keep as they are.
fn kept_entries(bytes: &[u8]) -> Vec<WholeEntry> {
    let (mut entries, _) = read_entries(bytes);
    // A file whose path ends in a slash is a directory in the written archive, and an empty value
    // of a record deletes it. The packer makes neither.
    entries.retain(|one| {
        let is_file = matches!(one.entry.kind, EntryKind::File { .. });
        !(one.entry.path.is_empty() || is_file && one.entry.path.ends_with(b"/"))
    });
    for one in &mut entries {
        // Texts of ACLs have an order, and no ids where ids have no meaning.
        let acl = b"system.posix_acl_";
        one.entry.xattrs.retain(|(name, _)| !name.starts_with(acl));
    }
    entries
}

/// Parses `data` as a manifest, and applies it to a small file system twice: once to create the
/// files, once onto them.
pub fn manifest(data: &[u8]) {
    let Ok(entries) = manifest::parse(data) else {
        return;
    };
    let Some((_kernel, process)) = file_system() else {
        return;
    };
    let find = |_: bool, name: &str| u32::try_from(name.len()).ok();
    for _ in 0..2 {
        let _ = manifest::apply(
            &process,
            Path::new(PLAIN),
            &entries,
            &find,
            &FirstFailure::default(),
        );
    }
    assert_names(&process);
}

/// Reads entries up to the end or a failure; returns whether it was the end.
fn read_entries(bytes: &[u8]) -> (Vec<WholeEntry>, bool) {
    let mut entries = Vec::new();
    let mut reader = Reader::new(bytes);
    loop {
        match reader.next_entry() {
            Ok(Some(mut entry)) => {
                entry.unreadable.clear();
                let ranges = reader.data_ranges();
                let Ok(data) = content(&mut reader, &ranges, entry.size_bytes()) else {
                    return (entries, false);
                };
                entries.push(WholeEntry {
                    entry,
                    ranges,
                    data,
                });
            }
            Ok(None) => return (entries, true),
            Err(_) => return (entries, false),
        }
    }
}

/// Reads the content of an entry, whose bytes must be in its data ranges.
fn content(reader: &mut Reader<&[u8]>, ranges: &[Range<u64>], size_bytes: u64) -> Result<Vec<u8>> {
    let mut data = Vec::new();
    while let Some((offset, bytes)) = reader.next_data()? {
        let end = offset + bytes.len() as u64;
        let is_inside = |range: &Range<u64>| range.start <= offset && end <= range.end;
        assert!(ranges.iter().any(is_inside), "data outside of the ranges");
        assert!(!bytes.is_empty() && end <= size_bytes, "data past the end");
        data.extend_from_slice(bytes);
    }
    Ok(data)
}

/// Writes entries into an archive, and reads them back.
fn check_written(entries: &[WholeEntry]) {
    let mut writer = Writer::new(Vec::new());
    for one in entries {
        let size_bytes = one.entry.size_bytes();
        let is_whole =
            size_bytes == 0 || matches!(&one.ranges[..], [all] if *all == (0..size_bytes));
        let segments = (!is_whole).then_some(one.ranges.as_slice());
        let written = writer
            .append(&one.entry, segments)
            .and_then(|()| writer.write_data(&one.data));
        assert!(written.is_ok(), "{:?}: {written:?}", one.entry);
    }
    let Ok(bytes) = writer.finish() else {
        return;
    };
    let (again, is_end) = read_entries(&bytes);
    assert!(is_end, "the written archive is damaged");
    assert_eq!(
        again.len(),
        entries.len(),
        "the written archive lacks entries"
    );
    for (one, other) in entries.iter().zip(&again) {
        assert_eq!(one.entry, other.entry, "an entry changes when written");
        assert_eq!(one.ranges, other.ranges, "{:?}", one.entry);
        assert_eq!(one.data, other.data, "{:?}", one.entry);
    }
}

/// Mounts a small file system with both destinations.
fn file_system() -> Option<(Arc<Kernel>, Process)> {
    let kernel = Kernel::new(KernelOptions {
        cache_bytes: 4 << 20,
        background_writeback: false,
        ..KernelOptions::default()
    });
    let inside = MountOptions::parse("size=2m,nr_inodes=2000").ok()?;
    kernel.mount_tmpfs("/", &inside).ok()?;
    let process = kernel.process(Credentials::root());
    process.mkdir(PLAIN, 0o755).ok()?;
    process.mkdir(LAYERED, 0o755).ok()?;
    Some((kernel, process))
}

fn unpack(process: &Process, destination: &str, bytes: &[u8]) -> Result<()> {
    let failures = FirstFailure::default();
    let mut unpacker = Unpacker::new(process, Path::new(destination), &failures)?;
    let mut reader = Reader::new(bytes);
    if destination == LAYERED {
        unpacker.unpack_layer(&mut reader)?;
        unpacker.unpack_layer(&mut Reader::new(bytes))?;
    } else {
        unpacker.unpack(&mut reader)?;
    }
    unpacker.finish()
}

/// Fails if a file outside of the destinations was made or removed.
fn assert_names(process: &Process) {
    let listed = process
        .open("/", OpenFlags::DIRECTORY, 0)
        .and_then(|fd| process.getdents(fd, 100));
    let mut names: Vec<_> = listed
        .into_iter()
        .flatten()
        .map(|entry| entry.name)
        .filter(|name| !matches!(name.as_slice(), b"." | b".."))
        .collect();
    names.sort();
    assert_eq!(names, [&LAYERED.as_bytes()[1..], &PLAIN.as_bytes()[1..]]);
}

#[cfg(test)]
#[path = "../../../tests/fuzz_corpus/replay.rs"]
mod replay;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tar_inputs_do_not_panic() {
        replay::run("tar", tar);
    }

    #[test]
    fn manifest_inputs_do_not_panic() {
        replay::run("manifest", manifest);
    }

    #[test]
    fn oci_documents_inputs_do_not_panic() {
        replay::run("oci_documents", documents);
    }

    #[test]
    fn docker_archive_inputs_do_not_panic() {
        replay::run("docker_archive", docker_archive);
    }
}
