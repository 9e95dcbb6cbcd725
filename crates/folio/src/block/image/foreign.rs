//! Formats that Folio recognizes but does not read: their names, and the sizes in their headers.
//!
//! Sources: VMware, "Virtual Disk Format 5.0"; Microsoft, "Virtual Hard Disk Image Format
//! Specification" and [MS-VHDX]; QEMU, docs/interop (qed, parallels, vdi by its source);
//! cryptsetup, "LUKS On-Disk Format Specification 1.2".

use crate::base::{Error, Result};
use crate::block::file::ImageFile;
use std::io::IoSliceMut;

/// Largest descriptor of a vmdk image that is read, in bytes.
const DESCRIPTOR_BYTES_MAX: u64 = 64 << 10;
/// Number of bytes that detect a format.
const HEAD_BYTES: usize = 128;

/// A format that Folio does not read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ForeignFormat {
    /// VMware, sparse or by a descriptor.
    Vmdk,
    /// Hyper-V.
    Vhdx,
    /// Virtual PC, Azure.
    Vpc,
    /// VirtualBox.
    Vdi,
    /// QEMU's enhanced disk.
    Qed,
    /// Parallels.
    Parallels,
    /// QEMU's copy-on-write format, version 1.
    Qcow,
    /// An encrypted volume of version 1.
    Luks,
}

impl ForeignFormat {
    /// All formats, for lists.
    pub const ALL: [Self; 8] = [
        Self::Vmdk,
        Self::Vhdx,
        Self::Vpc,
        Self::Vdi,
        Self::Qed,
        Self::Parallels,
        Self::Qcow,
        Self::Luks,
    ];

    /// Returns the name, as qemu-img spells it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Vmdk => "vmdk",
            Self::Vhdx => "vhdx",
            Self::Vpc => "vpc",
            Self::Vdi => "vdi",
            Self::Qed => "qed",
            Self::Parallels => "parallels",
            Self::Qcow => "qcow",
            Self::Luks => "luks",
        }
    }

    /// Returns the name for messages.
    pub(super) const fn title(self) -> &'static str {
        match self {
            Self::Vpc => "vhd (vpc)",
            other => other.name(),
        }
    }
}

/// Places of magic numbers in the file.
const MAGIC: [(usize, &[u8], ForeignFormat); 12] = [
    (0, b"KDMV", ForeignFormat::Vmdk),
    (0, b"COWD", ForeignFormat::Vmdk),
    (0, b"# Disk DescriptorFile", ForeignFormat::Vmdk),
    (0, b"vhdxfile", ForeignFormat::Vhdx),
    (0, b"conectix", ForeignFormat::Vpc),
    (0x40, b"\x7f\x10\xda\xbe", ForeignFormat::Vdi),
    (0, b"QED\0", ForeignFormat::Qed),
    (0, b"WithoutFreeSpace", ForeignFormat::Parallels),
    (0, b"WithouFreSpacExt", ForeignFormat::Parallels),
    (0, b"QFI\xfb\0\0\0\x01", ForeignFormat::Qcow),
    (0, b"LUKS\xba\xbe\0\x01", ForeignFormat::Luks),
    // Other spellings of the first line are comments too.
    (0, b"# disk descriptorfile", ForeignFormat::Vmdk),
];

/// Finds the format by the file's first bytes.
pub(super) fn detect(head: &[u8]) -> Option<ForeignFormat> {
    let is_at =
        |at: usize, magic: &[u8]| head.get(at..).is_some_and(|rest| rest.starts_with(magic));
    let found = MAGIC.iter().find(|(at, magic, _)| is_at(*at, magic));
    found.map(|(_, _, format)| *format)
}

/// The facts of an image whose content Folio does not read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ForeignImage {
    /// Its format.
    pub format: ForeignFormat,
    /// Size of the disk in bytes.
    pub len_bytes: u64,
    /// Size in bytes of the blocks that the format allocates, if it has them.
    pub cluster_bytes: Option<u64>,
}

/// Reads the facts of an image in a format that Folio does not read; `None` for other formats.
/// `format` is detected if not given.
///
/// # Errors
///
/// EUCLEAN for a header that contradicts its format.
pub(crate) fn read(
    file: &dyn ImageFile,
    format: Option<ForeignFormat>,
) -> Result<Option<ForeignImage>> {
    let header = HeaderBytes { file };
    let head = header.bytes(0, HEAD_BYTES as u64)?;
    let detected = detect(&head).filter(|_| !file.is_disk());
    let Some(format) = format.or(detected) else {
        return Ok(None);
    };
    // A fixed vhd is known by its last bytes only.
    if detected != Some(format) && format != ForeignFormat::Vpc {
        return Err(bad("signature").at(format.name()));
    }
    let found = match format {
        ForeignFormat::Vmdk => vmdk(&header),
        ForeignFormat::Vhdx => vhdx(&header),
        ForeignFormat::Vpc => vpc(&header),
        ForeignFormat::Vdi => vdi(&header),
        ForeignFormat::Qed => qed(&header),
        ForeignFormat::Parallels => parallels(&header),
        ForeignFormat::Qcow => qcow(&header),
        ForeignFormat::Luks => luks(&header),
    };
    let (len_bytes, cluster_bytes) = found.map_err(|error| error.at(format.name()))?;
    // As in QEMU: a disk has whole sectors.
    let len_bytes = len_bytes.checked_next_multiple_of(512);
    let len_bytes = len_bytes.filter(|len_bytes| *len_bytes <= i64::MAX as u64);
    Ok(Some(ForeignImage {
        format,
        len_bytes: len_bytes.ok_or_else(|| bad("the size of the disk").at(format.name()))?,
        cluster_bytes,
    }))
}

