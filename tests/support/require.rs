//! Requirements of tests on the machine; a test without its requirements reports a skip.

use std::ffi::OsStr;
use std::fs::OpenOptions;
use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// A requirement that a machine may lack.
#[derive(Debug, Clone, Copy)]
pub enum Need {
    /// Effective user 0.
    Root,
    /// Loop devices that can be attached and mounted.
    LoopDevices,
    /// A FUSE device that can be opened.
    Fuse,
    /// A program on the PATH or in a system folder.
    Tool(&'static str),
    /// gdb, which can call functions of a process here.
    GdbCalls,
    /// A Linux kernel of at least this version.
    Linux(u32, u32),
    /// A file system that the kernel has, or has a module for.
    FileSystem(&'static str),
    /// The mount namespace of the kernel's threads; a container has another one.
    FirstMountNamespace,
    /// User namespaces that may be made, and /proc/sys to write in them.
    UserNamespaces,
}

/// Returns from the calling test, reporting a skip, unless all needs are met:
/// `requires!(root, loop_devices, tool("e2fsck"))`.
macro_rules! requires {
    ($($need:ident $(($($argument:expr),+))?),+ $(,)?) => {
        $(if let Err(reason) = $crate::support::require::$need($($($argument),+)?).met() {
            $crate::support::require::report_skip(&reason);
            return;
        })+
    };
}
pub(crate) use requires;

/// See [`Need::Root`].
pub fn root() -> Need {
    Need::Root
}

/// See [`Need::LoopDevices`].
pub fn loop_devices() -> Need {
    Need::LoopDevices
}

/// See [`Need::Fuse`].
pub fn fuse() -> Need {
    Need::Fuse
}

/// See [`Need::Tool`].
pub fn tool(name: &'static str) -> Need {
    Need::Tool(name)
}

/// See [`Need::GdbCalls`].
pub fn gdb_calls() -> Need {
    Need::GdbCalls
}

/// See [`Need::Linux`].
pub fn linux(major: u32, minor: u32) -> Need {
    Need::Linux(major, minor)
}

/// See [`Need::FileSystem`].
pub fn file_system(name: &'static str) -> Need {
    Need::FileSystem(name)
}

/// See [`Need::FirstMountNamespace`].
pub fn first_mount_namespace() -> Need {
    Need::FirstMountNamespace
}

/// See [`Need::UserNamespaces`].
pub fn user_namespaces() -> Need {
    Need::UserNamespaces
}

impl Need {
    /// Checks that the machine has it.
    ///
    /// # Errors
    /// The missing requirement, in words.
    pub fn met(self) -> Result<(), String> {
        match self {
            Self::Root if rustix::process::geteuid().is_root() => Ok(()),
            Self::Root => Err("needs root".to_owned()),
            Self::LoopDevices => loop_device_works(),
            Self::Fuse => OpenOptions::new()
                .read(true)
                .write(true)
                .open("/dev/fuse")
                .map(drop)
                .map_err(|error| format!("needs /dev/fuse: {error}")),
            Self::Tool(name) => find(name)
                .map(|_| ())
                .ok_or_else(|| format!("needs the program {name}")),
            Self::GdbCalls => gdb_calls_a_function(),
            Self::Linux(major, minor) => {
                let text =
                    std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
                let mut numbers = text
                    .split(|c: char| !c.is_ascii_digit())
                    .map_while(|part| part.parse().ok());
                let found = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
                if found >= (major, minor) {
                    Ok(())
                } else {
                    Err(format!("needs Linux {major}.{minor}"))
                }
            }
            Self::FileSystem(name) => {
                // Asking for the module loads it, as mount(8) would.
                let _ = super::tools::command("modprobe")
                    .args(["--quiet", name])
                    .output();
                let all = std::fs::read_to_string("/proc/filesystems").unwrap_or_default();
                let is_there = all
                    .lines()
                    .any(|line| line.split_whitespace().last() == Some(name));
                if is_there {
                    Ok(())
                } else {
                    Err(format!("needs a kernel with {name}"))
                }
            }
            Self::FirstMountNamespace => {
                let name = std::fs::read_to_string("/proc/2/comm").unwrap_or_default();
                let namespace = |process| std::fs::read_link(format!("/proc/{process}/ns/mnt"));
                match (namespace("2"), namespace("self")) {
                    (Ok(first), Ok(own)) if name.trim() == "kthreadd" && first == own => Ok(()),
                    _ => Err("needs the machine's first mount namespace".to_owned()),
                }
            }
            Self::UserNamespaces => {
                let tried = with_watches(1, OsStr::new("true")).output();
                let works = tried.is_ok_and(|output| output.status.success());
                if works {
                    Ok(())
                } else {
                    Err("needs user namespaces and a /proc/sys to write".to_owned())
                }
            }
        }
    }
}

/// The program's path, searched on PATH and in the folders of system programs.
pub fn find(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let system = ["/usr/local/sbin", "/usr/sbin", "/sbin"].map(PathBuf::from);
    std::env::split_paths(&path)
        .chain(system)
        .map(|folder| folder.join(name))
        .find(|path| path.is_file())
}

/// A program in a user namespace of its own, where it is root and has no more than `count` inotify
/// watches.
pub fn with_watches(count: u32, program: &OsStr) -> Command {
    let mut command = Command::new(find("unshare").unwrap_or_else(|| "unshare".into()));
    let script = format!("echo {count} > {WATCHES_MAX} && exec \"$0\" \"$@\"");
    command
        .args(["--user", "--map-root-user", "sh", "-c", &script])
        .arg(program);
    command.stdin(Stdio::null());
    command
}

/// How many inotify watches a user may have in this namespace.
pub const WATCHES_MAX: &str = "/proc/sys/user/max_inotify_watches";

fn loop_device_works() -> Result<(), String> {
    Need::Root.met()?;
    Need::Tool("losetup").met()?;
    let file = tempfile::NamedTempFile::new().map_err(|error| error.to_string())?;
    file.as_file()
        .set_len(1 << 20)
        .map_err(|error| error.to_string())?;
    let losetup = find("losetup").ok_or("needs the program losetup")?;
    let output = Command::new(&losetup)
        .args(["--find", "--show"])
        .arg(file.path())
        .output();
    let output = output.map_err(|error| format!("losetup: {error}"))?;
    if !output.status.success() {
        let why = String::from_utf8_lossy(&output.stderr);
        return Err(format!("needs loop devices: {}", why.trim()));
    }
    let device = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    let _ = Command::new(losetup).args(["--detach", &device]).status();
    Ok(())
}

/// Reports, on standard error and in the file that FOLIO_SKIPPED names, that the calling test did
/// not run.
pub fn report_skip(reason: &str) {
    let thread = std::thread::current();
    let test = thread.name().unwrap_or("a test");
    let program = std::env::current_exe().ok();
    let program = program
        .as_deref()
        .and_then(|path| path.file_stem())
        .and_then(|stem| stem.to_str());
    // The harness' file name ends in a hash: hostfs-0123456789abcdef.
    let topic = match program.and_then(|stem| stem.rsplit_once('-')) {
        // The tests' own names begin with their topic.
        Some(("library" | "command", _)) => String::new(),
        Some((topic, _)) => format!("{topic}::"),
        None => "test::".to_owned(),
    };
    let line = format!("{topic}{test}: {}\n", reason.replace('\n', " "));
    eprint!("skipped: {line}");
    if let Some(path) = std::env::var_os("FOLIO_SKIPPED") {
        let file = OpenOptions::new().append(true).create(true).open(path);
        file.and_then(|mut file| file.write_all(line.as_bytes()))
            .expect("the skip is written down");
    }
}

/// gdb 13 calls none where a processor has AMX: it cannot write back the larger registers.
fn gdb_calls_a_function() -> Result<(), String> {
    Need::Tool("gdb").met()?;
    let mut sleep = Command::new("sleep")
        .arg("100")
        .stderr(Stdio::null())
        .spawn()
        .map_err(|error| format!("needs the program sleep: {error}"))?;
    let print = "print (long)getpid()";
    let output = super::tools::command("gdb")
        .args(["-q", "-nx", "-batch", "-p", &sleep.id().to_string()])
        .args(["-ex", print])
        .output();
    let _ = sleep.kill();
    let _ = sleep.wait();
    let output = output.map_err(|error| format!("needs the program gdb: {error}"))?;
    if String::from_utf8_lossy(&output.stdout).contains("$1 = ") {
        return Ok(());
    }
    let errors = String::from_utf8_lossy(&output.stderr);
    let last = errors.lines().last().unwrap_or_default();
    Err(format!("needs a gdb that can call functions: {last}"))
}
