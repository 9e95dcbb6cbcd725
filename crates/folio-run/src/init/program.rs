//! The command's process: terminal, credentials, working directory, execve(2).

use super::passwd::{self, User};
use super::system_calls;
use crate::failure::{Failure, describe};
use crate::options::{Options, Root};
use crate::sys;
use rustix::fs::{Access, FileType, Mode};
use rustix::io::Errno;
use rustix::process::{Gid, Uid};
use rustix::thread::CapabilitySet;
use std::collections::BTreeMap;
use std::ffi::{CString, NulError, OsStr, OsString};
use std::fs::File;
use std::io::{IsTerminal, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// Where programs are searched if the environment names no other folders.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// Bytes of a program that are read to explain why it cannot be executed.
const HEAD_LEN: u64 = 4096;
/// The device major of pseudo-terminals. Linux: `UNIX98_PTY_SLAVE_MAJOR`.
const TERMINAL_MAJOR: u32 = 136;
/// Capabilities of the superuser inside, as those of container tools: what package managers need,
/// without those that would undo the mounts.
const KEPT: CapabilitySet = CapabilitySet::CHOWN
    .union(CapabilitySet::DAC_OVERRIDE)
    .union(CapabilitySet::FOWNER)
    .union(CapabilitySet::FSETID)
    .union(CapabilitySet::KILL)
    .union(CapabilitySet::SETGID)
    .union(CapabilitySet::SETUID)
    .union(CapabilitySet::SETPCAP)
    .union(CapabilitySet::NET_BIND_SERVICE)
    .union(CapabilitySet::NET_RAW)
    .union(CapabilitySet::SYS_CHROOT)
    .union(CapabilitySet::MKNOD)
    .union(CapabilitySet::AUDIT_WRITE)
    .union(CapabilitySet::SETFCAP);

/// The command's side of its terminal.
pub(super) struct Terminal(pub(super) OwnedFd);

/// Becomes the command. On failure reports it through `report`, and ends the process.
#[expect(
    clippy::disallowed_methods,
    reason = "the process is a fork: nothing of its parent is to be closed here"
)]
pub(super) fn run(options: &Options, terminal: Option<Terminal>, report: &OwnedFd) -> ! {
    let failure = become_command(options, terminal, report);
    let mut bytes = vec![failure.exit];
    bytes.extend(failure.message.bytes());
    // The parent may have been killed.
    let _ = rustix::io::write(report, &bytes);
    std::process::exit(failure.exit.into())
}

/// Reads the failure of the process that has the other side of the pipe; `None` if it became the
/// command.
pub(super) fn read_failure(result: OwnedFd) -> Option<Failure> {
    let mut bytes = Vec::new();
    File::from(result).read_to_end(&mut bytes).ok()?;
    let (exit, message) = bytes.split_first()?;
    Some(Failure {
        exit: *exit,
        ..Failure::new(String::from_utf8_lossy(message))
    })
}

/// Executes the command; returns only if that failed.
fn become_command(options: &Options, terminal: Option<Terminal>, report: &OwnedFd) -> Failure {
    let prepared = prepare(options, terminal, report);
    let (user, path) = match prepared {
        Ok(prepared) => prepared,
        Err(failure) => return failure,
    };
    let environment = environment(options, &user);
    let (name, arguments) = match options.command.split_first() {
        Some((name, arguments)) => (name.clone(), arguments),
        None => (OsString::from(&user.shell), [].as_slice()),
    };
    let search = search_path(options, &path);
    let program = match find(&name, &search) {
        Ok(program) => program,
        Err(failure) => return failure,
    };
    let arguments = [name].into_iter().chain(arguments.iter().cloned());
    let inherited = (options.root != Root::Image).then(std::env::vars_os);
    // The last value of a variable counts.
    let variables: BTreeMap<_, _> = inherited.into_iter().flatten().chain(environment).collect();
    let variables = variables.into_iter().map(|(mut name, value)| {
        name.push("=");
        name.push(value);
        name
    });
    let strings = || {
        Ok((
            CString::new(program.as_os_str().as_bytes())?,
            arguments.map(c_string).collect::<Result<Vec<_>, _>>()?,
            variables.map(c_string).collect::<Result<Vec<_>, _>>()?,
        ))
    };
    match strings() {
        Ok((path, arguments, variables)) => {
            explain(&program, sys::execute(&path, &arguments, &variables))
        }
        Err::<_, NulError>(_) => Failure::new("an argument or a variable contains a zero byte"),
    }
}

fn c_string(string: OsString) -> Result<CString, NulError> {
    CString::new(string.into_vec())
}

