//! Calls of the host that a program with an image cannot have in full.

use crate::calls::{Call, ELSEWHERE};
use crate::client::Slot;
use crate::descriptors::{is_image, is_reserved};
use crate::layout::RESERVED;
use crate::memory;
use crate::names::{self, Named, PathArgument};
use crate::paths::{self, LastLink, PathAt, Target};
use crate::state::BASE;
use crate::system::{
    self, PRLIMIT64, SENDMMSG, SENDMSG, SENDTO, SETRLIMIT, pid,
    AT_FDCWD, AT_SYMLINK_NOFOLLOW, BIND, CHROOT, CLONE3, CONNECT, Errno, FANOTIFY_MARK, FILE_GETATTR, FILE_SETATTR,
    GETDENTS, GETXATTRAT, INOTIFY_ADD_WATCH, IO_SETUP, IO_URING_SETUP, LISTXATTRAT,
    NAME_TO_HANDLE_AT, PRCTL, REMOVEXATTRAT, Result, SECCOMP, SENDFILE, SETXATTRAT,
    VMSPLICE, host,
};
use crate::trap::{Answer, PASSED, Passed, Trap};
use core::sync::atomic::Ordering;

/// A call that moves data between two descriptors: programs read and write instead.
pub(crate) fn splice(trap: &Trap) -> Answer {
    let a = trap.arguments;
    let other = match trap.number {
        SENDFILE => a[1],
        VMSPLICE => a[0],
        // splice(2) and tee(2) differ in the place of the second.
        crate::system::TEE => a[1],
        _ => a[2],
    };
    let is_any_image = is_image(a[0] as i32) || is_image(other as i32);
    if is_any_image { Answer::Failed(Errno::INVAL) } else { Answer::Pass }
}

/// A call that is refused, or that the host makes only for its own files.
pub(crate) fn limited(trap: &Trap, slot: Slot) -> Answer {
    let a = trap.arguments;
    match trap.number {
        // Programs have older calls for all of these; rings would reach the placeholders.
        CLONE3 | IO_URING_SETUP | IO_SETUP | SETXATTRAT | GETXATTRAT | LISTXATTRAT
        | REMOVEXATTRAT | FILE_GETATTR | FILE_SETATTR => Answer::Failed(Errno::NOSYS),
        GETDENTS if is_image(a[0] as i32) => Answer::Failed(Errno::NOSYS),
        // A second filter would see the runtime's own calls.
        SECCOMP => Answer::Failed(Errno::INVAL),
        PRCTL => prctl(a),
        SETRLIMIT => limit(trap, 0, 1),
        PRLIMIT64 if matches!(a[0] as u32, 0) || a[0] as u32 == pid() => limit(trap, 1, 2),
        CHROOT => unless_image(trap, slot, PathArgument::new(0, LastLink::Follow), Errno::PERM),
        INOTIFY_ADD_WATCH => {
            unless_image(trap, slot, PathArgument::new(1, LastLink::Follow), Errno::NOSYS)
        }
        FANOTIFY_MARK => {
            unless_image(trap, slot, PathArgument::at(3, 4, LastLink::Follow), Errno::NOSYS)
        }
        NAME_TO_HANDLE_AT => {
            unless_image(trap, slot, PathArgument::at(0, 1, LastLink::Keep), Errno::OPNOTSUPP)
        }
        CONNECT | BIND => with_address(trap, slot, 1).unwrap_or_else(Answer::Failed),
        SENDTO => with_address(trap, slot, 4).unwrap_or_else(Answer::Failed),
        SENDMSG => send_message(trap, slot).unwrap_or_else(Answer::Failed),
        SENDMMSG => send_messages(trap, slot).unwrap_or_else(Answer::Failed),
        _ => Answer::Pass,
    }
}

/// Words of `struct msghdr`: the name and its length, parts and their count, control data and its
/// length, flags.
const MESSAGE_WORDS: usize = 7;
/// The place of a message with another name in the buffer of its address.
const MESSAGE: usize = 128;

/// sendmsg(2): see [`check_rights`]; a name in the image becomes one of the host.
fn send_message(trap: &Trap, slot: Slot) -> Result<Answer> {
    let mut arguments = trap.arguments;
    // The host fails with EFAULT.
    let Ok(mut message) = memory::read::<[usize; MESSAGE_WORDS]>(arguments[1]) else {
        return Ok(Answer::Pass);
    };
    check_rights(&message)?;
    let Some([address, len]) = socket_address(trap, slot, [message[0], message[1]])? else {
        return Ok(Answer::Pass);
    };
    [message[0], message[1]] = [address, len];
    let copy = &mut slot.buffer(PASSED)[MESSAGE..];
    for (place, word) in copy.chunks_exact_mut(size_of::<usize>()).zip(message) {
        place.copy_from_slice(&word.to_ne_bytes());
    }
    arguments[1] = copy.as_ptr() as usize;
    Ok(Answer::PassWith(Passed { arguments, pointer: Some(MESSAGE) }))
}

