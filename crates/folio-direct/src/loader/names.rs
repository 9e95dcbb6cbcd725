//! Calls with paths.

use crate::calls::{Call, ELSEWHERE, ON_HOST};
use crate::client::Slot;
use crate::descriptors::{create_placeholder, insert, is_closed_on_exec};
use crate::memory;
use crate::paths::{self, LastLink, MagicLink, PathAt, Target};
use crate::state::{IS_IN_IMAGE, PROGRAM};
use crate::system::{
    self, CREAT, NEWFSTATAT, OPEN, OPENAT2, AT_EMPTY_PATH, AT_FDCWD, AT_REMOVEDIR, AT_SYMLINK_FOLLOW, Errno, O_CREAT, O_NOFOLLOW, OPENAT, Result,
    close, host,
};
use crate::table_lock;
use crate::trap::{Answer, PASSED, Trap};
use core::sync::atomic::Ordering;

/// The arguments of a call that are a path: the indexes of its directory, if it has one, and of
/// its address.
#[derive(Clone, Copy)]
pub(crate) struct PathArgument {
    pub(crate) directory: Option<usize>,
    pub(crate) address: usize,
    pub(crate) last_link: LastLink,
}

impl PathArgument {
    pub(crate) const fn new(address: usize, last_link: LastLink) -> Self {
        Self { directory: None, address, last_link }
    }

    pub(crate) const fn at(directory: usize, address: usize, last_link: LastLink) -> Self {
        Self { directory: Some(directory), address, last_link }
    }

    fn of(self, trap: &Trap) -> PathAt {
        PathAt {
            directory: self.directory.map_or(AT_FDCWD, |index| trap.arguments[index] as i32),
            address: trap.arguments[self.address],
            last_link: self.last_link,
        }
    }
}

/// A path in the image: a directory, and the text in the slot's data, with its zero byte.
#[derive(Clone, Copy)]
pub(crate) struct Named {
    pub(crate) directory: i32,
    /// The place after the text.
    pub(crate) end: usize,
    /// Whether it is the file of the descriptor `directory`, and the path empty.
    pub(crate) is_descriptor: bool,
}

impl Named {
    /// The file of a descriptor.
    pub(crate) fn descriptor(slot: Slot, fd: i32) -> Self {
        Self { directory: fd, end: slot.put_text(0, b""), is_descriptor: true }
    }

    /// The flags of a call: with AT_EMPTY_PATH for a descriptor.
    pub(crate) const fn flags(self, flags: u64) -> u64 {
        if self.is_descriptor { flags | AT_EMPTY_PATH } else { flags }
    }
}

/// Paths that led from the image to the host and back, in one call.
const TURNS_MAX: usize = 40;

/// Makes a call on one path: by a request if the path leads into the image, else on the host.
pub(crate) fn on_path(
    trap: &Trap,
    slot: Slot,
    argument: PathArgument,
    mut request: impl FnMut(Named) -> Result<u64>,
) -> Answer {
    let mut target = match paths::resolve(slot, 0, argument.of(trap)) {
        Ok(target) => target,
        Err(error) => return Answer::Failed(error),
    };
    for _ in 0..TURNS_MAX {
        let named = match target {
            Target::Host => return Answer::Pass,
            Target::HostPath if may_wait(trap, slot) => {
                *slot.buffer(PASSED) = *slot.buffer(0);
                let mut arguments = trap.arguments;
                arguments[argument.address] = slot.buffer(PASSED).as_ptr() as usize;
                return Answer::PassWith(arguments.into());
            }
            Target::HostPath => {
                let mut arguments = trap.arguments;
                arguments[argument.address] = slot.buffer(0).as_ptr() as usize;
                // SAFETY: the program's own call, whose pointers the kernel checks.
                return unsafe { system::call(trap.number, arguments) }.into();
            }
            Target::Descriptor(fd) => Named::descriptor(slot, fd),
            Target::Image { directory, len_bytes } => {
                let end = slot.put_text(0, &slot.buffer(0)[..len_bytes]);
                Named { directory, end, is_descriptor: false }
            }
        };
        match request(named) {
            Err(Errno(ELSEWHERE)) => match elsewhere(slot, 0) {
                Some(len) => {
                    target = match paths::resolve_absolute(slot, 0, len, argument.last_link) {
                        Target::Host => Target::HostPath,
                        target => target,
                    }
                }
                None => return Answer::Failed(Errno::LOOP),
            },
            Err(Errno(ON_HOST)) if elsewhere(slot, 0).is_some() => target = Target::HostPath,
            result => return result.into(),
        }
    }
    Answer::Failed(Errno::LOOP)
}

