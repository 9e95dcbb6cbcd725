//! The negotiation: options, one after the other, until the client starts the transmission phase or
//! disconnects.

use super::client::Client;
use super::protocol::{
    ALLOCATION_CONTEXT, ALLOCATION_CONTEXT_ID, ExportFlags, FIXED_NEWSTYLE, NO_ZEROES,
    OPTION_MAGIC, OPTION_REPLY_MAGIC, PAYLOAD_BYTES_MAX, SERVER_MAGIC, info, option, option_reply,
};
use super::reply_queue::ReplyQueue;
use super::request_reader::RequestReader;
use std::io::{self, ErrorKind};

/// Longest option that is parsed, in bytes; names and queries have at most 4096.
const OPTION_BYTES_MAX: u32 = 64 << 10;
/// Longest option that is skipped, in bytes; a client that sends a longer one is disconnected.
const SKIPPED_BYTES_MAX: u32 = 1 << 20;
/// Most options of one client.
const OPTIONS_MAX: usize = 64;
/// Alignment that requests need, and the one that makes them fast.
const BLOCK_BYTES_MIN: u32 = 1;
const BLOCK_BYTES_PREFERRED: u32 = 4096;

/// The result of the negotiation.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct NegotiatedMode {
    /// Replies may be in chunks.
    pub(crate) is_structured: bool,
    /// The client selected `base:allocation`, so it may request extents.
    pub(crate) has_allocation_context: bool,
}

/// The next step after an option.
enum NextStep {
    Option,
    Transmission,
    End,
}

/// Negotiates; `None` if the client aborted.
///
/// # Errors
/// `InvalidData` if the client violates the protocol, `NotFound` for an unknown export name in
/// `NBD_OPT_EXPORT_NAME`, else the host's error.
pub(crate) fn negotiate(
    client: &Client,
    reader: &mut RequestReader,
    replies: &mut ReplyQueue,
) -> io::Result<Option<NegotiatedMode>> {
    replies.push(&SERVER_MAGIC.to_be_bytes());
    replies.push(&OPTION_MAGIC.to_be_bytes());
    replies.push(&(FIXED_NEWSTYLE | NO_ZEROES).to_be_bytes());
    replies.send(client)?;
    let mut flags = [0; 4];
    reader.read_exact(&client.stream, &mut flags)?;
    let flags = u32::from_be_bytes(flags);
    if flags & !u32::from(FIXED_NEWSTYLE | NO_ZEROES) != 0 {
        return Err(ErrorKind::InvalidData.into());
    }
    let mut negotiation = Negotiation {
        client,
        replies,
        mode: NegotiatedMode::default(),
        pads: flags & u32::from(NO_ZEROES) == 0,
    };
    let mut data = Vec::new();
    for _ in 0..OPTIONS_MAX {
        let (option, is_whole) = receive(client, reader, &mut data)?;
        let next = if is_whole {
            negotiation.answer(option, &data)?
        } else {
            negotiation.reply(option, option_reply::TOO_BIG, &[b"the option is too long"]);
            NextStep::Option
        };
        negotiation.replies.send(client)?;
        match next {
            NextStep::Option => {}
            NextStep::Transmission => return Ok(Some(negotiation.mode)),
            NextStep::End => return Ok(None),
        }
    }
    Err(ErrorKind::InvalidData.into())
}

/// Reads an option. Returns its number, and false if its data was too long and skipped.
fn receive(
    client: &Client,
    reader: &mut RequestReader,
    data: &mut Vec<u8>,
) -> io::Result<(u32, bool)> {
    let (mut magic, mut option, mut len_bytes) = ([0; 8], [0; 4], [0; 4]);
    reader.read_exact(&client.stream, &mut magic)?;
    if u64::from_be_bytes(magic) != OPTION_MAGIC {
        return Err(ErrorKind::InvalidData.into());
    }
    reader.read_exact(&client.stream, &mut option)?;
    reader.read_exact(&client.stream, &mut len_bytes)?;
    let (option, len_bytes) = (u32::from_be_bytes(option), u32::from_be_bytes(len_bytes));
    data.clear();
    match len_bytes {
        0..=OPTION_BYTES_MAX => {
            data.resize(len_bytes as usize, 0);
            reader.read_exact(&client.stream, data)?;
            Ok((option, true))
        }
        // NBD_OPT_EXPORT_NAME has no error reply.
        ..=SKIPPED_BYTES_MAX if option != option::EXPORT_NAME => {
            reader.skip(&client.stream, len_bytes.into())?;
            Ok((option, false))
        }
        _ => Err(ErrorKind::InvalidData.into()),
    }
}

