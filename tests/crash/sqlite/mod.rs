//! SQLite on Folio's ext4: after a power cut the database is sound and has every committed
//! transaction.
//!
//! ```text
//!   vfs     SQLite's files are files of the mount under test
//!   mod     transactions in each journal mode, cuts, and the check of the database
//! ```
//!
//! `journal_mode=MEMORY` and `OFF` are excluded: SQLite documents that a crash may corrupt the
//! database then. WAL runs with `locking_mode=EXCLUSIVE`, which needs no shared memory. DELETE runs
//! with `synchronous=EXTRA`: with FULL, SQLite does not sync the folder after removing the journal,
//! so the last transaction may be rolled back.

mod vfs;

use crate::crash::cut::{Cut, Loss, Replay, plan};
use crate::crash::images;
use crate::crash::judge::Judge;
use crate::crash::program::{Machine, MountSetup, ROOT, kernel};
use crate::crash::random::{Random, seed};
use crate::crash::trial::cuts_per_trial;
use folio::Kernel;
use folio::block::Device;
use folio::syscall::Credentials;
use folio::testing::Recorded;
use folio::vfs::MountOptions;
use rusqlite::{Connection, OpenFlags, params};
use std::collections::BTreeMap;
use std::sync::Arc;
use vfs::RegisteredVfs;

/// The database.
const FILE: &str = "/disk/data.db";
const TRANSACTIONS: usize = 40;

/// Rows by key: length and the byte that fills it.
type Rows = BTreeMap<i64, (usize, u8)>;

/// A transaction: lengths of the record at its start and at the return of COMMIT, and the rows.
struct Committed {
    begun: usize,
    recorded: usize,
    rows: Rows,
}

fn connect(vfs: &RegisteredVfs, mode: &str) -> rusqlite::Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE
        | OpenFlags::SQLITE_OPEN_CREATE
        | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let database = Connection::open_with_flags_and_vfs(FILE, flags, vfs.name())?;
    let synchronous = if mode == "DELETE" { "EXTRA" } else { "FULL" };
    let locking = if mode == "WAL" { "EXCLUSIVE" } else { "NORMAL" };
    // A small cache, so that some pages are written before the commit.
    database.execute_batch(&format!(
        "PRAGMA locking_mode={locking}; PRAGMA journal_mode={mode}; PRAGMA synchronous={synchronous};
         PRAGMA temp_store=MEMORY; PRAGMA cache_size=10; PRAGMA wal_autocheckpoint=20;"
    ))?;
    Ok(database)
}

/// Runs transactions of random changes.
fn work(database: &Connection, recorded: impl Fn() -> usize) -> rusqlite::Result<Vec<Committed>> {
    let mut random = Random::new(seed());
    let mut done = vec![Committed {
        begun: 0,
        recorded: 0,
        rows: Rows::new(),
    }];
    let begun = recorded();
    database.execute_batch(
        "BEGIN; CREATE TABLE t (k INTEGER PRIMARY KEY, v BLOB); CREATE TABLE n (n INTEGER);
                            INSERT INTO n VALUES (1); COMMIT;",
    )?;
    done.push(Committed {
        begun,
        recorded: recorded(),
        rows: Rows::new(),
    });
    for number in 2..TRANSACTIONS {
        let mut rows = done[number - 1].rows.clone();
        let begun = recorded();
        database.execute_batch("BEGIN")?;
        for _ in 0..1 + random.below(12) {
            let key = random.below(60) as i64;
            if random.percent(30) {
                database.execute("DELETE FROM t WHERE k = ?1", [key])?;
                rows.remove(&key);
            } else {
                let most = if random.percent(20) { 9000 } else { 600 };
                let (len, byte) = (1 + random.below(most), random.below(256) as u8);
                database.execute(
                    "REPLACE INTO t VALUES (?1, ?2)",
                    params![key, vec![byte; len]],
                )?;
                rows.insert(key, (len, byte));
            }
        }
        database.execute("UPDATE n SET n = ?1", [number as i64])?;
        database.execute_batch("COMMIT")?;
        done.push(Committed {
            begun,
            recorded: recorded(),
            rows,
        });
    }
    Ok(done)
}

/// Returns the number of the last transaction in the database, and all rows.
fn read(database: &Connection) -> rusqlite::Result<(usize, Rows)> {
    let sound: String = database.query_row("PRAGMA integrity_check", [], |row| row.get(0))?;
    if sound != "ok" {
        return Err(rusqlite::Error::InvalidParameterName(format!(
            "integrity_check: {sound}"
        )));
    }
    let tables: i64 =
        database.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))?;
    if tables == 0 {
        return Ok((0, Rows::new()));
    }
    let number: i64 = database.query_row("SELECT n FROM n", [], |row| row.get(0))?;
    let mut statement = database.prepare("SELECT k, v FROM t")?;
    let found = statement.query_map([], |row| {
        let bytes: Vec<u8> = row.get(1)?;
        let byte = bytes.first().copied().unwrap_or_default();
        // A row with bytes of two versions never matches.
        let is_whole = bytes.iter().all(|other| *other == byte);
        Ok((row.get(0)?, (if is_whole { bytes.len() } else { 0 }, byte)))
    })?;
    Ok((number as usize, found.collect::<rusqlite::Result<Rows>>()?))
}

