//! The HTTP client below every store: counts requests, and keeps the request id of a failure.

use crate::counters::RequestCounters;
use async_trait::async_trait;
use http_body_util::BodyExt;
use object_store::ClientOptions;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpRequest, HttpResponse, HttpResponseBody, HttpService,
    ReqwestConnector,
};
use parking_lot::Mutex;
use std::sync::Arc;

/// Headers with the number under which a store's logs keep a request.
const REQUEST_ID_HEADERS: [&str; 4] = [
    "x-amz-request-id",
    "x-goog-request-id",
    "x-guploader-uploadid",
    "x-ms-request-id",
];

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
}

impl HttpConnector for CountingConnector {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        // The crate allows a token service no URL without TLS, even one that the user names.
        let options = options.clone().with_allow_http(true);
        Ok(HttpClient::new(CountingService {
            client: ReqwestConnector::default().connect(&options)?,
            counters: self.counters.clone(),
            query: self.query.clone(),
        }))
    }
}

#[derive(Debug)]
struct CountingService {
    client: HttpClient,
    counters: Arc<RequestCounters>,
    query: Option<String>,
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
        let sent_bytes = request.body().content_length() as u64;
        self.counters.request(request.method().as_str(), sent_bytes);
        let response = match self.client.execute(request).await {
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
        let counters = self.counters.clone();
        let (parts, body) = response.into_parts();
        let body = body.map_frame(move |frame| {
            counters.received(frame.data_ref().map_or(0, |data| data.len() as u64));
            frame
        });
        Ok(HttpResponse::from_parts(parts, HttpResponseBody::new(body)))
    }
}
