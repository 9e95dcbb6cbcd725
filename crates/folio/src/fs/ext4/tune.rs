//! Changes to the superblock of an unmounted file system: label, UUID, default mount options,
//! reserved blocks. Counterpart: tune2fs(8).

use crate::base::{Clock, Errno, Error, Result};
use crate::block::Device;
use crate::fs::ext4::layout::disk::{RawSuperblock, SUPERBLOCK_MAGIC, SUPERBLOCK_OFFSET};
use crate::fs::ext4::layout::features::{Incompat, RoCompat};
use crate::fs::ext4::layout::superblock::Superblock;
use crate::fs::ext4::options::{Ext4Options, default_options as bits, error_policies};
use zerocopy::FromBytes;

/// Changes to a superblock; `None` leaves a value unchanged.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct TuneOptions {
    /// Volume label, at most 16 bytes (`tune2fs -L`).
    pub label: Option<String>,
    /// UUID (`tune2fs -U`). With metadata_csum, checksums keep the seed of the old UUID
    /// (`metadata_csum_seed`).
    pub uuid: Option<[u8; 16]>,
    /// Default mount options, separated by commas: those of `tune2fs -o` (`^` clears one),
    /// `errors=`, or the names of mount(8).
    pub mount_defaults: Option<String>,
    /// Mount options that every mount applies before its own, at most 63 bytes
    /// (`tune2fs -E mount_opts=`).
    pub mount_text: Option<String>,
    /// Blocks reserved for root (`tune2fs -r`, `-m`).
    pub reserved: Option<ReservedBlockCount>,
    /// User id that may also use the reserved blocks (`tune2fs -u`).
    pub reserved_uid: Option<u16>,
    /// Group id that may also use the reserved blocks (`tune2fs -g`).
    pub reserved_gid: Option<u16>,
    /// Number of mounts after which e2fsck checks the file system; 0 for never (`tune2fs -c`).
    pub max_mount_count: Option<u16>,
    /// The source of the time of the change.
    pub clock: Clock,
}

/// The number of blocks reserved for root.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum ReservedBlockCount {
    /// A number of blocks, at most half of all.
    Blocks(u64),
    /// A percentage of all blocks, 0 to 50.
    Percent(f64),
}

/// Length of a label in bytes.
const LABEL_LEN: usize = 16;

/// Changes the superblock of the ext4 on `device` and its backups; durable when this returns.
///
/// # Errors
/// - EINVAL for an invalid option.
/// - EROFS for a read-only device.
/// - EBUSY if the journal needs a replay; a mount replays it.
/// - EOPNOTSUPP for a feature that Folio cannot write, or an unsupported mount option.
/// - EUCLEAN if the device has no valid ext4.
///
/// Counterpart: tune2fs(8).
pub fn tune(device: &dyn Device, options: &TuneOptions) -> Result<()> {
    tune_device(device, options).map_err(|e| e.at("ext4"))
}

fn tune_device(device: &dyn Device, options: &TuneOptions) -> Result<()> {
    if device.is_read_only() {
        return Err(Error::new(Errno::ROFS, "the image is read-only"));
    }
    let mut superblock = Superblock::load(device)?;
    superblock.features.check_writable_offline()?;
    superblock.check_writable_values()?;
    if superblock
        .features
        .incompat
        .contains(Incompat::NEEDS_RECOVERY)
    {
        return Err(Error::new(
            Errno::BUSY,
            "the journal needs a replay; mount the file system once",
        ));
    }
    superblock.tune(options)?;
    write(device, &superblock, options)
}

impl Superblock {
    fn tune(&mut self, options: &TuneOptions) -> Result<()> {
        if let Some(label) = &options.label {
            self.raw.volume_name = padded(label, "label", LABEL_LEN)?;
        }
        if let Some(text) = &options.mount_text {
            // One byte shorter, for the terminating zero.
            self.raw.mount_opts = padded(text, "mount options", 63)?;
            Ext4Options::parse(text, self)?;
        }
        if let Some(words) = &options.mount_defaults {
            for word in words.split(',').filter(|word| !word.is_empty()) {
                self.set_default(word)?;
            }
        }
        if let Some(reserved) = options.reserved {
            self.set_reserved(reserved)?;
        }
        let raw = &mut self.raw;
        raw.def_resuid = options.reserved_uid.map_or(raw.def_resuid, Into::into);
        raw.def_resgid = options.reserved_gid.map_or(raw.def_resgid, Into::into);
        raw.max_mnt_count = options
            .max_mount_count
            .map_or(raw.max_mnt_count, Into::into);
        options.uuid.map_or(Ok(()), |uuid| self.set_uuid(uuid))
    }

