//! EROFS images written by Folio and read by the kernel, by fsck.erofs and by Folio.

use crate::kernel::images::{EXACT, LOOSE, at, folio, folio_copy};
use crate::kernel::trees::{self, LARGE_BLOCKS};
use crate::support::random::Random;
use crate::support::tools::{command, run, succeed};
use crate::support::{Manifest, Mounted, Scope, requires};
use std::ffi::OsStr;
use std::fs;
use std::path::Path;
use tempfile::TempDir;

/// Skips the test without the kernel's EROFS, fsck.erofs and what `requires!` is given.
macro_rules! requires_judges {
    ($($more:ident $arguments:tt)?) => {
        requires!(root, loop_devices, linux(5, 15), file_system("erofs"), tool("fsck.erofs"));
        $(requires!($more $arguments);)?
    };
}

/// Asserts that the image is the tree `want` for the kernel.
#[track_caller]
fn assert_in_kernel(image: &Path, want: &Manifest, scope: Scope, what: &str) {
    let mounted = Mounted::attempt_as("erofs", image, "ro");
    let mounted = mounted.unwrap_or_else(|said| panic!("{what}: {said}"));
    let got = Manifest::of(&mounted.path(), scope);
    want.assert_same(&got, &format!("{what}, in the kernel's mount"));
    mounted.unmount();
}

/// Asserts that fsck.erofs finds nothing, and that the image is the tree `want` for the kernel and
/// for Folio.
#[track_caller]
fn assert_holds(image: &Path, want: &Manifest, scope: Scope, what: &str) {
    run("fsck.erofs", [OsStr::new("--extract"), image.as_os_str()]);
    assert_in_kernel(image, want, scope, what);
    if !scope.holes {
        let back = image.with_extension("back");
        folio_copy(at(image, "/"), &back, None);
        let got = Manifest::of(&back, scope);
        want.assert_same(&got, &format!("{what}, copied out by folio"));
        fs::remove_dir_all(back).unwrap();
    }
}

#[test]
fn erofs_has_all_attributes_in_the_kernel() {
    requires_judges!();
    let scratch = TempDir::new().unwrap();
    let (tree, image) = (scratch.path().join("tree"), scratch.path().join("a.erofs"));
    trees::attributes(&tree, LARGE_BLOCKS);
    for name in ["one", "two"] {
        fs::write(tree.join(name), vec![7; 1 << 20]).unwrap();
    }
    folio_copy(tree.join("."), at(&image, "/"), Some("auto"));
    assert_holds(&image, &Manifest::of(&tree, EXACT), EXACT, "attributes");
    // Equal files are stored once, and holes are not stored.
    let len = fs::metadata(&image).unwrap().len();
    assert!(len < 40 << 20, "{len} bytes");
}

#[test]
fn erofs_of_each_source_equals_the_tree() {
    requires_judges!();
    let scratch = TempDir::new().unwrap();
    let path = |name: &str| scratch.path().join(name);
    let tree = path("tree");
    trees::attributes(&tree, LARGE_BLOCKS);
    // Archives have no sockets.
    for name in ["socket", "huge hole"] {
        fs::remove_file(tree.join(name)).unwrap();
    }
    let scope = Scope {
        below_root: true,
        ..LOOSE
    };
    let want = Manifest::of(&tree, scope);
    let disk = path("disk.img");
    folio_copy(tree.join("."), at(&disk, "/"), Some("1G"));
    succeed(folio(["tar", "-cf"]).args([path("root.tar"), disk.clone()]));
    let mut layout = OsStr::new("oci:").to_owned();
    layout.push(path("layout"));
    folio_copy(at(&disk, "/"), &layout, None);
    let directory = tree.into_os_string();
    let archive = path("root.tar").into_os_string();
    let sources = [
        ("directory", directory),
        ("archive", archive),
        ("container image", layout),
        ("image", at(&disk, "/")),
    ];
    for (kind, source) in sources {
        let image = path(&format!("{kind}.erofs"));
        succeed(folio(["mkfs", "--type", "erofs"]).arg(&image).arg(&source));
        assert_holds(&image, &want, scope, kind);
    }
}

#[test]
fn real_tree_in_erofs_is_as_small_as_upstreams() {
    requires_judges!(tool("mkfs.erofs"));
    let scratch = TempDir::new().unwrap();
    let (tree, image) = (scratch.path().join("tree"), scratch.path().join("a.erofs"));
    if !trees::real(&tree) {
        return;
    }
    folio_copy(tree.join("."), at(&image, "/"), Some("auto"));
    assert_holds(&image, &Manifest::of(&tree, LOOSE), LOOSE, "a real tree");
    let theirs = scratch.path().join("theirs.erofs");
    succeed(command("mkfs.erofs").arg("--quiet").args([&theirs, &tree]));
    let len = |path: &Path| fs::metadata(path).unwrap().len();
    let (ours, theirs) = (len(&image), len(&theirs));
    assert!(
        ours <= theirs / 50 * 51,
        "{ours} bytes, mkfs.erofs {theirs}"
    );
}

/// Writes files that compress well, badly, and in parts.
fn mixed_contents(folder: &Path) {
    let mut random = Random::new(3);
    let noise: Vec<u8> = (0..700_000).map(|_| random.below(256_u64) as u8).collect();
    let text: Vec<u8> = (0..60_000_u32)
        .flat_map(|number| format!("line {number}\n").into_bytes())
        .collect();
    let mixed: Vec<u8> = text
        .chunks(100_000)
        .zip(noise.chunks(100_000))
        .flat_map(|(text, noise)| [text, noise].concat())
        .collect();
    fs::create_dir(folder).unwrap();
    for len in [
        0, 1, 4095, 4096, 4097, 8193, 131_071, 131_072, 131_073, 262_144, 600_001,
    ] {
        for (name, bytes) in [("noise", &noise), ("text", &text), ("mixed", &mixed)] {
            fs::write(folder.join(format!("{name} {len}")), &bytes[..len]).unwrap();
        }
    }
}

#[test]
fn compressed_erofs_equals_its_tree_in_the_kernel() {
    requires_judges!(linux(6, 10));
    let scratch = TempDir::new().unwrap();
    let tree = scratch.path().join("tree");
    trees::attributes(&tree, LARGE_BLOCKS);
    fs::remove_file(tree.join("huge hole")).unwrap();
    mixed_contents(&tree.join("contents"));
    // A file that is mostly a hole has chunks, between compressed files.
    let sparse = fs::File::create(tree.join("contents/sparse")).unwrap();
    sparse.set_len(64 << 20).unwrap();
    let want = Manifest::of(&tree, LOOSE);
    let mut lens = Vec::new();
    for method in ["lz4", "zstd", "zstd:12"] {
        let image = scratch.path().join("root.erofs");
        let mut copy = folio(["cp", "-a", "--create", "--compress", method]);
        succeed(copy.arg(tree.join(".")).arg(at(&image, "/")));
        assert_in_kernel(&image, &want, LOOSE, method);
        let back = scratch.path().join("back");
        folio_copy(at(&image, "/"), &back, None);
        want.assert_same(&Manifest::of(&back, LOOSE), method);
        fs::remove_dir_all(back).unwrap();
        lens.push(fs::metadata(&image).unwrap().len());
        fs::remove_file(image).unwrap();
    }
    assert!(lens.is_sorted_by(|a, b| a > b), "{lens:?}");
}
