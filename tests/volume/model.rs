//! A store in memory whose requests are counted, and fail or stop as a plan says.

use async_trait::async_trait;
use folio_volume::{RetryPolicy, StorePlace};
use futures_util::StreamExt;
use futures_util::stream::BoxStream;
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    ObjectStoreExt, PutMode, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};
use std::fmt;
use std::sync::Arc;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
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
    /// The body of the answer is cut short.
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

/// A store over a shared store in memory. Each client has its own; the content is shared.
#[derive(Debug)]
pub(crate) struct ModelStore {
    content: Arc<InMemory>,
    requests: AtomicU64,
    writes: AtomicU64,
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

    /// Stops the client: no later request takes effect.
    pub(crate) fn kill(&self) {
        self.is_dead.store(true, Ordering::SeqCst);
    }

    pub(crate) fn is_dead(&self) -> bool {
        self.is_dead.load(Ordering::SeqCst)
    }

    /// Counts a request and returns its fault.
    async fn begin(&self) -> Result<Option<Fault>> {
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
        self.writes.fetch_add(1, Ordering::SeqCst);
        let fault = self.begin().await?;
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
        let fault = self.begin().await?;
        let answer = self.content.put_multipart_opts(location, opts).await;
        self.end(fault, answer)
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        let fault = self.begin().await?;
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
                    let payload = futures_util::stream::iter([Ok(cut)]).boxed();
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
        self.requests.fetch_add(1, Ordering::SeqCst);
        if self.is_dead() {
            return futures_util::stream::iter([Err(error("the process is dead"))]).boxed();
        }
        self.content.delete_stream(locations)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        let number = self.requests.fetch_add(1, Ordering::SeqCst);
        let failed = |reason| futures_util::stream::iter([Err(error(reason))]).boxed();
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
                    .chain(futures_util::stream::iter([Err(error("body cut short"))]))
                    .boxed()
            }
            Some(_) => failed("listing failed"),
        }
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        let fault = self.begin().await?;
        let answer = self.content.list_with_delimiter(prefix).await;
        self.end(fault, answer)
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        let fault = self.begin().await?;
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
