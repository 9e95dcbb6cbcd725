//! The superblock: reads the primary or a backup, then checks all fields.
//!
//! The numbers that the rest of the check relies on (sizes, locations, counts) are checked first.
//! If one is wrong, a backup is used. Other inconsistencies are reported, and the check continues.

use super::fix::Fix;
use super::report::{CheckedStructure, FindingLocation, FindingReporter};
use crate::base::{Clock, Error, Result};
use crate::block::Device;
use crate::fs::ext4::layout::checksum::crc32c;
use crate::fs::ext4::layout::disk::{
    FIRST_INODE, RawSuperblock, STATE_ERROR, STATE_VALID, SUPERBLOCK_CHECKSUM_OFFSET,
    SUPERBLOCK_MAGIC, SUPERBLOCK_OFFSET,
};
use crate::fs::ext4::layout::features::{Compat, Features, Incompat, RoCompat};
use crate::fs::ext4::layout::superblock::{Superblock, no_file_system};
use zerocopy::{FromBytes, IntoBytes};

/// Maximum block size in bytes. Larger blocks encode entry lengths of directories differently.
const BLOCK_SIZE_MAX: usize = 32 << 10;
/// Maximum number of groups, which bounds the memory of the check: 256 TiB with blocks of 4 KiB.
const GROUPS_MAX: u64 = 1 << 21;
/// Groups with a backup that are tried: the first ones of sparse_super.
const BACKUP_GROUPS: [u16; 8] = [1, 3, 5, 7, 9, 25, 27, 49];
/// Tolerated difference between clocks: one day.
const TIME_SLACK_SECS: i64 = 86_400;

/// Reads the superblock to check by. Returns `None` after reporting that neither the primary nor a
/// backup is usable.
///
/// With `is_to_be_replayed`, a superblock that needs recovery may have a bad checksum. A power cut
/// may have left it partly written, and the journal holds the whole superblock.
///
/// # Errors
/// EUCLEAN if the device has no ext4; EOPNOTSUPP, naming the feature, for a feature unknown to
/// Folio.
pub(super) fn open(
    device: &dyn Device,
    report: &mut FindingReporter<'_>,
    is_to_be_replayed: bool,
) -> Result<Option<Superblock>> {
    let raw = read(device, SUPERBLOCK_OFFSET)?;
    let what = if raw.magic.get() == SUPERBLOCK_MAGIC {
        check_known(&raw)?;
        match geometry(&raw, device.len_bytes()) {
            Ok(superblock) if checksum_is_good(&superblock) => return Ok(Some(superblock)),
            Ok(superblock) if is_to_be_replayed && needs_recovery(&superblock) => {
                return Ok(Some(superblock));
            }
            Ok(superblock) if copy(device, &raw).is_none() => {
                report.error(
                    CheckedStructure::Superblock,
                    FindingLocation::NONE,
                    format_args!("bad checksum"),
                );
                report.fix(Fix::Superblock(Box::new(|_| ())));
                return Ok(Some(superblock));
            }
            Ok(_) => "bad checksum".to_owned(),
            Err(what) => what,
        }
    } else {
        format!("bad magic {:#06x}", raw.magic.get())
    };
    let copy = copy(device, &raw);
    let advice = match &copy {
        Some((block, copy)) => {
            format!(
                "checking with the backup in block {block} (e2fsck -b {block} -B {})",
                copy.block_size
            )
        }
        None if raw.magic.get() != SUPERBLOCK_MAGIC => {
            return Err(no_file_system(device, &raw));
        }
        None => "no backup was found; the check ends here".to_owned(),
    };
    report.error(
        CheckedStructure::Superblock,
        FindingLocation::NONE,
        format_args!("{what}; {advice}"),
    );
    if let Some((_, copy)) = &copy {
        report.fix(Fix::RestoreSuperblock(Box::new(copy.raw.clone())));
    }
    Ok(copy.map(|(_, superblock)| superblock))
}

