//! A device that allocates at adjacent addresses, and rejects copies that cross allocations, as the
//! CUDA driver does.

use folio::ramfs::{FrameMemory, FrameRead, FrameWrite};
use folio::{Errno, Error, Result};
use folio_cuda::{Device, HostDevice, Staging};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Mutex;

pub(crate) struct AdjacentDevice {
    device: HostDevice,
    /// The end of what was allocated, and the lengths of the allocations by address.
    state: Mutex<(u64, BTreeMap<u64, u64>)>,
    len_bytes: u64,
}

impl AdjacentDevice {
    pub(crate) fn new(len_bytes: u64) -> Self {
        let device = HostDevice::new(len_bytes).unwrap();
        let first = device.allocate(len_bytes).unwrap();
        Self {
            device,
            state: Mutex::new((first, BTreeMap::new())),
            len_bytes,
        }
    }

    pub(crate) fn allocation_count(&self) -> usize {
        self.state.lock().unwrap().1.len()
    }

    fn check(&self, address: u64, len: usize) -> Result<()> {
        let state = self.state.lock().unwrap();
        let found = state.1.range(..=address).next_back();
        let is_inside = found.is_some_and(|(start, room)| address + len as u64 <= start + room);
        if is_inside {
            return Ok(());
        }
        Err(Error::new(Errno::IO, "a copy crosses allocations"))
    }
}

impl FrameMemory for AdjacentDevice {
    fn len_bytes(&self) -> Result<u64> {
        Ok(self.len_bytes)
    }

    fn allocate(&self, len_bytes: u64) -> Result<u64> {
        let mut state = self.state.lock().unwrap();
        let address = state.0;
        state.0 += len_bytes.next_multiple_of(256);
        state.1.insert(address, len_bytes);
        Ok(address)
    }

    fn release(&self, address: u64) {
        self.state.lock().unwrap().1.remove(&address);
    }

    fn read(&self, parts: &mut [FrameRead<'_>]) -> Result<()> {
        for part in &*parts {
            self.check(part.address, part.buf.len())?;
        }
        self.device.read(parts)
    }

    fn write(&self, parts: &[FrameWrite<'_>]) -> Result<()> {
        for part in parts {
            self.check(part.address, part.bytes.len())?;
        }
        self.device.write(parts)
    }

    fn zero(&self, runs: &[(u64, u64)]) -> Result<()> {
        for (address, len) in runs {
            self.check(*address, *len as usize)?;
        }
        self.device.zero(runs)
    }
}

impl Device for AdjacentDevice {
    fn name(&self) -> String {
        self.device.name()
    }

    fn start(&self, kernel: &str, blocks: u32, lanes: u32, arguments: &[u64]) -> Result<()> {
        self.device.start(kernel, blocks, lanes, arguments)
    }

    fn wait(&self) -> Result<()> {
        self.device.wait()
    }

    fn copy(&self, to: u64, from: u64, len_bytes: u64) -> Result<()> {
        self.device.copy(to, from, len_bytes)
    }

    fn copy_in(&self, to: u64, bytes: &[u8]) -> Result<()> {
        self.device.copy_in(to, bytes)
    }

    fn staging(&self, len_bytes: usize) -> Result<Box<dyn Staging + '_>> {
        let inner = self.device.staging(len_bytes)?;
        Ok(Box::new(Checked {
            device: self,
            inner,
        }))
    }
}

struct Checked<'a> {
    device: &'a AdjacentDevice,
    inner: Box<dyn Staging + 'a>,
}

impl Staging for Checked<'_> {
    fn bytes(&mut self) -> Result<&mut [u8]> {
        self.inner.bytes()
    }

    fn submit(&mut self, parts: &[(u64, Range<usize>)]) -> Result<()> {
        for (address, bytes) in parts {
            self.device.check(*address, bytes.len())?;
        }
        self.inner.submit(parts)
    }
}
