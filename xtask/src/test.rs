//! Every check of the repository, one after the other; skipped checks are listed with the reason.
//!
//! Crates are compiled once: the compiler of the tests is clippy's, which lints what it compiles.

use crate::clippy::{clippy, has_component};
use crate::gpu;
use crate::guest_files;
use crate::packages;
use crate::pool;
use crate::python;
use crate::release;
use crate::repository;
use crate::run::run;
use crate::tally::Tally;
use crate::tidy;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::thread::JoinHandle;

/// Free space that a build from scratch needs, with the tests' images.
const BUILD_BYTES: u64 = 8 << 30;
/// Free space that the tests need once everything is built.
const REBUILD_BYTES: u64 = 2 << 30;

/// Features that the default build leaves out. Checks and tests have them, in one build of the
/// workspace: another selection of packages or features would compile most crates again.
const FEATURES: [&str; 4] = [
    "--features",
    release::FEATURES,
    "--features",
    "folio-cuda/cuda",
];

/// Tests that look at the machine's page cache. They run last: the tests of folio-bench drop it.
const LAST: [&str; 2] = ["folio-cli pagecache", "folio-cli doctor"];

/// What the caller wants beside the checks.
#[derive(Debug, Clone, Copy, clap::Args)]
pub(crate) struct Options {
    /// Install the packages and crates that are missing; needs root for packages.
    #[arg(long)]
    pub(crate) install: bool,
    /// Run the long rounds too: every cut of each crash test, weak memory under loom.
    #[arg(long)]
    pub(crate) long: bool,
}

/// Runs every check; fails if one of them failed.
pub(crate) fn main(root: &Path, options: Options) -> ExitCode {
    let target = repository::target_folder();
    if let Err(message) = has_space(&target, free_bytes(&target)) {
        println!("{message}");
        return ExitCode::FAILURE;
    }
    let mut tally = Tally::new();
    tally.begin("fmt");
    component(&mut tally, root, "fmt", &["fmt", "--all", "--check"]);
    tally.begin("tidy");
    tally.check("tidy", tidy::main(root, false) == ExitCode::SUCCESS);
    if tally.has_failures() {
        println!("{}", tally.closing());
        return ExitCode::FAILURE;
    }
    tally.begin("packages");
    packages::provide_packages(options.install);
    // Downloads wait for the network while crates compile.
    let may_install = options.install;
    let downloads = std::thread::spawn(move || download(may_install));
    tally.begin("deny");
    deny(&mut tally, root);
    workspace_tests(&mut tally, root, downloads, options);
    tally.begin("documents");
    let doc_tests = [&["test", "--workspace", "--doc"], &FEATURES[..]].concat();
    tally.doc_tests(&run(root, "cargo", &doc_tests, &clippy()));
    tally.begin("examples");
    examples(&mut tally, root);
    if options.long {
        tally.begin("loom check");
        loom_check(&mut tally, root);
    }
    println!("{}", tally.closing());
    if tally.has_failures() {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    }
}

/// Runs a cargo subcommand that is a component of the toolchain, which a minimal installation
/// lacks.
fn component(tally: &mut Tally, root: &Path, name: &str, arguments: &[&str]) {
    if has_component(name) {
        tally.check(name, run(root, "cargo", arguments, &[]).succeeded);
    } else {
        let component = if name == "fmt" { "rustfmt" } else { name };
        tally.skip(
            name,
            &format!("not in this toolchain: rustup component add {component}"),
        );
    }
}

fn deny(tally: &mut Tally, root: &Path) {
    if packages::has("cargo-deny") {
        let arguments = [
            "deny",
            "--log-level",
            "error",
            "check",
            "bans",
            "licenses",
            "sources",
        ];
        tally.check("deny", run(root, "cargo", &arguments, &[]).succeeded);
    } else {
        tally.skip(
            "deny",
            "cargo-deny is not installed: cargo install cargo-deny",
        );
    }
}