/// Returns whether a call on the host's path of the first buffer is an open(2) that may wait: of a
/// FIFO or a terminal.
fn may_wait(trap: &Trap, slot: Slot) -> bool {
    const FILE_TYPE: u32 = 0o170_000;
    const FIFO: u32 = 0o10_000;
    const CHARACTER_DEVICE: u32 = 0o20_000;
    if !matches!(trap.number, OPEN | CREAT | OPENAT | OPENAT2) {
        return false;
    }
    let mut stat = [0_u32; 36];
    let path = slot.buffer(0).as_ptr();
    let found = host!(NEWFSTATAT, AT_FDCWD as isize, path, stat.as_mut_ptr(), 0);
    found.is_ok() && matches!(stat[6] & FILE_TYPE, FIFO | CHARACTER_DEVICE)
}

/// Copies the first text of the output to a buffer: the path at which the host continues.
fn elsewhere(slot: Slot, index: usize) -> Option<usize> {
    let path = slot.output().split(|byte| *byte == 0).next()?;
    let buffer = slot.buffer(index);
    if path.is_empty() || path.len() >= buffer.len() {
        return None;
    }
    buffer[..path.len()].copy_from_slice(path);
    buffer[path.len()] = 0;
    Some(path.len())
}

/// Makes a call on two paths. A path of the host and one of the image are two file systems.
pub(crate) fn on_paths(
    trap: &Trap,
    slot: Slot,
    arguments: [PathArgument; 2],
    request: impl FnOnce([Named; 2]) -> Result<u64>,
) -> Answer {
    let resolve = |index: usize| paths::resolve(slot, index, arguments[index].of(trap));
    let (first, second) = match (resolve(0), resolve(1)) {
        (Ok(first), Ok(second)) => (first, second),
        (Err(error), _) | (_, Err(error)) => return Answer::Failed(error),
    };
    let (Some((old, old_len)), Some((new, new_len))) = (in_image(first), in_image(second)) else {
        return match (in_image(first), in_image(second)) {
            (None, None) => Answer::Pass,
            _ => Answer::Failed(Errno::XDEV),
        };
    };
    let middle = slot.put_text(0, &slot.buffer(0)[..old_len]);
    let end = slot.put_text(middle, &slot.buffer(1)[..new_len]);
    let old = Named { directory: old, end: middle, is_descriptor: is_descriptor(first) };
    match request([old, Named { directory: new, end, is_descriptor: false }]) {
        Err(Errno(ELSEWHERE)) => both_elsewhere(trap, slot, arguments),
        result => result.into(),
    }
}

/// The directory, and the length of the path in its buffer; `None` for a path of the host.
fn in_image(target: Target) -> Option<(i32, usize)> {
    match target {
        Target::Image { directory, len_bytes } => Some((directory, len_bytes)),
        Target::Descriptor(fd) => Some((fd, 0)),
        Target::Host | Target::HostPath => None,
    }
}

const fn is_descriptor(target: Target) -> bool {
    matches!(target, Target::Descriptor(_))
}

/// Makes a call whose paths both left the image on the host.
fn both_elsewhere(trap: &Trap, slot: Slot, arguments: [PathArgument; 2]) -> Answer {
    let mut given = trap.arguments;
    let mut texts = slot.output().split(|byte| *byte == 0);
    for (index, argument) in arguments.iter().enumerate() {
        let path = texts.next().unwrap_or_default();
        let buffer = slot.buffer(index);
        if path.is_empty() || path.len() >= buffer.len() {
            return Answer::Failed(Errno::XDEV);
        }
        buffer[..path.len()].copy_from_slice(path);
        buffer[path.len()] = 0;
        given[argument.address] = buffer.as_ptr() as usize;
    }
    // SAFETY: the program's own call, whose pointers the kernel checks.
    unsafe { system::call(trap.number, given) }.into()
}

/// What open(2) is asked for.
#[derive(Clone, Copy)]
pub(crate) struct Open {
    pub(crate) flags: u64,
    pub(crate) mode: u64,
    pub(crate) resolve: u64,
}

impl Open {
    fn last_link(self) -> LastLink {
        const O_EXCL: u64 = 0o200;
        let is_new = self.flags & (O_CREAT | O_EXCL) == O_CREAT | O_EXCL;
        if self.flags & O_NOFOLLOW != 0 || is_new { LastLink::Keep } else { LastLink::Follow }
    }

