//! The seam between a program's runtime and the server: what both sides compile.

pub(crate) mod calls;
#[expect(dead_code, reason = "the loader has its own part")]
pub(crate) mod layout;
