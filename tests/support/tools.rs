//! The programs that judge an image: e2fsck, qemu-img and friends.

use super::require::find;
use std::ffi::OsStr;
use std::path::Path;
use std::process::{Command, Output, Stdio};

/// A command for `program`, in the C locale, found as [`super::require::find`] does.
pub fn command(program: &str) -> Command {
    let mut command = Command::new(find(program).unwrap_or_else(|| program.into()));
    command.env("LC_ALL", "C").stdin(Stdio::null());
    command
}

/// Runs a command that has to succeed; its output otherwise is the panic's message.
#[track_caller]
pub fn succeed(command: &mut Command) -> Output {
    let output = command
        .output()
        .unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(
        output.status.success(),
        "{command:?}: {}\n{}",
        output.status,
        text(&output)
    );
    output
}

/// Standard output and error of a command.
pub fn text(output: &Output) -> String {
    format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    )
}

/// Runs `program` with `arguments`; it has to succeed.
#[track_caller]
pub fn run<A: AsRef<OsStr>>(program: &str, arguments: impl IntoIterator<Item = A>) -> String {
    text(&succeed(command(program).args(arguments)))
}

/// `e2fsck -fn` on a raw image finds nothing to mend and nothing to say.
#[track_caller]
pub fn fsck(image: &Path) {
    let output = succeed(command("e2fsck").arg("-fn").arg(image));
    let said = text(&output);
    // Status 0 with a remark such as "Fix? no" would be a defect that e2fsck calls harmless.
    assert!(
        !said.contains("? no"),
        "e2fsck -fn {}:\n{said}",
        image.display()
    );
}

/// `qemu-img check` finds neither errors nor leaks.
#[track_caller]
pub fn qemu_check(image: &Path) {
    let said = run("qemu-img", [OsStr::new("check"), image.as_os_str()]);
    assert!(
        said.contains("No errors were found"),
        "qemu-img check {}:\n{said}",
        image.display()
    );
}

/// The image as a raw file at `raw`, made by qemu-img.
#[track_caller]
pub fn to_raw(image: &Path, raw: &Path) {
    let arguments = ["convert", "-O", "raw"].map(OsStr::new);
    run(
        "qemu-img",
        arguments
            .into_iter()
            .chain([image.as_os_str(), raw.as_os_str()]),
    );
}

/// The image as a qcow2 file at `qcow2`, made by qemu-img.
#[track_caller]
pub fn to_qcow2(image: &Path, qcow2: &Path) {
    let arguments = ["convert", "-O", "qcow2"].map(OsStr::new);
    run(
        "qemu-img",
        arguments
            .into_iter()
            .chain([image.as_os_str(), qcow2.as_os_str()]),
    );
}

/// A new ext4 in a new raw file of `size` (as mke2fs writes sizes), made by mke2fs.
#[track_caller]
pub fn mke2fs(image: &Path, size: &str, options: &[&str]) {
    let fixed = ["-q", "-F", "-t", "ext4"];
    let arguments = fixed.iter().chain(options).map(OsStr::new);
    run(
        "mke2fs",
        arguments.chain([image.as_os_str(), OsStr::new(size)]),
    );
}
