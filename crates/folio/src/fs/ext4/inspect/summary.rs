//! The fields of the superblock and of the journal's superblock, by the names of dumpe2fs.

use super::inspector::Ext4Inspector;
use crate::base::{Error, ErrorKind, Result, Timespec};
use crate::block::Device;
use crate::fs::ext4::journal::JournalFields;
use crate::fs::ext4::layout::disk::{EXTENT_ENTRY_LEN, RawSuperblock, STATE_ERROR, STATE_VALID};
use crate::fs::ext4::layout::extent::{decode_extent, parse_node};
use crate::fs::ext4::layout::features::{Compat, Features, Incompat, RoCompat};
use crate::fs::ext4::layout::superblock::Superblock;
use crate::fs::ext4::options::{default_options as bits, error_policies};
use std::sync::Arc;

/// Bits of `s_flags` and their names.
const FLAGS: [(u32, &str); 3] = [
    (1, "signed_directory_hash"),
    (2, "unsigned_directory_hash"),
    (4, "test_filesystem"),
];
/// `s_def_hash_version`, by number.
const HASHES: [&str; 7] = [
    "legacy",
    "half_md4",
    "tea",
    "legacy_unsigned",
    "half_md4_unsigned",
    "tea_unsigned",
    "siphash",
];
/// `s_creator_os`, by number.
const SYSTEMS: [&str; 5] = ["Linux", "Hurd", "Masix", "FreeBSD", "Lites"];
/// Default mount options, apart from the mode of data.
const DEFAULT_OPTIONS: [(u32, &str); 9] = [
    (bits::DEBUG, "debug"),
    (0x2, "bsdgroups"),
    (bits::USER_XATTR, "user_xattr"),
    (bits::ACL, "acl"),
    (bits::UID16, "uid16"),
    (bits::NO_BARRIER, "nobarrier"),
    (bits::BLOCK_VALIDITY, "block_validity"),
    (bits::DISCARD, "discard"),
    (bits::NO_DELALLOC, "nodelalloc"),
];

/// A file system of the ext family, by the fields of its superblock.
#[derive(Debug, Clone)]
pub struct SuperblockSummary {
    /// `ext2`, `ext3` or `ext4`, by its features; `jbd` for a journal without a file system.
    pub type_name: &'static str,
    /// The fields, in the order of dumpe2fs.
    pub fields: Vec<SuperblockField>,
}

/// A field of a superblock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SuperblockField {
    /// Its name in dumpe2fs.
    pub name: &'static str,
    /// Its value.
    pub value: FieldValue,
}

/// The value of a field.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FieldValue {
    /// A number.
    Number(u64),
    /// A number that may be negative.
    Signed(i64),
    /// A number that is shown in base 16.
    Hex(u32),
    /// Text; empty for none.
    Text(String),
    /// A list of words.
    Words(Vec<String>),
    /// A UUID.
    Uuid([u8; 16]),
    /// A time; `None` for never.
    Time(Option<Timespec>),
}

impl SuperblockSummary {
    /// Returns the value of the field `name`, if the file system has it.
    pub fn field(&self, name: &str) -> Option<&FieldValue> {
        let field = self.fields.iter().find(|field| field.name == name);
        field.map(|field| &field.value)
    }

    fn push(&mut self, name: &'static str, value: FieldValue) {
        self.fields.push(SuperblockField { name, value });
    }

    fn number(&mut self, name: &'static str, value: impl Into<u64>) {
        self.push(name, FieldValue::Number(value.into()));
    }

    /// Adds a number unless it is 0.
    fn nonzero(&mut self, name: &'static str, value: impl Into<u64>) {
        let value = value.into();
        if value != 0 {
            self.number(name, value);
        }
    }

    fn text(&mut self, name: &'static str, value: impl Into<String>) {
        self.push(name, FieldValue::Text(value.into()));
    }

    fn time(&mut self, name: &'static str, low: u32, high: u8) {
        let secs = i64::from(high) << 32 | i64::from(low);
        let time = (secs != 0).then(|| Timespec::new(secs, 0));
        self.push(name, FieldValue::Time(time));
    }

    fn uuid(&mut self, name: &'static str, uuid: [u8; 16]) {
        self.push(name, FieldValue::Uuid(uuid));
    }
}

