//! Errors of a store as errors of Folio: the errno of the file system, and what to check.

use crate::url::{ObjectUrl, Scheme};
use folio::{Errno, Error};
use object_store::Error as StoreError;
use object_store::client::{HttpError, HttpErrorKind};
use std::error::Error as StdError;
use std::time::Duration;

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
    match error {
        StoreError::NotFound { .. } => (Errno::NOENT, "check the bucket and the key"),
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
            Some(301) => (
                Errno::IO,
                "check the region of the bucket (--region, AWS_REGION)",
            ),
            Some(401 | 403) => (Errno::ACCESS, credentials_advice(url.scheme())),
            Some(404) => (Errno::NOENT, "check the bucket and the key"),
            _ => classify_transport(url, error),
        },
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

fn classify_transport(url: &ObjectUrl, error: &StoreError) -> (Errno, &'static str) {
    let text = error.to_string();
    if text.contains("non-partial response") {
        return (
            Errno::OPNOTSUPP,
            "the server ignores range requests: download the file, or use another server",
        );
    }
    if text.contains("169.254.169.254") {
        return (Errno::ACCESS, credentials_advice(url.scheme()));
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
        Some(rest.split_once("</")?.0)
    };
    match (element("Code"), element("Message")) {
        (Some(code), Some(message)) => one_line(&format!("{status} {code} ({message})")),
        (Some(code), None) => one_line(&format!("{status} {code}")),
        _ => one_line(status),
    }
}

/// Limits a text of a server to one line of an acceptable length.
fn one_line(text: &str) -> String {
    let line: Vec<_> = text.split_whitespace().collect();
    line.join(" ").chars().take(300).collect()
}