fn read(device: &dyn Device, offset: u64) -> Result<RawSuperblock> {
    let mut bytes = [0; size_of::<RawSuperblock>()];
    let end = offset.checked_add(bytes.len() as u64);
    if end.is_none_or(|end| end > device.len_bytes()) {
        let what = format!("no ext4 file system: only {} bytes", device.len_bytes());
        return Err(Error::corrupt(what));
    }
    device.read_at(&mut bytes, offset)?;
    RawSuperblock::read_from_bytes(&bytes).map_err(|_| Error::corrupt("superblock cut short"))
}

/// Returns the first valid backup: in the groups of the primary's own numbers if it has any, then
/// at the places that mke2fs uses with each block size and cluster size.
fn copy(device: &dyn Device, primary: &RawSuperblock) -> Option<(u64, Superblock)> {
    let own =
        (primary.magic.get() == SUPERBLOCK_MAGIC && primary.log_block_size.get() <= 5).then(|| {
            (
                1024 << primary.log_block_size.get(),
                primary.blocks_per_group.get().into(),
            )
        });
    // The bitmap of a group fills a block, so a group has 8 clusters for each byte of a block.
    let usual = (0..=6).flat_map(|log_cluster| {
        (0..=5).map(move |log_block| {
            let block_size = 1024_u64 << log_block;
            (block_size, (8 * block_size) << log_cluster)
        })
    });
    own.into_iter()
        .chain(usual)
        .find_map(|(block_size, per_group)| {
            BACKUP_GROUPS
                .into_iter()
                .find_map(|group| copy_in_group(device, block_size, per_group, group))
        })
}

/// Returns the backup at the start of a group, if it is valid and describes such groups.
fn copy_in_group(
    device: &dyn Device,
    block_size: u64,
    per_group: u64,
    group: u16,
) -> Option<(u64, Superblock)> {
    [0, 1].into_iter().find_map(|first_data_block| {
        let block = first_data_block + u64::from(group) * per_group;
        let raw = read(device, block.checked_mul(block_size)?).ok()?;
        let is_copy = raw.magic.get() == SUPERBLOCK_MAGIC
            && raw.block_group_nr.get() == group
            && u64::from(raw.blocks_per_group.get()) == per_group
            && u64::from(raw.first_data_block.get()) == first_data_block;
        let superblock = geometry(&raw, device.len_bytes())
            .ok()
            .filter(|_| is_copy)?;
        let is_usable = superblock.block_size as u64 == block_size
            && check_known(&superblock.raw).is_ok()
            && checksum_is_good(&superblock);
        is_usable.then_some((block, superblock))
    })
}

fn features_of(raw: &RawSuperblock) -> Features {
    Features {
        compat: Compat::from_bits_retain(raw.feature_compat.get()),
        incompat: Incompat::from_bits_retain(raw.feature_incompat.get()),
        ro_compat: RoCompat::from_bits_retain(raw.feature_ro_compat.get()),
    }
}

/// Rejects features, revisions and sizes unknown to Folio with EOPNOTSUPP.
fn check_known(raw: &RawSuperblock) -> Result<()> {
    let features = features_of(raw);
    features.check_readable()?;
    let sets = [
        ("compat", features.compat.bits() & !Compat::all().bits()),
        (
            "ro_compat",
            features.ro_compat.bits() & !RoCompat::all().bits(),
        ),
    ];
    if let Some((set, unknown)) = sets.into_iter().find(|(_, unknown)| *unknown != 0) {
        return Err(Error::unsupported(format!(
            "feature {set} bits {unknown:#x}"
        )));
    }
    if raw.rev_level.get() > 1 {
        return Err(Error::unsupported(format!(
            "revision {}",
            raw.rev_level.get()
        )));
    }
    let has_checksums = features.ro_compat.contains(RoCompat::METADATA_CSUM);
    if has_checksums && raw.checksum_type != 1 {
        return Err(Error::unsupported(format!(
            "checksum type {}",
            raw.checksum_type
        )));
    }
    if 1024_u64 << raw.log_block_size.get().min(20) > BLOCK_SIZE_MAX as u64
        && raw.log_block_size.get() <= 6
    {
        return Err(Error::unsupported(format!(
            "blocks of {} bytes",
            1024 << raw.log_block_size.get()
        )));
    }
    Ok(())
}

