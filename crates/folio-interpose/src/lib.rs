//! Interposed file calls: records what unmodified programs ask of files, in a ring in memory.
//!
//! ```text
//!   programs                                   this process
//!   preload/  wraps libc's file calls  ---->   ring.rs         takes the records
//!             (LD_PRELOAD, no_std)     ring    tracker.rs      paths, descriptors, processes
//!        \                             memfd      |
//!         calls.rs, layout.rs: table and format,  v
//!         shared by both sides                 [`Event`]: the call, its file, its time
//! ```
//!
//! Neighbors: `folio-doctor` above. The table of calls and the tracking of descriptors know nothing
//! of times.
//!
//! Invariants:
//! 1. A full ring drops records and counts them. No program waits for the reader.
//! 2. Bytes of the ring come from the programs: each place and length is checked.
//! 3. Programs without the library (static, set-user-id) start and run as before.

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
pub use ring::Ring;
pub use traced::{Ended, Reach, Tracer, reach};
pub use tracker::{Event, FileId, OpenFile, Tracker};

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
mod tests {
    use super::*;

    #[test]
    fn operations_are_numbered_in_order() {
        for (number, op) in Op::ALL.into_iter().enumerate() {
            assert_eq!(op as usize, number, "{op:?}");
        }
    }

    /// The calls of a command and its children, as events.
    fn recorded(words: &[&str]) -> Vec<(Op, Option<std::path::PathBuf>)> {
        let preload = Preload::create().unwrap();
        let mut ring = Ring::create().unwrap();
        let mut command = std::process::Command::new(words[0]);
        preload.apply(&ring, command.args(&words[1..]));
        let mut child = command.spawn().unwrap();
        assert!(child.wait().unwrap().success());
        let mut tracker = Tracker::new(child.id(), &[]);
        let mut events = Vec::new();
        while let Some(record) = ring.take() {
            let event = tracker.follow(&record, &ring).unwrap();
            let path = event.file.map(|file| tracker.path(file).to_owned());
            events.push((event.op, path));
        }
        assert_eq!(ring.dropped(), 0);
        events
    }

    #[test]
    fn calls_of_a_child_name_their_files() {
        let folder = tempfile::TempDir::new().unwrap();
        let (from, to) = (folder.path().join("from"), folder.path().join("to"));
        std::fs::write(&from, "content").unwrap();
        let script = "cd \"$0\" && dd status=none < from > ./x && mv x to && env -i cat to";
        let events = recorded(&["sh", "-c", script, folder.path().to_str().unwrap()]);
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
