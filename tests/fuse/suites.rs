//! Foreign suites, where they are installed: docs/conformance.md has versions, results and
//! exclusions.

use crate::support::require::find;
use crate::support::rounds;
use crate::support::tools::{command, mke2fs, text, write_program};
use crate::{Fixture, FuseMount, MountSource, for_each_source};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use tempfile::TempDir;

/// Settings of pjdfstest. A nap is longer than a tick of the clock for inode times.
const PJDFSTEST: &str = r#"
[features]
posix_fallocate = {}
rename_ctime = {}
utime_now = {}
utimensat = {}
[settings]
naptime = 0.02
allow_remount = REMOUNT
[dummy_auth]
entries = [["nobody", "nogroup"], ["daemon", "daemon"]]
"#;

/// Cases that cannot run through FUSE; docs/conformance.md says why.
const EXCLUDED: [&str; 1] = ["link::link_count_max"];

fn pjdfstest(fixture: &Fixture, second: &Path, patterns: &[&str], allow_remount: bool) -> String {
    let settings = PJDFSTEST.replace("REMOUNT", if allow_remount { "true" } else { "false" });
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), settings).unwrap();
    // Where a mount helper for FUSE is installed, mount(8) calls it to remount, which fails.
    let programs = TempDir::new().unwrap();
    let mount = programs.path().join("mount");
    let real = find("mount").unwrap();
    let script = format!("#!/bin/sh\nexec {} -i \"$@\"\n", real.display());
    write_program(&mount, script.as_bytes());
    let path = std::env::join_paths([
        programs.path(),
        "/usr/sbin".as_ref(),
        "/usr/bin".as_ref(),
        "/sbin".as_ref(),
        "/bin".as_ref(),
    ]);
    let mut suite = command("pjdfstest");
    suite.env("PATH", path.unwrap());
    suite
        .arg("-c")
        .arg(file.path())
        .arg("-p")
        .arg(fixture.mount.path())
        .arg("-s")
        .arg(second)
        .args(patterns);
    let output = suite.output().unwrap();
    let report = text(&output);
    assert!(
        output.status.success() && report.contains(" 0 failed"),
        "pjdfstest: {}\n{report}",
        output.status
    );
    report
}

fn skipped(report: &str) -> Vec<&str> {
    report
        .lines()
        .filter_map(|line| line.strip_suffix("skipped"))
        .map(str::trim)
        .collect()
}

for_each_source! {
    pjdfstest_passes: "allow_other,suid,dev", "pjdfstest", "mke2fs";
    fsx_passes: "rw", "fsx";
}

fn pjdfstest_passes(fixture: Fixture) {
    fs::set_permissions(fixture.mount.path(), fs::Permissions::from_mode(0o777)).unwrap();
    let scratch = TempDir::new().unwrap();
    let other = scratch.path().join("other.img");
    mke2fs(&other, "16M", &[]);
    let second = FuseMount::new(&other, "allow_other,suid,dev");
    let report = pjdfstest(&fixture, &second.path(), &[], false);
    let left: Vec<_> = skipped(&report)
        .into_iter()
        .filter(|case| !case.contains("::erofs_"))
        .collect();
    assert_eq!(left, EXCLUDED, "cases that did not run");
    // The erofs cases remount the file system of the other cases, so they run separately.
    let report = pjdfstest(&fixture, &second.path(), &["erofs"], true);
    assert_eq!(skipped(&report), [""; 0]);
    second.unmount();
    fixture.finish();
}

/// Settings of fsx with all its operations, msync and invalidation of mapped pages included.
const FSX: &str = r#"
flen = 1048576
[opsize]
min = 1
max = 65536
[weights]
close_open = 1
read = 10
write = 10
mapread = 10
mapwrite = 10
truncate = 5
invalidate = 1
fsync = 1
fdatasync = 1
posix_fallocate = 2
punch_hole = 2
sendfile = 2
posix_fadvise = 2
copy_file_range = 2
"#;

#[test]
fn fsx_with_writeback_passes() {
    if let Some(fixture) = Fixture::try_on(MountSource::Image, "rw,writeback", &["fsx"]) {
        fsx_passes(fixture);
    }
}

pub(crate) fn fsx_passes(fixture: Fixture) {
    let scratch = TempDir::new().unwrap();
    let settings = scratch.path().join("fsx.toml");
    fs::write(&settings, FSX).unwrap();
    for seed in 1..=3 {
        let mut suite = command("fsx");
        suite.arg("-f").arg(&settings).arg("-P").arg(scratch.path());
        let file = fixture.at(&format!("file {seed}"));
        let output = suite
            .args(["-S", &seed.to_string()])
            .args(["-N", &rounds::cases(6000).to_string()])
            .arg(file)
            .output()
            .unwrap();
        assert!(
            output.status.success(),
            "fsx, seed {seed}: {}",
            text(&output)
        );
    }
    fixture.finish();
}
