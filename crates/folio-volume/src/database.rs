//! The map in slatedb: settings, opening as writer or reader, loading, error conversion.
//!
//! Nothing runs in the background of an idle volume: no polling, no compactor, no garbage
//! collector. The log and the tables are kept short by the flushes themselves ([`Upkeep`]), so that
//! the next writer has little to read.

use crate::map::{MapLoader, MapState};
use crate::place::{StorePlace, explained};
use folio::{Errno, Error, Result};
use futures_util::{FutureExt, StreamExt};
use object_store::ObjectStore;
use object_store::path::Path;
use slatedb::admin::{Admin, AdminBuilder};
use slatedb::config::{
    CheckpointOptions, CheckpointScope, CloseOptions, CompactionWorkerOptions, CompactorOptions,
    DbReaderOptions, FlushOptions, FlushType, GarbageCollectorDirectoryOptions,
    GarbageCollectorOptions, ScanOptions, Settings,
};
use slatedb::manifest::SortedRun;
use slatedb::{
    CloseReason, Db, DbIterator, DbReader, DbReaderMode, ErrorKind, GarbageCollectorBuilder,
    PathResolver, VersionedManifest, WriteBatch,
};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::Mutex;
use tokio::time::Instant;

/// Commits between two tables. The next writer reads each commit since the last table, at most
/// twice as many.
const COMMITS_PER_TABLE: u64 = 64;
/// Bytes of commits after which slatedb makes a table earlier.
const TABLE_BYTES: usize = 16 << 20;
/// Tables in the map that start a compaction.
const TABLES_BEFORE_COMPACTION: usize = 24;
/// Tables in the map for which commits wait.
const TABLES_MAX: usize = 48;
/// The pause between two looks at a compaction under way.
const COMPACTION_POLL: Duration = Duration::from_millis(250);
/// The time after which a compaction is left to a later one.
const COMPACTION_TIME_MAX: Duration = Duration::from_secs(120);
/// The operation in errors of the map's entries.
const READ: &str = "read the map";
/// Longer than any process lives, for timers that must not fire.
const NEVER: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

/// The map of a volume, open for writing.
#[derive(Clone)]
pub(crate) struct Database {
    db: Db,
    place: StorePlace,
    upkeep: Arc<Upkeep>,
}

/// The work that keeps the map short: tables replace the log, compaction replaces tables, and
/// garbage collection deletes what was replaced. Each runs in the background, one at a time.
struct Upkeep {
    commits: AtomicU64,
    table_turn: Arc<Mutex<()>>,
    compaction_turn: Arc<Mutex<()>>,
    /// When garbage was collected last.
    collected: Arc<Mutex<Instant>>,
}

impl Upkeep {
    fn new() -> Self {
        Self {
            commits: AtomicU64::new(0),
            table_turn: Arc::default(),
            compaction_turn: Arc::default(),
            collected: Arc::new(Mutex::new(Instant::now())),
        }
    }
}

impl Database {
    /// Opens the map, creates it if it does not exist, and fences its last writer.
    pub(crate) async fn open(place: &StorePlace) -> Result<Self> {
        let settings = Settings {
            // No timer: each commit asks for its flush.
            flush_interval: None,
            l0_sst_size_bytes: TABLE_BYTES,
            manifest_poll_interval: NEVER,
            // No limit: slatedb would let writes wait for its compactor, which does not run.
            l0_max_ssts: 1 << 20,
            l0_max_ssts_per_key: 1 << 20,
            compactor_options: None,
            garbage_collector_options: None,
            object_store_max_retries: Some(0),
            ..Settings::default()
        };
        let opened = Db::builder(place.map_path(), place.store.clone())
            .with_settings(settings)
            .with_system_clock(place.clock.clone())
            .with_db_cache_disabled()
            .build();
        let db = checked(place, "open the map", opened).await?;
        // A new table must not have an earlier time than these.
        for view in db.manifest().all_sst_views() {
            let time_ms = view.sst.id.value().timestamp_ms();
            place.clock.pass(i64::try_from(time_ms).unwrap_or(0));
        }
        Ok(Self {
            db,
            place: place.clone(),
            upkeep: Arc::new(Upkeep::new()),
        })
    }

