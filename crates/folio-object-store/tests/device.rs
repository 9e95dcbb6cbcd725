//! Objects as disks over a store in memory that counts, fails, truncates and replaces, and over
//! hostile web servers.

#[path = "device/web_server.rs"]
mod web_server;

use async_trait::async_trait;
use bytes::Bytes;
use folio::block::Device;
use folio::{Errno, Result};
use folio_object_store::{
    ObjectDevice, PartCache, PartCacheOptions, Store, StoreOptions, UploadProgress, provide_memory,
    replace, upload,
};
use futures_util::StreamExt;
use futures_util::stream::BoxStream;
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{
    CopyOptions, GetOptions, GetResult, GetResultPayload, ListResult, MultipartUpload, ObjectMeta,
    ObjectStore, ObjectStoreExt, PutMultipartOptions, PutOptions, PutPayload, PutResult,
};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

const MIB: usize = 1 << 20;

/// A store in memory with faults.
#[derive(Debug, Default)]
struct FaultyStore {
    objects: InMemory,
    gets: AtomicUsize,
    received: AtomicU64,
    /// Answers to truncate.
    truncations: AtomicUsize,
    /// Requests to fail.
    failures: AtomicUsize,
    /// Requests that never end.
    hangs: AtomicUsize,
}

impl std::fmt::Display for FaultyStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("faulty store")
    }
}

fn take(counter: &AtomicUsize) -> bool {
    counter
        .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| {
            left.checked_sub(1)
        })
        .is_ok()
}

#[async_trait]
impl ObjectStore for FaultyStore {
    async fn put_opts(
        &self,
        path: &Path,
        payload: PutPayload,
        options: PutOptions,
    ) -> object_store::Result<PutResult> {
        self.objects.put_opts(path, payload, options).await
    }

    async fn put_multipart_opts(
        &self,
        path: &Path,
        options: PutMultipartOptions,
    ) -> object_store::Result<Box<dyn MultipartUpload>> {
        self.objects.put_multipart_opts(path, options).await
    }

    async fn get_opts(&self, path: &Path, options: GetOptions) -> object_store::Result<GetResult> {
        self.gets.fetch_add(1, Ordering::SeqCst);
        if take(&self.hangs) {
            std::future::pending::<()>().await;
        }
        if take(&self.failures) {
            return Err(object_store::Error::Generic {
                store: "faulty",
                source: "Server returned non-2xx status code: 503".into(),
            });
        }
        // As a server that ignores the condition: the version is checked by the device too.
        let options = GetOptions {
            if_match: None,
            ..options
        };
        let found = self.objects.get_opts(path, options).await?;
        let (meta, range) = (found.meta.clone(), found.range.clone());
        let attributes = found.attributes.clone();
        let extensions = found.extensions.clone();
        let bytes = found.bytes().await?;
        let count = if take(&self.truncations) {
            bytes.len() / 2
        } else {
            bytes.len()
        };
        self.received.fetch_add(count as u64, Ordering::SeqCst);
        let body = futures_util::stream::once(async move { Ok(bytes.slice(..count)) });
        Ok(GetResult {
            payload: GetResultPayload::Stream(body.boxed()),
            meta,
            range,
            attributes,
            extensions,
        })
    }

    fn delete_stream(
        &self,
        paths: BoxStream<'static, object_store::Result<Path>>,
    ) -> BoxStream<'static, object_store::Result<Path>> {
        self.objects.delete_stream(paths)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, object_store::Result<ObjectMeta>> {
        self.objects.list(prefix)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> object_store::Result<ListResult> {
        self.objects.list_with_delimiter(prefix).await
    }

    async fn copy_opts(
        &self,
        from: &Path,
        to: &Path,
        options: CopyOptions,
    ) -> object_store::Result<()> {
        self.objects.copy_opts(from, to, options).await
    }
}

/// An object with known bytes in a store of its own.
struct Fixture {
    faulty: Arc<FaultyStore>,
    store: Store,
    bytes: Vec<u8>,
}

impl Fixture {
    fn new(name: &str, len: usize) -> Self {
        let faulty = Arc::new(FaultyStore::default());
        provide_memory(name, faulty.clone());
        let url = format!("memory://{name}/disk.img").parse().unwrap();
        let mut options = StoreOptions::default();
        options.io_timeout = Duration::from_secs(5);
        let store = Store::open(&url, &options).unwrap();
        let bytes: Vec<u8> = (0..len as u32)
            .map(|at| (at.wrapping_mul(2_654_435_761) >> 13) as u8)
            .collect();
        let this = Self {
            faulty,
            store,
            bytes,
        };
        this.put(this.bytes.clone());
        this
    }

    fn put(&self, bytes: Vec<u8>) {
        let put = self
            .store
            .objects()
            .put(self.store.path(), PutPayload::from(bytes));
        self.store.run("put", put).unwrap();
    }

    fn get(&self) -> Bytes {
        let get = async {
            self.faulty
                .objects
                .get(self.store.path())
                .await?
                .bytes()
                .await
        };
        self.store.run("get", get).unwrap()
    }

