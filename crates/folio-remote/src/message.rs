//! The fields of a FUSE message that a relay reads (linux/fuse.h). `folio_fuse::wire` parses the
//! rest.

pub(crate) use folio_fuse::wire::op;

/// `struct fuse_in_header`, `struct fuse_out_header`.
pub(crate) const REQUEST_HEADER_BYTES: usize = 40;
pub(crate) const REPLY_HEADER_BYTES: usize = folio_fuse::wire::REPLY_HEADER_LEN;

/// Returns the 32-bit number at byte `at`; `None` past the end.
pub(crate) fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

/// Returns the 64-bit number at byte `at`; `None` past the end.
pub(crate) fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_ne_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}
