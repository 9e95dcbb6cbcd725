//! libfolio from C, C++ and Go.

mod header;
