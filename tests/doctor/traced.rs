//! Commands and processes that are traced: static programs, and processes that run already.

use super::workload::{checked, faults, seconds, workload_with};
use super::*;
use rustix::process::{Pid, Signal, kill_process};
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ChildStdin, ChildStdout};

/// Whether processes of this kernel and user can be traced.
macro_rules! requires_tracing {
    () => {
        if !cfg!(target_arch = "x86_64") {
            return crate::support::report_skip("system calls are traced on x86-64 only");
        }
        let scope = std::fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope");
        let scope = scope.unwrap_or_default();
        if matches!(scope.trim(), "2" | "3") {
            return crate::support::report_skip("kernel.yama.ptrace_scope forbids tracing");
        }
    };
}

/// A program of Python that writes a line for each line that it reads; ended when dropped.
struct Running {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Running {
    fn start(folder: &Path, script: &str) -> Self {
        let mut command = command("python3");
        command.args(["-u", "-c", script]).current_dir(folder);
        let command = command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let input = child.stdin.take();
        let output = BufReader::new(child.stdout.take().unwrap());
        Self {
            child,
            input,
            output,
        }
    }

    /// Waits for this line, its next one.
    #[track_caller]
    fn prints(&mut self, line: &str) {
        let mut found = String::new();
        self.output.read_line(&mut found).unwrap();
        assert_eq!(found, format!("{line}\n"));
    }

