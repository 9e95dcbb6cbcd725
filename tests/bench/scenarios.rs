//! Each scenario in its smallest form: tables with figures, and whatever is missing is named.

use super::results;
use crate::support::guest::Guest;
use crate::support::tools::{command, succeed};
use crate::support::{report_skip, requires};
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs::Permissions;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use tempfile::TempDir;

/// A folder in memory if there is one: nothing here looks at the disk.
fn folder() -> TempDir {
    let shm = Path::new("/dev/shm");
    let made = if shm.is_dir() {
        TempDir::new_in(shm)
    } else {
        TempDir::new()
    };
    made.expect("a folder")
}

/// Runs a scenario, and holds its results to what all results are.
fn measured(words: &[&str]) -> Value {
    let folder = folder();
    let results = results(folder.path(), words);
    assert_eq!(
        (results["format"].as_u64(), results["is_quick"].as_bool()),
        (Some(1), Some(true))
    );
    assert!(
        results["machine"]["cores"]
            .as_u64()
            .is_some_and(|cores| cores > 0),
        "{results}"
    );
    for report in results["scenarios"].as_array().expect("scenarios") {
        let name = report["scenario"].as_str().expect("a name");
        assert!(
            report["repeats"].as_u64().is_some_and(|count| count > 0),
            "{name}"
        );
        let tables = report["tables"].as_array().expect("tables");
        assert!(!tables.is_empty(), "{name}");
        for table in tables {
            let rows = table["rows"].as_array().expect("rows");
            assert!(!rows.is_empty(), "{name}: {table}");
            rows.iter().for_each(check_row);
        }
    }
    let left: Vec<_> = std::fs::read_dir(folder.path())
        .expect("a folder")
        .flatten()
        .collect();
    assert!(left.is_empty(), "left behind: {left:?}");
    results
}

fn check_row(row: &Value) {
    let [least, median, most] =
        ["least", "median", "most"].map(|key| row[key].as_f64().expect("a figure"));
    assert!(0.0 <= least && least <= median && median <= most, "{row}");
    let rounds = row["rounds"].as_array().expect("rounds");
    assert!(
        !rounds.is_empty() && rounds.iter().all(Value::is_f64),
        "{row}"
    );
    assert!(
        row["job"].is_string() && row["contender"].is_string(),
        "{row}"
    );
}

/// The names of contenders in all tables.
fn contenders(results: &Value) -> Vec<String> {
    let tables = results["scenarios"].as_array().into_iter().flatten();
    let tables = tables.flat_map(|report| report["tables"].as_array().into_iter().flatten());
    let rows = tables.flat_map(|table| table["rows"].as_array().into_iter().flatten());
    rows.filter_map(|row| row["contender"].as_str().map(str::to_owned))
        .collect()
}

fn published(results: &Value) -> Vec<f64> {
    let figures = results["scenarios"][0]["story"]["figures"]
        .as_array()
        .expect("a story's figures");
    figures
        .iter()
        .filter_map(|figure| figure["published"].as_f64())
        .collect()
}

#[test]
fn a_shared_folder() {
    let results = measured(&["shared-folder"]);
    let names = contenders(&results);
    assert!(
        names.iter().any(|name| name == "native")
            && names.iter().any(|name| name == "folio in process")
    );
    assert_eq!(published(&results), [10.0]);
}

#[test]
fn article_table_has_columns_of_iozone() {
    let results = measured(&["shared-folder", "--iozone"]);
    let report = &results["scenarios"][0];
    let jobs = |title: &str, contender: &str| {
        let rows = rows(&results, title).iter();
        let rows = rows.filter(|row| row["contender"] == contender);
        rows.map(|row| row["job"].as_str().expect("a job").to_owned())
            .collect::<Vec<_>>()
    };
    let columns = "write, rewrite, read, reread, random read, random write";
    let programs = "open, read 64 KiB, close; stat of one path";
    // Before and after.
    for contender in [
        "native",
        "folio mount, cache=none",
        "folio mount, ttl=1s",
        "folio mount",
    ] {
        let is_skipped = report["not_measured"].to_string().contains(contender);
        let found = jobs("IOzone, 64 KiB records", contender).join(", ");
        assert_eq!(found, if is_skipped { "" } else { columns }, "{report}");
        let found = jobs("again and again", contender).join("; ");
        assert_eq!(found, if is_skipped { "" } else { programs }, "{report}");
    }
    let by_iozone = report["notes"].to_string().contains("measured by");
    let by_bench = report["not_measured"].to_string().contains("iozone itself");
    assert!(by_iozone != by_bench, "{report}");
    assert_eq!(published(&results), [10.0]);
}

