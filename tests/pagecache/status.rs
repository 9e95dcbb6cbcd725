//! Reports: `folio cache status`, `meminfo` and `top`, and the files that all commands skip.

use super::*;

#[test]
fn status_matches_fincore() {
    undisturbed(|| {
        requires!(tool("fincore"));
        let bench = Bench::new();
        let file = bench.cold("tree/a", 2 * MIB);
        touch(&file, (0..100).map(|page| page * 5));
        bench.cold("tree/deep/b", MIB);
        fs::hard_link(&file, bench.path("tree/deep/again")).unwrap();
        let report = bench.json(&["cache", "status", "tree"]);
        assert_eq!(report["resident_bytes"], 100 * PAGE);
        assert_eq!(report["resident_bytes"].as_u64(), Some(resident(&file)));
        assert_eq!(
            (&report["files"], &report["size_bytes"]),
            (&2.into(), &(3 * MIB).into()),
            "a hard link is not counted twice"
        );
        assert_eq!(report["entries"].as_array().unwrap().len(), 3);
        let report = bench.json(&["cache", "status", "--tree", "tree"]);
        let paths: Vec<_> = report["entries"]
            .as_array()
            .unwrap()
            .iter()
            .map(|entry| &entry["path"])
            .collect();
        assert_eq!(paths, ["tree", "tree/deep"]);
        let text = bench.ok(&["cache", "status", "--sort", "cached", "-n", "1", "tree"]);
        assert!(
            text.contains("400K") && text.contains("tree/a") && !text.contains("deep/b"),
            "{text}"
        );
        let lines = bench.ok(&[
            "cache", "status", "-s", "--watch", "0.01", "--count", "3", "--json", "tree",
        ]);
        assert_eq!(lines.lines().count(), 3);
    });
}

#[test]
fn special_files_are_counted_and_skipped() {
    undisturbed(|| {
        let bench = Bench::new();
        fs::create_dir(bench.path("tree")).unwrap();
        run("mkfifo", [bench.path("tree/fifo")]);
        let socket = std::os::unix::net::UnixListener::bind(bench.path("tree/socket")).unwrap();
        std::os::unix::fs::symlink("/etc", bench.path("tree/etc")).unwrap();
        fs::write(bench.path("tree/file"), "x").unwrap();
        for arguments in [
            &["warm", "tree"][..],
            &["cache", "status", "tree"],
            &["cache", "drop", "tree"],
        ] {
            let report = bench.json(arguments);
            assert_eq!(
                (&report["files"], &report["not_regular"]),
                (&1.into(), &2.into()),
                "{arguments:?}"
            );
        }
        assert_eq!(
            bench.json(&["cache", "save", "set", "tree"])["not_regular"],
            2
        );
        drop(socket);
        let report = bench.json(&[
            "warm",
            "/dev/null",
            "/dev/zero",
            "/proc/self/status",
            "/proc/meminfo",
        ]);
        assert_eq!(
            (&report["not_regular"], &report["read_bytes"]),
            (&2.into(), &0.into())
        );
        // Some of these files are unreadable, some disappear; the command must not hang.
        bench.output(&["warm", "/proc/self", "/sys/kernel/mm"]);
        bench.output(&["cache", "status", "-s", "/proc/self", "/sys/kernel/mm"]);
        bench.partly(&["warm", "tree", "not/there"], "not/there: No such file");
        bench.partly(
            &["cache", "status", "tree", "not/there"],
            "not/there: No such file",
        );
        fs::remove_file(bench.path("tree/etc")).unwrap();
        fs::create_dir(bench.path("elsewhere")).unwrap();
        fs::write(bench.path("elsewhere/file"), "x").unwrap();
        std::os::unix::fs::symlink("../elsewhere", bench.path("tree/link")).unwrap();
        assert_eq!(bench.json(&["warm", "tree"])["files"], 1);
        assert_eq!(
            bench.json(&["warm", "-L", "tree"])["files"],
            2,
            "links are followed if asked"
        );
    });
}

/// An overlay; dropping it unmounts.
struct Overlay(PathBuf);

impl Drop for Overlay {
    fn drop(&mut self) {
        let _ = command("umount").arg("--lazy").arg(&self.0).status();
    }
}

