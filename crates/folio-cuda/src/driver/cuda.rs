//! A CUDA device, by the driver's API.

#![expect(unsafe_code, reason = "calls of the CUDA driver")]

use super::library::Library;
use super::nvrtc::{Target, compile};
use crate::device::{Device, Staging};
use crate::source::KERNELS;
use cudarc::driver::{result, sys};
use folio::ramfs::{FrameMemory, FrameRead, FrameWrite};
use folio::{Errno, Error, Result};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::ffi::{CString, c_void};
use std::ops::Range;
use std::ptr::NonNull;

/// The names that cudarc tries; it panics if none of them can be opened.
const LIBRARIES: [&std::ffi::CStr; 2] = [c"libcuda.so", c"libcuda.so.1"];
/// The first version of CUDA whose driver has every function that is called, 12.8; cudarc panics at
/// the call of a function that the driver lacks.
const VERSION_MIN: i32 = 12_080;
/// Size in bytes of the pinned buffers through which the host reads and writes.
const BOUNCE_BYTES: usize = 1 << 20;
/// Number of pinned buffers that are kept.
const BOUNCES_MAX: usize = 8;
/// From this number of parts on, a kernel gathers them; fewer are copied one by one.
const GATHER_PARTS_MIN: usize = 4;
/// Most bytes that one warp gathers: `FOLIO_SEGMENT`.
const SEGMENT_BYTES: usize = 4096;
/// Number of staging buffers that are kept: two for each of eight threads of a fill.
const STAGINGS_MAX: usize = 16;
/// Threads of a block that gathers.
const GATHER_LANES: u32 = 256;

/// A GPU with its primary context. Its memory is allocated on demand.
pub struct CudaDevice {
    ordinal: sys::CUdevice,
    context: sys::CUcontext,
    /// Of everything but fills; so calls take effect in their order.
    stream: sys::CUstream,
    /// Functions of the modules that are loaded, by name.
    functions: Mutex<HashMap<CString, Function>>,
    bounces: Mutex<Vec<Pinned>>,
    stagings: Mutex<Vec<StagingBuffer>>,
    /// Why there are no kernels, if so.
    no_kernels: Option<String>,
}

// SAFETY: the driver's handles may be used by any thread that made the context current, which
// every method does.
unsafe impl Send for CudaDevice {}
// SAFETY: as above; the driver's API is thread-safe.
unsafe impl Sync for CudaDevice {}

/// A kernel of a loaded module.
#[derive(Clone)]
struct Function {
    /// The driver's handle.
    handle: usize,
    /// Sizes of the parameters in bytes.
    parameters_bytes: Vec<usize>,
}

/// Pinned memory of the host, and the event after the last copy from it.
struct Pinned {
    memory: NonNull<u8>,
    len_bytes: usize,
    copied: sys::CUevent,
}

// SAFETY: the memory is used by one owner at a time, on any thread.
unsafe impl Send for Pinned {}

/// Returns the error of a call of the driver.
fn failed(error: result::DriverError) -> Error {
    let errno = match error.0 {
        sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY => Errno::NOSPC,
        _ => Errno::IO,
    };
    Error::new(errno, error.to_string()).at("CUDA")
}

/// Returns the functions of a loaded module by name.
fn functions_of(module: sys::CUmodule) -> Result<Vec<(CString, Function)>> {
    let mut count = 0;
    // SAFETY: the module is loaded, and never unloaded.
    unsafe { sys::cuModuleGetFunctionCount(&raw mut count, module) }
        .result()
        .map_err(failed)?;
    let mut functions = vec![std::ptr::null_mut(); count as usize];
    // SAFETY: as above; the list has room for all functions.
    unsafe { sys::cuModuleEnumerateFunctions(functions.as_mut_ptr(), count, module) }
        .result()
        .map_err(failed)?;
    let named = functions.into_iter().map(|handle| {
        let mut name = std::ptr::null();
        // SAFETY: the driver returned the function.
        unsafe { sys::cuFuncGetName(&raw mut name, handle) }
            .result()
            .map_err(failed)?;
        // SAFETY: the driver's string is valid as long as the module is loaded.
        let name = unsafe { std::ffi::CStr::from_ptr(name) }.to_owned();
        let function = Function {
            handle: handle as usize,
            parameters_bytes: parameters_of(handle)?,
        };
        Ok((name, function))
    });
    named.collect()
}