#[test]
fn article_table_is_made_in_a_guest() {
    if let Err(reason) = Guest::new() {
        return report_skip(&reason);
    }
    let words = ["shared-folder", "--guest", "--iozone", "--repeats", "1"];
    let results = measured(&[&words[..], &["--only", "folio share, ttl=1s"]].concat());
    assert_eq!(rows(&results, "IOzone, 64 KiB records").len(), 6);
    assert_eq!(rows(&results, "again and again").len(), 2);
}

#[test]
fn trees_are_measured_on_mounts_and_in_a_guest() {
    requires!(tool("git"), tool("tar"));
    const JOBS: usize = 6;
    let of_native = |results: &Value| {
        let rows = rows(results, "trees").iter();
        rows.filter(|row| row["contender"] == "native").count()
    };
    let results = measured(&["shared-folder", "--trees", "--only", "native"]);
    assert_eq!(of_native(&results), JOBS);
    if let Err(reason) = Guest::new() {
        return report_skip(&reason);
    }
    let words = ["shared-folder", "--guest", "--trees", "--repeats", "1"];
    let results = measured(&[&words[..], &["--only", "folio share, ttl=1s"]].concat());
    assert_eq!(rows(&results, "trees").len(), JOBS);
}

#[test]
fn refused_mount_is_reported_once_with_reason() {
    requires!(root, fuse, tool("fusermount3"), tool("setpriv"));
    if std::fs::metadata("/dev/fuse").map_or(0, |device| device.mode()) & 0o006 != 0o006 {
        return report_skip("needs a /dev/fuse that every user may open");
    }
    let folder = TempDir::new().expect("a folder");
    std::fs::set_permissions(folder.path(), Permissions::from_mode(0o777)).expect("rights");
    let program = folder.path().join("folio-bench");
    std::fs::copy(crate::BENCH, &program).expect("a copy");
    std::fs::copy(crate::folio(), folder.path().join("folio")).expect("a copy");
    let mut command = command("setpriv");
    command
        .args(["--reuid=65534", "--regid=65534", "--clear-groups"])
        .arg(&program);
    command.args([
        "--quiet",
        "--quick",
        "--json",
        "--repeats",
        "1",
        "shared-folder",
    ]);
    command
        .args(["--only", "passthrough"])
        .current_dir(folder.path())
        .env("TMPDIR", folder.path());
    let output = succeed(&mut command);
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    let results: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let left_out = results["scenarios"][0]["not_measured"]
        .as_array()
        .expect("what is left out");
    let left_out: Vec<_> = left_out
        .iter()
        .filter(|left| left["what"] == "folio mount, passthrough")
        .collect();
    let reason = "does not mount: folio: mount: option passthrough=on: needs root";
    assert!(
        left_out.len() == 1 && left_out[0]["reason"] == reason,
        "{left_out:?}"
    );
}

#[test]
fn rewriting_by_truncation() {
    let results = measured(&["auto-da-alloc", "--only", "folio"]);
    // Each on disks of this machine, and on a model of a disk.
    assert_eq!(published(&results), [6.0, 6.0, 0.35, 0.35, 0.35, 0.35]);
    let skipped = results["scenarios"][0]["not_measured"].as_array();
    let is_skipped = skipped.is_some_and(|all| all.iter().any(|one| one["what"] == "folio mount"));
    let is_measured = contenders(&results)
        .iter()
        .any(|name| name == "folio mount");
    assert!(is_measured != is_skipped, "{results}");
    let figures = &results["scenarios"][0]["story"]["figures"];
    let today = figures[1]["today"].as_array().expect("figures");
    assert!(!today.is_empty(), "{figures}");
    for figure in figures.as_array().expect("figures") {
        let is_modeled = figure["what"].as_str().unwrap().contains("modeled");
        for today in figure["today"].as_array().expect("figures") {
            let disk = today["contender"].as_str().unwrap();
            assert_eq!(disk.ends_with("; SATA disk"), is_modeled, "{figure}");
        }
    }
}