    /// Opens the path of the slot's data in the image.
    fn request(self, slot: Slot, named: Named) -> Result<u64> {
        let path = &slot.data()[..named.end];
        let fd = create_placeholder(path, is_closed_on_exec(self.flags))?;
        let directory = named.directory as u64;
        let opened = if named.is_descriptor {
            slot.request(Call::Reopen, &[directory, self.flags, fd as u64], 0)
        } else {
            let arguments = [directory, self.flags, self.mode, self.resolve, fd as u64];
            slot.request(Call::Open, &arguments, named.end)
        };
        match opened {
            Ok(_) => {
                insert(fd);
                Ok(fd as u64)
            }
            Err(error) => {
                close(fd);
                Err(error)
            }
        }
    }
}

pub(crate) fn open(trap: &Trap, slot: Slot, path: PathArgument, what: Open) -> Answer {
    let path = PathArgument { last_link: what.last_link(), ..path };
    on_path(trap, slot, path, |named| {
        let _change = table_lock::change();
        what.request(slot, named)
    })
}

pub(crate) fn openat2(trap: &Trap, slot: Slot) -> Answer {
    let [.., how, size, _, _] = trap.arguments;
    if size < 24 {
        return Answer::Failed(Errno::INVAL);
    }
    match memory::read::<[u64; 3]>(how) {
        Ok([flags, mode, resolve]) => {
            let what = Open { flags, mode, resolve };
            open(trap, slot, PathArgument::at(0, 1, LastLink::Follow), what)
        }
        Err(error) => Answer::Failed(error),
    }
}

/// Opens an absolute path of the view for the runtime itself.
pub(crate) fn open_text(slot: Slot, path: &[u8], flags: u64) -> Result<i32> {
    let buffer = slot.buffer(0);
    if path.len() >= buffer.len() {
        return Err(Errno::NAMETOOLONG);
    }
    buffer[..path.len()].copy_from_slice(path);
    buffer[path.len()] = 0;
    let address = buffer.as_ptr() as usize;
    let arguments = [AT_FDCWD as isize as usize, address, flags as usize, 0, 0, 0];
    let trap = Trap { number: OPENAT, arguments, mask: 0 };
    let what = Open { flags, mode: 0, resolve: 0 };
    let path = PathArgument::at(0, 1, LastLink::Follow);
    // Under the lock of execve(2), or before there are threads.
    match on_path(&trap, slot, path, |named| what.request(slot, named)) {
        Answer::Done(fd) => Ok(fd as i32),
        Answer::Failed(error) => Err(error),
        // SAFETY: the buffer has the path.
        _ => unsafe { system::call(OPENAT, arguments) }.map(|fd| fd as i32),
    }
}

/// readlinkat(2): the argument of the path is `at`, then the buffer and its size.
pub(crate) fn read_link(trap: &Trap, slot: Slot, path: PathArgument) -> Answer {
    let [into, size] = [trap.arguments[path.address + 1], trap.arguments[path.address + 2]];
    if (size as i32) <= 0 {
        return Answer::Failed(Errno::INVAL);
    }
    let put = |target: &[u8]| {
        let len = target.len().min(size);
        memory::write_from(target.as_ptr(), len, into).map(|()| len as u64)
    };
    let buffer = slot.buffer(2);
    let address = trap.arguments[path.address];
    if let Ok(len) = memory::read_text(buffer, address, Errno::NAMETOOLONG)
        && let Some((link, b"")) = paths::magic_link(&buffer[..len])
    {
        let found = match link {
            MagicLink::Root => Ok(&b"/"[..]),
            MagicLink::Program => Ok(PROGRAM.get()),
            MagicLink::WorkingDirectory => path_reply(slot, Call::WorkingDirectory, &[]),
            MagicLink::Descriptor(fd) => path_reply(slot, Call::PathOf, &[fd as u64]),
        };
        return found.and_then(put).into();
    }
    on_path(trap, slot, path, |named| {
        let size = (size as u64).min(crate::calls::PATH_MAX as u64);
        slot.request(Call::ReadLink, &[named.directory as u64, size], named.end)?;
        put(slot.output())
    })
}

/// A reply that is a path, without its zero byte.
pub(crate) fn path_reply(slot: Slot, call: Call, arguments: &[u64]) -> Result<&'static [u8]> {
    slot.request(call, arguments, 0)?;
    Ok(slot.output().split(|byte| *byte == 0).next().unwrap_or_default())
}

