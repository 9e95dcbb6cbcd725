//! The map in slatedb: settings, opening as writer or reader, loading, error conversion.
//!
//! Nothing runs in the background of an idle volume: no polling, no compactor, no garbage
//! collector. Compaction runs when flushes have left many tables ([`Database::compact`]).

use crate::map::{MapLoader, VolumeMap};
use crate::place::StorePlace;
use folio::{Errno, Error, Result};
use futures_util::StreamExt;
use object_store::path::Path;
use slatedb::admin::{Admin, AdminBuilder};
use slatedb::config::{
    CheckpointOptions, CheckpointScope, CompactorOptions, DbReaderOptions, FlushOptions, FlushType,
    GarbageCollectorDirectoryOptions, GarbageCollectorOptions, ScanOptions, Settings,
};
use slatedb::{
    CloseReason, Db, DbIterator, DbReader, DbReaderMode, ErrorKind, VersionedManifest, WriteBatch,
};
use std::future::Future;
use std::time::Duration;

/// Tables in the map that start a compaction.
const TABLES_BEFORE_COMPACTION: usize = 24;
/// The time after which a compaction is left to a later one.
const COMPACTION_TIME_MAX: Duration = Duration::from_secs(120);
/// Longer than any process lives, for timers that must not fire.
const NEVER: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

/// The map of a volume, open for writing.
pub(crate) struct Database {
    db: Db,
    place: StorePlace,
}

impl Database {
    /// Opens the map, creates it if it does not exist, and fences its last writer.
    pub(crate) async fn open(place: &StorePlace) -> Result<Self> {
        let settings = Settings {
            flush_interval: None,
            manifest_poll_interval: NEVER,
            l0_max_ssts: 1 << 20,
            l0_max_ssts_per_key: 1 << 20,
            compactor_options: None,
            garbage_collector_options: None,
            object_store_max_retries: Some(place.retries),
            ..Settings::default()
        };
        let db = Db::builder(place.map_path(), place.store.clone())
            .with_settings(settings)
            .with_db_cache_disabled()
            .build()
            .await
            .map_err(|e| map_error(place, "open the map", e))?;
        Ok(Self {
            db,
            place: place.clone(),
        })
    }

    /// Returns this writer's epoch: later than that of every writer before.
    pub(crate) fn epoch(&self) -> u64 {
        self.db.manifest().writer_epoch()
    }

    /// Loads the map; none if there is no volume.
    pub(crate) async fn load(&self) -> Result<Option<VolumeMap>> {
        let entries = self
            .db
            .scan_with_options::<std::ops::RangeFull>(.., &scan_options())
            .await
            .map_err(|e| map_error(&self.place, "read the map", e))?;
        load(&self.place, entries).await
    }

    /// Applies a batch and makes it durable. One PUT.
    pub(crate) async fn commit(&self, batch: WriteBatch) -> Result<()> {
        let failed = |e| map_error(&self.place, "write the map", e);
        self.db.write(batch).await.map_err(failed)?;
        let log = FlushOptions {
            flush_type: FlushType::Wal,
        };
        self.db.flush_with_options(log).await.map_err(failed)
    }

    /// Writes the log into a table, so that the next writer need not replay it.
    pub(crate) async fn write_table(&self) -> Result<()> {
        let table = FlushOptions {
            flush_type: FlushType::MemTable,
        };
        let written = self.db.flush_with_options(table);
        limited(&self.place, "write a table of the map", written).await
    }

    /// Writes the log into a table, and merges the tables if there are many.
    pub(crate) async fn shorten_log(&self) -> Result<()> {
        self.write_table().await?;
        if self.tables() >= TABLES_BEFORE_COMPACTION {
            self.compact().await
        } else {
            Ok(())
        }
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
            poll_interval: Duration::from_millis(100),
            object_store_max_retries: Some(self.place.retries),
            ..CompactorOptions::default()
        };
        let done = cancelled.clone();
        let watch = async {
            while !done.is_cancelled() {
                tokio::time::sleep(Duration::from_millis(100)).await;
                let is_refreshed = self.db.refresh_manifest().await.is_ok();
                if !is_refreshed || self.tables() < TABLES_BEFORE_COMPACTION / 4 {
                    break;
                }
            }
            done.cancel();
        };
        let compactor = admin.run_compactor_with_options(cancelled, options);
        let both = async { futures_util::join!(compactor, watch).0 };
        match tokio::time::timeout(COMPACTION_TIME_MAX, both).await {
            Ok(compacted) => compacted.map_err(|e| map_error(&self.place, "compact the map", e)),
            // The tables stay as they are; a later compaction merges them.
            Err(_) => Ok(()),
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
        let checkpoint = limited(&self.place, "create a checkpoint", created).await?;
        Ok(checkpoint.id)
    }