/// sendmmsg(2): refused with EINVAL if a name is in the image, as the host's results belong to the
/// program's own array.
fn send_messages(trap: &Trap, slot: Slot) -> Result<Answer> {
    const STRIDE: usize = size_of::<[usize; MESSAGE_WORDS + 1]>();
    const COUNT_MAX: usize = 1024;
    let [_, array, count, ..] = trap.arguments;
    for index in 0..(count as u32 as usize).min(COUNT_MAX) {
        let message = array.wrapping_add(index * STRIDE);
        let Ok(message) = memory::read::<[usize; MESSAGE_WORDS]>(message) else {
            return Ok(Answer::Pass);
        };
        check_rights(&message)?;
        if socket_address(trap, slot, [message[0], message[1]])?.is_some() {
            return Err(Errno::INVAL);
        }
    }
    Ok(Answer::Pass)
}

/// Refuses a message with a descriptor of the image, as its receiver would have the placeholder, or
/// with one of the runtime.
fn check_rights(message: &[usize; MESSAGE_WORDS]) -> Result<()> {
    const SOL_SOCKET: u32 = 1;
    const SCM_RIGHTS: u32 = 1;
    const HEADER_BYTES: usize = 16;
    let [.., control, len, _] = *message;
    let mut at = 0;
    while control != 0 && at + HEADER_BYTES <= len.min(1 << 16) {
        let Ok([size, level, kind]) = memory::read::<[u64; 2]>(control + at)
            .map(|[size, rest]| [size, rest & 0xffff_ffff, rest >> 32])
        else {
            return Ok(());
        };
        let size = size as usize;
        if size < HEADER_BYTES || size > len - at {
            return Ok(());
        }
        if [level as u32, kind as u32] == [SOL_SOCKET, SCM_RIGHTS] {
            for place in (at + HEADER_BYTES..at + size).step_by(4) {
                match memory::read::<u32>(control + place) {
                    Ok(fd) if is_image(fd as i32) => return Err(Errno::INVAL),
                    Ok(fd) if is_reserved(fd as i32) => return Err(Errno::BADF),
                    _ => {}
                }
            }
        }
        at += size.next_multiple_of(8);
    }
    Ok(())
}

/// setrlimit(2) and prlimit(2): the limit of open files is not below the descriptors of the
/// runtime, which children need.
fn limit(trap: &Trap, resource: usize, new: usize) -> Answer {
    const NOFILE: usize = 7;
    let mut arguments = trap.arguments;
    if arguments[resource] != NOFILE || arguments[new] == 0 {
        return Answer::Pass;
    }
    let mut limits: [u64; 2] = match memory::read(arguments[new]) {
        Ok(limits) => limits,
        Err(error) => return Answer::Failed(error),
    };
    let least = (BASE.load(Ordering::Relaxed) + RESERVED) as u64;
    limits = limits.map(|limit| limit.max(least));
    arguments[new] = limits.as_ptr() as usize;
    // SAFETY: the program's own call, with limits of this function.
    unsafe { system::call(trap.number, arguments) }.into()
}

fn prctl(a: [usize; 6]) -> Answer {
    const PR_SET_SECCOMP: usize = 22;
    // The runtime reads the time stamp counter.
    const PR_SET_TSC: usize = 26;
    if matches!(a[0], PR_SET_SECCOMP | PR_SET_TSC) { Answer::Failed(Errno::INVAL) } else { Answer::Pass }
}

/// Lets the host make a call on a path of its own, and refuses it for one of the image.
fn unless_image(trap: &Trap, slot: Slot, path: PathArgument, refusal: Errno) -> Answer {
    let directory = path.directory.map_or(AT_FDCWD, |index| trap.arguments[index] as i32);
    let address = trap.arguments[path.address];
    if address == 0 {
        return if is_image(directory) { Answer::Failed(refusal) } else { Answer::Pass };
    }
    match paths::resolve(slot, 0, PathAt { directory, address, last_link: path.last_link }) {
        Ok(Target::Image { .. } | Target::Descriptor(_)) => Answer::Failed(refusal),
        Ok(_) => Answer::Pass,
        Err(error) => Answer::Failed(error),
    }
}