/// Returns the sizes in bytes of a function's parameters.
fn parameters_of(function: sys::CUfunction) -> Result<Vec<usize>> {
    let mut sizes = Vec::new();
    loop {
        let (mut offset, mut size) = (0, 0);
        // SAFETY: the driver returned the function, and writes to local variables.
        let found = unsafe {
            sys::cuFuncGetParamInfo(function, sizes.len(), &raw mut offset, &raw mut size)
        };
        match found {
            sys::CUresult::CUDA_SUCCESS => sizes.push(size),
            // There is no parameter of this number.
            sys::CUresult::CUDA_ERROR_INVALID_VALUE => return Ok(sizes),
            error => return Err(failed(result::DriverError(error))),
        }
    }
}

fn new_stream() -> Result<sys::CUstream> {
    result::stream::create(result::stream::StreamKind::NonBlocking).map_err(failed)
}

impl CudaDevice {
    /// Opens the GPU number `ordinal`, and compiles the kernels if NVRTC is installed.
    ///
    /// # Errors
    /// ENODEV if there is no driver, an old driver or no such GPU.
    pub fn open(ordinal: u32) -> Result<Self> {
        let mut reason = String::new();
        let has_driver = LIBRARIES.iter().any(|name| match Library::open(name) {
            Ok(_) => true,
            Err(error) => {
                reason = error;
                false
            }
        });
        if !has_driver {
            return Err(Error::new(
                Errno::NODEV,
                format!("no CUDA driver: {reason}"),
            ));
        }
        let absent = |error: result::DriverError| {
            Error::new(Errno::NODEV, format!("no CUDA device: {error}"))
        };
        result::init().map_err(absent)?;
        let mut version = 0;
        // SAFETY: the version is written to a local variable.
        unsafe { sys::cuDriverGetVersion(&raw mut version) }
            .result()
            .map_err(absent)?;
        if version < VERSION_MIN {
            let text = |version: i32| format!("{}.{}", version / 1000, version % 1000 / 10);
            let (has, needs) = (text(version), text(VERSION_MIN));
            let reason = format!("the CUDA driver is too old: it has CUDA {has}, install {needs}");
            return Err(Error::new(Errno::NODEV, reason));
        }
        let ordinal = result::device::get(ordinal as i32).map_err(absent)?;
        // SAFETY: the device exists; the context is released when the value is dropped.
        let context = unsafe { result::primary_ctx::retain(ordinal) }.map_err(failed)?;
        // SAFETY: the context was retained above.
        let entered = unsafe { result::ctx::set_current(context) }.map_err(failed);
        let stream = entered.and_then(|()| new_stream()).inspect_err(|_| {
            // SAFETY: the context was retained above, and is not used after this.
            let _ = unsafe { result::primary_ctx::release(ordinal) };
        });
        let mut device = Self {
            ordinal,
            context,
            stream: stream?,
            functions: Mutex::default(),
            bounces: Mutex::default(),
            stagings: Mutex::default(),
            no_kernels: None,
        };
        let loaded = compile(KERNELS, Target::Cubin(device.capability()?))
            .and_then(|code| device.load(&code));
        device.no_kernels = loaded.err().map(|error| error.to_string());
        Ok(device)
    }