/// getcwd(2).
pub(crate) fn getcwd(trap: &Trap, slot: Slot) -> Answer {
    if !IS_IN_IMAGE.load(Ordering::Relaxed) {
        return Answer::Pass;
    }
    let [into, size, ..] = trap.arguments;
    path_reply(slot, Call::WorkingDirectory, &[])
        .and_then(|path| {
            if path.len() + 1 > crate::calls::PATH_MAX {
                return Err(Errno::NAMETOOLONG);
            }
            if path.len() + 1 > size {
                return Err(Errno::RANGE);
            }
            // With the zero byte, which follows in the data.
            memory::write_from(path.as_ptr(), path.len() + 1, into)?;
            Ok(path.len() as u64 + 1)
        })
        .into()
}

/// chdir(2).
pub(crate) fn chdir(trap: &Trap, slot: Slot) -> Answer {
    let path = PathArgument::new(0, LastLink::Follow);
    let mut is_in_image = false;
    let answer = on_path(trap, slot, path, |named| {
        let done = slot.request(Call::ChangeDirectory, &[named.directory as u64], named.end);
        is_in_image = done.is_ok();
        done
    });
    // On the host here, so that the runtime learns of it.
    let answer = match answer {
        // SAFETY: the program's own call.
        Answer::Pass => unsafe { system::call(trap.number, trap.arguments) }.into(),
        answer => answer,
    };
    if matches!(answer, Answer::Done(_)) {
        IS_IN_IMAGE.store(is_in_image, Ordering::Relaxed);
    }
    answer
}

/// fchdir(2).
pub(crate) fn fchdir(trap: &Trap, slot: Slot) -> Answer {
    let fd = trap.arguments[0] as i32;
    let is_image = crate::descriptors::is_image(fd);
    let changed = if is_image {
        slot.request(Call::ChangeDirectoryTo, &[fd as u64], 0)
    } else {
        host!(system::FCHDIR, fd).map(|_| 0)
    };
    if changed.is_ok() {
        IS_IN_IMAGE.store(is_image, Ordering::Relaxed);
    }
    changed.into()
}

/// A request that has the path as its only input, and the directory as its first argument.
pub(crate) fn simple(
    trap: &Trap,
    slot: Slot,
    path: PathArgument,
    call: Call,
    arguments: &[u64],
) -> Answer {
    let mut all = [0; 6];
    all[1..=arguments.len()].copy_from_slice(arguments);
    on_path(trap, slot, path, |named| {
        all[0] = named.directory as u64;
        slot.request(call, &all, named.end)
    })
}

/// symlinkat(2): the target's argument, then the path.
pub(crate) fn symlink(trap: &Trap, slot: Slot, target: usize, path: PathArgument) -> Answer {
    let text = slot.buffer(2);
    let len = match memory::read_text(text, trap.arguments[target], Errno::NAMETOOLONG) {
        Ok(len) => len,
        Err(error) => return Answer::Failed(error),
    };
    on_path(trap, slot, path, |named| {
        // Behind the path, whose place it then takes.
        let data = slot.data();
        data.copy_within(..named.end, len + 1);
        slot.put_text(0, &text[..len]);
        let end = len + 1 + named.end;
        slot.request(Call::MakeLink, &[named.directory as u64], end)
    })
}

pub(crate) fn link(
    trap: &Trap,
    slot: Slot,
    paths: [PathArgument; 2],
    flags: u64,
) -> Answer {
    let follow = if flags & AT_SYMLINK_FOLLOW == 0 { LastLink::Keep } else { LastLink::Follow };
    let paths = [PathArgument { last_link: follow, ..paths[0] }, paths[1]];
    on_paths(trap, slot, paths, |[old, new]| {
        let arguments = [old.directory as u64, new.directory as u64, old.flags(flags)];
        slot.request(Call::Link, &arguments, new.end)
    })
}

pub(crate) fn rename(
    trap: &Trap,
    slot: Slot,
    paths: [PathArgument; 2],
    flags: u64,
) -> Answer {
    on_paths(trap, slot, paths, |[old, new]| {
        let arguments = [old.directory as u64, new.directory as u64, flags];
        slot.request(Call::Rename, &arguments, new.end)
    })
}

pub(crate) fn unlink(trap: &Trap, slot: Slot, path: PathArgument, flags: u64) -> Answer {
    debug_assert!(flags & !AT_REMOVEDIR == 0 || flags != 0);
    simple(trap, slot, path, Call::Unlink, &[flags])
}