    /// Returns this writer's epoch: later than that of every writer before.
    pub(crate) fn epoch(&self) -> u64 {
        self.db.manifest().writer_epoch()
    }

    /// Loads the map. A long log, which writers that crashed left, becomes a table.
    pub(crate) async fn load(&self) -> Result<MapState> {
        let manifest = self.db.manifest();
        preload(&self.place, &manifest).await;
        let options = scan_options();
        let entries = self
            .db
            .scan_with_options::<std::ops::RangeFull>(.., &options);
        let entries = checked(&self.place, READ, entries).await;
        let (map, last_commit) = load(&self.place, entries).await?;
        if last_commit >= manifest.last_l0_seq() + COMMITS_PER_TABLE
            && let Err(error) = self.shorten().await
        {
            tracing::warn!("{error}");
        }
        Ok(map)
    }

    /// Makes the map short for the next writer: the log becomes a table, and with many tables,
    /// these become one and what they replaced is collected. Writers of a few commits each need
    /// this: each of them leaves a table.
    async fn shorten(&self) -> Result<()> {
        // First: a compaction works on tables only, not on the log.
        self.write_table().await?;
        let _turn = self.upkeep.compaction_turn.lock().await;
        if self.tables() >= TABLES_BEFORE_COMPACTION {
            // First: a compaction holds all tables by a checkpoint for fifteen minutes.
            collect_replaced(&self.place).await;
            self.compact().await?;
        }
        Ok(())
    }

    /// Applies a batch and makes it durable. One PUT. Every 64th commit starts a table.
    pub(crate) async fn commit(&self, batch: WriteBatch) -> Result<()> {
        let failed = |e| map_error(&self.place, "write the map", e);
        self.db.write(batch).await.map_err(failed)?;
        let log = FlushOptions {
            flush_type: FlushType::Wal,
        };
        self.db.flush_with_options(log).await.map_err(failed)?;
        let commits = self.upkeep.commits.fetch_add(1, Ordering::Relaxed) + 1;
        // The next open reads every commit since the last table, each with a request.
        if commits.is_multiple_of(COMMITS_PER_TABLE) {
            self.start_table().await;
        }
        Ok(())
    }

    /// Starts a table, after the one under way and, with too many tables, after their compaction.
    async fn start_table(&self) {
        if self.tables() >= TABLES_MAX {
            // Only a wait: the holder of the turn compacts.
            drop(self.upkeep.compaction_turn.lock().await);
        }
        let turn = self.upkeep.table_turn.clone().lock_owned().await;
        let this = self.clone();
        self.place.runtime.spawn(async move {
            let written = this.write_table().await;
            // The next table need not wait for a compaction.
            drop(turn);
            let done = match written {
                Ok(()) => this.tidy().await,
                failed => failed,
            };
            if let Err(error) = done {
                // The next commit fails if the map is unusable; else a later table makes up for it.
                tracing::warn!("{error}");
            }
        });
    }

    /// Compacts the tables if there are many, and collects garbage if the last time is long ago,
    /// unless that is under way.
    async fn tidy(&self) -> Result<()> {
        let is_full = self.tables() >= TABLES_BEFORE_COMPACTION;
        if is_full && let Ok(_turn) = self.upkeep.compaction_turn.try_lock() {
            self.compact().await?;
        }
        if let Ok(mut collected) = self.upkeep.collected.try_lock()
            && collected.elapsed() >= self.place.map_garbage_age
        {
            collect_replaced(&self.place).await;
            *collected = Instant::now();
        }
        Ok(())
    }

