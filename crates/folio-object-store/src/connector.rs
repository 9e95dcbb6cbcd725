//! The HTTP client below every store: counts requests, limits their time and the bodies of answers,
//! and keeps the request id of a failure.

use crate::counters::RequestCounters;
use async_trait::async_trait;
use futures_util::stream;
use http_body_util::{BodyExt, StreamBody};
use object_store::ClientOptions;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse,
    HttpResponseBody, HttpService, ReqwestConnector,
};
use parking_lot::Mutex;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// Headers with the number under which a store's logs keep a request.
const REQUEST_ID_HEADERS: [&str; 4] = [
    "x-amz-request-id",
    "x-goog-request-id",
    "x-guploader-uploadid",
    "x-ms-request-id",
];

/// The longest body of an error: the store's reason is at its start.
const ERROR_BYTES_MAX: u64 = 1 << 20;

tokio::task_local! {
    /// The request id of the last failed request of an operation.
    static FAILED_REQUEST_ID: Arc<Mutex<Option<String>>>;
    /// The version that the end of an upload replaces.
    static MATCH_ON_COMPLETE: String;
}

/// Ends an upload on the condition that the object still has this ETag: `object_store` has no such
/// condition for uploads in parts. Standard headers need not be signed.
pub(crate) async fn with_match_on_complete<T>(e_tag: String, end: impl Future<Output = T>) -> T {
    MATCH_ON_COMPLETE.scope(e_tag, end).await
}

/// Runs an operation; returns its result, and the request id of its last failed request.
pub(crate) async fn with_request_id<T>(operation: impl Future<Output = T>) -> (T, Option<String>) {
    let failed = Arc::new(Mutex::new(None));
    let result = FAILED_REQUEST_ID.scope(failed.clone(), operation).await;
    let id = failed.lock().take();
    (result, id)
}

/// Makes clients that count their requests.
#[derive(Debug)]
pub(crate) struct CountingConnector {
    pub(crate) counters: Arc<RequestCounters>,
    /// Added to the URL of each request.
    pub(crate) query: Option<String>,
    /// The time to wait for an answer, and for each piece of its body.
    pub(crate) time_limit: Duration,
}

impl HttpConnector for CountingConnector {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        // The crate allows a token service no URL without TLS, even one that the user names.
        let options = options.clone().with_allow_http(true);
        // Its limit holds for a whole request, which a slow uplink sends longer than that.
        let options = options.with_timeout_disabled();
        Ok(HttpClient::new(CountingService {
            client: ReqwestConnector::default().connect(&options)?,
            counters: self.counters.clone(),
            query: self.query.clone(),
            time_limit: self.time_limit,
        }))
    }
}

#[derive(Debug)]
struct CountingService {
    client: HttpClient,
    counters: Arc<RequestCounters>,
    query: Option<String>,
    time_limit: Duration,
}

impl CountingService {
    /// Adds the query of the image's URL.
    fn add_query(&self, request: &mut HttpRequest) {
        let Some(query) = &self.query else { return };
        let uri = format!("{}?{query}", request.uri());
        // The URL was parsed before; without its query the server reports the missing signature.
        if let Ok(uri) = uri.parse() {
            *request.uri_mut() = uri;
        }
    }
}

#[async_trait]
impl HttpService for CountingService {
    async fn call(&self, mut request: HttpRequest) -> Result<HttpResponse, HttpError> {
        self.add_query(&mut request);
        let _ = MATCH_ON_COMPLETE.try_with(|e_tag| {
            // Not the request of a credential.
            let is_end = request
                .uri()
                .query()
                .is_some_and(|query| query.contains("uploadId="));
            if let (true, Ok(value)) = (is_end, e_tag.parse()) {
                request.headers_mut().insert("if-match", value);
            }
        });
        let wanted_bytes = range_bytes(&request);
        let sent_bytes = request.body().content_length() as u64;
        self.counters.request(request.method().as_str(), sent_bytes);
        let uplink = &self.counters.uplink;
        let sending = uplink.sending(sent_bytes);
        let answer = self.client.execute(request);
        let answer = uplink.within(Instant::now(), self.time_limit, answer).await;
        // Its bytes do not extend the limits of other requests any more.
        drop(sending);
        let response = match answer.unwrap_or_else(|| Err(timed_out())) {
            Ok(response) => response,
            Err(error) => {
                self.counters.failure();
                return Err(error);
            }
        };
        if response.status().is_client_error() || response.status().is_server_error() {
            self.counters.failure();
            let id = REQUEST_ID_HEADERS
                .iter()
                .find_map(|name| response.headers().get(*name)?.to_str().ok());
            // Outside of an operation, for example at a refresh of credentials, no report needs it.
            let _ = FAILED_REQUEST_ID.try_with(|failed| *failed.lock() = id.map(ToOwned::to_owned));
        }
        // A server that ignores the range must not fill the memory.
        let max_bytes = if response.status().is_success() {
            wanted_bytes
        } else {
            Some(ERROR_BYTES_MAX)
        };
        let (parts, body) = response.into_parts();
        let body = LimitedBody {
            body,
            left_bytes: max_bytes.unwrap_or(u64::MAX),
            time_limit: self.time_limit,
            counters: self.counters.clone(),
        };
        Ok(HttpResponse::from_parts(parts, body.into_response()))
    }
}

