//! Calls that may wait for other processes: advisory locks.

use super::client::Client;
use super::request::Request;
use crate::shared::calls::Call;
use folio::base::{Errno, Result};
use folio::syscall::{FlockOperation, LockKind, LockMode, RecordLock, Whence};

const F_GETLK: u64 = 5;
const F_SETLK: u64 = 6;
const F_SETLKW: u64 = 7;
const F_OFD_GETLK: u64 = 36;
const F_OFD_SETLK: u64 = 37;
const F_OFD_SETLKW: u64 = 38;
/// Size of a `struct flock`: type, whence, start, length, process, with the gaps of 64-bit
/// machines.
const FLOCK_BYTES: usize = 32;

/// Makes a call on locks.
pub(super) fn serve(client: &Client, request: &Request<'_>, output: &mut Vec<u8>) -> Result<i64> {
    let fd = request.fd(0)?;
    if request.call == Call::Flock {
        let operation = FlockOperation::from_bits(request.word(1)).ok_or(Errno::INVAL)?;
        let call = client.process().begin_flock(fd, operation)?;
        return call.finish(request.is_withdrawn).map(|()| 0);
    }
    let lock = decode(request.input)?;
    let (kind, waits) = match request.arguments[1] {
        F_GETLK | F_SETLK => (LockKind::Process, false),
        F_SETLKW => (LockKind::Process, true),
        F_OFD_GETLK | F_OFD_SETLK => (LockKind::OpenFile, false),
        F_OFD_SETLKW => (LockKind::OpenFile, true),
        _ => return Err(Errno::INVAL.into()),
    };
    if matches!(request.arguments[1], F_GETLK | F_OFD_GETLK) {
        let unlocked = RecordLock {
            mode: LockMode::Unlock,
            ..lock
        };
        let found = client.process().fcntl_getlk(fd, kind, &lock)?;
        encode(output, &found.unwrap_or(unlocked));
        return Ok(0);
    }
    let call = client.process().begin_setlk(fd, kind, &lock, waits)?;
    call.finish(request.is_withdrawn)?;
    output.extend_from_slice(request.input);
    Ok(0)
}

fn decode(input: &[u8]) -> Result<RecordLock> {
    let bytes: &[u8; FLOCK_BYTES] = input.try_into().map_err(|_| Errno::INVAL)?;
    let short = |at: usize| i16::from_ne_bytes([bytes[at], bytes[at + 1]]);
    let word = |at: usize| {
        let mut word = [0; 8];
        word.copy_from_slice(&bytes[at..at + 8]);
        i64::from_ne_bytes(word)
    };
    Ok(RecordLock {
        mode: match short(0) {
            0 => LockMode::Read,
            1 => LockMode::Write,
            2 => LockMode::Unlock,
            _ => return Err(Errno::INVAL.into()),
        },
        whence: match short(2) {
            0 => Whence::Set,
            1 => Whence::Current,
            2 => Whence::End,
            _ => return Err(Errno::INVAL.into()),
        },
        start: word(8),
        len: word(16),
        pid: word(24) as i32,
    })
}

fn encode(output: &mut Vec<u8>, lock: &RecordLock) {
    let mode: i16 = match lock.mode {
        LockMode::Read => 0,
        LockMode::Write => 1,
        LockMode::Unlock => 2,
    };
    let whence: i16 = match lock.whence {
        Whence::Current => 1,
        Whence::End => 2,
        _ => 0,
    };
    output.extend_from_slice(&mode.to_ne_bytes());
    output.extend_from_slice(&whence.to_ne_bytes());
    output.extend_from_slice(&[0; 4]);
    output.extend_from_slice(&lock.start.to_ne_bytes());
    output.extend_from_slice(&lock.len.to_ne_bytes());
    output.extend_from_slice(&lock.pid.to_ne_bytes());
    output.extend_from_slice(&[0; 4]);
}