    fn attach(&self, options: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_folio"));
        command.args(["doctor", "--json", "--pid", &self.child.id().to_string()]);
        command.args(options).stdin(Stdio::null());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// Checks that no tracer is left, and that the program still answers and ends by itself.
    fn goes_on(mut self) {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        assert!(status.contains("\nTracerPid:\t0\n"), "{status}");
        self.input = None;
        let mut rest = String::new();
        self.output.read_to_string(&mut rest).unwrap();
        assert!(rest.ends_with("end\n"), "{rest}");
        assert!(self.child.wait().unwrap().success());
    }
}

/// Lets any process trace it (PR_SET_PTRACER, for Yama), and waits until one does; `write` then
/// writes with O_DSYNC until standard input ends.
const BEGIN: &str = "import ctypes, os, sys, threading, select, time\n\
    ctypes.CDLL(None).prctl(0x59616d61, ctypes.c_ulong(-1 % 2**64), 0, 0, 0)\n\
    fd = os.open('file', os.O_WRONLY | os.O_CREAT | os.O_DSYNC)\n\
    def write():\n\
    \x20   while not select.select([0], [], [], 0)[0]: os.pwrite(fd, b'x' * 4096, 0)\n\
    print('ready')\n\
    end = time.monotonic() + 60\n\
    while 'TracerPid:\\t0\\n' in open('/proc/self/status').read():\n\
    \x20   time.sleep(0.01)\n\
    \x20   if time.monotonic() > end: sys.exit('not traced')\n\
    print('traced')\n";

#[test]
fn static_program_is_traced() {
    requires_tracing!();
    requires!(tool("gcc"));
    let folder = TempDir::new().unwrap();
    let source = "#define _GNU_SOURCE\n#include <fcntl.h>\n#include <time.h>\n#include <unistd.h>\n\
        int main(void) {\n\
        int fd = open(\"file\", O_WRONLY | O_CREAT | O_DSYNC, 0600);\n\
        for (time_t end = time(0) + 2; time(0) < end;) pwrite(fd, \"x\", 1, 0);\n\
        return 0; }";
    std::fs::write(folder.path().join("a.c"), source).unwrap();
    let mut compile = command("gcc");
    compile.args(["-static", "-w", "-o", "writer", "a.c"]);
    let compiled = compile.current_dir(folder.path()).output().unwrap();
    if !compiled.status.success() {
        return crate::support::report_skip("gcc links no static programs here");
    }
    for (options, words) in [
        (&[][..], &["./writer"][..]),
        (&["--trace"], &["sh", "-c", "./writer; true"]),
    ] {
        let found = workload_with(folder.path(), options, words);
        assert_eq!(found["recorder"], "ptrace");
        assert_eq!(faults(&found), ["synchronous-writes"], "{found:#}");
        assert_eq!(found["unreached"].as_array().unwrap().len(), 0, "{found:#}");
        let example = found["checks"][0]["evidence"].as_str().unwrap();
        assert!(example.ends_with("/file"), "{found:#}");
    }
}

#[test]
fn busybox_is_traced_with_its_children() {
    requires_tracing!();
    requires!(tool("busybox"));
    let folder = TempDir::new().unwrap();
    written(&folder.path().join("from"), 1 << 20);
    let script = "busybox cat from > to; busybox tar -cf tree.tar to; exit 3";
    let output = Command::new(env!("CARGO_BIN_EXE_folio"))
        .args([
            "doctor", "--json", "--trace", "--", "busybox", "sh", "-c", script,
        ])
        .current_dir(folder.path())
        .output()
        .unwrap();
    let found = checked(&output);
    assert_eq!(
        (&found["exit_code"], &found["processes"]),
        (&3.into(), &3.into())
    );
    assert_eq!(seconds(&found, "unknown"), 0.0);
    let at = |name: &str| std::fs::read(folder.path().join(name)).unwrap();
    assert_eq!(at("from"), at("to"));
    assert!(at("tree.tar").len() > 1 << 20);
}

#[test]
fn missing_program_is_not_traced() {
    requires_tracing!();
    let output = doctor(["--trace", "--", "/nonexistent"]);
    assert_eq!(output.status.code(), Some(3), "{}", text(&output));
    assert!(text(&output).contains("No such file"), "{}", text(&output));
}

#[test]
fn running_process_is_examined_and_goes_on() {
    requires_tracing!();
    requires!(tool("python3"));
    let folder = TempDir::new().unwrap();
    // The file is open before. The main thread writes, or waits for a thread that does.
    for way in [
        "write()",
        "t = threading.Thread(target=write); t.start(); t.join()",
    ] {
        let script = format!("{BEGIN}{way}\nprint('end')");
        let mut running = Running::start(folder.path(), &script);
        running.prints("ready");
        let output = running.attach(&["--for", "2s"]).output().unwrap();
        let found = checked(&output);
        assert_eq!(found["pid"], running.child.id());
        assert_eq!(found["exit_code"], Value::Null);
        assert_eq!(found["command"][1], "-u", "{found:#}");
        assert_eq!(faults(&found), ["synchronous-writes"], "{found:#}");
        running.goes_on();
    }
}

#[test]
fn process_survives_the_end_of_its_tracer() {
    requires_tracing!();
    requires!(tool("python3"));
    let folder = TempDir::new().unwrap();
    for work in ["write()", "sys.stdin.read()"] {
        for signal in [Signal::KILL, Signal::INT] {
            let script = format!("{BEGIN}{work}\nprint('end')");
            let mut running = Running::start(folder.path(), &script);
            running.prints("ready");
            let tracer = running.attach(&[]).spawn().unwrap();
            running.prints("traced");
            kill_process(Pid::from_child(&tracer), signal).unwrap();
            let output = tracer.wait_with_output().unwrap();
            if signal == Signal::INT {
                checked(&output);
            }
            running.goes_on();
        }
    }
}

#[test]
fn end_of_the_process_ends_the_trace() {
    requires_tracing!();
    requires!(tool("python3"));
    let folder = TempDir::new().unwrap();
    let script = format!("{BEGIN}sys.stdin.read()\nsys.exit(5)");
    let mut running = Running::start(folder.path(), &script);
    running.prints("ready");
    let tracer = running.attach(&[]).spawn().unwrap();
    running.prints("traced");
    running.input = None;
    let found = checked(&tracer.wait_with_output().unwrap());
    assert_eq!(found["exit_code"], 5);
    assert_eq!(running.child.wait().unwrap().code(), Some(5));
}

#[test]
fn processes_that_do_not_exist_are_reported() {
    requires_tracing!();
    // Above the largest id of a process.
    let output = doctor(["--pid", "4194305"]);
    assert_eq!(output.status.code(), Some(3), "{}", text(&output));
    assert!(
        text(&output).contains("process 4194305"),
        "{}",
        text(&output)
    );
}