fn checksum_is_good(superblock: &Superblock) -> bool {
    let raw = &superblock.raw;
    let sum = || crc32c(!0, &raw.as_bytes()[..SUPERBLOCK_CHECKSUM_OFFSET]);
    superblock.checksum_seed.is_none() || raw.checksum.get() == sum()
}

/// Builds the superblock from the numbers that the check relies on. Returns a description of the
/// first inconsistency.
fn geometry(raw: &RawSuperblock, device_len: u64) -> Result<Superblock, String> {
    let features = features_of(raw);
    let log = raw.log_block_size.get();
    let block_size = if log <= 5 {
        1024_usize << log
    } else {
        return Err(format!("block size 2^{}", u64::from(log) + 10));
    };
    let is_64bit = features.incompat.contains(Incompat::BIT64);
    let high = if is_64bit {
        u64::from(raw.blocks_count_hi.get())
    } else {
        0
    };
    let block_count = high << 32 | u64::from(raw.blocks_count_lo.get());
    let checksum_seed = features
        .ro_compat
        .contains(RoCompat::METADATA_CSUM)
        .then(|| {
            if features.incompat.contains(Incompat::METADATA_CSUM_SEED) {
                raw.checksum_seed.get()
            } else {
                crc32c(!0, &raw.uuid)
            }
        });
    let mut superblock = Superblock {
        raw: raw.clone(),
        features,
        block_size,
        block_count,
        first_data_block: raw.first_data_block.get().into(),
        blocks_per_group: raw.blocks_per_group.get(),
        cluster_blocks: cluster_blocks(raw, &features)?,
        inodes_per_group: raw.inodes_per_group.get(),
        inode_count: raw.inodes_count.get(),
        group_count: 0,
        descriptor_len: 32,
        inode_size: 128,
        first_inode: FIRST_INODE,
        checksum_seed,
    };
    if is_64bit {
        superblock.descriptor_len = usize::from(raw.desc_size.get());
    }
    if raw.rev_level.get() > 0 {
        superblock.inode_size = usize::from(raw.inode_size.get());
        superblock.first_inode = raw.first_ino.get();
    }
    if let Some(what) = first_misfit(&superblock, device_len) {
        return Err(what);
    }
    let blocks = block_count - superblock.first_data_block;
    let groups = blocks.div_ceil(superblock.blocks_per_group.into());
    let inodes = groups * u64::from(superblock.inodes_per_group);
    if groups > GROUPS_MAX {
        return Err(format!(
            "{groups} block groups; more than {GROUPS_MAX} are not checked"
        ));
    }
    if inodes != u64::from(superblock.inode_count) {
        return Err(format!(
            "{} inodes, but {groups} groups hold {inodes}",
            superblock.inode_count
        ));
    }
    superblock.group_count = groups as u32;
    check_descriptor_table(&superblock).map_or(Ok(superblock), Err)
}

fn cluster_blocks(raw: &RawSuperblock, features: &Features) -> Result<u32, String> {
    let (log_block, log_cluster) = (raw.log_block_size.get(), raw.log_cluster_size.get());
    if !features.ro_compat.contains(RoCompat::BIGALLOC) {
        let is_plain = log_cluster == log_block && raw.clusters_per_group == raw.blocks_per_group;
        // Revision 0 had fragments instead of clusters in these fields.
        return if is_plain || raw.rev_level.get() == 0 {
            Ok(1)
        } else {
            Err(format!(
                "clusters without bigalloc (2^{})",
                u64::from(log_cluster) + 10
            ))
        };
    }
    match log_cluster.checked_sub(log_block) {
        Some(log @ 0..=16)
            if raw.clusters_per_group.get().checked_mul(1 << log)
                == Some(raw.blocks_per_group.get()) =>
        {
            Ok(1 << log)
        }
        _ => Err(format!("cluster size 2^{}", u64::from(log_cluster) + 10)),
    }
}

