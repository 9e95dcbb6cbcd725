//! The check of a store: whether it keeps what volumes rely on.
//!
//! A volume is safe only if a creation of an object that exists fails, also when several clients
//! race. Some servers accept the request header and ignore it, or check it without a lock.

use crate::place::StorePlace;
use bytes::Bytes;
use folio::Result;
use futures_util::TryStreamExt;
use futures_util::future::join_all;
use object_store::path::Path;
use object_store::{
    Error as StoreError, ObjectStoreExt, PutMode, PutOptions, PutPayload, UpdateVersion,
};
use std::time::{Duration, Instant, SystemTime};

/// Rounds of a race, and the clients in each.
const ROUNDS: usize = 12;
const CLIENTS: usize = 16;
/// Increments of the counter that clients race for.
const INCREMENTS: u64 = 48;
/// A clock that differs more makes signed requests fail.
const CLOCK_SKEW_MAX: Duration = Duration::from_secs(15 * 60);
const LARGE_BYTES: usize = 8 << 20;

/// The tests to run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum StoreTests {
    /// Those without which a volume loses data or cannot be read: the races and ranged reads.
    Required,
    /// All.
    All,
}

/// The result of one test of a store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StoreVerdict {
    /// The store does what volumes rely on.
    Passed,
    /// The store does not; volumes work without it.
    Missing(String),
    /// The store does not; a volume on it would lose data or could not be read.
    Failed(String),
}

/// One test of a store.
#[derive(Debug, Clone)]
pub struct StoreTest {
    /// The name of the test.
    pub name: &'static str,
    /// Its result.
    pub verdict: StoreVerdict,
    /// Its duration.
    pub took: Duration,
}

/// Tests the store below `place`, with objects in a new folder that is removed afterwards.
///
/// # Errors
///
/// The store's, if a plain write fails. The failure of a later request fails its test.
pub fn check_store(place: &StorePlace, tests: StoreTests) -> Result<Vec<StoreTest>> {
    let folder = Path::from(format!(
        "{}/folio-check-{}",
        place.root,
        uuid::Uuid::new_v4()
    ));
    let check = Check {
        place: place.clone(),
        folder,
    };
    place.wait(async {
        let mut done = Vec::new();
        let ran = check.run(tests, &mut done).await;
        let removed = check.remove().await;
        ran?;
        removed?;
        Ok(done)
    })
}

/// Returns why a volume must not be created on a store, if that is so.
pub fn refusal(tests: &[StoreTest]) -> Option<String> {
    tests.iter().find_map(|test| match &test.verdict {
        StoreVerdict::Failed(reason) => Some(format!("{}: {reason}", test.name)),
        _ => None,
    })
}

struct Check {
    place: StorePlace,
    folder: Path,
}

impl Check {
    async fn run(&self, tests: StoreTests, done: &mut Vec<StoreTest>) -> Result<()> {
        self.put(&self.path("first"), Bytes::from_static(b"x"))
            .await?;
        let mut started = Instant::now();
        let mut record = |name, verdict: Result<StoreVerdict>| {
            done.push(StoreTest {
                name,
                verdict: verdict.unwrap_or_else(|e| StoreVerdict::Failed(e.to_string())),
                took: started.elapsed(),
            });
            started = Instant::now();
        };
        record("conditional creation, raced", self.creations().await);
        record("conditional replacement, raced", self.replacements().await);
        record("ranged reads", self.ranges().await);
        if tests == StoreTests::All {
            record("read after write", self.read_after_write().await);
            record("list after write", self.list_after_write().await);
            record("uploads of 8 MiB", self.large().await);
            record("clock", self.clock().await);
        }
        Ok(())
    }

    fn path(&self, name: &str) -> Path {
        Path::from(format!("{}/{name}", self.folder))
    }

    async fn put(&self, path: &Path, bytes: Bytes) -> Result<()> {
        let put = self.place.direct.put(path, PutPayload::from(bytes)).await;
        put.map(drop)
            .map_err(|e| self.place.error(&format!("write {path}"), e))
    }