#[test]
fn first_writes() {
    let results = measured(&["first-write", "--size-mib", "64"]);
    assert!(
        contenders(&results)
            .iter()
            .any(|name| name == "fresh qcow2, folio")
    );
    assert_eq!(published(&results), [19.5, 10.0]);
}

#[test]
fn first_writes_in_a_guest() {
    requires!(tool("mke2fs"));
    if let Err(reason) = Guest::new() {
        return report_skip(&reason);
    }
    let words = ["first-write", "--guest", "--size-mib", "128"];
    let results = measured(&[&words[..], &["--repeats", "1"]].concat());
    for door in ["folio serve vhost-user-blk", "QEMU's own drivers"] {
        let rows = rows(&results, &format!("in a guest, by {door}"));
        assert_eq!(rows.len(), 2 * 3, "{rows:?}");
    }
    assert_eq!(published(&results), [19.5, 10.0]);
}

#[test]
fn copy_loops() {
    let results = measured(&["memcpy"]);
    assert_eq!(published(&results), [513e-6, 74e-6]);
    let jobs = results["scenarios"][0]["tables"][0]["rows"]
        .as_array()
        .expect("rows");
    assert_eq!(jobs.len(), 4 * 6);
}

#[test]
fn files_of_a_database() {
    let results = measured(&["page-cache"]);
    assert_eq!(published(&results), [1.0, 2.0]);
    for name in ["kernel", "kernel tmpfs", "folio, host folder"] {
        assert!(
            contenders(&results).iter().any(|found| found == name),
            "{name}"
        );
    }
}

#[test]
fn warm_ups_are_measured_on_a_disk() {
    // Cold needs a disk; where temporary files are in memory, the scenario reports it.
    let results = results(
        std::env::temp_dir().as_path(),
        &["page-cache", "--repeats", "1"],
    );
    let report = &results["scenarios"][0];
    let text = report["tables"].to_string();
    let is_skipped = report["not_measured"].to_string().contains("is a tmpfs");
    assert!(
        is_skipped
            || text.contains("until all is in the page cache") && text.contains("folio warm"),
        "{report}"
    );
}

/// Rows of the first table with this title.
fn rows<'a>(results: &'a Value, title: &str) -> &'a Vec<Value> {
    let tables = results["scenarios"][0]["tables"]
        .as_array()
        .expect("tables");
    let table = tables
        .iter()
        .find(|table| table["title"] == title)
        .unwrap_or_else(|| panic!("{title}"));
    table["rows"].as_array().expect("rows")
}

#[test]
fn any_path_is_read_and_statted() {
    let folder = TempDir::new().expect("a folder");
    let (small, large) = (
        folder.path().join("tree/small"),
        folder.path().join("large"),
    );
    std::fs::create_dir(folder.path().join("tree")).expect("a folder");
    std::fs::write(&small, [1; 100]).expect("written");
    std::fs::write(&large, vec![1; 300_000]).expect("written");
    let results = measured(&["read", &large.display().to_string()]);
    for row in rows(&results, "in order") {
        let evidence = &row["evidence"];
        if row["contender"] == "warm" {
            // A user without the permission to see the cache state has no figure.
            assert!(
                evidence["cached_before"]
                    .as_f64()
                    .is_none_or(|share| share > 0.99),
                "{row}"
            );
        }
    }
    let both = measured(&["read", &folder.path().display().to_string()]);
    assert!(
        both["scenarios"][0]["what"]
            .as_str()
            .is_some_and(|what| what.contains("2 files")),
        "{both}"
    );
    let results = measured(&["stat", &folder.path().display().to_string()]);
    assert!(
        rows(&results, "time of each")
            .iter()
            .any(|row| row["job"] == "each path of the tree")
    );
}

