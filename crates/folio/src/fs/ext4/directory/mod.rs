//! Directories: names in blocks, in hash trees and in the inode itself.

pub(super) mod block;
mod blocks;
pub(super) mod hash;
pub(super) mod htree;
pub(super) mod inline_data;
pub(super) mod names;

#[cfg(test)]
mod tests;
