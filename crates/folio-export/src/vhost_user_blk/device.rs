//! The device of one virtual machine: its requests, each from the header to the status byte.

use super::config::{
    Config, SECTOR_LEN, SEGMENT_SECTORS_MAX, SEGMENTS_MAX, SERIAL_LEN_MAX, WRITE_CACHE, feature,
    kind, status,
};
use super::counts::QueueCounters;
use super::export::Export;
use super::write_log::{Change, RECORD_LEN, WriteLog};
use crate::pace::Pace;
use folio::Error;
use folio::block::HostPlace;
use folio_net::vhost_user::{Device, DeviceRecord, OutOfMemory, Request, Wait};
use parking_lot::RwLock;
use std::cell::RefCell;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// Bytes of `struct virtio_blk_req` before the data.
const HEADER_LEN: usize = 16;
/// Bytes of `struct virtio_blk_discard_write_zeroes`.
const SEGMENT_LEN: usize = 16;
/// Bytes that move between the disk and guest memory at a time: they stay in the processor's cache.
const PIECE_LEN: usize = 256 << 10;
/// Most bytes that are read into guest memory at a time.
const IN_PLACE_LEN_MAX: usize = 1 << 20;
/// Longest read or write, in bytes, that may be quick.
const QUICK_LEN_MAX: usize = 64 << 10;
/// A zero segment whose space may be released: `VIRTIO_BLK_WRITE_ZEROES_FLAG_UNMAP`.
const UNMAP: u32 = 1;

thread_local! {
    static PIECE: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// A disk, as one virtual machine uses it.
pub(super) struct BlockDevice {
    export: Arc<Export>,
    /// For each queue, the pace of small reads and writes.
    paces: Vec<Pace>,
    flush_pace: Pace,
    /// The driver has a flush command.
    can_flush: AtomicBool,
    /// The driver wants writes to be done before they are durable.
    has_write_cache: AtomicBool,
    has_reported: AtomicBool,
    /// Acknowledged writes that the disk holds in this process; none if the front end keeps no
    /// memory for it.
    log: RwLock<Option<WriteLog>>,
}

/// The start of a request.
#[derive(Clone, Copy)]
struct Header {
    kind: u32,
    sector: u64,
}

/// A failed request.
enum Failure {
    /// The driver sent what the device does not know.
    Unsupported,
    /// The request is invalid, or the guest's memory is.
    Invalid,
    /// The disk failed.
    Device(Error),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Device(error)
    }
}

impl From<OutOfMemory> for Failure {
    fn from(_: OutOfMemory) -> Self {
        Self::Invalid
    }
}

type Outcome = Result<(), Failure>;

impl Header {
    fn of(request: &Request<'_>) -> Result<Self, Failure> {
        let mut bytes = [0; HEADER_LEN];
        request.sent.read_at(&mut bytes, 0)?;
        let bits = u128::from_le_bytes(bytes);
        Ok(Self {
            kind: bits as u32,
            sector: (bits >> 64) as u64,
        })
    }
}

impl BlockDevice {
    pub(super) fn new(export: Arc<Export>) -> Self {
        Self {
            paces: export.counters.iter().map(|_| Pace::default()).collect(),
            export,
            flush_pace: Pace::default(),
            can_flush: AtomicBool::new(false),
            has_write_cache: AtomicBool::new(true),
            has_reported: AtomicBool::new(false),
            log: RwLock::new(None),
        }
    }

    /// Flushes the disk, and empties the log.
    fn flush(&self) -> folio::Result<()> {
        let device = &*self.export.disk.device;
        match &*self.log.read() {
            Some(log) => log.flush(device),
            None => device.flush(),
        }
    }

    /// Logs a change that was made.
    fn log(&self, change: Change<'_>) -> folio::Result<()> {
        let device = &*self.export.disk.device;
        match &*self.log.read() {
            Some(log) => log.add(change, device),
            None => Ok(()),
        }
    }