#[test]
fn a_folder_is_written_in_and_left_as_it_was() {
    let folder = TempDir::new().expect("a folder");
    std::fs::write(folder.path().join("file"), "mine").expect("written");
    let results = measured(&["write", &folder.path().display().to_string()]);
    assert!(
        rows(&results, "in order")
            .iter()
            .any(|row| row["contender"] == "written and synced")
    );
    let names: Vec<_> = std::fs::read_dir(folder.path())
        .expect("a folder")
        .flatten()
        .collect();
    assert_eq!(names.len(), 1, "{names:?}");
}

#[test]
fn all_stories_in_one_result() {
    let results = measured(&["all", "--repeats", "1"]);
    let names: Vec<_> = results["scenarios"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|report| report["scenario"].as_str())
        .collect();
    assert_eq!(
        names,
        [
            "shared-folder",
            "auto-da-alloc",
            "memcpy",
            "page-cache",
            "first-write"
        ]
    );
    for report in results["scenarios"].as_array().expect("scenarios") {
        let figures = report["story"]["figures"].as_array().expect("figures");
        let has_today = |figure: &Value| {
            figure["today"]
                .as_array()
                .is_some_and(|today| !today.is_empty())
        };
        assert!(figures.iter().any(has_today), "{report}");
    }
}

#[test]
fn cached_files() {
    let results = measured(&["cache"]);
    for name in ["folio", "kernel tmpfs", "memcpy"] {
        assert!(
            contenders(&results).iter().any(|found| found == name),
            "{name}"
        );
    }
}

#[test]
fn trees_and_images() {
    for scenario in ["image", "one-dir", "file", "small-file"] {
        let results = measured(&[scenario, "--dir", ".", "--size-mib", "64"]);
        assert!(
            contenders(&results)
                .iter()
                .any(|name| name.starts_with("folio")),
            "{scenario}"
        );
    }
}

#[test]
fn files_are_warmed() {
    let results = results(std::env::temp_dir().as_path(), &["warm"]);
    let report = &results["scenarios"][0];
    let is_skipped = report["not_measured"]
        .to_string()
        .contains("cannot be put out of memory");
    assert!(
        is_skipped || contenders(&results).iter().any(|name| name == "folio warm"),
        "{report}"
    );
    if !is_skipped {
        for title in [
            "large files, read again after each command",
            "large files, read at random after each command",
        ] {
            let names: Vec<_> = rows(&results, title)
                .iter()
                .map(|row| row["contender"].as_str().unwrap())
                .collect();
            assert!(
                ["folio warm", "folio cache restore", "cat"]
                    .iter()
                    .all(|name| names.contains(name)),
                "{title}: {names:?}"
            );
        }
    }
}

#[test]
fn seeking_disk_is_made_and_removed() {
    requires!(root, fuse, loop_devices, tool("mke2fs"), tool("vmtouch"));
    let folder = TempDir::new().expect("a folder");
    let words = [
        "warm",
        "--repeats",
        "1",
        "--size",
        "8M",
        "--files",
        "10",
        "--seeking-files",
        "60",
    ];
    let dir = folder.path().display().to_string();
    let results = measured(&[&words[..], &["--disk-dir", &dir]].concat());
    let title = "aged files on a disk that seeks (modeled SATA disk, 7200 turns a minute)";
    let seeks = |contender: &str| {
        let row = rows(&results, title)
            .iter()
            .find(|row| row["contender"] == contender);
        let evidence = &row.unwrap_or_else(|| panic!("{contender}: {results}"))["evidence"];
        assert!(
            evidence["device_read_bytes"]
                .as_f64()
                .is_some_and(|bytes| bytes > 1e6),
            "{evidence}"
        );
        evidence["seeks"].as_f64().expect("a count")
    };
    assert!(seeks("folio warm") * 3.0 < seeks("vmtouch -t"), "{results}");
    assert!(
        seeks("folio cache restore") * 3.0 < seeks("vmtouch -t"),
        "{results}"
    );
    let mounts = std::fs::read_to_string("/proc/mounts").expect("mounts");
    assert!(!mounts.contains(&dir), "{mounts}");
    for device in std::fs::read_dir("/sys/block").expect("devices").flatten() {
        let file =
            std::fs::read_to_string(device.path().join("loop/backing_file")).unwrap_or_default();
        assert!(!file.contains(&dir), "{file}");
    }
    assert_eq!(
        std::fs::read_dir(folder.path()).expect("a folder").count(),
        0
    );
}