/// Returns the first inconsistency among the basic numbers.
fn first_misfit(superblock: &Superblock, device_len: u64) -> Option<String> {
    let Superblock {
        block_size,
        block_count,
        first_data_block,
        blocks_per_group,
        ..
    } = *superblock;
    let Superblock {
        cluster_blocks,
        inodes_per_group,
        inode_size,
        descriptor_len,
        ..
    } = *superblock;
    let bits = 8 * block_size as u64;
    let is_64bit = superblock.features.incompat.contains(Incompat::BIT64);
    let is_power =
        |size: usize, min: usize| size >= min && size <= block_size && size.is_power_of_two();
    let reserved = u64::from(superblock.raw.r_blocks_count_hi.get()) << 32;
    let reserved =
        if is_64bit { reserved } else { 0 } | u64::from(superblock.raw.r_blocks_count_lo.get());
    let first_expected = u64::from(block_size == 1024 && cluster_blocks == 1);
    let wrong = |wrong: bool, what: String| wrong.then_some(what);
    None.or_else(|| {
        let per_group = u64::from(blocks_per_group);
        let is_wrong = per_group > bits * u64::from(cluster_blocks)
            || blocks_per_group < 256
            || !per_group.is_multiple_of(8);
        wrong(is_wrong, format!("{blocks_per_group} blocks per group"))
    })
    .or_else(|| {
        let count = u64::from(inodes_per_group);
        wrong(
            count == 0 || count > bits || !count.is_multiple_of(8),
            format!("{inodes_per_group} inodes per group"),
        )
    })
    .or_else(|| wrong(!is_power(inode_size, 128), format!("inodes of {inode_size} bytes")))
    .or_else(|| {
        wrong(
            is_64bit && !is_power(descriptor_len, 64),
            format!("group descriptors of {descriptor_len} bytes"),
        )
    })
    .or_else(|| wrong(first_data_block != first_expected, format!("first data block {first_data_block}")))
    .or_else(|| wrong(block_count <= first_data_block, format!("{block_count} blocks")))
    .or_else(|| wrong(reserved > block_count / 2, format!("{reserved} of {block_count} blocks reserved")))
    .or_else(|| {
        let first = superblock.first_inode;
        wrong(!(FIRST_INODE..=superblock.inode_count).contains(&first), format!("first inode {first}"))
    })
    .or_else(|| {
        let is_cut = block_count > device_len / block_size as u64;
        wrong(
            is_cut,
            format!(
                "{block_count} blocks of {block_size} bytes on a device of {device_len} bytes: truncated?"
            ),
        )
    })
    .or_else(|| {
        let log = superblock.raw.log_groups_per_flex;
        wrong(log > 31, format!("2^{log} groups per flex group"))
    })
}

fn check_descriptor_table(superblock: &Superblock) -> Option<String> {
    let blocks = superblock.descriptor_blocks();
    let reserved = u64::from(superblock.raw.reserved_gdt_blocks.get());
    if reserved > superblock.block_size as u64 / 4 {
        return Some(format!("{reserved} reserved descriptor blocks"));
    }
    if superblock.has_meta_bg() {
        let first = superblock.raw.first_meta_bg.get();
        return (u64::from(first) > blocks).then(|| format!("first meta block group {first}"));
    }
    let fits = blocks + reserved + 1 < u64::from(superblock.blocks_per_group)
        && superblock.first_data_block + 1 + blocks <= superblock.block_count;
    (!fits).then(|| format!("{blocks} group descriptor blocks and {reserved} reserved"))
}

/// The change that answers a finding about the superblock, if there is only one.
type SuperblockFix = Option<fn(&mut RawSuperblock)>;

fn clear(field: &mut zerocopy::little_endian::U32, bits: u32) {
    field.set(field.get() & !bits);
}