    /// Whether a request is likely to be done at once.
    fn wait(&self, queue: usize, header: Header, data_len: usize) -> Option<Wait> {
        match header.kind {
            kind::IN | kind::OUT if data_len <= QUICK_LEN_MAX => {
                (!self.paces[queue].is_quick()).then_some(Wait::Short)
            }
            kind::IN | kind::OUT => Some(Wait::Short),
            kind::FLUSH => (!self.flush_pace.is_quick()).then_some(Wait::Long),
            kind::DISCARD | kind::WRITE_ZEROES => Some(Wait::Long),
            _ => None,
        }
    }

    /// Does a request, and writes its status; returns the bytes of the reply.
    fn run(&self, request: &Request<'_>, header: Result<Header, Failure>) -> u32 {
        let counters = &self.export.counters[request.queue];
        let reply_len = request.reply.len_bytes();
        let Some(status_at) = reply_len.checked_sub(1) else {
            // There is no place for a status.
            counters.count_failure();
            return 0;
        };
        let begin = Instant::now();
        let done = header.and_then(|header| {
            let done = self.perform(request, header, counters);
            let took = begin.elapsed();
            match header.kind {
                kind::FLUSH => self.flush_pace.record(took),
                kind::IN | kind::OUT if data_len(request, header) <= QUICK_LEN_MAX => {
                    self.paces[request.queue].record(took);
                }
                _ => {}
            }
            done
        });
        let status = match done {
            Ok(()) => status::OK,
            Err(failure) => {
                counters.count_failure();
                self.status_of(failure)
            }
        };
        match request.reply.write_at(&[status], status_at) {
            // A chain has less than 4 GiB.
            Ok(()) => reply_len as u32,
            Err(OutOfMemory) => 0,
        }
    }

    fn perform(&self, request: &Request<'_>, header: Header, counters: &QueueCounters) -> Outcome {
        let device = &*self.export.disk.device;
        let is_change = matches!(header.kind, kind::OUT | kind::DISCARD | kind::WRITE_ZEROES);
        if is_change && self.export.is_read_only() {
            return Err(Failure::Invalid);
        }
        match header.kind {
            kind::IN => {
                let len = data_len(request, header);
                counters.count_read(len as u64);
                self.read(request, self.check_range(header.sector, len as u64)?, len)
            }
            kind::OUT => {
                let len = data_len(request, header);
                counters.count_write(len as u64);
                let offset = self.check_range(header.sector, len as u64)?;
                with_pieces(len, |piece, done| {
                    request.sent.read_at(piece, HEADER_LEN + done)?;
                    let offset = offset + done as u64;
                    device.write_at(piece, offset)?;
                    let bytes = &*piece;
                    Ok(self.log(Change::Write { offset, bytes })?)
                })?;
                self.end_change()
            }
            kind::FLUSH => {
                counters.count_flush();
                Ok(self.flush()?)
            }
            kind::GET_ID => {
                let mut id = [0; SERIAL_LEN_MAX];
                let serial = self.export.disk.serial.as_bytes();
                let len = serial.len().min(id.len());
                id[..len].copy_from_slice(&serial[..len]);
                let room = (request.reply.len_bytes() - 1).min(id.len());
                Ok(request.reply.write_at(&id[..room], 0)?)
            }
            kind::DISCARD => {
                counters.count_discard();
                self.for_each_segment(request, |offset, len_bytes, flags| {
                    if flags != 0 {
                        return Err(Failure::Unsupported);
                    }
                    Ok(device.discard(offset, len_bytes)?)
                })
            }
            kind::WRITE_ZEROES => {
                counters.count_zeroes();
                self.for_each_segment(request, |offset, len_bytes, flags| {
                    match flags {
                        0 => device.write_allocated_zeroes(offset, len_bytes)?,
                        UNMAP => device.write_zeroes(offset, len_bytes)?,
                        _ => return Err(Failure::Unsupported),
                    }
                    Ok(self.log(Change::Zeroes { offset, len_bytes })?)
                })
            }
            _ => Err(Failure::Unsupported),
        }
    }