#[test]
fn requests_over_a_socket() {
    requires!(tool("fio"), tool("qemu-img"));
    measured(&["nbd", "--dir", ".", "--repeats", "1"]);
}

#[test]
fn conversions() {
    requires!(tool("qemu-img"));
    measured(&["convert", "--dir", "."]);
}

#[test]
fn subcommands_of_qemu_img() {
    requires!(tool("qemu-img"));
    measured(&["image-tools", "--dir", ".", "--repeats", "1"]);
}

#[test]
fn images_are_built_beside_the_tools() {
    requires!(tool("mke2fs"), tool("tar"), tool("gzip"), tool("sha256sum"));
    let results = measured(&["build", "--disk-dir", ".", "--size-mib", "4"]);
    let report = &results["scenarios"][0];
    for (title, contenders) in [
        ("container image into raw", 3),
        ("tar.gz into raw", 3),
        ("tar into raw", 3),
        ("tree into raw", 3),
    ] {
        assert_eq!(rows(&results, title).len(), contenders, "{title}");
    }
    // skopeo, umoci and qemu-img may be missing.
    let is_skipped = report["not_measured"].to_string().contains("skopeo");
    let qcow2 = rows(&results, "container image into qcow2").len();
    assert_eq!(qcow2, if is_skipped { 2 } else { 3 });
}

#[test]
fn given_container_image_is_built() {
    requires!(tool("mke2fs"), tool("tar"), tool("gzip"));
    let folder = folder();
    std::fs::write(folder.path().join("file"), [7; 300_000]).expect("written");
    let folio = |words: &[&str]| {
        let mut folio = std::process::Command::new(crate::folio());
        succeed(folio.arg("-q").args(words).current_dir(folder.path()));
    };
    folio(&["cp", "-a", "--create", "16M", "file", "one.img:/"]);
    folio(&["cp", "-a", "one.img:/", "oci:layout:app"]);
    let reference = format!("oci:{}:app", folder.path().join("layout").display());
    let results = measured(&["build", "--disk-dir", ".", "--source", &reference]);
    let what = results["scenarios"][0]["what"].as_str().expect("a text");
    assert!(what.contains("1 layers"), "{what}");
}

#[test]
fn commands_inside_an_image() {
    requires!(root, fuse, user_namespaces, tool("busybox"));
    let tree = folder();
    let programs = tree.path().join("bin");
    std::fs::create_dir(&programs).expect("a folder");
    let busybox = crate::support::require::find("busybox").expect("found before");
    std::fs::copy(busybox, programs.join("sh")).expect("a copy");
    let path = tree.path().to_str().expect("UTF-8");
    let place = folder();
    let place = place.path().to_str().expect("UTF-8");
    let results = measured(&["run", "--tree", path, "--dir", place]);
    let contenders = rows(&results, "commands");
    assert!(
        contenders.iter().any(|row| row["contender"] == "folio run"),
        "{results}"
    );
    let mounts = std::fs::read_to_string("/proc/mounts").expect("mounts");
    assert!(!mounts.contains(place), "{mounts}");
}

#[test]
fn programs_inside_an_image() {
    requires!(tool("mke2fs"), tool("bash"), tool("tar"), tool("git"));
    let place = folder();
    let place = place.path().to_str().expect("UTF-8");
    let results = measured(&["run", "--direct", "--dir", place]);
    let jobs: Vec<_> = rows(&results, "jobs")
        .iter()
        .filter(|row| row["contender"] == "folio run --direct")
        .collect();
    assert!(jobs.len() >= 5, "{results}");
    let mounts = std::fs::read_to_string("/proc/mounts").expect("mounts");
    assert!(!mounts.contains(place), "{mounts}");
}

