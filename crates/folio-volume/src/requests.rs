//! The requests of a volume: a request that fails is repeated until the I/O timeout.
//!
//! The volume and slatedb make every request through [`Requests`], so that one rule holds for all:
//! a failure that reaches them is final. slatedb itself repeats nothing. While segments are being
//! sent, the timeout is longer: [`Uplink`].

use async_trait::async_trait;
use bytes::Bytes;
use folio::{Errno, Error as FolioError};
use folio_object_store::Uplink;
use futures_util::StreamExt;
use futures_util::stream::{self, BoxStream};
use object_store::path::Path;
use object_store::{
    Attributes, CopyOptions, Error, Extensions, GetOptions, GetRange, GetResult, GetResultPayload,
    ListResult, MultipartUpload, ObjectMeta, ObjectStore, ObjectStoreExt, PutMultipartOptions,
    PutOptions, PutPayload, PutResult, Result, UploadPart,
};
use parking_lot::Mutex;
use slatedb_common::retry::NonRetryable;
use std::collections::HashMap;
use std::fmt;
use std::future::Future;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// The largest object that is read ahead, and the number of requests for that in flight.
const PRELOAD_BYTES_MAX: u64 = 8 << 20;
const PRELOADS_IN_FLIGHT: usize = 32;
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// Deletions in flight.
const DELETES_IN_FLIGHT: usize = 16;

/// How a request that fails is repeated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RetryPolicy {
    /// The time after which a request fails, its repetitions included; a second more for each 64
    /// KiB that are being sent.
    pub timeout: Duration,
    /// The most attempts of a request.
    pub attempts: u32,
    /// The pause before the second attempt. It doubles from attempt to attempt, up to a second.
    pub first_pause: Duration,
}

impl Default for RetryPolicy {
    fn default() -> Self {
        Self {
            timeout: Duration::from_secs(60),
            attempts: u32::MAX,
            first_pause: Duration::from_millis(50),
        }
    }
}

/// A store whose failures are final.
#[derive(Debug, Clone)]
pub(crate) struct Requests {
    store: Arc<dyn ObjectStore>,
    policy: RetryPolicy,
    uplink: Arc<Uplink>,
    /// Tables of the map, which never change: slatedb asks for them one after the other.
    preloaded: Arc<Mutex<HashMap<Path, Preloaded>>>,
}

/// An object in memory.
#[derive(Debug, Clone)]
struct Preloaded {
    meta: ObjectMeta,
    attributes: Attributes,
    bytes: Bytes,
}

impl Preloaded {
    /// Returns what the store answers.
    fn answer(self, options: &GetOptions) -> Result<GetResult> {
        let range = match &options.range {
            None => 0..self.meta.size,
            Some(range) => range
                .as_range(self.meta.size)
                .map_err(|error| Error::Generic {
                    store: "volume",
                    source: Box::new(error),
                })?,
        };
        let bytes = self.bytes.slice(range.start as usize..range.end as usize);
        Ok(GetResult {
            payload: GetResultPayload::Stream(stream::once(async { Ok(bytes) }).boxed()),
            meta: self.meta,
            range,
            attributes: self.attributes,
            extensions: Extensions::new(),
        })
    }
}

/// The attempts of one request.
struct Attempts {
    policy: RetryPolicy,
    uplink: Arc<Uplink>,
    started: Instant,
    left: u32,
    pause: Duration,
}

impl Attempts {
    fn new(policy: RetryPolicy, uplink: &Arc<Uplink>) -> Self {
        Self {
            policy,
            uplink: uplink.clone(),
            started: Instant::now(),
            left: policy.attempts.max(1),
            pause: policy.first_pause,
        }
    }

    /// Returns the answer of one attempt, or a failure at the deadline.
    async fn attempt<T>(&mut self, request: impl Future<Output = Result<T>>) -> Result<T> {
        self.left -= 1;
        let limit = self.policy.timeout;
        let answer = self.uplink.within(self.started, limit, request).await;
        answer.unwrap_or_else(|| {
            self.left = 0;
            Err(no_answer(self.started.elapsed()))
        })
    }

    /// Waits before the next attempt; returns the failure if there is none.
    async fn next(&mut self, error: Error) -> Result<()> {
        let deadline = self.uplink.deadline(self.started, self.policy.timeout);
        let is_over = self.left == 0 || Instant::now() + self.pause >= deadline;
        if is_over || is_final(&error) {
            return Err(seal(error));
        }
        if !self.pause.is_zero() {
            tokio::time::sleep(self.pause).await;
        }
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
        Ok(())
    }
}

fn no_answer(time: Duration) -> Error {
    let seconds = (time.as_secs_f32() * 10.0).round() / 10.0;
    let reason = format!(
        "no answer within {seconds} s: check the network and the store, or allow more time \
         (--io-timeout)"
    );
    Error::Generic {
        store: "volume",
        source: Box::new(FolioError::new(Errno::TIMEDOUT, reason)),
    }
}

/// Returns whether a repetition has the same result.
fn is_final(error: &Error) -> bool {
    !matches!(error, Error::Generic { .. } | Error::JoinError { .. })
}

