//! A store whose errors explain themselves to a user of [`ObjectStore`]: their cause is an error of
//! Folio that names the object, the request, its id and what to check.

use crate::connector::with_request_id;
use crate::failure::failure;
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

/// Returns the same kind of error with an explanation as its cause.
fn explain(
    url: &ObjectUrl,
    location: &Path,
    operation: &str,
    request_id: Option<&str>,
    error: Error,
) -> Error {
    let url = url.with_key(location.as_ref());
    let source = Box::new(failure(&url, operation, request_id, &error));
    match error {
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
