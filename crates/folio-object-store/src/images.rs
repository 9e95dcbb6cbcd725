//! Images with URLs for names, below the image formats of this process.

use crate::counters::{RequestCounters, RequestCounts};
use crate::device::ObjectDevice;
use crate::options::StoreOptions;
use crate::part_cache::{PartCache, PartCacheOptions};
use crate::store::Store;
use crate::url::ObjectUrl;
use folio::block::{RemoteImage, RemoteImages, provide_remote_images};
use folio::{Errno, Error, Result};
use parking_lot::Mutex;
use std::sync::Arc;

/// Options of the images of this process.
#[derive(Debug, Clone, Default)]
pub struct ImageOptions {
    /// Of the connections.
    pub store: StoreOptions,
    /// Where parts are kept on disk.
    pub part_cache: Option<PartCacheOptions>,
    /// Starts of URLs that any image may name as its backing file: `s3://bucket/base/`.
    pub allowed_urls: Vec<String>,
}

/// The images with URLs of this process.
#[derive(Clone)]
pub struct ObjectImages {
    options: Arc<ImageOptions>,
    connections: Arc<Mutex<Vec<Arc<RequestCounters>>>>,
}

impl ObjectImages {
    /// Returns images that nothing opens by their names yet.
    pub fn new(options: ImageOptions) -> Self {
        Self {
            options: Arc::new(options),
            connections: Arc::default(),
        }
    }

    /// Makes images with URLs readable in this process; a second call changes nothing.
    pub fn provide(options: ImageOptions) -> Self {
        let this = Self::new(options);
        provide_remote_images(Box::new(this.clone()));
        this
    }

    /// Connects to the store of a URL.
    ///
    /// # Errors
    ///
    /// Those of [`Store::open`].
    pub fn connect(&self, url: &ObjectUrl) -> Result<Store> {
        let store = Store::open(url, &self.options.store)?;
        self.connections.lock().push(store.counters().clone());
        Ok(store)
    }

    /// Opens an object for reading.
    ///
    /// # Errors
    ///
    /// Those of [`Store::open`] and [`ObjectDevice::open`].
    pub fn open_object(&self, url: &ObjectUrl) -> Result<ObjectDevice> {
        let cache = |url: &str, e_tag: &str, len_bytes: u64| {
            let options = self.options.part_cache.as_ref()?;
            let opened = PartCache::open(options, url, e_tag, len_bytes);
            let report = |error: &std::io::Error| {
                let folder = options.folder.display();
                tracing::warn!("part cache {folder}: {error}: continuing without it");
            };
            opened.inspect_err(report).ok()
        };
        ObjectDevice::open(self.connect(url)?, cache)
    }

    /// Returns the requests of all connections so far.
    pub fn counts(&self) -> RequestCounts {
        let mut total = RequestCounts::default();
        for counters in &*self.connections.lock() {
            total += counters.counts();
        }
        total
    }
}

impl RemoteImages for ObjectImages {
    fn has_name(&self, name: &str) -> bool {
        ObjectUrl::is_url(name)
    }

    fn open(&self, name: &str, read_only: bool) -> Result<RemoteImage> {
        if !read_only {
            return Err(self.not_writable(name));
        }
        Ok(RemoteImage {
            device: Arc::new(self.open_object(&name.parse()?)?),
            is_disk: false,
        })
    }

    fn not_writable(&self, name: &str) -> Error {
        let why = "an object cannot be written in place: write into a local overlay (folio image \
                   create -f qcow2 -b URL -F qcow2 --backing allow overlay.qcow2) with \
                   --backing-url URL, then folio push overlay.qcow2 URL; or make a local image, \
                   then folio cp IMAGE URL";
        Error::new(Errno::ROFS, why).at(name.to_owned())
    }

    fn resolve(&self, image: &str, name: &str) -> Result<String> {
        let url = if ObjectUrl::is_url(name) {
            name.parse::<ObjectUrl>()?
        } else {
            let name = name.strip_prefix("file:").unwrap_or(name);
            image.parse::<ObjectUrl>()?.join(name)?
        };
        Ok(url.to_string())
    }

    fn is_allowed(&self, image: &str, url: &str) -> bool {
        let starts = |allowed: &String| {
            url.strip_prefix(allowed.as_str()).is_some_and(|rest| {
                rest.is_empty() || rest.starts_with('/') || allowed.ends_with('/')
            })
        };
        if self.options.allowed_urls.iter().any(starts) {
            return true;
        }
        match (image.parse::<ObjectUrl>(), url.parse::<ObjectUrl>()) {
            (Ok(image), Ok(url)) => image.is_beside(&url),
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_neighbors_and_allowed_urls_are_backing_files() {
        let images = ObjectImages::new(ImageOptions {
            allowed_urls: vec!["s3://shared/base".to_owned()],
            ..ImageOptions::default()
        });
        assert!(images.is_allowed("s3://b/a/disk", "s3://b/a/base"));
        assert!(!images.is_allowed("s3://b/a/disk", "s3://b/base"));
        assert!(!images.is_allowed("/tmp/disk", "s3://b/a/base"));
        assert!(images.is_allowed("/tmp/disk", "s3://shared/base/x"));
        assert!(!images.is_allowed("/tmp/disk", "s3://shared/base2"));
        let resolved = images.resolve("s3://b/a/disk", "../base.qcow2");
        assert_eq!(resolved.unwrap(), "s3://b/base.qcow2");
    }
}
