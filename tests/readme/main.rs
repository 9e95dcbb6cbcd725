//! The README's shell blocks run as they stand, in order, in one folder.

#[path = "../support/mod.rs"]
mod support;

use std::path::{Path, PathBuf};
use std::process::Command;
use support::tools::{command, fsck, qemu_check, succeed, text, to_raw};
use tempfile::TempDir;

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .canonicalize()
        .expect("the repository is here")
}

/// The lines of all fenced blocks of `language`.
fn blocks(markdown: &str, language: &str) -> Vec<String> {
    let fence = format!("```{language}");
    let mut lines = markdown.lines();
    let mut out = Vec::new();
    while lines.by_ref().any(|line| line == fence) {
        out.extend(
            lines
                .by_ref()
                .take_while(|line| *line != "```")
                .map(str::to_owned),
        );
    }
    out
}

/// `cargo run --release --` stands for the command that this test was built with.
const CARGO: &str = r#"
cargo() {
    [ "$1 $2 $3" = "run --release --" ] || { echo "not the main job: cargo $*" >&2; return 1; }
    shift 3
    folio "$@"
}
"#;

#[test]
fn the_tour_runs() {
    let readme = std::fs::read_to_string(repository().join("README.md")).unwrap();
    let lines = blocks(&readme, "sh");
    assert!(
        lines
            .iter()
            .any(|line| line.starts_with("cargo run --release -- cp -a ")),
        "the main job is shown"
    );
    assert!(lines.len() > 10, "the tour is there: {lines:?}");
    let scratch = TempDir::new().unwrap();
    let source = scratch.path().join("crates/folio/src");
    std::fs::create_dir_all(&source).unwrap();
    let mut copy = Command::new("cp");
    succeed(
        copy.arg("-a")
            .arg(repository().join("crates/folio/src/."))
            .arg(&source),
    );
    let program = Path::new(env!("CARGO_BIN_EXE_folio"));
    let folders = std::env::var_os("PATH").unwrap_or_default();
    let folders = program
        .parent()
        .into_iter()
        .map(PathBuf::from)
        .chain(std::env::split_paths(&folders));
    let path = std::env::join_paths(folders).unwrap();
    for line in lines {
        let script = format!("set -eu\n{CARGO}\n{line}\n");
        let mut shell = command("bash");
        let output = shell
            .args(["-o", "pipefail", "-c", &script])
            .current_dir(scratch.path())
            .env("PATH", &path)
            .output();
        let output = output.expect("bash runs");
        assert!(
            output.status.success(),
            "$ {line}\n{}\n{}",
            output.status,
            text(&output)
        );
    }
    the_results_are_as_told(scratch.path());
}

fn the_results_are_as_told(folder: &Path) {
    let config = std::fs::read_to_string(folder.join("etc/app/settings.toml")).unwrap();
    assert_eq!(config, "level = \"debug\"\n");
    if support::Need::Tool("qemu-img").met().is_ok() && support::Need::Tool("e2fsck").met().is_ok()
    {
        qemu_check(&folder.join("disk.qcow2"));
        to_raw(&folder.join("disk.qcow2"), &folder.join("disk.raw"));
        for image in ["disk.raw", "other.img", "empty.img"] {
            fsck(&folder.join(image));
        }
    }
}

#[test]
fn the_documents_are_linked_and_there() {
    let root = repository();
    for name in [
        "README.md",
        "ARCHITECTURE.md",
        "CONTRIBUTING.md",
        "CHANGELOG.md",
    ] {
        let document = std::fs::read_to_string(root.join(name)).unwrap();
        for link in document
            .split("](")
            .skip(1)
            .filter_map(|rest| rest.split(')').next())
        {
            if !link.starts_with("http") {
                assert!(root.join(link).exists(), "{name} links to {link}");
            }
        }
    }
    for path in [
        "crates/folio/src/kernel.rs",
        "crates/folio/src/vfs/filesystem.rs",
        "crates/folio/src/block/device.rs",
    ] {
        assert!(
            root.join(path).is_file(),
            "{path}, which ARCHITECTURE.md names"
        );
    }
}
