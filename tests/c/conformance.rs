//! conformance.c on libfolio and on the kernel: every result and errno is equal.

use crate::support::require::find;
use crate::support::requires;
use crate::support::tools::{command, fsck, run, succeed, text};
use crate::toolchain::{Build, Program, sources};
use std::path::Path;

/// Fewer lines than this would mean that the program ended early.
const LINES_MIN: usize = 300;

#[test]
fn calls_have_the_results_of_the_kernel() {
    requires!(
        root,
        loop_devices,
        tool("cc"),
        tool("e2fsck"),
        tool("mke2fs")
    );
    let folder = tempfile::tempdir().unwrap();
    let (ours, theirs) = (folder.path().join("a.img"), folder.path().join("b.img"));
    // One file system, twice: block size, inode count and hash seed are the same.
    run(
        "mke2fs",
        ["-q", "-t", "ext4", ours.to_str().unwrap(), "64M"],
    );
    std::fs::copy(&ours, &theirs).unwrap();
    let kernel = on_the_kernel(folder.path(), &theirs);
    let program = Program::new(&sources().join("conformance.c"), Build::C);
    let library = program.run([&ours]);
    assert!(kernel.lines().count() >= LINES_MIN, "{kernel}");
    let differences: Vec<_> = kernel
        .lines()
        .zip(library.lines())
        .filter(|(kernel, library)| kernel != library)
        .map(|(kernel, library)| format!("kernel:   {kernel}\nlibfolio: {library}\n"))
        .collect();
    assert!(differences.is_empty(), "{}", differences.concat());
    assert_eq!(kernel.lines().count(), library.lines().count());
    fsck(&ours);
    fsck(&theirs);
}

/// Runs the program on a mount of the kernel, in a mount namespace that ends with it.
fn on_the_kernel(folder: &Path, image: &Path) -> String {
    let (program, mount) = (folder.join("kernel"), folder.join("mount"));
    let source = sources().join("conformance.c");
    // The compiler warns of the wrong arguments that the program passes on purpose.
    let mut cc = command("cc");
    cc.args(["-w", "-DKERNEL"])
        .arg(source)
        .arg("-o")
        .arg(&program);
    succeed(&mut cc);
    std::fs::create_dir(&mount).unwrap();
    let unshare = find("unshare").unwrap_or_else(|| "unshare".into());
    let mut run = command("sh");
    run.args([
        "-c",
        "\"$0\" --mount sh -c 'mount -o loop \"$1\" \"$2\" && \"$0\" \"$2\"' \"$@\"",
    ])
    .arg(unshare)
    .args([&program, image, &mount]);
    text(&succeed(&mut run))
}
