//! Real programs on the mount: git, cargo, SQLite, and programs that run from it.

use crate::support::tools::{command, run, succeed, text};
use crate::{Bench, Ground, everywhere};
use rusqlite::{Connection, params};
use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::Path;
use std::time::Duration;

everywhere! {
    git_clones_checks_out_and_finds_nothing_wrong: "rw", "git";
    cargo_builds_a_program_that_runs: "rw", "cargo";
    sqlite_keeps_what_several_connections_write: "rw";
    programs_run_from_the_mount: "rw";
}

fn git(folder: &Path, words: &[&str]) -> String {
    let mut git = command("git");
    git.arg("-C").arg(folder).args([
        "-c",
        "user.name=Folio",
        "-c",
        "user.email=folio@example.org",
    ]);
    // Nothing of the user's own settings, and no work that goes on after the command.
    git.env("GIT_CONFIG_GLOBAL", "/dev/null").args([
        "-c",
        "gc.auto=0",
        "-c",
        "maintenance.auto=false",
    ]);
    text(&succeed(git.args(words)))
}

fn git_clones_checks_out_and_finds_nothing_wrong(bench: Bench) {
    let origin = bench.folder.path().join("origin");
    fs::create_dir(&origin).unwrap();
    git(&origin, &["init", "-q"]);
    let write = |version: u32| {
        for number in 0..120 {
            let folder = origin.join(format!("folder {}", number % 7));
            fs::create_dir_all(&folder).unwrap();
            let line = format!("version {version} of file {number}\n");
            fs::write(
                folder.join(format!("{number}")),
                line.repeat(1 + number * 5),
            )
            .unwrap();
        }
        git(&origin, &["add", "."]);
        git(&origin, &["commit", "-qm", &format!("{version}")]);
        git(&origin, &["tag", &format!("v{version}")]);
    };
    write(1);
    write(2);
    let clone = bench.at("clone");
    let words = ["clone", "-q", "--no-hardlinks"].map(OsStr::new);
    run(
        "git",
        words
            .into_iter()
            .chain([origin.as_os_str(), clone.as_os_str()]),
    );
    for version in ["v1", "v2", "v1"] {
        git(&clone, &["checkout", "-q", version]);
        assert_eq!(git(&clone, &["status", "--porcelain"]), "", "{version}");
        let line = fs::read_to_string(clone.join("folder 3/3")).unwrap();
        assert!(
            line.starts_with(&format!("version {} of", &version[1..])),
            "{version}: {line}"
        );
    }
    fs::write(clone.join("folder 1/1"), "changed").unwrap();
    fs::remove_dir_all(clone.join("folder 2")).unwrap();
    assert!(git(&clone, &["status", "--porcelain"]).contains(" M \"folder 1/1\""));
    git(&clone, &["add", "-A"]);
    git(&clone, &["commit", "-qm", "more"]);
    git(&clone, &["repack", "-adq"]);
    git(&clone, &["fsck", "--full", "--strict"]);
    assert_eq!(git(&clone, &["status", "--porcelain"]), "");
    bench.finish();
}

fn cargo_builds_a_program_that_runs(bench: Bench) {
    let package = bench.at("package");
    fs::create_dir_all(package.join("src")).unwrap();
    let manifest =
        "[package]\nname = \"small\"\nversion = \"0.1.0\"\nedition = \"2021\"\n[workspace]\n";
    fs::write(package.join("Cargo.toml"), manifest).unwrap();
    fs::write(
        package.join("src/lib.rs"),
        "pub fn answer() -> u32 { 42 }\n",
    )
    .unwrap();
    fs::write(
        package.join("src/main.rs"),
        "fn main() { print!(\"{}\", small::answer()) }\n",
    )
    .unwrap();
    let build = || {
        let mut cargo = command("cargo");
        cargo
            .args(["run", "--quiet", "--offline", "--manifest-path"])
            .arg(package.join("Cargo.toml"));
        // Nothing of the build that runs this test.
        cargo
            .env("CARGO_TARGET_DIR", package.join("target"))
            .env_remove("RUSTFLAGS");
        text(&succeed(&mut cargo))
    };
    assert_eq!(build(), "42");
    // By its time of modification cargo knows what has changed.
    fs::write(
        package.join("src/lib.rs"),
        "pub fn answer() -> u32 { 43 }\n",
    )
    .unwrap();
    assert_eq!(build(), "43");
    assert_eq!(build(), "43");
    bench.finish();
}