struct Negotiation<'a> {
    client: &'a Client,
    replies: &'a mut ReplyQueue,
    mode: NegotiatedMode,
    /// The client wants 124 zeros after the reply to `NBD_OPT_EXPORT_NAME`.
    pads: bool,
}

impl Negotiation<'_> {
    fn answer(&mut self, option: u32, data: &[u8]) -> io::Result<NextStep> {
        match option {
            option::EXPORT_NAME => return self.export_name(data),
            option::ABORT => {
                self.reply(option, option_reply::ACK, &[]);
                return Ok(NextStep::End);
            }
            option::LIST if data.is_empty() => {
                let name = self.client.export().name.as_bytes();
                self.reply(
                    option,
                    option_reply::SERVER,
                    &[&(name.len() as u32).to_be_bytes(), name],
                );
                self.reply(option, option_reply::ACK, &[]);
            }
            option::STRUCTURED_REPLY if data.is_empty() => {
                self.mode.is_structured = true;
                self.reply(option, option_reply::ACK, &[]);
            }
            option::LIST | option::STRUCTURED_REPLY => {
                self.reply(
                    option,
                    option_reply::INVALID,
                    &[b"this option takes no data"],
                );
            }
            option::INFO | option::GO => return Ok(self.info(option, data)),
            option::LIST_META_CONTEXT | option::SET_META_CONTEXT => self.meta_context(option, data),
            option::STARTTLS => self.reply(
                option,
                option_reply::UNSUPPORTED,
                &[b"TLS is not supported"],
            ),
            _ => self.reply(option, option_reply::UNSUPPORTED, &[b"unknown option"]),
        }
        Ok(NextStep::Option)
    }

    /// Answers `NBD_OPT_EXPORT_NAME`, which has no error reply: a wrong name ends the connection.
    fn export_name(&mut self, name: &[u8]) -> io::Result<NextStep> {
        let export = self.client.export();
        if name != export.name.as_bytes() {
            return Err(ErrorKind::NotFound.into());
        }
        self.replies.push(&export.device.len_bytes().to_be_bytes());
        self.replies.push(&self.flags().bits().to_be_bytes());
        if self.pads {
            self.replies.push(&[0; 124]);
        }
        Ok(NextStep::Transmission)
    }

    fn info(&mut self, option: u32, data: &[u8]) -> NextStep {
        let mut fields = Fields(data);
        let (Some(name), Some(count)) = (fields.string(), fields.u16()) else {
            return self.invalid(option);
        };
        let Some(wanted) = fields.rest_of(usize::from(count) * 2) else {
            return self.invalid(option);
        };
        let export = self.client.export();
        if name != export.name.as_bytes() {
            self.reply(option, option_reply::UNKNOWN, &[b"no export of this name"]);
            return NextStep::Option;
        }
        let wants = |kind: u16| wanted.as_chunks::<2>().0.contains(&kind.to_be_bytes());
        let mut reply_info = |kind: u16, parts: &[&[u8]]| {
            let kind = kind.to_be_bytes();
            let parts: Vec<&[u8]> = [&kind[..]]
                .into_iter()
                .chain(parts.iter().copied())
                .collect();
            self.reply(option, option_reply::INFO, &parts);
        };
        if wants(info::NAME) {
            reply_info(info::NAME, &[name]);
        }
        if let Some(description) = export
            .description
            .as_ref()
            .filter(|_| wants(info::DESCRIPTION))
        {
            reply_info(info::DESCRIPTION, &[description.as_bytes()]);
        }
        let sizes =
            [BLOCK_BYTES_MIN, BLOCK_BYTES_PREFERRED, PAYLOAD_BYTES_MAX].map(u32::to_be_bytes);
        reply_info(info::BLOCK_SIZE, &[sizes.as_flattened()]);
        let (size, flags) = (export.device.len_bytes(), self.flags().bits());
        let kind = info::EXPORT.to_be_bytes();
        self.reply(
            option,
            option_reply::INFO,
            &[&kind, &size.to_be_bytes(), &flags.to_be_bytes()],
        );
        self.reply(option, option_reply::ACK, &[]);
        if option == option::GO {
            NextStep::Transmission
        } else {
            NextStep::Option
        }
    }

    fn meta_context(&mut self, option: u32, data: &[u8]) {
        let sets = option == option::SET_META_CONTEXT;
        if sets {
            // A new selection replaces the earlier one, even if it fails.
            self.mode.has_allocation_context = false;
        }
        if !self.mode.is_structured {
            self.reply(
                option,
                option_reply::INVALID,
                &[b"needs structured replies"],
            );
            return;
        }
        let Some((name, is_selected)) = queries(data, sets) else {
            self.invalid(option);
            return;
        };
        if name != self.client.export().name.as_bytes() {
            self.reply(option, option_reply::UNKNOWN, &[b"no export of this name"]);
            return;
        }
        if is_selected {
            self.mode.has_allocation_context |= sets;
            let number = if sets { ALLOCATION_CONTEXT_ID } else { 0 };
            let parts = [&number.to_be_bytes()[..], ALLOCATION_CONTEXT.as_bytes()];
            self.reply(option, option_reply::META_CONTEXT, &parts);
        }
        self.reply(option, option_reply::ACK, &[]);
    }

    fn flags(&self) -> ExportFlags {
        let mut flags = ExportFlags::HAS_FLAGS
            | ExportFlags::FLUSH
            | ExportFlags::FUA
            // All connections share one device, whose flush covers them all.
            | ExportFlags::MULTI_CONN
            | ExportFlags::CACHE;
        flags.set(ExportFlags::DF, self.mode.is_structured);
        flags |= if self.client.export().is_read_only() {
            ExportFlags::READ_ONLY
        } else {
            ExportFlags::TRIM | ExportFlags::WRITE_ZEROES | ExportFlags::FAST_ZERO
        };
        flags
    }

    fn invalid(&mut self, option: u32) -> NextStep {
        self.reply(
            option,
            option_reply::INVALID,
            &[b"the option's data contradicts its lengths"],
        );
        NextStep::Option
    }

    fn reply(&mut self, option: u32, kind: u32, parts: &[&[u8]]) {
        let len_bytes: usize = parts.iter().map(|part| part.len()).sum();
        self.replies.push(&OPTION_REPLY_MAGIC.to_be_bytes());
        self.replies.push(&option.to_be_bytes());
        self.replies.push(&kind.to_be_bytes());
        // Names are 4096 bytes at most.
        self.replies.push(&(len_bytes as u32).to_be_bytes());
        parts.iter().for_each(|part| self.replies.push(part));
    }
}

