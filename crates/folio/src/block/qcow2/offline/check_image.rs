//! A check with all repairs: the snapshot table's limits, then tables and refcounts, then the
//! entries of the snapshot table, whose repair depends on them.

use super::snapshots::complete_entries;
use crate::base::Result;
use crate::block::file::ImageFile;
use crate::block::qcow2::check::{self, Finding, ImageCheck, Repair};
use crate::block::qcow2::layout::features::DIRTY;
use crate::block::qcow2::layout::raw_header::{
    CLUSTER_BITS, INCOMPATIBLE_FIELD, SNAPSHOTS_FIELD, read_raw,
};
use crate::block::qcow2::layout::roots::Roots;
use crate::block::qcow2::layout::snapshot_table;
use std::io::IoSlice;

/// Checks the image in `file`, which no device has open, and makes the repairs that `repair`
/// selects. After a repair the image is checked again, so the result holds the errors that remain.
///
/// # Errors
///
/// EUCLEAN for a corrupt header or snapshot table, EOPNOTSUPP for unknown features, EFBIG for more
/// clusters than can be counted.
pub(crate) fn check_image(
    file: &dyn ImageFile,
    repair: Repair,
    report: &mut dyn FnMut(&Finding),
) -> Result<ImageCheck> {
    let discarded = match repair {
        Repair::All => discard_excess(file, report)?,
        Repair::Nothing | Repair::Leaks => 0,
    };
    let mut found = check::check_tables(file, repair, report)?;
    found.corruptions_fixed += discarded;
    if repair == Repair::All && found.corruptions + found.check_errors == 0 {
        let completed = complete_entries(file, report)?;
        if completed > 0 {
            found = ImageCheck {
                leaks_fixed: found.leaks_fixed,
                corruptions_fixed: found.corruptions_fixed + completed,
                ..check::check_tables(file, Repair::Nothing, &mut |_| {})?
            };
        }
    }
    found.corruptions += check::check_entries(&Roots::read(file)?, report);
    Ok(found)
}

/// Writes a snapshot table within QEMU's limits behind the end of the file, and makes the header
/// point to it; returns the number of parts that were left out. The check that follows corrects the
/// refcounts of both tables.
pub(crate) fn discard_excess(
    file: &dyn ImageFile,
    report: &mut dyn FnMut(&Finding),
) -> Result<u64> {
    let raw = read_raw(file)?;
    let cluster_bits = raw.cluster_bits.get();
    if !CLUSTER_BITS.contains(&cluster_bits) {
        // The check itself reports it.
        return Ok(0);
    }
    let at = raw.snapshots_offset.get();
    let (entries, omitted) = snapshot_table::read_within_limits(file, at, raw.snapshots.get())?;
    if omitted.is_empty() {
        return Ok(0);
    }
    let mut table = snapshot_table::encode(&entries)?;
    table.resize(table.len().next_multiple_of(1 << cluster_bits), 0);
    let table_at = file.len_bytes()?.next_multiple_of(1 << cluster_bits);
    file.write(&[IoSlice::new(&table)], table_at)?;
    if raw.version.get() >= 3 {
        // Until the check that follows, the table's refcounts are too low. Version 2 cannot state
        // that.
        let features = (raw.incompatible.get() | DIRTY).to_be_bytes();
        file.write(&[IoSlice::new(&features)], INCOMPATIBLE_FIELD)?;
    }
    // The table and the bit are durable before the header names the table.
    file.sync_data()?;
    let mut fields = [0; 12];
    // At most 65536.
    fields[..4].copy_from_slice(&(entries.len() as u32).to_be_bytes());
    fields[4..].copy_from_slice(&table_at.to_be_bytes());
    file.write(&[IoSlice::new(&fields)], SNAPSHOTS_FIELD)?;
    file.sync_data()?;
    let count = omitted.len() as u64;
    for what in omitted {
        report(&Finding::Discarded(what));
    }
    Ok(count)
}
