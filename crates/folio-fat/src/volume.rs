//! The thread that owns a file system of `fatfs`, whose types are bound to one thread. Requests are
//! closures.

use crate::cursor::{BlockCache, DeviceCursor};
use crate::time::{THREAD_TIME, set_now};
use fatfs::FsOptions;
use folio::base::Clock;
use folio::block::Device;
use folio::{Errno, Error, ErrorKind, Result};
use std::cell::RefCell;
use std::io;
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Mutex, PoisonError};

/// The file system as the thread has it.
pub(crate) type Fat = fatfs::FileSystem<DeviceCursor>;
/// A directory of it.
pub(crate) type FatDir<'a> = fatfs::Dir<'a, DeviceCursor>;

/// Work for the thread.
enum Request {
    Call(Box<dyn FnOnce(&Fat, &RefCell<BlockCache>) + Send>),
    /// Write the cache back.
    WriteBack(Sender<io::Result<()>>),
}

/// A FAT file system, usable from any thread.
pub(crate) struct Volume {
    /// None after the end.
    requests: Mutex<Option<Sender<Request>>>,
    thread: Mutex<Option<std::thread::JoinHandle<io::Result<()>>>>,
    device: Arc<dyn Device>,
    pub(crate) is_read_only: bool,
    pub(crate) clock: Clock,
}

impl Volume {
    /// Opens the FAT on `device`.
    ///
    /// # Errors
    ///
    /// EUCLEAN if it is damaged, else the device's errors.
    pub(crate) fn open(device: Arc<dyn Device>, is_read_only: bool, clock: Clock) -> Result<Self> {
        let (requests, receiver) = mpsc::channel::<Request>();
        let (opened, is_opened) = mpsc::channel();
        let lower = device.clone();
        let thread = std::thread::Builder::new()
            .name("fat".to_owned())
            .spawn(move || {
                let options = FsOptions::new()
                    .update_accessed_date(false)
                    .time_provider(&THREAD_TIME);
                let cache = BlockCache::new(lower);
                let fat = match Fat::new(DeviceCursor::new(&cache), options) {
                    Ok(fat) => fat,
                    Err(error) => {
                        // The opener waits for the answer.
                        let _ = opened.send(Err(to_error(error)));
                        return Ok(());
                    }
                };
                let _ = opened.send(Ok(()));
                while let Ok(request) = receiver.recv() {
                    match request {
                        Request::Call(work) => work(&fat, &cache),
                        Request::WriteBack(answer) => {
                            // The caller waits for the answer.
                            let _ = answer.send(cache.borrow_mut().write_back());
                        }
                    }
                }
                if !is_read_only {
                    // Counts free clusters, for the record that unmount writes.
                    fat.stats()?;
                }
                let unmounted = fat.unmount();
                unmounted.and(cache.borrow_mut().write_back())
            });
        let thread = thread.map_err(|error| Error::io("start a thread", error))?;
        is_opened.recv().unwrap_or_else(|_| Err(damaged()))?;
        Ok(Self {
            requests: Mutex::new(Some(requests)),
            thread: Mutex::new(Some(thread)),
            device,
            is_read_only,
            clock,
        })
    }

    /// Runs `work` on the file system.
    ///
    /// # Errors
    ///
    /// Those of `work`; EUCLEAN if the file system is so damaged that the thread ended.
    pub(crate) fn call<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Fat) -> io::Result<T> + Send + 'static,
    ) -> Result<T> {
        let (sender, receiver) = mpsc::channel();
        let now = self.clock.now();
        self.send(Request::Call(Box::new(move |fat, _| {
            set_now(now);
            // The caller waits for the answer.
            let _ = sender.send(work(fat));
        })))?;
        receiver.recv().map_err(|_| damaged())?.map_err(to_error)
    }

    /// Creates a directory.
    ///
    /// # Errors
    ///
    /// EROFS, and those of [`Volume::call`].
    pub(crate) fn create_directory(&self, path: String) -> Result<()> {
        if self.is_read_only {
            return Err(Errno::ROFS.into());
        }
        let (sender, receiver) = mpsc::channel();
        let now = self.clock.now();
        self.send(Request::Call(Box::new(move |fat, cache| {
            set_now(now);
            let create = || {
                // So that only the new directory's blocks are dirty.
                cache.borrow_mut().write_back()?;
                fat.root_dir().create_dir(&path)?;
                cache.borrow_mut().repair_dot_entries(!path.contains('/'));
                Ok(())
            };
            // The caller waits for the answer.
            let _ = sender.send(create());
        })))?;
        receiver.recv().map_err(|_| damaged())?.map_err(to_error)
    }

    fn send(&self, request: Request) -> Result<()> {
        match &*self.requests.lock().unwrap_or_else(PoisonError::into_inner) {
            Some(requests) => requests.send(request).map_err(|_| damaged()),
            None => Err(Errno::IO.into()),
        }
    }

    /// Makes all changes so far durable.
    pub(crate) fn sync(&self) -> Result<()> {
        if self.is_read_only {
            return Ok(());
        }
        let (sender, receiver) = mpsc::channel();
        self.send(Request::WriteBack(sender))?;
        receiver.recv().map_err(|_| damaged())?.map_err(to_error)?;
        self.device.flush()
    }

    /// As [`Volume::call`], for changes.
    ///
    /// # Errors
    ///
    /// EROFS, and those of [`Volume::call`].
    pub(crate) fn change<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Fat) -> io::Result<T> + Send + 'static,
    ) -> Result<T> {
        if self.is_read_only {
            return Err(Errno::ROFS.into());
        }
        self.call(work)
    }

    /// Writes everything, and ends the thread.
    pub(crate) fn close(&self) -> Result<()> {
        let requests = self
            .requests
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        drop(requests);
        let thread = self
            .thread
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        match thread.map(std::thread::JoinHandle::join) {
            None => Ok(()),
            Some(Err(_)) => Err(damaged()),
            Some(Ok(Err(error))) if !self.is_read_only => Err(to_error(error)),
            Some(Ok(_)) if self.is_read_only => Ok(()),
            Some(Ok(_)) => self.device.flush().and_then(|()| self.device.mark_closed()),
        }
    }
}

impl Drop for Volume {
    fn drop(&mut self) {
        // Callers that need errors close before.
        let _ = self.close();
    }
}

fn damaged() -> Error {
    Error::corrupt("the FAT is damaged; run fsck.fat").at("fat")
}

/// Converts an error of `fatfs`, which has the device's inside, or a text.
fn to_error(error: io::Error) -> Error {
    let text = error.to_string();
    let inner = error.into_inner();
    if let Some(inner) = inner.and_then(|inner| inner.downcast::<Error>().ok()) {
        return *inner;
    }
    let errno = match text.as_str() {
        "No such file or directory" => Errno::NOENT,
        "Destination file already exists" => Errno::EXIST,
        "Directory not empty" => Errno::NOTEMPTY,
        "Is a directory" => Errno::ISDIR,
        "Not a directory" => Errno::NOTDIR,
        "File name too long" => Errno::NAMETOOLONG,
        "No space left on device" => Errno::NOSPC,
        "File name is empty" => Errno::INVAL,
        "File name contains unsupported characters" => {
            let what = "FAT cannot store a name with these characters";
            return Error::new(Errno::INVAL, what);
        }
        _ => return Error::corrupt(text).at("fat"),
    };
    let error = Error::from(errno);
    debug_assert!(error.kind() == ErrorKind::Errno);
    error
}
