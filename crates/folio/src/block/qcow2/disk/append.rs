//! Writes compressed clusters: packed one after the other, byte by byte, in the order of the calls.
//!
//! A compressed cluster may start in the host cluster where another one ends; each counts one
//! reference to every host cluster that it touches. Threads compress without a lock (`Packer`); one
//! writer at a time holds the [`Appender`].

use super::codec::Packer;
use super::device::Qcow2Device;
use super::lazy::RefcountWrites;
use crate::base::{Error, Result};
use crate::block::file::ImageFile;
use crate::block::qcow2::metadata::Refcounts;
use std::io::IoSlice;
use std::ops::Range;

/// Host clusters are allocated in runs of this many bytes, so that incompressible clusters are
/// contiguous as well.
const RUN_BYTES: u64 = 1 << 20;

/// A compressed cluster.
#[derive(Debug, Clone)]
pub(crate) struct PackedCluster {
    /// Index of the guest cluster.
    pub(crate) cluster: u64,
    /// The range of its bytes in the buffer of all.
    pub(crate) bytes: Range<usize>,
}

/// The position of the next compressed cluster in the file.
#[derive(Debug, Default)]
pub(crate) struct Appender {
    /// Offset of the next free byte in the file.
    at: u64,
    /// End of the allocated host clusters.
    limit: u64,
    /// Index of the first allocated host cluster that no compressed cluster touches yet. Its first
    /// reference is counted already.
    untouched: u64,
}

impl Appender {
    /// Allocates `len_bytes`, at most a cluster, and counts the references; returns the offset.
    fn allocate(
        &mut self,
        refcounts: &mut Refcounts,
        file: &dyn ImageFile,
        bits: u32,
        len_bytes: u64,
    ) -> Result<u64> {
        let cluster_bytes = 1u64 << bits;
        if !self.at.is_multiple_of(cluster_bytes) && refcounts.is_full(file, self.at >> bits)? {
            self.at = self.at.next_multiple_of(cluster_bytes);
        }
        while self.limit - self.at < len_bytes {
            let run = refcounts.allocate(file, (RUN_BYTES >> bits).max(2))?;
            // Clusters packed byte by byte must be contiguous: the rest of the old run is given
            // back.
            if run.host != self.limit {
                self.give_back(refcounts, file, bits)?;
                self.at = run.host;
                self.untouched = run.host >> bits;
            }
            self.limit = run.host + (run.count << bits);
        }
        let host = self.at;
        let (first, last) = (host >> bits, (host + len_bytes - 1) >> bits);
        // Only the first can contain the end of another, which owns its first reference.
        if first < self.untouched {
            refcounts.share(file, first)?;
        }
        self.untouched = last + 1;
        self.at += len_bytes;
        Ok(host)
    }

    /// Frees the host clusters that were allocated and not touched.
    fn give_back(
        &mut self,
        refcounts: &mut Refcounts,
        file: &dyn ImageFile,
        bits: u32,
    ) -> Result<()> {
        let end = self.limit >> bits;
        if self.untouched < end {
            refcounts.release(file, self.untouched, end - self.untouched, &mut Vec::new())?;
        }
        self.limit = self.untouched << bits;
        Ok(())
    }
}

impl Qcow2Device {
    /// Returns the size of a cluster in bytes.
    pub(in crate::block) fn cluster_bytes(&self) -> u64 {
        self.geometry.cluster_bytes()
    }

    /// Returns a compressor of this image's compression type, for one thread.
    pub(in crate::block) fn packer(&self) -> Result<Packer> {
        Packer::new(self.compression)
    }

    /// Writes compressed clusters in this order; their bytes are contiguous in `bytes`.
    ///
    /// # Errors
    ///
    /// EOPNOTSUPP with an external data file, EROFS, else those of a write.
    pub(in crate::block) fn write_packed(
        &self,
        appender: &mut Appender,
        clusters: &[PackedCluster],
        bytes: &[u8],
    ) -> Result<()> {
        self.append(appender, clusters, bytes)
            .map_err(|error| self.at_image(error))
    }

    fn append(
        &self,
        appender: &mut Appender,
        clusters: &[PackedCluster],
        bytes: &[u8],
    ) -> Result<()> {
        let Some(last) = clusters.last() else {
            return Ok(());
        };
        let bits = self.geometry.cluster_bits;
        // The end of the disk may cut the last cluster.
        self.begin_write((last.cluster << bits).min(self.geometry.len_bytes), 0)?;
        if self.data_file.is_some() {
            return Err(Error::unsupported(
                "compressed clusters in an external data file",
            ));
        }
        // Before `io` is held: a write-back waits for all transfers.
        self.make_room()?;
        let _io = self.io.read();
        let mut hosts = Vec::with_capacity(clusters.len());
        {
            let mut metadata = self.metadata.lock();
            for packed in clusters {
                let len_bytes = packed.bytes.len() as u64;
                hosts.push(appender.allocate(
                    &mut metadata.refcounts,
                    &*self.file,
                    bits,
                    len_bytes,
                )?);
            }
        }
        // An older compressed cluster may have been there, and be cached. Since its space is free,
        // no reader uses its entry.
        self.decompressor.invalidate();
        // Data before entries, so that no reader finds a cluster without its bytes.
        self.write_runs(clusters, &hosts, bytes)?;
        let mut metadata = self.metadata.lock();
        for (packed, host) in clusters.iter().zip(hosts) {
            while metadata.is_in_flight(packed.cluster..packed.cluster + 1) {
                self.write_done.wait(&mut metadata);
            }
            metadata.set_compressed(
                &*self.file,
                packed.cluster,
                host,
                packed.bytes.len() as u64,
            )?;
        }
        Ok(())
    }

    /// Writes each contiguous run of clusters with one host write.
    fn write_runs(&self, clusters: &[PackedCluster], hosts: &[u64], bytes: &[u8]) -> Result<()> {
        let mut run: Option<(u64, Range<usize>)> = None;
        for (packed, &host) in clusters.iter().zip(hosts) {
            match &mut run {
                Some((start, range))
                    if *start + range.len() as u64 == host && range.end == packed.bytes.start =>
                {
                    range.end = packed.bytes.end;
                }
                _ => {
                    if let Some((start, range)) = run.replace((host, packed.bytes.clone())) {
                        self.file.write(&[IoSlice::new(&bytes[range])], start)?;
                    }
                }
            }
        }
        match run {
            Some((start, range)) => self.file.write(&[IoSlice::new(&bytes[range])], start),
            None => Ok(()),
        }
    }

    /// Ends compressed writing: frees the unused clusters, extends the file to a whole cluster, and
    /// writes the tables back.
    pub(in crate::block) fn finish_packed(&self, appender: &mut Appender) -> Result<()> {
        let bits = self.geometry.cluster_bits;
        let mut finish = || {
            // No other write may make the file longer in between.
            let _no_transfer = self.io.write();
            let mut metadata = self.metadata.lock();
            appender.give_back(&mut metadata.refcounts, &*self.file, bits)?;
            let end = appender.at.next_multiple_of(self.geometry.cluster_bytes());
            if self.file.len_bytes()? < end {
                self.file.set_len(end)?;
            }
            appender.at = end;
            Ok(())
        };
        finish().map_err(|error: Error| self.at_image(error))?;
        self.write_back(RefcountWrites::Now)
            .map_err(|error| self.at_image(error))
    }
}
