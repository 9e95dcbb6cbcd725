//! Calls of the host that a program with an image cannot have in full.

use crate::calls::{Call, ELSEWHERE};
use crate::client::Slot;
use crate::descriptors::is_image;
use crate::layout::RESERVED;
use crate::memory;
use crate::names::{self, Named, PathArgument};
use crate::paths::{self, LastLink, PathAt, Target};
use crate::state::BASE;
use crate::system::{
    self, PRLIMIT64, SENDMSG, SETRLIMIT, pid,
    AT_FDCWD, AT_SYMLINK_NOFOLLOW, BIND, CHROOT, CLONE3, CONNECT, Errno, FANOTIFY_MARK, FILE_GETATTR, FILE_SETATTR,
    GETDENTS, GETXATTRAT, INOTIFY_ADD_WATCH, IO_SETUP, IO_URING_SETUP, LISTXATTRAT,
    NAME_TO_HANDLE_AT, PRCTL, REMOVEXATTRAT, Result, SECCOMP, SENDFILE, SETXATTRAT,
    VMSPLICE, host,
};
use crate::trap::{Answer, Trap};
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
        SENDMSG => send_message(trap),
        CONNECT | BIND => socket_address(trap, slot).unwrap_or_else(Answer::Failed),
        _ => Answer::Pass,
    }
}

/// sendmsg(2): a descriptor of the image cannot be sent, as its receiver would have the
/// placeholder.
fn send_message(trap: &Trap) -> Answer {
    const SOL_SOCKET: u32 = 1;
    const SCM_RIGHTS: u32 = 1;
    const HEADER_BYTES: usize = 16;
    // The control data of `struct msghdr`: an address and a length.
    let Ok([control, len]) = memory::read::<[usize; 2]>(trap.arguments[1] + 32) else {
        return Answer::Pass;
    };
    let mut at = 0;
    while control != 0 && at + HEADER_BYTES <= len.min(1 << 16) {
        let Ok([size, level, kind]) = memory::read::<[u64; 2]>(control + at)
            .map(|[size, rest]| [size, rest & 0xffff_ffff, rest >> 32])
        else {
            return Answer::Pass;
        };
        let size = size as usize;
        if size < HEADER_BYTES || size > len - at {
            return Answer::Pass;
        }
        if [level as u32, kind as u32] == [SOL_SOCKET, SCM_RIGHTS] {
            for place in (at + HEADER_BYTES..at + size).step_by(4) {
                let fd = memory::read::<u32>(control + place);
                if fd.is_ok_and(|fd| is_image(fd as i32)) {
                    return Answer::Failed(Errno::INVAL);
                }
            }
        }
        at += size.next_multiple_of(8);
    }
    Answer::Pass
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
    if a[0] == PR_SET_SECCOMP { Answer::Failed(Errno::INVAL) } else { Answer::Pass }
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
/// The buffer of an address on the host.
const ADDRESS: usize = 13;

/// connect(2) and bind(2): a socket whose name is in the image is in a private folder of the host.
fn socket_address(trap: &Trap, slot: Slot) -> Result<Answer> {
    const AF_UNIX: [u8; 2] = [1, 0];
    let [_, address, len, ..] = trap.arguments;
    if len <= FAMILY_BYTES || memory::read::<[u8; 2]>(address) != Ok(AF_UNIX) {
        return Ok(Answer::Pass);
    }
    let buffer = slot.buffer(3);
    let len = (len - FAMILY_BYTES).min(PATH_BYTES);
    memory::read_into(buffer.as_mut_ptr(), len, address + FAMILY_BYTES)?;
    // A name that begins with a zero byte is none of the file system.
    if buffer[0] == 0 {
        return Ok(Answer::Pass);
    }
    buffer[len] = 0;
    let mut arguments = [0; 6];
    arguments[0] = buffer.as_ptr() as usize;
    let copied = Trap { arguments, ..*trap };
    let is_bind = trap.number == BIND;
    let last_link = if is_bind { LastLink::Keep } else { LastLink::Follow };
    let path = PathArgument::new(0, last_link);
    let mut is_image = false;
    let answer = names::on_path(&copied, slot, path, |named| {
        is_image = true;
        if is_bind { make_socket(slot, named) } else { find_socket(slot, named) }
    });
    match answer {
        Answer::Done(_) if is_image => {
            let len = host_address(slot)?;
            let mut arguments = trap.arguments;
            [arguments[1], arguments[2]] = [slot.buffer(ADDRESS).as_ptr() as usize, len];
            Ok(Answer::PassWith(arguments))
        }
        Answer::Failed(Errno(ELSEWHERE)) => Ok(Answer::Failed(Errno::OPNOTSUPP)),
        // A path of the host, that the program gave as it is.
        Answer::Failed(error) if is_image => Ok(Answer::Failed(error)),
        _ => Ok(Answer::Pass),
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

/// Makes the address of the path in the output; returns its length.
fn host_address(slot: Slot) -> Result<usize> {
    let path = slot.output();
    if path.len() > PATH_BYTES {
        return Err(Errno::NAMETOOLONG);
    }
    let end = FAMILY_BYTES + path.len();
    let buffer = slot.buffer(ADDRESS);
    buffer[..FAMILY_BYTES].copy_from_slice(&[1, 0]);
    buffer[FAMILY_BYTES..end].copy_from_slice(path);
    Ok(end)
}