/// Checks the database after a cut. Returns a description of the first error.
fn check_database(
    kernel: &Arc<Kernel>,
    device: &Arc<dyn Device>,
    mode: &str,
    done: &[Committed],
    cut: Cut,
) -> Result<(), String> {
    kernel
        .mount_ext4(device.clone(), ROOT, &MountOptions::default())
        .map_err(|error| error.to_string())?;
    let opened = {
        let vfs = RegisteredVfs::new(
            &format!("judge-{mode}"),
            kernel.process(Credentials::root()),
        );
        let database = connect(&vfs, mode).map_err(|error| error.to_string());
        database.and_then(|database| read(&database).map_err(|error| error.to_string()))
    };
    kernel.unmount(ROOT).map_err(|error| error.to_string())?;
    let (number, rows) = opened?;
    let last = done
        .iter()
        .rposition(|one| one.recorded <= cut.recorded)
        .unwrap_or(0);
    let begun = done
        .iter()
        .rposition(|one| one.begun < cut.recorded)
        .unwrap_or(0);
    if !(last..=begun).contains(&number) {
        return Err(format!(
            "transaction {number} is the last one, expected {last} to {begun}"
        ));
    }
    if done[number].rows == rows {
        Ok(())
    } else {
        Err(format!("rows are not those of transaction {number}"))
    }
}

fn trial(mode: &str) {
    let machine = Machine::new(images::folio(16, 1024), &MountSetup::default());
    let done = {
        let program = machine.program(ROOT);
        let vfs = RegisteredVfs::new(&format!("work-{mode}"), program.process);
        let database = connect(&vfs, mode).unwrap();
        work(&database, || machine.recorded()).unwrap()
    };
    let run = machine.end(Vec::new());
    let (plain, lossy) = plan(&run.record, cuts_per_trial(), &mut Random::new(seed()));
    let (kernel, _process) = kernel(8 << 20, false);
    let mut judge = Judge::new(MountOptions::default());
    let mut failures = Vec::new();
    for cuts in [&plain, &lossy] {
        let mut replay = Replay::new(&run.before, &run.record);
        for cut in cuts {
            let device = replay.device(*cut);
            let checked = check_database(&kernel, &device, mode, &done, *cut);
            // The file system must be sound too.
            let judged = checked.and_then(|()| judge.judge(&device, &[], cut.recorded));
            failures.extend(judged.err().map(|error| format!("{mode}: {cut}: {error}")));
        }
    }
    let writes = run
        .record
        .iter()
        .filter(|entry| **entry != Recorded::Flush)
        .count();
    println!(
        "sqlite {mode}: seed {}: {TRANSACTIONS} transactions, {writes} writes; {} cuts in order, {} with losses; {} \
         failures",
        seed(),
        plain.len(),
        lossy.len(),
        failures.len()
    );
    assert!(
        failures.is_empty(),
        "seed {}: {}",
        seed(),
        failures[..failures.len().min(3)].join("\n")
    );
}

#[test]
fn sqlite_in_delete_mode_survives_cuts() {
    trial("DELETE");
}

#[test]
fn sqlite_in_truncate_mode_survives_cuts() {
    trial("TRUNCATE");
}

#[test]
fn sqlite_in_persist_mode_survives_cuts() {
    trial("PERSIST");
}

#[test]
fn sqlite_in_wal_mode_survives_cuts() {
    trial("WAL");
}

/// The control: a disk that ignores flushes loses transactions.
#[test]
fn sqlite_without_flushes_loses_transactions() {
    let machine = Machine::new(images::folio(16, 1024), &MountSetup::default());
    let done = {
        let program = machine.program(ROOT);
        let vfs = RegisteredVfs::new("work-liar", program.process);
        let database = connect(&vfs, "TRUNCATE").unwrap();
        work(&database, || machine.recorded()).unwrap()
    };
    let mut run = machine.end(Vec::new());
    run.record.retain(|entry| *entry != Recorded::Flush);
    let (kernel, _process) = kernel(8 << 20, false);
    let mut lost = 0;
    let mut random = Random::new(seed());
    for _ in 0..20 {
        let recorded = run.record.len() / 2 + random.below(run.record.len() / 2);
        let cut = Cut {
            recorded,
            loss: Loss::Some(50),
            seed: random.next(),
        };
        let device = Replay::new(&run.before, &run.record).device(cut);
        lost += usize::from(check_database(&kernel, &device, "TRUNCATE", &done, cut).is_err());
    }
    assert!(lost > 10, "{lost} of 20");
}
