//! Foreign suites, where they are installed: docs/conformance.md has versions, results and
//! exclusions.

use crate::support::require::find;
use crate::support::tools::{command, mke2fs, text};
use crate::{Bench, FuseMount, Ground, everywhere};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use tempfile::TempDir;

/// What pjdfstest is told. A nap is longer than the step of the clock that stamps inodes.
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

fn pjdfstest(bench: &Bench, second: &Path, patterns: &[&str], allow_remount: bool) -> String {
    let settings = PJDFSTEST.replace("REMOUNT", if allow_remount { "true" } else { "false" });
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), settings).unwrap();
    // Where a helper for FUSE is installed, mount(8) asks it to remount, which it cannot.
    let programs = TempDir::new().unwrap();
    let mount = programs.path().join("mount");
    fs::write(
        &mount,
        format!(
            "#!/bin/sh\nexec {} -i \"$@\"\n",
            find("mount").unwrap().display()
        ),
    )
    .unwrap();
    fs::set_permissions(&mount, fs::Permissions::from_mode(0o755)).unwrap();
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
        .arg(bench.mount.path())
        .arg("-s")
        .arg(second)
        .args(patterns);
    let output = suite.output().unwrap();
    let told = text(&output);
    assert!(
        output.status.success() && told.contains(" 0 failed"),
        "pjdfstest: {}\n{told}",
        output.status
    );
    told
}

fn skipped(told: &str) -> Vec<&str> {
    told.lines()
        .filter_map(|line| line.strip_suffix("skipped"))
        .map(str::trim)
        .collect()
}

everywhere! {
    pjdfstest_passes: "allow_other,suid,dev", "pjdfstest", "mke2fs";
    fsx_passes: "rw", "fsx";
}

fn pjdfstest_passes(bench: Bench) {
    fs::set_permissions(bench.mount.path(), fs::Permissions::from_mode(0o777)).unwrap();
    let scratch = TempDir::new().unwrap();
    let other = scratch.path().join("other.img");
    mke2fs(&other, "16M", &[]);
    let second = FuseMount::new(&other, "allow_other,suid,dev");
    let told = pjdfstest(&bench, &second.path(), &[], false);
    let left: Vec<_> = skipped(&told)
        .into_iter()
        .filter(|case| !case.contains("::erofs_"))
        .collect();
    assert_eq!(left, EXCLUDED, "cases that did not run");
    // Those remount what the others use, so they run by themselves.
    let told = pjdfstest(&bench, &second.path(), &["erofs"], true);
    assert_eq!(skipped(&told), [""; 0]);
    second.unmount();
    bench.finish();
}

/// Every operation that fsx has, msync and invalidation of mapped pages among them.
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
fn fsx_passes_where_the_kernel_writes_back() {
    if let Some(bench) = Bench::try_on(Ground::Image, "rw,writeback", &["fsx"]) {
        fsx_passes(bench);
    }
}

fn fsx_passes(bench: Bench) {
    let scratch = TempDir::new().unwrap();
    let settings = scratch.path().join("fsx.toml");
    fs::write(&settings, FSX).unwrap();
    for seed in 1..=3 {
        let mut suite = command("fsx");
        suite.arg("-f").arg(&settings).arg("-P").arg(scratch.path());
        let file = bench.at(&format!("file {seed}"));
        let output = suite
            .args(["-S", &seed.to_string(), "-N", "5000"])
            .arg(file)
            .output()
            .unwrap();
        assert!(
            output.status.success(),
            "fsx, seed {seed}: {}",
            text(&output)
        );
    }
    bench.finish();
}
