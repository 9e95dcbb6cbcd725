//! A log to replay, given by an input: as well-formed as the input selects, with valid checksums.

use super::base::crc32c;
use super::base::{BaseImage, u32_at};
use super::exercise;
use arbitrary::{Arbitrary, Unstructured};
use folio::block::Device;

const MAGIC: u32 = 0xC03B_3998;
const BLOCKS_MAX: usize = 48;
const INCOMPAT_REVOKE: u32 = 0x1;
const INCOMPAT_64BIT: u32 = 0x2;
const INCOMPAT_CSUM_V3: u32 = 0x10;
const INCOMPAT_FAST_COMMIT: u32 = 0x20;
const FAST_COMMIT_BLOCKS: u32 = 16;
const NEEDS_RECOVERY: u32 = 4;

/// One block of the log.
#[derive(Debug, Arbitrary)]
enum LogBlock {
    /// A descriptor and its data: changed contents of these blocks of the file system.
    Descriptor(Vec<Datum>),
    Revoke {
        blocks: Vec<u16>,
        len: Option<u16>,
    },
    Commit,
    /// The same with a wrong sequence number.
    StrayCommit(u8),
    Raw {
        block_type: u8,
        bytes: Vec<u8>,
    },
}

#[derive(Debug, Arbitrary)]
struct Datum {
    target: u16,
    is_far: bool,
    flags: u8,
    at: u16,
    bytes: [u8; 8],
    is_broken: bool,
}

/// One tag of a fast commit.
#[derive(Debug, Arbitrary)]
enum FastTag {
    Head {
        features: u8,
        is_stray: bool,
    },
    AddRange {
        inode: u8,
        block: u16,
        len: u16,
        physical: u16,
        is_far: bool,
    },
    DelRange {
        inode: u8,
        block: u16,
        len: u16,
    },
    Name {
        kind: u8,
        parent: u8,
        inode: u8,
        name: [u8; 3],
    },
    Inode {
        inode: u8,
        from: u8,
        at: u8,
        bytes: [u8; 8],
    },
    Pad(u16),
    Tail {
        is_stray: bool,
        is_broken: bool,
    },
    Raw {
        tag: u16,
        len: u16,
        bytes: [u8; 6],
    },
}

/// Journal features and the contents of the log.
#[derive(Debug, Arbitrary)]
struct Log {
    has_checksums: bool,
    is_64bit: bool,
    is_clean: bool,
    superblock: Option<(u8, u32)>,
    blocks: Vec<LogBlock>,
    fast: Vec<FastTag>,
}

/// Builds a log from `data`, replays it, and uses the image.
pub fn journal(data: &[u8]) {
    let Ok(log) = Log::arbitrary_take_rest(Unstructured::new(data)) else {
        return;
    };
    let base = BaseImage::get();
    let device = base.device();
    let mut writer = Writer::new(base, &*device, &log);
    for block in log.blocks.iter().take(BLOCKS_MAX) {
        writer.put(block);
    }
    writer.put_fast(&log.fast);
    writer.finish(&log);
    exercise::image(&device);
}

struct Writer<'a> {
    base: &'a BaseImage,
    device: &'a dyn Device,
    seed: u32,
    features: u32,
    sequence: u32,
    next: usize,
}

impl<'a> Writer<'a> {
    fn new(base: &'a BaseImage, device: &'a dyn Device, log: &Log) -> Self {
        let superblock = &base.bytes[base.journal[0] as usize * base.block_size..];
        let seed = crc32c(!0, &superblock[0x30..0x40]);
        let mut features = INCOMPAT_REVOKE | INCOMPAT_FAST_COMMIT;
        features |= if log.has_checksums {
            INCOMPAT_CSUM_V3
        } else {
            0
        };
        features |= if log.is_64bit { INCOMPAT_64BIT } else { 0 };
        Self {
            base,
            device,
            seed,
            features,
            sequence: 7,
            next: 1,
        }
    }

    fn has_checksums(&self) -> bool {
        self.features & INCOMPAT_CSUM_V3 != 0
    }

    fn write(&self, at: usize, bytes: &[u8]) {
        let Some(block) = self.base.journal.get(at) else {
            return;
        };
        let bytes = &bytes[..bytes.len().min(self.base.block_size)];
        self.device
            .write_at(bytes, block * self.base.block_size as u64)
            .expect("memory can be written");
    }