    fn open(&self) -> ObjectDevice {
        ObjectDevice::open(self.store.clone(), |_, _, _| None).unwrap()
    }

    /// Reads a range and compares it.
    fn check(&self, device: &ObjectDevice, range: Range<usize>) -> Result<()> {
        let mut found = vec![0; range.len()];
        device.read_at(&mut found, range.start as u64)?;
        assert!(found == self.bytes[range.clone()], "{range:?}");
        Ok(())
    }

    fn gets(&self) -> usize {
        self.faulty.gets.swap(0, Ordering::SeqCst)
    }
}

const PROGRESS: UploadProgress<'static> = UploadProgress {
    advance: &|_| {},
    is_canceled: &|| false,
};

#[test]
fn random_read_is_one_request_of_one_part() {
    let fixture = Fixture::new("random", 8 * MIB + 100);
    let device = fixture.open();
    assert_eq!(
        (device.len_bytes(), fixture.gets()),
        (8 * MIB as u64 + 100, 1)
    );
    for offset in [5 * MIB, 2 * MIB + 17, 7 * MIB + 4096] {
        fixture.faulty.received.store(0, Ordering::SeqCst);
        fixture.check(&device, offset..offset + 4096).unwrap();
        assert_eq!(
            (
                fixture.gets(),
                fixture.faulty.received.load(Ordering::SeqCst)
            ),
            (1, 65536)
        );
        fixture.check(&device, offset..offset + 4096).unwrap();
        assert_eq!(fixture.gets(), 0);
    }
    fixture.check(&device, 8 * MIB - 10..8 * MIB + 100).unwrap();
    let mut beyond = [0; 101];
    assert_eq!(
        device
            .read_at(&mut beyond, 8 * MIB as u64)
            .unwrap_err()
            .errno(),
        Errno::IO
    );
    assert_eq!(device.write_at(&[0], 0).unwrap_err().errno(), Errno::ROFS);
}

#[test]
fn sequential_reads_join_neighbors() {
    let fixture = Fixture::new("sequential", 32 * MIB);
    let device = fixture.open();
    for offset in (0..32 * MIB).step_by(65536) {
        fixture.check(&device, offset..offset + 65536).unwrap();
    }
    let gets = fixture.gets();
    assert!((32..=64).contains(&gets), "{gets} requests for 32 MiB");
    assert!(fixture.faulty.received.load(Ordering::SeqCst) <= 33 * MIB as u64);
}

#[test]
fn interleaved_readers_fetch_each_part_once() {
    // Three times the memory for parts.
    let fixture = Fixture::new("interleaved", 96 * MIB);
    let device = fixture.open();
    let (readers, step) = (3, MIB / 4);
    for at in (0..32 * MIB).step_by(step) {
        for reader in 0..readers {
            let start = reader * 32 * MIB + at;
            fixture.check(&device, start..start + step).unwrap();
        }
    }
    // At the end of two ranges, 4 MiB of the next one are read ahead again.
    let received = fixture.faulty.received.load(Ordering::SeqCst);
    assert!(received <= 112 * MIB as u64, "{received}");
}

#[test]
fn reader_of_large_pieces_fetches_each_part_once() {
    let fixture = Fixture::new("pieces", 96 * MIB);
    let device = fixture.open();
    for at in (0..96 * MIB).step_by(8 * MIB) {
        fixture.check(&device, at..at + 8 * MIB).unwrap();
    }
    let received = fixture.faulty.received.load(Ordering::SeqCst);
    assert!(received <= 97 * MIB as u64, "{received}");
}

#[test]
fn readers_on_all_threads_share_requests() {
    let fixture = Fixture::new("threads", 16 * MIB);
    let device = fixture.open();
    std::thread::scope(|scope| {
        for thread in 0..8_usize {
            let (fixture, device) = (&fixture, &device);
            scope.spawn(move || {
                for step in 0..256_usize {
                    let at = (step * 7919 + thread * 31) * 4096 % (16 * MIB - 9000);
                    fixture.check(device, at..at + 9000).unwrap();
                }
            });
        }
    });
    assert!(fixture.faulty.received.load(Ordering::SeqCst) <= 24 * MIB as u64);
}

#[test]
fn replaced_object_is_stale_and_never_mixed() {
    let fixture = Fixture::new("replaced", 4 * MIB);
    let device = fixture.open();
    fixture.check(&device, 0..4096).unwrap();
    fixture.put(vec![0xEE; 4 * MIB]);
    let error = fixture.check(&device, 3 * MIB..3 * MIB + 4096).unwrap_err();
    assert_eq!(error.errno(), Errno::STALE);
    assert!(
        error.to_string().contains("memory://replaced/disk.img"),
        "{error}"
    );
    // What was read before is of the old version.
    fixture.check(&device, 0..4096).unwrap();
    let delete = fixture.store.objects().delete(fixture.store.path());
    fixture.store.run("delete", delete).unwrap();
    let error = fixture.check(&device, 2 * MIB..2 * MIB + 1).unwrap_err();
    assert_eq!(error.errno(), Errno::STALE);
}

