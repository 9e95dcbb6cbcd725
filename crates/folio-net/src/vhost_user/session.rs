//! The conversation with one front end: it describes its memory and queues, and starts them.

use super::connection::Connection;
use super::device::Device;
use super::guest_memory::{self, Memory, Region, RegionPlace};
use super::inflight::{self, InflightPlace, InflightQueue};
use super::message::{self, FDS_MAX, Fields, Message, invalid, protocol_feature, request};
use super::queue::Queue;
use super::split_ring::{self, RING_LEN_MAX, RingPlace, SplitRing};
use parking_lot::Mutex;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread::JoinHandle;
use vm_memory::GuestAddress;

/// `VIRTIO_F_INDIRECT_DESC`, `VIRTIO_F_EVENT_IDX`, `VIRTIO_F_VERSION_1`, and vhost-user's
/// `VHOST_USER_F_PROTOCOL_FEATURES`.
const QUEUE_FEATURES: u64 = 1 << 28 | 1 << EVENT_IDX | 1 << 32 | PROTOCOL_FEATURES;
const EVENT_IDX: u32 = 29;
const PROTOCOL_FEATURES: u64 = 1 << 30;
/// Most configuration bytes in one message. QEMU: `VHOST_USER_MAX_CONFIG_SIZE` is 256.
const CONFIG_LEN_MAX: usize = 4096;
/// Regions of memory that the front end may add one by one; QEMU has 32 at most.
const REGIONS_MAX: usize = 128;

/// Where a device informs its front end of a changed configuration; empty while there is none.
pub(super) type ConfigChannel = Mutex<Option<UnixStream>>;

/// The description of a queue, for its next start.
#[derive(Clone, Copy)]
struct QueueSetup {
    ring_len: u16,
    next_available: u16,
    /// Descriptors, used ring and available ring.
    addresses: Option<[GuestAddress; 3]>,
}

impl Default for QueueSetup {
    fn default() -> Self {
        Self {
            ring_len: RING_LEN_MAX,
            next_available: 0,
            addresses: None,
        }
    }
}

/// The state of one conversation.
pub(super) struct Session<D> {
    connection: Arc<Connection<D>>,
    queues: Vec<Arc<Queue<D>>>,
    setups: Vec<QueueSetup>,
    /// One for each queue that was started.
    threads: Vec<Option<JoinHandle<()>>>,
    regions: Vec<Region>,
    inflight: Option<(InflightPlace, Arc<Memory>)>,
    features: u64,
    protocol_features: u64,
    config_channel: Arc<ConfigChannel>,
}

/// The answer to a request.
enum Answer {
    /// Success, if the front end wants to know.
    Done,
    Number(u64),
    Bytes(Vec<u8>),
    BytesAndFd(Vec<u8>, OwnedFd),
}

impl<D: Device> Session<D> {
    pub(super) fn new(
        connection: Arc<Connection<D>>,
        config_channel: Arc<ConfigChannel>,
    ) -> io::Result<Self> {
        let count = connection.device.queues();
        let queues = (0..count)
            .map(|index| Queue::new(index, Arc::clone(&connection)).map(Arc::new))
            .collect::<io::Result<_>>()?;
        Ok(Self {
            connection,
            queues,
            setups: vec![QueueSetup::default(); count],
            threads: (0..count).map(|_| None).collect(),
            regions: Vec::new(),
            inflight: None,
            features: 0,
            protocol_features: 0,
            config_channel,
        })
    }

    /// Answers requests until the front end disconnects.
    ///
    /// # Errors
    /// The front end sent an invalid message, or the connection failed.
    pub(super) fn serve(&mut self, stream: &UnixStream) -> io::Result<()> {
        while let Some(mut message) = Message::receive(stream)? {
            let request = message.request;
            let answered = self.answer(&mut message);
            let (payload, fd) = match answered {
                Ok(Answer::Done) => {
                    if self.wants_reply(&message) {
                        message::reply(stream, request, &0_u64.to_ne_bytes(), None)?;
                    }
                    continue;
                }
                // The front end decides what a refused message means.
                Err(_) if self.wants_reply(&message) => (1_u64.to_ne_bytes().to_vec(), None),
                Err(error) => return Err(error),
                Ok(Answer::Number(number)) => (number.to_ne_bytes().to_vec(), None),
                Ok(Answer::Bytes(bytes)) => (bytes, None),
                Ok(Answer::BytesAndFd(bytes, fd)) => (bytes, Some(fd)),
            };
            message::reply(stream, request, &payload, fd.as_ref().map(AsFd::as_fd))?;
        }
        Ok(())
    }