    fn head(&self, block_type: u32, sequence: u32) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.base.block_size);
        for word in [MAGIC, block_type, sequence] {
            bytes.extend(word.to_be_bytes());
        }
        bytes
    }

    /// Writes the next block, with its checksum at the given offset.
    fn append(&mut self, mut bytes: Vec<u8>, checksum_at: Option<usize>) {
        bytes.resize(self.base.block_size, 0);
        if let Some(at) = checksum_at.filter(|_| self.has_checksums()) {
            bytes[at..at + 4].fill(0);
            let crc = crc32c(self.seed, &bytes);
            bytes[at..at + 4].copy_from_slice(&crc.to_be_bytes());
        }
        self.write(self.next, &bytes);
        self.next += 1;
    }

    fn put(&mut self, block: &LogBlock) {
        let tail = Some(self.base.block_size - 4);
        match block {
            LogBlock::Descriptor(data) => self.put_descriptor(&data[..data.len().min(8)]),
            LogBlock::Revoke { blocks, len } => {
                let mut list = Vec::new();
                for block in blocks.iter().take(60) {
                    if self.features & INCOMPAT_64BIT != 0 {
                        list.extend(u64::from(*block).to_be_bytes())
                    } else {
                        list.extend(u32::from(*block).to_be_bytes())
                    }
                }
                let mut bytes = self.head(5, self.sequence);
                let used = len.map_or(list.len() as u32 + 16, u32::from);
                bytes.extend(used.to_be_bytes());
                bytes.extend(list);
                self.append(bytes, tail);
            }
            LogBlock::Commit => {
                self.append(self.head(2, self.sequence), Some(16));
                self.sequence += 1;
            }
            LogBlock::StrayCommit(by) => {
                self.append(
                    self.head(2, self.sequence.wrapping_add((*by).into())),
                    Some(16),
                );
            }
            LogBlock::Raw { block_type, bytes } => {
                let mut all = self.head((*block_type).into(), self.sequence);
                all.extend(bytes);
                all.truncate(self.base.block_size);
                self.append(all, tail);
            }
        }
    }

    fn put_descriptor(&mut self, data: &[Datum]) {
        let mut bytes = self.head(1, self.sequence);
        let mut blocks = Vec::new();
        let count = self.base.bytes.len() / self.base.block_size;
        for (index, datum) in data.iter().enumerate() {
            let target = usize::from(datum.target) % count;
            let mut block =
                self.base.bytes[target * self.base.block_size..][..self.base.block_size].to_vec();
            let at = usize::from(datum.at) % (block.len() - 8);
            block[at..at + 8].copy_from_slice(&datum.bytes);
            let crc = crc32c(crc32c(self.seed, &self.sequence.to_be_bytes()), &block);
            let crc = if datum.is_broken { !crc } else { crc };
            let first = if index == 0 { 0 } else { 2 };
            let last = if index + 1 == data.len() { 8 } else { 0 };
            let flags = first | last | u32::from(datum.flags & 5);
            bytes.extend((target as u32).to_be_bytes());
            if self.has_checksums() {
                bytes.extend(flags.to_be_bytes());
                bytes.extend(u32::from(datum.is_far).to_be_bytes());
                bytes.extend(crc.to_be_bytes());
            } else {
                bytes.extend([0; 2]);
                bytes.extend((flags as u16).to_be_bytes());
                if self.features & INCOMPAT_64BIT != 0 {
                    bytes.extend(u32::from(datum.is_far).to_be_bytes());
                }
            }
            if first == 0 {
                bytes.extend([0; 16]);
            }
            blocks.push(block);
        }
        self.append(bytes, Some(self.base.block_size - 4));
        for block in blocks {
            self.append(block, None);
        }
    }

    /// Writes the area of fast commits after the ring.
    fn put_fast(&self, tags: &[FastTag]) {
        let mut area: Vec<u8> = Vec::new();
        let mut crc = 0;
        let mut summed = 0;
        for tag in tags.iter().take(64) {
            let (number, mut value) = self.fast_value(tag);
            let is_tail = number == 8;
            let block_left = self.base.block_size - area.len() % self.base.block_size;
            if value.len() + 4 > block_left && block_left >= 4 {
                // A tag never crosses the end of a block.
                area.extend(7_u16.to_le_bytes());
                area.extend((block_left as u16 - 4).to_le_bytes());
                area.resize(area.len() + block_left - 4, 0);
            }
            if is_tail {
                value.resize(
                    self.base.block_size - area.len() % self.base.block_size - 4,
                    0,
                );
            }
            area.extend(number.to_le_bytes());
            area.extend((value.len() as u16).to_le_bytes());
            if is_tail {
                area.extend(&value[..4]);
                crc = crc32c(crc, &area[summed..]);
                let broken = matches!(
                    tag,
                    FastTag::Tail {
                        is_broken: true,
                        ..
                    }
                );
                area.extend((if broken { !crc } else { crc }).to_le_bytes());
                area.extend(&value[8..]);
                (crc, summed) = (0, area.len());
            } else {
                area.extend(value);
            }
        }
        let first = self.base.journal.len() - FAST_COMMIT_BLOCKS as usize;
        for (block, index) in area.chunks(self.base.block_size).zip(first..) {
            let mut block = block.to_vec();
            block.resize(self.base.block_size, 0);
            self.write(index, &block);
        }
    }

    fn fast_value(&self, tag: &FastTag) -> (u16, Vec<u8>) {
        let inode = |number: u8| u32::from(number).to_le_bytes();
        let tid = |is_stray: bool| (self.sequence + u32::from(is_stray)).to_le_bytes();
        match tag {
            FastTag::Head { features, is_stray } => (
                9,
                [u32::from(*features).to_le_bytes(), tid(*is_stray)].concat(),
            ),
            FastTag::AddRange {
                inode: number,
                block,
                len,
                physical,
                is_far,
            } => {
                let mut value = inode(*number).to_vec();
                value.extend(u32::from(*block).to_le_bytes());
                value.extend(len.to_le_bytes());
                value.extend(u16::from(*is_far).to_le_bytes());
                value.extend(u32::from(*physical).to_le_bytes());
                (1, value)
            }
            FastTag::DelRange {
                inode: number,
                block,
                len,
            } => {
                let block = u32::from(*block).to_le_bytes();
                (
                    2,
                    [inode(*number), block, u32::from(*len).to_le_bytes()].concat(),
                )
            }
            FastTag::Name {
                kind,
                parent,
                inode: number,
                name,
            } => {
                let len = 1 + usize::from(kind / 4) % 3;
                let letters = name.map(|byte| b'a' + byte % 4);
                let value = [&inode(*parent)[..], &inode(*number), &letters[..len]].concat();
                (3 + u16::from(kind % 3), value)
            }
            FastTag::Inode {
                inode: number,
                from,
                at,
                bytes,
            } => {
                let from = self.base.inode_offset(1 + u32::from(*from));
                let mut raw = self.base.bytes[from..from + 160].to_vec();
                let at = usize::from(*at) % 152;
                raw[at..at + 8].copy_from_slice(bytes);
                (6, [&inode(*number)[..], &raw].concat())
            }
            FastTag::Pad(len) => (7, vec![0; usize::from(*len) % 200]),
            FastTag::Tail { is_stray, .. } => (8, [tid(*is_stray), [0; 4]].concat()),
            FastTag::Raw { tag, len, bytes } => {
                let mut value = bytes.to_vec();
                value.resize(usize::from(*len) % 300, 0);
                (*tag, value)
            }
        }
    }

    /// Writes the superblocks of the journal, with the start of the log, and of the file system.
    fn finish(&self, log: &Log) {
        let at = base_of(self.base, 0);
        let mut bytes = self.base.bytes[at..at + 1024].to_vec();
        let mut put =
            |at: usize, value: u32| bytes[at..at + 4].copy_from_slice(&value.to_be_bytes());
        put(0x18, 7);
        put(0x1C, u32::from(!log.is_clean));
        put(0x28, self.features);
        put(0x54, FAST_COMMIT_BLOCKS);
        if let Some((field, value)) = log.superblock {
            put(usize::from(field % 24) * 4, value);
        }
        bytes[0x50] = 4;
        bytes[0xFC..0x100].fill(0);
        let crc = crc32c(!0, &bytes);
        bytes[0xFC..0x100].copy_from_slice(&crc.to_be_bytes());
        self.write(0, &bytes);
        let mut superblock = self.base.bytes[1024..2048].to_vec();
        let incompat = u32_at(&superblock, 0x60) | NEEDS_RECOVERY;
        superblock[0x60..0x64].copy_from_slice(&incompat.to_le_bytes());
        let compat = u32_at(&superblock, 0x5C) | 0x400;
        superblock[0x5C..0x60].copy_from_slice(&compat.to_le_bytes());
        let crc = crc32c(!0, &superblock[..1020]);
        superblock[1020..].copy_from_slice(&crc.to_le_bytes());
        self.device
            .write_at(&superblock, 1024)
            .expect("memory can be written");
    }
}

fn base_of(base: &BaseImage, at: usize) -> usize {
    base.journal[at] as usize * base.block_size
}
