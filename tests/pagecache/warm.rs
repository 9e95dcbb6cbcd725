//! `folio warm` and `folio cache drop`: budgets, locked and dirty pages, recipes.

use super::*;

#[test]
fn resident_pages_are_not_read_again() {
    undisturbed(|| {
        requires!(tool("fincore"));
        let bench = Bench::new();
        let large = bench.cold("tree/large", 20 * MIB + 5);
        touch(&large, 100..600);
        for number in 0..50 {
            bench.cold(
                &format!("tree/{}/small{number}", number % 5),
                1 + number * 300,
            );
        }
        let small: u64 = (0..50).map(|number| 1 + number * 300).sum();
        for order in ["inode", "physical"] {
            let report = bench.json(&["warm", "--order", order, "tree"]);
            assert_eq!(report["files"], 51);
            assert_eq!(report["resident_before_bytes"], 500 * PAGE);
            assert_eq!(
                report["read_bytes"],
                20 * MIB + 5 + small - 500 * PAGE,
                "{report}"
            );
            assert!(pages(&large).iter().all(|is_there| *is_there));
            let report = bench.json(&["warm", "tree"]);
            assert_eq!(
                (&report["read_bytes"], &report["over_budget_bytes"]),
                (&0.into(), &0.into())
            );
            let status = bench.json(&["cache", "status", "tree"]);
            assert_eq!(status["resident_bytes"], status["size_bytes"]);
            bench.ok(&["cache", "drop", "tree"]);
            touch(&large, 100..600);
        }
        let report = bench.json(&["warm", "--dry-run", "tree"]);
        assert_eq!(
            (&report["read_bytes"], resident(&large)),
            (&0.into(), 500 * PAGE)
        );
        let report = bench.json(&["warm", "--include", "small1*", "--exclude", "3", "tree"]);
        assert_eq!(
            report["files"], 9,
            "small1 and small10 to small19 without those in folder 3"
        );
    });
}

#[test]
fn holes_are_not_read() {
    undisturbed(|| {
        requires!(tool("fincore"));
        let bench = Bench::new();
        let file = File::create(bench.path("sparse")).unwrap();
        file.set_len(1 << 30).unwrap();
        file.write_all_at(&vec![7; MIB as usize], 512 * MIB)
            .unwrap();
        forget(&bench.path("sparse"));
        let report = bench.json(&["warm", "sparse"]);
        assert_eq!(
            (&report["read_bytes"], resident(&bench.path("sparse"))),
            (&MIB.into(), MIB)
        );
        assert_eq!(report["unused_bytes"], (1 << 30) - MIB);
    });
}

#[test]
fn warm_never_exceeds_budget() {
    undisturbed(|| {
        requires!(tool("fincore"));
        let bench = Bench::new();
        let files: Vec<_> = (0..6)
            .map(|n| bench.cold(&format!("tree/{n}"), (1 + n) * MIB + n * 100))
            .collect();
        for order in ["inode", "physical"] {
            for budget in [0, PAGE, 10 * PAGE + 1, 3 * MIB, 7 * MIB + 123, 100 * MIB] {
                files.iter().for_each(|file| forget(file));
                // Some scattered pages are in memory already.
                files
                    .iter()
                    .skip(1)
                    .for_each(|file| touch(file, (0..100).map(|page| page * 2)));
                let before: u64 = files.iter().map(|file| resident(file)).sum();
                let budget_text = budget.to_string();
                let report =
                    bench.json(&["warm", "--order", order, "--budget", &budget_text, "tree"]);
                let after: u64 = files.iter().map(|file| resident(file)).sum();
                // Less than before: another program on this machine has dropped the cache.
                let Some(came) = after.checked_sub(before) else {
                    continue;
                };
                assert!(
                    came <= budget,
                    "{order}, {budget}: {came} came in; {report}"
                );
                // Only whole pages are read.
                assert!(
                    came + 7 * PAGE >= budget.min(21 * MIB - before),
                    "{order}, {budget}: only {came}; {report}"
                );
                let sum = ["resident_before_bytes", "read_bytes", "over_budget_bytes"]
                    .map(|key| report[key].as_u64().unwrap());
                assert_eq!(
                    Some(sum.iter().sum()),
                    report["size_bytes"].as_u64(),
                    "{report}"
                );
            }
        }
        let (output, stderr) = bench.output(&["warm", "--budget", "100000G", "--json", "tree"]);
        assert!(
            output.status.success() && stderr.contains("is cut to"),
            "{stderr}"
        );
    });
}

