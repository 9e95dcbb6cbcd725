//! A FUSE message as a relay sees it: bytes with a header (linux/fuse.h). Who answers it knows
//! more: `folio_fuse::wire`.

pub(crate) use folio_fuse::wire::op;

/// `struct fuse_in_header`, `struct fuse_out_header`.
pub(crate) const REQUEST_HEADER_BYTES: usize = 40;
pub(crate) const REPLY_HEADER_BYTES: usize = folio_fuse::wire::REPLY_HEADER_LEN;

/// The number at a byte, if there are bytes enough.
pub(crate) fn number32(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

/// The same, of eight bytes.
pub(crate) fn number64(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_ne_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}