/// What tests need beside packages and crates, below the target folder: stores of objects, a kernel
/// and firmware for guests, NVRTC, Python's packages. Returns the variables that name them, and
/// what is missing.
fn download(may_install: bool) -> (Vec<(&'static str, OsString)>, Vec<(&'static str, String)>) {
    packages::provide_crates(may_install);
    install_stores();
    let (mut variables, mut missing) = (Vec::new(), Vec::new());
    match gpu::nvrtc() {
        Ok(variable) => variables.push(variable),
        Err(reason) => missing.push(("nvrtc", reason)),
    }
    match guest_files::provide() {
        Ok(variable) => variables.push(variable),
        Err(reason) => missing.push(("files for guests", reason)),
    }
    if let Err(reason) = python::provide() {
        println!("{reason}");
    }
    (variables, missing)
}

type Downloads = JoinHandle<(Vec<(&'static str, OsString)>, Vec<(&'static str, String)>)>;

/// Builds all tests, waits for the downloads, and runs the tests. Those on a GPU run where there is
/// one.
fn workspace_tests(tally: &mut Tally, root: &Path, downloads: Downloads, options: Options) {
    let lints = clippy();
    let is_linted = !lints.is_empty();
    tally.begin(if is_linted { "build and lint" } else { "build" });
    if !is_linted {
        tally.skip(
            "clippy",
            "not in this toolchain: rustup component add clippy",
        );
    }
    let mut cargo = Command::new("cargo");
    cargo
        .args(["test", "--workspace", "--no-run"])
        .args(FEATURES)
        .args(["--message-format", "json-render-diagnostics"])
        .envs(lints);
    let (succeeded, binaries) = built(root, cargo);
    tally.check("build and lint", succeeded);
    tally.begin("downloads");
    let (mut variables, missing) = downloads.join().unwrap_or_else(|_| {
        let reason = "the installation panicked".to_owned();
        (Vec::new(), vec![("downloads", reason)])
    });
    for (name, reason) in missing {
        tally.skip(name, &reason);
    }
    variables.extend(options.long.then(|| ("FOLIO_LONG_TESTS", "1".into())));
    tally.begin("tests");
    let asides = std::thread::spawn({
        let root = root.to_owned();
        move || Asides::build(&root)
    });
    let (last, first): (Vec<_>, Vec<_>) = listed(tally, &binaries)
        .into_iter()
        .partition(|(binary, _)| LAST.contains(&&*binary.name));
    for tests in [first, last] {
        tally.tests(pool::run(&tests, workers(), &variables, pool::print));
    }
    tally.begin("builds beside the tests");
    match asides.join() {
        Ok(asides) => asides.check(tally, root),
        Err(_) => tally.check("builds beside the tests", false),
    }
}

/// The tests of all binaries.
fn listed<'a>(tally: &mut Tally, binaries: &'a [pool::Binary]) -> Vec<(&'a pool::Binary, String)> {
    let mut tests = Vec::new();
    for binary in binaries {
        match pool::list(binary) {
            Ok(names) => tests.extend(names.into_iter().map(|name| (binary, name))),
            Err(reason) => tally.check(&reason, false),
        }
    }
    tests
}

/// Tests at a time: some wait for a timer or for a server's start.
fn workers() -> usize {
    std::thread::available_parallelism().map_or(2, usize::from) + 1
}

/// Installs stores for tests into the target folder, where Go is installed. A test without its
/// store reports a skip.
fn install_stores() {
    let folder = repository::target_folder().join("object-stores");
    if !packages::has("go") {
        return;
    }
    for (program, module) in [
        (
            "gofakes3",
            "github.com/johannesboyne/gofakes3/cmd/gofakes3@v1.2.0",
        ),
        (
            "versitygw",
            "github.com/versity/versitygw/cmd/versitygw@v1.8.0",
        ),
        // An early copy of gofakes3, which ignores conditions: volumes refuse it.
        (
            "without-conditions/gofakes3",
            "github.com/igungor/gofakes3/cmd/gofakes3@v0.0.16",
        ),
        // Answers some ranges with the whole object: refused, too.
        (
            "without-ranges/gofakes3",
            "github.com/johannesboyne/gofakes3/cmd/gofakes3@v1.0.0",
        ),
    ] {
        let program = folder.join(program);
        if program.exists() {
            continue;
        }
        let installed = Command::new("go")
            .args(["install", module])
            .env("GOBIN", program.parent().unwrap_or(&folder))
            .status();
        if !installed.is_ok_and(|status| status.success()) {
            println!("go install {module}: failed");
        }
    }
}

