//! The negotiation: options, one after the other, until the client enters the transmission or goes.

use crate::PAYLOAD_BYTES_MAX;
use crate::connection::Client;
use crate::input::Input;
use crate::outbox::Outbox;
use crate::protocol::{
    ALLOCATION_CONTEXT, ALLOCATION_CONTEXT_ID, ExportFlags, FIXED_NEWSTYLE, NO_ZEROES,
    OPTION_MAGIC, OPTION_REPLY_MAGIC, SERVER_MAGIC, info, option, option_reply,
};
use std::io::{self, ErrorKind};

/// Longest option that is understood; names and queries are 4096 bytes at most.
const OPTION_BYTES_MAX: u32 = 64 << 10;
/// Longest option that is left out; a client that sends more wants something else.
const SKIPPED_BYTES_MAX: u32 = 1 << 20;
/// Most options of one client.
const OPTIONS_MAX: usize = 64;
/// Alignment that requests need, and that makes them fast.
const BLOCK_BYTES_MIN: u32 = 1;
const BLOCK_BYTES_PREFERRED: u32 = 4096;

/// What both sides agreed upon.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Mode {
    /// Replies may be in chunks.
    pub(crate) is_structured: bool,
    /// The client may ask for extents.
    pub(crate) has_allocation: bool,
}

/// What an option leads to.
enum Next {
    Option,
    Transmission,
    End,
}

/// Negotiates; `None` if the client went without using the export.
pub(crate) fn negotiate(
    client: &Client,
    input: &mut Input,
    outbox: &mut Outbox,
) -> io::Result<Option<Mode>> {
    outbox.push(&SERVER_MAGIC.to_be_bytes());
    outbox.push(&OPTION_MAGIC.to_be_bytes());
    outbox.push(&(FIXED_NEWSTYLE | NO_ZEROES).to_be_bytes());
    outbox.send(client)?;
    let mut flags = [0; 4];
    input.read_exact(&client.stream, &mut flags)?;
    let flags = u32::from_be_bytes(flags);
    if flags & !u32::from(FIXED_NEWSTYLE | NO_ZEROES) != 0 {
        return Err(ErrorKind::InvalidData.into());
    }
    let mut this = Negotiation {
        client,
        outbox,
        mode: Mode::default(),
        pads: flags & u32::from(NO_ZEROES) == 0,
    };
    let mut data = Vec::new();
    for _ in 0..OPTIONS_MAX {
        let (option, is_whole) = receive(client, input, &mut data)?;
        let next = if is_whole {
            this.answer(option, &data)?
        } else {
            this.reply(option, option_reply::TOO_BIG, &[b"the option is too long"]);
            Next::Option
        };
        this.outbox.send(client)?;
        match next {
            Next::Option => {}
            Next::Transmission => return Ok(Some(this.mode)),
            Next::End => return Ok(None),
        }
    }
    Err(ErrorKind::InvalidData.into())
}

/// Reads an option and its data; whether it is short enough to be understood.
fn receive(client: &Client, input: &mut Input, data: &mut Vec<u8>) -> io::Result<(u32, bool)> {
    let (mut magic, mut option, mut len_bytes) = ([0; 8], [0; 4], [0; 4]);
    input.read_exact(&client.stream, &mut magic)?;
    if u64::from_be_bytes(magic) != OPTION_MAGIC {
        return Err(ErrorKind::InvalidData.into());
    }
    input.read_exact(&client.stream, &mut option)?;
    input.read_exact(&client.stream, &mut len_bytes)?;
    let (option, len_bytes) = (u32::from_be_bytes(option), u32::from_be_bytes(len_bytes));
    data.clear();
    match len_bytes {
        0..=OPTION_BYTES_MAX => {
            data.resize(len_bytes as usize, 0);
            input.read_exact(&client.stream, data)?;
            Ok((option, true))
        }
        // There is no way to refuse this one in words.
        ..=SKIPPED_BYTES_MAX if option != option::EXPORT_NAME => {
            input.skip(&client.stream, len_bytes.into())?;
            Ok((option, false))
        }
        _ => Err(ErrorKind::InvalidData.into()),
    }
}

struct Negotiation<'a> {
    client: &'a Client,
    outbox: &'a mut Outbox,
    mode: Mode,
    /// The client wants 124 zeros after the old way to choose an export.
    pads: bool,
}

