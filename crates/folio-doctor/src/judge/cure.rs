//! The cure of a finding: the change that a trial applies.

use super::file_system::{FLUSH, RENAME};
use crate::bounded;
use crate::cure::Cure;
use crate::finding::{Check, Verdict};
use crate::probe::layers::FileSystem;
use crate::workload::{Cost, Recorder, Workload};
use std::path::{Path, PathBuf};

/// That of tiny buffers.
pub(super) const BUFFER: Cure =
    Cure::Unavailable("a buffer inside a program cannot be set from outside");

/// Returns the cure of a finding on calls of a mount.
pub(super) fn of(check: &Check, cost: &Cost, workload: &Workload) -> Cure {
    let mount = &workload.mounts[cost.mount];
    if !mount.is_answering {
        return Cure::Unavailable("the file system does not answer");
    }
    let own = &mount.file_system;
    let mount_point = own.mount_point.clone();
    let files = cost.files.clone();
    let is_traced = workload.recorder == Recorder::Ptrace;
    match check.cause {
        "synchronous-writes" if own.has("sync") => match own.fs_type.as_str() {
            "ext2" | "ext3" | "ext4" | "xfs" | "btrfs" => Cure::Remount {
                mount_point,
                option: "async",
                restored: "sync",
            },
            _ => Cure::Unavailable("a remount of this file system may change more than one option"),
        },
        "fsync-waits" | "synchronous-writes" if is_traced => {
            Cure::Unavailable("a traced command has no preloaded library that leaves out its syncs")
        }
        "synchronous-writes" => Cure::OmitSyncFlags { mount_point, files },
        "fsync-waits" if files.is_empty() => {
            Cure::Unavailable("the files of msync(2) are not known")
        }
        "fsync-waits" => Cure::OmitSyncs { mount_point, files },
        FLUSH | RENAME if own.fs_type == "ext4" => Cure::Remount {
            mount_point,
            option: "noauto_da_alloc",
            restored: "auto_da_alloc",
        },
        FLUSH | RENAME => Cure::Unavailable("the file system has no option that changes it"),
        "attributes-not-trusted" | "names-not-cached" if check.verdict != Verdict::Fault => {
            Cure::Unavailable("names and attributes are in memory since the first run")
        }
        "attributes-not-trusted" | "names-not-cached" => match (served_directory(own), check.cause)
        {
            (Some(source), _) => Cure::CacheAttributes {
                mount_point,
                source,
            },
            (None, "attributes-not-trusted") => Cure::CacheAttributes {
                source: mount_point.clone(),
                mount_point,
            },
            (None, _) => Cure::Unavailable(
                "opens would ask a mount over this one and its server: only other options of the \
                 mount itself show the saving",
            ),
        },
        "cold" if files.is_empty() => {
            Cure::Unavailable("the pages are those of mapped files, whose names are not known")
        }
        "cold" => Cure::Warm { mount_point, files },
        "evicted" => Cure::Unavailable("locked pages take memory that other programs need"),
        "lock-waits" => Cure::Unavailable("another process holds the lock"),
        _ => Cure::Unavailable("no setting is known to be its cause"),
    }
}

/// Returns the directory of this machine that `folio mount` shows as it is. The source of another
/// server may be something else, such as encrypted files.
fn served_directory(own: &FileSystem) -> Option<PathBuf> {
    let is_folio = own.fs_type == "fuse.folio" || own.server.as_deref() == Some("folio");
    let source = Path::new(&own.source);
    let source = own.served_source.as_deref().unwrap_or(source);
    let is_whole = own.root == Path::new("/");
    let is_directory = || bounded::metadata(source).is_some_and(|found| found.is_dir());
    (is_folio && is_whole && source.is_absolute() && is_directory()).then(|| source.to_owned())
}
