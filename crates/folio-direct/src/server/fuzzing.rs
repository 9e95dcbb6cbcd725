//! The fuzz target's entry: requests of a client that may be anything. Not public API.

use super::arena::{Arena, Slot};
use super::client::Client;
use super::dispatch;
use super::registry::{ProcessState, Purpose, Registry};
use crate::shared::calls::Call;
use crate::shared::layout::{ARENA_BYTES, DATA_BYTES};
use folio::syscall::Credentials;
use folio::vfs::HostNames;
use folio::{Kernel, KernelOptions};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;

/// Bytes of a request before its input: the call, what is wrong with the size of the input, six
/// arguments of two bytes, and the number of input bytes.
const HEAD_BYTES: usize = 1 + 1 + 12 + 1;

/// Serves the requests that `data` describes, one after another.
pub fn requests(data: &[u8]) {
    let registry = Arc::new(Registry::default());
    // Without memory for an arena there is nothing to test.
    if let Ok(Some(client)) = client(&registry) {
        let (mut rest, mut input, mut output) = (data, Vec::new(), Vec::new());
        while let (Some(slot), Some(after)) = (client.arena.slot(0), write(&client, rest)) {
            rest = after;
            let Some(header) = slot.take(&mut input) else {
                continue;
            };
            let result = dispatch::serve(&client, &header, &input, &|| true, &mut output);
            assert!(output.len() <= DATA_BYTES, "the reply does not fit");
            assert!(result > -4096, "the result {result} is out of range");
            slot.reply(result, &output);
        }
    }
    registry.nodes.remove();
}

/// Returns a client of its own server, with the host's names outside of its only directory.
fn client(registry: &Arc<Registry>) -> io::Result<Option<Client>> {
    let kernel = Kernel::new(KernelOptions::default());
    let process = kernel.process(Credentials::root());
    let prepared = process.mkdir("/image", 0o755);
    prepared.and_then(|()| kernel.set_host_names("/", HostNames::Rest))?;
    let state = ProcessState::new(process, None);
    let token = registry.prepare(0, state, Purpose::Child, None)?;
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = memfd_create("arena", flags)?;
    ftruncate(&file, ARENA_BYTES as u64)?;
    fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW)?;
    let arena = Arena::map(file.as_fd())?;
    let attached = token.and_then(|token| registry.attach(token, None));
    Ok(attached.map(|(registration, process)| Client::new(registration, arena, process)))
}

/// Writes the first request of `data` into the slot; returns the remaining data.
fn write<'a>(client: &Client, data: &'a [u8]) -> Option<&'a [u8]> {
    let slot: Slot<'_> = client.arena.slot(0)?;
    let (head, rest) = data.split_first_chunk::<HEAD_BYTES>()?;
    let [call, wrong, .., len] = *head;
    let (input, rest) = rest.split_at_checked(usize::from(len))?;
    let mut arguments = [0; 6];
    for (index, bytes) in head[2..14].as_chunks::<2>().0.iter().enumerate() {
        // Small numbers of either sign, or ones near the limits.
        let number = i64::from(i16::from_le_bytes(*bytes)) as u64;
        let is_large = wrong & 1 << index != 0;
        arguments[index] = if is_large {
            number.rotate_right(16)
        } else {
            number
        };
    }
    let len_bytes = match wrong >> 6 {
        0..=2 => input.len() as u32,
        _ => u32::from(len) << 12,
    };
    // Memory without end needs no test here.
    let is_allocation = u32::from(call) == Call::Allocate as u32;
    let call = if is_allocation {
        u32::MAX
    } else {
        u32::from(call)
    };
    slot.send(call, &arguments, input, len_bytes);
    Some(rest)
}

#[cfg(test)]
#[path = "../../../../tests/fuzz_corpus/replay.rs"]
mod replay;

#[cfg(test)]
#[test]
fn direct_requests_do_not_panic() {
    replay::run("direct_requests", requests);
}
