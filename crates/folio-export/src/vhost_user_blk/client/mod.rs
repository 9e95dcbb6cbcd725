//! The other side: a program that uses a vhost-user-blk disk as a guest's driver does, without a
//! virtual machine.
//!
//! ```text
//!   program --> Queue (queue.rs): slots, each with one request at a time
//!                 |  virtqueue in a memfd               any vhost-user-blk server: folio,
//!                 v                                     qemu-storage-daemon
//!   Client (this file): the conversation  -- socket -->
//! ```
//!
//! Neighbors: above, `folio-bench` and the tests; below, the crate vhost, whose front end is not
//! ours, so that the server is tested against it. Behind the feature `client`.

mod queue;

pub use queue::{Done, Queue, Slot};

use super::config::{SECTOR_LEN, WRITE_CACHE, feature};
use folio::{Errno, Error, Result};
use queue::{QueuePlace, Shape};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::Arc;
use vhost::vhost_user::message::{
    VhostUserConfigFlags, VhostUserInflight, VhostUserProtocolFeatures,
};
use vhost::vhost_user::{Frontend, VhostUserFrontend};
use vhost::{VhostBackend, VhostUserMemoryRegionInfo, VringConfigData};
use vm_memory::{FileOffset, GuestAddress, GuestMemoryMmap};

/// `VIRTIO_F_EVENT_IDX`, `VIRTIO_F_VERSION_1`, `VHOST_USER_F_PROTOCOL_FEATURES`.
const EVENT_IDX: u64 = 1 << 29;
const VERSION_1: u64 = 1 << 32;
const PROTOCOL_FEATURES: u64 = 1 << 30;
/// The address by which the server knows the start of the memory.
const ADDRESS: u64 = 0x1_0000_0000;

/// Size and number of a client's queues.
#[derive(Debug, Clone, Copy)]
pub struct ClientOptions {
    /// Number of queues.
    pub queues: usize,
    /// Requests of one queue at a time, at most 256.
    pub depth: u16,
    /// Most bytes of data in a request.
    pub data_len_max: u32,
}

/// A connected disk.
pub struct Client {
    frontend: Frontend,
    memory: Arc<GuestMemoryMmap>,
    file: File,
    shape: Shape,
    options: ClientOptions,
    queues: Vec<Queue>,
    /// The record of requests in progress, if the server keeps one.
    inflight: Option<(VhostUserInflight, File)>,
    features: u64,
    len_bytes: u64,
}

fn failed(error: impl std::fmt::Display) -> Error {
    Error::new(Errno::IO, format!("vhost-user: {error}"))
}

impl Client {
    /// Connects to the server at `path`.
    ///
    /// # Errors
    /// EIO if the server does not understand or refuses something, else the host's.
    pub fn connect(path: &Path, options: ClientOptions) -> Result<Self> {
        let shape = Shape::new(options.depth, options.data_len_max);
        let memory_len = shape.len_bytes() * options.queues as u64;
        let file = memfd_create("guest memory", MemfdFlags::CLOEXEC).map_err(failed)?;
        ftruncate(&file, memory_len).map_err(failed)?;
        let file = File::from(file);
        let mapped = FileOffset::new(file.try_clone().map_err(failed)?, 0);
        let range = (GuestAddress(0), memory_len as usize, Some(mapped));
        let memory = GuestMemoryMmap::from_ranges_with_files([range]).map_err(failed)?;
        let memory = Arc::new(memory);
        let queues = (0..options.queues as u64)
            .map(|index| Queue::new(Arc::clone(&memory), shape, index * shape.len_bytes()))
            .collect::<io::Result<_>>()
            .map_err(failed)?;
        let frontend = Frontend::connect(path, options.queues as u64).map_err(failed)?;
        let mut this = Self {
            frontend,
            memory,
            file,
            shape,
            options,
            queues,
            inflight: None,
            features: 0,
            len_bytes: 0,
        };
        this.negotiate()?;
        Ok(this)
    }

    /// Connects again, to a server that took the place of one that was killed. Requests in progress
    /// go on.
    ///
    /// # Errors
    /// Those of [`Client::connect`].
    pub fn reconnect(&mut self, path: &Path) -> Result<()> {
        self.frontend = Frontend::connect(path, self.options.queues as u64).map_err(failed)?;
        self.negotiate()
    }

    /// Returns the size of the disk in bytes, as of the connection.
    pub fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    /// Returns the feature bits that were agreed on.
    pub fn features(&self) -> u64 {
        self.features
    }

    /// Returns the queues, which are independent of each other.
    pub fn queues(&mut self) -> &mut [Queue] {
        &mut self.queues
    }

    /// Returns guest memory, for tests of what a guest must not do.
    pub fn memory(&self) -> &GuestMemoryMmap {
        &self.memory
    }

    /// Returns the file of guest memory.
    pub fn memory_file(&self) -> &File {
        &self.file
    }

    /// Stops a queue, once its requests in progress are done; returns the index of the next one.
    ///
    /// # Errors
    /// EIO if the server fails.
    pub fn stop_queue(&mut self, index: usize) -> Result<u32> {
        self.frontend.get_vring_base(index).map_err(failed)
    }

