//! Cures that a trial can apply, and what a trial found.

use serde::Serialize;
use std::path::PathBuf;

/// What a trial changes while it runs a command again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Cure {
    /// Syncs of files on this mount are left out.
    OmitSyncs {
        /// The mount.
        mount_point: PathBuf,
        /// Files that the command synced.
        files: Vec<PathBuf>,
    },
    /// Files on this mount are opened without O_SYNC and O_DSYNC.
    OmitSyncFlags {
        /// The mount.
        mount_point: PathBuf,
        /// Files that the command wrote.
        files: Vec<PathBuf>,
    },
    /// The file system has another option.
    Remount {
        /// Where it is mounted.
        mount_point: PathBuf,
        /// The option.
        option: &'static str,
        /// The option that it has now.
        restored: &'static str,
    },
    /// A mount that caches names and attributes is over this one.
    CacheAttributes {
        /// The mount of the server.
        mount_point: PathBuf,
        /// What it shows: the directory that `folio mount` serves, else the mount below.
        source: PathBuf,
    },
    /// These files are in memory, instead of on the disk alone.
    Warm {
        /// The mount.
        mount_point: PathBuf,
        /// Files that the command reads.
        files: Vec<PathBuf>,
    },
    /// It cannot be applied to a command from outside, for this reason.
    Unavailable(&'static str),
}

/// What a trial of a cure found.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "result", rename_all = "kebab-case")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum Trial {
    /// The command ran without and with the cure, in turns.
    Measured {
        /// How the cure was applied.
        applied: String,
        /// The risk that was taken.
        risk: String,
        /// Times without the cure, in seconds, in the order of the runs.
        baseline_s: Vec<f64>,
        /// Times with the cure.
        cured_s: Vec<f64>,
        /// The predicted saving of these runs: all findings with this cure save the same share of
        /// the median time without the cure as of the run that was examined.
        predicted_s: f64,
        /// The difference of the medians; below 0 if the cure costs more than it saves.
        #[cfg_attr(feature = "schema", schemars(extend("format" = "signed")))]
        measured_s: f64,
    },
    /// The command did not run with the cure.
    NotTried {
        /// Why.
        #[cfg_attr(feature = "schema", schemars(length(min = 1)))]
        reason: String,
    },
}