/// Size of the disk, and of a block.
type Sizes = Result<(u64, Option<u64>)>;

fn bad(what: &str) -> Error {
    Error::corrupt(format!("invalid {what}")).at("header")
}

/// Numbers at offsets of the file.
struct HeaderBytes<'a> {
    file: &'a dyn ImageFile,
}

impl HeaderBytes<'_> {
    /// Returns at most `len_bytes` bytes.
    fn bytes(&self, at: u64, len_bytes: u64) -> Result<Vec<u8>> {
        let mut bytes = vec![0; len_bytes as usize];
        let count = self
            .file
            .read_some(&mut [IoSliceMut::new(&mut bytes)], at)?;
        bytes.truncate(count as usize);
        Ok(bytes)
    }

    fn field<const N: usize>(&self, at: u64) -> Result<[u8; N]> {
        let bytes = self.bytes(at, N as u64)?;
        bytes.try_into().map_err(|_| {
            let what = format!(
                "the file ends before offset {:#x}",
                at.saturating_add(N as u64)
            );
            Error::corrupt(what).at("header")
        })
    }

    fn le32(&self, at: u64) -> Result<u64> {
        Ok(u32::from_le_bytes(self.field(at)?).into())
    }

    fn le64(&self, at: u64) -> Result<u64> {
        Ok(u64::from_le_bytes(self.field(at)?))
    }

    fn be32(&self, at: u64) -> Result<u64> {
        Ok(u32::from_be_bytes(self.field(at)?).into())
    }

    fn be64(&self, at: u64) -> Result<u64> {
        Ok(u64::from_be_bytes(self.field(at)?))
    }

    /// Rejects a file without these bytes.
    fn expect(&self, at: u64, magic: &[u8]) -> Result<()> {
        if self.bytes(at, magic.len() as u64)? == magic {
            Ok(())
        } else {
            Err(bad("signature"))
        }
    }
}

fn sectors(count: u64, what: &str) -> Result<u64> {
    count.checked_mul(512).ok_or_else(|| bad(what))
}

fn vmdk(header: &HeaderBytes<'_>) -> Sizes {
    match &header.field::<4>(0)? {
        b"KDMV" => {
            let grain = sectors(header.le64(20)?, "grain size")?;
            Ok((sectors(header.le64(12)?, "capacity")?, Some(grain)))
        }
        b"COWD" => {
            let grain = sectors(header.le32(16)?, "grain size")?;
            Ok((sectors(header.le32(12)?, "capacity")?, Some(grain)))
        }
        _ => vmdk_descriptor(&header.bytes(0, DESCRIPTOR_BYTES_MAX)?),
    }
}

/// Returns the sum of the extents in a descriptor: lines such as `RW 20480 SPARSE "a-s001.vmdk"`.
fn vmdk_descriptor(text: &[u8]) -> Sizes {
    let text = String::from_utf8_lossy(text);
    let mut total = None::<u64>;
    for line in text.lines() {
        let mut words = line.split_whitespace();
        if !matches!(words.next(), Some("RW" | "RDONLY" | "NOACCESS")) {
            continue;
        }
        let count = words.next().and_then(|word| word.parse().ok());
        let count = sectors(count.ok_or_else(|| bad("extent"))?, "extent")?;
        total = Some(
            total
                .unwrap_or(0)
                .checked_add(count)
                .ok_or_else(|| bad("extent"))?,
        );
    }
    Ok((
        total.ok_or_else(|| bad("descriptor: it has no extents"))?,
        None,
    ))
}

/// GUIDs as they are stored.
const VHDX_METADATA_REGION: [u8; 16] = [
    0x06, 0xa2, 0x7c, 0x8b, 0x90, 0x47, 0x9a, 0x4b, 0xb8, 0xfe, 0x57, 0x5f, 0x05, 0x0f, 0x88, 0x6e,
];
const VHDX_DISK_SIZE: [u8; 16] = [
    0x24, 0x42, 0xa5, 0x2f, 0x1b, 0xcd, 0x76, 0x48, 0xb2, 0x11, 0x5d, 0xbe, 0xd8, 0x3b, 0xf4, 0xb8,
];
const VHDX_FILE_PARAMETERS: [u8; 16] = [
    0x37, 0x67, 0xa1, 0xca, 0x36, 0xfa, 0x43, 0x4d, 0xb3, 0xb6, 0x33, 0xf0, 0xaa, 0x44, 0xe7, 0x6b,
];
/// Offset in the file of the first region table.
const VHDX_REGIONS_AT: u64 = 192 << 10;
const VHDX_ENTRIES_MAX: u64 = 2047;

