//! Errors of a store as errors of Folio: the errno of the file system, and what to check.

use crate::url::{ObjectUrl, Scheme};
use folio::{Errno, Error};
use object_store::Error as StoreError;
use object_store::client::{HttpError, HttpErrorKind};
use std::error::Error as StdError;
use std::io;
use std::time::Duration;

/// Where clouds give an instance its credentials.
const INSTANCE_CREDENTIALS: &str = "169.254.169.254";
const REGION_ADVICE: &str = "check the region of the bucket (--region, AWS_REGION)";

/// Returns the error of an operation on an object, such as "read bytes 0-65535".
pub(crate) fn failure(
    url: &ObjectUrl,
    operation: &str,
    request_id: Option<&str>,
    error: &StoreError,
) -> Error {
    let (errno, advice) = classify(url, error);
    let id = request_id.map(|id| format!(" (request id {id})"));
    let mut why = format!(
        "{operation}: {}{}",
        cause_text(error),
        id.unwrap_or_default()
    );
    if !advice.is_empty() {
        why.push_str(": ");
        why.push_str(advice);
    }
    Error::new(errno, why).at(url.to_string())
}

/// Returns the error of an operation that took longer than the I/O timeout.
pub(crate) fn timed_out(url: &ObjectUrl, operation: &str, io_timeout: Duration) -> Error {
    let why = format!(
        "{operation}: no result within {} s: check the network and the store, or allow more time \
         (--io-timeout)",
        io_timeout.as_secs_f32()
    );
    Error::new(Errno::TIMEDOUT, why).at(url.to_string())
}

/// Returns the kind of error that the answer to a single object has, for a final answer that
/// `object_store` leaves generic: that to a list, and a redirection to another region.
pub(crate) fn specific(url: &ObjectUrl, error: StoreError) -> StoreError {
    let (path, status) = (url.key().to_owned(), status_of(&error));
    match (error, status) {
        (StoreError::Generic { source, .. }, Some(401)) => {
            StoreError::Unauthenticated { path, source }
        }
        // With another region or another name, the bucket takes requests elsewhere.
        (StoreError::Generic { source, .. }, Some(301 | 403)) => {
            StoreError::PermissionDenied { path, source }
        }
        (StoreError::Generic { source, .. }, Some(404)) => StoreError::NotFound { path, source },
        (error, _) => error,
    }
}

/// Returns the status of the answer that a generic error is about.
fn status_of(error: &StoreError) -> Option<u16> {
    let StoreError::Generic { source, .. } = error else {
        return None;
    };
    let text = source.to_string();
    if text.contains("without LOCATION") {
        return Some(301);
    }
    let (_, status) = text.split_once("non-2xx status code: ")?;
    let end = status.find(|c: char| !c.is_ascii_digit());
    status[..end.unwrap_or(status.len())].parse().ok()
}

/// Returns the errno of a failure, and what to check.
fn classify(url: &ObjectUrl, error: &StoreError) -> (Errno, &'static str) {
    let text = error.to_string();
    if text.contains(INSTANCE_CREDENTIALS) {
        return (Errno::ACCESS, no_credentials_advice(url.scheme()));
    }
    let is_below_file = |cause: &(dyn StdError + 'static)| {
        let error = cause.downcast_ref::<io::Error>();
        error.is_some_and(|error| error.kind() == io::ErrorKind::NotADirectory)
    };
    if causes(error).any(is_below_file) {
        return (Errno::NOTDIR, "check the path");
    }
    match error {
        StoreError::NotFound { .. } => (Errno::NOENT, missing_advice(url.scheme())),
        StoreError::PermissionDenied { .. } | StoreError::Unauthenticated { .. } => {
            (Errno::ACCESS, credentials_advice(url.scheme()))
        }
        StoreError::Precondition { .. } | StoreError::NotModified { .. } => (
            Errno::STALE,
            "the object was replaced since it was opened: open it again",
        ),
        StoreError::AlreadyExists { .. } => (Errno::EXIST, ""),
        StoreError::InvalidPath { .. } => (Errno::INVAL, "the key is not supported"),
        StoreError::NotSupported { .. } | StoreError::NotImplemented { .. } => {
            (Errno::OPNOTSUPP, "the store does not support the request")
        }
        _ => match status_of(error) {
            Some(301) => (Errno::IO, REGION_ADVICE),
            Some(400) if text.contains("AuthorizationHeaderMalformed") => {
                (Errno::IO, REGION_ADVICE)
            }
            Some(401 | 403) => (Errno::ACCESS, credentials_advice(url.scheme())),
            Some(404) => (Errno::NOENT, missing_advice(url.scheme())),
            _ => classify_transport(error),
        },
    }
}

fn missing_advice(scheme: Scheme) -> &'static str {
    match scheme {
        Scheme::File => "check the path",
        _ => "check the bucket and the key",
    }
}

/// The advice for a store that is asked for the credentials of an instance, as a last resort.
fn no_credentials_advice(scheme: Scheme) -> &'static str {
    match scheme {
        Scheme::S3 => {
            "no credentials were found: set AWS_ACCESS_KEY_ID or AWS_PROFILE, or run on an instance \
             with a role; a public bucket needs --no-sign-request"
        }
        Scheme::Gcs => {
            "no credentials were found: set GOOGLE_APPLICATION_CREDENTIALS, or run on an instance \
             with a role; a public bucket needs --no-sign-request"
        }
        _ => {
            "no credentials were found: set AZURE_STORAGE_ACCOUNT and AZURE_STORAGE_KEY, or run on an \
             instance with a role; a public container needs --no-sign-request"
        }
    }
}