    /// Fills the buffers of a request with `len` bytes of the disk.
    fn read(&self, request: &Request<'_>, offset: u64, len: usize) -> Outcome {
        let device = &*self.export.disk.device;
        // In pieces: the device cannot be forked or flushed during one.
        for start in (0..len).step_by(IN_PLACE_LEN_MAX) {
            let end = len.min(start + IN_PLACE_LEN_MAX);
            let (at, piece_len) = (offset + start as u64, end - start);
            let is_read = device.read_in_place(at, piece_len as u64, &mut |place| {
                let HostPlace { file, offset } = place;
                request.reply.fill_from_file(start..end, file, offset)
            })?;
            if !is_read {
                with_pieces(piece_len, |piece, done| {
                    device.read_at(piece, at + done as u64)?;
                    Ok(request.reply.write_at(piece, start + done)?)
                })?;
            }
        }
        Ok(())
    }

    fn end_change(&self) -> Outcome {
        let is_cached =
            self.can_flush.load(Ordering::Relaxed) && self.has_write_cache.load(Ordering::Relaxed);
        if !is_cached {
            self.flush()?;
        }
        Ok(())
    }

    /// Returns the offset of a range of the disk, in bytes.
    fn check_range(&self, sector: u64, len_bytes: u64) -> Result<u64, Failure> {
        let offset = sector.checked_mul(SECTOR_LEN).ok_or(Failure::Invalid)?;
        let end = offset.checked_add(len_bytes).ok_or(Failure::Invalid)?;
        let is_whole = len_bytes.is_multiple_of(SECTOR_LEN);
        if !is_whole || end > self.export.len_bytes() {
            return Err(Failure::Invalid);
        }
        Ok(offset)
    }

    /// Calls `change` with offset, length and flags of each segment, once all are checked.
    fn for_each_segment(
        &self,
        request: &Request<'_>,
        mut change: impl FnMut(u64, u64, u32) -> Outcome,
    ) -> Outcome {
        let len = request.sent.len_bytes() - HEADER_LEN;
        if len == 0 || !len.is_multiple_of(SEGMENT_LEN) || len / SEGMENT_LEN > SEGMENTS_MAX {
            return Err(Failure::Invalid);
        }
        let mut bytes = [0; SEGMENT_LEN * SEGMENTS_MAX];
        let bytes = &mut bytes[..len];
        request.sent.read_at(bytes, HEADER_LEN)?;
        for is_checked in [false, true] {
            let (segments, _) = bytes.as_chunks::<SEGMENT_LEN>();
            for segment in segments {
                let bits = u128::from_le_bytes(*segment);
                let (sectors, flags) = ((bits >> 64) as u32, (bits >> 96) as u32);
                if sectors > SEGMENT_SECTORS_MAX {
                    return Err(Failure::Invalid);
                }
                let len_bytes = u64::from(sectors) * SECTOR_LEN;
                let offset = self.check_range(bits as u64, len_bytes)?;
                if is_checked {
                    change(offset, len_bytes, flags)?;
                }
            }
        }
        self.end_change()
    }

    /// Returns the status of a failed request. The operator learns of the first one of each virtual
    /// machine, so that no guest can fill a log.
    fn status_of(&self, failure: Failure) -> u8 {
        match failure {
            Failure::Unsupported => status::UNSUPP,
            Failure::Invalid => status::IOERR,
            Failure::Device(error) => {
                if !self.has_reported.swap(true, Ordering::Relaxed) {
                    (self.export.report)(&format!(
                        "{error}; later failures of this virtual machine are not reported"
                    ));
                }
                status::IOERR
            }
        }
    }
}

