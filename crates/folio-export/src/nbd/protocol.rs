//! The numbers of the protocol: magic numbers, options, replies, commands, flags, errors.

use bitflags::bitflags;
use folio::Errno;

/// Bytes of a request that are in memory at a time. Longer reads and writes are split into pieces.
pub const PIECE_BYTES: usize = 1 << 20;
/// Longest read or write in bytes, as advertised to clients.
pub const PAYLOAD_BYTES_MAX: u32 = 32 << 20;

/// First bytes that a server sends: "NBDMAGIC".
pub(crate) const SERVER_MAGIC: u64 = 0x4e42_444d_4147_4943;
/// Second number that a server sends, and the first of each option: "IHAVEOPT".
pub(crate) const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;
/// First bytes of each reply to an option.
pub(crate) const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
/// First bytes of each request.
const REQUEST_MAGIC: u32 = 0x2560_9513;
/// First bytes of a simple reply.
pub(crate) const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
/// First bytes of each chunk of a structured reply.
pub(crate) const CHUNK_MAGIC: u32 = 0x668e_33ef;

/// Handshake flags of the server: fixed newstyle, and no padding after the reply to
/// `NBD_OPT_EXPORT_NAME`.
pub(crate) const FIXED_NEWSTYLE: u16 = 1;
pub(crate) const NO_ZEROES: u16 = 2;

/// Options.
pub(crate) mod option {
    pub(crate) const EXPORT_NAME: u32 = 1;
    pub(crate) const ABORT: u32 = 2;
    pub(crate) const LIST: u32 = 3;
    pub(crate) const STARTTLS: u32 = 5;
    pub(crate) const INFO: u32 = 6;
    pub(crate) const GO: u32 = 7;
    pub(crate) const STRUCTURED_REPLY: u32 = 8;
    pub(crate) const LIST_META_CONTEXT: u32 = 9;
    pub(crate) const SET_META_CONTEXT: u32 = 10;
}

/// Kinds of replies to options.
pub(crate) mod option_reply {
    pub(crate) const ACK: u32 = 1;
    pub(crate) const SERVER: u32 = 2;
    pub(crate) const INFO: u32 = 3;
    pub(crate) const META_CONTEXT: u32 = 4;
    const ERROR: u32 = 1 << 31;
    pub(crate) const UNSUPPORTED: u32 = ERROR + 1;
    pub(crate) const INVALID: u32 = ERROR + 3;
    pub(crate) const UNKNOWN: u32 = ERROR + 6;
    pub(crate) const TOO_BIG: u32 = ERROR + 9;
}

/// Kinds of information in replies to INFO and GO.
pub(crate) mod info {
    pub(crate) const EXPORT: u16 = 0;
    pub(crate) const NAME: u16 = 1;
    pub(crate) const DESCRIPTION: u16 = 2;
    pub(crate) const BLOCK_SIZE: u16 = 3;
}

/// The supported metadata context and its id.
pub(crate) const ALLOCATION_CONTEXT: &str = "base:allocation";
pub(crate) const ALLOCATION_CONTEXT_ID: u32 = 1;
/// Bits of an extent's status.
pub(crate) const STATE_HOLE: u32 = 1;
pub(crate) const STATE_ZERO: u32 = 2;

bitflags! {
    /// Transmission flags: the capabilities of an export.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub(crate) struct ExportFlags: u16 {
        const HAS_FLAGS = 1;
        const READ_ONLY = 1 << 1;
        const FLUSH = 1 << 2;
        const FUA = 1 << 3;
        const TRIM = 1 << 5;
        const WRITE_ZEROES = 1 << 6;
        const DF = 1 << 7;
        const MULTI_CONN = 1 << 8;
        const CACHE = 1 << 10;
        const FAST_ZERO = 1 << 11;
    }

    /// Flags of a request.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub(crate) struct CommandFlags: u16 {
        /// Reply after the data is durable.
        const FUA = 1;
        /// Write zeros with allocated space.
        const NO_HOLE = 1 << 1;
        /// Reply to a read in one chunk.
        const DF = 1 << 2;
        /// Reply with one extent.
        const REQ_ONE = 1 << 3;
        /// Fail if zeroing is not faster than writing.
        const FAST_ZERO = 1 << 4;
        // Unknown bits are kept, so that the request is refused.
        const _ = !0;
    }
}

/// Kinds of chunks.
pub(crate) mod chunk {
    pub(crate) const NONE: u16 = 0;
    pub(crate) const OFFSET_DATA: u16 = 1;
    pub(crate) const OFFSET_HOLE: u16 = 2;
    pub(crate) const BLOCK_STATUS: u16 = 5;
    pub(crate) const ERROR: u16 = (1 << 15) + 1;
    /// Flag: the last chunk of its reply.
    pub(crate) const DONE: u16 = 1;
}