    /// Writes the log into a table, so that the next writer need not replay it.
    pub(crate) async fn write_table(&self) -> Result<()> {
        let table = FlushOptions {
            flush_type: FlushType::MemTable,
        };
        let written = self.db.flush_with_options(table).await;
        written.map_err(|e| map_error(&self.place, "write a table of the map", e))
    }

    /// Returns the number of tables that wait for compaction.
    fn tables(&self) -> usize {
        self.db.manifest().l0().len()
    }

    /// Merges the tables of the map.
    pub(crate) async fn compact(&self) -> Result<()> {
        let cancelled = tokio_util::sync::CancellationToken::new();
        let admin = admin(&self.place);
        let options = CompactorOptions {
            poll_interval: COMPACTION_POLL,
            commit_compacted_interval: COMPACTION_POLL,
            worker: Some(CompactionWorkerOptions {
                compactions_poll_interval: COMPACTION_POLL,
                object_store_max_retries: Some(0),
                ..CompactionWorkerOptions::default()
            }),
            object_store_max_retries: Some(0),
            ..CompactorOptions::default()
        };
        let watch = async {
            loop {
                tokio::time::sleep(COMPACTION_POLL).await;
                self.db.refresh_manifest().await?;
                if self.tables() < TABLES_BEFORE_COMPACTION / 4 {
                    return Ok(());
                }
            }
        };
        let failed = |e| map_error(&self.place, "compact the map", e);
        let compactor = admin.run_compactor_with_options(cancelled.clone(), options);
        tokio::pin!(compactor);
        let watched = tokio::select! {
            ended = &mut compactor => return ended.map_err(failed),
            watched = tokio::time::timeout(COMPACTION_TIME_MAX, watch) => watched,
        };
        cancelled.cancel();
        compactor.await.map_err(failed)?;
        match watched {
            Ok(watched) => watched.map_err(failed),
            // The tables stay as they are; a later compaction merges them.
            Err(_) => {
                let limit_s = COMPACTION_TIME_MAX.as_secs();
                let reason = format!("compact the map: not done within {limit_s} s");
                Err(Error::new(Errno::TIMEDOUT, reason).at(self.place.name()))
            }
        }
    }

    /// Creates a checkpoint of all that is committed.
    pub(crate) async fn checkpoint(&self, name: &str) -> Result<uuid::Uuid> {
        let options = CheckpointOptions {
            lifetime: None,
            source: None,
            name: Some(name.to_owned()),
        };
        let created = self.db.create_checkpoint(CheckpointScope::All, &options);
        let checkpoint = created.await;
        let failed = |e| map_error(&self.place, "create a checkpoint", e);
        Ok(checkpoint.map_err(failed)?.id)
    }

    /// Closes the map. With `is_tidy`, the next writer has no log to replay and few tables to read.
    pub(crate) async fn close(&self, is_tidy: bool) -> Result<()> {
        // All is committed: the next writer can make up for what fails.
        if is_tidy && let Err(error) = self.shorten().await {
            tracing::warn!("{error}");
        }
        // No flush: a commit is durable when it returns.
        let options = CloseOptions::default().with_flush_type(None);
        let closed = self.db.close_with_options(options).await;
        closed.map_err(|e| map_error(&self.place, "close the map", e))
    }
}

/// Loads the map without becoming its writer: the last flush, or a checkpoint.
pub(crate) async fn load_read_only(
    place: &StorePlace,
    checkpoint: Option<uuid::Uuid>,
) -> Result<MapState> {
    let options = DbReaderOptions {
        manifest_poll_interval: NEVER,
        checkpoint_lifetime: NEVER * 3,
        object_store_max_retries: Some(0),
        ..DbReaderOptions::default()
    };
    let mode = match checkpoint {
        Some(id) => DbReaderMode::Checkpoint(id),
        None => DbReaderMode::FollowLatest,
    };
    let reader = DbReader::builder(place.map_path(), place.store.clone())
        .with_options(options)
        .with_system_clock(place.clock.clone())
        .with_reader_mode(mode)
        .with_db_cache_disabled()
        .build();
    let reader = checked(place, "open the map", reader).await?;
    preload(place, &reader.manifest()).await;
    let options = scan_options();
    let entries = reader.scan_with_options::<std::ops::RangeFull>(.., &options);
    let entries = checked(place, READ, entries).await;
    let map = load(place, entries).await;
    let closed = reader.close().await;
    let (map, _) = map?;
    closed.map_err(|e| map_error(place, "close the map", e))?;
    Ok(map)
}