/// `struct sockaddr_un`: the family, then the path.
const FAMILY_BYTES: usize = 2;
const PATH_BYTES: usize = 108;
/// The number of no call: the host fails with ENOSYS where a path leads to it.
const NO_CALL: usize = usize::MAX;

/// connect(2), bind(2) and sendto(2): the arguments from `index` on are an address and its length.
fn with_address(trap: &Trap, slot: Slot, index: usize) -> Result<Answer> {
    let mut arguments = trap.arguments;
    let given = [arguments[index], arguments[index + 1]];
    Ok(match socket_address(trap, slot, given)? {
        Some([address, len]) => {
            [arguments[index], arguments[index + 1]] = [address, len];
            Answer::PassWith(arguments.into())
        }
        None => Answer::Pass,
    })
}

/// Returns the address on the host, and its length, of a socket whose name is in the image: it is
/// in a private folder. `None` for the address that the program gave.
fn socket_address(trap: &Trap, slot: Slot, given: [usize; 2]) -> Result<Option<[usize; 2]>> {
    const AF_UNIX: [u8; 2] = [1, 0];
    let [address, len] = [given[0], given[1] as u32 as usize];
    let is_unix = len > FAMILY_BYTES && memory::read::<[u8; 2]>(address) == Ok(AF_UNIX);
    if address == 0 || !is_unix {
        return Ok(None);
    }
    let buffer = slot.buffer(3);
    let len = (len - FAMILY_BYTES).min(PATH_BYTES);
    memory::read_into(buffer.as_mut_ptr(), len, address + FAMILY_BYTES)?;
    // A name that begins with a zero byte is none of the file system.
    if buffer[0] == 0 {
        return Ok(None);
    }
    buffer[len] = 0;
    let mut arguments = [0; 6];
    arguments[0] = buffer.as_ptr() as usize;
    let copied = Trap { number: NO_CALL, arguments, mask: trap.mask };
    let is_bind = trap.number == BIND;
    let last_link = if is_bind { LastLink::Keep } else { LastLink::Follow };
    let path = PathArgument::new(0, last_link);
    let (mut is_image, mut is_elsewhere) = (false, false);
    let answer = names::on_path(&copied, slot, path, |named| {
        let found = if is_bind { make_socket(slot, named) } else { find_socket(slot, named) };
        (is_image, is_elsewhere) = (true, found == Err(Errno(ELSEWHERE)));
        found
    });
    match answer {
        Answer::Failed(Errno::NOSYS) if is_elsewhere => {
            let path = slot.buffer(0);
            let len = path.iter().position(|byte| *byte == 0).ok_or(Errno::NAMETOOLONG)?;
            put_address(slot, &path[..=len]).map(Some)
        }
        Answer::Done(_) if is_image => put_address(slot, slot.output()).map(Some),
        Answer::Failed(error) if is_image => Err(error),
        // A path of the host, that the program gave as it is.
        _ => Ok(None),
    }
}

/// Creates the name of a socket, whose place on the host is then the output.
fn make_socket(slot: Slot, named: Named) -> Result<u64> {
    const SOCKET: u64 = 0o140_777;
    const EEXIST: i64 = 17;
    const ADDRINUSE: Errno = Errno(98);
    let directory = named.directory as u64;
    match slot.request(Call::MakeNode, &[directory, SOCKET, 0], named.end) {
        Ok(_) => {}
        Err(Errno(EEXIST)) => return Err(ADDRINUSE),
        Err(error) => return Err(error),
    }
    // The reply has no output: the path is still in the data.
    slot.request(Call::SocketPath, &[directory, AT_SYMLINK_NOFOLLOW], named.end)
}

/// Finds a socket that may be connected to, whose place on the host is then the output.
fn find_socket(slot: Slot, named: Named) -> Result<u64> {
    const W_OK: u64 = 2;
    let directory = named.directory as u64;
    slot.request(Call::Access, &[directory, W_OK, 0], named.end)?;
    slot.request(Call::SocketPath, &[directory, 0], named.end)
}

/// Puts the address of a path of the host, with its zero byte, into the slot's buffer; returns the
/// address in memory, and its length.
fn put_address(slot: Slot, path: &[u8]) -> Result<[usize; 2]> {
    if path.len() > PATH_BYTES {
        return Err(Errno::NAMETOOLONG);
    }
    let end = FAMILY_BYTES + path.len();
    let buffer = slot.buffer(PASSED);
    buffer[..FAMILY_BYTES].copy_from_slice(&[1, 0]);
    buffer[FAMILY_BYTES..end].copy_from_slice(path);
    Ok([buffer.as_ptr() as usize, end])
}
