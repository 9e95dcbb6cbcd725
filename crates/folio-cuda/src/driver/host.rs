//! A device in the host's memory, with the device code compiled as C++ for the host.

#![expect(unsafe_code, reason = "calls code that was compiled at run time")]

use super::library::Library;
use crate::device::{Device, Staging};
use crate::source::{HEADER, KERNELS};
use folio::ramfs::{FrameMemory, FrameRead, FrameWrite, HostFrames};
use folio::{Errno, Error, Result};
use parking_lot::Mutex;
use std::ffi::{CString, c_char};
use std::io::Write;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};

/// `folio_host_launch` of device/kernels.cu.
type LaunchFunction = unsafe extern "C" fn(*const c_char, u32, u32, *const u64, u64) -> i32;

/// A device in the host's memory, which runs lanes one after the other: for tests of the device
/// code and of programs on machines without a GPU. It is slow.
pub struct HostDevice {
    frames: HostFrames,
    /// Keeps the code in memory.
    _library: Library,
    launch: LaunchFunction,
    /// Lanes of two launches would share the variables of the shim.
    running: Mutex<()>,
}

impl HostDevice {
    /// Compiles the kernels with the command `c++` and returns a device of `len_bytes` bytes.
    ///
    /// # Errors
    /// ENOEXEC if the compiler is missing or fails.
    pub fn new(len_bytes: u64) -> Result<Self> {
        let path = compile().map_err(|reason| Error::new(Errno::NOEXEC, reason).at("c++"))?;
        let name = CString::new(path.as_os_str().as_bytes()).map_err(|_| Errno::INVAL)?;
        let opened = Library::open(&name);
        // The mapping of the library stays.
        let _ = std::fs::remove_file(&path);
        let library = opened.map_err(|reason| Error::new(Errno::NOEXEC, reason))?;
        let launch = library
            .function(c"folio_host_launch")
            .ok_or_else(|| Error::new(Errno::NOEXEC, "no folio_host_launch in the kernels"))?;
        // SAFETY: device/kernels.cu defines the function with this signature.
        let launch =
            unsafe { std::mem::transmute::<*mut libc::c_void, LaunchFunction>(launch.as_ptr()) };
        Ok(Self {
            frames: HostFrames::new(len_bytes),
            _library: library,
            launch,
            running: Mutex::new(()),
        })
    }

    /// Returns how many bytes are allocated.
    pub fn used_bytes(&self) -> u64 {
        self.frames.used_bytes()
    }
}

/// Compiles the kernels; returns the path of a shared library.
fn compile() -> std::result::Result<PathBuf, String> {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let name = format!("folio-device-{}-{count}.so", std::process::id());
    let path = std::env::temp_dir().join(name);
    compile_to(&path).inspect_err(|_| drop(std::fs::remove_file(&path)))?;
    Ok(path)
}

fn compile_to(path: &Path) -> std::result::Result<(), String> {
    let options = ["-x", "c++", "-std=c++17", "-O1", "-shared", "-fPIC"];
    let strict = ["-Wall", "-Wextra", "-Werror"];
    let mut compiler = Command::new("c++")
        .args(options)
        .args(strict)
        .arg("-o")
        .arg(path)
        .arg("-")
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| error.to_string())?;
    let text = [HEADER, KERNELS].concat();
    let written = compiler
        .stdin
        .take()
        .map(|mut input| input.write_all(text.as_bytes()));
    let output = compiler
        .wait_with_output()
        .map_err(|error| error.to_string())?;
    match (output.status.success(), written) {
        (true, Some(Ok(()))) => Ok(()),
        _ => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
    }
}

impl FrameMemory for HostDevice {
    fn len_bytes(&self) -> Result<u64> {
        self.frames.len_bytes()
    }

    fn allocate(&self, len_bytes: u64) -> Result<u64> {
        self.frames.allocate(len_bytes)
    }

    fn release(&self, address: u64) {
        self.frames.release(address);
    }

    fn read(&self, parts: &mut [FrameRead<'_>]) -> Result<()> {
        self.frames.read(parts)
    }

    fn write(&self, parts: &[FrameWrite<'_>]) -> Result<()> {
        self.frames.write(parts)
    }

    fn zero(&self, runs: &[(u64, u64)]) -> Result<()> {
        self.frames.zero(runs)
    }
}

impl Device for HostDevice {
    fn name(&self) -> String {
        "this processor".to_owned()
    }

    fn start(&self, kernel: &str, blocks: u32, lanes: u32, arguments: &[u64]) -> Result<()> {
        let name = CString::new(kernel).map_err(|_| Errno::INVAL)?;
        let (words, count) = (arguments.as_ptr(), arguments.len());
        let _running = self.running.lock();
        // SAFETY: the function compares the number of words with that of the kernel. The kernels
        // follow the addresses among these and in tables, which the caller has from this device's
        // allocations; frames are cells that may change while other threads read them.
        let errno = unsafe { (self.launch)(name.as_ptr(), blocks, lanes, words, count as u64) };
        match errno {
            0 => Ok(()),
            libc::ENOENT => Err(Error::new(Errno::NOENT, format!("no kernel {kernel}"))),
            _ => {
                let reason = format!("kernel {kernel} does not have {count} parameters");
                Err(Error::new(Errno::INVAL, reason))
            }
        }
    }

    fn wait(&self) -> Result<()> {
        Ok(())
    }

    fn copy(&self, to: u64, from: u64, len_bytes: u64) -> Result<()> {
        let mut bytes = vec![0; len_bytes as usize];
        let buf = &mut bytes[..];
        self.read(&mut [FrameRead { address: from, buf }])?;
        let bytes = &bytes[..];
        self.write(&[FrameWrite { address: to, bytes }])
    }

    fn copy_in(&self, to: u64, bytes: &[u8]) -> Result<()> {
        self.write(&[FrameWrite { address: to, bytes }])
    }

    fn staging(&self, len_bytes: usize) -> Result<Box<dyn Staging + '_>> {
        let bytes = vec![0; len_bytes];
        Ok(Box::new(HostStaging {
            device: self,
            bytes,
        }))
    }
}

struct HostStaging<'a> {
    device: &'a HostDevice,
    bytes: Vec<u8>,
}

impl Staging for HostStaging<'_> {
    fn bytes(&mut self) -> Result<&mut [u8]> {
        Ok(&mut self.bytes)
    }

    fn submit(&mut self, parts: &[(u64, Range<usize>)]) -> Result<()> {
        let writes: Vec<_> = parts
            .iter()
            .map(|(address, range)| FrameWrite {
                address: *address,
                bytes: &self.bytes[range.clone()],
            })
            .collect();
        self.device.write(&writes)
    }
}
