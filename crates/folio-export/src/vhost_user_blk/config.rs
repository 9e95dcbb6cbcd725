//! The numbers of virtio-blk, and the configuration that the driver reads: `struct
//! virtio_blk_config`. Virtio 1.2, section 5.2.4.

/// Bytes of a sector, the unit of all offsets.
pub(super) const SECTOR_LEN: u64 = 512;
/// Most queues of a disk; a guest uses no more than it has processors.
pub const QUEUES_MAX: usize = 64;
/// Longest serial number in bytes.
pub const SERIAL_LEN_MAX: usize = 20;

/// Most sectors of one discard or zero segment: 2 GiB.
pub(super) const SEGMENT_SECTORS_MAX: u32 = 1 << 22;
/// Most segments of a discard or zero request.
pub(super) const SEGMENTS_MAX: usize = 32;
/// Most buffers of a request beside its header and status.
const BUFFERS_MAX: u32 = 254;
/// Sectors of the pages that guests write at best: 4 KiB.
const PAGE_SECTORS: u32 = 8;
/// Place of the byte that turns the write cache on and off.
pub(super) const WRITE_CACHE: usize = 32;

/// Feature bits: `VIRTIO_BLK_F_*`.
pub(super) mod feature {
    pub(crate) const SEG_MAX: u64 = 1 << 2;
    pub(crate) const RO: u64 = 1 << 5;
    pub(crate) const BLK_SIZE: u64 = 1 << 6;
    pub(crate) const FLUSH: u64 = 1 << 9;
    pub(crate) const TOPOLOGY: u64 = 1 << 10;
    pub(crate) const CONFIG_WCE: u64 = 1 << 11;
    pub(crate) const MQ: u64 = 1 << 12;
    pub(crate) const DISCARD: u64 = 1 << 13;
    pub(crate) const WRITE_ZEROES: u64 = 1 << 14;
}

/// Kinds of requests: `VIRTIO_BLK_T_*`.
pub(super) mod kind {
    pub(crate) const IN: u32 = 0;
    pub(crate) const OUT: u32 = 1;
    pub(crate) const FLUSH: u32 = 4;
    pub(crate) const GET_ID: u32 = 8;
    pub(crate) const DISCARD: u32 = 11;
    pub(crate) const WRITE_ZEROES: u32 = 13;
}

/// Results of a request: `VIRTIO_BLK_S_*`.
pub(super) mod status {
    pub(crate) const OK: u8 = 0;
    pub(crate) const IOERR: u8 = 1;
    pub(crate) const UNSUPP: u8 = 2;
}

/// What the configuration states.
pub(super) struct Config {
    pub(super) len_bytes: u64,
    pub(super) queues: usize,
    pub(super) has_write_cache: bool,
}

impl Config {
    /// Returns the configuration's bytes.
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; 60];
        let mut put = |at: usize, value: &[u8]| bytes[at..at + value.len()].copy_from_slice(value);
        put(0, &(self.len_bytes / SECTOR_LEN).to_le_bytes());
        put(12, &BUFFERS_MAX.to_le_bytes());
        put(20, &(SECTOR_LEN as u32).to_le_bytes());
        // Topology: physical blocks of 2^3 sectors, at best written by pages.
        put(24, &[PAGE_SECTORS.ilog2() as u8]);
        put(26, &(PAGE_SECTORS as u16).to_le_bytes());
        put(WRITE_CACHE, &[u8::from(self.has_write_cache)]);
        put(34, &(self.queues as u16).to_le_bytes());
        put(36, &SEGMENT_SECTORS_MAX.to_le_bytes());
        put(40, &(SEGMENTS_MAX as u32).to_le_bytes());
        put(44, &PAGE_SECTORS.to_le_bytes());
        put(48, &SEGMENT_SECTORS_MAX.to_le_bytes());
        put(52, &(SEGMENTS_MAX as u32).to_le_bytes());
        // Zeros may release space.
        put(56, &[1]);
        bytes
    }
}
