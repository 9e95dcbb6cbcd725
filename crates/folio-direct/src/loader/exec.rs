//! execve(2): the loader again, which then maps the program. Whatever can fail is tried before.

use crate::calls::{Call, FOR_PROGRAM};
use crate::client::Slot;
use crate::descriptors::{self, is_image};
use crate::elf::{self, File};
use crate::layout::{DESCRIPTORS_MAX, HANDOFF, Handoff, VERSION};
use crate::memory;
use crate::names::{self, PathArgument};
use crate::paths::{LastLink, MagicLink, PathAt, magic_link, put_number};
use crate::state::{BASE, DESCRIPTORS, HOST_PREFIXES, IS_IN_IMAGE, PREFIX, PROGRAM, UMASK};
use crate::system::{
    self, AT_EACCESS, AT_FDCWD, DUP3, EXECVEAT, Errno, FACCESSAT2, MAP_ANONYMOUS, MAP_PRIVATE,
    MEMFD_CREATE, MUNMAP, NEWFSTATAT, O_CLOEXEC, PROT_READ, PROT_WRITE, Result, WRITE, host, map,
};
use crate::table_lock;
use crate::trap::{Answer, Trap};
use core::sync::atomic::Ordering;

/// The first bytes of a file that decide what it is. Linux: `BINPRM_BUF_SIZE`.
const START_BYTES: usize = 256;
/// Interpreters of interpreters.
const LEVELS_MAX: usize = 5;
/// The buffer with the path of the program that is loaded in the end; those of the levels follow.
const PROGRAM_TEXT: usize = 4;
const FIRST_LEVEL: usize = 5;

/// execve(2).
pub(crate) fn execve(trap: &Trap, slot: Slot) -> Answer {
    let [path, arguments, environment, ..] = trap.arguments;
    let path = PathAt { directory: AT_FDCWD, address: path, last_link: LastLink::Follow };
    execute(slot, path, [arguments, environment], trap.mask).into()
}

/// execveat(2).
pub(crate) fn execveat(trap: &Trap, slot: Slot) -> Answer {
    let [directory, path, arguments, environment, flags, _] = trap.arguments;
    let last_link = if flags as u64 & system::AT_SYMLINK_NOFOLLOW == 0 {
        LastLink::Follow
    } else {
        LastLink::Keep
    };
    let path = PathAt { directory: directory as i32, address: path, last_link };
    execute(slot, path, [arguments, environment], trap.mask).into()
}

/// Arguments that come before those of the program: addresses of texts.
struct Before {
    texts: [usize; 2 * LEVELS_MAX + 1],
    count: usize,
}

impl Before {
    fn push_front(&mut self, text: usize) {
        self.texts.copy_within(..self.count, 1);
        self.texts[0] = text;
        self.count += 1;
    }
}

/// Starts the program of a path with its arguments and environment. Returns only if that fails.
pub(crate) fn execute(
    slot: Slot,
    path: PathAt,
    texts: [usize; 2],
    mask: u64,
) -> Result<u64> {
    let [arguments, environment] = texts;
    let _copy = table_lock::copy(slot);
    let len = program_text(slot, path)?;
    let called_by = slot.buffer(FIRST_LEVEL);
    *called_by = *slot.buffer(PROGRAM_TEXT);
    let called_by = &called_by[..len];
    let mut before = Before { texts: [0; 2 * LEVELS_MAX + 1], count: 0 };
    let mut program_len = len;
    for level in 0..LEVELS_MAX {
        let mut start = [0; START_BYTES];
        let fd = read_start(slot, program_len, &mut start)?;
        if elf::is_program(&start) {
            let program = &slot.buffer(PROGRAM_TEXT)[..program_len];
            let arguments = match with_before(&before, arguments) {
                Ok(arguments) => arguments,
                Err(error) => {
                    close(slot, fd);
                    return Err(error);
                }
            };
            let texts = [arguments.address, environment];
            let failed = start_loader(slot, fd, [program, called_by], texts, mask);
            arguments.unmap();
            return Err(failed);
        }
        close(slot, fd);
        if !start.starts_with(b"#!") {
            return Err(Errno::NOEXEC);
        }
        if level == 0 {
            before.push_front(called_by.as_ptr() as usize);
        }
        program_len = interpreter(slot, level, &start, &mut before)?;
    }
    Err(Errno::LOOP)
}

