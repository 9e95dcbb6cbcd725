//! Programs in C about what the system calls do not have. Each ends with "ok".

use crate::support::file_systems::{HELLO, images};
use crate::support::requires;
use crate::support::tools::fsck;
use crate::toolchain::{Build, Program, sources};
use std::path::Path;

/// Compiles and runs a program in each build that the machine can do.
#[track_caller]
fn run(source: &str, builds: &[Build], arguments: &[&str], then: impl Fn(&Program)) {
    for build in builds.iter().filter(|build| build.is_possible()) {
        let program = Program::new(&sources().join(source), *build);
        std::fs::create_dir(program.folder().join("host")).unwrap();
        assert!(program.run(arguments).ends_with("ok\n"), "{build:?}");
        then(&program);
    }
}

#[test]
fn handles_options_and_errors_are_checked() {
    run("calls.c", &Build::ALL, &["disk.qcow2", "host"], |program| {
        let written = std::fs::read(program.folder().join("host/from-c"));
        assert_eq!(written.unwrap(), b"text");
    });
}

#[test]
fn threads_share_a_process() {
    requires!(tool("e2fsck"));
    let check = |program: &Program| fsck(&program.folder().join("disk.img"));
    run(
        "threads.c",
        &[Build::C, Build::Sanitized],
        &["disk.img", "200"],
        check,
    );
    run("threads.c", &[Build::Valgrind], &["disk.img", "10"], check);
}

#[test]
fn child_of_fork_fails_and_never_hangs() {
    requires!(tool("e2fsck"));
    run(
        "fork.c",
        &[Build::C, Build::Static],
        &["disk.img"],
        |program| {
            fsck(&program.folder().join("disk.img"));
        },
    );
}

#[test]
fn thousand_kernels_leave_nothing_behind() {
    run(
        "kernels.c",
        &[Build::C, Build::Sanitized],
        &["1000"],
        |_| {},
    );
    let in_use = std::cell::RefCell::new(Vec::new());
    let keep = |program: &Program| {
        let log = program.valgrind_log();
        let line = log.lines().find(|line| line.contains("in use at exit"));
        let line = line.and_then(|line| line.split_once("in use at exit"));
        in_use.borrow_mut().push(line.unwrap().1.to_owned());
    };
    run("kernels.c", &[Build::Valgrind], &["10"], keep);
    run("kernels.c", &[Build::Valgrind], &["1000"], keep);
    // Memory that the process has once: it does not depend on the number of kernels.
    if let [few, many] = &in_use.into_inner()[..] {
        assert_eq!(few, many);
    }
}

#[test]
fn each_file_system_is_read_from_c() {
    requires!(
        tool("mke2fs"),
        tool("mkfs.vfat"),
        tool("mcopy"),
        tool("mksquashfs"),
        tool("mkfs.erofs"),
        tool("sfdisk"),
        tool("qemu-img")
    );
    let folder = tempfile::tempdir().unwrap();
    let images = images(folder.path());
    for build in [Build::C, Build::Sanitized] {
        if build.is_possible() {
            let program = Program::new(&sources().join("hello.c"), build);
            assert_eq!(program.run(&images), HELLO.repeat(images.len()));
        }
    }
}

#[test]
fn trees_go_in_and_out_from_c() {
    run("tree.c", &Build::ALL, &["disk.qcow2", "tree"], |program| {
        let back = program.folder().join("back");
        assert_eq!(std::fs::read(back.join("deep/file")).unwrap(), b"text");
        let target = std::fs::read_link(back.join("link")).unwrap();
        assert_eq!(target, Path::new("deep/file"));
    });
}
