//! The data of files: reads and writes by runs of neighboring clusters, and changes of size.

use super::chain::Chain;
use super::layout::damaged;
use super::table::Disk;
use super::volume::Node;
use crate::base::{Errno, Result, Timespec};
use std::ops::Range;

impl Node {
    /// Reads from `offset` on; returns fewer bytes only at the end of the file.
    pub(crate) fn read(&mut self, disk: &mut Disk, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let count = self.len_bytes.saturating_sub(offset).min(buf.len() as u64);
        let range = offset..offset + count;
        self.follow(disk, range.end)?;
        each_run(disk, &self.chain, range, |disk, at, part| {
            disk.cache.read_data(at, &mut buf[part])
        })?;
        Ok(count as usize)
    }

    /// Follows the chain to the cluster of the last byte before `end`, which is in the file.
    fn follow(&mut self, disk: &mut Disk, end: u64) -> Result<()> {
        let needed = disk.geometry.clusters_of(end);
        disk.follow(&mut self.chain, needed)?;
        if self.chain.len() < needed {
            return Err(damaged("a chain of clusters is shorter than its file"));
        }
        Ok(())
    }

    /// Writes as many of `bytes` as there is space for, and zeros between the end of the file and
    /// `offset`; returns their number.
    ///
    /// # Errors
    ///
    /// ENOSPC if there is space for none.
    pub(crate) fn write(
        &mut self,
        disk: &mut Disk,
        offset: u64,
        bytes: &[u8],
        now: Timespec,
    ) -> Result<usize> {
        if bytes.is_empty() {
            return Ok(0);
        }
        let mut end = offset + bytes.len() as u64;
        self.follow(disk, end.min(self.len_bytes))?;
        disk.follow(&mut self.chain, disk.geometry.clusters_of(end))?;
        if self.chain.len() < disk.geometry.clusters_of(end) {
            let clusters = u64::from(self.chain.len()) + u64::from(disk.free_count()?);
            end = end.min(clusters * disk.geometry.cluster_bytes);
            if end <= offset {
                return Err(Errno::NOSPC.into());
            }
        }
        let count = (end - offset) as usize;
        self.grow(disk, end, |disk, node| {
            node.fill(disk, node.len_bytes..offset)?;
            each_run(disk, &node.chain, offset..end, |disk, at, part| {
                disk.cache.write_data(at, &bytes[part])
            })
        })?;
        self.len_bytes = self.len_bytes.max(end);
        self.store(disk, now)?;
        Ok(count)
    }

    /// Sets the size; new bytes are zeros.
    ///
    /// # Errors
    ///
    /// ENOSPC; nothing is changed then.
    pub(crate) fn set_len(&mut self, disk: &mut Disk, len_bytes: u64, now: Timespec) -> Result<()> {
        if len_bytes > self.len_bytes {
            self.follow(disk, self.len_bytes)?;
            self.grow(disk, len_bytes, |disk, node| {
                node.fill(disk, node.len_bytes..len_bytes)
            })?;
            self.len_bytes = len_bytes;
            return self.store(disk, now);
        }
        self.len_bytes = len_bytes;
        let kept = disk.geometry.clusters_of(len_bytes);
        if kept > 0 {
            self.store(disk, now)?;
            return disk.cut(&mut self.chain, kept);
        }
        // The entry first, so that it never names a free cluster.
        let mut chain = std::mem::take(&mut self.chain);
        self.store(disk, now)?;
        disk.cut(&mut chain, 0)
    }

    /// Adds the clusters that a file of `end` bytes lacks, and fills them; frees them if that
    /// fails.
    fn grow(
        &mut self,
        disk: &mut Disk,
        end: u64,
        fill: impl FnOnce(&mut Disk, &mut Self) -> Result<()>,
    ) -> Result<()> {
        let needed = disk.geometry.clusters_of(end);
        disk.follow(&mut self.chain, needed)?;
        let had = self.chain.len();
        if had < needed {
            disk.extend(&mut self.chain, needed - had)?;
        }
        let filled = fill(disk, self);
        if filled.is_err() && had < needed {
            disk.cut(&mut self.chain, had)?;
        }
        filled
    }

    /// Writes zeros to a range; none if it is empty.
    fn fill(&self, disk: &mut Disk, range: Range<u64>) -> Result<()> {
        each_run(disk, &self.chain, range, |disk, at, part| {
            disk.cache.write_zeros(at, part.len() as u64)
        })
    }

    /// Writes size, first cluster and time to the entry.
    fn store(&self, disk: &mut Disk, now: Timespec) -> Result<()> {
        self.change_entry(disk, |entry| {
            entry.set_cluster(self.chain.first());
            entry.set_len_bytes(self.len_bytes as u32);
            entry.set_modified(now);
        })
    }
}

/// Calls `transfer` for each run of neighboring clusters that has bytes of `range`, with the run's
/// place and the bytes counted from the start of `range`.
fn each_run(
    disk: &mut Disk,
    chain: &Chain,
    range: Range<u64>,
    mut transfer: impl FnMut(&mut Disk, u64, Range<usize>) -> Result<()>,
) -> Result<()> {
    let cluster_bytes = disk.geometry.cluster_bytes;
    let mut at = range.start;
    while at < range.end {
        let run = chain.find((at / cluster_bytes) as u32);
        let run = run.ok_or_else(|| damaged("a chain of clusters is shorter than its file"))?;
        let within = at % cluster_bytes;
        let len = (u64::from(run.count) * cluster_bytes - within).min(range.end - at);
        let start = (at - range.start) as usize;
        let place = disk.geometry.cluster_offset(run.cluster) + within;
        transfer(disk, place, start..start + len as usize)?;
        at += len;
    }
    Ok(())
}