#[test]
fn python_beside_its_rivals() {
    // Of `cargo xtask python`, beside the folder of this build's profile.
    let python = Path::new(crate::BENCH)
        .ancestors()
        .nth(2)
        .expect("a folder")
        .join("python/bin/python");
    let works = std::process::Command::new(&python)
        .args(["-c", "import foliofs"])
        .output();
    if !works.is_ok_and(|output| output.status.success()) {
        return report_skip("needs the environment of cargo xtask python");
    }
    let python = python.to_str().expect("UTF-8");
    let results = measured(&["python", "--python", python, "--disk-dir", "."]);
    let report = &results["scenarios"][0];
    for name in [
        "foliofs, image",
        "Python, host's folder",
        "Python, kernel's ext4",
        "Python, fuse2fs",
        "ext4 of PyPI, image",
        "dissect.extfs of PyPI, image",
    ] {
        let is_skipped = report["not_measured"].to_string().contains(name);
        let jobs = rows(&results, "each operation")
            .iter()
            .filter(|row| row["contender"] == name);
        assert_eq!(
            jobs.count(),
            if is_skipped { 0 } else { 4 },
            "{name}: {report}"
        );
    }
}

#[test]
fn files_in_device_memory() {
    requires!(tool("c++"));
    let results = measured(&["gpu", "--device", "host", "--repeats", "1"]);
    let tables = results["scenarios"][0]["tables"]
        .as_array()
        .expect("tables");
    let counts: Vec<_> = tables
        .iter()
        .map(|table| table["rows"].as_array().map_or(0, Vec::len))
        .collect();
    assert_eq!(counts, [2, 1, 3, 2]);
}

#[test]
fn verdicts_of_the_doctor() {
    // A quick run takes one set-up of twelve: a fault, and a healthy command.
    let results = measured(&["doctor", "--only", "tmpfs"]);
    for (table, job) in [
        ("first finding is right", "tiny-buffers"),
        ("no finding", "tmpfs"),
    ] {
        let rows = rows(&results, table);
        assert_eq!((rows.len(), &rows[0]["job"]), (1, &job.into()), "{rows:?}");
    }
}

#[test]
fn gpu_that_is_missing_fails_with_one_line() {
    let mut bench = std::process::Command::new(crate::BENCH);
    let output = bench
        .args(["-q", "--quick", "gpu", "--ordinal", "1000"])
        .output()
        .expect("folio-bench runs");
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success(), "{message}");
    assert!(output.stdout.is_empty());
    assert_eq!(message.lines().count(), 1, "{message}");
    assert!(message.contains("CUDA"), "{message}");
}

#[test]
fn operations_on_ext4() {
    measured(&["ext4-ops"]);
}

#[test]
fn jobs_on_mounts_and_their_requests() {
    requires!(fuse, tool("tar"), tool("git"), tool("fusermount3"));
    let results = measured(&["mount", "--with", "noatime"]);
    let report = &results["scenarios"][0];
    let times = rows(&results, "jobs");
    let names: BTreeSet<&str> = times
        .iter()
        .filter_map(|row| row["contender"].as_str())
        .collect();
    let image = "folio mount, image";
    for name in [
        image,
        "folio mount, directory",
        "folio mount, image, -o noatime",
        "kernel loop mount",
        "fuse2fs",
    ] {
        let is_skipped = report["not_measured"].to_string().contains(name);
        assert!(names.contains(name) != is_skipped, "{name}: {report}");
    }
    assert_eq!(times.len(), 13 * names.len());
    let requests = rows(&results, "FUSE requests");
    let figure = |job: &str, contender: &str| {
        let row = requests
            .iter()
            .find(|row| row["job"] == job && row["contender"] == contender);
        row.unwrap_or_else(|| panic!("{job}, {contender}: {report}"))
    };
    for row in times.iter().filter(|row| row["contender"] == image) {
        let job = row["job"].as_str().expect("a job");
        let least = figure(job, "least possible")["median"].as_f64();
        let counted = figure(job, image);
        if least > Some(0.0) {
            assert!(counted["median"].as_f64() > Some(0.0), "{counted}");
            assert!(
                counted["requests"]
                    .as_object()
                    .is_some_and(|by| !by.is_empty()),
                "{counted}"
            );
        }
    }
}