    /// Whether an answer of success or failure is expected.
    fn wants_reply(&self, message: &Message) -> bool {
        message.needs_reply && self.protocol_features & protocol_feature::REPLY_ACK != 0
    }

    /// Stops all queues, requests left or not, once the front end has disconnected.
    pub(super) fn end(mut self) {
        self.connection.close();
        self.connection.device.end_waits();
        *self.config_channel.lock() = None;
        for queue in &self.queues {
            queue.wake();
        }
        for thread in self.threads.drain(..).flatten() {
            // A panic was reported by its thread.
            let _ = thread.join();
        }
        self.connection.pool.close(None);
        self.connection.device.reset();
    }

    fn answer(&mut self, message: &mut Message) -> io::Result<Answer> {
        match message.request {
            request::GET_FEATURES => {
                return Ok(Answer::Number(self.offered_features()));
            }
            request::SET_FEATURES => self.set_features(message.number()?)?,
            request::SET_OWNER => {}
            request::RESET_OWNER | request::RESET_DEVICE => self.reset(),
            request::GET_PROTOCOL_FEATURES => {
                return Ok(Answer::Number(self.offered_protocol_features()));
            }
            request::SET_PROTOCOL_FEATURES => self.protocol_features = message.number()?,
            request::GET_QUEUE_NUM => return Ok(Answer::Number(self.queues.len() as u64)),
            request::GET_CONFIG => return self.get_config(message.fields()),
            request::SET_CONFIG => self.set_config(message.fields())?,
            request::SET_BACKEND_REQ_FD => {
                let stream = UnixStream::from(message.take_fd()?);
                // A front end that does not read must not block the server.
                stream.set_nonblocking(true)?;
                *self.config_channel.lock() = Some(stream);
            }
            request::GET_INFLIGHT_FD => return self.create_inflight(message.fields()),
            request::SET_INFLIGHT_FD => self.set_inflight(message)?,
            request::SET_MEM_TABLE
            | request::GET_MAX_MEM_SLOTS
            | request::ADD_MEM_REG
            | request::REM_MEM_REG => return self.answer_about_memory(message),
            _ => return self.answer_about_queue(message),
        }
        Ok(Answer::Done)
    }

    fn answer_about_memory(&mut self, message: &mut Message) -> io::Result<Answer> {
        match message.request {
            request::GET_MAX_MEM_SLOTS => return Ok(Answer::Number(REGIONS_MAX as u64)),
            request::SET_MEM_TABLE => {
                let fds = std::mem::take(&mut message.fds);
                let mut fields = message.fields();
                let count = fields.u32()? as usize;
                fields.u32()?;
                if count > FDS_MAX || count != fds.len() {
                    return Err(invalid("each region of memory needs a descriptor"));
                }
                let mut regions = Vec::with_capacity(count);
                for fd in fds {
                    regions.push(Region::map(region_place(&mut fields)?, fd)?);
                }
                self.set_regions(regions)?;
            }
            request::ADD_MEM_REG => {
                let fd = message.take_fd()?;
                let mut fields = message.fields();
                fields.u64()?;
                if self.regions.len() == REGIONS_MAX {
                    return Err(invalid("there are too many regions of memory"));
                }
                let mut regions = self.regions.clone();
                regions.push(Region::map(region_place(&mut fields)?, fd)?);
                self.set_regions(regions)?;
            }
            _ => {
                let mut fields = message.fields();
                fields.u64()?;
                let place = region_place(&mut fields)?;
                let mut regions = self.regions.clone();
                regions.retain(|region| !region.place.is_same(&place));
                self.set_regions(regions)?;
            }
        }
        Ok(Answer::Done)
    }

