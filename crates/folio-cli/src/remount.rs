//! `folio mount -o remount`: changes options of a running mount, as mount(8) asks its helper.
//!
//! mount(8) passes the options of /etc/fstab or /proc/mounts with those that the user asks for. So
//! an option that the mount has already is accepted, even where only a new mount would change it.

use crate::exit::{Failure, Outcome, explain};
use folio::Errno;
use rustix::fs::{StatVfsMountFlags, statvfs};
use rustix::mount::{MountFlags, mount_remount};
use std::path::Path;

const REMOUNT: &str = "remount";

/// Words for a flag of the kernel's mount, and whether it is set then.
const FLAGS: [(&str, MountFlags, bool); 12] = [
    ("ro", MountFlags::RDONLY, true),
    ("rw", MountFlags::RDONLY, false),
    ("nosuid", MountFlags::NOSUID, true),
    ("suid", MountFlags::NOSUID, false),
    ("nodev", MountFlags::NODEV, true),
    ("dev", MountFlags::NODEV, false),
    ("noexec", MountFlags::NOEXEC, true),
    ("exec", MountFlags::NOEXEC, false),
    ("noatime", MountFlags::NOATIME, true),
    ("atime", MountFlags::NOATIME, false),
    ("nodiratime", MountFlags::NODIRATIME, true),
    ("diratime", MountFlags::NODIRATIME, false),
];

/// The flags of statvfs(3) that a remount keeps.
const KEPT: [(StatVfsMountFlags, MountFlags); 6] = [
    (StatVfsMountFlags::RDONLY, MountFlags::RDONLY),
    (StatVfsMountFlags::NOSUID, MountFlags::NOSUID),
    (StatVfsMountFlags::NODEV, MountFlags::NODEV),
    (StatVfsMountFlags::NOEXEC, MountFlags::NOEXEC),
    (StatVfsMountFlags::NOATIME, MountFlags::NOATIME),
    (StatVfsMountFlags::NODIRATIME, MountFlags::NODIRATIME),
];

/// Whether `-o` asks for a remount.
pub(crate) fn is_requested(words: &[String]) -> bool {
    words.iter().any(|word| word == REMOUNT)
}

/// Changes the options of the mount on `target`.
pub(crate) fn run(target: &Path, words: &[String], is_read_only: bool) -> Outcome {
    let failed = |text: String| Failure::new(format!("{}: {text}", target.display()));
    let found = statvfs(target).map_err(|error| failed(error.to_string()))?;
    let kept = KEPT.iter().filter(|(flag, _)| found.f_flag.contains(*flag));
    let was: MountFlags = kept.map(|(_, flag)| *flag).collect();
    let mut flags = was;
    let shown = folio_doctor::shown_options(target);
    let mut of_server = Vec::new();
    for word in words {
        match FLAGS.iter().find(|(name, _, _)| name == word) {
            Some((_, flag, is_set)) => flags.set(*flag, *is_set),
            None if word == REMOUNT || shown.contains(word) => {}
            None => of_server.push(word),
        }
    }
    if is_read_only {
        flags |= MountFlags::RDONLY;
    }
    let is_read_only = flags.contains(MountFlags::RDONLY);
    let ask = |word: &str| {
        folio_fuse::remount(target, word).map_err(|error| failed(reason(word, &error)))
    };
    // Asked first: it refuses what it cannot do before anything has changed.
    ask(if is_read_only { "ro" } else { "rw" })?;
    for word in of_server {
        ask(word)?;
    }
    if flags != was {
        mount_remount(target, flags, c"").map_err(|error| failed(format!("remount: {error}")))?;
    }
    if is_read_only {
        // What was written until the kernel refused it.
        ask("ro")?;
    }
    Ok(())
}

/// Says why the server refuses a word.
fn reason(word: &str, error: &folio::Error) -> String {
    match error.errno() {
        Errno::NOTTY => "no mount of folio".to_owned(),
        Errno::PERM | Errno::ACCESS => format!("remount: {word}: only root changes a mount"),
        Errno::ROFS => "the image was opened read-only: unmount it and mount it again".to_owned(),
        Errno::INVAL | Errno::OPNOTSUPP => {
            format!("remount: only a new mount changes the option {word:?}: unmount first")
        }
        _ => format!("remount: {word}: {}", explain(error)),
    }
}
