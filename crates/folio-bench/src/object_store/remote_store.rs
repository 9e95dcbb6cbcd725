//! A store in memory with the latency of a remote one, whose requests are counted.

use super::requests::{GET, PUT, RequestMeter};
use futures_util::StreamExt;
use futures_util::stream::BoxStream;
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::throttle::{ThrottleConfig, ThrottledStore};
use object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};
use std::fmt;

/// A store in memory with the latency of a remote one.
#[derive(Debug)]
pub(crate) struct RemoteStore {
    objects: ThrottledStore<InMemory>,
    meter: RequestMeter,
}

impl RemoteStore {
    /// Returns an empty store.
    pub(crate) fn new(meter: &RequestMeter) -> Self {
        let latency = ThrottleConfig {
            wait_put_per_call: PUT,
            wait_get_per_call: GET,
            wait_list_per_call: GET,
            wait_list_with_delimiter_per_call: GET,
            wait_delete_per_call: PUT,
            ..ThrottleConfig::default()
        };
        Self {
            objects: ThrottledStore::new(InMemory::new(), latency),
            meter: meter.clone(),
        }
    }
}

impl fmt::Display for RemoteStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.objects.fmt(f)
    }
}

#[async_trait::async_trait]
impl ObjectStore for RemoteStore {
    async fn put_opts(
        &self,
        path: &Path,
        payload: PutPayload,
        options: PutOptions,
    ) -> Result<PutResult> {
        let _request = self.meter.begin();
        self.objects.put_opts(path, payload, options).await
    }

    async fn put_multipart_opts(
        &self,
        path: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        let _request = self.meter.begin();
        self.objects.put_multipart_opts(path, options).await
    }

    async fn get_opts(&self, path: &Path, options: GetOptions) -> Result<GetResult> {
        let _request = self.meter.begin();
        let found = self.objects.get_opts(path, options).await?;
        self.meter.sent(found.range.end - found.range.start);
        Ok(found)
    }

    fn delete_stream(
        &self,
        paths: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        let meter = self.meter.clone();
        let deleted = self.objects.delete_stream(paths);
        deleted.inspect(move |_| drop(meter.begin())).boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        let mut request = Some(self.meter.begin());
        let found = self.objects.list(prefix);
        found.inspect(move |_| drop(request.take())).boxed()
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        let _request = self.meter.begin();
        self.objects.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        let _request = self.meter.begin();
        self.objects.copy_opts(from, to, options).await
    }
}
