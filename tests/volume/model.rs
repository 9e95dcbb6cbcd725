//! A store in memory whose requests are counted, and fail or stop as a plan says.

use async_trait::async_trait;
use folio::block::Device;
use folio_volume::{GcOptions, RetryPolicy, StorePlace};
use futures_util::StreamExt;
use futures_util::stream::{self, BoxStream};
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    ObjectStoreExt, PutMode, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};
use parking_lot::Mutex;
use std::fmt;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;
use tokio::runtime::Runtime;

pub(crate) static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(4)
        .enable_all()
        .build()
        .unwrap()
});

/// What happens at one request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The process stops before the request arrives; no later request arrives either.
    CrashBefore,
    /// The process stops after the request took effect.
    CrashAfter,
    /// The request takes effect; its answer is lost.
    AnswerLost,
    /// The request arrives twice; the second answer comes.
    AnsweredTwice,
    /// The store answers 500, 503 or not at all; the request has no effect.
    Status500,
    Status503,
    Timeout,
    /// The body is cut short: that of a PUT, which then has no effect, or that of an answer.
    Truncated,
    /// The entity tag of the answer is wrong.
    WrongTag,
}

pub(crate) const FAULTS: [Fault; 9] = [
    Fault::CrashBefore,
    Fault::CrashAfter,
    Fault::AnswerLost,
    Fault::AnsweredTwice,
    Fault::Status500,
    Fault::Status503,
    Fault::Timeout,
    Fault::Truncated,
    Fault::WrongTag,
];

/// Work that runs before the first request for an object whose path contains `text`.
struct Interruption {
    text: &'static str,
    work: Box<dyn FnOnce() + Send>,
}

impl fmt::Debug for Interruption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text)
    }
}

/// A store over a shared store in memory. Each client has its own; the content is shared.
#[derive(Debug)]
pub(crate) struct ModelStore {
    content: Arc<InMemory>,
    requests: AtomicU64,
    writes: AtomicU64,
    segment_reads: AtomicU64,
    interruption: Mutex<Option<Interruption>>,
    /// Every write of an object whose path contains the text fails.
    broken: Mutex<Option<&'static str>>,
    /// The number of the request that fails, and how.
    plan: Option<(u64, Fault)>,
    is_dead: AtomicBool,
}

impl ModelStore {
    /// Returns a client of `content` that fails as `plan` says.
    pub(crate) fn new(content: &Arc<InMemory>, plan: Option<(u64, Fault)>) -> Arc<Self> {
        Arc::new(Self {
            content: content.clone(),
            requests: AtomicU64::new(0),
            writes: AtomicU64::new(0),
            segment_reads: AtomicU64::new(0),
            interruption: Mutex::new(None),
            broken: Mutex::new(None),
            plan,
            is_dead: AtomicBool::new(false),
        })
    }

    /// Returns the number of requests so far.
    pub(crate) fn requests(&self) -> u64 {
        self.requests.load(Ordering::SeqCst)
    }

    /// Returns the number of objects put so far.
    pub(crate) fn writes(&self) -> u64 {
        self.writes.load(Ordering::SeqCst)
    }

    /// Returns the number of reads of segments so far.
    pub(crate) fn segment_reads(&self) -> u64 {
        self.segment_reads.load(Ordering::SeqCst)
    }

    /// Runs `work` before the next request for an object whose path contains `text`.
    pub(crate) fn interrupt_at(&self, text: &'static str, work: impl FnOnce() + Send + 'static) {
        let work = Box::new(work);
        *self.interruption.lock() = Some(Interruption { text, work });
    }

    fn interrupt(&self, location: &Path) {
        let mut waiting = self.interruption.lock();
        let due = waiting.take_if(|waiting| location.as_ref().contains(waiting.text));
        drop(waiting);
        if let Some(interruption) = due {
            // On a thread of its own it may wait for requests.
            std::thread::spawn(interruption.work).join().unwrap();
        }
    }

    /// Fails every write of an object whose path contains `text` from now on; none: no write.
    pub(crate) fn break_writes(&self, text: Option<&'static str>) {
        *self.broken.lock() = text;
    }

    /// Stops the client: no later request takes effect.
    pub(crate) fn kill(&self) {
        self.is_dead.store(true, Ordering::SeqCst);
    }

    pub(crate) fn is_dead(&self) -> bool {
        self.is_dead.load(Ordering::SeqCst)
    }

