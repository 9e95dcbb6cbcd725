//! Compilers of C and C++, and the checkers under which programs run.

use crate::support::require::{Need, report_skip, tool};
use crate::support::tools::{command, succeed, text};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Options of every compilation.
const STRICT: [&str; 4] = ["-g", "-Wall", "-Wextra", "-Werror"];
/// What a static library of Rust needs of the system.
const SYSTEM_LIBRARIES: [&str; 4] = ["-lpthread", "-ldl", "-lm", "-lgcc_s"];

/// How a program is compiled and run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Build {
    /// C, with the shared library.
    C,
    /// C, with the static library.
    Static,
    /// C, under AddressSanitizer with its search for leaks.
    Sanitized,
    /// C++, under valgrind with its search for leaks.
    Valgrind,
}

impl Build {
    /// All of them.
    pub(crate) const ALL: [Self; 4] = [Self::C, Self::Static, Self::Sanitized, Self::Valgrind];

    /// Returns whether the machine can do it; reports a skip otherwise.
    pub(crate) fn is_possible(self) -> bool {
        let needs: &[Need] = match self {
            Self::C | Self::Static | Self::Sanitized => &[tool("cc")],
            Self::Valgrind => &[tool("c++"), tool("valgrind")],
        };
        let mut reason = needs.iter().find_map(|need| need.met().err());
        if self == Self::Sanitized && reason.is_none() && !has_sanitizer() {
            reason = Some("needs AddressSanitizer".to_owned());
        }
        if let Some(reason) = &reason {
            report_skip(reason);
        }
        reason.is_none()
    }
}

/// Returns whether a program runs under AddressSanitizer, with its search for leaks.
fn has_sanitizer() -> bool {
    let folder = tempfile::tempdir().unwrap();
    let (source, program) = (folder.path().join("main.c"), folder.path().join("main"));
    std::fs::write(&source, "int main(void) { return 0; }\n").unwrap();
    let mut cc = command("cc");
    cc.arg("-fsanitize=address")
        .arg(&source)
        .arg("-o")
        .arg(&program);
    let is_built = cc.output().is_ok_and(|output| output.status.success());
    is_built
        && Command::new(&program)
            .output()
            .is_ok_and(|output| output.status.success())
}

/// Returns the folder of the crate folio-c.
pub(crate) fn crate_folder() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Returns the folder of the C sources of these tests.
pub(crate) fn sources() -> PathBuf {
    crate_folder().join("../../tests/c")
}

/// Returns the folder with libfolio.so and libfolio.a, beside that of this test.
#[track_caller]
pub(crate) fn library_folder() -> PathBuf {
    let program = std::env::current_exe().unwrap();
    let folder = program.parent().unwrap().with_file_name("examples");
    let library = folder.join("libfolio.a");
    let built = library.metadata().and_then(|found| found.modified());
    let built = built.unwrap_or_else(|_| panic!("{BUILD}: no {}", library.display()));
    let sources = std::fs::read_dir(crate_folder().join("src")).unwrap();
    for source in sources {
        let source = source.unwrap().path();
        let changed = source.metadata().unwrap().modified().unwrap();
        assert!(changed <= built, "{BUILD}: {} is newer", source.display());
    }
    folder
}

const BUILD: &str = "run `cargo test -p folio-c` without --test, which builds the library";

/// A compiled program, in a folder of its own.
pub(crate) struct Program {
    folder: tempfile::TempDir,
    build: Build,
}

impl Program {
    /// Compiles a C source, strictly, as `build` says.
    #[track_caller]
    pub(crate) fn new(source: &Path, build: Build) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let library = library_folder();
        let mut compiler = command(if build == Build::Valgrind {
            "c++"
        } else {
            "cc"
        });
        let language = if build == Build::Valgrind { "c++" } else { "c" };
        compiler
            .args(STRICT)
            .args(["-x", language])
            .arg(source)
            .args(["-x", "none", "-I"])
            .arg(crate_folder().join("include"))
            .arg("-o")
            .arg(folder.path().join("program"));
        if build == Build::Sanitized {
            compiler.args(["-fsanitize=address", "-fno-omit-frame-pointer"]);
        }
        if build == Build::Static {
            compiler
                .arg(library.join("libfolio.a"))
                .args(SYSTEM_LIBRARIES);
        } else {
            compiler
                .arg("-L")
                .arg(library)
                .args(["-lfolio", "-lpthread"]);
        }
        succeed(&mut compiler);
        Self { folder, build }
    }

    /// Runs the program in its folder; returns what it printed. Panics if it or the checker of its
    /// build finds an error.
    #[track_caller]
    pub(crate) fn run<A: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = A>) -> String {
        let program = self.folder.path().join("program");
        let mut run = if self.build == Build::Valgrind {
            let mut valgrind = command("valgrind");
            valgrind
                .args([
                    "--error-exitcode=99",
                    "--leak-check=full",
                    "--fair-sched=yes",
                ])
                .args(["--errors-for-leak-kinds=definite,indirect"])
                .args([
                    "--show-leak-kinds=definite,indirect",
                    "--log-file=valgrind.log",
                ])
                .arg(program);
            valgrind
        } else {
            Command::new(program)
        };
        run.args(arguments)
            .current_dir(self.folder.path())
            .env("LD_LIBRARY_PATH", library_folder());
        let output = run.output().unwrap();
        assert!(
            output.status.success(),
            "{run:?}: {}\n{}{}",
            output.status,
            text(&output),
            self.valgrind_log()
        );
        text(&output)
    }

    /// Returns what valgrind reported.
    pub(crate) fn valgrind_log(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("valgrind.log")).unwrap_or_default()
    }

    /// Returns the folder that the program runs in.
    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }
}
