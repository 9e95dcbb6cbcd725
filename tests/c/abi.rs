//! The ABI of libfolio against its checked-in description, by libabigail.
//!
//! The library's own debug information has no types of C. So a library is compiled from the header,
//! whose functions do nothing.

use crate::support::requires;
use crate::support::tools::{command, succeed, text};
use crate::toolchain::{crate_folder, library_folder};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// The end of the lines before the functions.
const FUNCTIONS_BEGIN: &str = "extern \"C\" {\n#endif // __cplusplus\n";
/// The line after the functions.
const FUNCTIONS_END: &str = "#ifdef __cplusplus\n}";

fn header() -> String {
    std::fs::read_to_string(crate_folder().join("include/folio.h")).unwrap()
}

fn description() -> PathBuf {
    crate_folder().join("abi/libfolio.abi")
}

/// Returns the declarations of the functions.
fn functions(header: &str) -> &str {
    let (_, rest) = header.split_once(FUNCTIONS_BEGIN).unwrap();
    rest.split_once(FUNCTIONS_END).unwrap().0
}

fn function_names(header: &str) -> BTreeSet<&str> {
    functions(header)
        .lines()
        .filter(|line| !line.starts_with([' ', '/']))
        .filter_map(|line| line.split_once('(')?.0.rsplit([' ', '*']).next())
        .collect()
}

fn struct_names(header: &str) -> impl Iterator<Item = &str> {
    header
        .lines()
        .filter_map(|line| line.strip_prefix("struct ")?.strip_suffix(" {"))
}

/// Returns the constants: `#define NAME VALUE`.
fn constant_names(header: &str) -> impl Iterator<Item = &str> {
    header
        .lines()
        .filter_map(|line| Some(line.strip_prefix("#define ")?.split_once(' ')?.0))
}

/// Returns C source that defines the functions of a header. The description has what functions
/// need: so one more has its structs, and one for each constant returns an enum with its value.
fn source(header: &str) -> String {
    let (types, _) = header.split_once(FUNCTIONS_BEGIN).unwrap();
    let body = ") { __builtin_trap(); }";
    let structs: Vec<_> = struct_names(header)
        .map(|name| format!("struct {name} *{name}"))
        .collect();
    let constants: Vec<_> = constant_names(header)
        .map(|name| {
            let value = format!("enum {name}_ {{ {name}_ = {name} }}");
            format!("{value} value_of_{name}(void{body}\n")
        })
        .collect();
    format!(
        "{types}{FUNCTIONS_BEGIN}{}\n\
         void structs_of_header({}{body}\n\
         {}{FUNCTIONS_END}\n#endif\n#endif\n",
        functions(header).replace(");", body),
        structs.join(", "),
        constants.concat(),
    )
}

/// Compiles a library from a header.
#[track_caller]
fn compile(header: &str, folder: &Path) -> PathBuf {
    std::fs::write(folder.join("folio.c"), source(header)).unwrap();
    let mut compiler = command("cc");
    compiler.args(["-g", "-shared", "-fPIC", "-o", "libfolio.so", "folio.c"]);
    succeed(compiler.current_dir(folder));
    folder.join("libfolio.so")
}

/// Returns how a library breaks programs that were compiled with the described one.
///
/// # Errors
/// The report of abidiff.
#[track_caller]
fn compare(library: &Path) -> Result<(), String> {
    let mut diff = command("abidiff");
    // Harmless: the name of a field, which programs do not compile without.
    diff.args(["--no-added-syms", "--harmless"]);
    let output = diff.arg(description()).arg(library).output().unwrap();
    if output.status.success() {
        Ok(())
    } else {
        Err(text(&output))
    }
}

#[test]
fn header_keeps_the_abi() {
    requires!(tool("cc"), tool("abidw"), tool("abidiff"));
    let folder = tempfile::tempdir().unwrap();
    let header = header();
    let library = compile(&header, folder.path());
    let described = std::fs::read_to_string(description()).unwrap_or_default();
    let constants = constant_names(&header).map(|name| format!("'value_of_{name}'"));
    let names = function_names(&header).into_iter();
    let added: Vec<_> = names
        .map(|name| format!("'{name}'"))
        .chain(constants)
        .filter(|name| !described.contains(name))
        .collect();
    let compared = compare(&library);
    if compared.is_ok() && added.is_empty() {
        return;
    }
    let new = Path::new(env!("CARGO_TARGET_TMPDIR")).join("libfolio.abi");
    let mut describe = command("abidw");
    describe.args(["--no-corpus-path", "--no-comp-dir-path", "--no-show-locs"]);
    describe.args(["--no-parameter-names", "--out-file"]);
    succeed(describe.arg(&new).arg(&library));
    let advice = format!("copy {} to {}", new.display(), description().display());
    if let Err(report) = compared {
        panic!("programs break: {report}\nif docs/promises.md allows the change, {advice}");
    }
    panic!("the description lacks {added:?}: {advice}");
}

#[test]
fn changes_that_break_programs_are_reported() {
    requires!(tool("cc"), tool("abidiff"));
    let folder = tempfile::tempdir().unwrap();
    let header = header();
    let changed = |from: &str, to: &str| {
        assert!(header.contains(from), "{from}");
        compare(&compile(&header.replacen(from, to, 1), folder.path()))
    };
    for (from, to) in [
        ("int folio_close(", "int folio_shut("),
        ("int folio_close(", "long folio_close("),
        ("process, int fd", "process, long fd"),
        ("uint64_t st_dev;", "uint32_t st_dev;"),
        ("uint64_t st_dev;", "uint64_t st_device;"),
        (
            "uint64_t st_ino;",
            "uint64_t st_extra;\n    uint64_t st_ino;",
        ),
        ("char d_name[256]", "char d_name[255]"),
        ("(*flush)(void *context)", "(*flush)(int context)"),
        ("FOLIO_O_CREAT 64", "FOLIO_O_CREAT 32"),
        ("#define FOLIO_O_CREAT 64", ""),
    ] {
        assert!(changed(from, to).is_err(), "{from} -> {to}");
    }
    for (from, to) in [
        (
            "int folio_close(",
            "int folio_new(void);\n\nint folio_close(",
        ),
        (
            "#define FOLIO_O_CREAT 64",
            "#define FOLIO_O_CREAT 64\n#define FOLIO_O_NEW 65",
        ),
        ("process, int fd", "process, int descriptor"),
    ] {
        assert_eq!(changed(from, to), Ok(()), "{from} -> {to}");
    }
}

#[test]
fn library_exports_the_functions_of_the_header() {
    requires!(tool("nm"));
    let library = library_folder().join("libfolio.so");
    let mut nm = command("nm");
    nm.args(["--dynamic", "--defined-only", "--format=just-symbols"]);
    let listed = text(&succeed(nm.arg(library)));
    let exported: BTreeSet<_> = listed.lines().collect();
    assert_eq!(exported, function_names(&header()));
}