    /// Counts a request and returns its fault.
    fn begin(&self) -> Result<Option<Fault>> {
        let number = self.requests.fetch_add(1, Ordering::SeqCst);
        if self.is_dead() {
            return Err(error("the process is dead"));
        }
        let fault = self.plan.filter(|(at, _)| *at == number).map(|(_, f)| f);
        match fault {
            Some(Fault::CrashBefore) => {
                self.kill();
                Err(error("crash"))
            }
            Some(Fault::Status500) => Err(error("500 Internal Server Error")),
            Some(Fault::Status503) => Err(error("503 Slow Down")),
            Some(Fault::Timeout) => Err(error("operation timed out")),
            fault => Ok(fault),
        }
    }

    /// Changes an answer as the fault says.
    fn end<T>(&self, fault: Option<Fault>, answer: Result<T>) -> Result<T> {
        match fault {
            Some(Fault::CrashAfter) => {
                self.kill();
                Err(error("crash"))
            }
            Some(Fault::AnswerLost) => Err(error("connection reset")),
            _ => answer,
        }
    }
}

fn error(reason: &str) -> object_store::Error {
    object_store::Error::Generic {
        store: "model",
        source: reason.into(),
    }
}

impl fmt::Display for ModelStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ModelStore")
    }
}

#[async_trait]
impl ObjectStore for ModelStore {
    async fn put_opts(
        &self,
        location: &Path,
        payload: PutPayload,
        opts: PutOptions,
    ) -> Result<PutResult> {
        self.interrupt(location);
        self.writes.fetch_add(1, Ordering::SeqCst);
        let fault = self.begin()?;
        let broken = *self.broken.lock();
        if broken.is_some_and(|text| location.as_ref().contains(text)) {
            return Err(error("500 Internal Server Error"));
        }
        if fault == Some(Fault::Truncated) {
            return Err(error("400 IncompleteBody"));
        }
        if fault == Some(Fault::AnsweredTwice) {
            let _first = self
                .content
                .put_opts(location, payload.clone(), opts.clone())
                .await;
        }
        let mut answer = self.content.put_opts(location, payload, opts).await;
        if fault == Some(Fault::WrongTag)
            && let Ok(answer) = &mut answer
        {
            answer.e_tag = Some("\"wrong\"".to_owned());
        }
        self.end(fault, answer)
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        opts: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        let fault = self.begin()?;
        let answer = self.content.put_multipart_opts(location, opts).await;
        self.end(fault, answer)
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        self.interrupt(location);
        if location.as_ref().contains("/seg/") {
            self.segment_reads.fetch_add(1, Ordering::SeqCst);
        }
        let fault = self.begin()?;
        let mut answer = self.content.get_opts(location, options).await;
        if let Ok(found) = &mut answer {
            match fault {
                Some(Fault::Truncated) => {
                    let whole = answer?;
                    let (meta, range) = (whole.meta.clone(), whole.range.clone());
                    let attributes = whole.attributes.clone();
                    let extensions = whole.extensions.clone();
                    let bytes = whole.bytes().await?;
                    let cut = bytes.slice(..bytes.len() / 2);
                    let payload = stream::iter([Ok(cut)]).boxed();
                    return Ok(GetResult {
                        payload: object_store::GetResultPayload::Stream(payload),
                        meta,
                        range,
                        attributes,
                        extensions,
                    });
                }
                Some(Fault::WrongTag) => found.meta.e_tag = Some("\"wrong\"".to_owned()),
                _ => {}
            }
        }
        self.end(fault, answer)
    }

    fn delete_stream(
        &self,
        locations: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        let fault = match self.begin() {
            Ok(fault) => fault,
            Err(failed) => return stream::iter([Err(failed)]).boxed(),
        };
        let deleted = self.content.delete_stream(locations);
        match fault {
            Some(Fault::CrashAfter | Fault::AnswerLost | Fault::Truncated) => {
                if fault == Some(Fault::CrashAfter) {
                    self.kill();
                }
                deleted.map(|_| Err(error("connection reset"))).boxed()
            }
            Some(Fault::AnsweredTwice) => {
                let content = self.content.clone();
                let again = deleted.then(move |location| {
                    let content = content.clone();
                    async move {
                        let location = location?;
                        content.delete(&location).await.map(|()| location)
                    }
                });
                again.boxed()
            }
            _ => deleted,
        }
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        let number = self.requests.fetch_add(1, Ordering::SeqCst);
        let failed = |reason| stream::iter([Err(error(reason))]).boxed();
        if self.is_dead() {
            return failed("the process is dead");
        }
        match self.plan.filter(|(at, _)| *at == number).map(|(_, f)| f) {
            Some(Fault::CrashBefore | Fault::CrashAfter) => {
                self.kill();
                failed("crash")
            }
            Some(Fault::WrongTag | Fault::AnsweredTwice) | None => self.content.list(prefix),
            Some(Fault::Truncated) => {
                let first = self.content.list(prefix).take(1);
                first
                    .chain(stream::iter([Err(error("body cut short"))]))
                    .boxed()
            }
            Some(_) => failed("listing failed"),
        }
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        let fault = self.begin()?;
        let answer = self.content.list_with_delimiter(prefix).await;
        self.end(fault, answer)
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        let fault = self.begin()?;
        let answer = self.content.copy_opts(from, to, options).await;
        self.end(fault, answer)
    }
}

