//! Real programs on the mount: git, cargo, SQLite, and programs that run from it.

use crate::support::requires;
use crate::support::tools::{command, run, succeed, text, write_program};
use crate::{Fixture, MountSource, for_each_source};
use rusqlite::{Connection, params};
use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;

for_each_source! {
    git_clone_passes_fsck: "rw", "git";
    cargo_build_runs_and_rebuilds: "rw", "cargo";
    sqlite_concurrent_writers_keep_rows: "rw";
    program_runs_from_mount: "rw";
}

fn git(folder: &Path, args: &[&str]) -> String {
    let mut git = command("git");
    git.arg("-C").arg(folder).args([
        "-c",
        "user.name=Folio",
        "-c",
        "user.email=folio@example.org",
    ]);
    // Without the user's own settings, and without background work after the command.
    git.env("GIT_CONFIG_GLOBAL", "/dev/null").args([
        "-c",
        "gc.auto=0",
        "-c",
        "maintenance.auto=false",
    ]);
    text(&succeed(git.args(args)))
}

fn git_clone_passes_fsck(fixture: Fixture) {
    let origin = fixture.folder.path().join("origin");
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
    let clone = fixture.at("clone");
    let args = ["clone", "-q", "--no-hardlinks"].map(OsStr::new);
    run(
        "git",
        args.into_iter()
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
    fixture.finish();
}

fn cargo_build_runs_and_rebuilds(fixture: Fixture) {
    let package = fixture.at("package");
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
        // Without the settings of the build that runs this test.
        cargo
            .env("CARGO_TARGET_DIR", package.join("target"))
            .env_remove("RUSTFLAGS");
        text(&succeed(&mut cargo))
    };
    assert_eq!(build(), "42");
    // Cargo detects the change by the mtime.
    fs::write(
        package.join("src/lib.rs"),
        "pub fn answer() -> u32 { 43 }\n",
    )
    .unwrap();
    assert_eq!(build(), "43");
    assert_eq!(build(), "43");
    fixture.finish();
}

#[test]
fn sqlite_with_writeback_keeps_rows() {
    if let Some(fixture) = Fixture::try_on(MountSource::Image, "rw,writeback", &[]) {
        // Part of a page, through a file that is not open for reading.
        fs::write(fixture.at("f"), [1; 10_000]).unwrap();
        let file = fs::OpenOptions::new()
            .write(true)
            .open(fixture.at("f"))
            .unwrap();
        file.write_all_at(&[2; 100], 5000).unwrap();
        drop(file);
        let read = fs::read(fixture.at("f")).unwrap();
        assert!(
            read.iter()
                .enumerate()
                .all(|(at, byte)| *byte == 1 + u8::from((5000..5100).contains(&at)))
        );
        sqlite_concurrent_writers_keep_rows(fixture);
    }
}

fn sqlite_concurrent_writers_keep_rows(fixture: Fixture) {
    const ROWS: i64 = 60;
    for mode in ["WAL", "DELETE"] {
        let path = fixture.at(&format!("{mode}.db"));
        let connect = || {
            let database = Connection::open(&path).unwrap();
            database.busy_timeout(Duration::from_secs(60)).unwrap();
            let pragmas = format!(
                "PRAGMA journal_mode={mode}; PRAGMA synchronous=NORMAL; PRAGMA cache_size=10;"
            );
            database.execute_batch(&pragmas).unwrap();
            database
        };
        connect()
            .execute_batch("CREATE TABLE t (writer INTEGER, n INTEGER, v BLOB)")
            .unwrap();
        std::thread::scope(|scope| {
            for writer in 0..3_i64 {
                scope.spawn(move || {
                    let database = connect();
                    for number in 0..ROWS {
                        let value = vec![writer as u8; 100 + 37 * number as usize];
                        let row = params![writer, number, value];
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
    fixture.finish();
}

/// A program is mapped, and cannot be written while it runs.
fn program_runs_from_mount(fixture: Fixture) {
    let program = fixture.at("sh");
    write_program(&program, &fs::read("/bin/sh").unwrap());
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
    // A program that is written again runs in its new version.
    let script = fixture.at("script");
    for version in 0..3 {
        let content = format!("#!{}\necho {version}\n", program.display());
        write_program(&script, content.as_bytes());
        assert_eq!(
            run(&script.to_string_lossy(), [""; 0]),
            format!("{version}\n")
        );
    }
    let file = fs::OpenOptions::new().write(true).open(&program).unwrap();
    file.write_all_at(b"#!/nowhere", 0).unwrap();
    drop(file);
    assert!(std::process::Command::new(&program).status().is_err());
    fixture.finish();
}

/// SQLite on a full image gets SQLITE_FULL, as on the kernel's ext4: no row that it committed is
/// lost, and it goes on when there is space again.
#[test]
fn sqlite_on_a_full_image_loses_nothing() {
    requires!(root, fuse, tool("mke2fs"), tool("e2fsck"));
    let fixture = Fixture::new("rw");
    let free = rustix::fs::statvfs(fixture.mount.path()).unwrap();
    let free_bytes = free.f_bfree * free.f_frsize;
    let reserve = fs::File::create(fixture.at("reserve")).unwrap();
    let flags = rustix::fs::FallocateFlags::empty();
    rustix::fs::fallocate(&reserve, flags, 0, free_bytes - (6 << 20)).unwrap();
    let database = Connection::open(fixture.at("db")).unwrap();
    database
        .execute_batch("PRAGMA synchronous=FULL; CREATE TABLE t (id INTEGER, b BLOB)")
        .unwrap();
    let insert = |id: i64| {
        let row = params![id, vec![id as u8; 300_000]];
        database.execute("INSERT INTO t VALUES (?, ?)", row)
    };
    let mut ids = 0..100;
    let error = ids
        .find_map(|id| insert(id).err())
        .expect("the disk is full");
    let code = error.sqlite_error_code();
    assert_eq!(code, Some(rusqlite::ErrorCode::DiskFull), "{error}");
    let count = || database.query_row("SELECT count(*) FROM t", [], |row| row.get::<_, i64>(0));
    let stored = count().unwrap();
    assert!(stored > 3 && stored == ids.start - 1, "{stored}");
    drop(reserve);
    fs::remove_file(fixture.at("reserve")).unwrap();
    insert(1000).unwrap();
    assert_eq!(count().unwrap(), stored + 1);
    let check = database.query_row("PRAGMA integrity_check", [], |row| row.get::<_, String>(0));
    assert_eq!(check.unwrap(), "ok");
    database.close().unwrap();
    fixture.finish();
}