/// Describes the file system on `device` by its superblock and its journal's, whatever features it
/// has.
///
/// # Errors
/// EUCLEAN if `device` has no ext2, ext3 or ext4, or a damaged superblock or journal superblock.
///
/// Counterpart: dumpe2fs(8), as `dumpe2fs -h`.
pub fn summarize(device: &Arc<dyn Device>) -> Result<SuperblockSummary> {
    let describe = || {
        let raw = Superblock::load_raw(&**device)?;
        let features = raw.features();
        let block_size = block_size(&raw)?;
        let mut found = SuperblockSummary {
            type_name: type_name(&features),
            fields: Vec::new(),
        };
        found.add_identity(&raw, &features);
        found.add_geometry(&raw, &features, block_size);
        found.add_history(&raw);
        found.add_inodes(&raw);
        found.add_errors(&raw);
        found.add_special_files(&raw, &features);
        if let Some(journal) = journal_fields(device, &raw, &features, block_size)? {
            found.add_journal(&journal, block_size);
        }
        Ok(found)
    };
    describe().map_err(|e: Error| e.at("ext4"))
}

fn block_size(raw: &RawSuperblock) -> Result<u64> {
    match raw.log_block_size.get() {
        log @ 0..=6 => Ok(1024 << log),
        log => Err(Error::corrupt(format!(
            "superblock: block size 2^{}",
            u64::from(log) + 10
        ))),
    }
}

/// Returns the type as blkid names it: ext2 and ext3 have no features that those kernels lacked.
fn type_name(features: &Features) -> &'static str {
    let has_journal = features.compat.contains(Compat::HAS_JOURNAL);
    let old_incompat = Incompat::FILETYPE | Incompat::META_BG;
    // 0x4 is btree_dir, which no program ever used.
    let old_ro_compat =
        RoCompat::SPARSE_SUPER | RoCompat::LARGE_FILE | RoCompat::from_bits_retain(4);
    let is_old = |incompat: Incompat| {
        incompat.contains(features.incompat) && old_ro_compat.contains(features.ro_compat)
    };
    if features.incompat.contains(Incompat::JOURNAL_DEV) {
        "jbd"
    } else if !has_journal && is_old(old_incompat) {
        "ext2"
    } else if has_journal && is_old(old_incompat | Incompat::NEEDS_RECOVERY) {
        "ext3"
    } else {
        "ext4"
    }
}

fn joined(high: u32, low: u32, is_64bit: bool) -> u64 {
    u64::from(if is_64bit { high } else { 0 }) << 32 | u64::from(low)
}

/// Returns text in a field that a zero byte may end; invalid UTF-8 is replaced.
fn text_of(bytes: &[u8]) -> String {
    let len = bytes
        .iter()
        .position(|byte| *byte == 0)
        .unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..len]).into_owned()
}

/// Returns the names of the default mount options.
fn default_options(mask: u32) -> Vec<String> {
    let data = match mask & bits::DATA_MASK {
        bits::DATA_JOURNAL => Some("journal_data"),
        bits::DATA_ORDERED => Some("journal_data_ordered"),
        bits::DATA_WRITEBACK => Some("journal_data_writeback"),
        _ => None,
    };
    let known = DEFAULT_OPTIONS
        .iter()
        .fold(bits::DATA_MASK, |all, (bit, _)| all | bit);
    let named = DEFAULT_OPTIONS
        .iter()
        .filter(|(bit, _)| mask & bit != 0)
        .map(|(_, name)| *name);
    let mut names: Vec<String> = data.into_iter().chain(named).map(str::to_owned).collect();
    let unnamed = (0..32).filter(|bit| mask & !known & 1 << bit != 0);
    names.extend(unnamed.map(|bit| format!("MNTOPT_{bit}")));
    names
}

