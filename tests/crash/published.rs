//! Names that publish files: after a cut, a renamed or linked file is whole, and a file is unlinked
//! only if its copy is whole.
//!
//! No file is synced by its program. Another program syncs its own file after each step, so that
//! transactions end at every moment.

use crate::crash::cut::{Replay, plan};
use crate::crash::images;
use crate::crash::program::{Machine, MountSetup, ROOT, kernel};
use crate::crash::random::random_of;
use crate::crash::trial::cuts_per_trial;
use folio::syscall::{Fd, OpenFlags, Process};
use folio::vfs::MountOptions;

const ROUNDS: usize = 40;
const BYTES: usize = 30_000;

/// A way to publish a file, and the state that a cut must not leave.
struct Publication {
    name: &'static str,
    publish: fn(&Publisher, usize),
    is_broken: fn(&Process, usize) -> bool,
}

const PUBLICATIONS: [Publication; 5] = [
    Publication {
        name: "rename to a new name",
        publish: |program, n| {
            program.write_file("temporary", n);
            program.rename("temporary", &format!("final-{n}"));
        },
        is_broken: |p, n| is_damaged(p, &format!("final-{n}"), n),
    },
    Publication {
        name: "rename of an open file",
        publish: |program, n| {
            let fd = program.create("temporary");
            program.write(fd, n);
            program.rename("temporary", &format!("final-{n}"));
            program.process.close(fd).unwrap();
        },
        is_broken: |p, n| is_damaged(p, &format!("final-{n}"), n),
    },
    Publication {
        name: "link to a new name",
        publish: |program, n| {
            program.write_file("temporary", n);
            let (from, to) = (program.at("temporary"), program.at(&format!("final-{n}")));
            program.process.link(from, to).unwrap();
            program.commit();
            program.unlink("temporary");
        },
        is_broken: |p, n| is_damaged(p, &format!("final-{n}"), n),
    },
    Publication {
        name: "unlink of what was copied",
        publish: |program, n| {
            program.write_file(&format!("copy-{n}"), n);
            program.unlink(&format!("source-{n}"));
        },
        is_broken: |p, n| {
            p.stat(format!("{ROOT}/source-{n}")).is_err()
                && p.stat(format!("{ROOT}/copy-{n}")).is_ok()
                && is_damaged(p, &format!("copy-{n}"), n)
        },
    },
    Publication {
        name: "rename of a directory",
        publish: |program, n| {
            program.process.mkdir(program.at("new"), 0o755).unwrap();
            program.write_file("new/file", n);
            program.rename("new", &format!("final-{n}"));
        },
        is_broken: |p, n| is_damaged(p, &format!("final-{n}/file"), n),
    },
];

/// The program that publishes, and the one that syncs its own file.
struct Publisher {
    process: Process,
    synced: Fd,
}

impl Publisher {
    fn new(process: Process) -> Self {
        let flags = OpenFlags::CREAT | OpenFlags::RDWR;
        let synced = process
            .open(format!("{ROOT}/synced"), flags, 0o644)
            .unwrap();
        for n in 0..ROUNDS {
            let path = format!("{ROOT}/source-{n}");
            let fd = process.open(path, flags, 0o644).unwrap();
            process.close(fd).unwrap();
        }
        process.sync().unwrap();
        Self { process, synced }
    }

    fn at(&self, name: &str) -> String {
        format!("{ROOT}/{name}")
    }

    fn commit(&self) {
        self.process.pwrite(self.synced, b"committed", 0).unwrap();
        self.process.fsync(self.synced).unwrap();
    }

    fn create(&self, name: &str) -> Fd {
        let flags = OpenFlags::CREAT | OpenFlags::EXCL | OpenFlags::RDWR;
        let fd = self.process.open(self.at(name), flags, 0o644).unwrap();
        self.commit();
        fd
    }

    /// Writes the contents of file `n` in two parts.
    fn write(&self, fd: Fd, n: usize) {
        let bytes = contents(n);
        let (first, second) = bytes.split_at(BYTES / 2);
        self.process.pwrite(fd, first, 0).unwrap();
        self.commit();
        self.process.pwrite(fd, second, BYTES as u64 / 2).unwrap();
    }

    fn write_file(&self, name: &str, n: usize) {
        let fd = self.create(name);
        self.write(fd, n);
        self.process.close(fd).unwrap();
        self.commit();
    }

    fn rename(&self, from: &str, to: &str) {
        self.process.rename(self.at(from), self.at(to)).unwrap();
        self.commit();
    }

    fn unlink(&self, name: &str) {
        self.process.unlink(self.at(name)).unwrap();
        self.commit();
    }
}

fn contents(n: usize) -> Vec<u8> {
    vec![1 + n as u8; BYTES]
}

/// Whether the file exists with other contents than those of file `n`.
fn is_damaged(process: &Process, name: &str, n: usize) -> bool {
    let path = format!("{ROOT}/{name}");
    let Ok(fd) = process.open(path, OpenFlags::empty(), 0) else {
        return false;
    };
    let mut bytes = vec![0; BYTES + 1];
    let count = process.pread(fd, &mut bytes, 0).unwrap();
    process.close(fd).unwrap();
    bytes[..count] != contents(n)
}

/// Publishes under these mount options, cuts the power, and returns the broken states found.
fn broken(publication: &Publication, options: &str) -> Vec<String> {
    let mount = MountOptions::parse(options).unwrap();
    let setup = MountSetup {
        mount: mount.clone(),
        ..MountSetup::default()
    };
    let machine = Machine::new(images::folio(16, 1024), &setup);
    let publisher = Publisher::new(machine.process());
    let prepared = machine.recorded();
    for n in 0..ROUNDS {
        (publication.publish)(&publisher, n);
    }
    drop(publisher);
    let run = machine.end(Vec::new());
    let mut random = random_of(publication.name);
    let (plain, lossy) = plan(&run.record, cuts_per_trial(), &mut random);
    let (kernel, process) = kernel(8 << 20, false);
    let mut found = Vec::new();
    for cuts in [&plain, &lossy] {
        let mut replay = Replay::new(&run.before, &run.record);
        for cut in cuts.iter().filter(|cut| cut.recorded > prepared) {
            kernel
                .mount_ext4(replay.device(*cut), ROOT, &mount)
                .unwrap();
            let damaged = (0..ROUNDS).filter(|n| (publication.is_broken)(&process, *n));
            found.extend(damaged.map(|n| format!("{}: {cut}: file {n}", publication.name)));
            kernel.unmount(ROOT).unwrap();
        }
    }
    found
}

#[test]
fn published_files_survive_cuts() {
    for publication in &PUBLICATIONS {
        let found = broken(publication, "defaults");
        assert!(found.is_empty(), "{} damaged: {}", found.len(), found[0]);
    }
}

#[test]
fn unprotected_published_files_are_reported() {
    for publication in &PUBLICATIONS {
        let found = broken(publication, "noauto_da_alloc");
        assert!(!found.is_empty(), "{}: nothing was lost", publication.name);
    }
}
