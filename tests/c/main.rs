//! libfolio from C, C++ and Go.
//!
//! ```text
//!   library.rs   the library, which cargo builds as an example of the crate folio-c
//!   toolchain.rs compilers, AddressSanitizer, valgrind
//!     header.rs       include/folio.h against cbindgen
//!     abi.rs          include/folio.h and the library against abi/libfolio.abi
//!     conformance.rs  conformance.c on libfolio and on the kernel, with equal results
//!     programs.rs     calls.c, threads.c, kernels.c, fork.c: what the system calls do not have
//!     examples.rs     the examples of the crate, in C and Go, and the programs of the manual
//! ```

mod abi;
mod conformance;
mod examples;
mod header;
mod programs;
mod toolchain;

#[macro_use]
#[path = "../support"]
mod support {
    #![allow(dead_code, unreachable_pub)]
    #[macro_use]
    pub mod require;
    pub mod file_systems;
    pub mod tools;
    pub(crate) use require::requires;
}