    /// Applies one word of the default mount options.
    fn set_default(&mut self, word: &str) -> Result<()> {
        let refused = || {
            Error::new(
                Errno::INVAL,
                format!("unknown default mount option {word:?}"),
            )
        };
        if let Some(policy) = word.strip_prefix("errors=") {
            self.raw.errors = match policy {
                "continue" => error_policies::CONTINUE,
                "remount-ro" => error_policies::REMOUNT_READ_ONLY,
                "panic" => error_policies::PANIC,
                _ => return Err(refused()),
            }
            .into();
            return Ok(());
        }
        let (is_set, name) = word
            .strip_prefix('^')
            .map_or((true, word), |name| (false, name));
        // The bits to clear, then the bits to set.
        let (mask, set) = match name {
            "journal_data" | "data=journal" => (bits::DATA_MASK, bits::DATA_JOURNAL),
            "journal_data_ordered" | "data=ordered" => (bits::DATA_MASK, bits::DATA_ORDERED),
            "journal_data_writeback" | "data=writeback" => (bits::DATA_MASK, bits::DATA_WRITEBACK),
            "debug" => (bits::DEBUG, bits::DEBUG),
            "bsdgroups" => return Err(Error::unsupported("default mount option bsdgroups")),
            "user_xattr" => (bits::USER_XATTR, bits::USER_XATTR),
            "nouser_xattr" => (bits::USER_XATTR, 0),
            "acl" => (bits::ACL, bits::ACL),
            "noacl" => (bits::ACL, 0),
            "uid16" => (bits::UID16, bits::UID16),
            "nobarrier" => (bits::NO_BARRIER, bits::NO_BARRIER),
            "barrier" => (bits::NO_BARRIER, 0),
            "block_validity" => (bits::BLOCK_VALIDITY, bits::BLOCK_VALIDITY),
            "discard" => (bits::DISCARD, bits::DISCARD),
            "nodiscard" => (bits::DISCARD, 0),
            "nodelalloc" => (bits::NO_DELALLOC, bits::NO_DELALLOC),
            "delalloc" => (bits::NO_DELALLOC, 0),
            _ => return Err(refused()),
        };
        let set = if is_set {
            set
        } else {
            mask & !set & !bits::DATA_MASK
        };
        self.raw.default_mount_opts = (self.raw.default_mount_opts.get() & !mask | set).into();
        Ok(())
    }

    fn set_reserved(&mut self, reserved: ReservedBlockCount) -> Result<()> {
        let max = self.block_count / 2;
        let blocks = match reserved {
            ReservedBlockCount::Blocks(blocks) => blocks,
            // NaN and values out of range become too many blocks, which is checked below.
            ReservedBlockCount::Percent(percent) if (0.0..=50.0).contains(&percent) => {
                (self.block_count as f64 * percent / 100.0) as u64
            }
            ReservedBlockCount::Percent(_) => u64::MAX,
        };
        if blocks > max {
            return Err(Error::new(
                Errno::INVAL,
                format!("too many reserved blocks: at most {max}, half of all, are allowed"),
            ));
        }
        (self.raw.r_blocks_count_lo, self.raw.r_blocks_count_hi) =
            ((blocks as u32).into(), ((blocks >> 32) as u32).into());
        Ok(())
    }

    fn set_uuid(&mut self, uuid: [u8; 16]) -> Result<()> {
        if self.features.ro_compat.contains(RoCompat::METADATA_CSUM) {
            if let Some(seed) = self.checksum_seed {
                self.features.incompat.insert(Incompat::METADATA_CSUM_SEED);
                self.raw.checksum_seed = seed.into();
            }
        } else if self.features.ro_compat.contains(RoCompat::UNINIT_BG) {
            return Err(Error::unsupported(
                "new UUID for a file system with uninit_bg; use tune2fs",
            ));
        }
        self.raw.uuid = uuid;
        Ok(())
    }
}

fn padded<const LEN: usize>(text: &str, what: &str, max: usize) -> Result<[u8; LEN]> {
    let mut field = [0; LEN];
    if text.len() > max || text.contains('\0') {
        let what = format!(
            "invalid {what} {text:?}: {} bytes long; at most {max} bytes without a zero byte are allowed",
            text.len()
        );
        return Err(Error::new(Errno::INVAL, what));
    }
    field[..text.len()].copy_from_slice(text.as_bytes());
    Ok(field)
}

/// Writes the backups first, so that a crash in between leaves a valid primary.
fn write(device: &dyn Device, superblock: &Superblock, options: &TuneOptions) -> Result<()> {
    let now = options.clock.now();
    for group in (1..superblock.group_count).filter(|group| superblock.has_backup(*group)) {
        let offset = superblock.group_start(group) * superblock.block_size as u64;
        let mut bytes = [0; size_of::<RawSuperblock>()];
        device.read_at(&mut bytes, offset)?;
        let mut copy = superblock.clone();
        copy.raw.block_group_nr = (group as u16).into();
        if let Ok(old) = RawSuperblock::read_from_bytes(&bytes)
            && old.magic.get() == SUPERBLOCK_MAGIC
        {
            // A backup must not claim to be clean.
            copy.raw.state = old.state;
        }
        device.write_at(&copy.to_bytes(now), offset)?;
    }
    // The primary changes last: until then the file system is as it was.
    device.flush()?;
    device.write_at(&superblock.to_bytes(now), SUPERBLOCK_OFFSET)?;
    device.flush()
}
