//! Commands of this machine: found, run, with the time and memory that they cost.

use crate::outcome::{Context, Outcome};
use crate::report::{Evidence, Sample};
use std::ffi::OsString;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

/// Finds a program on PATH and in the folders of system programs.
pub(crate) fn find(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let system = ["/usr/local/sbin", "/usr/sbin", "/sbin"].map(PathBuf::from);
    let folders = std::env::split_paths(&path).chain(system);
    let mut programs = folders.map(|folder| folder.join(name));
    programs.find(|path| path.is_file())
}

/// Returns which of these programs is not installed, in words.
pub(crate) fn lacking(names: &[&str]) -> Option<String> {
    let missing = names.iter().find(|name| find(name).is_none());
    missing.map(|name| format!("{name} is not installed"))
}

/// Returns why something that needs root cannot be measured here.
pub(crate) fn lacking_root() -> Option<String> {
    (!is_root()).then(|| "needs root".to_owned())
}

/// Returns whether this user is root.
pub(crate) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Returns a command of an installed program.
pub(crate) fn tool(name: &str) -> Outcome<Command> {
    let program = find(name).ok_or_else(|| format!("{name} is not installed"))?;
    Ok(Command::new(program))
}

/// Returns `IMAGE:PLACE`, a place in an image as folio names it.
pub(crate) fn inside(image: &Path, place: &str) -> OsString {
    let mut whole = image.as_os_str().to_owned();
    whole.push(":");
    whole.push(place);
    whole
}

/// Returns the MiB that the files below a folder use, by du.
pub(crate) fn used_mib(folder: &Path) -> Outcome<u64> {
    let said = run(tool("du")?.arg("-sm").arg(folder))?;
    let mib = said
        .split_whitespace()
        .next()
        .and_then(|mib| mib.parse().ok());
    Ok(mib.ok_or_else(|| format!("du: unexpected output {said:?}"))?)
}

/// Runs a command; returns its standard output.
pub(crate) fn run(command: &mut Command) -> Outcome<String> {
    Meter::default().run(command)
}

/// Runs commands one after the other; returns their time with its evidence.
pub(crate) fn timed(commands: &mut [Command]) -> Outcome<Sample> {
    let mut meter = Meter::default();
    for command in commands {
        meter.run(command)?;
    }
    Ok(meter.sample())
}

/// Runs commands one after the other. Their times add up, and their memory is the largest.
#[derive(Debug, Default)]
pub(crate) struct Meter {
    /// Wall-clock seconds.
    seconds: f64,
    /// User and system seconds of the processes, without threads of the kernel.
    cpu_seconds: f64,
    /// Largest resident set of a process, in KiB (getrusage(2), `ru_maxrss`). Linux begins a
    /// child's at its parent's, so nothing below this program's own few MiB can be seen.
    resident_kib: i64,
}

impl Meter {
    /// Runs a command; its standard output is returned, a failure carries its standard error.
    pub(crate) fn run(&mut self, command: &mut Command) -> Outcome<String> {
        let name = command.get_program().to_string_lossy().into_owned();
        // Files, not pipes: no thread has to read them while the command runs.
        let out = tempfile::tempfile().at(&name)?;
        command.env("LC_ALL", "C").stdin(Stdio::null());
        command.stdout(out.try_clone().at(&name)?);
        let errors = ErrorOutput::of(command)?;
        let start = Instant::now();
        let child = command.spawn().at(&name)?;
        let (status, usage) = wait(child.id()).at(&name)?;
        self.seconds += start.elapsed().as_secs_f64();
        self.cpu_seconds += cpu_seconds(&usage);
        self.resident_kib = self.resident_kib.max(usage.ru_maxrss);
        if status == 0 {
            return Ok(text(&out));
        }
        let errors = errors.text();
        Err(format!("{name}: wait status {status:#x}: {}", errors.trim()).into())
    }

    /// Adds the time of something else.
    pub(crate) fn time(&mut self, work: impl FnOnce() -> Outcome) -> Outcome {
        let start = Instant::now();
        work()?;
        self.seconds += start.elapsed().as_secs_f64();
        Ok(())
    }

    /// Returns the cost of all commands.
    pub(crate) fn sample(&self) -> Sample {
        let evidence = Evidence {
            cpu_seconds: Some(self.cpu_seconds),
            resident_kib: Some(self.resident_kib as f64),
            ..Evidence::default()
        };
        Sample::of(self.seconds).with(evidence)
    }
}

/// The standard error of a process, kept for the message that explains a failure.
#[derive(Debug)]
pub(crate) struct ErrorOutput(File);