    /// Returns the compute capability: 90 for an H100 or H200.
    fn capability(&self) -> Result<u32> {
        use sys::CUdevice_attribute as Attribute;
        let of = |attribute| {
            // SAFETY: the device exists.
            unsafe { result::device::get_attribute(self.ordinal, attribute) }.map_err(failed)
        };
        let major = of(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
        let minor = of(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?;
        Ok((major * 10 + minor) as u32)
    }

    /// Makes the context current for the calling thread.
    fn enter(&self) -> Result<()> {
        // SAFETY: the context is retained as long as `self` exists.
        unsafe { result::ctx::set_current(self.context) }.map_err(failed)
    }

    /// Loads kernels from PTX or machine code, for [`Device::launch`] by their names.
    ///
    /// # Errors
    /// EINVAL if the driver rejects the code.
    pub fn load(&self, code: &[u8]) -> Result<()> {
        self.enter()?;
        // PTX ends in a zero byte; machine code has its length inside.
        let code = [code, b"\0"].concat();
        // SAFETY: the driver copies the image, which is complete.
        let module = unsafe { result::module::load_data(code.as_ptr().cast::<c_void>()) };
        let module = module.map_err(|error| Error::new(Errno::INVAL, error.to_string()))?;
        self.functions.lock().extend(functions_of(module)?);
        Ok(())
    }

    fn event(&self, has_time: bool) -> Result<sys::CUevent> {
        let flags = if has_time {
            sys::CUevent_flags::CU_EVENT_DEFAULT
        } else {
            sys::CUevent_flags::CU_EVENT_DISABLE_TIMING
        };
        result::event::create(flags).map_err(failed)
    }

    fn record(&self, event: sys::CUevent) -> Result<()> {
        // SAFETY: event and stream exist.
        unsafe { result::event::record(event, self.stream) }.map_err(failed)
    }

    /// Allocates pinned memory, which the device sees at the same address.
    fn pin(&self, len_bytes: usize) -> Result<Pinned> {
        self.enter()?;
        // SAFETY: no requirement; the memory is freed by `unpin`.
        let memory = unsafe { result::malloc_host(len_bytes, sys::CU_MEMHOSTALLOC_PORTABLE) };
        let memory = memory.map_err(|error| match error.0 {
            sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY => {
                Error::new(Errno::NOMEM, "no pinned memory").at("CUDA")
            }
            _ => failed(error),
        })?;
        let memory = NonNull::new(memory.cast::<u8>()).ok_or(Errno::NOMEM)?;
        // SAFETY: the driver allocated this many bytes; they get a value before they are read.
        unsafe { memory.write_bytes(0, len_bytes) };
        let copied = self.event(false).inspect_err(|_| {
            // SAFETY: allocated above, and not used after this.
            let _ = unsafe { result::free_host(memory.as_ptr().cast::<c_void>()) };
        })?;
        Ok(Pinned {
            memory,
            len_bytes,
            copied,
        })
    }

    /// Frees pinned memory, after the last copy from it.
    fn unpin(&self, pinned: Pinned) {
        if self.enter().is_err() || pinned.wait().is_err() {
            // A failed context has lost its memory; the process keeps the address.
            return;
        }
        // SAFETY: `pin` allocated it, and nothing uses it any more.
        let _ = unsafe { result::free_host(pinned.memory.as_ptr().cast::<c_void>()) };
        // SAFETY: `pin` made the event.
        let _ = unsafe { result::event::destroy(pinned.copied) };
    }

    /// Frees a staging buffer whose copies have ended.
    fn destroy(&self, StagingBuffer { pinned, stream }: StagingBuffer) {
        self.unpin(pinned);
        // SAFETY: the copies have ended, and the stream is not used after this.
        let _ = unsafe { result::stream::destroy(stream) };
    }

    /// Calls `work` with a pinned buffer that no copy uses.
    fn bounce<T>(&self, work: impl FnOnce(&mut Pinned) -> Result<T>) -> Result<T> {
        // The one that was used least recently, unless the device still copies from it.
        let kept = {
            let mut bounces = self.bounces.lock();
            let is_full = bounces.len() >= BOUNCES_MAX;
            let is_usable = bounces
                .first()
                .is_some_and(|pinned| is_full || pinned.is_idle());
            is_usable.then(|| bounces.remove(0))
        };
        let mut pinned = kept.map_or_else(|| self.pin(BOUNCE_BYTES * 2), Ok)?;
        pinned.wait()?;
        let done = work(&mut pinned);
        let mut bounces = self.bounces.lock();
        if bounces.len() < BOUNCES_MAX {
            bounces.push(pinned);
        } else {
            drop(bounces);
            self.unpin(pinned);
        }
        done
    }

    /// Copies between a pinned buffer and device addresses, each with an offset in the buffer and a
    /// length; few parts one by one, many by a kernel. The second half of the buffer carries the
    /// list for the kernel.
    fn move_parts(
        &self,
        pinned: &mut Pinned,
        parts: &[(u64, usize, usize)],
        is_read: bool,
    ) -> Result<()> {
        let base = pinned.memory.as_ptr() as u64;
        if parts.len() >= GATHER_PARTS_MIN && self.no_kernels.is_none() {
            let mut list = Vec::new();
            for &(address, at, len) in parts {
                for start in (0..len).step_by(SEGMENT_BYTES) {
                    let count = (len - start).min(SEGMENT_BYTES) as u64;
                    let device = address + start as u64;
                    let host = base + (at + start) as u64;
                    let (to, from) = if is_read {
                        (host, device)
                    } else {
                        (device, host)
                    };
                    list.extend([to, from, count].iter().flat_map(|word| word.to_ne_bytes()));
                }
            }
            if list.len() <= BOUNCE_BYTES {
                pinned.bytes()[BOUNCE_BYTES..][..list.len()].copy_from_slice(&list);
                let count = (list.len() / 24) as u64;
                let blocks = count.div_ceil(u64::from(GATHER_LANES / 32)).min(512) as u32;
                let arguments = [base + BOUNCE_BYTES as u64, count];
                return self.start("folio_copy_parts", blocks, GATHER_LANES, &arguments);
            }
        }
        for &(address, at, len) in parts {
            let buf = &mut pinned.bytes()[at..at + len];
            let copied = if is_read {
                // SAFETY: the buffer is pinned and not used before the stream is idle; frames are
                // allocated until later calls on the same stream.
                unsafe { result::memcpy_dtoh_async(buf, address, self.stream) }
            } else {
                // SAFETY: as above; the next user of the buffer waits for `copied`.
                unsafe { result::memcpy_htod_async(address, &*buf, self.stream) }
            };
            copied.map_err(failed)?;
        }
        Ok(())
    }
}

impl Pinned {
    fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: the memory was allocated with this length and filled; the value is borrowed
        // exclusively, and its owner waited for the device's copies.
        unsafe { std::slice::from_raw_parts_mut(self.memory.as_ptr(), self.len_bytes) }
    }

    fn is_idle(&self) -> bool {
        // SAFETY: as in `wait`.
        unsafe { result::event::query(self.copied) }.is_ok()
    }

    fn wait(&self) -> Result<()> {
        // SAFETY: the event exists as long as the value; one that was never recorded has happened.
        unsafe { result::event::synchronize(self.copied) }.map_err(failed)
    }
}

impl Drop for CudaDevice {
    fn drop(&mut self) {
        let _ = self.enter().and_then(|()| self.wait());
        let bounces = std::mem::take(self.bounces.get_mut());
        bounces.into_iter().for_each(|pinned| self.unpin(pinned));
        let stagings = std::mem::take(self.stagings.get_mut());
        stagings
            .into_iter()
            .for_each(|staging| self.destroy(staging));
        // SAFETY: the stream is idle, and not used after this.
        let _ = unsafe { result::stream::destroy(self.stream) };
        // SAFETY: retained by `open`.
        let _ = unsafe { result::primary_ctx::release(self.ordinal) };
    }
}

/// Splits requests into groups of at most a bounce buffer; calls `take` with the parts of each:
/// request, offset in it, offset in the buffer, length.
fn batches(
    lens: impl Iterator<Item = usize>,
    mut take: impl FnMut(&[(usize, usize, usize, usize)]) -> Result<()>,
) -> Result<()> {
    let mut batch = Vec::new();
    let mut filled = 0;
    for (request, len) in lens.enumerate() {
        let mut done = 0;
        while done < len {
            if filled == BOUNCE_BYTES {
                take(&batch)?;
                batch.clear();
                filled = 0;
            }
            let count = (len - done).min(BOUNCE_BYTES - filled);
            batch.push((request, done, filled, count));
            done += count;
            filled += count;
        }
    }
    if batch.is_empty() {
        return Ok(());
    }
    take(&batch)
}

impl FrameMemory for CudaDevice {
    fn len_bytes(&self) -> Result<u64> {
        self.enter()?;
        let (free, _) = result::mem_get_info().map_err(failed)?;
        Ok(free as u64)
    }

