//! Copies to a target with a backing file: writes only what the backing file does not have.
//!
//! A piece is compared or written in whole clusters of the target, because a part of a cluster
//! costs a whole one.

use super::zeros;
use crate::base::Result;
use crate::block::{Allocation, Device};
use std::ops::Range;

/// The backing file of a copy's target.
pub struct TargetBacking<'a> {
    /// The backing file, as the target reads it.
    pub device: &'a dyn Device,
    /// Its depth in the source's chain, where 0 is the source itself. What the source reads from
    /// there is not read. Otherwise the contents are compared.
    pub depth: Option<u32>,
    /// Size of the target's clusters in bytes.
    pub cluster_bytes: u64,
}

impl TargetBacking<'_> {
    /// Reads the content at `offset`; zeros beyond the end.
    pub(super) fn read(&self, buf: &mut [u8], offset: u64) -> Result<()> {
        let available = self.device.len_bytes().saturating_sub(offset);
        let (stored, beyond) = buf.split_at_mut(available.min(buf.len() as u64) as usize);
        beyond.fill(0);
        if stored.is_empty() {
            return Ok(());
        }
        self.device.read_at(stored, offset)
    }
}

/// What happens to a cluster of a piece.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ClusterStep {
    Skip,
    Hide,
    Write,
}

/// Writes a piece of data over the backing file. `zero_run_bytes` is 0 if zeros are written as
/// data.
pub(super) fn write(
    target: &dyn Device,
    buf: &[u8],
    offset: u64,
    backing: &TargetBacking<'_>,
    zero_run_bytes: u64,
) -> Result<()> {
    let mut below = Vec::new();
    if backing.depth.is_none() {
        below.resize(buf.len(), 0);
        backing.read(&mut below, offset)?;
    }
    let step_of = |range: &Range<usize>| {
        let cluster = &buf[range.clone()];
        if below
            .get(range.clone())
            .is_some_and(|below| below == cluster)
        {
            ClusterStep::Skip
        } else if zero_run_bytes > 0 && zeros::is_zero(cluster) {
            ClusterStep::Hide
        } else {
            ClusterStep::Write
        }
    };
    let mut start = 0;
    while start < buf.len() {
        let mut range = start..cluster_end(start, offset, backing.cluster_bytes, buf.len());
        let step = step_of(&range);
        // Neighbors with the same step are one write.
        while range.end < buf.len() {
            let next = range.end..cluster_end(range.end, offset, backing.cluster_bytes, buf.len());
            if step_of(&next) != step {
                break;
            }
            range.end = next.end;
        }
        start = range.end;
        let at = offset + range.start as u64;
        match step {
            ClusterStep::Skip => {}
            ClusterStep::Hide => hide(target, at, range.len() as u64, backing)?,
            ClusterStep::Write => target.write_at(&buf[range], at)?,
        }
    }
    Ok(())
}

/// Returns the end of the part of a buffer that is one cluster of the target.
fn cluster_end(start: usize, offset: u64, cluster_bytes: u64, len: usize) -> usize {
    let at = offset + start as u64;
    let left = cluster_bytes - at % cluster_bytes;
    start + left.min((len - start) as u64) as usize
}

/// Makes a range of the target read as zeros where the backing file stores data.
pub(super) fn hide(
    target: &dyn Device,
    offset: u64,
    len_bytes: u64,
    backing: &TargetBacking<'_>,
) -> Result<()> {
    let end = (offset + len_bytes).min(backing.device.len_bytes());
    let mut at = offset;
    while at < end {
        let (kind, count) = backing.device.allocation(at, end - at)?;
        let count = count.clamp(1, end - at);
        if kind == Allocation::Data {
            target.write_zeroes(at, count)?;
        }
        at += count;
    }
    Ok(())
}
