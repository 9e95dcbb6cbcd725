//! A larger disk in the same file: more entries of the L1 table, and the header that says so.

use super::super::image_file::ImageFile;
use super::autoclear::Autoclear;
use super::header::{Header, L1_BYTES_MAX, SIZE_FIELD, l1_entries, read_raw};
use crate::base::{Errno, Error, Result};
use std::io::IoSlice;

/// Makes the disk in `file`, which no device has open, `len_bytes` long; the new part reads as zeros.
///
/// The L1 table stays where it is: with clusters of 64 KiB the one it starts with serves 4 TiB. EOPNOTSUPP if it
/// would have to move, and for internal snapshots, whose own sizes would have to be looked after.
pub(in crate::block) fn grow(file: &dyn ImageFile, len_bytes: u64) -> Result<()> {
    let header = Header::read(file)?;
    header.check_writable()?;
    let raw = read_raw(file)?;
    if len_bytes < header.len_bytes {
        return Err(Error::new(Errno::INVAL, "the image is larger already"));
    }
    let refuse = |what: &'static str| Err(Error::unsupported(format!("{what}; `qemu-img resize` can do it")));
    if raw.snapshots.get() != 0 {
        return refuse("a larger disk with internal snapshots");
    }
    if header.data_file.is_some() {
        return refuse("a larger disk with an external data file");
    }
    let (old, new) = (u64::from(raw.l1_entries.get()), l1_entries(len_bytes, header.l2_covers_bits()));
    let room = (old * 8).next_multiple_of(1 << header.cluster_bits) / 8;
    if new > room || new * 8 > L1_BYTES_MAX {
        return refuse("a larger disk needs a larger L1 table");
    }
    if new > old {
        // At most a cluster.
        let zeros = vec![0; (new - old) as usize * 8];
        file.write(&[IoSlice::new(&zeros)], header.l1_offset + old * 8)?;
    }
    file.sync_data()?;
    Autoclear::new(&header).tell(file)?;
    let mut fields = [0; 16];
    fields[..8].copy_from_slice(&len_bytes.to_be_bytes());
    fields[8..12].copy_from_slice(&raw.crypt_method.get().to_be_bytes());
    // No more than were checked against the limit, or than there were.
    fields[12..].copy_from_slice(&(new.max(old) as u32).to_be_bytes());
    file.write(&[IoSlice::new(&fields)], SIZE_FIELD)?;
    file.sync_data()
}
