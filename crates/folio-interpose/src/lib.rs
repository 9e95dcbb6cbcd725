//! Interposed file calls: records what unmodified programs ask of files, in a ring in memory.
//!
//! ```text
//!   programs                                   this process
//!   preload/  wraps libc's file calls  ---->   ring.rs         takes the records
//!             (LD_PRELOAD, no_std)     ring    tracker.rs      paths, descriptors, processes
//!   traced/   stops at system calls    ---->      |
//!             (ptrace, in this process)           v
//!                                              [`Event`]: the call, its file, its time
//!   calls.rs, layout.rs, writer.rs: the table, the format, and its writers' side, for both sources
//! ```
//!
//! Neighbors: `folio-doctor` above. The table of calls and the tracking of descriptors know nothing
//! of times.
//!
//! Invariants:
//! 1. A full ring drops records and counts them. No program waits for the reader.
//! 2. Bytes of the ring come from the programs: each place and length is checked.
//! 3. Programs that the library does not reach (static, set-user-id) start and run as before.
//! 4. A process that is traced while it runs goes on as before, however the tracer ends.

#![deny(unsafe_code)]

mod calls;
mod layout;
mod object;
mod ring;
mod traced;
mod tracker;
mod writer;

pub use calls::{Call, Detail, Names, Op, Returns};
pub use layout::{INCLUDES_GAP, MEASURED, Record};
pub use object::{Preload, is_supported};
pub use ring::{Omission, Ring};
pub use traced::{Ended, Reach, Tracer, now, reach};
pub use tracker::{Event, FileId, O_APPEND, O_TRUNC, OpenFile, Tracker};

/// Returns the table of calls, by the name of the C library's function.
pub fn table() -> Vec<(&'static str, Call)> {
    macro_rules! list {
        ($($name:ident $op:ident $names:ident $(($($place:literal),+))? $returns:ident
           $(($size:literal))? $detail:ident $(($index:literal))?;)*) => {
            vec![$((stringify!($name), Call {
                op: Op::$op,
                names: Names::$names $(($($place),+))?,
                returns: Returns::$returns $(($size))?,
                detail: Detail::$detail $(($index))?,
            })),*]
        };
    }
    calls::file_calls!(list)
}

