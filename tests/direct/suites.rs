//! Foreign suites, where they are installed: docs/conformance.md has versions, results and
//! exclusions.

use crate::support::require::requires;
use crate::support::rounds;
use crate::support::tools::{succeed, text};
use crate::{Fixture, finish};
use std::fs;

/// Settings of pjdfstest. A nap is longer than a tick of the clock for inode times.
const PJDFSTEST: &str = r#"
[features]
posix_fallocate = {}
rename_ctime = {}
utime_now = {}
utimensat = {}
[settings]
naptime = 0.02
allow_remount = false
[dummy_auth]
entries = [["nobody", "nogroup"], ["daemon", "daemon"]]
"#;

/// Cases that fail: mount(2) on a directory of the image; and pathconf(3), which looks for the
/// image among the mounts.
const EXCLUDED: [&str; 2] = ["rmdir::ebusy", "link::link_count_max"];

#[test]
fn pjdfstest_passes() {
    requires!(root, tool("pjdfstest"));
    let fixture = Fixture::new("256M");
    let settings = fixture.folder.path().join("pjdfstest.toml");
    fs::write(&settings, PJDFSTEST).unwrap();
    succeed(&mut fixture.command(&["chmod", "777", &fixture.place().to_string_lossy()]));
    let place = fixture.place();
    let (place, settings) = (place.to_string_lossy(), settings.to_string_lossy());
    let suite = ["pjdfstest", "-c", &settings, "-p", &place];
    let output = finish(&mut fixture.command(&suite));
    let report = text(&output);
    let failed: Vec<_> = report
        .lines()
        .filter_map(|line| Some(line.strip_suffix("FAILED")?.trim()))
        .collect();
    assert_eq!(failed, EXCLUDED, "{report}");
    assert!(report.contains(" passed"), "{report}");
    fixture.check();
}

/// Settings of fsx without mappings, which it makes for writing, and without sendfile.
const FSX: &str = r#"
flen = 1048576
[opsize]
min = 1
max = 65536
[weights]
close_open = 1
read = 10
write = 10
mapread = 0
mapwrite = 0
truncate = 5
invalidate = 0
fsync = 1
fdatasync = 1
posix_fallocate = 2
punch_hole = 2
sendfile = 0
posix_fadvise = 2
copy_file_range = 2
"#;

#[test]
fn fsx_passes() {
    requires!(tool("fsx"));
    let fixture = Fixture::new("256M");
    let settings = fixture.folder.path().join("fsx.toml");
    fs::write(&settings, FSX).unwrap();
    for seed in 1..=3 {
        let file = fixture.place().join(format!("file {seed}"));
        let (seed, count) = (seed.to_string(), rounds::cases(6000).to_string());
        let folder = fixture.folder.path().to_string_lossy();
        let suite = ["fsx", "-f", &settings.to_string_lossy(), "-P", &folder];
        let more = ["-S", &seed, "-N", &count, &file.to_string_lossy()];
        let output = finish(&mut fixture.command(&[&suite[..], &more].concat()));
        assert!(
            output.status.success(),
            "fsx, seed {seed}: {}",
            text(&output)
        );
    }
    fixture.check();
}