/// Error numbers of the protocol, which are Linux's.
pub(crate) mod error {
    pub(crate) const PERM: u32 = 1;
    pub(crate) const IO: u32 = 5;
    pub(crate) const NOMEM: u32 = 12;
    pub(crate) const INVAL: u32 = 22;
    pub(crate) const NOSPC: u32 = 28;
    pub(crate) const NOTSUP: u32 = 95;
}

/// Maps an errno to one of the protocol's few error numbers.
pub(crate) fn error_number(errno: Errno) -> u32 {
    match errno {
        Errno::PERM | Errno::ACCESS | Errno::ROFS => error::PERM,
        Errno::NOMEM => error::NOMEM,
        Errno::INVAL => error::INVAL,
        Errno::NOSPC | Errno::DQUOT | Errno::FBIG => error::NOSPC,
        Errno::OPNOTSUPP => error::NOTSUP,
        _ => error::IO,
    }
}

/// The command of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Command {
    Read,
    Write,
    Disconnect,
    Flush,
    Trim,
    Cache,
    WriteZeroes,
    BlockStatus,
    Unknown,
}

impl Command {
    fn from_number(number: u16) -> Self {
        match number {
            0 => Self::Read,
            1 => Self::Write,
            2 => Self::Disconnect,
            3 => Self::Flush,
            4 => Self::Trim,
            5 => Self::Cache,
            6 => Self::WriteZeroes,
            7 => Self::BlockStatus,
            _ => Self::Unknown,
        }
    }

    /// Returns the valid flags. FUA is valid for all commands: clients set it on reads and flushes
    /// too.
    pub(crate) fn flags(self) -> CommandFlags {
        CommandFlags::FUA
            | match self {
                Self::Read => CommandFlags::DF,
                Self::WriteZeroes => CommandFlags::NO_HOLE | CommandFlags::FAST_ZERO,
                Self::BlockStatus => CommandFlags::REQ_ONE,
                _ => CommandFlags::empty(),
            }
    }

    /// Returns whether the command changes the disk.
    pub(crate) fn is_change(self) -> bool {
        matches!(self, Self::Write | Self::Trim | Self::WriteZeroes)
    }
}

/// Bytes of a request without its payload.
pub(crate) const REQUEST_BYTES: usize = 28;

/// A parsed request. Flags and range are not validated.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Request {
    pub(crate) command: Command,
    pub(crate) flags: CommandFlags,
    /// The client's number of the request, returned in the reply.
    pub(crate) cookie: u64,
    pub(crate) offset: u64,
    pub(crate) len_bytes: u32,
}

impl Request {
    /// Parses a request; `None` if the magic number is wrong.
    pub(crate) fn parse(bytes: &[u8; REQUEST_BYTES]) -> Option<Self> {
        if number(bytes, 0, 4) != u64::from(REQUEST_MAGIC) {
            return None;
        }
        Some(Self {
            flags: CommandFlags::from_bits_retain(number(bytes, 4, 2) as u16),
            command: Command::from_number(number(bytes, 6, 2) as u16),
            cookie: number(bytes, 8, 8),
            offset: number(bytes, 16, 8),
            len_bytes: number(bytes, 24, 4) as u32,
        })
    }

    /// Returns the end of the range; `None` on overflow.
    pub(crate) fn end(&self) -> Option<u64> {
        self.offset.checked_add(u64::from(self.len_bytes))
    }
}

/// Parses a big-endian number of `len` bytes, at most eight.
fn number(bytes: &[u8; REQUEST_BYTES], at: usize, len: usize) -> u64 {
    bytes[at..at + len]
        .iter()
        .fold(0, |number, byte| number << 8 | u64::from(*byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_parses_and_checks_the_magic() {
        let mut bytes = [0; REQUEST_BYTES];
        bytes[..4].copy_from_slice(&REQUEST_MAGIC.to_be_bytes());
        bytes[4..8].copy_from_slice(&[0x80, 0x01, 0x00, 0x06]);
        bytes[8..16].copy_from_slice(b"cookie!!");
        bytes[16..24].copy_from_slice(&(u64::MAX - 1).to_be_bytes());
        bytes[24..].copy_from_slice(&2u32.to_be_bytes());
        let request = Request::parse(&bytes).unwrap();
        assert_eq!(request.command, Command::WriteZeroes);
        assert!(
            request.flags.contains(CommandFlags::FUA)
                && !request.command.flags().contains(request.flags)
        );
        assert_eq!(
            (request.cookie, request.len_bytes),
            (u64::from_be_bytes(*b"cookie!!"), 2)
        );
        assert_eq!(request.end(), None);
        bytes[0] ^= 1;
        assert!(Request::parse(&bytes).is_none());
    }

    #[test]
    fn unmapped_errno_becomes_io_error() {
        assert_eq!(error_number(Errno::ROFS), error::PERM);
        assert_eq!(error_number(Errno::DQUOT), error::NOSPC);
        assert_eq!(error_number(Errno::UCLEAN), error::IO);
    }
}
