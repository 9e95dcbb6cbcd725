//! Compressed clusters, written: packed one behind the other, byte by byte, in the order they come.
//!
//! A compressed cluster may begin in the host cluster that another one ends in; each counts one
//! reference to every host cluster that it touches. Whoever packs works without a lock (`Packer`);
//! one writer at a time holds the [`Appender`].

use super::super::image_file::ImageFile;
use super::compressed::Packer;
use super::refcount::Refcounts;
use super::{Qcow2Device, flush::RefcountWrites};
use crate::base::{Error, Result};
use std::io::IoSlice;
use std::ops::Range;

/// Host clusters are taken in runs of this many bytes, so that clusters which do not pack lie
/// behind each other, too.
const RUN_BYTES: u64 = 1 << 20;

/// A packed cluster.
#[derive(Debug, Clone)]
pub(in crate::block) struct PackedCluster {
    /// Index of the guest cluster.
    pub(in crate::block) cluster: u64,
    /// Where its bytes are among those of all.
    pub(in crate::block) bytes: Range<usize>,
}

/// Where the next compressed cluster goes.
#[derive(Debug, Default)]
pub(in crate::block) struct Appender {
    /// Next free byte in the file.
    at: u64,
    /// End of the host clusters that were taken.
    limit: u64,
    /// Index of the first host cluster that no compressed cluster touches yet: its reference is
    /// there already.
    untouched: u64,
}

impl Appender {
    /// Finds a place for `len_bytes`, at most a cluster, and counts its references.
    fn place(
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
            if run.host != self.limit {
                self.give_back(refcounts, file, bits)?;
                self.at = run.host;
                self.untouched = run.host >> bits;
            }
            self.limit = run.host + (run.count << bits);
        }
        let host = self.at;
        let (first, last) = (host >> bits, (host + len_bytes - 1) >> bits);
        // Only the first can hold the end of another: its first reference is that one's.
        if first < self.untouched {
            refcounts.share(file, first)?;
        }
        self.untouched = last + 1;
        self.at += len_bytes;
        Ok(host)
    }

    /// Frees the host clusters that were taken and not touched.
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
    /// Bytes in a cluster.
    pub(in crate::block) fn cluster_bytes(&self) -> u64 {
        self.geometry.cluster_bytes()
    }

    /// A compressor of this image's kind, for one thread.
    pub(in crate::block) fn packer(&self) -> Result<Packer> {
        Packer::new(self.compression)
    }

    /// Writes packed clusters, whose bytes lie behind each other in `bytes`, in this order.
    pub(in crate::block) fn write_packed(
        &self,
        appender: &mut Appender,
        clusters: &[PackedCluster],
        bytes: &[u8],
    ) -> Result<()> {
        self.append(appender, clusters, bytes)
            .map_err(|error| self.place(error))
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
        // At most the last byte of the disk: its cluster may be cut by the end.
        self.begin_write((last.cluster << bits).min(self.geometry.len_bytes), 0)?;
        if self.data_file.is_some() {
            return Err(Error::unsupported(
                "compressed clusters in an external data file",
            ));
        }
        self.make_room()?;
        self.decompressor.forget();
        let _io = self.io.read();
        let mut hosts = Vec::with_capacity(clusters.len());
        {
            let mut metadata = self.metadata.lock();
            for packed in clusters {
                let len_bytes = packed.bytes.len() as u64;
                hosts.push(appender.place(
                    &mut metadata.refcounts,
                    &*self.file,
                    bits,
                    len_bytes,
                )?);
            }
        }
        self.write_runs(clusters, &hosts, bytes)?;
        let mut metadata = self.metadata.lock();
        for (packed, host) in clusters.iter().zip(hosts) {
            while metadata.is_in_flight(packed.cluster..packed.cluster + 1) {
                self.landed.wait(&mut metadata);
            }
            metadata.set_compressed(
                &*self.file,
                packed.cluster,
                (host, packed.bytes.len() as u64),
            )?;
        }
        Ok(())
    }

    /// Few host writes: one for each run of clusters that lie behind each other.
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

    /// The end of compressed writing: what was taken too much is free again, and the file ends with
    /// a cluster.
    pub(in crate::block) fn finish_packed(&self, appender: &mut Appender) -> Result<()> {
        let bits = self.geometry.cluster_bits;
        let mut finish = || {
            let mut metadata = self.metadata.lock();
            appender.give_back(&mut metadata.refcounts, &*self.file, bits)?;
            let end = appender.at.next_multiple_of(self.geometry.cluster_bytes());
            if self.file.len_bytes()? < end {
                self.file.set_len(end)?;
            }
            appender.at = end;
            Ok(())
        };
        finish().map_err(|error: Error| self.place(error))?;
        self.write_back(RefcountWrites::Now)
            .map_err(|error| self.place(error))
    }
}