/// Parses the export's name, and whether a query selects `base:allocation`; `None` if lengths
/// contradict each other.
fn queries(data: &[u8], sets: bool) -> Option<(&[u8], bool)> {
    let mut fields = Fields(data);
    let name = fields.string()?;
    let count = fields.u32()?;
    // NBD_OPT_LIST_META_CONTEXT without a query lists all contexts.
    let mut is_selected = count == 0 && !sets;
    for _ in 0..count {
        // Each query consumes bytes, so the loop ends.
        let query = fields.string()?;
        is_selected |= query == ALLOCATION_CONTEXT.as_bytes() || (!sets && query == b"base:");
    }
    fields.0.is_empty().then_some((name, is_selected))
}

/// The rest of an option's data, parsed from the front.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn bytes(&mut self, count: usize) -> Option<&'a [u8]> {
        let (front, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(front)
    }

    fn u16(&mut self) -> Option<u16> {
        Some(u16::from_be_bytes(self.bytes(2)?.try_into().ok()?))
    }

    fn u32(&mut self) -> Option<u32> {
        Some(u32::from_be_bytes(self.bytes(4)?.try_into().ok()?))
    }

    /// Parses a length and as many bytes.
    fn string(&mut self) -> Option<&'a [u8]> {
        let len = self.u32()?;
        self.bytes(len as usize)
    }

    /// Returns the rest if it has exactly this length.
    fn rest_of(&mut self, count: usize) -> Option<&'a [u8]> {
        (self.0.len() == count).then_some(self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn data(name: &[u8], queries: &[&[u8]]) -> Vec<u8> {
        let string = |text: &[u8]| [&(text.len() as u32).to_be_bytes()[..], text].concat();
        let mut data = string(name);
        data.extend((queries.len() as u32).to_be_bytes());
        queries.iter().for_each(|query| data.extend(string(query)));
        data
    }

    #[test]
    fn queries_with_wrong_lengths_are_refused() {
        assert_eq!(
            queries(&data(b"x", &[b"base:allocation"]), true),
            Some((&b"x"[..], true))
        );
        assert_eq!(
            queries(&data(b"x", &[b"qemu:dirty-bitmap:b", b"base:"]), true),
            Some((&b"x"[..], false))
        );
        assert_eq!(
            queries(&data(b"", &[b"base:"]), false),
            Some((&b""[..], true))
        );
        assert_eq!(queries(&data(b"", &[]), false), Some((&b""[..], true)));
        assert_eq!(queries(&data(b"", &[]), true), Some((&b""[..], false)));
        let whole = data(b"name", &[b"base:allocation"]);
        for cut in 0..whole.len() {
            assert_eq!(queries(&whole[..cut], true), None, "{cut}");
        }
        assert_eq!(queries(&[whole, vec![0]].concat(), true), None);
        assert_eq!(queries(&[0, 0, 0, 0, 255, 255, 255, 255], true), None);
    }
}
