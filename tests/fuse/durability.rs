//! Acknowledged work when the server is killed: sync(2), and databases, git and files under
//! SIGKILL.
//!
//! Each round runs a program on the mount until it has acknowledged some steps, kills the server,
//! checks a copy of the image with e2fsck, mounts again, and lets the program's own check and a
//! comparison with the acknowledged steps judge the tree. `FOLIO_KILL_ROUNDS=25` sets the rounds
//! of each program and format (default 2); `FOLIO_KILL_SEED` the seed.

use crate::mount::FuseMount;
use crate::support::random::Random;
use crate::support::requires;
use crate::support::tools::{command, fsck, mke2fs, run, succeed, to_qcow2, to_raw};
use crate::{Fixture, MountSource, empty};
use rustix::process::Signal;
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use tempfile::TempDir;

/// The kernel sends sync(2) to the server of a block device, which the mount has for that reason.
#[test]
fn synced_tree_survives_kill() {
    requires!(linux(6, 18), loop_devices, first_mount_namespace);
    for options in ["rw", "rw,writeback", "rw,commit=300"] {
        let tools = ["sync"];
        let Some(mut fixture) = Fixture::try_on(MountSource::Image, options, &tools) else {
            return;
        };
        for name in ["whole", "one"] {
            let folder = fixture.at(name);
            fs::create_dir(&folder).unwrap();
            fs::write(folder.join("f"), name).unwrap();
            if name == "whole" {
                rustix::fs::sync();
            } else {
                run("sync", ["-f".as_ref(), fixture.mount.path().as_os_str()]);
            }
            rustix::process::kill_process(fixture.mount.process(), Signal::KILL).unwrap();
            fixture.mount.ended();
            fixture = fixture.again(options);
            let found = fs::read_to_string(fixture.at(name).join("f"));
            assert_eq!(found.unwrap(), name, "-o {options}");
        }
        fixture.finish();
    }
}

/// The source in the table of mounts is the image, and the block device ends with the mount.
#[test]
fn mount_table_names_the_image() {
    requires!(root, fuse, loop_devices, tool("mke2fs"));
    let folder = TempDir::new().unwrap();
    let image = empty(folder.path());
    let devices = || {
        let list = fs::read_dir("/sys/block").unwrap();
        let files = list.filter_map(|entry| {
            fs::read_to_string(entry.unwrap().path().join("loop/backing_file")).ok()
        });
        let name = image.display().to_string();
        files.filter(|file| file.contains(&name)).count()
    };
    for options in ["rw", "rw,fsname=another name", "rw,fsname=/"] {
        let mount = FuseMount::new(&image, options);
        let table = fs::read_to_string("/proc/self/mounts").unwrap();
        let target = format!(" {} fuse", mount.path().display());
        let line = table.lines().find(|line| line.contains(&target)).unwrap();
        let source = line.split(' ').next().unwrap();
        match options {
            "rw" => assert_eq!(source, image.display().to_string()),
            "rw,fsname=/" => {}
            _ => assert_eq!(source, "another\\040name"),
        }
        mount.unmount();
        assert_eq!(devices(), 0, "{options}");
    }
}

/// Where the server may be the last process of a mount namespace, the kernel must not wait for its
/// reply when it is killed.
#[test]
fn private_namespace_has_no_block_device() {
    requires!(root, fuse, tool("mke2fs"), tool("unshare"));
    let folder = TempDir::new().unwrap();
    let image = empty(folder.path());
    let mut server = Command::new("unshare")
        .args(["--mount", env!("CARGO_BIN_EXE_folio"), "mount"])
        .args([&image, folder.path()])
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    let stderr = server.stderr.take().unwrap();
    BufReader::new(stderr).read_line(&mut line).unwrap();
    let table = fs::read_to_string(format!("/proc/{}/mounts", server.id())).unwrap();
    let is_plain = table.contains(&format!("{} fuse.folio ", folder.path().display()));
    // A block device's server ends by itself only: see above.
    let signal = if is_plain { Signal::KILL } else { Signal::TERM };
    rustix::process::kill_process(rustix::process::Pid::from_child(&server), signal).unwrap();
    server.wait().unwrap();
    assert!(is_plain, "{line}{table}");
}

/// A program that acknowledges steps.
struct Program {
    tools: &'static [&'static str],
    /// Shell scripts with the arguments mount, number of the last acknowledged step, and a folder
    /// outside of the mount.
    prepare: &'static str,
    /// Prints the number of each step once it is durable.
    work: &'static str,
    /// Fails if an acknowledged step is lost, or the program finds damage.
    check: &'static str,
}