/// Runs a command of folio as an unprivileged user.
fn as_unprivileged(bench: &Bench, arguments: &[&str]) -> (Output, String) {
    let program = bench.path("folio");
    if !program.exists() {
        // The user may have no access to the build directory.
        fs::copy(env!("CARGO_BIN_EXE_folio"), &program).unwrap();
    }
    let mut command = command("setpriv");
    command
        .args(["--reuid", "65534", "--regid", "65534", "--clear-groups"])
        .arg(&program)
        .args(arguments);
    let output = command.current_dir(bench.folder.path()).output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    (output, stderr)
}

/// Returns a bench that all users can read.
fn open_bench() -> Bench {
    let bench = Bench {
        folder: TempDir::new_in("/var/tmp").unwrap(),
        _cache: PageCache::used(),
    };
    fs::set_permissions(bench.folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    bench
}

#[test]
fn unknown_residency_respects_budget() {
    undisturbed(|| {
        requires!(root, tool("setpriv"), tool("fincore"));
        let bench = open_bench();
        let file = bench.path("theirs");
        fs::write(&file, vec![1; 4 << 20]).unwrap();
        forget(&file);
        let (output, stderr) = as_unprivileged(&bench, &["cache", "status", "--json", "theirs"]);
        assert!(output.status.success(), "{stderr}");
        let status: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(
            (&status["unknown_files"], &status["entries"][0]["unknown"]),
            (&1.into(), &"rights".into())
        );
        let (output, _) = as_unprivileged(&bench, &["cache", "status", "theirs"]);
        assert!(String::from_utf8_lossy(&output.stdout).contains("?       ?     ?"));
        for (budget, most) in [("1M", MIB), ("8M", 4 * MIB)] {
            forget(&file);
            let (output, stderr) = as_unprivileged(&bench, &["warm", "--budget", budget, "theirs"]);
            assert!(output.status.success(), "{stderr}");
            assert_eq!(resident(&file), most);
        }
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
        fs::write(bench.path("readable"), "x").unwrap();
        for arguments in [
            &["warm", "."][..],
            &["cache", "status", "."],
            &["cache", "drop", "."],
        ] {
            let (output, stderr) = as_unprivileged(&bench, arguments);
            assert_eq!(output.status.code(), Some(1), "{arguments:?}");
            assert!(
                stderr.contains("theirs: Permission denied"),
                "{arguments:?}: {stderr}"
            );
        }
    });
}

#[test]
fn warmed_pages_stay_when_memory_runs_short() {
    undisturbed(|| {
        requires!(root, tool("unshare"), tool("dd"), tool("fincore"));
        let bench = Bench::new();
        let Some(group) = Group::new(512 * MIB) else {
            return report_skip("needs control groups that limit memory");
        };
        let files: Vec<_> = (0..8)
            .map(|n| bench.cold(&format!("tree/{n}"), 8 * MIB))
            .collect();
        fs::create_dir(bench.path("taken")).unwrap();
        // Files of a tmpfs take memory that the kernel cannot reclaim, until the mount ends with
        // its namespace. 30 MiB are left: the budget is 27 MiB, and 10 MiB, 2% of all, have to stay
        // free.
        let in_group = |words: &str| {
            files.iter().for_each(|file| forget(file));
            let script = format!(
                "{} && mount -t tmpfs none taken && dd if=/dev/zero of=taken/file bs=1M count=482 status=none && \
             exec {} warm {words} tree",
                group.entry(),
                env!("CARGO_BIN_EXE_folio")
            );
            let mut command = command("unshare");
            command
                .args(["--mount", "sh", "-ec", &script])
                .current_dir(bench.folder.path());
            let output = command.output().unwrap();
            let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(
                output.status.success() && stderr.is_empty(),
                "{words}: {:?}: {stderr}",
                output.status
            );
            (
                String::from_utf8_lossy(&output.stdout).into_owned(),
                files.iter().map(|file| resident(file)).sum::<u64>(),
            )
        };
        let (stdout, there) = in_group("--json");
        let report: Value = serde_json::from_str(&stdout).unwrap();
        assert_eq!(report["memory_short"], true, "{report}");
        let read = report["read_bytes"].as_u64().unwrap();
        // So near the limit the kernel may reclaim some pages of the group.
        assert!(
            (read * 3 / 4..=read).contains(&there),
            "only the pages that were read are in memory: {there}, {report}"
        );
        assert_eq!(
            read + report["over_budget_bytes"].as_u64().unwrap(),
            64 * MIB,
            "{report}"
        );
        assert!((5 * MIB..30 * MIB).contains(&there), "{report}");
        let (stdout, _) = in_group("");
        assert!(
            stdout.contains("M left out: memory ran short before the budget of "),
            "{stdout}"
        );
    });
}

#[test]
fn files_may_change_during_warm() {
    undisturbed(|| {
        let bench = Bench::new();
        let path = |number: usize| bench.path(&format!("tree/{number}"));
        fs::create_dir(bench.path("tree")).unwrap();
        (0..200).for_each(|number| fs::write(path(number), vec![1; 30_000]).unwrap());
        let is_over = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for round in 0.. {
                    if is_over.load(std::sync::atomic::Ordering::Relaxed) {
                        return;
                    }
                    let number = round * 7 % 200;
                    match round % 4 {
                        0 => drop(fs::remove_file(path(number))),
                        1 => fs::write(path(number), vec![2; round % 90_000]).unwrap(),
                        2 => drop(File::create(path(number)).unwrap().set_len(1 << 20)),
                        _ => drop(File::create(path(number)).unwrap().set_len(10)),
                    }
                }
            });
            for command in [
                &["warm"][..],
                &["warm", "--order", "physical"],
                &["cache", "drop", "--sync"],
            ]
            .repeat(5)
            {
                let (output, stderr) = bench.output(&[command, &["tree"]].concat());
                // The only errors are files that were unlinked after they were found.
                let is_unlinked = |line: &str| line.ends_with("No such file or directory");
                assert!(
                    output.status.success() || stderr.lines().all(is_unlinked),
                    "{stderr}"
                );
            }
            is_over.store(true, std::sync::atomic::Ordering::Relaxed);
        });
    });
}

