//! Calls of the host that a program with an image cannot have in full.

use crate::client::Slot;
use crate::descriptors::is_image;
use crate::memory;
use crate::names::PathArgument;
use crate::paths::{self, LastLink, PathAt, Target};
use crate::system::{
    AT_FDCWD, BIND, CHROOT, CLONE3, CONNECT, Errno, FANOTIFY_MARK, FILE_GETATTR, FILE_SETATTR,
    GETDENTS, GETXATTRAT, INOTIFY_ADD_WATCH, IO_SETUP, IO_URING_SETUP, LISTXATTRAT,
    NAME_TO_HANDLE_AT, PRCTL, REMOVEXATTRAT, Result, SECCOMP, SENDFILE, SETXATTRAT, VMSPLICE,
};
use crate::trap::{Answer, Trap};

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
        CONNECT | BIND => socket_address(trap, slot).unwrap_or_else(Answer::Failed),
        _ => Answer::Pass,
    }
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

/// connect(2) and bind(2): a socket cannot have a name in the image.
fn socket_address(trap: &Trap, slot: Slot) -> Result<Answer> {
    const AF_UNIX: [u8; 2] = [1, 0];
    let [_, address, len, ..] = trap.arguments;
    if len <= 2 || memory::read::<[u8; 2]>(address) != Ok(AF_UNIX) {
        return Ok(Answer::Pass);
    }
    let buffer = slot.buffer(0);
    let len = (len - 2).min(108);
    memory::read_into(buffer.as_mut_ptr(), len, address + 2)?;
    // A name that begins with a zero byte is none of the file system.
    if buffer[0] == 0 {
        return Ok(Answer::Pass);
    }
    buffer[len] = 0;
    let copied = PathAt {
        directory: AT_FDCWD,
        address: buffer.as_ptr() as usize,
        last_link: LastLink::Follow,
    };
    Ok(match paths::resolve(slot, 1, copied)? {
        Target::Image { .. } if trap.number == CONNECT => Answer::Failed(Errno::NOENT),
        Target::Image { .. } => Answer::Failed(Errno::OPNOTSUPP),
        _ => Answer::Pass,
    })
}
