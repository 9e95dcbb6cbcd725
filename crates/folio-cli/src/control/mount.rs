//! A mounted image, as the control socket sees it.

use super::disk::{ControlledDisk, ServedDisk};
use crate::image::Image;
use crate::output::counters_json;
use folio::block::{Device, LiveImage};
use folio::{Errno, Error, Result};
use folio_fuse::RequestCounts;
use rustix::fs::{Mode, OFlags, open, syncfs};
use serde_json::{Map, Value, json};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// An image whose file system the host's kernel uses through FUSE.
pub(crate) struct MountedDisk<'a> {
    pub(crate) image: &'a Image,
    pub(crate) live: &'a LiveImage,
    /// The absolute directory that it is mounted on; none if this process does not see it.
    pub(crate) target: Option<PathBuf>,
    pub(crate) counts: Arc<RequestCounts>,
    /// The options of the mount, as mount(8) writes them.
    pub(crate) options: String,
}

impl MountedDisk<'_> {
    /// Returns the disk, for orders.
    pub(crate) fn controlled(&self) -> ControlledDisk<'_> {
        ControlledDisk::new(self.image.name.clone(), self.live, self)
    }

    /// Has the host's kernel write what it keeps of the mount: data of memory maps, and with the
    /// option `writeback` of write(2). Best effort, as docs/semantics.md describes for syncfs(2).
    fn sync_host(&self) {
        let Some(target) = &self.target else { return };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let synced = open(target, flags, Mode::empty()).and_then(syncfs);
        if let Err(error) = synced {
            tracing::debug!(%error, "the host's cache of the mount was not written");
        }
    }
}

impl ServedDisk for MountedDisk<'_> {
    fn counts(&self) -> Value {
        let counts = self.counts.named();
        let counts: Map<_, _> = counts
            .map(|(name, count)| (name.to_lowercase(), count.into()))
            .collect();
        counts.into()
    }

    fn cache_counters(&self) -> Option<Value> {
        Some(counters_json(&self.image.kernel().counters()))
    }

    fn options(&self) -> Value {
        json!({
            "image": self.image.name,
            "target": self.target,
            "size": self.live.len_bytes(),
            "read_only": self.live.is_read_only(),
            "options": self.options,
        })
    }

    fn flush(&self) -> Result<()> {
        self.sync_host();
        self.image.process().sync()?;
        self.live.flush()
    }

    fn freeze_while(&self, work: &mut dyn FnMut() -> Result<()>) -> Result<()> {
        self.sync_host();
        self.image.kernel().freeze_while("/", work)
    }

    fn check_path(&self, path: &Path) -> Result<()> {
        let file_system = |path: &Path| std::fs::metadata(path).ok().map(|found| found.dev());
        if path.is_relative() {
            let why = "the order needs an absolute path";
            return Err(Error::new(Errno::INVAL, why).at(path.display().to_string()));
        }
        let folder = path.parent().unwrap_or(path);
        let own = self.target.as_deref().and_then(file_system);
        if own.is_some() && file_system(folder) == own {
            let why = "inside the mount of this image, which cannot change during the fork: choose \
                       a path outside of it";
            return Err(Error::new(Errno::DEADLK, why).at(path.display().to_string()));
        }
        Ok(())
    }

    fn resize(&self, _change: &dyn Fn() -> Result<()>) -> Result<()> {
        let name = &self.image.name;
        let why = format!(
            "a mounted file system keeps its size: unmount it, then use folio resize {name} SIZE"
        );
        Err(Error::new(Errno::BUSY, why))
    }
}
