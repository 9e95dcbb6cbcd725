//! One file's pages in memory.
#![allow(missing_docs)]
use super::{Store, Writeback};
use crate::base::{PAGE_SIZE, Result};
use parking_lot::{Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{IoSlice, IoSliceMut};
use std::ops::{Deref, DerefMut, Range};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

const P: u64 = PAGE_SIZE as u64;
struct Inner {
    table: Mutex<BTreeMap<u64, Arc<Frame>>>,
    dirty: Mutex<BTreeSet<u64>>,
    io: Mutex<()>,
    size: AtomicU64,
    store: Option<Weak<dyn Store>>,
    strong: Mutex<Option<Arc<dyn Store>>>,
    writeback: Weak<Writeback>,
}
struct Frame {
    data: RwLock<Box<[u8; PAGE_SIZE]>>,
    owner: Weak<Inner>,
    index: u64,
}
#[derive(Clone)]
pub struct Mapping(Arc<Inner>);
impl Mapping {
    pub fn new(writeback: &Arc<Writeback>, store: Weak<dyn Store>, size_bytes: u64) -> Self {
        Self::make(writeback, Some(store), size_bytes)
    }
    pub fn without_store(writeback: &Arc<Writeback>, size_bytes: u64) -> Self {
        Self::make(writeback, None, size_bytes)
    }
    fn make(writeback: &Arc<Writeback>, store: Option<Weak<dyn Store>>, size: u64) -> Self {
        Self(Arc::new(Inner {
            table: Default::default(),
            dirty: Default::default(),
            io: Mutex::new(()),
            size: AtomicU64::new(size),
            store,
            strong: Mutex::new(None),
            writeback: Arc::downgrade(writeback),
        }))
    }
    pub fn size_bytes(&self) -> u64 {
        self.0.size.load(Ordering::Acquire)
    }
    pub fn set_size_bytes(&self, size_bytes: u64) {
        self.0.size.store(size_bytes, Ordering::Release)
    }
    pub fn read(&self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let size = self.size_bytes();
        if offset >= size {
            return Ok(0);
        }
        let n = (size - offset).min(buf.len() as u64) as usize;
        let mut done = 0;
        while done < n {
            let at = offset + done as u64;
            let start = (at % P) as usize;
            let len = (PAGE_SIZE - start).min(n - done);
            if self.0.store.is_none() && !self.0.table.lock().contains_key(&(at / P)) {
                buf[done..done + len].fill(0);
                done += len;
                continue;
            }
            let page = self.page(at / P)?;
            buf[done..done + len].copy_from_slice(&page.read()[start..start + len]);
            done += len;
        }
        Ok(n)
    }
    pub fn write(&self, offset: u64, bytes: &[u8]) -> Result<usize> {
        let mut done = 0;
        while done < bytes.len() {
            let at = offset + done as u64;
            let start = (at % P) as usize;
            let len = (PAGE_SIZE - start).min(bytes.len() - done);
            let page = if len == PAGE_SIZE || (at / P) * P >= self.size_bytes() {
                self.page_for_overwrite(at / P)?
            } else {
                self.page(at / P)?
            };
            page.write()[start..start + len].copy_from_slice(&bytes[done..done + len]);
            done += len;
            if at + len as u64 > self.size_bytes() {
                self.set_size_bytes(at + len as u64);
            }
        }
        Ok(done)
    }
    pub fn zero_range(&self, range: Range<u64>) -> Result<()> {
        let mut at = range.start;
        while at < range.end {
            let start = (at % P) as usize;
            let len = (PAGE_SIZE - start).min((range.end - at) as usize);
            self.page(at / P)?.write()[start..start + len].fill(0);
            at += len as u64;
        }
        Ok(())
    }
    pub fn truncate(&self, size_bytes: u64) {
        let _io = self.0.io.lock();
        let old = self.size_bytes();
        self.set_size_bytes(size_bytes);
        if size_bytes < old {
            let first = size_bytes.div_ceil(P);
            drop(self.0.table.lock().split_off(&first));
            self.0.dirty.lock().split_off(&first);
            if size_bytes % P != 0
                && let Some(f) = self.0.table.lock().get(&(size_bytes / P))
            {
                f.data.write()[(size_bytes % P) as usize..].fill(0);
            }
        }
        if self.0.dirty.lock().is_empty() {
            let s = self.0.strong.lock().take();
            drop(s);
        }
    }
    pub fn punch(&self, range: Range<u64>) {
        let _io = self.0.io.lock();
        let (a, b) = (range.start.div_ceil(P), range.end / P);
        if a < b {
            self.0.table.lock().retain(|k, _| *k < a || *k >= b);
            self.0.dirty.lock().retain(|k| *k < a || *k >= b);
        }
    }
    pub fn invalidate(&self, _range: Range<u64>) -> u64 {
        0
    }
    pub fn write_back(&self, range: Range<u64>) -> Result<()> {
        let Some(store) = &self.0.store else { return Ok(()) };
        let _io = self.0.io.lock();
        let keys: Vec<u64> =
            self.0.dirty.lock().range(range.start / P..range.end.div_ceil(P)).copied().collect();
        if keys.is_empty() {
            return Ok(());
        }
        let Some(store) = store.upgrade() else { return Ok(()) };
        let mut i = 0;
        while i < keys.len() {
            let mut j = i + 1;
            while j < keys.len() && keys[j] == keys[j - 1] + 1 && j - i < 1024 {
                j += 1;
            }
            let frames: Vec<Arc<Frame>> = {
                let t = self.0.table.lock();
                keys[i..j].iter().map(|k| t[k].clone()).collect()
            };
            for k in &keys[i..j] {
                self.0.dirty.lock().remove(k);
            }
            let guards: Vec<_> = frames.iter().map(|f| f.data.read()).collect();
            let bufs: Vec<IoSlice<'_>> = guards.iter().map(|g| IoSlice::new(&g[..])).collect();
            if let Err(e) = store.write_pages(keys[i] * P, &bufs) {
                self.0.dirty.lock().extend(keys[i..j].iter());
                return Err(e);
            }
            i = j;
        }
        if self.0.dirty.lock().is_empty() {
            let s = self.0.strong.lock().take();
            drop(s);
        }
        Ok(())
    }
    pub fn check_error(&self, _seen: &mut u64) -> Result<()> {
        Ok(())
    }
    pub fn error_cursor(&self) -> u64 {
        0
    }
    pub fn is_dirty(&self) -> bool {
        !self.0.dirty.lock().is_empty()
    }
    pub fn next_cached(&self, offset: u64) -> Option<u64> {
        let k = *self.0.table.lock().range(offset / P..).next()?.0;
        let at = (k * P).max(offset);
        (at < self.size_bytes()).then_some(at)
    }
    pub fn next_absent(&self, offset: u64) -> u64 {
        let t = self.0.table.lock();
        let mut k = offset / P;
        if !t.contains_key(&k) {
            return offset;
        }
        while t.contains_key(&k) {
            k += 1;
        }
        k * P
    }
    pub fn page_count(&self) -> u64 {
        self.0.table.lock().len() as u64
    }
    fn frame(&self, index: u64) -> Arc<Frame> {
        Arc::new(Frame { data: RwLock::new(Box::new([0; PAGE_SIZE])), owner: Arc::downgrade(&self.0), index })
    }
    pub fn page(&self, index: u64) -> Result<Page> {
        if let Some(f) = self.0.table.lock().get(&index) {
            return Ok(Page(f.clone()));
        }
        let f = self.frame(index);
        if let Some(store) = self.0.store.as_ref().and_then(Weak::upgrade) {
            store.read_pages(index * P, &mut [IoSliceMut::new(&mut f.data.write()[..])])?;
        }
        Ok(Page(self.0.table.lock().entry(index).or_insert(f).clone()))
    }
    pub fn page_for_overwrite(&self, index: u64) -> Result<Page> {
        let f = self.frame(index);
        Ok(Page(self.0.table.lock().entry(index).or_insert(f).clone()))
    }
    pub fn read_ahead(&self, _first: u64, _count: u64) {}
}
#[derive(Clone)]
pub struct Page(Arc<Frame>);
impl Page {
    pub fn read(&self) -> PageReadGuard<'_> {
        PageReadGuard { bytes: self.0.data.read() }
    }
    pub fn write(&self) -> PageWriteGuard<'_> {
        let bytes = self.0.data.write();
        if let Some(o) = self.0.owner.upgrade()
            && let Some(store) = &o.store
        {
            o.dirty.lock().insert(self.0.index);
            let mut strong = o.strong.lock();
            if strong.is_none() {
                *strong = store.upgrade();
                if let Some(w) = o.writeback.upgrade() {
                    w.dirty.lock().push(Mapping(o.clone()));
                }
            }
        }
        PageWriteGuard { bytes }
    }
}
pub struct PageReadGuard<'a> {
    bytes: RwLockReadGuard<'a, Box<[u8; PAGE_SIZE]>>,
}
impl Deref for PageReadGuard<'_> {
    type Target = [u8; PAGE_SIZE];
    fn deref(&self) -> &Self::Target {
        &self.bytes
    }
}
pub struct PageWriteGuard<'a> {
    bytes: RwLockWriteGuard<'a, Box<[u8; PAGE_SIZE]>>,
}
impl Deref for PageWriteGuard<'_> {
    type Target = [u8; PAGE_SIZE];
    fn deref(&self) -> &Self::Target {
        &self.bytes
    }
}
impl DerefMut for PageWriteGuard<'_> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.bytes
    }
}
