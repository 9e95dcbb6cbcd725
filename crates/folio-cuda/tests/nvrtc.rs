//! The device code, compiled by NVRTC: needs no GPU.
#![cfg(feature = "cuda")]

mod skip;

use folio::Errno;
use folio_cuda::{KERNELS, Target, compile};

/// Compiles the kernels; `None` after a report of the skip if NVRTC is not installed.
fn compiled(text: &str, target: Target) -> Option<folio::Result<Vec<u8>>> {
    let compiled = compile(text, target);
    match &compiled {
        Err(error) if error.errno() == Errno::NOPKG => {
            skip::report("nvrtc", &error.to_string());
            None
        }
        _ => Some(compiled),
    }
}

#[test]
fn kernels_compile_to_ptx() {
    let Some(ptx) = compiled(KERNELS, Target::Ptx(90)) else {
        return;
    };
    let ptx = String::from_utf8(ptx.unwrap()).unwrap();
    for kernel in [
        "folio_copy_parts",
        "folio_operations",
        "folio_read_block",
        "folio_gather",
    ] {
        assert!(ptx.contains(&format!(".entry {kernel}(")), "{kernel}");
    }
    // Copies of pages are vectors of 16 bytes; of 8, 4 or 1 where the sides are aligned apart.
    let copy = &ptx[ptx.find(".entry folio_copy_parts(").unwrap()..];
    let copy = &copy[..copy.find("\n}").unwrap()];
    for store in ["st.v4.u32", "st.u64", "st.u32", "st.u8"] {
        let global = store.replacen("st.", "st.global.", 1);
        assert!(
            copy.contains(store) || copy.contains(&global),
            "{store}: {copy}"
        );
    }
}

#[test]
fn kernels_compile_to_sm_90_code() {
    let Some(code) = compiled(KERNELS, Target::Cubin(90)) else {
        return;
    };
    let code = code.unwrap();
    // An ELF file for CUDA: e_machine is 190.
    assert_eq!(&code[..4], b"\x7fELF");
    assert_eq!(&code[18..20], [190, 0]);
}

#[test]
fn kernel_with_an_error_reports_its_line() {
    let Some(compiled) = compiled("__global__ void k() { nonsense; }", Target::Ptx(90)) else {
        return;
    };
    let error = compiled.unwrap_err();
    assert_eq!(error.errno(), Errno::INVAL);
    assert!(error.to_string().contains("nonsense"), "{error}");
}

#[test]
fn open_without_a_gpu_names_the_reason() {
    match folio_cuda::open(0) {
        Ok(_) => skip::report("nvrtc", "a GPU is here"),
        Err(error) => {
            assert_eq!(error.errno(), Errno::NODEV);
            assert!(error.to_string().starts_with("no CUDA "), "{error}");
        }
    }
}
