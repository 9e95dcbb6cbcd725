//! Images of all tested formats, and the copies into and out of them.

use crate::support::tools::{command, fsck, mke2fs, qemu_check, succeed, text, to_qcow2, to_raw};
use crate::support::{Manifest, Mounted, Scope};
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Generated trees: holes are compared.
pub(crate) const EXACT: Scope = Scope {
    holes: true,
    below_root: false,
};
/// Trees of the machine: holes depend on the host and are not compared.
pub(crate) const LOOSE: Scope = Scope {
    holes: false,
    below_root: false,
};

/// The container of a file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Format {
    Raw,
    Qcow2,
}

/// The program that formats the file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Maker {
    /// `folio cp --create`.
    Folio,
    /// mke2fs with these options.
    Mke2fs(&'static [&'static str]),
}

/// Upstream defaults of mke2fs 1.47; distributions omit these two features.
pub(crate) const UPSTREAM: Maker = Maker::Mke2fs(&["-O", "orphan_file,metadata_csum_seed"]);
/// Defaults of the installed mke2fs.
pub(crate) const DEFAULT: Maker = Maker::Mke2fs(&[]);
/// Blocks of 1 KiB.
pub(crate) const SMALL_BLOCKS: Maker = Maker::Mke2fs(&["-b", "1024"]);
/// Features of mke2fs in 2012: no checksums, 32-bit block numbers.
pub(crate) const OLD: Maker = Maker::Mke2fs(&["-O", "^metadata_csum,^64bit,uninit_bg"]);

/// ext2: block maps, no journal.
pub(crate) const EXT2: Maker = Maker::Mke2fs(&["-t", "ext2", "-b", "4096"]);
/// ext3: block maps and a journal, blocks of 2 KiB.
pub(crate) const EXT3: Maker = Maker::Mke2fs(&["-t", "ext3", "-b", "2048"]);

/// Returns a `folio` command.
pub(crate) fn folio<A: AsRef<OsStr>>(arguments: impl IntoIterator<Item = A>) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_folio"));
    command.args(arguments);
    command
}

/// Returns the argument `IMAGE:/path`.
pub(crate) fn at(image: &Path, path: &str) -> OsString {
    let mut argument = image.as_os_str().to_owned();
    argument.push(":");
    argument.push(path);
    argument
}

/// Runs `folio cp -a FROM TO` and asserts success without output.
#[track_caller]
pub(crate) fn folio_copy(from: impl AsRef<OsStr>, to: impl AsRef<OsStr>, create: Option<&str>) {
    let mut command = folio([
        OsStr::new("cp"),
        OsStr::new("-a"),
        from.as_ref(),
        to.as_ref(),
    ]);
    if let Some(size) = create {
        command.args(["--create", size]);
    }
    let output = succeed(&mut command);
    assert_eq!(text(&output), "", "{command:?} has unexpected output");
}

/// Copies with the kernel's calls; `to` must not exist.
#[track_caller]
pub(crate) fn kernel_copy(from: &Path, to: &Path) {
    let options = ["-a", "--sparse=auto"].map(OsStr::new);
    succeed(
        command("cp")
            .args(options)
            .args([from.as_os_str(), to.as_os_str()]),
    );
}

/// Creates an image with an empty file system, except for Folio as the maker; returns its path.
#[track_caller]
pub(crate) fn empty(folder: &Path, format: Format, maker: Maker, size: &str) -> PathBuf {
    let path = path(folder, format);
    if let Maker::Mke2fs(options) = maker {
        let raw = folder.join("empty.raw");
        mke2fs(&raw, size, options);
        match format {
            Format::Raw => std::fs::rename(&raw, &path).unwrap(),
            Format::Qcow2 => {
                to_qcow2(&raw, &path);
                std::fs::remove_file(&raw).unwrap();
            }
        }
    }
    path
}

fn path(folder: &Path, format: Format) -> PathBuf {
    folder.join(if format == Format::Raw {
        "disk.img"
    } else {
        "disk.qcow2"
    })
}

/// Asserts that e2fsck and qemu-img find nothing; calls `check` with the kernel's mount.
#[track_caller]
pub(crate) fn check_in_kernel(image: &Path, check: impl FnOnce(&Path)) {
    let is_qcow2 = image
        .extension()
        .is_some_and(|extension| extension == "qcow2");
    let raw = if is_qcow2 {
        image.with_extension("converted")
    } else {
        image.to_path_buf()
    };
    if is_qcow2 {
        qemu_check(image);
        to_raw(image, &raw);
    }
    fsck(&raw);
    let mounted = Mounted::new(&raw, "ro");
    check(&mounted.path());
    mounted.unmount();
    if is_qcow2 {
        std::fs::remove_file(raw).unwrap();
    }
}

/// Asserts that the tree at `path` of the image equals `want`, for the kernel and for Folio.
#[track_caller]
pub(crate) fn assert_holds(image: &Path, path: &str, want: &Manifest, scope: Scope, what: &str) {
    check_in_kernel(image, |mounted| {
        let got = Manifest::of(&mounted.join(path.trim_start_matches('/')), scope);
        want.assert_same(&got, &format!("{what}, in the kernel's mount"));
    });
    let back = image.with_extension("back");
    folio_copy(at(image, path), &back, None);
    want.assert_same(
        &Manifest::of(&back, scope),
        &format!("{what}, copied out by folio"),
    );
    std::fs::remove_dir_all(back).unwrap();
}