/// Checks features that exclude or require each other.
fn check_feature_pairs(superblock: &Superblock, report: &mut FindingReporter<'_>) {
    let Features {
        incompat,
        ro_compat,
        ..
    } = superblock.features;
    let pairs: [(bool, &str, fn(&mut RawSuperblock)); 3] = [
        (
            ro_compat.contains(RoCompat::METADATA_CSUM | RoCompat::UNINIT_BG),
            "both metadata_csum and uninit_bg",
            |raw| clear(&mut raw.feature_ro_compat, RoCompat::UNINIT_BG.bits()),
        ),
        (
            incompat.contains(Incompat::METADATA_CSUM_SEED) && superblock.checksum_seed.is_none(),
            "metadata_csum_seed without metadata_csum",
            |raw| {
                clear(
                    &mut raw.feature_incompat,
                    Incompat::METADATA_CSUM_SEED.bits(),
                )
            },
        ),
        (
            incompat.contains(Incompat::BIT64) && !incompat.contains(Incompat::EXTENT),
            "64bit without extent",
            |raw| raw.feature_incompat |= Incompat::EXTENT.bits(),
        ),
    ];
    for (_, what, fix) in pairs.into_iter().filter(|(is_wrong, ..)| *is_wrong) {
        let what = format_args!("{what}");
        report.error(CheckedStructure::Superblock, FindingLocation::NONE, what);
        report.fix(Fix::Superblock(Box::new(fix)));
    }
}

/// Checks the fields that the rest of the check does not rely on.
pub(super) fn check(superblock: &Superblock, clock: Clock, report: &mut FindingReporter<'_>) {
    check_feature_pairs(superblock, report);
    let raw = &superblock.raw;
    let Features {
        compat,
        incompat,
        ro_compat: _,
    } = superblock.features;
    let mut error = |what: std::fmt::Arguments<'_>, fix: SuperblockFix| {
        report.error(CheckedStructure::Superblock, FindingLocation::NONE, what);
        if let Some(fix) = fix {
            report.fix(Fix::Superblock(Box::new(fix)));
        }
    };
    let has_resize = compat.contains(Compat::RESIZE_INODE);
    if has_resize && superblock.has_meta_bg() {
        error(format_args!("both resize_inode and meta_bg"), None);
    }
    if !has_resize && raw.reserved_gdt_blocks.get() != 0 {
        let what = format_args!(
            "{} reserved descriptor blocks without resize_inode",
            raw.reserved_gdt_blocks
        );
        error(what, None);
    }
    let extra_max = (superblock.inode_size - 128) as u16;
    let extra_sizes: [(&str, u16, fn(&mut RawSuperblock)); 2] = [
        ("required", raw.min_extra_isize.get(), |raw| {
            raw.min_extra_isize = 0.into();
        }),
        ("desired", raw.want_extra_isize.get(), |raw| {
            raw.want_extra_isize = 0.into();
        }),
    ];
    for (name, extra, fix) in extra_sizes {
        if superblock.inode_size > 128
            && extra != 0
            && (extra > extra_max || extra < 4 || extra % 4 != 0)
        {
            error(
                format_args!("invalid {name} extra inode size {extra}"),
                Some(fix),
            );
        }
    }
    check_absent_journal(superblock, &mut error);
    let descriptor_len = raw.desc_size.get();
    if !incompat.contains(Incompat::BIT64)
        && (descriptor_len & descriptor_len.wrapping_sub(1) != 0 || descriptor_len > 1024)
    {
        let what = format_args!("group descriptors of {descriptor_len} bytes");
        error(what, Some(|raw| raw.desc_size = 0.into()));
    }
    check_named_inodes(superblock, &mut |what| error(what, None));
    warn(superblock, clock, report);
}