    fn allocate(&self, len_bytes: u64) -> Result<u64> {
        self.enter()?;
        // SAFETY: the content is undefined until it is written, as the trait says.
        unsafe { result::malloc_sync(len_bytes as usize) }.map_err(failed)
    }

    fn release(&self, address: u64) {
        // The calls before have ended once the stream is idle; a failed context frees nothing.
        if self.enter().and_then(|()| self.wait()).is_ok() {
            // SAFETY: `allocate` returned the address, and the caller does not use it any more.
            let _ = unsafe { result::free_sync(address) };
        }
    }

    fn read(&self, parts: &mut [FrameRead<'_>]) -> Result<()> {
        self.enter()?;
        let lens: Vec<_> = parts.iter().map(|part| part.buf.len()).collect();
        batches(lens.into_iter(), |batch| {
            self.bounce(|pinned| {
                let moves = batch.iter().map(|&(request, start, at, len)| {
                    (parts[request].address + start as u64, at, len)
                });
                let moved = self.move_parts(pinned, &moves.collect::<Vec<_>>(), true);
                self.wait()?;
                moved?;
                for &(request, start, at, len) in batch {
                    parts[request].buf[start..start + len]
                        .copy_from_slice(&pinned.bytes()[at..at + len]);
                }
                Ok(())
            })
        })
    }

    fn write(&self, parts: &[FrameWrite<'_>]) -> Result<()> {
        self.enter()?;
        let lens = parts.iter().map(|part| part.bytes.len());
        batches(lens, |batch| {
            self.bounce(|pinned| {
                let mut moves = Vec::new();
                for &(request, start, at, len) in batch {
                    let part = &parts[request];
                    pinned.bytes()[at..at + len].copy_from_slice(&part.bytes[start..start + len]);
                    moves.push((part.address + start as u64, at, len));
                }
                let moved = self.move_parts(pinned, &moves, false);
                self.record(pinned.copied)?;
                moved
            })
        })
    }

    fn zero(&self, runs: &[(u64, u64)]) -> Result<()> {
        self.enter()?;
        for &(address, len) in runs {
            // SAFETY: the caller has the frames of these addresses.
            unsafe { result::memset_d8_async(address, 0, len as usize, self.stream) }
                .map_err(failed)?;
        }
        Ok(())
    }
}

impl Device for CudaDevice {
    fn name(&self) -> String {
        let name = result::device::get_name(self.ordinal);
        name.unwrap_or_else(|error| error.to_string())
    }

    fn start(&self, kernel: &str, blocks: u32, lanes: u32, arguments: &[u64]) -> Result<()> {
        self.enter()?;
        let name = CString::new(kernel).map_err(|_| Errno::INVAL)?;
        let function = self.functions.lock().get(&name).cloned().ok_or_else(|| {
            let reason = self.no_kernels.as_deref().unwrap_or("not loaded");
            Error::new(Errno::NOENT, format!("kernel {kernel}: {reason}"))
        })?;
        let parameters = &function.parameters_bytes;
        if parameters.len() != arguments.len() || parameters.iter().any(|size| *size > 8) {
            let counts = format!("{} arguments for {parameters:?}", arguments.len());
            let reason = format!("kernel {kernel}: {counts} bytes of parameters");
            return Err(Error::new(Errno::INVAL, reason));
        }
        let mut words = arguments.to_vec();
        let pointers = words.iter_mut().map(|word| (&raw mut *word).cast());
        let mut pointers: Vec<*mut c_void> = pointers.collect();
        // SAFETY: the function is that of a loaded module, and the driver copies the arguments: one
        // for each parameter, none of which is longer than a word. What a kernel does with
        // addresses is its author's matter, as in any call of foreign code: a wrong one fails the
        // context, which later calls report.
        unsafe {
            result::launch_kernel(
                function.handle as sys::CUfunction,
                (blocks, 1, 1),
                (lanes, 1, 1),
                0,
                self.stream,
                &mut pointers,
            )
        }
        .map_err(failed)
    }

    fn wait(&self) -> Result<()> {
        // SAFETY: the stream exists as long as `self`.
        unsafe { result::stream::synchronize(self.stream) }.map_err(failed)
    }

    fn time(&self, work: &mut dyn FnMut() -> Result<()>) -> Result<f64> {
        self.enter()?;
        let [start, end] = [self.event(true)?, self.event(true)?];
        let timed = self.record(start).and_then(|()| {
            work()?;
            self.record(end)?;
            self.wait()?;
            // SAFETY: both events were recorded and have happened.
            unsafe { result::event::elapsed(start, end) }.map_err(failed)
        });
        for event in [start, end] {
            // SAFETY: made above, and not used after this.
            unsafe { result::event::destroy(event) }.map_err(failed)?;
        }
        Ok(f64::from(timed?) / 1e3)
    }

    fn copy(&self, to: u64, from: u64, len_bytes: u64) -> Result<()> {
        self.enter()?;
        // SAFETY: the caller has the memory at both addresses.
        unsafe { result::memcpy_dtod_async(to, from, len_bytes as usize, self.stream) }
            .map_err(failed)
    }

    fn copy_in(&self, to: u64, bytes: &[u8]) -> Result<()> {
        self.enter()?;
        // SAFETY: the bytes are borrowed until the stream is idle; the caller has the memory at
        // `to`.
        let copied = unsafe { result::memcpy_htod_async(to, bytes, self.stream) };
        self.wait()?;
        copied.map_err(failed)
    }

    fn staging(&self, len_bytes: usize) -> Result<Box<dyn Staging + '_>> {
        // Frames that were zeroed before are written on another stream.
        self.enter()?;
        self.wait()?;
        let kept = {
            let mut stagings = self.stagings.lock();
            let mut kept = stagings.iter();
            let place = kept.position(|staging| staging.pinned.len_bytes == len_bytes);
            place.map(|place| stagings.swap_remove(place))
        };
        let buffer = match kept {
            Some(buffer) => buffer,
            None => {
                let pinned = self.pin(len_bytes)?;
                match new_stream() {
                    Ok(stream) => StagingBuffer { pinned, stream },
                    Err(error) => {
                        self.unpin(pinned);
                        return Err(error);
                    }
                }
            }
        };
        Ok(Box::new(CudaStaging {
            device: self,
            buffer: Some(buffer),
        }))
    }
}

/// A pinned buffer with a stream of its own.
struct StagingBuffer {
    pinned: Pinned,
    stream: sys::CUstream,
}

// SAFETY: the driver's handle may be used by any thread that made the context current.
unsafe impl Send for StagingBuffer {}

/// A staging buffer in use; the device keeps some of them afterwards, as pinning is slow.
struct CudaStaging<'a> {
    device: &'a CudaDevice,
    /// `None` only while the value is dropped.
    buffer: Option<StagingBuffer>,
}

impl CudaStaging<'_> {
    fn buffer(&mut self) -> Result<&mut StagingBuffer> {
        self.device.enter()?;
        Ok(self.buffer.as_mut().ok_or(Errno::IO)?)
    }
}