fn credentials_advice(scheme: Scheme) -> &'static str {
    match scheme {
        Scheme::S3 => {
            "check the credentials (AWS_ACCESS_KEY_ID, AWS_PROFILE), the clock, and the policy of \
             the bucket; a public bucket needs --no-sign-request"
        }
        Scheme::Gcs => {
            "check the credentials (GOOGLE_APPLICATION_CREDENTIALS) and the roles of the bucket; a \
             public bucket needs --no-sign-request"
        }
        Scheme::Azure => {
            "check the credentials (AZURE_STORAGE_ACCOUNT, AZURE_STORAGE_KEY) and the roles of the \
             container; a public container needs --no-sign-request"
        }
        _ => "check the rights, and the signature in the URL if it has one",
    }
}

fn classify_transport(error: &StoreError) -> (Errno, &'static str) {
    let text = error.to_string();
    if text.contains("non-partial response") {
        return (
            Errno::OPNOTSUPP,
            "the server ignores range requests: download the file, or use another server",
        );
    }
    match http_error(error).map(HttpError::kind) {
        Some(HttpErrorKind::Connect) => (
            Errno::HOSTUNREACH,
            "check the endpoint (--endpoint-url, AWS_ENDPOINT_URL), the network, and the proxy",
        ),
        Some(HttpErrorKind::Timeout) => (
            Errno::TIMEDOUT,
            "check the network and the store, or allow more time (--io-timeout)",
        ),
        _ => (Errno::IO, ""),
    }
}

/// Returns the failure of the connection, if there is one among the causes.
fn http_error(error: &StoreError) -> Option<&HttpError> {
    causes(error).find_map(|cause| cause.downcast_ref())
}

fn causes<'a>(
    error: &'a (dyn StdError + 'static),
) -> impl Iterator<Item = &'a (dyn StdError + 'static)> {
    let next = |cause: &&'a (dyn StdError + 'static)| -> Option<&'a (dyn StdError + 'static)> {
        (*cause).source()
    };
    std::iter::successors(error.source(), next)
}

/// Returns the cause in one line: for an answer of the store, its status, code and message.
fn cause_text(error: &StoreError) -> String {
    if let Some(http) = http_error(error) {
        // The innermost cause: "Connection refused", "operation timed out".
        return causes(http).last().unwrap_or(http).to_string();
    }
    let text = match causes(error).next() {
        Some(cause) => cause.to_string(),
        None => error.to_string(),
    };
    let answer = ["status code: ", "error response: "]
        .iter()
        .find_map(|start| Some(text.split_once(start)?.1));
    let Some(answer) = answer else {
        return one_line(&text);
    };
    let status = answer.split(": ").next().unwrap_or_default().trim();
    let status = if status.contains('<') {
        ""
    } else {
        status.trim_end_matches(':')
    };
    let element = |name: &str| {
        let (_, rest) = answer.split_once(&format!("<{name}>"))?;
        Some(without_entities(rest.split_once("</")?.0))
    };
    match (element("Code"), element("Message")) {
        (Some(code), Some(message)) => one_line(&format!("{status} {code} ({message})")),
        (Some(code), None) => one_line(&format!("{status} {code}")),
        _ => one_line(status),
    }
}

/// Replaces the predefined entities of XML.
fn without_entities(text: &str) -> String {
    let entities = [
        ("&quot;", "\""),
        ("&#34;", "\""),
        ("&apos;", "'"),
        ("&#39;", "'"),
        ("&lt;", "<"),
        ("&gt;", ">"),
        ("&amp;", "&"),
    ];
    let replace = |text: String, (entity, character)| text.replace(entity, character);
    entities.into_iter().fold(text.to_owned(), replace)
}

/// Limits a text of a server to one line of an acceptable length.
fn one_line(text: &str) -> String {
    let line: Vec<_> = text.split_whitespace().collect();
    line.join(" ").chars().take(300).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error_of(url: &str, text: &str) -> Error {
        let error = StoreError::Generic {
            store: "S3",
            source: text.into(),
        };
        let url = url.parse().unwrap();
        failure(&url, "read", None, &specific(&url, error))
    }

    #[test]
    fn missing_credentials_are_named() {
        let text = "Error performing PUT http://169.254.169.254/latest/api/token: Server returned \
                    non-2xx status code: 403 Forbidden: ";
        let error = error_of("s3://b/k", text);
        assert_eq!(error.errno(), Errno::ACCESS);
        assert!(
            error.to_string().contains("no credentials were found"),
            "{error}"
        );
    }

    #[test]
    fn wrong_region_is_named_in_plain_text() {
        let text = "Error performing GET http://h/b/k: Server returned non-2xx status code: 400 Bad \
                    Request: <Error><Code>AuthorizationHeaderMalformed</Code><Message>the region \
                    &#34;a&#34; is wrong</Message></Error>";
        let error = error_of("s3://b/k", text).to_string();
        assert!(
            error.contains("the region \"a\" is wrong") && error.contains("--region"),
            "{error}"
        );
    }

    #[test]
    fn missing_file_has_no_bucket() {
        let error = StoreError::NotFound {
            path: String::new(),
            source: "none".into(),
        };
        let error = failure(&"file:///a/k".parse().unwrap(), "read", None, &error);
        assert!(error.to_string().ends_with("check the path"), "{error}");
    }
}