/// Returns the length of a read's or a write's data in bytes.
fn data_len(request: &Request<'_>, header: Header) -> usize {
    match header.kind {
        kind::IN => request.reply.len_bytes().saturating_sub(1),
        _ => request.sent.len_bytes().saturating_sub(HEADER_LEN),
    }
}

/// Calls `transfer` with each piece of a range, and its offset in it.
fn with_pieces(len: usize, mut transfer: impl FnMut(&mut [u8], usize) -> Outcome) -> Outcome {
    PIECE.with_borrow_mut(|piece| {
        if piece.len() < len.min(PIECE_LEN) {
            piece.resize(len.min(PIECE_LEN), 0);
        }
        let mut done = 0;
        while done < len {
            let count = (len - done).min(PIECE_LEN);
            transfer(&mut piece[..count], done)?;
            done += count;
        }
        Ok(())
    })
}

impl Device for BlockDevice {
    fn features(&self) -> u64 {
        let always = feature::SEG_MAX
            | feature::BLK_SIZE
            | feature::FLUSH
            | feature::TOPOLOGY
            | feature::CONFIG_WCE
            | feature::MQ;
        if self.export.is_read_only() {
            always | feature::RO
        } else {
            always | feature::DISCARD | feature::WRITE_ZEROES
        }
    }

    fn select_features(&self, features: u64) {
        let can_flush = features & feature::FLUSH != 0;
        self.can_flush.store(can_flush, Ordering::Relaxed);
    }

    fn queues(&self) -> usize {
        self.export.counters.len()
    }

    fn config(&self) -> Option<Vec<u8>> {
        let config = Config {
            len_bytes: self.export.len_bytes(),
            queues: self.queues(),
            has_write_cache: self.has_write_cache.load(Ordering::Relaxed),
        };
        Some(config.to_bytes())
    }

    fn write_config(&self, offset: usize, bytes: &[u8]) -> bool {
        let &[has_write_cache] = bytes else {
            return false;
        };
        if offset != WRITE_CACHE || has_write_cache > 1 {
            return false;
        }
        self.has_write_cache
            .store(has_write_cache == 1, Ordering::Relaxed);
        let log = self.log.read();
        let recorded = log
            .as_ref()
            .map(|log| log.set_write_through(has_write_cache == 0));
        recorded.is_none_or(|recorded| recorded.is_ok())
    }

    fn can_repeat_requests(&self) -> bool {
        true
    }

    fn record_len_bytes(&self) -> u64 {
        RECORD_LEN
    }

    fn resume(&self, record: DeviceRecord) -> io::Result<()> {
        if self.export.is_read_only() {
            return Ok(());
        }
        let device = &*self.export.disk.device;
        let mut log = self.log.write();
        // After a reset of the guest the memory is another one, or the same once more.
        if let Some(old) = log.take() {
            old.flush(device).map_err(io::Error::other)?;
        }
        let resumed = WriteLog::resume(record, &self.export.disk.name, device);
        let resumed = resumed.map_err(io::Error::other)?;
        if resumed.is_write_through().map_err(io::Error::other)? {
            self.has_write_cache.store(false, Ordering::Relaxed);
        }
        *log = Some(resumed);
        Ok(())
    }

    fn reset(&self) {
        // The next server finds no changes of this one: the image may be another's meanwhile.
        if let Some(log) = &*self.log.read()
            && let Err(error) = log.flush(&*self.export.disk.device)
        {
            self.status_of(Failure::Device(error));
        }
    }

    fn handle_at_once(&self, request: &Request<'_>) -> Result<u32, Wait> {
        let header = Header::of(request);
        if let Ok(header) = header {
            let len = data_len(request, header);
            if let Some(wait) = self.wait(request.queue, header, len) {
                return Err(wait);
            }
        }
        Ok(self.run(request, header))
    }

    fn handle(&self, request: &Request<'_>) -> u32 {
        self.run(request, Header::of(request))
    }
}