/// The body of an answer, which neither stops nor goes beyond what was asked for.
struct LimitedBody {
    body: HttpResponseBody,
    left_bytes: u64,
    time_limit: Duration,
    counters: Arc<RequestCounters>,
}

impl LimitedBody {
    fn into_response(self) -> HttpResponseBody {
        let frames = stream::try_unfold(self, |mut this| async move {
            // For each piece: a slow connection that goes on is fine.
            let next = tokio::time::timeout(this.time_limit, this.body.frame());
            let Some(frame) = next.await.map_err(|_| timed_out())? else {
                return Ok(None);
            };
            let frame = frame?;
            let bytes = frame.data_ref().map_or(0, |data| data.len() as u64);
            this.counters.received(bytes);
            let left = this.left_bytes.checked_sub(bytes);
            this.left_bytes = left.ok_or_else(too_long)?;
            Ok(Some((frame, this)))
        });
        // Without a length, which would be the one that the server says.
        HttpResponseBody::new(StreamBody::new(frames))
    }
}

/// Returns the length of the range that a request asks for, if it does.
fn range_bytes(request: &HttpRequest) -> Option<u64> {
    let range = request.headers().get("range")?.to_str().ok()?;
    let (start, last) = range.strip_prefix("bytes=")?.split_once('-')?;
    let last: u64 = last.parse().ok()?;
    match start {
        // The last bytes of the object.
        "" => Some(last),
        start => last.checked_add(1)?.checked_sub(start.parse().ok()?),
    }
}

fn timed_out() -> HttpError {
    let error = io::Error::new(io::ErrorKind::TimedOut, "the store does not answer in time");
    HttpError::new(HttpErrorKind::Timeout, error)
}

fn too_long() -> HttpError {
    let why = "the server sends more bytes than asked for: check the server and the proxy";
    HttpError::new(HttpErrorKind::Decode, io::Error::other(why))
}

#[cfg(test)]
mod tests {
    use super::*;
    use object_store::client::HttpRequestBody;

    #[derive(Debug)]
    struct SlowService(Duration);

    #[async_trait]
    impl HttpService for SlowService {
        async fn call(&self, _request: HttpRequest) -> Result<HttpResponse, HttpError> {
            tokio::time::sleep(self.0).await;
            Ok(HttpResponse::new(Vec::new().into()))
        }
    }

    fn request(body_bytes: usize) -> HttpRequest {
        HttpRequest::new(HttpRequestBody::from(vec![0; body_bytes]))
    }

    fn service(answer_s: u64) -> CountingService {
        CountingService {
            client: HttpClient::new(SlowService(Duration::from_secs(answer_s))),
            counters: Arc::default(),
            query: None,
            time_limit: Duration::from_secs(20),
        }
    }

    /// Runs with virtual time.
    fn block_on<T>(future: impl Future<Output = T>) -> T {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        let runtime = builder.enable_time().start_paused(true).build().unwrap();
        runtime.block_on(future)
    }

    #[test]
    fn time_limit_grows_with_bytes_in_flight() {
        block_on(async {
            // 64 MiB at 5 Mbit/s.
            let slow = service(107);
            let uploads = (0..8).map(|_| slow.call(request(8 << 20)));
            let done = futures_util::future::join_all(uploads).await;
            assert!(done.iter().all(Result::is_ok));
            let error = slow.call(request(0)).await.err().unwrap();
            assert_eq!(error.kind(), HttpErrorKind::Timeout);
            // An upload that started alone shares the link with later ones.
            let slow = service(200);
            let later = async {
                tokio::time::sleep(Duration::from_secs(100)).await;
                slow.call(request(8 << 20)).await
            };
            let (first, second) = tokio::join!(slow.call(request(8 << 20)), later);
            assert!(first.is_ok() && second.is_ok());
            assert!(slow.call(request(8 << 20)).await.is_err());
        });
    }

    #[test]
    fn range_of_a_request_limits_the_answer() {
        let bytes_of = |range: &str| {
            let mut request = request(0);
            request
                .headers_mut()
                .insert("range", range.parse().unwrap());
            range_bytes(&request)
        };
        assert_eq!(bytes_of("bytes=5-9"), Some(5));
        assert_eq!(bytes_of("bytes=-7"), Some(7));
        assert_eq!(bytes_of("bytes=5-"), None);
        assert_eq!(range_bytes(&request(0)), None);
    }
}