/// Returns whether a map exists at the place. One request.
pub(crate) async fn exists(place: &StorePlace) -> Result<bool> {
    let prefix = Path::from(format!("{}/manifest", place.map_path()));
    match place.store.list(Some(&prefix)).next().await {
        Some(Ok(_)) => Ok(true),
        None => Ok(false),
        Some(Err(error)) => Err(place.error("look for a volume", error)),
    }
}

/// Returns the description of the map's objects; none if there is no map.
pub(crate) async fn manifest(
    place: &StorePlace,
    operation: &str,
) -> Result<Option<VersionedManifest>> {
    checked(place, operation, admin(place).read_manifest(None)).await
}

/// Returns the administration of the map, for checkpoints.
pub(crate) fn admin(place: &StorePlace) -> Admin {
    AdminBuilder::new(place.map_path(), place.store.clone())
        .with_system_clock(place.clock.clone())
        .build()
}

/// Deletes objects of the map that nothing uses and that are at least `min_age` old.
pub(crate) async fn collect(place: &StorePlace, min_age: Duration) {
    let directory = directory_options(min_age);
    collect_folders(place, directory, directory).await;
}

/// Deletes what tables and compactions replaced, once no reader that opens the volume needs it.
///
/// The fences make deletions from the log safe on any store. Other folders need conditional
/// replacement: without it, a writer that was paused could restore a deleted manifest.
async fn collect_replaced(place: &StorePlace) {
    let log = directory_options(place.map_garbage_age);
    let others = log.filter(|_| place.has_updates);
    collect_folders(place, log, others).await;
}

fn directory_options(min_age: Duration) -> Option<GarbageCollectorDirectoryOptions> {
    Some(GarbageCollectorDirectoryOptions {
        interval: None,
        min_age,
        dry_run: false,
    })
}

async fn collect_folders(
    place: &StorePlace,
    log: Option<GarbageCollectorDirectoryOptions>,
    others: Option<GarbageCollectorDirectoryOptions>,
) {
    let options = GarbageCollectorOptions {
        manifest_options: others,
        wal_options: log,
        // The fences stay for ever: without them, a paused writer could still write.
        wal_fence_options: None,
        compacted_options: others,
        compactions_options: others,
        detach_options: None,
        metric_level: None,
        boundary_files_enabled: place.has_updates,
        object_store_max_retries: Some(0),
    };
    // It reports no failure; what it could not delete, a later collection finds again.
    GarbageCollectorBuilder::new(place.map_path(), place.store.clone())
        .with_system_clock(place.clock.clone())
        .with_options(options)
        .build()
        .run_gc_once()
        .await;
}

/// Reads the tables of a map at once.
async fn preload(place: &StorePlace, manifest: &VersionedManifest) {
    let paths = PathResolver::new(place.map_path(), manifest);
    let runs = manifest.compacted().iter().flat_map(SortedRun::sst_views);
    let tables = manifest.l0().iter().chain(runs);
    let tables: Vec<Path> = tables.map(|view| paths.sst_path(&view.sst.id)).collect();
    place.store.preload(tables).await;
}