/// Returns whether the object would be below a file, in a directory of the host: it does not exist.
fn is_below_file(error: &Error) -> bool {
    let error: &(dyn std::error::Error + 'static) = error;
    std::iter::successors(Some(error), |error| error.source()).any(|error| {
        let kind = error.downcast_ref::<io::Error>().map(io::Error::kind);
        let errno = error.downcast_ref::<FolioError>().map(FolioError::errno);
        kind == Some(io::ErrorKind::NotADirectory) || errno == Some(Errno::NOTDIR)
    })
}

/// Marks a failure as final for slatedb, which repeats every other one.
fn seal(error: Error) -> Error {
    match error {
        Error::Generic { store, source } => Error::Generic {
            store,
            source: Box::new(NonRetryable(source)),
        },
        Error::PermissionDenied { path, source } => Error::PermissionDenied {
            path,
            source: Box::new(NonRetryable(source)),
        },
        Error::Unauthenticated { path, source } => Error::Unauthenticated {
            path,
            source: Box::new(NonRetryable(source)),
        },
        other => other,
    }
}

/// Reads the body of an answer, so that a body that is cut short is a failure of its request.
async fn with_body(answer: GetResult) -> Result<GetResult> {
    let (meta, range) = (answer.meta.clone(), answer.range.clone());
    let (attributes, extensions) = (answer.attributes.clone(), answer.extensions.clone());
    let bytes = answer.bytes().await?;
    let expected = range.end - range.start;
    if bytes.len() as u64 != expected {
        let got = bytes.len();
        return Err(Error::Generic {
            store: "volume",
            source: format!("{}: {got} bytes instead of {expected}", meta.location).into(),
        });
    }
    Ok(GetResult {
        payload: GetResultPayload::Stream(stream::once(async { Ok(bytes) }).boxed()),
        meta,
        range,
        attributes,
        extensions,
    })
}

impl Requests {
    pub(crate) fn new(store: Arc<dyn ObjectStore>, policy: RetryPolicy) -> Self {
        Self {
            store,
            policy,
            uplink: Arc::default(),
            preloaded: Arc::default(),
        }
    }

    /// Reads objects at once that are asked for afterwards. What cannot be read ahead is skipped.
    pub(crate) async fn preload(&self, paths: impl IntoIterator<Item = Path>) {
        let mut reads = stream::iter(paths)
            .map(|path| async move {
                let head = GetRange::Bounded(0..PRELOAD_BYTES_MAX);
                let options = GetOptions::default().with_range(Some(head));
                let answer = self.get_opts(&path, options).await.ok()?;
                let (meta, attributes) = (answer.meta.clone(), answer.attributes.clone());
                let bytes = answer.bytes().await.ok()?;
                let object = Preloaded {
                    meta,
                    attributes,
                    bytes,
                };
                // A longer object is read in ranges, as they are needed.
                (object.bytes.len() as u64 == object.meta.size).then_some((path, object))
            })
            .buffer_unordered(PRELOADS_IN_FLIGHT);
        while let Some(read) = reads.next().await {
            self.preloaded.lock().extend(read);
        }
    }

    /// Releases what was read ahead.
    pub(crate) fn forget(&self) {
        self.preloaded.lock().clear();
    }

    async fn run<T, F>(&self, mut request: impl FnMut() -> F) -> Result<T>
    where
        F: Future<Output = Result<T>>,
    {
        let mut attempts = Attempts::new(self.policy, &self.uplink);
        loop {
            match attempts.attempt(request()).await {
                Ok(answer) => return Ok(answer),
                Err(error) if is_below_file(&error) => {
                    return Err(Error::NotFound {
                        path: String::new(),
                        source: Box::new(error),
                    });
                }
                Err(error) => attempts.next(error).await?,
            }
        }
    }
}

impl fmt::Display for Requests {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Requests({})", self.store)
    }
}

#[async_trait]
impl ObjectStore for Requests {
    async fn put_opts(
        &self,
        location: &Path,
        payload: PutPayload,
        options: PutOptions,
    ) -> Result<PutResult> {
        let _sending = self.uplink.sending(payload.content_length() as u64);
        self.run(|| {
            self.store
                .put_opts(location, payload.clone(), options.clone())
        })
        .await
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        let upload = self
            .run(|| self.store.put_multipart_opts(location, options.clone()))
            .await?;
        Ok(Box::new(Upload {
            upload,
            policy: self.policy,
            uplink: self.uplink.clone(),
        }))
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        let preloaded = self.preloaded.lock().get(location).cloned();
        if let Some(preloaded) = preloaded {
            return preloaded.answer(&options);
        }
        self.run(|| {
            let options = options.clone();
            async move {
                let has_body = !options.head;
                let answer = self.store.get_opts(location, options).await?;
                if has_body {
                    with_body(answer).await
                } else {
                    Ok(answer)
                }
            }
        })
        .await
    }

