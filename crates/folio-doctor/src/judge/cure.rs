//! The cure of a finding: the change that a trial applies.

use super::file_system::{FLUSH, RENAME};
use crate::cure::Cure;
use crate::finding::{Check, Verdict};
use crate::workload::{Cost, Recorder, Workload};

/// That of tiny buffers.
pub(super) const BUFFER: Cure =
    Cure::Unavailable("a buffer inside a program cannot be set from outside");

/// Returns the cure of a finding on calls of a mount.
pub(super) fn of(check: &Check, cost: &Cost, workload: &Workload) -> Cure {
    let own = &workload.mounts[cost.mount].file_system;
    let mount_point = own.mount_point.clone();
    let files = cost.files.clone();
    let is_traced = workload.recorder == Recorder::Ptrace;
    match check.cause {
        "synchronous-writes" if own.has("sync") => Cure::Remount {
            mount_point,
            option: "async",
            restored: "sync",
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
        "attributes-not-trusted" | "names-not-cached" if check.verdict == Verdict::Fault => {
            Cure::CacheAttributes { mount_point }
        }
        "attributes-not-trusted" | "names-not-cached" => {
            Cure::Unavailable("names and attributes are in memory since the first run")
        }
        "cold" if files.is_empty() => {
            Cure::Unavailable("the pages are those of mapped files, whose names are not known")
        }
        "cold" => Cure::Warm { files },
        "evicted" => Cure::Unavailable("locked pages take memory that other programs need"),
        "lock-waits" => Cure::Unavailable("another process holds the lock"),
        _ => Cure::Unavailable("no setting is known to be its cause"),
    }
}