/// Reads all entries of a map, and releases what was preloaded. Returns the number of the last
/// commit too.
async fn load(place: &StorePlace, entries: Result<DbIterator>) -> Result<(MapState, u64)> {
    let mut loader = MapLoader::default();
    let mut last_commit = 0;
    let read = async {
        let mut entries = entries?;
        while let Some(entry) = checked(place, READ, entries.next()).await? {
            place.clock.pass(entry.create_ts);
            last_commit = last_commit.max(entry.seq);
            let added = loader.add(&entry.key, &entry.value);
            added.map_err(|e| e.at(place.name()))?;
        }
        Ok::<_, Error>(())
    };
    let read = read.await;
    // Also after a failure: the tables take memory.
    place.store.forget();
    read?;
    let map = loader.finish().map_err(|e| e.at(place.name()))?;
    Ok((map, last_commit))
}

fn scan_options() -> ScanOptions {
    ScanOptions::default()
        .with_read_ahead_bytes(8 << 20)
        .with_max_fetch_tasks(8)
}

/// Runs slatedb on stored objects. Its panics on damaged ones become errors.
///
/// # Errors
///
/// EUCLEAN for damaged objects; the store's errors.
pub(crate) async fn checked<T>(
    place: &StorePlace,
    operation: &str,
    work: impl Future<Output = Result<T, slatedb::Error>>,
) -> Result<T> {
    match AssertUnwindSafe(work).catch_unwind().await {
        Ok(done) => done.map_err(|e| map_error(place, operation, e)),
        Err(_) => {
            let text = format!("{operation}: damaged: the reader of the map panicked");
            Err(Error::new(Errno::UCLEAN, text).at(place.name()))
        }
    }
}