    fn answer_about_queue(&mut self, message: &mut Message) -> io::Result<Answer> {
        match message.request {
            request::SET_VRING_NUM => {
                let (queue, len) = message.queue_number()?;
                let len = u16::try_from(len).unwrap_or(0);
                if !len.is_power_of_two() || len > RING_LEN_MAX {
                    return Err(invalid("a queue has an invalid length"));
                }
                self.setup(queue)?.ring_len = len;
            }
            request::SET_VRING_BASE => {
                let (queue, index) = message.queue_number()?;
                self.setup(queue)?.next_available = index as u16;
            }
            request::SET_VRING_ADDR => {
                let mut fields = message.fields();
                let queue = fields.u32()? as usize;
                fields.u32()?;
                let mut address = || guest_memory::guest_address(&self.regions, fields.u64()?);
                let addresses = [address()?, address()?, address()?];
                self.setup(queue)?.addresses = Some(addresses);
            }
            request::GET_VRING_BASE => {
                let (queue, _) = message.queue_number()?;
                let setup = *self.setup(queue)?;
                let stopped = self.queues[queue].stop().unwrap_or(setup.next_available);
                self.setup(queue)?.next_available = stopped;
                let numbers = [queue as u32, u32::from(stopped)].map(u32::to_ne_bytes);
                return Ok(Answer::Bytes(numbers.concat()));
            }
            request::SET_VRING_KICK => {
                let file = message.queue_file()?;
                self.setup(file.queue)?;
                self.queues[file.queue].set_kick(file.file);
                self.start(file.queue)?;
            }
            request::SET_VRING_CALL => {
                let file = message.queue_file()?;
                self.setup(file.queue)?;
                self.queues[file.queue].set_call(file.file);
            }
            request::SET_VRING_ERR => {
                let file = message.queue_file()?;
                self.setup(file.queue)?;
                self.queues[file.queue].set_error(file.file);
            }
            request::SET_VRING_ENABLE => {
                let (queue, is_enabled) = message.queue_number()?;
                self.setup(queue)?;
                self.queues[queue].enable(is_enabled != 0);
            }
            _ => return Err(invalid("a message has an unknown number")),
        }
        Ok(Answer::Done)
    }

    fn setup(&mut self, queue: usize) -> io::Result<&mut QueueSetup> {
        self.setups
            .get_mut(queue)
            .ok_or_else(|| invalid("a message is for a queue that does not exist"))
    }

    fn offered_features(&self) -> u64 {
        self.connection.device.features() | QUEUE_FEATURES
    }

    fn offered_protocol_features(&self) -> u64 {
        let device = &self.connection.device;
        let mut features = protocol_feature::MQ
            | protocol_feature::REPLY_ACK
            | protocol_feature::CONFIGURE_MEM_SLOTS
            | protocol_feature::RESET_DEVICE;
        if device.config().is_some() {
            // Not offered else: QEMU warns of a feature that it does not use.
            features |= protocol_feature::CONFIG | protocol_feature::BACKEND_REQ;
        }
        if device.can_repeat_requests() {
            features |= protocol_feature::INFLIGHT_SHMFD;
        }
        features
    }

    fn set_features(&mut self, features: u64) -> io::Result<()> {
        if features & !self.offered_features() != 0 {
            return Err(invalid("a feature was not offered"));
        }
        self.features = features;
        self.connection.device.select_features(features);
        if features & PROTOCOL_FEATURES == 0 {
            // Then no message enables them.
            for queue in &self.queues {
                queue.enable(true);
            }
        }
        Ok(())
    }

    /// Returns to the state before the first request of a guest.
    fn reset(&mut self) {
        for (queue, setup) in self.queues.iter().zip(&mut self.setups) {
            queue.enable(false);
            queue.stop();
            *setup = QueueSetup::default();
        }
        self.features = 0;
        self.connection.device.reset();
    }

    fn set_regions(&mut self, regions: Vec<Region>) -> io::Result<()> {
        let memory = guest_memory::memory_of(&regions)?;
        self.connection.set_memory(memory)?;
        self.regions = regions;
        Ok(())
    }