#[cfg(test)]
#[path = "preload/loops.rs"]
mod loops;

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    #[test]
    fn operations_are_numbered_in_order() {
        for (number, op) in Op::ALL.into_iter().enumerate() {
            assert_eq!(op as usize, number, "{op:?}");
        }
    }

    type Events = Vec<(Op, Option<std::path::PathBuf>)>;

    fn events(mut tracker: Tracker, ring: &mut Ring) -> Events {
        let mut events = Vec::new();
        while let Some(record) = ring.take() {
            let event = tracker.follow(&record, ring).unwrap();
            let path = event.file.map(|file| tracker.path(file).to_owned());
            events.push((event.op, path));
        }
        assert_eq!(ring.dropped(), 0);
        events
    }

    /// Records a command and its children by the preloaded library.
    fn preloaded(mut command: Command) -> Events {
        let preload = Preload::create().unwrap();
        let mut ring = Ring::create().unwrap();
        preload.apply(&ring, &mut command);
        let mut child = command.spawn().unwrap();
        assert!(child.wait().unwrap().success());
        events(Tracker::new(child.id(), &[]), &mut ring)
    }

    /// Records a command and its children by their system calls.
    #[cfg(target_arch = "x86_64")]
    fn traced(command: Command) -> Events {
        let mut ring = Ring::create().unwrap();
        let tracer = Tracer::spawn(command, &ring).unwrap();
        let tracker = Tracker::new(tracer.pid(), &[]);
        tracer.join().unwrap();
        events(tracker, &mut ring)
    }

    /// Checks the calls of a shell and its children.
    #[track_caller]
    fn names_files(shell: &[&str], record: fn(Command) -> Events) {
        let folder = tempfile::TempDir::new().unwrap();
        let (from, to) = (folder.path().join("from"), folder.path().join("to"));
        std::fs::write(&from, "content").unwrap();
        let script = "cd \"$0\" && dd < from > ./x && mv x to && env -i cat to";
        let mut command = Command::new(shell[0]);
        command.args(&shell[1..]).args(["-c", script]);
        command.arg(folder.path()).stderr(Stdio::null());
        let events = record(command);
        assert_eq!(std::fs::read(&to).unwrap(), b"content");
        let has = |op, path: &std::path::Path| events.contains(&(op, Some(path.to_owned())));
        // Descriptors that a child inherits as its standard streams.
        assert!(has(Op::Read, &from), "{events:#?}");
        assert!(has(Op::Write, &folder.path().join("x")), "{events:#?}");
        assert!(has(Op::Rename, &folder.path().join("x")), "{events:#?}");
        // The environment without the library is completed.
        assert!(has(Op::Open, &to), "{events:#?}");
    }

    #[test]
    fn calls_of_a_child_name_their_files() {
        names_files(&["sh"], preloaded);
    }

    #[test]
    #[cfg(target_arch = "x86_64")]
    fn traced_calls_name_their_files() {
        names_files(&["sh"], traced);
        if reach("busybox".as_ref()) == Reach::Static {
            names_files(&["busybox", "sh"], traced);
        } else {
            eprintln!("skipped: no static busybox");
        }
    }

    #[test]
    #[cfg(target_arch = "x86_64")]
    fn missing_program_cannot_be_traced() {
        let ring = Ring::create().unwrap();
        let error = Tracer::spawn(Command::new("/nonexistent"), &ring).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::NotFound);
    }

    #[test]
    fn script_is_reached_as_its_interpreter() {
        let folder = tempfile::TempDir::new().unwrap();
        let script = folder.path().join("script");
        // This program, whatever it is.
        let own = std::env::current_exe().unwrap();
        let by_own = format!("#!{} sh", own.display());
        for (line, expected) in [
            ("#! /bin/sh -e", Reach::Preloaded),
            (by_own.as_str(), reach(own.as_os_str())),
        ] {
            std::fs::write(&script, line).unwrap();
            assert_eq!(reach(script.as_os_str()), expected, "{line}");
        }
    }

    /// The numbers of records and of calls, of tiny reads and of tiny writes.
    fn tiny_calls(command: &mut Command) -> [(u64, u64); 2] {
        let preload = Preload::create().unwrap();
        let mut ring = Ring::create().unwrap();
        preload.apply(&ring, command);
        assert!(command.status().unwrap().success());
        let mut found = [(0, 0); 2];
        while let Some(record) = ring.take() {
            let op = Op::ALL[usize::from(record.op)];
            if op.is_tiny(record.detail) {
                let (records, calls) = &mut found[usize::from(op == Op::Write)];
                *records += 1;
                *calls += 1 + u64::from(record.more_calls);
            }
        }
        assert_eq!(ring.dropped(), 0);
        found
    }

    #[test]
    fn each_tiny_call_of_a_loop_is_counted() {
        let folder = tempfile::TempDir::new().unwrap();
        let file = folder.path().join("file");
        let mut command = Command::new("dd");
        command.args(["if=/dev/zero", "bs=1", "count=100000", "status=none"]);
        command.arg(format!("of={}", file.display()));
        for (records, calls) in tiny_calls(&mut command) {
            assert_eq!(calls, 100_000);
            assert!(records < calls, "{records}");
        }
    }

    #[test]
    fn joined_calls_of_threads_are_recorded_at_the_end() {
        let script = "import os, threading\n\
                      run = lambda: [os.write(1, b'x') for _ in range(1000)]\n\
                      all = [threading.Thread(target=run) for _ in range(4)]\n\
                      [one.start() for one in all]\n\
                      [one.join() for one in all]\n\
                      os._exit(0)";
        let mut command = Command::new("python3");
        command.args(["-c", script]).stdout(Stdio::null());
        if command.status().is_err() {
            eprintln!("skipped: no python3");
            return;
        }
        let [_, (_, writes)] = tiny_calls(&mut command);
        assert_eq!(writes, 4000);
    }

    /// What a program finds after an omission on the device of its folder, or on another one: the
    /// error of a sync that a FIFO cannot make, and the flag of an open.
    #[track_caller]
    fn found_with(omission: fn(u64) -> Omission, is_own_device: bool) -> String {
        let folder = tempfile::TempDir::new().unwrap();
        let script = "import os, fcntl\n\
                      def sync(fd):\n \
                      try: os.fsync(fd); return 0\n \
                      except OSError as error: return error.errno\n\
                      os.mkfifo('fifo'); fifo = os.open('fifo', os.O_RDWR)\n\
                      file = os.open('file', os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_SYNC, 0o600)\n\
                      flags = fcntl.fcntl(file, fcntl.F_GETFL) & os.O_SYNC == os.O_SYNC\n\
                      print(sync(fifo), int(flags))";
        let device = std::os::unix::fs::MetadataExt::dev(&folder.path().metadata().unwrap());
        let ring = Ring::create().unwrap();
        ring.omit(omission(if is_own_device { device } else { device + 1 }));
        let preload = Preload::create().unwrap();
        let mut command = Command::new("python3");
        command.args(["-c", script]).current_dir(folder.path());
        preload.apply(&ring, &mut command);
        let output = command.output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout)
            .unwrap()
            .trim_end()
            .to_owned()
    }

    #[test]
    fn calls_before_a_close_by_another_thread_count() {
        let script = "import os, threading\n\
                      fd = os.dup(1)\n\
                      run = lambda: [os.write(fd, b'x') for _ in range(1000)]\n\
                      one = threading.Thread(target=run)\n\
                      one.start()\n\
                      one.join()\n\
                      os.close(fd)";
        let preload = Preload::create().unwrap();
        let mut ring = Ring::create().unwrap();
        let mut command = Command::new("python3");
        command.args(["-c", script]).stdout(Stdio::null());
        preload.apply(&ring, &mut command);
        if command.status().is_err() {
            return eprintln!("skipped: no python3");
        }
        // dup(2) of Python is a command of fcntl(2).
        let mut open = std::collections::HashSet::new();
        let mut writes = 0;
        while let Some(record) = ring.take() {
            match Op::ALL[usize::from(record.op)] {
                Op::Duplicate | Op::Control => drop(open.insert(record.result as i32)),
                Op::Close => drop(open.remove(&record.fd)),
                Op::Write if open.contains(&record.fd) => {
                    writes += 1 + u64::from(record.more_calls);
                }
                _ => {}
            }
        }
        assert_eq!(writes, 1000);
    }

    #[test]
    fn omissions_are_those_of_one_device() {
        if Command::new("python3").arg("--version").output().is_err() {
            return eprintln!("skipped: no python3");
        }
        // EINVAL, as the C library returned it.
        assert_eq!(found_with(Omission::Syncs, true), "0 1");
        assert_eq!(found_with(Omission::Syncs, false), "22 1");
        assert_eq!(found_with(Omission::SyncFlags, true), "22 0");
        assert_eq!(found_with(Omission::SyncFlags, false), "22 1");
    }

    #[test]
    fn creat_truncates_and_writes() {
        let (_, call) = table()
            .into_iter()
            .find(|(name, _)| *name == "creat")
            .unwrap();
        let flags =
            rustix::fs::OFlags::WRONLY | rustix::fs::OFlags::CREATE | rustix::fs::OFlags::TRUNC;
        assert_eq!(call.detail, Detail::Always(flags.bits() as usize));
    }

    #[test]
    fn each_function_is_wrapped_once() {
        let mut names: Vec<_> = table().into_iter().map(|(name, _)| name).collect();
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count);
    }
}