/// Converts an error of slatedb.
pub(crate) fn map_error(place: &StorePlace, operation: &str, error: slatedb::Error) -> Error {
    let (errno, reason) = match error.kind() {
        ErrorKind::Closed(CloseReason::Fenced) => (
            Errno::STALE,
            "another writer has taken over the volume; what this writer has not flushed is lost \
             (open the volume again)"
                .to_owned(),
        ),
        ErrorKind::Data => (Errno::UCLEAN, format!("{operation}: {error}")),
        _ => match explained(&error) {
            Some(cause) => (cause.errno(), format!("{operation}: {cause}")),
            None => (Errno::IO, format!("{operation}: {error}")),
        },
    };
    Error::new(errno, reason).at(place.name()).caused_by(error)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::{FLUSH_KEY, FORMAT_VERSION, META_KEY, VolumeMeta, inline_key};
    use futures_util::TryStreamExt;
    use object_store::ObjectStoreExt;
    use object_store::memory::InMemory;
    use object_store::throttle::{ThrottleConfig, ThrottledStore};
    use slatedb_common::clock::SystemClock;

    /// Time is virtual and passes in requests alone, so that seconds count round trips.
    const ROUND_TRIP: Duration = Duration::from_secs(1);

    fn remote() -> Arc<dyn ObjectStore> {
        let latency = ThrottleConfig {
            wait_put_per_call: ROUND_TRIP,
            wait_get_per_call: ROUND_TRIP,
            wait_list_per_call: ROUND_TRIP,
            wait_delete_per_call: ROUND_TRIP,
            ..ThrottleConfig::default()
        };
        Arc::new(ThrottledStore::new(InMemory::new(), latency))
    }

    /// Returns a runtime whose time passes when all tasks wait.
    fn virtual_time() -> tokio::runtime::Runtime {
        tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .unwrap()
    }

    async fn commit(database: &Database, flush: u64) {
        let mut batch = WriteBatch::new();
        batch.put(FLUSH_KEY, flush.to_le_bytes());
        batch.put(inline_key(flush % 500), vec![flush as u8; 4096]);
        database.commit(batch).await.unwrap();
    }

    /// Returns the sizes of the objects in a folder of the map.
    async fn sizes(place: &StorePlace, folder: &str) -> Vec<u64> {
        let folder = Path::from(format!("{}/{folder}", place.map_path()));
        let listed = place.store.list(Some(&folder)).map_ok(|meta| meta.size);
        listed.try_collect().await.unwrap()
    }

    #[test]
    fn damaged_manifest_gives_an_error() {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let store = Arc::new(InMemory::new());
        let place = StorePlace::new(store.clone(), "vol".into(), runtime.handle().clone(), "vol");
        let newest = runtime.block_on(async {
            let database = Database::open(&place).await.unwrap();
            commit(&database, 1).await;
            database.close(true).await.unwrap();
            let folder = Path::from(format!("{}/manifest", place.map_path()));
            let listed: Vec<_> = store.list(Some(&folder)).try_collect().await.unwrap();
            listed.into_iter().map(|meta| meta.location).max().unwrap()
        });
        let whole = runtime.block_on(async {
            let read = store.get(&newest).await.unwrap();
            read.bytes().await.unwrap()
        });
        let mut failures = 0;
        for at in 0..whole.len() {
            for value in [0, 0xff] {
                let mut bytes = whole.to_vec();
                bytes[at] = value;
                // slatedb panics at some of them.
                runtime.block_on(store.put(&newest, bytes.into())).unwrap();
                failures += usize::from(runtime.block_on(load_read_only(&place, None)).is_err());
            }
        }
        assert!(failures > 10, "{failures} failures");
    }

    /// The sessions of commands, a minute after each other.
    #[test]
    fn short_sessions_leave_few_objects() {
        /// The largest fence: a log object without entries.
        const FENCE_BYTES_MAX: u64 = 128;
        let runtime = virtual_time();
        runtime.block_on(async {
            let handle = tokio::runtime::Handle::current();
            let place = StorePlace::new(remote(), "vol".into(), handle, "vol");
            for session in 0..200 {
                let now_ms = place.clock.now().timestamp_millis();
                place.clock.pass(now_ms + 60_000);
                let database = Database::open(&place).await.unwrap();
                let _map = database.load().await.unwrap();
                for flush in 0..3 {
                    commit(&database, session * 3 + flush).await;
                }
                database.close(true).await.unwrap();
                let tables = database.tables();
                assert!(tables <= TABLES_BEFORE_COMPACTION, "{tables} tables");
            }
            let tables = sizes(&place, "compacted").await.len();
            assert!(tables <= 100, "{tables} tables");
            let mut log = sizes(&place, "wal").await;
            log.retain(|size| *size > FENCE_BYTES_MAX);
            assert!(log.len() <= 250, "{} objects in the log", log.len());
        });
    }

    #[test]
    fn takeover_after_10000_flushes_is_short() {
        let runtime = virtual_time();
        runtime.block_on(async {
            let handle = tokio::runtime::Handle::current();
            let place = StorePlace::new(remote(), "vol".into(), handle, "vol");
            let first = Database::open(&place).await.unwrap();
            let meta = VolumeMeta {
                format: FORMAT_VERSION,
                id: uuid::Uuid::nil(),
                size_bytes: 1 << 30,
                origins: vec!["vol".to_owned()],
                parent_checkpoint: None,
            };
            let mut batch = WriteBatch::new();
            batch.put(META_KEY, serde_json::to_vec(&meta).unwrap());
            first.commit(batch).await.unwrap();
            for flush in 1..=10_000 {
                commit(&first, flush).await;
            }
            let started = Instant::now();
            let second = Database::open(&place).await.unwrap();
            let map = second.load().await.unwrap().volume(&place).unwrap();
            let round_trips = started.elapsed().as_secs();
            assert_eq!(map.flush, 10_000);
            assert!(round_trips <= 20, "{round_trips} round trips");
            // Garbage of the map waits for ten minutes, here 600 flushes.
            let log = Path::from("vol/map/wal");
            let log: Vec<_> = place.store.list(Some(&log)).try_collect().await.unwrap();
            assert!(log.len() <= 1500, "{} objects in the log", log.len());
            commit(&second, 10_001).await;
            assert!(first.write_table().await.is_err());
        });
    }
}
