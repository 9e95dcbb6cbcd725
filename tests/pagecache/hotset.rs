//! Hot sets: `folio cache save` and `folio cache restore`.

use super::*;

#[test]
fn hot_set_restores_exactly_its_pages() {
    undisturbed(|| {
        requires!(tool("fincore"));
        let bench = Bench::new();
        let names = [
            "tree/stripes",
            "tree/full",
            "tree/cold",
            "tree/odd name\u{e9}",
        ];
        let files: Vec<_> = names
            .iter()
            .map(|name| bench.cold(name, 4 * MIB + 10))
            .collect();
        let stripes: Vec<u64> = (0..1024).filter(|page| page / 7 % 3 == 0).collect();
        touch(&files[0], stripes.iter().copied());
        touch(&files[1], 0..1024);
        fs::read(&files[1]).unwrap();
        touch(&files[3], [1000]);
        let report = bench.json(&["cache", "save", "hot", "tree"]);
        assert_eq!(report["files"], 3);
        assert_eq!(
            report["hot_bytes"],
            (stripes.len() as u64 + 1) * PAGE + 4 * MIB + 10
        );
        assert!(report["file_bytes"].as_u64().unwrap() < 2000, "{report}");
        let before: Vec<u64> = files.iter().map(|file| resident(file)).collect();
        for order in ["auto", "inode", "physical"] {
            let restore = || {
                files.iter().for_each(|file| forget(file));
                let report = bench.json(&["cache", "restore", "--order", order, "hot"]);
                assert_eq!(
                    (&report["files"], &report["changed_files"]),
                    (&3.into(), &0.into())
                );
                let after: Vec<u64> = files.iter().map(|file| resident(file)).collect();
                let there = pages(&files[0]);
                (
                    after,
                    (0..1025)
                        .filter(|page| there[*page as usize])
                        .collect::<Vec<u64>>(),
                )
            };
            // Other programs on the machine use the page cache, too: one attempt of four has to be
            // undisturbed.
            let wanted = (before.clone(), stripes.clone());
            let last = (0..3)
                .map(|_| restore())
                .find(|found| *found == wanted)
                .unwrap_or_else(&restore);
            assert_eq!(last, wanted, "{order}: exactly the hot pages");
        }
        files.iter().for_each(|file| forget(file));
        let report = bench.json(&["cache", "restore", "--budget", "1M", "hot"]);
        assert_eq!(report["read_bytes"], MIB);
        assert_eq!(files.iter().map(|file| resident(file)).sum::<u64>(), MIB);
    });
}

#[test]
fn hot_set_survives_drop_caches() {
    undisturbed(|| {
        requires!(root, tool("fincore"));
        let bench = Bench::alone();
        let file = bench.cold("hot-file", 2 * MIB);
        touch(&file, 10..200);
        bench.ok(&["cache", "save", "set", "hot-file"]);
        rustix::fs::sync();
        if let Err(error) = fs::write("/proc/sys/vm/drop_caches", "1") {
            return report_skip(&format!("drop_caches: {error}"));
        }
        assert_eq!(resident(&file), 0);
        bench.ok(&["cache", "restore", "set"]);
        assert_eq!(resident(&file), 190 * PAGE);
    });
}

#[test]
fn failed_save_keeps_the_older_set() {
    undisturbed(|| {
        let bench = Bench::new();
        fs::write(bench.path("hot file"), vec![7; 100_000]).unwrap();
        let cold = bench.cold("cold file", MIB);
        bench.ok(&["cache", "save", "set", "hot file"]);
        let before = fs::read(bench.path("set")).unwrap();
        for (paths, words) in [
            (&["hot file", "missing"][..], "a path cannot be read"),
            (&["cold file"][..], "nothing of the paths is in memory"),
        ] {
            forget(&cold);
            let all = [&["cache", "save", "set"][..], paths].concat();
            let (output, stderr) = bench.output(&all);
            assert_eq!(output.status.code(), Some(1), "{stderr}");
            assert!(
                output.stdout.is_empty() && stderr.contains(words),
                "{stderr}"
            );
            assert_eq!(fs::read(bench.path("set")).unwrap(), before);
        }
    });
}