/// Runs each example of each crate, in an empty folder. The tests' build has made them.
fn examples(tally: &mut Tally, root: &Path) {
    let programs = repository::target_folder().join("debug/examples");
    let programs = std::path::absolute(&programs).unwrap_or(programs);
    for example in example_names(root) {
        let name = format!("example {example}");
        let Ok(folder) = scratch_folder(&example) else {
            tally.check(&name, false);
            continue;
        };
        let program = programs.join(&example);
        println!("{name}");
        tally.check(
            &name,
            run(&folder, &program.to_string_lossy(), &[], &[]).succeeded,
        );
        let _ = std::fs::remove_dir_all(&folder);
    }
}

/// Builds that wait for no test: they take what the tests, which often wait, leave of the machine.
struct Asides {
    /// Selections of features, and whether they compile.
    features: Vec<(String, bool)>,
    /// The tests of races, with shuttle's locks.
    races: Vec<pool::Binary>,
    wheel: Result<python::Wheel, String>,
}

impl Asides {
    fn build(root: &Path) -> Self {
        // The priority of this thread, which its commands inherit: tests come first.
        let _ = rustix::process::nice(10);
        Self {
            wheel: python::build(root, ""),
            races: races(root),
            features: features(root),
        }
    }

    /// Adds the results, and runs the tests that were built.
    fn check(self, tally: &mut Tally, root: &Path) {
        for (name, compiles) in self.features {
            tally.check(&name, compiles);
        }
        tally.begin("model check");
        models(tally, &self.races, "model_check");
        tally.begin("python");
        match self.wheel.and_then(|wheel| python::test(root, &wheel)) {
            Err(reason) => tally.skip("python", &reason),
            Ok(results) => {
                tally.add(results.passed, results.failed, "a test of bindings/python");
                for (name, reason) in &results.skipped {
                    tally.skip(name, reason);
                }
            }
        }
    }
}

/// Checks that programs and folio-fuse compile with their default features, and the library with
/// every combination of its own; the default, all of them, is compiled by the tests. The feature
/// `compress` includes `qcow2`.
fn features(root: &Path) -> Vec<(String, bool)> {
    let check = ["check", "--quiet", "--package"];
    let mut results = Vec::new();
    for package in ["folio-cli", "folio-bench", "folio-fuse"] {
        let arguments = [&check[..], &[package]].concat();
        let name = format!("default features of {package}");
        results.push((name, run(root, "cargo", &arguments, &[]).succeeded));
    }
    for format in ["", "qcow2", "compress"] {
        for partitions in ["", "partitions"] {
            for hostfs in ["", "hostfs"] {
                let features = [format, partitions, hostfs];
                let features = features.map(|feature| format!("{feature},")).concat();
                if features == "compress,partitions,hostfs," {
                    continue;
                }
                let selection = ["folio", "--no-default-features", "--features", &features];
                let arguments = [&check[..], &selection].concat();
                let name = format!("features {features:?}");
                results.push((name, run(root, "cargo", &arguments, &[]).succeeded));
            }
        }
    }
    results
}

fn scratch_folder(name: &str) -> std::io::Result<PathBuf> {
    let path = std::env::temp_dir().join(format!("folio-{name}-{}", std::process::id()));
    std::fs::create_dir(&path).map(|()| path)
}

