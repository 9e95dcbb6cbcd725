//! The curve and the result of a measurement.

use serde::Serialize;
use std::path::PathBuf;

/// How memory was limited or observed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum Method {
    /// memory.high of a control group of version 2.
    MemoryHigh,
    /// memory.limit_in_bytes of a control group of version 1.
    LimitInBytes,
    /// The residency of open files: an estimate.
    Residency,
}

/// A point of the curve.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Point {
    /// Mean size of the page cache.
    pub cache_bytes: u64,
    /// Pages per second that were read again after their eviction.
    pub misses_per_s: f64,
    /// Percent of the time in which at least one task waited for memory; of the whole machine
    /// with version 1, and 0 in an estimate.
    pub stalled_percent: f64,
    /// Duration.
    pub seconds: f64,
}

/// The memory that is needed, in bytes of page cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Need {
    /// The misses cross the limit here.
    About(u64),
    /// The misses stayed below the limit at the smallest size that was measured.
    AtMost(u64),
    /// The misses were above the limit at the largest size that was measured.
    MoreThan(u64),
    /// No size was measured.
    Unknown,
}

/// The result of a measurement.
#[derive(Debug, Clone, PartialEq)]
pub struct FitReport {
    /// The method.
    pub method: Method,
    /// Why the result is an estimate, where it is one.
    pub estimate_reason: Option<String>,
    /// The control group, where one was limited.
    pub group: Option<PathBuf>,
    /// The memory that is needed.
    pub need: Need,
    /// Largest memory of the group beside the page cache, in bytes; 0 in an estimate.
    pub other_bytes: u64,
    /// Bytes of open files whose pages belong to other control groups and were not limited.
    pub outside_bytes: u64,
    /// Whether the workload ended before the measurement did.
    pub has_ended_early: bool,
    /// Duration in seconds.
    pub seconds: f64,
    /// The curve, in the order of memory.
    pub points: Vec<Point>,
}

impl Need {
    /// Returns the bytes of the answer or the bound.
    pub fn bytes(self) -> Option<u64> {
        match self {
            Self::About(bytes) | Self::AtMost(bytes) | Self::MoreThan(bytes) => Some(bytes),
            Self::Unknown => None,
        }
    }
}