/// The arguments in the wrong order are an image that is lost.
#[test]
fn save_replaces_no_file_but_a_hot_set() {
    let bench = Bench::new();
    fs::write(bench.path("hot"), vec![7; 100_000]).unwrap();
    fs::write(bench.path("image"), "content").unwrap();
    fs::write(bench.path("empty"), "").unwrap();
    let (output, stderr) = bench.output(&["cache", "save", "image", "hot"]);
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("is not a hot set"), "{stderr}");
    assert_eq!(fs::read(bench.path("image")).unwrap(), b"content");
    for set in ["empty", "empty", "new"] {
        bench.ok(&["cache", "save", set, "hot"]);
    }
}

/// A file is searched for pages in memory, not for all that it could have.
#[test]
fn huge_sparse_file_is_saved_by_its_pages() {
    undisturbed(|| {
        let bench = Bench::new();
        let file = File::create_new(bench.path("huge")).unwrap();
        file.set_len(8 << 40).unwrap();
        fs::File::open(bench.path("huge"))
            .unwrap()
            .read_exact_at(&mut [0; 1], 7 << 40)
            .unwrap();
        let report = bench.json(&["cache", "save", "set", "huge"]);
        fs::remove_file(bench.path("huge")).unwrap();
        assert_eq!(report["files"], 1);
        assert!(report["hot_bytes"].as_u64().unwrap() >= PAGE, "{report}");
        // All of it would be two thousand million pages, which take minutes.
        assert!(report["file_bytes"].as_u64().unwrap() < 1000, "{report}");
    });
}

#[test]
fn dry_run_leaves_nothing_out_of_the_budget() {
    undisturbed(|| {
        let bench = Bench::new();
        let cold = bench.cold("cold", 4 * MIB);
        forget(&cold);
        let report = bench.json(&["warm", "--dry-run", "cold"]);
        assert!(
            report["budget_bytes"].as_u64().unwrap() > 4 * MIB,
            "{report}"
        );
        assert_eq!(report["over_budget_bytes"], 0);
        let report = bench.json(&["warm", "--dry-run", "--budget", "1M", "cold"]);
        assert_eq!(report["budget_bytes"], MIB);
        assert_eq!(report["over_budget_bytes"], 3 * MIB);
    });
}

#[test]
fn replaced_files_are_not_restored() {
    undisturbed(|| {
        let bench = Bench::new();
        for name in [
            "same", "written", "grown", "shrunk", "unlinked", "fifo", "folder",
        ] {
            fs::write(bench.path(name), vec![7; 100_000]).unwrap();
        }
        bench.ok(&["cache", "save", "hot", "."]);
        let open = |name: &str| File::options().write(true).open(bench.path(name)).unwrap();
        open("written").write_all_at(b"x", 50).unwrap();
        open("grown").write_all_at(b"x", 200_000).unwrap();
        open("shrunk").set_len(1000).unwrap();
        for name in ["unlinked", "fifo", "folder"] {
            fs::remove_file(bench.path(name)).unwrap();
        }
        run("mkfifo", [bench.path("fifo")]);
        fs::create_dir(bench.path("folder")).unwrap();
        for (rule, files, changed) in [("--strict", 1, 6), ("--dry-run", 4, 3)] {
            let report = bench.json(&["cache", "restore", rule, "hot"]);
            assert_eq!(
                (&report["files"], &report["changed_files"]),
                (&files.into(), &changed.into()),
                "{rule}"
            );
            let text = bench.ok(&["cache", "restore", rule, "hot"]);
            let words = format!("{changed} files left out");
            assert!(text.contains(&words), "{rule}: {text}");
        }
        fs::write(bench.path("no-set"), "no set").unwrap();
        for (name, words) in [
            ("no-set", "no-set: not a hot set"),
            ("nothing", "nothing: No such file"),
        ] {
            let (output, stderr) = bench.output(&["cache", "restore", name]);
            assert!(
                output.status.code() == Some(1) && stderr.contains(words),
                "{stderr}"
            );
        }
        let (output, stderr) = bench.output(&["cache", "save", "no/folder", "same"]);
        assert!(
            output.status.code() == Some(1) && stderr.contains("no/folder: No such file"),
            "{stderr}"
        );
    });
}
