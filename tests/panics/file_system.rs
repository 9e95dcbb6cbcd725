//! A file system of one file, `f`, that panics in selected calls.

use folio::cache::{Mapping, Store};
use folio::syscall::Credentials;
use folio::vfs::{
    AttributeChange, Attributes, FileOperations, FileSystem, FileSystemStatistics, FileType, Inode,
    InodeCommon, InodeNumber,
};
use folio::{Errno, Kernel, Result};
use std::any::Any;
use std::io::{IoSlice, IoSliceMut};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Weak};

const FILE_BYTES: u64 = 4 << 20;

/// The calls that panic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CallKind {
    Nothing,
    Lookup,
    Write,
    Store,
    Sync,
}

/// The selected calls, shared by all objects of the file system.
#[derive(Clone, Default)]
struct Selected(Arc<AtomicU8>);

impl Selected {
    fn maybe_panic(&self, call: CallKind) {
        assert!(
            self.0.load(Ordering::SeqCst) != call as u8,
            "the test's file system panics"
        );
    }
}

pub(super) struct PanicFs {
    root: Arc<Root>,
    selected: Selected,
}

impl PanicFs {
    /// Returns the file system; its file has its pages in the page cache of `kernel`.
    pub(super) fn new(kernel: &Kernel) -> Arc<Self> {
        let selected = Selected::default();
        let writeback = kernel.cache().writeback();
        let file = Arc::new_cyclic(|this: &Weak<File>| {
            let mapping = Mapping::new(&writeback, this.clone(), FILE_BYTES);
            File {
                common: InodeCommon::new(&attributes(2, FileType::Regular), Some(mapping)),
                selected: selected.clone(),
            }
        });
        let root = Arc::new(Root {
            common: InodeCommon::new(&attributes(1, FileType::Directory), None),
            file,
            selected: selected.clone(),
        });
        Arc::new(Self { root, selected })
    }

    /// Selects the calls that panic from now on.
    pub(super) fn panic_in(&self, call: CallKind) {
        self.selected.0.store(call as u8, Ordering::SeqCst);
    }
}

impl FileSystem for PanicFs {
    fn kind(&self) -> &'static str {
        "panics"
    }

    fn root(&self) -> Arc<dyn Inode> {
        self.root.clone()
    }

    fn statistics(&self) -> Result<FileSystemStatistics> {
        Ok(FileSystemStatistics::default())
    }

    fn sync(&self) -> Result<()> {
        self.selected.maybe_panic(CallKind::Sync);
        Ok(())
    }

    fn unmount(&self) -> Result<()> {
        self.selected.maybe_panic(CallKind::Sync);
        Ok(())
    }

    fn is_read_only(&self) -> bool {
        false
    }
}

struct Root {
    common: InodeCommon,
    file: Arc<File>,
    selected: Selected,
}

impl Inode for Root {
    fn common(&self) -> &InodeCommon {
        &self.common
    }

    fn set_attributes(&self, _caller: &Credentials, _change: &AttributeChange) -> Result<()> {
        Err(Errno::OPNOTSUPP.into())
    }

    fn lookup(&self, name: &[u8]) -> Result<Option<Arc<dyn Inode>>> {
        self.selected.maybe_panic(CallKind::Lookup);
        Ok((name == b"f").then(|| self.file.clone() as Arc<dyn Inode>))
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

struct File {
    common: InodeCommon,
    selected: Selected,
}

impl Inode for File {
    fn common(&self) -> &InodeCommon {
        &self.common
    }

    fn file_operations(&self) -> Option<&dyn FileOperations> {
        Some(self)
    }

    fn set_attributes(&self, _caller: &Credentials, _change: &AttributeChange) -> Result<()> {
        Ok(())
    }

    fn sync(&self, _data_only: bool) -> Result<()> {
        let mapping = self.common.mapping.as_ref().ok_or(Errno::IO)?;
        mapping.write_back(0..u64::MAX)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl FileOperations for File {
    fn write_begin(&self, _caller: &Credentials, _offset: u64, _len_bytes: u64) -> Result<()> {
        self.selected.maybe_panic(CallKind::Write);
        Ok(())
    }

    fn write_end(&self, _written_bytes: u64) -> Result<()> {
        Ok(())
    }
}

impl Store for File {
    fn read_pages(&self, _offset: u64, bufs: &mut [IoSliceMut<'_>]) -> Result<()> {
        self.selected.maybe_panic(CallKind::Store);
        bufs.iter_mut().for_each(|buf| buf.fill(0));
        Ok(())
    }

    fn write_pages(&self, _offset: u64, _bufs: &[IoSlice<'_>]) -> Result<()> {
        self.selected.maybe_panic(CallKind::Store);
        Ok(())
    }
}

fn attributes(number: u64, file_type: FileType) -> Attributes {
    Attributes::new(InodeNumber(number), file_type, 0o777)
}