/// Names of the files `crates/*/examples/*.rs`, sorted.
fn example_names(root: &Path) -> Vec<String> {
    let entries = |folder: PathBuf| std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut out = Vec::new();
    for package in entries(root.join("crates")) {
        for file in entries(package.path().join("examples")) {
            let path = file.path();
            if path.extension().is_some_and(|extension| extension == "rs")
                && let Some(stem) = path.file_stem()
            {
                out.push(stem.to_string_lossy().into_owned());
            }
        }
    }
    out.sort();
    out
}

/// Builds the tests of races, of the page cache and of qcow2, under shuttle. The flag reaches the
/// crate `folio` alone, so that its dependencies are those of the other tests.
fn races(root: &Path) -> Vec<pool::Binary> {
    let mut cargo = Command::new("cargo");
    cargo
        .args(["rustc", "--package", "folio", "--lib", "--profile", "test"])
        .args(["--message-format", "json-render-diagnostics"])
        .args(["--", "--cfg", "folio_model_check"]);
    built(root, cargo).1
}

/// Runs the lock-free structures under loom, which models weak memory.
///
/// A flag of one crate, as shuttle's, does not reach the manifest: all test builds would compile
/// loom. So the flag is one of all crates, which are compiled once more, in a folder of their own.
fn loom_check(tally: &mut Tally, root: &Path) {
    let mut cargo = Command::new("cargo");
    cargo
        .args(["test", "--package", "folio", "--lib", "--no-run"])
        .args(["--message-format", "json-render-diagnostics"])
        .arg("--target-dir")
        .arg(repository::target_folder().join("loom"))
        .env("RUSTFLAGS", "--cfg folio_loom");
    models(tally, &built(root, cargo).1, "loom_check");
}

/// Builds tests by `cargo`; returns whether it succeeded, and what was built.
fn built(root: &Path, mut cargo: Command) -> (bool, Vec<pool::Binary>) {
    let output = cargo
        .current_dir(root)
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output();
    let succeeded = output.as_ref().is_ok_and(|output| output.status.success());
    let messages = output.map(|output| output.stdout).unwrap_or_default();
    let binaries = pool::binaries(&String::from_utf8_lossy(&messages));
    (succeeded, binaries)
}

/// Runs the tests with `part` in their names.
fn models(tally: &mut Tally, binaries: &[pool::Binary], part: &str) {
    let mut tests = listed(tally, binaries);
    tests.retain(|(_, name)| name.contains(part));
    if tests.is_empty() {
        tally.check(part, false);
    }
    tally.tests(pool::run(&tests, workers(), &[], pool::print));
}

/// Free bytes of the file system that holds `folder` or will hold it; `None` if unknown.
fn free_bytes(folder: &Path) -> Option<u64> {
    let existing = folder.ancestors().find(|path| path.exists())?;
    let statistics = rustix::fs::statvfs(existing).ok()?;
    Some(statistics.f_bavail * statistics.f_frsize)
}

/// Checks that a build fits.
fn has_space(target: &Path, free_bytes: Option<u64>) -> Result<(), String> {
    let needed = if target.join("debug/deps").exists() {
        REBUILD_BYTES
    } else {
        BUILD_BYTES
    };
    let gib = |bytes: u64| bytes as f64 / (1 << 30) as f64;
    match free_bytes {
        Some(free) if free < needed => Err(format!(
            "no space for a build: {} has {:.1} GiB free, {:.0} GiB are needed; \
             delete files there or set CARGO_TARGET_DIR",
            target.display(),
            gib(free),
            gib(needed)
        )),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn build_without_space_is_refused() {
        let target = Path::new("/nowhere/target");
        let message = has_space(target, Some(3 << 29)).unwrap_err();
        assert!(message.contains("/nowhere/target has 1.5 GiB free, 8 GiB are needed"));
        assert_eq!(has_space(target, Some(BUILD_BYTES)), Ok(()));
        assert_eq!(has_space(target, None), Ok(()));
    }
}