#[test]
fn truncated_body_is_fetched_again() {
    let fixture = Fixture::new("truncated", 4 * MIB);
    let device = fixture.open();
    fixture.faulty.truncations.store(2, Ordering::SeqCst);
    fixture.check(&device, 2 * MIB..2 * MIB + 4096).unwrap();
    fixture
        .faulty
        .truncations
        .store(usize::MAX, Ordering::SeqCst);
    let error = fixture.check(&device, 3 * MIB..3 * MIB + 4096).unwrap_err();
    assert_eq!(error.errno(), Errno::IO);
    assert!(
        error.to_string().contains("the store sent 32768 bytes"),
        "{error}"
    );
    fixture.faulty.truncations.store(0, Ordering::SeqCst);
    fixture.check(&device, 3 * MIB..3 * MIB + 4096).unwrap();
}

#[test]
fn failure_is_reported_and_a_later_read_succeeds() {
    let fixture = Fixture::new("failing", 4 * MIB);
    let device = fixture.open();
    fixture.faulty.failures.store(1, Ordering::SeqCst);
    let error = fixture.check(&device, 2 * MIB..2 * MIB + 10).unwrap_err();
    assert_eq!(error.errno(), Errno::IO);
    let text = error.to_string();
    assert!(
        text.contains("read bytes 2097152-2162687") && text.contains("503"),
        "{text}"
    );
    fixture.check(&device, 2 * MIB..2 * MIB + 10).unwrap();
}

#[test]
fn request_without_an_answer_times_out() {
    let fixture = Fixture::new("hanging", 4 * MIB);
    // Long enough for the requests of the opening, which are answered.
    let mut options = StoreOptions::default();
    options.io_timeout = Duration::from_secs(3);
    let store = Store::open(fixture.store.url(), &options).unwrap();
    let device = ObjectDevice::open(store, |_, _, _| None).unwrap();
    fixture.faulty.hangs.store(1, Ordering::SeqCst);
    let error = fixture.check(&device, 2 * MIB..2 * MIB + 10).unwrap_err();
    assert_eq!(error.errno(), Errno::TIMEDOUT);
    assert!(error.to_string().contains("--io-timeout"), "{error}");
}

#[test]
fn part_cache_serves_a_second_open() {
    let fixture = Fixture::new("cached", 4 * MIB + 5);
    let folder = tempfile::tempdir().unwrap();
    let options = PartCacheOptions {
        folder: folder.path().to_owned(),
        size_bytes: 1 << 30,
    };
    let open = || {
        let cache = |url: &str, tag: &str, len| PartCache::open(&options, url, tag, len).ok();
        ObjectDevice::open(fixture.store.clone(), cache).unwrap()
    };
    let first = open();
    fixture.check(&first, 0..4 * MIB + 5).unwrap();
    fixture.gets();
    let second = open();
    fixture.check(&second, 0..4 * MIB + 5).unwrap();
    assert_eq!(fixture.gets(), 1);
    fixture.put(vec![1; 4 * MIB + 5]);
    let mut byte = [0];
    open().read_at(&mut byte, 2 * MIB as u64).unwrap();
    assert_eq!(byte, [1]);
}

#[test]
fn empty_and_missing_objects_are_refused() {
    let fixture = Fixture::new("empty", 10);
    fixture.put(Vec::new());
    let error = ObjectDevice::open(fixture.store.clone(), |_, _, _| None)
        .err()
        .unwrap();
    assert_eq!(error.errno(), Errno::INVAL, "{error}");
    let url = "memory://empty/none".parse().unwrap();
    let store = Store::open(&url, &StoreOptions::default()).unwrap();
    let error = ObjectDevice::open(store, |_, _, _| None).err().unwrap();
    assert_eq!(error.errno(), Errno::NOENT);
}

#[test]
fn upload_is_complete_and_replacement_conditional() {
    let fixture = Fixture::new("upload", 20 * MIB + 3);
    let source = fixture.open();
    let url = "memory://upload/copy".parse().unwrap();
    let copy = Store::open(&url, &StoreOptions::default()).unwrap();
    upload(&copy, &source, &PROGRESS).unwrap();
    let get = async { copy.objects().get(copy.path()).await?.bytes().await };
    assert!(copy.run("get", get).unwrap() == fixture.bytes);
    let canceled = UploadProgress {
        advance: &|_| {},
        is_canceled: &|| true,
    };
    let error = upload(&copy, &source, &canceled).unwrap_err();
    assert_eq!(error.errno(), Errno::INTR);
    let tag = source.e_tag().unwrap().to_owned();
    fixture.put(vec![3; MIB]);
    let is_same = |_: &_| false;
    let error = replace(&fixture.store, &tag, &source, 4096, &is_same, &PROGRESS).unwrap_err();
    assert_eq!(error.errno(), Errno::STALE);
    assert!(fixture.get() == vec![3; MIB]);
}