/// Checks that a superblock without has_journal names no journal.
fn check_absent_journal(
    superblock: &Superblock,
    error: &mut dyn FnMut(std::fmt::Arguments<'_>, SuperblockFix),
) {
    let (raw, features) = (&superblock.raw, &superblock.features);
    let (compat, incompat) = (features.compat, features.incompat);
    if !compat.contains(Compat::HAS_JOURNAL) {
        if incompat.contains(Incompat::NEEDS_RECOVERY) {
            let what = format_args!("needs_recovery is set, but has_journal is not");
            error(
                what,
                Some(|raw| clear(&mut raw.feature_incompat, Incompat::NEEDS_RECOVERY.bits())),
            );
        }
        if raw.journal_inum.get() != 0 || raw.journal_dev.get() != 0 || raw.journal_uuid != [0; 16]
        {
            let what = format_args!("the superblock names a journal, but has_journal is not set");
            error(
                what,
                Some(|raw| {
                    (raw.journal_inum, raw.journal_dev) = (0.into(), 0.into());
                    raw.journal_uuid = [0; 16];
                }),
            );
        }
    }
}

/// Checks that the inodes named by the superblock exist, and that quota inodes are named with the
/// feature only.
fn check_named_inodes(superblock: &Superblock, error: &mut dyn FnMut(std::fmt::Arguments<'_>)) {
    let raw = &superblock.raw;
    let has_quota = superblock.features.ro_compat.contains(RoCompat::QUOTA);
    let has_orphan_file = superblock.features.compat.contains(Compat::ORPHAN_FILE);
    for (name, number) in [
        ("user quota", raw.usr_quota_inum.get()),
        ("group quota", raw.grp_quota_inum.get()),
        ("project quota", raw.prj_quota_inum.get()),
    ] {
        if number > superblock.inode_count || (number != 0 && !has_quota) {
            error(format_args!(
                "{name} in inode {number} (feature quota: {has_quota})"
            ));
        }
    }
    let number = raw.orphan_file_inum.get();
    if has_orphan_file && number > superblock.inode_count {
        error(format_args!(
            "orphan file in inode {number} of {}",
            superblock.inode_count
        ));
    }
}

/// Reports harmless facts as warnings.
fn warn(superblock: &Superblock, clock: Clock, report: &mut FindingReporter<'_>) {
    let raw = &superblock.raw;
    let mut warning = |what: std::fmt::Arguments<'_>| {
        report.warning(CheckedStructure::Superblock, FindingLocation::NONE, what)
    };
    let needs_recovery = superblock
        .features
        .incompat
        .contains(Incompat::NEEDS_RECOVERY);
    let is_unclean = raw.state.get() & STATE_VALID == 0 && !needs_recovery;
    if is_unclean {
        warning(format_args!("not unmounted cleanly"));
    }
    let has_errors = raw.state.get() & STATE_ERROR != 0 || raw.error_count.get() != 0;
    if raw.state.get() & STATE_ERROR != 0 || raw.error_count.get() != 0 {
        warning(format_args!(
            "errors were found while mounted ({} counted)",
            raw.error_count
        ));
    }
    if raw.uuid == [0; 16] {
        warning(format_args!("the UUID is zero"));
    }
    if is_unclean || has_errors {
        // The repair itself sets the state.
        report.preen(Fix::Superblock(Box::new(|_| ())));
    }
    let mut warning = |what: std::fmt::Arguments<'_>| {
        report.warning(CheckedStructure::Superblock, FindingLocation::NONE, what)
    };
    let now = clock.now().secs;
    for (name, low, high) in [
        ("mounted", raw.mtime, raw.mtime_hi),
        ("written", raw.wtime, raw.wtime_hi),
        ("checked", raw.lastcheck, raw.lastcheck_hi),
    ] {
        let time = i64::from(high) << 32 | i64::from(low.get());
        if time > now.saturating_add(TIME_SLACK_SECS) {
            warning(format_args!(
                "last {name} in the future ({time} s since 1970)"
            ));
        }
    }
}

/// Returns whether the superblock requests a replay of the journal.
pub(super) fn needs_recovery(superblock: &Superblock) -> bool {
    superblock
        .features
        .incompat
        .contains(Incompat::NEEDS_RECOVERY)
        && superblock.features.compat.contains(Compat::HAS_JOURNAL)
}