    async fn get(&self, path: &Path) -> Result<Bytes> {
        let read = async { self.place.direct.get(path).await?.bytes().await };
        read.await
            .map_err(|e| self.place.error(&format!("read {path}"), e))
    }

    /// Several clients create one object: one wins, and its bytes are in the object.
    async fn creations(&self) -> Result<StoreVerdict> {
        for round in 0..ROUNDS {
            let path = self.path(&format!("create-{round}"));
            let attempts = (0..CLIENTS).map(|client| {
                let payload = PutPayload::from(vec![client as u8; 1000]);
                let options = PutOptions::from(PutMode::Create);
                let (store, path) = (self.place.direct.clone(), path.clone());
                self.place
                    .runtime
                    .spawn(async move { store.put_opts(&path, payload, options).await })
            });
            let mut winners = Vec::new();
            for (client, attempt) in join_all(attempts).await.into_iter().enumerate() {
                match attempt {
                    Ok(Ok(_)) => winners.push(client as u8),
                    Ok(Err(StoreError::AlreadyExists { .. } | StoreError::Precondition { .. })) => {
                    }
                    Ok(Err(e)) => {
                        return Ok(StoreVerdict::Failed(format!("a creation failed: {e}")));
                    }
                    Err(_) => return Ok(StoreVerdict::Failed("a client panicked".to_owned())),
                }
            }
            let [winner] = winners[..] else {
                let count = winners.len();
                return Ok(StoreVerdict::Failed(format!(
                    "{count} of {CLIENTS} clients created one object (round {round}): the store \
                     does not check If-None-Match atomically"
                )));
            };
            if self.get(&path).await?.iter().any(|&byte| byte != winner) {
                let reason = "the object does not hold the bytes of its creator";
                return Ok(StoreVerdict::Failed(reason.to_owned()));
            }
        }
        Ok(StoreVerdict::Passed)
    }

    /// Several clients increment one counter by compare and swap: no increment is lost.
    async fn replacements(&self) -> Result<StoreVerdict> {
        let path = self.path("counter");
        self.put(&path, Bytes::from_static(b"0")).await?;
        let clients = (0..CLIENTS as u64 / 4).map(|_| {
            let (place, path) = (self.place.clone(), path.clone());
            self.place.runtime.spawn(async move {
                let mut won = 0;
                while won < INCREMENTS / (CLIENTS as u64 / 4) {
                    won += u64::from(increment(&place, &path).await?);
                }
                Ok::<_, StoreError>(())
            })
        });
        for client in join_all(clients).await {
            match client {
                Ok(Ok(())) => {}
                Ok(Err(StoreError::NotImplemented { .. } | StoreError::NotSupported { .. })) => {
                    let reason =
                        "not supported: garbage of the map stays where a writer was paused";
                    return Ok(StoreVerdict::Missing(reason.to_owned()));
                }
                Ok(Err(e)) => {
                    return Ok(StoreVerdict::Failed(format!("a replacement failed: {e}")));
                }
                Err(_) => return Ok(StoreVerdict::Failed("a client panicked".to_owned())),
            }
        }
        let count = self.get(&path).await?;
        if count.as_ref() == INCREMENTS.to_string().as_bytes() {
            Ok(StoreVerdict::Passed)
        } else {
            Ok(StoreVerdict::Failed(format!(
                "{INCREMENTS} replacements succeeded, {} are left: the store does not check \
                 If-Match atomically",
                String::from_utf8_lossy(&count)
            )))
        }
    }

    async fn read_after_write(&self) -> Result<StoreVerdict> {
        let path = self.path("replaced");
        for n in 0..ROUNDS as u8 {
            self.put(&path, Bytes::from(vec![n; 5000])).await?;
            let found = self.get(&path).await?;
            if found.len() != 5000 || found.iter().any(|&byte| byte != n) {
                let reason = format!("write {n} was acknowledged and not read back");
                return Ok(StoreVerdict::Failed(reason));
            }
        }
        Ok(StoreVerdict::Passed)
    }