/// Puts the path of the program into its buffer, so that it is valid for the program that the
/// loader starts as; returns the length.
fn program_text(slot: Slot, path: PathAt) -> Result<usize> {
    let given = slot.buffer(PROGRAM_TEXT);
    let len = memory::read_text(given, path.address, Errno::NAMETOOLONG)?;
    if len == 0 && path.directory == AT_FDCWD {
        return Err(Errno::NOENT);
    }
    let (directory, rest) = match magic_link(&given[..len]) {
        Some((MagicLink::Program, b"")) => {
            let program = PROGRAM.get();
            given[..program.len()].copy_from_slice(program);
            given[program.len()] = 0;
            return Ok(program.len());
        }
        Some((MagicLink::Descriptor(fd), rest)) => (fd, rest),
        _ if len > 0 && (given[0] == b'/' || path.directory == AT_FDCWD) => return Ok(len),
        _ => (path.directory, &given[..len]),
    };
    // Relative to a directory, which may be closed by then.
    let mut whole = [0_u8; 4096];
    let mut end = if is_image(directory) {
        let found = names::path_reply(slot, Call::PathOf, &[directory as u64])?;
        whole[..found.len()].copy_from_slice(found);
        found.len()
    } else {
        let mut name = [0_u8; 32];
        name[..14].copy_from_slice(b"/proc/self/fd/");
        put_number(&mut name[14..], directory as u32);
        host!(system::READLINK, name.as_ptr(), whole.as_mut_ptr(), whole.len() - 1)?
    };
    if !rest.is_empty() {
        if end + 1 + rest.len() >= whole.len() {
            return Err(Errno::NAMETOOLONG);
        }
        whole[end] = b'/';
        whole[end + 1..end + 1 + rest.len()].copy_from_slice(rest);
        end += 1 + rest.len();
    }
    whole[end] = 0;
    *given = whole;
    Ok(end)
}

/// Opens the program, if it is a file that may be executed, and reads its start.
fn read_start(slot: Slot, len: usize, start: &mut [u8; START_BYTES]) -> Result<i32> {
    const X_OK: usize = 1;
    const REGULAR: u32 = 0o100_000;
    let text = slot.buffer(PROGRAM_TEXT);
    let address = text.as_ptr() as usize;
    let directory = AT_FDCWD as isize as usize;
    let path = PathArgument::at(0, 1, LastLink::Follow);
    let mut stat = [0_u32; 36];
    let into = stat.as_mut_ptr() as usize;
    let trap = Trap { number: NEWFSTATAT, arguments: [directory, address, into, 0, 0, 0], mask: 0 };
    finish(&trap, crate::attributes::stat(&trap, slot, path, 2, 0))?;
    if stat[6] & 0o170_000 != REGULAR {
        return Err(Errno::ACCES);
    }
    let arguments = [directory, address, X_OK, AT_EACCESS as usize, 0, 0];
    let trap = Trap { number: FACCESSAT2, arguments, mask: 0 };
    let values = [X_OK as u64, AT_EACCESS];
    finish(&trap, names::simple(&trap, slot, path, Call::Access, &values))?;
    let fd = names::open_text(slot, &text[..len], O_CLOEXEC)?;
    let read = File { slot, fd }.read_at(start, 0);
    if read.is_err() {
        close(slot, fd);
    }
    read.map(|()| fd)
}

/// Makes a call of the runtime's own that was found to be the host's.
fn finish(trap: &Trap, answer: Answer) -> Result<u64> {
    match answer {
        Answer::Done(value) => Ok(value),
        Answer::Failed(error) => Err(error),
        // SAFETY: its pointers are those of the runtime.
        _ => unsafe { system::call(trap.number, trap.arguments) }.map(|value| value as u64),
    }
}

pub(crate) fn close(slot: Slot, fd: i32) {
    if descriptors::remove(fd) {
        let _ = slot.request(Call::Close, &[fd as u64], 0);
    }
    system::close(fd);
}

/// Parses the first line of a script: the interpreter becomes the program, and comes before the
/// arguments with its own argument. Returns the length of its path. Linux: fs/binfmt_script.c.
fn interpreter(
    slot: Slot,
    level: usize,
    start: &[u8; START_BYTES],
    before: &mut Before,
) -> Result<usize> {
    let text = &start[2..];
    let line_end = text.iter().position(|byte| matches!(*byte, b'\n' | 0));
    // Without an end of the line in these bytes, the argument may be cut off, but not the name.
    let mut after_blanks = text.iter().skip_while(|byte| is_blank(byte));
    if line_end.is_none() && !after_blanks.any(is_blank) {
        return Err(Errno::NOEXEC);
    }
    let line = trim_blanks(&text[..line_end.unwrap_or(text.len() - 1)]);
    let name_end = line.iter().position(is_blank).unwrap_or(line.len());
    let (path, argument) = (&line[..name_end], trim_blanks(&line[name_end..]));
    if path.is_empty() {
        // An empty name before a zero byte is the working directory, which cannot be executed.
        let is_text = line_end.is_none_or(|end| text[end] == b'\n');
        return Err(if is_text { Errno::NOEXEC } else { Errno::ACCES });
    }
    let texts = slot.buffer(FIRST_LEVEL + 1 + level);
    texts[..path.len()].copy_from_slice(path);
    texts[path.len()] = 0;
    let second = path.len() + 1;
    texts[second..second + argument.len()].copy_from_slice(argument);
    texts[second + argument.len()] = 0;
    if !argument.is_empty() {
        before.push_front(texts[second..].as_ptr() as usize);
    }
    before.push_front(texts.as_ptr() as usize);
    let program = slot.buffer(PROGRAM_TEXT);
    program[..=path.len()].copy_from_slice(&texts[..=path.len()]);
    Ok(path.len())
}