    fn delete_stream(
        &self,
        locations: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        let this = self.clone();
        let deletions = locations.map(move |location| {
            let this = this.clone();
            async move {
                let location = location?;
                this.run(|| this.store.delete(&location)).await?;
                Ok(location)
            }
        });
        deletions.buffer_unordered(DELETES_IN_FLIGHT).boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        let listing = Listing {
            requests: self.clone(),
            prefix: prefix.cloned(),
            objects: None,
            attempts: Attempts::new(self.policy, &self.uplink),
            is_begun: false,
        };
        stream::unfold(Some(listing), Listing::next).boxed()
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.run(|| self.store.list_with_delimiter(prefix)).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.run(|| self.store.copy_opts(from, to, options.clone()))
            .await
    }
}

/// A listing. It is repeated until its first object; a later failure ends it.
struct Listing {
    requests: Requests,
    prefix: Option<Path>,
    objects: Option<BoxStream<'static, Result<ObjectMeta>>>,
    attempts: Attempts,
    is_begun: bool,
}

impl Listing {
    async fn next(this: Option<Self>) -> Option<(Result<ObjectMeta>, Option<Self>)> {
        let mut this = this?;
        loop {
            let (store, prefix) = (&this.requests.store, this.prefix.as_ref());
            let objects = this.objects.get_or_insert_with(|| store.list(prefix));
            let next = async { objects.next().await.transpose() };
            match this.attempts.attempt(next).await {
                Ok(None) => return None,
                Ok(Some(found)) => {
                    this.is_begun = true;
                    // Each object has the whole timeout.
                    this.attempts = Attempts::new(this.requests.policy, &this.requests.uplink);
                    return Some((Ok(found), Some(this)));
                }
                Err(error) if is_below_file(&error) => return None,
                Err(error) if this.is_begun => return Some((Err(seal(error)), None)),
                Err(error) => {
                    // A failed stream does not go on. Before the first object a new one repeats
                    // nothing.
                    this.objects = None;
                    if let Err(error) = this.attempts.next(error).await {
                        return Some((Err(error), None));
                    }
                }
            }
        }
    }
}

/// An upload in parts. The client of the store repeats a part; here it has a time limit.
#[derive(Debug)]
struct Upload {
    upload: Box<dyn MultipartUpload>,
    policy: RetryPolicy,
    uplink: Arc<Uplink>,
}

#[async_trait]
impl MultipartUpload for Upload {
    fn put_part(&mut self, data: PutPayload) -> UploadPart {
        let (mut attempts, uplink) = (self.attempts(), self.uplink.clone());
        let bytes = data.content_length() as u64;
        let part = self.upload.put_part(data);
        Box::pin(async move {
            let _sending = uplink.sending(bytes);
            attempts.attempt(part).await.map_err(seal)
        })
    }

    async fn complete(&mut self) -> Result<PutResult> {
        let answer = self.attempts().attempt(self.upload.complete()).await;
        answer.map_err(seal)
    }

    async fn abort(&mut self) -> Result<()> {
        let answer = self.attempts().attempt(self.upload.abort()).await;
        answer.map_err(seal)
    }
}

impl Upload {
    /// Returns the only attempt of a request: the client of the store repeats it.
    fn attempts(&self) -> Attempts {
        Attempts::new(self.policy, &self.uplink)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use object_store::memory::InMemory;
    use object_store::throttle::{ThrottleConfig, ThrottledStore};

    /// Returns requests to a store with these times of a GET and of a PUT.
    fn slow(policy: RetryPolicy, get: Duration, put: Duration) -> Requests {
        let config = ThrottleConfig {
            wait_get_per_call: get,
            wait_put_per_call: put,
            ..ThrottleConfig::default()
        };
        let store = ThrottledStore::new(InMemory::new(), config);
        Requests::new(Arc::new(store), policy)
    }

    /// Runs a future in virtual time.
    fn run<T>(work: impl Future<Output = T>) -> T {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .unwrap();
        runtime.block_on(work)
    }

    #[test]
    fn request_without_answer_fails_at_timeout() {
        let policy = RetryPolicy {
            timeout: Duration::from_secs(5),
            ..RetryPolicy::default()
        };
        run(async {
            let started = Instant::now();
            let hour = Duration::from_secs(3600);
            let requests = slow(policy, hour, hour);
            let error = requests.get(&Path::from("a")).await.err().unwrap();
            assert_eq!(started.elapsed(), policy.timeout);
            assert!(error.to_string().contains("within 5 s"), "{error}");
            assert!(NonRetryable::find(&error).is_some());
        });
    }

    #[test]
    fn segments_take_longer_on_a_slow_uplink() {
        let policy = RetryPolicy {
            timeout: Duration::from_secs(5),
            ..RetryPolicy::default()
        };
        let put = |seconds, bytes| {
            run(async move {
                let requests = slow(policy, Duration::ZERO, Duration::from_secs(seconds));
                let path = Path::from("a");
                requests.put(&path, vec![0; bytes].into()).await.map(drop)
            })
        };
        put(130, 8 << 20).unwrap();
        put(130, 0).unwrap_err();
        put(134, 8 << 20).unwrap_err();
    }
}