impl Negotiation<'_> {
    fn answer(&mut self, option: u32, data: &[u8]) -> io::Result<Next> {
        match option {
            option::EXPORT_NAME => return self.export_name(data),
            option::ABORT => {
                self.reply(option, option_reply::ACK, &[]);
                return Ok(Next::End);
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
                self.reply(option, option_reply::INVALID, &[b"this option has no data"]);
            }
            option::INFO | option::GO => return Ok(self.info(option, data)),
            option::LIST_META_CONTEXT | option::SET_META_CONTEXT => self.meta_context(option, data),
            option::STARTTLS => self.reply(option, option_reply::UNSUPPORTED, &[b"no TLS here"]),
            _ => self.reply(option, option_reply::UNSUPPORTED, &[b"unknown option"]),
        }
        Ok(Next::Option)
    }

    /// The old way: no words for a refusal but the end.
    fn export_name(&mut self, name: &[u8]) -> io::Result<Next> {
        let export = self.client.export();
        if name != export.name.as_bytes() {
            return Err(ErrorKind::NotFound.into());
        }
        self.outbox.push(&export.device.len_bytes().to_be_bytes());
        self.outbox.push(&self.flags().bits().to_be_bytes());
        if self.pads {
            self.outbox.push(&[0; 124]);
        }
        Ok(Next::Transmission)
    }

    fn info(&mut self, option: u32, data: &[u8]) -> Next {
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
            return Next::Option;
        }
        let wants = |kind: u16| wanted.as_chunks::<2>().0.contains(&kind.to_be_bytes());
        let mut tell = |kind: u16, parts: &[&[u8]]| {
            let kind = kind.to_be_bytes();
            let parts: Vec<&[u8]> = [&kind[..]]
                .into_iter()
                .chain(parts.iter().copied())
                .collect();
            self.reply(option, option_reply::INFO, &parts);
        };
        if wants(info::NAME) {
            tell(info::NAME, &[name]);
        }
        if let Some(description) = export
            .description
            .as_ref()
            .filter(|_| wants(info::DESCRIPTION))
        {
            tell(info::DESCRIPTION, &[description.as_bytes()]);
        }
        let sizes =
            [BLOCK_BYTES_MIN, BLOCK_BYTES_PREFERRED, PAYLOAD_BYTES_MAX].map(u32::to_be_bytes);
        tell(info::BLOCK_SIZE, &[sizes.as_flattened()]);
        let (size, flags) = (export.device.len_bytes(), self.flags().bits());
        let kind = info::EXPORT.to_be_bytes();
        self.reply(
            option,
            option_reply::INFO,
            &[&kind, &size.to_be_bytes(), &flags.to_be_bytes()],
        );
        self.reply(option, option_reply::ACK, &[]);
        if option == option::GO {
            Next::Transmission
        } else {
            Next::Option
        }
    }

    fn meta_context(&mut self, option: u32, data: &[u8]) {
        let sets = option == option::SET_META_CONTEXT;
        if sets {
            self.mode.has_allocation = false;
        }
        if !self.mode.is_structured {
            self.reply(
                option,
                option_reply::INVALID,
                &[b"needs structured replies"],
            );
            return;
        }
        let Some((name, is_asked)) = queries(data, sets) else {
            self.invalid(option);
            return;
        };
        if name != self.client.export().name.as_bytes() {
            self.reply(option, option_reply::UNKNOWN, &[b"no export of this name"]);
            return;
        }
        if is_asked {
            self.mode.has_allocation |= sets;
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
            // Every connection works on the same device, whose flush covers them all.
            | ExportFlags::MULTI_CONN
            | ExportFlags::CACHE;
        flags.set(ExportFlags::DF, self.mode.is_structured);
        flags |= match self.client.export().is_read_only() {
            true => ExportFlags::READ_ONLY,
            false => ExportFlags::TRIM | ExportFlags::WRITE_ZEROES | ExportFlags::FAST_ZERO,
        };
        flags
    }

    fn invalid(&mut self, option: u32) -> Next {
        self.reply(
            option,
            option_reply::INVALID,
            &[b"the option's data contradict their lengths"],
        );
        Next::Option
    }

    fn reply(&mut self, option: u32, kind: u32, parts: &[&[u8]]) {
        let len_bytes: usize = parts.iter().map(|part| part.len()).sum();
        self.outbox.push(&OPTION_REPLY_MAGIC.to_be_bytes());
        self.outbox.push(&option.to_be_bytes());
        self.outbox.push(&kind.to_be_bytes());
        // Names are 4096 bytes at most.
        self.outbox.push(&(len_bytes as u32).to_be_bytes());
        parts.iter().for_each(|part| self.outbox.push(part));
    }
}

/// The export's name, and whether the queries ask for allocation; `None` if lengths contradict each
/// other.
fn queries(data: &[u8], sets: bool) -> Option<(&[u8], bool)> {
    let mut fields = Fields(data);
    let name = fields.string()?;
    let count = fields.u32()?;
    // A list without a query is a list of all.
    let mut is_asked = count == 0 && !sets;
    for _ in 0..count {
        // Each takes bytes, so this ends.
        let query = fields.string()?;
        is_asked |= query == ALLOCATION_CONTEXT.as_bytes() || (!sets && query == b"base:");
    }
    fields.0.is_empty().then_some((name, is_asked))
}

/// Takes bytes from the front.
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

    /// A length and as many bytes.
    fn string(&mut self) -> Option<&'a [u8]> {
        let len = self.u32()?;
        self.bytes(len as usize)
    }

    /// All that is left, if it has this length.
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
    fn queries_are_understood_or_refused() {
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