const fn is_blank(byte: &u8) -> bool {
    matches!(*byte, b' ' | b'\t')
}

/// Drops spaces and tabs at both ends.
fn trim_blanks(text: &[u8]) -> &[u8] {
    let is_kept = |byte: &u8| !is_blank(byte);
    let start = text.iter().position(is_kept).unwrap_or(text.len());
    let end = text.iter().rposition(is_kept).map_or(start, |last| last + 1);
    &text[start..end]
}

/// An array of arguments: the program's own, or a mapping.
struct Arguments {
    address: usize,
    mapped_bytes: usize,
}

impl Arguments {
    fn unmap(&self) {
        if self.mapped_bytes > 0 {
            let _ = host!(MUNMAP, self.address, self.mapped_bytes);
        }
    }
}

/// Makes the array of arguments, whose first one gives way to those before.
fn with_before(before: &Before, arguments: usize) -> Result<Arguments> {
    const ARGUMENTS_MAX: usize = 1 << 24;
    if before.count == 0 {
        return Ok(Arguments { address: arguments, mapped_bytes: 0 });
    }
    let given = |index: usize| match arguments {
        0 => Ok(0),
        _ => memory::read::<usize>(arguments + 8 * index),
    };
    let mut count = 0;
    while given(count)? != 0 {
        count += 1;
        if count > ARGUMENTS_MAX {
            return Err(Errno::TOOBIG);
        }
    }
    let mapped_bytes = 8 * (before.count + count + 1);
    let flags = MAP_PRIVATE | MAP_ANONYMOUS;
    let address = map(0, mapped_bytes, PROT_READ | PROT_WRITE, flags, -1, 0)?;
    let mut place = address;
    for text in &before.texts[..before.count] {
        memory::write(text, place)?;
        place += 8;
    }
    for index in 1..count.max(1) {
        memory::write(&given(index)?, place)?;
        place += 8;
    }
    Ok(Arguments { address, mapped_bytes })
}

/// Hands the process over to the loader, for the program that is open as `fd`. Returns only if that
/// fails.
fn start_loader(
    slot: Slot,
    fd: i32,
    paths: [&[u8]; 2],
    texts: [usize; 2],
    mask: u64,
) -> Errno {
    let [arguments, environment] = texts;
    let executed = if is_image(fd) { fd } else { -1 };
    let prepared = slot.request(Call::Prepare, &[FOR_PROGRAM, executed as u64], 0);
    close(slot, fd);
    let token = match prepared {
        Ok(token) => token,
        Err(error) => return error,
    };
    let base = BASE.load(Ordering::Relaxed);
    let started = write_handoff(token, paths, mask).and_then(|()| {
        const AT_EMPTY_PATH: usize = 0x1000;
        let empty = c"".as_ptr();
        host!(EXECVEAT, base, empty, arguments, environment, AT_EMPTY_PATH)
    });
    system::close(base + HANDOFF);
    let _ = slot.request(Call::Forget, &[token], 0);
    started.err().unwrap_or(Errno::NOEXEC)
}

/// Writes what the next program needs to a file of memory, which it inherits.
fn write_handoff(token: u64, paths: [&[u8]; 2], mask: u64) -> Result<()> {
    let mut handoff = Handoff {
        version: VERSION,
        is_in_image: u32::from(IS_IN_IMAGE.load(Ordering::Relaxed)),
        has_filter: 1,
        umask: UMASK.load(Ordering::Relaxed),
        token,
        mask,
        descriptors: [0; DESCRIPTORS_MAX / 64],
    };
    for (place, word) in handoff.descriptors.iter_mut().zip(&DESCRIPTORS) {
        *place = word.load(Ordering::Acquire);
    }
    let fd = host!(MEMFD_CREATE, c"folio: start".as_ptr(), 0)? as i32;
    let put = |address: usize, len: usize| host!(WRITE, fd, address, len);
    let fill = || {
        put((&raw const handoff) as usize, size_of::<Handoff>())?;
        for text in [PREFIX.get(), HOST_PREFIXES.get(), paths[0], paths[1]] {
            put(text.as_ptr() as usize, text.len())?;
            put(c"".as_ptr() as usize, 1)?;
        }
        host!(DUP3, fd, BASE.load(Ordering::Relaxed) + HANDOFF, 0).map(drop)
    };
    let filled = fill();
    system::close(fd);
    filled
}