const FILES: Program = Program {
    tools: &["sync", "mv", "wc"],
    prepare: "mkdir \"$1/d\"",
    work: r#"
        cd "$1"; n=$2
        while :; do
            n=$((n + 1)); printf '%d %0400d\n' $n 0 > d/new
            if [ $((n % 2)) = 0 ]; then
                sync d/new; mv d/new d/$((n % 50)); sync d
            else
                mv d/new d/$((n % 50)); sync -f d
            fi
            echo $n
        done
    "#,
    check: r#"
        cd "$1"; n=$2; first=$((n > 50 ? n - 49 : 1))
        while [ $n -ge $first ]; do
            read -r found zeroes < d/$((n % 50))
            [ "$found" -ge $n ] && [ ${#zeroes} = 400 ] || { echo "step $n: found $found"; exit 1; }
            n=$((n - 1))
        done
    "#,
};

/// With `FULL` the commit of a rollback journal, its unlink, need not be durable.
const SQLITE: Program = Program {
    tools: &["sqlite3", "seq", "sed"],
    prepare: "sqlite3 \"$1/db\" 'CREATE TABLE t (n INTEGER PRIMARY KEY, v)'",
    work: r#"
        mode=$([ $(($2 % 2)) = 0 ] && echo WAL || echo DELETE)
        seq $(($2 + 1)) $(($2 + 5000)) |
            sed 's/.*/INSERT OR REPLACE INTO t VALUES (&, randomblob(300)); SELECT &;/' |
            sqlite3 -bail -cmd "PRAGMA journal_mode=$mode" -cmd 'PRAGMA synchronous=EXTRA' "$1/db"
    "#,
    check: r#"
        sqlite3 "$1/db" 'PRAGMA integrity_check'
        [ "$(sqlite3 "$1/db" 'PRAGMA integrity_check')" = ok ]
        found=$(sqlite3 "$1/db" "SELECT COUNT(*) FROM t WHERE n <= $2")
        [ "$found" = $2 ] || { echo "found $found of $2"; exit 1; }
    "#,
};

const GIT: Program = Program {
    tools: &["git", "sync"],
    prepare: r#"
        git init -q "$1/repo"; cd "$1/repo"
        git config user.name Folio; git config user.email folio@example.org
        git config gc.auto 0; git config maintenance.auto false
    "#,
    work: r#"
        cd "$1/repo"; n=$2; find .git -name '*.lock' -delete; rm -f .git/gc.pid
        while :; do
            n=$((n + 1)); echo $n > f$((n % 20)); git add -A; git commit -qm $n
            [ $((n % 4)) != 0 ] || git gc -q --prune=now
            sync -f .; echo $n
        done
    "#,
    check: r#"
        cd "$1/repo"; git fsck --full --strict
        [ $2 = 0 ] || [ "$(git log -1 --format=%s)" -ge $2 ]
        find .git -name '*.lock' -delete; git status --short
    "#,
};

/// As another user, since its server refuses root.
const POSTGRES: Program = Program {
    tools: &["initdb", "postgres", "psql", "setpriv", "seq", "sed"],
    prepare: r#"
        as="setpriv --reuid=65534 --regid=65534 --clear-groups"; mkdir "$1/pg"
        chown 65534:65534 "$1/pg" "$3"; cd "$3"
        $as initdb --no-sync -k -U postgres -A trust -D "$1/pg" > "$3/initdb.log"; sync -f "$1"
    "#,
    work: r#"
        as="setpriv --reuid=65534 --regid=65534 --clear-groups"; cd "$3"
        $as postgres -D "$1/pg" -k "$3" -c listen_addresses= > log 2>&1 & server=$!
        dir=$3; psql() { $as psql -h "$dir" -U postgres -XAtq -v ON_ERROR_STOP=1 "$@" postgres; }
        until psql -c 'SELECT 1' > ready 2>&1; do kill -0 $server; sleep 0.1; done
        psql -c 'CREATE TABLE IF NOT EXISTS t (n INTEGER PRIMARY KEY)' 2> /dev/null
        seq $(($2 + 1)) $(($2 + 20000)) |
            sed 's/.*/INSERT INTO t VALUES (&) ON CONFLICT DO NOTHING RETURNING n;/' |
            psql 2> psql.log || true
        kill -QUIT $server || true; wait $server || true
    "#,
    check: r#"
        as="setpriv --reuid=65534 --regid=65534 --clear-groups"; cd "$3"
        $as postgres -D "$1/pg" -k "$3" -c listen_addresses= > check.log 2>&1 & server=$!
        dir=$3; psql() { $as psql -h "$dir" -U postgres -XAtq -v ON_ERROR_STOP=1 "$@" postgres; }
        until psql -c 'SELECT 1' > ready 2>&1; do
            kill -0 $server || { cat check.log; exit 1; }
            sleep 0.1
        done
        found=$([ $2 = 0 ] && echo 0 || psql -c "SELECT COUNT(*) FROM t WHERE n <= $2")
        kill -INT $server; wait $server
        [ "$found" = $2 ] || { echo "found $found of $2"; exit 1; }
    "#,
};

/// Tests each program on a raw and on a qcow2 image.
macro_rules! programs {
    ($($name:ident: $program:ident;)+) => {$(
        mod $name {
            #[test]
            fn killed_server_keeps_acknowledged_steps_raw() {
                super::kill_rounds(&super::$program, stringify!($name), false);
            }

            #[test]
            fn killed_server_keeps_acknowledged_steps_qcow2() {
                super::kill_rounds(&super::$program, stringify!($name), true);
            }
        }
    )+};
}

programs! {
    files: FILES;
    sqlite: SQLITE;
    git: GIT;
    postgres: POSTGRES;
}

/// Returns a shell that runs `script` with its three arguments, as a process group of its own.
fn shell(script: &str, mount: &FuseMount, acknowledged: u64, folder: &Path) -> Command {
    let mut shell = command("sh");
    shell
        .args(["-ec", script, "sh"])
        .arg(mount.path())
        .arg(acknowledged.to_string())
        .arg(folder)
        .env("GIT_CONFIG_GLOBAL", "/dev/null");
    shell
}

fn number(variable: &str, default: u64) -> u64 {
    std::env::var(variable).map_or(default, |text| {
        text.parse()
            .unwrap_or_else(|_| panic!("{variable}={text}: expected a number"))
    })
}

fn kill_rounds(program: &Program, name: &str, is_qcow2: bool) {
    // sync(2) of the scripts reaches the server since this version.
    requires!(
        root,
        fuse,
        loop_devices,
        linux(6, 18),
        first_mount_namespace,
        tool("mke2fs"),
        tool("e2fsck")
    );
    requires!(tool("qemu-img"));
    for name in program.tools {
        requires!(tool(name));
    }
    let seed = number("FOLIO_KILL_SEED", 1);
    let mut random = Random::new(seed ^ name.len() as u64 ^ u64::from(is_qcow2) << 8);
    let folder = TempDir::new().unwrap();
    let outside = folder.path().join("outside");
    fs::create_dir(&outside).unwrap();
    // Readable by the user of a database.
    fs::set_permissions(
        folder.path(),
        std::os::unix::fs::PermissionsExt::from_mode(0o755),
    )
    .unwrap();
    chown(&outside, Some(65_534), Some(65_534)).unwrap();
    let image = new_image(folder.path(), is_qcow2);
    let mut mount = FuseMount::new(&image, "rw,allow_other");
    succeed(&mut shell(program.prepare, &mount, 0, &outside));
    let mut acknowledged = 0;
    for round in 1..=number("FOLIO_KILL_ROUNDS", 2) {
        let limit = 1 + random.below(30_u64);
        acknowledged = work_until_killed(program, &mut mount, acknowledged, limit, &outside);
        check_copy(&image, folder.path());
        mount = mount.again(&image, "rw,allow_other");
        let checked = shell(program.check, &mount, acknowledged, &outside).output();
        let checked = checked.unwrap();
        assert!(
            checked.status.success(),
            "{name}, seed {seed}, round {round}, {acknowledged} steps: {checked:?}"
        );
        eprintln!("{name}: round {round}, {acknowledged} steps");
    }
    mount.unmount();
    check_copy(&image, folder.path());
}

fn new_image(folder: &Path, is_qcow2: bool) -> PathBuf {
    let raw = folder.join("disk.img");
    mke2fs(&raw, "512M", &["-b", "4096", "-J", "size=16"]);
    if !is_qcow2 {
        return raw;
    }
    let image = folder.join("disk.qcow2");
    to_qcow2(&raw, &image);
    fs::remove_file(raw).unwrap();
    image
}

/// Runs the program until it has acknowledged `limit` steps, kills the server, and returns the last
/// step that was acknowledged.
fn work_until_killed(
    program: &Program,
    mount: &mut FuseMount,
    mut acknowledged: u64,
    limit: u64,
    outside: &Path,
) -> u64 {
    let last = acknowledged + limit;
    let log = outside.join("work.log");
    let mut work = shell(program.work, mount, acknowledged, outside);
    let mut work = work
        .stdout(Stdio::piped())
        .stderr(File::create(&log).unwrap())
        .spawn()
        .unwrap();
    let mut is_killed = false;
    for line in BufReader::new(work.stdout.take().unwrap()).lines() {
        // Other lines are the program's own.
        let Ok(step) = line.unwrap().trim().parse() else {
            continue;
        };
        acknowledged = step;
        if acknowledged >= last && !is_killed {
            rustix::process::kill_process(mount.process(), Signal::KILL).unwrap();
            is_killed = true;
        }
    }
    work.wait().unwrap();
    assert!(
        is_killed,
        "{acknowledged} of {last} steps: {}",
        fs::read_to_string(log).unwrap()
    );
    mount.ended();
    acknowledged
}

/// Replays the journal of a copy of the image, and checks it.
fn check_copy(image: &Path, folder: &Path) {
    let copy = folder.join("copy.img");
    to_raw_or_copy(image, &copy);
    let replayed = command("e2fsck").arg("-p").arg(&copy).output().unwrap();
    let status = replayed.status.code();
    assert!(matches!(status, Some(0 | 1)), "e2fsck -p: {replayed:?}");
    fsck(&copy);
    fs::remove_file(copy).unwrap();
}

fn to_raw_or_copy(image: &Path, copy: &Path) {
    if image
        .extension()
        .is_some_and(|extension| extension == "qcow2")
    {
        return to_raw(image, copy);
    }
    let arguments = [
        "--sparse=always".as_ref(),
        image.as_os_str(),
        copy.as_os_str(),
    ];
    run("cp", arguments);
}