    fn get_config(&self, mut fields: Fields<'_>) -> io::Result<Answer> {
        let (offset, len, flags) = (fields.u32()?, fields.u32()?, fields.u32()?);
        if len as usize > CONFIG_LEN_MAX {
            return Err(invalid("a configuration is too long"));
        }
        let config = self.connection.device.config().unwrap_or_default();
        let mut answer = [offset, len, flags].map(u32::to_ne_bytes).concat();
        let asked = (offset as usize..).take(len as usize);
        answer.extend(asked.map(|at| config.get(at).copied().unwrap_or(0)));
        Ok(Answer::Bytes(answer))
    }

    fn set_config(&self, mut fields: Fields<'_>) -> io::Result<()> {
        let (offset, len) = (fields.u32()?, fields.u32()?);
        fields.u32()?;
        let bytes = fields.rest();
        let is_whole = bytes.len() == len as usize;
        if !is_whole || !self.connection.device.write_config(offset as usize, bytes) {
            return Err(invalid("this part of the configuration cannot be changed"));
        }
        Ok(())
    }

    fn create_inflight(&self, mut fields: Fields<'_>) -> io::Result<Answer> {
        fields.u64()?;
        fields.u64()?;
        let (queues, ring_len) = (fields.u16()?, fields.u16()?);
        if usize::from(queues) > self.queues.len() {
            return Err(invalid("a message is for a queue that does not exist"));
        }
        let (place, file) =
            inflight::create(queues, ring_len, self.connection.device.record_len_bytes())?;
        let mut bytes = place.len_bytes.to_ne_bytes().to_vec();
        bytes.extend_from_slice(&place.file_offset.to_ne_bytes());
        bytes.extend_from_slice(&place.queues.to_ne_bytes());
        bytes.extend_from_slice(&place.ring_len.to_ne_bytes());
        // C pads the structure.
        bytes.extend_from_slice(&[0; 4]);
        Ok(Answer::BytesAndFd(bytes, file))
    }

    fn set_inflight(&mut self, message: &mut Message) -> io::Result<()> {
        let file = message.take_fd()?;
        let mut fields = message.fields();
        let place = InflightPlace {
            len_bytes: fields.u64()?,
            file_offset: fields.u64()?,
            queues: fields.u16()?,
            ring_len: fields.u16()?,
        };
        let device = &self.connection.device;
        let device_len = device.record_len_bytes();
        let memory = inflight::map(place, file, device_len)?;
        self.connection.watch(&memory)?;
        for queue in &self.queues {
            queue.drain();
        }
        if device_len > 0 {
            device.resume(inflight::device_record(place, &memory, device_len))?;
        }
        self.inflight = Some((place, memory));
        Ok(())
    }

    /// Starts a queue, unless it runs or is not described yet.
    fn start(&mut self, index: usize) -> io::Result<()> {
        let setup = self.setups[index];
        let Some([descriptors, used, available]) = setup.addresses else {
            return Ok(());
        };
        let queue = &self.queues[index];
        if queue.is_started() {
            return Ok(());
        }
        let place = RingPlace {
            len: setup.ring_len,
            descriptors,
            available,
            used,
            has_event_index: self.features & 1 << EVENT_IDX != 0,
        };
        let memory = self.connection.memory();
        let outside = |_| invalid("a queue is outside of guest memory");
        let mut next_available = setup.next_available;
        let resumed = match &self.inflight {
            None => None,
            Some((inflight, record)) => {
                let used_index = split_ring::used_index(&place, &memory).map_err(outside)?;
                let (record, unfinished) =
                    InflightQueue::resume(Arc::clone(record), *inflight, index, used_index)?;
                // What was taken is finished or unfinished.
                next_available = used_index.wrapping_add(unfinished.len() as u16);
                Some((record, unfinished))
            }
        };
        let ring = SplitRing::start(place, &memory, next_available).map_err(outside)?;
        queue.start(ring, resumed);
        if self.threads[index].is_none() {
            let queue = Arc::clone(queue);
            let name = format!("virtqueue-{index}");
            let thread = std::thread::Builder::new().name(name);
            self.threads[index] = Some(thread.spawn(move || queue.run())?);
        }
        Ok(())
    }
}

fn region_place(fields: &mut Fields<'_>) -> io::Result<RegionPlace> {
    Ok(RegionPlace {
        guest_address: fields.u64()?,
        len_bytes: fields.u64()?,
        front_end_address: fields.u64()?,
        file_offset: fields.u64()?,
    })
}