#[test]
fn overlay_residency_comes_from_mincore() {
    undisturbed(|| {
        requires!(root, tool("mount"), tool("fincore"));
        let bench = Bench::new();
        let below = bench.cold("lower/file", 2 * MIB);
        for name in ["upper", "work", "merged"] {
            fs::create_dir(bench.path(name)).unwrap();
        }
        let options = ["lower", "upper", "work"]
            .map(|name| format!("{name}dir={}", bench.path(name).display()));
        let merged = bench.path("merged");
        let mut mount = command("mount");
        mount
            .args(["-t", "overlay", "overlay", "-o", &options.join(",")])
            .arg(&merged);
        let output = mount.output().unwrap();
        if !output.status.success() {
            return report_skip("overlays cannot be mounted here");
        }
        let overlay = Overlay(merged);
        touch(&below, 0..50);
        let report = bench.json(&["cache", "status", "merged"]);
        assert_eq!(
            (&report["resident_bytes"], &report["dirty_bytes"]),
            (&(50 * PAGE).into(), &Value::Null)
        );
        let report = bench.json(&["warm", "merged"]);
        assert_eq!(report["read_bytes"], 2 * MIB - 50 * PAGE);
        assert_eq!(resident(&below), 2 * MIB);
        assert_eq!(bench.json(&["warm", "merged"])["read_bytes"], 0);
        bench.ok(&["cache", "save", "set", "merged"]);
        assert_eq!(bench.json(&["cache", "drop", "merged"])["stayed_bytes"], 0);
        assert_eq!(resident(&below), 0);
        let report = bench.json(&["warm", "--budget", "100K", "merged"]);
        assert_eq!(
            (&report["read_bytes"], resident(&below)),
            (&(25 * PAGE).into(), 25 * PAGE)
        );
        assert_eq!(bench.json(&["cache", "restore", "set"])["files"], 1);
        assert_eq!(resident(&below), 2 * MIB);
        drop(overlay);
    });
}

#[test]
fn meminfo_matches_proc() {
    undisturbed(|| {
        let bench = Bench::new();
        let report = bench.json(&["cache", "meminfo"]);
        let text = fs::read_to_string("/proc/meminfo").unwrap();
        let total = text
            .split_whitespace()
            .nth(1)
            .unwrap()
            .parse::<u64>()
            .unwrap()
            * 1024;
        assert_eq!(report["total_bytes"], total);
        let lines = bench.ok(&[
            "cache", "meminfo", "--watch", "0.01", "--count", "3", "--json",
        ]);
        let lines: Vec<Value> = lines
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        assert_eq!(lines.len(), 3);
        assert!(
            lines[0]["per_second"].is_null()
                && lines[2]["per_second"]["refaulted_pages"].is_number()
        );
        assert_eq!(
            bench
                .ok(&["cache", "meminfo", "--watch", "0.01", "--count", "2"])
                .lines()
                .count(),
            3
        );
        assert!(bench.ok(&["cache", "meminfo"]).contains("available"));
        for arguments in [
            &["cache", "meminfo", "--watch", "soon"][..],
            &["cache", "meminfo", "--count", "2"],
        ] {
            assert_eq!(
                bench.output(arguments).0.status.code(),
                Some(2),
                "{arguments:?}"
            );
        }
    });
}

#[test]
fn top_lists_fullest_files_and_folders() {
    undisturbed(|| {
        let bench = Bench::new();
        for (name, len) in [
            ("a/large", 3 << 20),
            ("a/small", 5000),
            ("b/middle", 1 << 20),
        ] {
            fs::create_dir_all(bench.path(name).parent().unwrap()).unwrap();
            fs::write(bench.path(name), vec![1; len]).unwrap();
        }
        let paths = |report: &Value| -> Vec<String> {
            report["entries"]
                .as_array()
                .unwrap()
                .iter()
                .map(|entry| entry["path"].as_str().unwrap().to_owned())
                .collect()
        };
        let report = bench.json(&["cache", "top", "-n", "2", "a", "b"]);
        assert_eq!(paths(&report), ["a/large", "b/middle"]);
        assert_eq!(
            (&report["files"], &report["cached_bytes"]),
            (&3.into(), &Value::Null)
        );
        let deep = bench.folder.path().components().count();
        let report = bench.json(&[
            "cache",
            "top",
            "--by",
            "folder",
            "--depth",
            &deep.to_string(),
            "a",
            "b",
        ]);
        let wanted = ["a", "b"].map(|name| {
            bench
                .path(name)
                .canonicalize()
                .unwrap()
                .display()
                .to_string()
        });
        assert_eq!(paths(&report), wanted);
        assert_eq!(report["entries"][0]["files"], 2);
    });
}