impl ErrorOutput {
    /// Captures the standard error of the process that `command` starts.
    pub(crate) fn of(command: &mut Command) -> Outcome<Self> {
        let file = tempfile::tempfile().at("file for standard error")?;
        command.stderr(file.try_clone().at("file for standard error")?);
        Ok(Self(file))
    }

    /// Returns the output until now.
    pub(crate) fn text(&self) -> String {
        text(&self.0)
    }

    /// Returns `what` with the output until now, in one line.
    pub(crate) fn explain(&self, what: impl Into<String>) -> String {
        let said = self.text();
        let lines = said.lines().map(str::trim).filter(|line| !line.is_empty());
        lines.fold(what.into(), |all, line| all + ": " + line)
    }
}

/// Reads a file whose position the process that writes it shares.
fn text(file: &File) -> String {
    let mut bytes = vec![0; file.metadata().map_or(0, |found| found.len() as usize)];
    let read = file.read_at(&mut bytes, 0).unwrap_or(0);
    String::from_utf8_lossy(&bytes[..read]).into_owned()
}

/// Starts a process that uses `mib` MiB of memory and gives it back.
///
/// In a virtual machine a page that was unused for a while may have returned to the machine's
/// host. The first process that uses it again pays several times the price of a copy. This call
/// gives all contenders the same pages.
pub(crate) fn touch_memory(mib: u64) -> Outcome {
    let mut helper = Command::new(this_program()?);
    run(helper.args(["touch-memory", &mib.to_string()])).map(drop)
}

/// The program folio-bench, which runs parts of scenarios in processes of their own.
pub(crate) fn this_program() -> Outcome<PathBuf> {
    std::env::current_exe().at("folio-bench")
}

/// Body of that process: writes and reads the memory.
pub(crate) fn use_memory(mib: usize) -> Outcome {
    let mut bytes = vec![0_u8; mib << 20];
    bytes.iter_mut().step_by(4096).for_each(|byte| *byte = 1);
    let pages = bytes.iter().step_by(4096);
    let sum: usize = pages.map(|byte| usize::from(*byte)).sum();
    // The sum reads the memory, so the compiler keeps the writes.
    if sum == mib << 8 {
        Ok(())
    } else {
        Err("memory lost its content".into())
    }
}

/// Waits for a child process; returns its wait status, and the resources that it used.
fn wait(pid: u32) -> std::io::Result<(i32, libc::rusage)> {
    let mut status = 0;
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
    let pid = libc::pid_t::try_from(pid).map_err(std::io::Error::other)?;
    loop {
        // SAFETY: both pointers are to live values of the types that wait4 writes.
        let got = unsafe { libc::wait4(pid, &raw mut status, 0, usage.as_mut_ptr()) };
        if got == pid {
            // SAFETY: all of rusage is integers, zeroed before the call.
            return Ok((status, unsafe { usage.assume_init() }));
        }
        let error = std::io::Error::last_os_error();
        if error.kind() != std::io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

fn cpu_seconds(usage: &libc::rusage) -> f64 {
    let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
    seconds(usage.ru_utime) + seconds(usage.ru_stime)
}

/// Resources that this process has used so far, its own threads included (getrusage(2)).
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Used {
    /// User and system.
    pub(crate) cpu_seconds: f64,
    /// Voluntary context switches.
    pub(crate) switches: f64,
}

impl Used {
    /// Up to now.
    pub(crate) fn now() -> Self {
        let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
        // SAFETY: the pointer is to a live value of the type that getrusage writes; it fails for no
        // other reason.
        let _ = unsafe { libc::getrusage(libc::RUSAGE_SELF, usage.as_mut_ptr()) };
        // SAFETY: all of rusage is integers, zeroed before the call.
        let usage = unsafe { usage.assume_init() };
        Self {
            cpu_seconds: cpu_seconds(&usage),
            switches: usage.ru_nvcsw as f64,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn costs_and_failures_are_seen() {
        let mut meter = Meter::default();
        let script = "echo out; i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done";
        assert_eq!(meter.run(&mut shell(script)).unwrap(), "out\n");
        assert!(meter.resident_kib > 100 && meter.cpu_seconds > 0.0 && meter.seconds > 0.0);
        let error = meter.run(&mut shell("echo why >&2; exit 3")).unwrap_err();
        let error = error.to_string();
        assert!(error.contains("0x300") && error.contains("why"), "{error}");
        assert!(run(&mut Command::new("/no/such/program")).is_err());
    }

    #[test]
    fn server_stderr_becomes_one_line() {
        let mut server = shell("echo one >&2; echo >&2; echo two >&2");
        let said = ErrorOutput::of(&mut server).unwrap();
        assert_eq!(said.explain("is gone"), "is gone");
        server.status().unwrap();
        assert_eq!(said.explain("is gone"), "is gone: one: two");
    }
}
