//! Programs that a preloaded library cannot reach: static ones, and set-user-id ones.

use std::ffi::OsStr;
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

/// Interpreters of interpreters that are followed at most.
const INTERPRETERS_MAX: usize = 4;
/// Bytes of a program's first line that the kernel reads.
const LINE_MAX: usize = 256;
const SET_USER_ID: u32 = 0o4000;
const SET_GROUP_ID: u32 = 0o2000;
/// Places in the header of an ELF file of 64 bits: its program headers, their size and number.
const PHOFF_AT: usize = 32;
const PHENTSIZE_AT: usize = 54;
const PHNUM_AT: usize = 56;
/// Bytes of that header.
const HEADER_BYTES: usize = 64;
/// Where the class is, and the class of 64 bits.
const CLASS_AT: usize = 4;
const CLASS_64: u8 = 2;
/// Where the machine is, and that of x86-64.
const MACHINE_AT: usize = 18;
const X86_64: u16 = 62;
/// The type of the program header that names the dynamic linker.
const PT_INTERP: u32 = 3;

/// Whether a preloaded library reaches a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reach {
    /// It does, as far as can be found out.
    Preloaded,
    /// The program has no dynamic linker.
    Static,
    /// The program takes the ids of its owner, and ignores the library.
    SetUserId,
}

/// Returns whether a preloaded library reaches the program of a command: as the shell finds it, or
/// the interpreter of a script.
pub fn reach(program: &OsStr) -> Reach {
    let Some(mut path) = find(program) else {
        return Reach::Preloaded;
    };
    for _ in 0..INTERPRETERS_MAX {
        // The open of a FIFO would wait.
        if !path.is_file() {
            break;
        }
        let Ok(file) = File::open(&path) else {
            break;
        };
        let mut start = [0; LINE_MAX];
        let len = file.read_at(&mut start, 0).unwrap_or(0);
        match interpreter(&start[..len]) {
            Some(next) => path = next,
            None => return reach_of(&path, &file, &start[..len]),
        }
    }
    Reach::Preloaded
}

fn reach_of(path: &Path, file: &File, header: &[u8]) -> Reach {
    let takes_ids = path.metadata().is_ok_and(|found| {
        let is_owner = found.uid() == rustix::process::geteuid().as_raw();
        found.mode() & SET_USER_ID != 0 && !is_owner
            || found.mode() & SET_GROUP_ID != 0
                && found.gid() != rustix::process::getegid().as_raw()
    });
    if takes_ids {
        Reach::SetUserId
    } else if is_static(file, header) == Some(true) {
        Reach::Static
    } else {
        Reach::Preloaded
    }
}

/// Returns the file that a shell starts by this name.
fn find(program: &OsStr) -> Option<PathBuf> {
    if program.as_bytes().contains(&b'/') {
        return Some(program.into());
    }
    let all = std::env::var_os("PATH")?;
    let mut found = std::env::split_paths(&all).map(|folder| folder.join(program));
    found.find(|path| {
        path.metadata()
            .is_ok_and(|found| found.is_file() && found.mode() & 0o111 != 0)
    })
}

/// Returns the interpreter in the first line of a script.
fn interpreter(start: &[u8]) -> Option<PathBuf> {
    let line = start.strip_prefix(b"#!")?.split(|byte| *byte == b'\n');
    let line = line.into_iter().next()?.trim_ascii_start();
    let word = line.split(|byte| byte.is_ascii_whitespace()).next()?;
    (!word.is_empty()).then(|| OsStr::from_bytes(word).into())
}

/// Returns whether an ELF file of 64 bits names no dynamic linker; `None` for any other file.
fn is_static(file: &File, header: &[u8]) -> Option<bool> {
    let header = header.get(..HEADER_BYTES)?;
    if !header.starts_with(b"\x7fELF") || header[CLASS_AT] != CLASS_64 {
        return None;
    }
    let short = |at: usize| u64::from(u16::from_le_bytes([header[at], header[at + 1]]));
    let at = u64::from_le_bytes(header[PHOFF_AT..PHOFF_AT + 8].try_into().ok()?);
    let (size, count) = (short(PHENTSIZE_AT), short(PHNUM_AT));
    for index in 0..count {
        let mut kind = [0; 4];
        file.read_exact_at(&mut kind, at.checked_add(index * size)?)
            .ok()?;
        if u32::from_le_bytes(kind) == PT_INTERP {
            return Some(false);
        }
    }
    Some(true)
}

/// Returns whether a program makes the system calls of another architecture than this process.
pub(super) fn is_foreign(program: &Path) -> bool {
    let mut header = [0; MACHINE_AT + 2];
    let read = File::open(program).and_then(|mut file| file.read_exact(&mut header));
    let machine = u16::from_le_bytes([header[MACHINE_AT], header[MACHINE_AT + 1]]);
    read.is_ok() && header.starts_with(b"\x7fELF") && machine != X86_64
}