fn vhdx(header: &HeaderBytes<'_>) -> Sizes {
    header.expect(VHDX_REGIONS_AT, b"regi")?;
    let count = header.le32(VHDX_REGIONS_AT + 8)?;
    let entry = vhdx_entry(header, VHDX_REGIONS_AT + 16, count, &VHDX_METADATA_REGION)?;
    let region = header.le64(entry + 16)?;
    header.expect(region, b"metadata")?;
    let count = u16::from_le_bytes(header.field(add(region, 10)?)?).into();
    let item = |guid: &[u8; 16]| -> Result<u64> {
        let entry = vhdx_entry(header, add(region, 32)?, count, guid)?;
        add(region, header.le32(entry + 16)?)
    };
    let block = header.le32(item(&VHDX_FILE_PARAMETERS)?)?;
    Ok((header.le64(item(&VHDX_DISK_SIZE)?)?, Some(block)))
}

/// Returns the offset of the entry of 32 bytes that starts with `guid`.
fn vhdx_entry(header: &HeaderBytes<'_>, at: u64, count: u64, guid: &[u8; 16]) -> Result<u64> {
    if count > VHDX_ENTRIES_MAX {
        return Err(bad("number of table entries"));
    }
    let table = header.bytes(at, count * 32)?;
    let found = table
        .chunks_exact(32)
        .position(|entry| entry.starts_with(guid));
    let index = found.ok_or_else(|| bad("table: an entry is missing"))?;
    Ok(at + index as u64 * 32)
}

fn add(a: u64, b: u64) -> Result<u64> {
    a.checked_add(b)
        .filter(|sum| *sum <= i64::MAX as u64)
        .ok_or_else(|| bad("offset"))
}

/// Programs that store the size of the disk. The rest store a geometry, which is smaller.
const VPC_CREATORS_WITH_SIZE: [&[u8; 4]; 6] =
    [b"win ", b"qem2", b"d2v ", b"tap\0", b"CTXS", b"wa\0\0"];
/// Sectors of the largest geometry: a larger disk has only its size.
const VPC_GEOMETRY_SECTORS_MAX: u64 = 65535 * 16 * 255;
const VPC_FIXED: u64 = 2;

fn vpc(header: &HeaderBytes<'_>) -> Sizes {
    // A fixed disk has its footer at the end only.
    let at = match header.bytes(0, 8)?.as_slice() {
        b"conectix" => 0,
        _ => header
            .file
            .len_bytes()?
            .checked_sub(512)
            .ok_or_else(|| bad("footer"))?,
    };
    header.expect(at, b"conectix")?;
    let creator = header.field::<4>(at + 28)?;
    let [c0, c1, heads, per_track] = header.field(at + 56)?;
    let geometry =
        u64::from(u16::from_be_bytes([c0, c1])) * u64::from(heads) * u64::from(per_track);
    let is_fixed = header.be32(at + 60)? == VPC_FIXED;
    let has_size =
        VPC_CREATORS_WITH_SIZE.contains(&&creator) || geometry >= VPC_GEOMETRY_SECTORS_MAX;
    let len_bytes = if has_size {
        header.be64(at + 48)?
    } else {
        geometry * 512
    };
    if is_fixed {
        return Ok((len_bytes, None));
    }
    let dynamic = header.be64(at + 16)?;
    header.expect(dynamic, b"cxsparse")?;
    Ok((len_bytes, Some(header.be32(add(dynamic, 32)?)?)))
}

fn vdi(header: &HeaderBytes<'_>) -> Sizes {
    Ok((header.le64(0x170)?, Some(header.le32(0x178)?)))
}

fn qed(header: &HeaderBytes<'_>) -> Sizes {
    Ok((header.le64(48)?, Some(header.le32(4)?)))
}

fn qcow(header: &HeaderBytes<'_>) -> Sizes {
    let [bits] = header.field(32)?;
    let cluster = 1u64
        .checked_shl(bits.into())
        .ok_or_else(|| bad("cluster_bits"))?;
    Ok((header.be64(24)?, Some(cluster)))
}

fn parallels(header: &HeaderBytes<'_>) -> Sizes {
    let count = header.le64(36)?;
    let is_old = header.bytes(0, 16)? == b"WithoutFreeSpace";
    let count = if is_old { count & 0xffff_ffff } else { count };
    Ok((sectors(count, "number of sectors")?, None))
}

fn luks(header: &HeaderBytes<'_>) -> Sizes {
    let payload = sectors(header.be32(104)?, "payload offset")?;
    let file_bytes = header.file.len_bytes()?;
    let len_bytes = file_bytes.checked_sub(payload);
    Ok((len_bytes.ok_or_else(|| bad("payload offset"))?, None))
}
