//! The device that requests of a live image use. Requests share it; a switch waits for those in
//! progress and holds new ones back.
//!
//! Each shard has a lock and a reference to the device, and a thread uses one shard. So two threads
//! with requests share no memory that they write.

use crate::base::lock::{RwLock, RwLockWriteGuard};
use crate::base::{Errno, Error, Result};
use crate::block::Device;
use crate::block::qcow2::Qcow2Device;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Number of shards: threads beyond it share.
const SHARDS: usize = 16;

static NEXT_SHARD: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    /// The shard of the calling thread.
    static SHARD: usize = NEXT_SHARD.fetch_add(1, Ordering::Relaxed) % SHARDS;
}

/// An open device.
#[derive(Clone)]
pub(super) enum LiveDevice {
    Qcow2(Arc<Qcow2Device>),
    /// Of another format, or remote.
    Other(Arc<dyn Device>),
}

impl LiveDevice {
    /// Returns the device of a qcow2 image.
    ///
    /// # Errors
    ///
    /// EOPNOTSUPP for another format.
    fn qcow2(&self) -> Result<Arc<Qcow2Device>> {
        match self {
            Self::Qcow2(device) => Ok(device.clone()),
            Self::Other(_) => Err(Error::unsupported("the image is not a qcow2 image")),
        }
    }

    fn as_device(&self) -> &dyn Device {
        match self {
            Self::Qcow2(device) => &**device,
            Self::Other(device) => &**device,
        }
    }
}

#[derive(Clone)]
struct Current {
    device: LiveDevice,
    /// Number of the chain: a compaction works on one.
    epoch: u64,
}

/// The processor fetches cache lines in pairs.
#[repr(align(128))]
struct Shard(RwLock<Option<Current>>);

/// The present device; none if an operation closed it and could not open it again.
pub(super) struct DeviceSlot {
    shards: [Shard; SHARDS],
}

impl DeviceSlot {
    pub(super) fn new(device: LiveDevice) -> Self {
        let current = Current { device, epoch: 0 };
        Self {
            shards: [(); SHARDS].map(|()| Shard(RwLock::new(Some(current.clone())))),
        }
    }

    fn read<T>(&self, call: impl FnOnce(&Current) -> Result<T>) -> Result<T> {
        let shard = SHARD.try_with(|shard| *shard).unwrap_or(0);
        match &*self.shards[shard].0.read() {
            Some(current) => call(current),
            None => Err(closed()),
        }
    }

    /// Makes a request of the device.
    ///
    /// # Errors
    ///
    /// EIO if there is no device, else those of `call`.
    #[inline]
    pub(super) fn request<T>(&self, call: impl FnOnce(&dyn Device) -> Result<T>) -> Result<T> {
        self.read(|current| call(current.device.as_device()))
    }

    /// Returns the present device, of format qcow2.
    ///
    /// # Errors
    ///
    /// EIO if there is none, EOPNOTSUPP for another format.
    pub(super) fn qcow2(&self) -> Result<Arc<Qcow2Device>> {
        self.read(|current| current.device.qcow2())
    }

    /// Returns the number of the present chain.
    pub(super) fn epoch(&self) -> Result<u64> {
        self.read(|current| Ok(current.epoch))
    }

    /// Makes a request of the qcow2 device on the chain with this number.
    ///
    /// # Errors
    ///
    /// EAGAIN if the chain is another one now.
    pub(super) fn request_in<T>(
        &self,
        epoch: u64,
        call: impl FnOnce(&Qcow2Device) -> Result<T>,
    ) -> Result<T> {
        self.read(|current| match &current.device {
            LiveDevice::Qcow2(device) if current.epoch == epoch => call(device),
            _ => Err(superseded()),
        })
    }

    /// Waits for the requests in progress, and holds new ones back until the guard is dropped.
    pub(super) fn exclusive(&self) -> ExclusiveSlot<'_> {
        let shards: Vec<_> = self.shards.iter().map(|shard| shard.0.write()).collect();
        let first = shards.first().and_then(|shard| shard.as_ref());
        ExclusiveSlot {
            epoch: first.map_or(0, |current| current.epoch),
            shards,
        }
    }
}

/// The slot without requests in progress.
pub(super) struct ExclusiveSlot<'a> {
    shards: Vec<RwLockWriteGuard<'a, Option<Current>>>,
    epoch: u64,
}

impl ExclusiveSlot<'_> {
    /// Returns the present device.
    ///
    /// # Errors
    ///
    /// EIO if there is none.
    pub(super) fn device(&self) -> Result<LiveDevice> {
        let first = self.shards.first().and_then(|shard| shard.as_ref());
        first
            .map(|current| current.device.clone())
            .ok_or_else(closed)
    }

    /// Returns the present device, of format qcow2.
    ///
    /// # Errors
    ///
    /// EIO if there is none, EOPNOTSUPP for another format.
    pub(super) fn qcow2(&self) -> Result<Arc<Qcow2Device>> {
        self.device()?.qcow2()
    }

    /// Makes everything durable, refcounts as well, and the dirty bit clear.
    pub(super) fn settle(&self) -> Result<()> {
        let device = self.device()?;
        let device = device.as_device();
        device.mark_closed()?;
        device.flush()
    }

    /// Fails unless the chain has this number.
    ///
    /// # Errors
    ///
    /// EAGAIN for another chain.
    pub(super) fn check_epoch(&self, epoch: u64) -> Result<()> {
        if self.epoch == epoch {
            Ok(())
        } else {
            Err(superseded())
        }
    }

    /// Gives the chain a new number: a compaction of the old one ends.
    pub(super) fn end_epoch(&mut self) {
        self.epoch += 1;
        for current in self.shards.iter_mut().filter_map(|shard| shard.as_mut()) {
            current.epoch = self.epoch;
        }
    }

    /// Drops the slot's references to the device.
    pub(super) fn clear(&mut self) {
        for shard in &mut self.shards {
            **shard = None;
        }
    }

    /// Gives requests another device.
    pub(super) fn put(&mut self, device: LiveDevice) {
        let epoch = self.epoch;
        let current = Current { device, epoch };
        for shard in &mut self.shards {
            **shard = Some(current.clone());
        }
    }
}

fn closed() -> Error {
    let why = "the image is closed: an operation on it could not open it again";
    Error::new(Errno::IO, why)
}

fn superseded() -> Error {
    let why = "the image was forked, snapshotted or shrunk meanwhile: compact it again";
    Error::new(Errno::AGAIN, why)
}
