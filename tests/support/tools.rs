//! External programs that check and convert images: e2fsck, mke2fs, qemu-img.

use super::require::find;
use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

/// Returns a command for `program` in the C locale, found by [`super::require::find`].
pub fn command(program: &str) -> Command {
    let mut command = Command::new(find(program).unwrap_or_else(|| program.into()));
    command.env("LC_ALL", "C").stdin(Stdio::null());
    command
}

/// Runs a command; panics with its output unless it succeeds.
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

/// Returns standard output and standard error as text.
pub fn text(output: &Output) -> String {
    format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    )
}

/// Runs `program` with `arguments` and returns its output; panics unless it succeeds.
#[track_caller]
pub fn run<A: AsRef<OsStr>>(program: &str, arguments: impl IntoIterator<Item = A>) -> String {
    text(&succeed(command(program).args(arguments)))
}

/// Writes a program that the test runs afterwards. A shell writes it: a descriptor of this process
/// could be inherited by a child of another thread, and running the file would fail with ETXTBSY.
#[track_caller]
pub fn write_program(path: &Path, content: &[u8]) {
    let mut shell = command("sh");
    shell
        .args(["-c", "cat > \"$0\" && chmod 755 \"$0\""])
        .arg(path);
    let mut shell = shell.stdin(Stdio::piped()).spawn().unwrap();
    shell.stdin.take().unwrap().write_all(content).unwrap();
    assert!(shell.wait().unwrap().success(), "{}", path.display());
}

/// Starts a server, and returns the first line of its output.
#[track_caller]
pub fn start_server(command: &mut Command) -> (Child, String) {
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap())
        .read_line(&mut line)
        .unwrap();
    (child, line)
}

/// Gives an order to a running server or mount by `folio ctl SOCKET`; returns its answer, or what
/// the command said. `folio` is the command's program.
pub fn order(folio: &str, socket: &Path, words: &[&str]) -> Result<serde_json::Value, String> {
    let mut command = command(folio);
    command.arg("ctl").arg(socket).args(words).arg("--json");
    let output = command.output().unwrap();
    if !output.status.success() {
        return Err(text(&output));
    }
    Ok(serde_json::from_slice(&output.stdout).unwrap())
}

/// Asserts that `e2fsck -fn` finds nothing to repair in a raw image.
#[track_caller]
pub fn fsck(image: &Path) {
    let output = succeed(command("e2fsck").arg("-fn").arg(image));
    let said = text(&output);
    // With status 0, "Fix? no" would report a defect that e2fsck calls harmless.
    assert!(
        !said.contains("? no"),
        "e2fsck -fn {}:\n{said}",
        image.display()
    );
}

/// Asserts that `qemu-img check` finds neither errors nor leaks.
#[track_caller]
pub fn qemu_check(image: &Path) {
    let said = run("qemu-img", [OsStr::new("check"), image.as_os_str()]);
    assert!(
        said.contains("No errors were found"),
        "qemu-img check {}:\n{said}",
        image.display()
    );
}

/// Converts the image to a raw file at `raw` with qemu-img.
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

/// Converts the image to a qcow2 file at `qcow2` with qemu-img.
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

/// Makes an ext4, or what `-t` in the options names, with mke2fs in a new raw file of `size`, in
/// the notation of mke2fs.
#[track_caller]
pub fn mke2fs(image: &Path, size: &str, options: &[&str]) {
    let fixed = ["-q", "-F"];
    let kind: &[&str] = if options.contains(&"-t") {
        &[]
    } else {
        &["-t", "ext4"]
    };
    let options = fixed.iter().chain(kind).chain(options);
    let arguments = options.map(OsStr::new);
    run(
        "mke2fs",
        arguments.chain([image.as_os_str(), OsStr::new(size)]),
    );
}
