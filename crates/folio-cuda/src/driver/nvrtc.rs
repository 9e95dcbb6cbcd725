//! Kernels compiled at run time by NVRTC, NVIDIA's compiler library. It needs no GPU and no driver.

#![expect(unsafe_code, reason = "calls of NVRTC")]

use super::library::Library;
use crate::source::HEADER;
use cudarc::nvrtc::{result, sys};
use folio::{Errno, Error, Result};
use std::ffi::{CString, c_char};

/// What to compile for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target {
    /// PTX of this compute capability, e.g. 90, which drivers translate.
    Ptx(u32),
    /// Machine code of this compute capability.
    Cubin(u32),
}

/// The names that cudarc tries; it panics if none of them can be opened.
const LIBRARIES: [&std::ffi::CStr; 3] = [c"libnvrtc.so", c"libnvrtc.so.13", c"libnvrtc.so.12"];

/// Returns why NVRTC cannot be used.
fn check() -> Result<()> {
    let mut reason = String::new();
    for name in LIBRARIES {
        match Library::open(name) {
            Ok(_) => return Ok(()),
            Err(error) => reason = error,
        }
    }
    Err(Error::new(
        Errno::NOPKG,
        format!("no NVRTC: {reason}; install it, e.g. the Python package nvidia-cuda-nvrtc"),
    ))
}

/// Compiles CUDA C++ that follows [`HEADER`]; returns PTX or machine code for
/// [`crate::CudaDevice::load`].
///
/// # Errors
/// ENOPKG if NVRTC is not installed, EINVAL with the compiler's messages if the text is wrong.
pub fn compile(text: &str, target: Target) -> Result<Vec<u8>> {
    check()?;
    let source = CString::new([HEADER, text].concat()).map_err(|_| Errno::INVAL)?;
    let program = result::create_program(&source, Some(c"kernels.cu")).map_err(failed)?;
    let compiled = compile_program(program, target);
    // SAFETY: made above, and not used after this.
    unsafe { result::destroy_program(program) }.map_err(failed)?;
    compiled
}

fn compile_program(program: sys::nvrtcProgram, target: Target) -> Result<Vec<u8>> {
    let architecture = match target {
        Target::Ptx(capability) => format!("--gpu-architecture=compute_{capability}"),
        Target::Cubin(capability) => format!("--gpu-architecture=sm_{capability}"),
    };
    let options = [architecture, "--std=c++17".to_owned()];
    // SAFETY: the caller made the program and destroys it later.
    let compiled = unsafe { result::compile_program(program, &options) };
    if compiled.is_err() {
        // SAFETY: as above.
        let log = unsafe { result::get_program_log(program) }.map_err(failed)?;
        let log: Vec<u8> = log.iter().map(|byte| *byte as u8).collect();
        let log = String::from_utf8_lossy(&log);
        return Err(Error::new(Errno::INVAL, log.trim_end_matches('\0').to_owned()).at("NVRTC"));
    }
    match target {
        Target::Ptx(_) => {
            // SAFETY: as above; the program is compiled.
            let text = unsafe { result::get_ptx(program) }.map_err(failed)?;
            Ok(text.iter().map(|byte| *byte as u8).collect())
        }
        Target::Cubin(_) => {
            let mut len = 0;
            // SAFETY: as above; the length is written to a local variable.
            unsafe { sys::nvrtcGetCUBINSize(program, &raw mut len) }
                .result()
                .map_err(failed)?;
            let mut code = vec![0_u8; len];
            let to = code.as_mut_ptr().cast::<c_char>();
            // SAFETY: as above; the buffer has the length that NVRTC returned.
            unsafe { sys::nvrtcGetCUBIN(program, to) }
                .result()
                .map_err(failed)?;
            Ok(code)
        }
    }
}

fn failed(error: result::NvrtcError) -> Error {
    Error::new(Errno::IO, error.to_string()).at("NVRTC")
}
