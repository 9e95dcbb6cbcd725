//! The base images: small, of every variant, and a map of their structures.
//!
//! Source: QEMU, docs/interop/qcow2.txt. `images/make.sh` creates those of qemu-img.

use folio::block::qcow2::Qcow2Device;
use folio::block::{CreateOptions, Device, MemoryDevice, OverlayDevice};
use std::sync::{Arc, OnceLock};

/// Free bytes after each image, for growth.
const ROOM_BYTES: u64 = 1 << 20;
const DISK_BYTES: u64 = 96 << 10;
const OFFSET_MASK: u64 = 0x00ff_ffff_ffff_fe00;
const COMPRESSED: u64 = 1 << 62;

/// The class of a structure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StructureClass {
    /// The header with its extensions and the name of the backing file.
    Header,
    L1,
    L2,
    RefcountTable,
    RefcountBlock,
    Snapshots,
    SnapshotL1,
    Compressed,
}

/// One structure of an image.
#[derive(Debug, Clone, Copy)]
pub(super) struct ImageStructure {
    pub(super) class: StructureClass,
    /// First byte in the image.
    pub(super) offset: usize,
    pub(super) len: usize,
}

/// An intact image.
pub(super) struct BaseImage {
    pub(super) bytes: Vec<u8>,
    pub(super) structures: Vec<ImageStructure>,
    pub(super) cluster_bits: u32,
    has_backing: bool,
    device: Arc<dyn Device>,
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes[at..at + 4]
        .iter()
        .fold(0, |number, byte| number << 8 | u32::from(*byte))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) << 32 | u64::from(u32_at(bytes, at + 4))
}

impl BaseImage {
    /// Returns all images, which are created once.
    pub(super) fn all() -> &'static [Self] {
        static ALL: OnceLock<Vec<BaseImage>> = OnceLock::new();
        ALL.get_or_init(|| {
            vec![
                Self::new(include_bytes!("../../images/version-2.qcow2").to_vec()),
                Self::new(include_bytes!("../../images/version-3.qcow2").to_vec()),
                Self::new(include_bytes!("../../images/overlay.qcow2").to_vec()),
                Self::new(by_folio()),
                Self::new(include_bytes!("../../images/subclusters.qcow2").to_vec()),
            ]
        })
    }

    /// Returns a writable overlay over the image.
    pub(super) fn device(&self) -> Arc<dyn Device> {
        Arc::new(OverlayDevice::new(self.device.clone()))
    }

    /// Opens the image on such a device.
    pub(super) fn open(&self, device: Arc<dyn Device>) -> folio::Result<Qcow2Device> {
        if self.has_backing {
            // Shorter than its overlay.
            let backing = MemoryDevice::new(DISK_BYTES - 700);
            backing
                .write_at(&[0xba; 30_000], 10_000)
                .expect("memory can be written");
            Qcow2Device::open_over(device, Arc::new(backing))
        } else {
            Qcow2Device::open_on(device)
        }
    }

    fn new(bytes: Vec<u8>) -> Self {
        let device = MemoryDevice::new(bytes.len() as u64 + ROOM_BYTES);
        device.write_at(&bytes, 0).expect("memory can be written");
        let cluster_bits = u32_at(&bytes, 20);
        let has_backing = u64_at(&bytes, 8) != 0;
        let mut base = Self {
            bytes,
            structures: Vec::new(),
            cluster_bits,
            has_backing,
            device: Arc::new(device),
        };
        base.find();
        base
    }

    fn find(&mut self) {
        let cluster = 1 << self.cluster_bits;
        self.add(StructureClass::Header, 0, cluster.min(512));
        self.find_l1(
            StructureClass::L1,
            u64_at(&self.bytes, 40),
            u32_at(&self.bytes, 36),
        );
        let table = u64_at(&self.bytes, 48) as usize;
        let table_len = u32_at(&self.bytes, 56) as usize * cluster;
        self.add(StructureClass::RefcountTable, table, table_len);
        for at in (table..table + table_len).step_by(8) {
            match u64_at(&self.bytes, at) as usize {
                0 => {}
                block => self.add(StructureClass::RefcountBlock, block, cluster),
            }
        }
        let (count, first) = (u32_at(&self.bytes, 60), u64_at(&self.bytes, 64) as usize);
        let mut at = first;
        for _ in 0..count {
            self.find_l1(
                StructureClass::SnapshotL1,
                u64_at(&self.bytes, at),
                u32_at(&self.bytes, at + 8),
            );
            let id_and_name = u32_at(&self.bytes, at + 12);
            let texts = (id_and_name >> 16) + (id_and_name & 0xffff);
            at += (40 + u32_at(&self.bytes, at + 36) + texts).next_multiple_of(8) as usize;
        }
        if count > 0 {
            self.add(StructureClass::Snapshots, first, at - first);
        }
    }

    fn find_l1(&mut self, class: StructureClass, at: u64, entries: u32) {
        let at = at as usize;
        self.add(class, at, entries as usize * 8);
        for index in 0..entries as usize {
            let table = (u64_at(&self.bytes, at + index * 8) & OFFSET_MASK) as usize;
            if table == 0 || self.structures.iter().any(|known| known.offset == table) {
                continue;
            }
            self.add(StructureClass::L2, table, 1 << self.cluster_bits);
            for at in (table..table + (1 << self.cluster_bits)).step_by(8) {
                let entry = u64_at(&self.bytes, at);
                if entry & COMPRESSED != 0 {
                    let bits = 62 - (self.cluster_bits - 8);
                    let host = (entry & ((1 << bits) - 1)) as usize;
                    let len = self.bytes.len().min(host + 64) - host;
                    self.add(StructureClass::Compressed, host, len);
                }
            }
        }
    }

    fn add(&mut self, class: StructureClass, offset: usize, len: usize) {
        if len > 0 {
            self.structures.push(ImageStructure { class, offset, len });
        }
    }
}

/// Returns an image created and written by Folio.
fn by_folio() -> Vec<u8> {
    let device = Arc::new(MemoryDevice::new(ROOM_BYTES));
    let options = CreateOptions {
        cluster_bytes: 1024,
        ..CreateOptions::default()
    };
    let made: folio::Result<()> = (|| {
        let disk = Qcow2Device::create_on(device.clone(), DISK_BYTES, &options)?;
        for at in (0..DISK_BYTES - 3000).step_by(7000) {
            disk.write_at(&[at as u8; 3000], at)?;
        }
        disk.write_zeroes(20_000, 5000)?;
        disk.discard(40_000, 9000)?;
        disk.flush()
    })();
    made.expect("an image can be made in memory");
    let mut bytes = vec![0; ROOM_BYTES as usize];
    device.read_at(&mut bytes, 0).expect("memory can be read");
    let end = bytes.iter().rposition(|byte| *byte != 0).unwrap_or(0) + 1;
    bytes.truncate(end.next_multiple_of(1024));
    bytes
}