impl SuperblockSummary {
    fn add_identity(&mut self, raw: &RawSuperblock, features: &Features) {
        self.text("Filesystem volume name", text_of(&raw.volume_name));
        self.text("Last mounted on", text_of(&raw.last_mounted));
        self.uuid("Filesystem UUID", raw.uuid);
        let magic = FieldValue::Hex(raw.magic.get().into());
        self.push("Filesystem magic number", magic);
        self.number("Filesystem revision #", raw.rev_level.get());
        self.push("Filesystem features", FieldValue::Words(features.list()));
        let flags = FLAGS.iter().filter(|(bit, _)| raw.flags.get() & bit != 0);
        let flags: Vec<_> = flags.map(|(_, name)| (*name).to_owned()).collect();
        if !flags.is_empty() {
            self.push("Filesystem flags", FieldValue::Words(flags));
        }
        let options = default_options(raw.default_mount_opts.get());
        self.push("Default mount options", FieldValue::Words(options));
        if raw.mount_opts[0] != 0 {
            self.text("Mount options", text_of(&raw.mount_opts));
        }
        let state = raw.state.get();
        let clean = if state & STATE_VALID != 0 {
            "clean"
        } else {
            "not clean"
        };
        let errors = if state & STATE_ERROR != 0 {
            " with errors"
        } else {
            ""
        };
        self.text("Filesystem state", format!("{clean}{errors}"));
        let policy = match raw.errors.get() {
            error_policies::CONTINUE => "Continue",
            error_policies::REMOUNT_READ_ONLY => "Remount read-only",
            error_policies::PANIC => "Panic",
            _ => "Unknown (continue)",
        };
        self.text("Errors behavior", policy);
        let system = SYSTEMS.get(raw.creator_os.get() as usize);
        self.text("Filesystem OS type", *system.unwrap_or(&"unknown"));
    }

    fn add_geometry(&mut self, raw: &RawSuperblock, features: &Features, block_size: u64) {
        let is_64bit = features.incompat.contains(Incompat::BIT64);
        let is_bigalloc = features.ro_compat.contains(RoCompat::BIGALLOC);
        let shift = raw.log_cluster_size.get();
        let cluster_size = 1024_u64
            .checked_shl(shift)
            .filter(|_| shift < 40)
            .unwrap_or(0);
        let free = joined(
            raw.free_blocks_count_hi.get(),
            raw.free_blocks_count_lo.get(),
            is_64bit,
        );
        let blocks = joined(
            raw.blocks_count_hi.get(),
            raw.blocks_count_lo.get(),
            is_64bit,
        );
        let reserved = joined(
            raw.r_blocks_count_hi.get(),
            raw.r_blocks_count_lo.get(),
            is_64bit,
        );
        self.number("Inode count", raw.inodes_count.get());
        self.number("Block count", blocks);
        self.number("Reserved block count", reserved);
        self.nonzero("Overhead clusters", raw.overhead_clusters.get());
        self.number("Free blocks", free);
        self.number("Free inodes", raw.free_inodes_count.get());
        self.number("First block", raw.first_data_block.get());
        self.number("Block size", block_size);
        let (cluster, per_group) = if is_bigalloc {
            ("Cluster size", "Clusters per group")
        } else {
            ("Fragment size", "Fragments per group")
        };
        self.number(cluster, cluster_size);
        if is_64bit {
            self.number("Group descriptor size", raw.desc_size.get());
        }
        self.nonzero("Reserved GDT blocks", raw.reserved_gdt_blocks.get());
        self.number("Blocks per group", raw.blocks_per_group.get());
        self.number(per_group, raw.clusters_per_group.get());
        self.number("Inodes per group", raw.inodes_per_group.get());
        let table = u64::from(raw.inodes_per_group.get()) * inode_size(raw);
        self.number("Inode blocks per group", table.div_ceil(block_size));
        self.nonzero("First meta block group", raw.first_meta_bg.get());
        self.nonzero("RAID stride", raw.raid_stride.get());
        self.nonzero("RAID stripe width", raw.raid_stripe_width.get());
        if let log @ 1..=31 = raw.log_groups_per_flex {
            self.number("Flex block group size", 1_u64 << log);
        }
    }

    fn add_history(&mut self, raw: &RawSuperblock) {
        self.time("Filesystem created", raw.mkfs_time.get(), raw.mkfs_time_hi);
        self.time("Last mount time", raw.mtime.get(), raw.mtime_hi);
        self.time("Last write time", raw.wtime.get(), raw.wtime_hi);
        self.number("Mount count", raw.mnt_count.get());
        let max = i64::from(raw.max_mnt_count.get() as i16);
        self.push("Maximum mount count", FieldValue::Signed(max));
        self.time("Last checked", raw.lastcheck.get(), raw.lastcheck_hi);
        let interval = raw.checkinterval.get();
        self.number("Check interval", interval);
        if interval != 0 {
            let next = raw.lastcheck.get().wrapping_add(interval);
            self.time("Next check after", next, raw.lastcheck_hi);
        }
        self.nonzero("Lifetime writes", raw.kbytes_written.get());
        self.number("Reserved blocks uid", raw.def_resuid.get());
        self.number("Reserved blocks gid", raw.def_resgid.get());
    }