#[test]
fn sqlite_where_the_kernel_writes_back() {
    if let Some(bench) = Bench::try_on(Ground::Image, "rw,writeback", &[]) {
        // Part of a page, by who may not read.
        fs::write(bench.at("f"), [1; 10_000]).unwrap();
        let file = fs::OpenOptions::new()
            .write(true)
            .open(bench.at("f"))
            .unwrap();
        file.write_all_at(&[2; 100], 5000).unwrap();
        drop(file);
        let read = fs::read(bench.at("f")).unwrap();
        assert!(
            read.iter()
                .enumerate()
                .all(|(at, byte)| *byte == 1 + u8::from((5000..5100).contains(&at)))
        );
        sqlite_keeps_what_several_connections_write(bench);
    }
}

fn sqlite_keeps_what_several_connections_write(bench: Bench) {
    const ROWS: i64 = 60;
    for mode in ["WAL", "DELETE"] {
        let path = bench.at(&format!("{mode}.db"));
        let connect = || {
            let database = Connection::open(&path).unwrap();
            database.busy_timeout(Duration::from_secs(60)).unwrap();
            let words = format!(
                "PRAGMA journal_mode={mode}; PRAGMA synchronous=NORMAL; PRAGMA cache_size=10;"
            );
            database.execute_batch(&words).unwrap();
            database
        };
        connect()
            .execute_batch("CREATE TABLE t (who INTEGER, n INTEGER, v BLOB)")
            .unwrap();
        std::thread::scope(|scope| {
            for who in 0..3_i64 {
                scope.spawn(move || {
                    let database = connect();
                    for number in 0..ROWS {
                        let value = vec![who as u8; 100 + 37 * number as usize];
                        let row = params![who, number, value];
                        database
                            .execute("INSERT INTO t VALUES (?1, ?2, ?3)", row)
                            .unwrap();
                    }
                });
            }
        });
        let database = connect();
        let ask = |sql: &str| {
            database
                .query_row(sql, [], |row| row.get::<_, String>(0))
                .unwrap()
        };
        assert_eq!(ask("PRAGMA integrity_check"), "ok");
        assert_eq!(
            ask("SELECT CAST(COUNT(*) AS TEXT) FROM t"),
            (3 * ROWS).to_string()
        );
        let wrong = "SELECT CAST(COUNT(*) AS TEXT) FROM t WHERE length(v) != 100 + 37 * n";
        assert_eq!(ask(wrong), "0");
    }
    bench.finish();
}

/// Programs are mapped, and what runs cannot be written.
fn programs_run_from_the_mount(bench: Bench) {
    let program = bench.at("sh");
    fs::copy("/bin/sh", &program).unwrap();
    let mut child = std::process::Command::new(&program);
    let mut child = child.args(["-c", "read line; echo \"$line\""]);
    child = child
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped());
    let child = child.spawn().unwrap();
    let busy = fs::OpenOptions::new()
        .write(true)
        .open(&program)
        .unwrap_err();
    assert_eq!(busy.raw_os_error(), Some(26), "{busy}");
    use std::io::Write;
    child
        .stdin
        .as_ref()
        .unwrap()
        .write_all(b"still running\n")
        .unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.stdout, b"still running\n");
    // A program that is made, and made again, is the new one.
    let script = bench.at("script");
    for version in 0..3 {
        fs::write(
            &script,
            format!("#!{}\necho {version}\n", program.display()),
        )
        .unwrap();
        fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
        assert_eq!(
            run(&script.to_string_lossy(), [""; 0]),
            format!("{version}\n")
        );
    }
    let file = fs::OpenOptions::new().write(true).open(&program).unwrap();
    file.write_all_at(b"#!/nowhere", 0).unwrap();
    drop(file);
    assert!(std::process::Command::new(&program).status().is_err());
    bench.finish();
}
