//! The seam between a program's runtime and the server: what both sides compile.

pub(crate) mod calls;
pub(crate) mod layout;