    fn add_inodes(&mut self, raw: &RawSuperblock) {
        if raw.rev_level.get() >= 1 {
            self.number("First inode", raw.first_ino.get());
            self.number("Inode size", raw.inode_size.get());
        }
        self.nonzero("Required extra isize", raw.min_extra_isize.get());
        self.nonzero("Desired extra isize", raw.want_extra_isize.get());
        if raw.journal_uuid != [0; 16] {
            self.uuid("Journal UUID", raw.journal_uuid);
        }
        self.nonzero("Journal inode", raw.journal_inum.get());
        if raw.journal_dev.get() != 0 {
            self.push("Journal device", FieldValue::Hex(raw.journal_dev.get()));
        }
        self.nonzero("First orphan inode", raw.last_orphan.get());
        let seed = raw.hash_seed.map(|word| word.get().to_le_bytes());
        if self.type_name != "jbd" || seed != [[0; 4]; 4] {
            let hash = HASHES.get(usize::from(raw.def_hash_version));
            self.text("Default directory hash", *hash.unwrap_or(&"unknown"));
        }
        let mut bytes = [0; 16];
        bytes.copy_from_slice(seed.as_flattened());
        if bytes != [0; 16] {
            self.uuid("Directory Hash Seed", bytes);
        }
        match raw.jnl_backup_type {
            0 => {}
            1 => self.text("Journal backup", "inode blocks"),
            other => self.text("Journal backup", format!("type {other}")),
        }
        let backups = raw.backup_bgs.map(|group| group.get());
        let backups = backups.iter().filter(|group| **group != 0);
        let backups: Vec<_> = backups.map(u32::to_string).collect();
        if !backups.is_empty() {
            self.push("Backup block groups", FieldValue::Words(backups));
        }
        if raw.snapshot_inum.get() != 0 {
            self.number("Snapshot inode", raw.snapshot_inum.get());
            self.number("Snapshot ID", raw.snapshot_id.get());
            self.number(
                "Snapshot reserved blocks",
                raw.snapshot_r_blocks_count.get(),
            );
            self.number("Snapshot list head", raw.snapshot_list.get());
        }
    }

    fn add_errors(&mut self, raw: &RawSuperblock) {
        self.nonzero("FS Error count", raw.error_count.get());
        if raw.first_error_time.get() != 0 {
            let (low, high) = (raw.first_error_time.get(), raw.first_error_time_hi);
            self.time("First error time", low, high);
            self.text("First error function", text_of(&raw.first_error_func));
            self.number("First error line #", raw.first_error_line.get());
            self.nonzero("First error inode #", raw.first_error_ino.get());
            self.nonzero("First error block #", raw.first_error_block.get());
            self.nonzero("First error code", raw.first_error_errcode);
        }
        if raw.last_error_time.get() != 0 {
            let (low, high) = (raw.last_error_time.get(), raw.last_error_time_hi);
            self.time("Last error time", low, high);
            self.text("Last error function", text_of(&raw.last_error_func));
            self.number("Last error line #", raw.last_error_line.get());
            self.nonzero("Last error inode #", raw.last_error_ino.get());
            self.nonzero("Last error block #", raw.last_error_block.get());
            self.nonzero("Last error code", raw.last_error_errcode);
        }
    }