/// A child process; dropping it kills it.
struct Held(Child);

impl Drop for Held {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn locked_pages_stay_and_drop_reports_them() {
    undisturbed(|| {
        requires!(tool("fincore"));
        let bench = Bench::new();
        let file = bench.cold("locked", MIB);
        let over = bench.cold("over", MIB);
        let arguments = [
            "warm", "--lock", "--json", "--order", "inode", "--budget", "1M", "locked", "over",
        ];
        let mut child = bench
            .command(&arguments)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut stdout = child.stdout.take().unwrap();
        let mut held = Held(child);
        let mut text = Vec::new();
        while !text.ends_with(b"\n}\n") {
            let mut byte = [0];
            assert_eq!(
                stdout.read(&mut byte).unwrap(),
                1,
                "the command keeps running"
            );
            text.push(byte[0]);
        }
        let report: Value = serde_json::from_slice(&text).unwrap();
        assert_eq!(
            (&report["locked_bytes"], resident(&file) + resident(&over)),
            (&MIB.into(), MIB),
            "{report}"
        );
        let report = bench.json(&["cache", "drop", "locked", "over"]);
        assert_eq!(
            (&report["stayed_bytes"], &report["stayed"][0]["reason"]),
            (&MIB.into(), &"in-use".into())
        );
        run("kill", ["-INT", &held.0.id().to_string()]);
        assert!(held.0.wait().unwrap().success());
        assert_eq!(
            bench.json(&["cache", "drop", "locked", "over"])["stayed_bytes"],
            0
        );
    });
}

#[test]
fn dirty_pages_stay_until_synced() {
    undisturbed(|| {
        let bench = Bench::new();
        fs::write(bench.path("fresh"), vec![7; 8 << 20]).unwrap();
        let report = bench.json(&["cache", "drop", "fresh"]);
        let of = |report: &Value, key: &str| report[key].as_u64().unwrap();
        assert_eq!(
            of(&report, "dropped_bytes") + of(&report, "stayed_bytes"),
            8 * MIB
        );
        let report = bench.json(&["cache", "drop", "--sync", "fresh"]);
        assert_eq!(of(&report, "stayed_bytes"), 0, "{report}");
    });
}

#[test]
fn recipe_selects_files_to_warm() {
    undisturbed(|| {
        let bench = Bench::new();
        bench.ok(&["mkfs", "disk.img", "--size", "8M"]);
        for name in ["data/a.ibd", "data/b.log", "more/c.ibd"] {
            fs::create_dir_all(bench.path(name).parent().unwrap()).unwrap();
            fs::write(bench.path(name), "x").unwrap();
        }
        fs::write(
            bench.path("recipe"),
            "# tables\ndata\nmore\n+ *.ibd\n- more\n",
        )
        .unwrap();
        assert_eq!(
            bench.json(&["warm", "--recipe", "recipe"])["files"],
            2,
            "named paths are not excluded"
        );
        let (output, stderr) = bench.output(&["warm", "--recipe", "none"]);
        assert!(
            output.status.code() == Some(1) && stderr.contains("none: No such file"),
            "{stderr}"
        );
    });
}