/// Returns the place of the volume `root` in `store`.
pub(crate) fn place(store: Arc<dyn ObjectStore>, root: &str) -> StorePlace {
    // Without pauses: a request of the model fails twice only if the store is dead.
    let policy = RetryPolicy {
        attempts: 3,
        first_pause: Duration::ZERO,
        ..RetryPolicy::default()
    };
    StorePlace::new(store, Path::from(root), RUNTIME.handle().clone(), root).with_retries(policy)
}

/// Returns a place in a new store in memory.
pub(crate) fn memory_place() -> StorePlace {
    place(Arc::new(InMemory::new()), "vol")
}

/// Runs a future on the runtime of the stores.
pub(crate) fn wait<F: Future>(future: F) -> F::Output {
    RUNTIME.block_on(future)
}

pub(crate) const MIB: u64 = 1 << 20;

/// Fills MiB `range` of a device.
pub(crate) fn fill(device: &dyn Device, range: std::ops::Range<u64>, byte: u8) {
    for at in range {
        device
            .write_at(&vec![byte; MIB as usize], at * MIB)
            .unwrap();
    }
}

/// Panics unless MiB `range` of a device is filled with `byte`.
pub(crate) fn assert_filled(device: &dyn Device, range: std::ops::Range<u64>, byte: u8) {
    let mut bytes = vec![!byte; MIB as usize];
    for at in range {
        device.read_at(&mut bytes, at * MIB).unwrap();
        assert!(bytes.iter().all(|&b| b == byte), "MiB {at} is not {byte}");
    }
}

/// Returns a collection that waits for no age.
pub(crate) fn now() -> GcOptions {
    let mut options = GcOptions::default();
    options.min_age = Duration::ZERO;
    options
}

/// Threads that run cases.
const WORKERS: usize = 32;

/// Runs every case, several at a time, and panics with the failures.
pub(crate) fn each_case<T: fmt::Debug + Sync>(cases: &[T], run: impl Fn(&T) + Sync) {
    let next = AtomicUsize::new(0);
    let failures = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in 0..WORKERS {
            scope.spawn(|| {
                while let Some(case) = cases.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let ran = AssertUnwindSafe(|| run(case));
                    if let Err(panic) = std::panic::catch_unwind(ran) {
                        let text = panic.downcast_ref::<String>().cloned();
                        failures
                            .lock()
                            .push(format!("{case:?}: {}", text.unwrap_or_default()));
                    }
                }
            });
        }
    });
    let failures = failures.into_inner();
    let (failed, all) = (failures.len(), cases.len());
    assert!(failures.is_empty(), "{failed} of {all}: {failures:#?}");
}

/// How a store breaks the rule that a creation fails if the object exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Looseness {
    /// It writes anyway.
    Ignores,
    /// It looks first, and writes later.
    ChecksFirst,
}

/// A store that accepts conditions and does not keep them.
#[derive(Debug)]
pub(crate) struct LooseStore {
    content: InMemory,
    looseness: Looseness,
}

impl LooseStore {
    pub(crate) fn new(looseness: Looseness) -> Self {
        Self {
            content: InMemory::new(),
            looseness,
        }
    }
}

impl fmt::Display for LooseStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LooseStore")
    }
}

#[async_trait]
impl ObjectStore for LooseStore {
    async fn put_opts(
        &self,
        location: &Path,
        payload: PutPayload,
        mut opts: PutOptions,
    ) -> Result<PutResult> {
        if self.looseness == Looseness::ChecksFirst
            && opts.mode == PutMode::Create
            && self.content.head(location).await.is_ok()
        {
            return Err(object_store::Error::AlreadyExists {
                path: location.to_string(),
                source: "exists".into(),
            });
        }
        // The other clients of a race look meanwhile.
        tokio::time::sleep(Duration::from_millis(20)).await;
        opts.mode = PutMode::Overwrite;
        self.content.put_opts(location, payload, opts).await
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        opts: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.content.put_multipart_opts(location, opts).await
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        self.content.get_opts(location, options).await
    }

    fn delete_stream(
        &self,
        locations: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        self.content.delete_stream(locations)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.content.list(prefix)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.content.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.content.copy_opts(from, to, options).await
    }
}
