//! A store whose errors explain themselves to a user of [`ObjectStore`]: their cause is an error of
//! Folio that names the object, the request, its id and what to check.

use crate::connector::with_request_id;
use crate::failure::{failure, specific};
use crate::url::ObjectUrl;
use async_trait::async_trait;
use futures_util::StreamExt;
use futures_util::stream::BoxStream;
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta,
    ObjectStore, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};
use std::fmt;
use std::future::Future;
use std::sync::Arc;

/// A store whose errors have an error of Folio as their cause.
#[derive(Debug)]
pub(crate) struct Explained {
    url: ObjectUrl,
    objects: Arc<dyn ObjectStore>,
}

impl Explained {
    pub(crate) fn new(url: &ObjectUrl, objects: Arc<dyn ObjectStore>) -> Self {
        Self {
            url: url.clone(),
            objects,
        }
    }

    async fn run<T>(
        &self,
        operation: &str,
        location: &Path,
        request: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        let (answer, id) = with_request_id(request).await;
        answer.map_err(|error| explain(&self.url, location, operation, id.as_deref(), error))
    }
}

/// Returns an error with an explanation as its cause. Its kind says whether a repetition may help:
/// it does not for wrong credentials and missing buckets.
fn explain(
    url: &ObjectUrl,
    location: &Path,
    operation: &str,
    request_id: Option<&str>,
    error: Error,
) -> Error {
    let url = url.with_key(location.as_ref());
    let source = Box::new(failure(&url, operation, request_id, &error));
    match specific(&url, error) {
        Error::Generic { store, .. } => Error::Generic { store, source },
        Error::NotFound { path, .. } => Error::NotFound { path, source },
        Error::NotSupported { .. } => Error::NotSupported { source },
        Error::AlreadyExists { path, .. } => Error::AlreadyExists { path, source },
        Error::Precondition { path, .. } => Error::Precondition { path, source },
        Error::NotModified { path, .. } => Error::NotModified { path, source },
        Error::PermissionDenied { path, .. } => Error::PermissionDenied { path, source },
        Error::Unauthenticated { path, .. } => Error::Unauthenticated { path, source },
        other => other,
    }
}

impl fmt::Display for Explained {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.objects)
    }
}

#[async_trait]
impl ObjectStore for Explained {
    async fn put_opts(
        &self,
        location: &Path,
        payload: PutPayload,
        options: PutOptions,
    ) -> Result<PutResult> {
        let operation = format!("write {} bytes", payload.content_length());
        let request = self.objects.put_opts(location, payload, options);
        self.run(&operation, location, request).await
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        let request = self.objects.put_multipart_opts(location, options);
        self.run("begin an upload", location, request).await
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        let operation = match &options.range {
            Some(range) => format!("read {range}"),
            None => "read".to_owned(),
        };
        let request = self.objects.get_opts(location, options);
        self.run(&operation, location, request).await
    }

    fn delete_stream(
        &self,
        locations: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        let url = self.url.clone();
        let deleted = self.objects.delete_stream(locations);
        let explained = deleted.map(move |deleted| {
            let location = Path::from(url.key());
            deleted.map_err(|e| explain(&url, &location, "delete objects", None, e))
        });
        explained.boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        let url = self.url.clone();
        let prefix_path = prefix.cloned().unwrap_or_default();
        let objects = self.objects.list(prefix).map(move |found| {
            found.map_err(|e| explain(&url, &prefix_path, "list objects", None, e))
        });
        objects.boxed()
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        let location = prefix.cloned().unwrap_or_default();
        let request = self.objects.list_with_delimiter(prefix);
        self.run("list objects", &location, request).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        let request = self.objects.copy_opts(from, to, options);
        self.run("copy", to, request).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use folio::{Errno, Error as FolioError};

    /// Explains the answer to a list; returns it with the error of Folio inside.
    fn answer_to_list(text: &str) -> (Error, Errno, String) {
        let url = "s3://bucket/vol".parse().unwrap();
        let source = format!("Error performing list request: Error performing GET - {text}").into();
        let error = Error::Generic {
            store: "S3",
            source,
        };
        let error = explain(&url, &Path::from("vol/map"), "list objects", None, error);
        let cause = std::error::Error::source(&error).unwrap();
        let cause: &FolioError = cause.downcast_ref().unwrap();
        let (errno, text) = (cause.errno(), cause.to_string());
        (error, errno, text)
    }

    #[test]
    fn refused_list_is_final_and_has_advice() {
        let wrong_secret = "Server returned non-2xx status code: 403 Forbidden: <Error>\
            <Code>SignatureDoesNotMatch</Code><Message>wrong</Message></Error>";
        let (error, errno, text) = answer_to_list(wrong_secret);
        assert!(matches!(error, Error::PermissionDenied { .. }), "{error}");
        assert_eq!(errno, Errno::ACCESS);
        assert_eq!(
            text.split(": check").next().unwrap(),
            "s3://bucket/vol/map: list objects: 403 Forbidden SignatureDoesNotMatch (wrong)"
        );
        assert!(
            text.contains("check the credentials (AWS_ACCESS_KEY_ID"),
            "{text}"
        );
        let (error, errno, _) = answer_to_list("Server returned non-2xx status code: 401: ");
        assert!(matches!(error, Error::Unauthenticated { .. }) && errno == Errno::ACCESS);
        let wrong_bucket = "Server returned non-2xx status code: 404 Not Found: <Error>\
            <Code>NoSuchBucket</Code></Error>";
        let (error, errno, text) = answer_to_list(wrong_bucket);
        assert!(matches!(error, Error::NotFound { .. }) && errno == Errno::NOENT);
        assert!(text.ends_with("404 Not Found NoSuchBucket: check the bucket and the key"));
        for moved in [
            "Received redirect without LOCATION, this",
            "non-2xx status code: 301 Moved",
        ] {
            let (error, _, text) = answer_to_list(moved);
            assert!(matches!(error, Error::PermissionDenied { .. }), "{error}");
            assert!(text.contains("check the region of the bucket"), "{text}");
        }
    }

    #[test]
    fn error_of_the_store_is_repeatable() {
        for text in [
            "Server returned non-2xx status code: 503 Slow Down: ",
            "connection closed",
        ] {
            let (error, errno, _) = answer_to_list(text);
            assert!(
                matches!(error, Error::Generic { .. }) && errno == Errno::IO,
                "{error}"
            );
        }
    }
}