impl Staging for CudaStaging<'_> {
    fn bytes(&mut self) -> Result<&mut [u8]> {
        let StagingBuffer { pinned, .. } = self.buffer()?;
        pinned.wait()?;
        Ok(pinned.bytes())
    }

    fn submit(&mut self, parts: &[(u64, Range<usize>)]) -> Result<()> {
        let StagingBuffer { pinned, stream } = self.buffer()?;
        for (address, range) in parts {
            let bytes = &pinned.bytes()[range.clone()];
            // SAFETY: the buffer is pinned, and not used before the event below has happened.
            unsafe { result::memcpy_htod_async(*address, bytes, *stream) }.map_err(failed)?;
        }
        // SAFETY: event and stream exist.
        unsafe { result::event::record(pinned.copied, *stream) }.map_err(failed)
    }
}

impl Drop for CudaStaging<'_> {
    fn drop(&mut self) {
        let Some(buffer) = self.buffer.take() else {
            return;
        };
        // A submit that failed may have left copies without an event.
        let is_idle = self.device.enter().is_ok() && {
            // SAFETY: the stream exists.
            unsafe { result::stream::synchronize(buffer.stream) }.is_ok()
        };
        let mut stagings = self.device.stagings.lock();
        if is_idle && stagings.len() < STAGINGS_MAX {
            stagings.push(buffer);
        } else {
            drop(stagings);
            self.device.destroy(buffer);
        }
    }
}
