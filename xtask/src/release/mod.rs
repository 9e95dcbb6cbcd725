//! The artifacts of a release, in target/release-artifacts.
//!
//! ```text
//!   build.rs      static programs; programs and libfolio for Debian; the wheel
//!     v
//!   debian.rs     .deb packages           notices.rs   licenses of all crates, and the SBOM
//!     v
//!   SHA256SUMS
//!     v
//!   trial.rs      each artifact in a root of its own
//!
//!   recipes.rs    tests: the recipes of contrib install what the .deb packages do
//! ```
//!
//! Builds name no folder of this machine, and times are those of the last commit
//! (SOURCE_DATE_EPOCH), so that another machine with the same toolchain makes the same bytes.

mod build;
mod debian;
mod notices;
#[cfg(test)]
mod recipes;
mod trial;

pub(crate) use build::FEATURES;
use build::Release;
use std::path::Path;

/// Makes all artifacts, and tries each.
///
/// # Errors
///
/// The first step that fails.
pub(crate) fn main(root: &Path) -> Result<(), String> {
    let release = Release::begin(root)?;
    release.make_static()?;
    let built = release.build_for_debian()?;
    debian::make(&release, &built)?;
    release.make_wheel()?;
    notices::write(&release)?;
    release.make_sums()?;
    trial::run_all(&release)
}