    async fn list_after_write(&self) -> Result<StoreVerdict> {
        let folder = self.path("list");
        for n in 0..ROUNDS {
            let path = Path::from(format!("{folder}/{n:03}"));
            self.put(&path, Bytes::from_static(b"x")).await?;
            let listed: Vec<_> = self
                .place
                .direct
                .list(Some(&folder))
                .try_collect()
                .await
                .map_err(|e| self.place.error("list", e))?;
            if listed.len() != n + 1 {
                let reason = format!("{} of {} objects are listed", listed.len(), n + 1);
                return Ok(StoreVerdict::Failed(reason));
            }
        }
        Ok(StoreVerdict::Passed)
    }

    async fn ranges(&self) -> Result<StoreVerdict> {
        let path = self.path("ranges");
        let bytes: Vec<u8> = (0..100_000_u32).map(|n| (n / 7) as u8).collect();
        self.put(&path, Bytes::from(bytes.clone())).await?;
        for range in [0..1, 4096..8192, 99_999..100_000, 0..100_000] {
            let found = self.place.direct.get_range(&path, range.clone()).await;
            let found = found.map_err(|e| self.place.error("read a range", e))?;
            if found != bytes[range.start as usize..range.end as usize] {
                let reason = format!("bytes {range:?} read as {} other bytes", found.len());
                return Ok(StoreVerdict::Failed(reason));
            }
        }
        Ok(StoreVerdict::Passed)
    }

    async fn large(&self) -> Result<StoreVerdict> {
        let path = self.path("large");
        let bytes: Bytes = (0..LARGE_BYTES).map(|n| (n / 4096) as u8).collect();
        let options = PutOptions::from(PutMode::Create);
        let put = self
            .place
            .direct
            .put_opts(&path, bytes.clone().into(), options);
        put.await.map_err(|e| self.place.error("upload 8 MiB", e))?;
        if self.get(&path).await? == bytes {
            Ok(StoreVerdict::Passed)
        } else {
            Ok(StoreVerdict::Failed("8 MiB do not read back".to_owned()))
        }
    }

    async fn clock(&self) -> Result<StoreVerdict> {
        let path = self.path("clock");
        self.put(&path, Bytes::from_static(b"x")).await?;
        let head = self.place.direct.head(&path).await;
        let head = head.map_err(|e| self.place.error("read the time", e))?;
        let (theirs, ours) = (SystemTime::from(head.last_modified), SystemTime::now());
        let skew = match ours.duration_since(theirs) {
            Ok(ahead) => ahead,
            Err(behind) => behind.duration(),
        };
        if skew > CLOCK_SKEW_MAX {
            Ok(StoreVerdict::Missing(format!(
                "this machine's clock differs by {} s: set it",
                skew.as_secs()
            )))
        } else {
            Ok(StoreVerdict::Passed)
        }
    }

    async fn remove(&self) -> Result<()> {
        let objects: Vec<_> = self
            .place
            .direct
            .list(Some(&self.folder))
            .try_collect()
            .await
            .map_err(|e| self.place.error("list", e))?;
        for object in objects {
            let deleted = self.place.direct.delete(&object.location).await;
            deleted.map_err(|e| self.place.error("remove the test's objects", e))?;
        }
        Ok(())
    }
}

/// Increments the counter, or returns false if another client was faster.
async fn increment(place: &StorePlace, path: &Path) -> object_store::Result<bool> {
    let found = place.direct.get(path).await?;
    let version = UpdateVersion {
        e_tag: found.meta.e_tag.clone(),
        version: found.meta.version.clone(),
    };
    let text = found.bytes().await?;
    let count: u64 = String::from_utf8_lossy(&text).parse().unwrap_or(0);
    let payload = PutPayload::from((count + 1).to_string().into_bytes());
    let options = PutOptions::from(PutMode::Update(version));
    match place.direct.put_opts(path, payload, options).await {
        Ok(_) => Ok(true),
        Err(StoreError::Precondition { .. } | StoreError::AlreadyExists { .. }) => Ok(false),
        Err(e) => Err(e),
    }
}
