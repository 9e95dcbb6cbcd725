//! Resources of one command (time, processor time, memory), and of this process.

use serde::Serialize;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{Read, Seek};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Instant;

/// Cost of one run of a contender. Of several commands, times add up and memory is the largest.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub(crate) struct Cost {
    /// Wall-clock seconds.
    pub(crate) seconds: f64,
    /// User and system seconds of the processes; the kernel's own threads are not in it.
    pub(crate) cpu_seconds: f64,
    /// Largest resident set of a process, in KiB (getrusage(2), `ru_maxrss`). Linux begins a
    /// child's at its parent's, so nothing below this program's own few MiB can be seen.
    pub(crate) resident_kib: u64,
}

impl Cost {
    fn add(&mut self, other: Self) {
        self.seconds += other.seconds;
        self.cpu_seconds += other.cpu_seconds;
        self.resident_kib = self.resident_kib.max(other.resident_kib);
    }
}

/// Runs commands one after the other and adds up what they cost.
#[derive(Debug, Default)]
pub(crate) struct Meter {
    pub(crate) cost: Cost,
}

impl Meter {
    /// Runs `program`; its standard output is returned, a failure carries its standard error.
    pub(crate) fn run<A: AsRef<OsStr>>(
        &mut self,
        program: &OsStr,
        arguments: impl IntoIterator<Item = A>,
    ) -> Result<String, String> {
        let name = program.to_string_lossy().into_owned();
        let failed = |error: std::io::Error| format!("{name}: {error}");
        // Files, not pipes: no thread has to read them while the command runs.
        let (mut out, mut err) = (
            tempfile::tempfile().map_err(failed)?,
            tempfile::tempfile().map_err(failed)?,
        );
        let mut command = Command::new(program);
        command
            .args(arguments)
            .env("LC_ALL", "C")
            .stdin(Stdio::null());
        command
            .stdout(out.try_clone().map_err(failed)?)
            .stderr(err.try_clone().map_err(failed)?);
        let start = Instant::now();
        let child = command.spawn().map_err(failed)?;
        let (status, mut cost) = wait(child.id()).map_err(failed)?;
        cost.seconds = start.elapsed().as_secs_f64();
        self.cost.add(cost);
        if status != 0 {
            return Err(format!(
                "{name}: wait status {status:#x}: {}",
                text(&mut err).map_err(failed)?.trim()
            ));
        }
        text(&mut out).map_err(failed)
    }
}

/// The standard error of a server, kept for the message that explains why it is left out.
#[derive(Debug)]
pub(crate) struct Said(File);

impl Said {
    /// Captures the standard error of the process that `command` starts.
    pub(crate) fn by(command: &mut Command) -> Result<Self, String> {
        let failed = |error| format!("file for a server's standard error: {error}");
        let file = tempfile::tempfile().map_err(failed)?;
        command.stderr(file.try_clone().map_err(failed)?);
        Ok(Self(file))
    }

    /// Returns all that was said until now. The server shares the file's position, so it stays.
    pub(crate) fn text(&self) -> String {
        let mut bytes = vec![0; self.0.metadata().map_or(0, |found| found.len() as usize)];
        let read = self.0.read_at(&mut bytes, 0).unwrap_or(0);
        String::from_utf8_lossy(&bytes[..read]).into_owned()
    }

    /// `what` with all that was said until now, in one line.
    pub(crate) fn explain(&self, what: impl Into<String>) -> String {
        let said = self.text();
        let lines = said.lines().map(str::trim).filter(|line| !line.is_empty());
        std::iter::once(what.into())
            .chain(lines.map(str::to_owned))
            .collect::<Vec<_>>()
            .join(": ")
    }
}

fn text(file: &mut File) -> std::io::Result<String> {
    file.rewind()?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Starts a process that uses `mib` MiB of memory and gives it back.
///
/// In a virtual machine a page that was unused for a while may have returned to the machine's
/// host. The first process that uses it again pays several times the price of a copy. This call
/// gives all contenders the same pages.
pub(crate) fn touch_memory(mib: u64) -> Result<(), String> {
    Meter::default()
        .run(
            this_program()?.as_os_str(),
            ["touch-memory", &mib.to_string()],
        )
        .map(drop)
}

/// The program folio-bench, which runs parts of scenarios in processes of their own.
pub(crate) fn this_program() -> Result<PathBuf, String> {
    std::env::current_exe().map_err(|error| format!("folio-bench: {error}"))
}

/// Body of that process: writes and reads the memory.
pub(crate) fn use_memory(mib: usize) -> Result<(), String> {
    let mut bytes = vec![0_u8; mib << 20];
    bytes.iter_mut().step_by(4096).for_each(|byte| *byte = 1);
    let sum: usize = bytes
        .iter()
        .step_by(4096)
        .map(|byte| usize::from(*byte))
        .sum();
    // The sum reads the memory, so the compiler keeps the writes.
    (sum == mib << 8)
        .then_some(())
        .ok_or_else(|| "memory forgets".to_owned())
}

/// Waits for a child process; returns its wait status, and its cost without the wall-clock time.
fn wait(pid: u32) -> std::io::Result<(i32, Cost)> {
    let mut status = 0;
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
    let pid = libc::pid_t::try_from(pid).map_err(std::io::Error::other)?;
    loop {
        // SAFETY: both pointers are to live values of the types that wait4 writes.
        let got = unsafe { libc::wait4(pid, &raw mut status, 0, usage.as_mut_ptr()) };
        if got == pid {
            break;
        }
        let error = std::io::Error::last_os_error();
        if error.kind() != std::io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
    // SAFETY: all of rusage is integers, zeroed before the call.
    let usage = unsafe { usage.assume_init() };
    let cost = Cost {
        seconds: 0.0,
        cpu_seconds: cpu_seconds(&usage),
        resident_kib: u64::try_from(usage.ru_maxrss).unwrap_or(0),
    };
    Ok((status, cost))
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

    #[test]
    fn costs_and_failures_are_seen() {
        let mut meter = Meter::default();
        let said = meter.run(
            OsStr::new("sh"),
            [
                "-c",
                "echo out; i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done",
            ],
        );
        assert_eq!(said.as_deref(), Ok("out\n"));
        assert!(
            meter.cost.resident_kib > 100
                && meter.cost.cpu_seconds > 0.0
                && meter.cost.seconds > 0.0
        );
        let error = meter
            .run(OsStr::new("sh"), ["-c", "echo why >&2; exit 3"])
            .unwrap_err();
        assert!(error.contains("0x300") && error.contains("why"), "{error}");
        assert!(meter.run(OsStr::new("/no/such/program"), [""; 0]).is_err());
    }

    #[test]
    fn server_stderr_becomes_one_line() {
        let mut server = Command::new("sh");
        server.args(["-c", "echo one >&2; echo >&2; echo two >&2"]);
        let said = Said::by(&mut server).unwrap();
        assert_eq!(said.explain("is gone"), "is gone");
        server.status().unwrap();
        assert_eq!(said.explain("is gone"), "is gone: one: two");
    }
}