/// Changes the session, the terminal, the working directory and the user. Returns the user, and the
/// PATH of this process.
fn prepare(
    options: &Options,
    terminal: Option<Terminal>,
    report: &OwnedFd,
) -> Result<(User, OsString), Failure> {
    let cannot = |what: &'static str| move |errno| Failure::of(what, errno);
    // Out of the reach of the user's terminal, into which a program could type commands.
    rustix::process::setsid().map_err(cannot("setsid"))?;
    if let Some(Terminal(terminal)) = terminal {
        rustix::process::ioctl_tiocsctty(&terminal).map_err(cannot("terminal"))?;
        rustix::stdio::dup2_stdin(&terminal).map_err(cannot("terminal"))?;
        rustix::stdio::dup2_stdout(&terminal).map_err(cannot("terminal"))?;
        if std::io::stderr().is_terminal() {
            rustix::stdio::dup2_stderr(&terminal).map_err(cannot("terminal"))?;
        }
    }
    // Before the first path is followed.
    sys::close_descriptors(report.as_fd()).map_err(cannot("cannot close descriptors"))?;
    sys::join_new_session_keyring();
    let user = match &options.user {
        Some(wanted) => passwd::find(wanted)?,
        None => passwd::find("0")?,
    };
    if options.root == Root::Image {
        rustix::process::umask(Mode::from_raw_mode(0o022));
        drop_capabilities().map_err(cannot("cannot drop capabilities"))?;
        // Before the superuser's capabilities end with the change of the user.
        let filtered = system_calls::filter(options.allows_namespaces);
        filtered.map_err(cannot("cannot filter system calls"))?;
    }
    give_streams(&user);
    set_user(&user)?;
    let directory = match (&options.working_directory, &options.root) {
        (Some(directory), _) => Some(directory.as_path()),
        (None, Root::Image) => Some(Path::new("/")),
        (None, Root::At(_)) => None,
    };
    if let Some(directory) = directory {
        rustix::process::chdir(directory).map_err(|errno| {
            Failure::at(
                "cannot use the working directory",
                directory.display(),
                errno,
            )
        })?;
    }
    Ok((user, std::env::var_os("PATH").unwrap_or_default()))
}

/// Lets the user open the terminal and pipes of the standard streams by /dev/stdin and so on, as
/// container tools do. Other files keep their owners.
fn give_streams(user: &User) {
    let streams = [0, 1, 2].map(|number| format!("/proc/self/fd/{number}"));
    for path in streams.iter().filter(|_| user.uid != 0) {
        let Ok(stat) = rustix::fs::stat(path) else {
            continue;
        };
        let is_given = match FileType::from_raw_mode(stat.st_mode) {
            FileType::Fifo => true,
            FileType::CharacterDevice => rustix::fs::major(stat.st_rdev) == TERMINAL_MAJOR,
            _ => false,
        };
        if is_given {
            // The owner may be outside of the namespace; the open stream works nevertheless.
            let _ = rustix::fs::chown(path.as_str(), Some(Uid::from_raw(user.uid)), None);
        }
    }
}