    /// Closes the map; the next writer has no log to replay.
    pub(crate) async fn close(&self) -> Result<()> {
        limited(&self.place, "close the map", self.db.close()).await
    }
}

/// Loads the map without becoming its writer: the last flush, or a checkpoint.
pub(crate) async fn load_read_only(
    place: &StorePlace,
    checkpoint: Option<uuid::Uuid>,
) -> Result<Option<VolumeMap>> {
    let options = DbReaderOptions {
        manifest_poll_interval: NEVER,
        checkpoint_lifetime: NEVER * 3,
        object_store_max_retries: Some(place.retries),
        ..DbReaderOptions::default()
    };
    let mode = match checkpoint {
        Some(id) => DbReaderMode::Checkpoint(id),
        None => DbReaderMode::FollowLatest,
    };
    let reader = DbReader::builder(place.map_path(), place.store.clone())
        .with_options(options)
        .with_reader_mode(mode)
        .with_db_cache_disabled()
        .build()
        .await;
    let reader = reader.map_err(|e| map_error(place, "open the map", e))?;
    let entries = reader
        .scan_with_options::<std::ops::RangeFull>(.., &scan_options())
        .await;
    let map = match entries {
        Ok(entries) => load(place, entries).await,
        Err(e) => Err(map_error(place, "read the map", e)),
    };
    let closed = reader.close().await;
    let map = map?;
    closed.map_err(|e| map_error(place, "close the map", e))?;
    Ok(map)
}

/// Returns whether a map exists at the place. One request, whose failure is final: slatedb would
/// repeat it, and a bucket that does not exist would take the whole I/O timeout.
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
    limited(place, operation, admin(place).read_manifest(None)).await
}

/// Waits for an operation whose requests slatedb repeats without a limit of its own.
///
/// # Errors
///
/// ETIMEDOUT after the time that a request may take; the operation's errors.
pub(crate) async fn limited<T>(
    place: &StorePlace,
    operation: &str,
    work: impl Future<Output = Result<T, slatedb::Error>>,
) -> Result<T> {
    match tokio::time::timeout(place.io_timeout(), work).await {
        Ok(result) => result.map_err(|e| map_error(place, operation, e)),
        Err(_) => Err(Error::new(
            Errno::TIMEDOUT,
            format!("{operation}: no success within {:?}", place.io_timeout()),
        )
        .at(place.name())),
    }
}

/// Returns the administration of the map, for checkpoints.
pub(crate) fn admin(place: &StorePlace) -> Admin {
    AdminBuilder::new(place.map_path(), place.store.clone()).build()
}

/// Deletes objects of the map that nothing uses and that are at least `min_age` old.
pub(crate) async fn collect(place: &StorePlace, min_age: Duration) -> Result<()> {
    let directory = Some(GarbageCollectorDirectoryOptions {
        interval: None,
        min_age,
        dry_run: false,
    });
    let options = GarbageCollectorOptions {
        manifest_options: directory,
        wal_options: directory,
        // The fences stay for ever: without them, a paused writer could still write.
        wal_fence_options: None,
        compacted_options: directory,
        compactions_options: directory,
        detach_options: None,
        metric_level: None,
        boundary_files_enabled: place.has_updates,
        object_store_max_retries: Some(place.retries),
    };
    admin(place)
        .run_gc_once(options)
        .await
        .map_err(|e| map_error(place, "collect garbage of the map", e))
}

async fn load(place: &StorePlace, mut entries: DbIterator) -> Result<Option<VolumeMap>> {
    let mut loader = MapLoader::default();
    loop {
        let entry = entries.next().await;
        match entry.map_err(|e| map_error(place, "read the map", e))? {
            Some(entry) => loader
                .add(&entry.key, &entry.value)
                .map_err(|e| e.at(place.name()))?,
            None => return loader.finish().map_err(|e| e.at(place.name())),
        }
    }
}

fn scan_options() -> ScanOptions {
    ScanOptions::default()
        .with_read_ahead_bytes(8 << 20)
        .with_max_fetch_tasks(8)
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
        _ => (Errno::IO, format!("{operation}: {error}")),
    };
    Error::new(errno, reason).at(place.name()).caused_by(error)
}
