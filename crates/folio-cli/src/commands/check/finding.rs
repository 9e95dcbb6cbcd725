//! Findings of a check in JSON.

use serde::Serialize;

/// A finding, as JSON.
#[derive(Serialize)]
pub(super) struct FindingRecord {
    pub(super) severity: &'static str,
    pub(super) structure: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) group: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) inode: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) block: Option<u64>,
    pub(super) message: String,
}