fn drop_capabilities() -> Result<(), Errno> {
    for capability in CapabilitySet::all().difference(KEPT).iter() {
        match rustix::thread::remove_capability_from_bounding_set(capability) {
            // Unknown to this kernel.
            Ok(()) | Err(Errno::INVAL) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

fn set_user(user: &User) -> Result<(), Failure> {
    let is_superuser = user.uid == 0 && user.gid == 0;
    let groups: Vec<_> = user.groups.iter().map(|gid| Gid::from_raw(*gid)).collect();
    match rustix::thread::set_thread_groups(&groups) {
        Ok(()) => {}
        // Not permitted where one id is mapped; the superuser needs no groups.
        Err(_) if is_superuser => return Ok(()),
        Err(errno) => return Err(refused(user, errno)),
    }
    let (uid, gid) = (Uid::from_raw(user.uid), Gid::from_raw(user.gid));
    rustix::thread::set_thread_res_gid(gid, gid, gid).map_err(|errno| refused(user, errno))?;
    rustix::thread::set_thread_res_uid(uid, uid, uid).map_err(|errno| refused(user, errno))
}

fn refused(user: &User, errno: Errno) -> Failure {
    Failure::new(format!(
        "cannot become user {}:{}: {}; ids other than 0 need ranges for you in /etc/subuid and \
         /etc/subgid that reach them, and the program newuidmap",
        user.uid,
        user.gid,
        describe(errno)
    ))
}

/// Returns the environment: few variables of the host enter an image.
fn environment(options: &Options, user: &User) -> Vec<(OsString, OsString)> {
    let mut variables = Vec::new();
    if options.root == Root::Image {
        for (name, value) in [
            ("PATH", PATH),
            ("HOME", &user.home),
            ("USER", &user.name),
            ("LOGNAME", &user.name),
            // As systemd-nspawn and podman set it, for programs that ask.
            ("container", "folio"),
        ] {
            variables.push((name.into(), value.into()));
        }
        for name in ["TERM", "COLORTERM", "NO_COLOR"] {
            if let Some(value) = std::env::var_os(name) {
                variables.push((name.into(), value));
            }
        }
    }
    variables.extend(options.environment.iter().cloned());
    variables
}

fn search_path(options: &Options, own: &OsStr) -> OsString {
    let given = options.environment.iter().rev();
    let given = given.clone().find(|(name, _)| name == "PATH");
    match (given, &options.root) {
        (Some((_, path)), _) => path.clone(),
        (None, Root::Image) => PATH.into(),
        (None, Root::At(_)) => own.to_owned(),
    }
}

/// Finds a program as execvp(3) does.
fn find(name: &OsStr, search: &OsStr) -> Result<PathBuf, Failure> {
    if name.as_bytes().contains(&b'/') {
        return Ok(name.into());
    }
    let mut refused = None;
    for folder in std::env::split_paths(search) {
        let path = folder.join(name);
        match rustix::fs::access(&path, Access::EXEC_OK) {
            Ok(()) if !path.is_dir() => return Ok(path),
            Err(Errno::ACCESS) => refused = refused.or(Some(path)),
            _ => {}
        }
    }
    Err(match refused {
        Some(path) => Failure {
            exit: Failure::NOT_EXECUTABLE,
            ..Failure::new(format!("{}: {}", path.display(), describe(Errno::ACCESS)))
        },
        None => Failure {
            exit: Failure::NOT_FOUND,
            ..Failure::new(format!("{}: command not found", Path::new(name).display()))
        },
    })
}

/// Returns the failure of execve(2), with the cause that its error number does not name.
fn explain(program: &Path, errno: Errno) -> Failure {
    let exit = match errno {
        Errno::NOENT | Errno::NOTDIR => Failure::NOT_FOUND,
        _ => Failure::NOT_EXECUTABLE,
    };
    let mut head = Vec::new();
    if let Ok(file) = File::open(program) {
        // Without it the error number remains.
        let _ = file.take(HEAD_LEN).read_to_end(&mut head);
    }
    let cause = match errno {
        Errno::NOENT if !head.is_empty() => {
            interpreter(&head).map(|name| format!("its interpreter {name} is missing"))
        }
        Errno::NOEXEC => Some(foreign(&head)),
        _ => None,
    };
    Failure {
        exit,
        ..Failure::new(format!(
            "{}: {}",
            program.display(),
            cause.unwrap_or_else(|| describe(errno))
        ))
    }
}

/// Returns the interpreter of a script, or the dynamic linker of a program.
fn interpreter(head: &[u8]) -> Option<String> {
    if let Some(line) = head.strip_prefix(b"#!") {
        let line = line.split(|byte| *byte == b'\n').next()?;
        let line = String::from_utf8_lossy(line);
        return line.split_whitespace().next().map(str::to_owned);
    }
    // PT_INTERP is a path that ends with a zero; in practice it follows the program headers.
    let start = head
        .windows(5)
        .position(|bytes| bytes == b"/lib/" || bytes == b"/lib6")?;
    let end = head[start..].iter().position(|byte| *byte == 0)?;
    Some(String::from_utf8_lossy(&head[start..start + end]).into_owned())
}

/// Describes a file that this machine cannot execute.
fn foreign(head: &[u8]) -> String {
    const ELF_MAGIC: &[u8] = b"\x7fELF";
    if !head.starts_with(ELF_MAGIC) || head.len() < 20 {
        return "not a program: neither ELF nor a script that begins with #!".to_owned();
    }
    let machine = match head[5] {
        2 => u16::from_be_bytes([head[18], head[19]]),
        _ => u16::from_le_bytes([head[18], head[19]]),
    };
    let name = match machine {
        2 | 18 | 43 => "sparc",
        3 => "i386",
        8 => "mips",
        20 => "ppc",
        21 => "ppc64",
        22 => "s390x",
        40 => "arm",
        62 => "x86_64",
        183 => "aarch64",
        243 => "riscv",
        258 => "loongarch",
        _ => "an unknown machine",
    };
    let own = rustix::system::uname();
    format!(
        "a program for {name}, and this machine is {}: register an emulator with binfmt_misc \
         (package qemu-user-static or qemu-user-binfmt)",
        own.machine().to_string_lossy()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interpreter_is_named() {
        assert_eq!(
            interpreter(b"#! /usr/bin/env python3\nx").as_deref(),
            Some("/usr/bin/env")
        );
        let mut elf = b"\x7fELF".to_vec();
        elf.extend([0; 60]);
        elf.extend(b"/lib/ld-musl-x86_64.so.1\0rest");
        assert_eq!(
            interpreter(&elf).as_deref(),
            Some("/lib/ld-musl-x86_64.so.1")
        );
        assert_eq!(interpreter(b"text"), None);
    }

    #[test]
    fn foreign_machine_is_named() {
        let mut elf = b"\x7fELF\x02\x01\x01".to_vec();
        elf.resize(64, 0);
        elf[18] = 183;
        assert!(foreign(&elf).starts_with("a program for aarch64, and this machine is "));
        assert!(foreign(b"hello").starts_with("not a program"));
    }
}