    fn add_special_files(&mut self, raw: &RawSuperblock, features: &Features) {
        if features.incompat.contains(Incompat::MMP) {
            self.number("MMP block number", raw.mmp_block.get());
            self.number("MMP update interval", raw.mmp_interval.get());
        }
        self.nonzero("User quota inode", raw.usr_quota_inum.get());
        self.nonzero("Group quota inode", raw.grp_quota_inum.get());
        self.nonzero("Project quota inode", raw.prj_quota_inum.get());
        if features.ro_compat.contains(RoCompat::METADATA_CSUM) {
            let kind = match raw.checksum_type {
                1 => "crc32c".to_owned(),
                other => format!("unknown ({other})"),
            };
            self.text("Checksum type", kind);
            self.push("Checksum", FieldValue::Hex(raw.checksum.get()));
        }
        if raw.encrypt_pw_salt != [0; 16] {
            self.uuid("Encryption PW Salt", raw.encrypt_pw_salt);
        }
        if features.incompat.contains(Incompat::METADATA_CSUM_SEED) {
            self.push("Checksum seed", FieldValue::Hex(raw.checksum_seed.get()));
        }
        if features.incompat.contains(Incompat::CASEFOLD) {
            let encoding = match raw.encoding.get() {
                1 => "utf8-12.1".to_owned(),
                other => format!("unknown ({other})"),
            };
            self.text("Character encoding", encoding);
        }
        self.nonzero("Orphan file inode", raw.orphan_file_inum.get());
    }

    fn add_journal(&mut self, journal: &JournalFields, block_size: u64) {
        let features = FieldValue::Words(journal.features.clone());
        self.push("Journal features", features);
        if u64::from(journal.block_size) != block_size {
            self.number("Journal block size", journal.block_size);
        }
        let size = u64::from(journal.blocks) * u64::from(journal.block_size);
        self.number("Total journal size", size);
        self.number("Total journal blocks", journal.blocks);
        let usable = journal.blocks.saturating_sub(journal.fast_commit_blocks);
        self.number("Max transaction length", usable);
        self.number("Fast commit length", journal.fast_commit_blocks);
        if journal.first != 1 {
            self.number("Journal first block", journal.first);
        }
        self.push("Journal sequence", FieldValue::Hex(journal.sequence));
        self.number("Journal start", journal.start);
        if journal.users != 1 {
            self.number("Journal number of users", journal.users);
        }
        if let Some(checksum) = journal.checksum {
            self.text("Journal checksum type", "crc32c");
            self.push("Journal checksum", FieldValue::Hex(checksum));
        }
        if journal.errno != 0 {
            let errno = FieldValue::Signed(journal.errno.into());
            self.push("Journal errno", errno);
        }
    }
}

fn inode_size(raw: &RawSuperblock) -> u64 {
    if raw.rev_level.get() == 0 {
        128
    } else {
        raw.inode_size.get().into()
    }
}

/// Reads the journal's superblock, if the file system has a journal of its own.
fn journal_fields(
    device: &Arc<dyn Device>,
    raw: &RawSuperblock,
    features: &Features,
    block_size: u64,
) -> Result<Option<JournalFields>> {
    if features.incompat.contains(Incompat::JOURNAL_DEV) {
        // In the block after the superblock's.
        let block = if block_size == 1024 { 2 } else { 1 };
        return JournalFields::read(&**device, block * block_size).map(Some);
    }
    if !features.compat.contains(Compat::HAS_JOURNAL) || raw.journal_inum.get() == 0 {
        return Ok(None);
    }
    let inspector = match Ext4Inspector::open(device.clone()) {
        Ok(inspector) => inspector,
        // The journal's inode cannot be read, but the superblock may have a copy of its blocks.
        Err(error) if error.kind() == ErrorKind::Unsupported => {
            let Some(first) = backed_up_journal(raw) else {
                return Ok(None);
            };
            let offset = first
                .checked_mul(block_size)
                .filter(|at| *at < device.len_bytes());
            let outside = || Error::corrupt("superblock: journal outside the device");
            return JournalFields::read(&**device, offset.ok_or_else(outside)?).map(Some);
        }
        Err(error) => return Err(error),
    };
    JournalFields::read(&**device, inspector.journal_offset()?).map(Some)
}

/// Returns the journal's first block by the copy of its `i_block` in the superblock, if that holds
/// extents.
fn backed_up_journal(raw: &RawSuperblock) -> Option<u64> {
    if raw.jnl_backup_type != 1 {
        return None;
    }
    let root: Vec<u8> = raw.jnl_blocks[..15]
        .iter()
        .flat_map(|word| word.to_bytes())
        .collect();
    let (header, entries) = parse_node(&root, Some(0)).ok()?;
    let first = entries
        .get(..EXTENT_ENTRY_LEN)
        .filter(|_| header.entries.get() > 0)?;
    decode_extent(first).ok().map(|extent| extent.physical)
}