    /// Does what a monitor does when its guest resets: stops the queues, and starts them again with
    /// a new record of requests in progress.
    ///
    /// # Errors
    /// Those of [`Client::connect`].
    pub fn reset(&mut self) -> Result<()> {
        for index in 0..self.options.queues {
            self.stop_queue(index)?;
        }
        self.inflight = None;
        self.negotiate()
    }

    /// Turns the write cache on or off.
    ///
    /// # Errors
    /// EIO if the server refuses it.
    pub fn set_write_cache(&mut self, is_on: bool) -> Result<()> {
        let place = WRITE_CACHE as u32;
        let flags = VhostUserConfigFlags::WRITABLE;
        self.frontend
            .set_config(place, flags, &[is_on.into()])
            .map_err(failed)?;
        // The message has no answer: only a later one shows that the server has seen it.
        if self.has_write_cache()? != is_on {
            return Err(failed("the write cache cannot be changed"));
        }
        Ok(())
    }

    /// Returns whether the write cache is on.
    ///
    /// # Errors
    /// EIO if the server fails.
    pub fn has_write_cache(&mut self) -> Result<bool> {
        Ok(self.read_config()?.get(WRITE_CACHE) == Some(&1))
    }

    fn read_config(&mut self) -> Result<Vec<u8>> {
        let flags = VhostUserConfigFlags::WRITABLE;
        let read = self.frontend.get_config(0, 60, flags, &[0; 60]);
        read.map(|(_, config)| config).map_err(failed)
    }

    /// Reads the size of the disk again.
    ///
    /// # Errors
    /// EIO if the server fails.
    pub fn read_len_bytes(&mut self) -> Result<u64> {
        let config = self.read_config()?;
        let sectors = config
            .first_chunk()
            .map_or(0, |bytes| u64::from_le_bytes(*bytes));
        Ok(sectors * SECTOR_LEN)
    }

    fn negotiate(&mut self) -> Result<()> {
        let frontend = &mut self.frontend;
        frontend.set_owner().map_err(failed)?;
        let wanted = EVENT_IDX
            | VERSION_1
            | PROTOCOL_FEATURES
            | feature::FLUSH
            | feature::DISCARD
            | feature::WRITE_ZEROES
            | feature::MQ
            | feature::RO;
        let offered = frontend.get_features().map_err(failed)?;
        self.features = offered & wanted;
        let protocol = frontend.get_protocol_features().map_err(failed)?;
        let protocol_wanted = VhostUserProtocolFeatures::MQ
            | VhostUserProtocolFeatures::CONFIG
            | VhostUserProtocolFeatures::INFLIGHT_SHMFD;
        frontend
            .set_protocol_features(protocol & protocol_wanted)
            .map_err(failed)?;
        frontend.set_features(self.features).map_err(failed)?;
        if protocol.contains(VhostUserProtocolFeatures::INFLIGHT_SHMFD) {
            if self.inflight.is_none() {
                let asked =
                    VhostUserInflight::new(0, 0, self.options.queues as u16, self.shape.ring_len);
                self.inflight = Some(frontend.get_inflight_fd(&asked).map_err(failed)?);
            }
            if let Some((place, file)) = &self.inflight {
                frontend
                    .set_inflight_fd(place, file.as_raw_fd())
                    .map_err(failed)?;
            }
        }
        let region = VhostUserMemoryRegionInfo {
            guest_phys_addr: 0,
            memory_size: self.shape.len_bytes() * self.options.queues as u64,
            userspace_addr: ADDRESS,
            mmap_offset: 0,
            mmap_handle: self.file.as_raw_fd(),
        };
        frontend.set_mem_table(&[region]).map_err(failed)?;
        self.start_queues()?;
        self.len_bytes = self.read_len_bytes()?;
        Ok(())
    }

    fn start_queues(&mut self) -> Result<()> {
        let frontend = &mut self.frontend;
        let has_event_index = self.features & EVENT_IDX != 0;
        for (index, queue) in self.queues.iter_mut().enumerate() {
            queue.has_event_index = has_event_index;
            let QueuePlace {
                descriptors,
                available,
                used,
            } = queue.place();
            let config = VringConfigData {
                queue_max_size: self.shape.ring_len,
                queue_size: self.shape.ring_len,
                flags: 0,
                desc_table_addr: ADDRESS + descriptors,
                used_ring_addr: ADDRESS + used,
                avail_ring_addr: ADDRESS + available,
                log_addr: None,
            };
            frontend
                .set_vring_num(index, self.shape.ring_len)
                .map_err(failed)?;
            frontend.set_vring_base(index, 0).map_err(failed)?;
            frontend.set_vring_addr(index, &config).map_err(failed)?;
            frontend
                .set_vring_call(index, &queue.call)
                .map_err(failed)?;
            frontend
                .set_vring_kick(index, &queue.kick)
                .map_err(failed)?;
            frontend.set_vring_enable(index, true).map_err(failed)?;
        }
        Ok(())
    }
}
