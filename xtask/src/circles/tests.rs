//! Tests: links of small crates.

use super::*;

const SOURCE: &str = "crates/x/src/";

fn read(files: &[(&str, &str)]) -> Links {
    let files: Vec<_> = files
        .iter()
        .map(|(file, text)| (format!("{SOURCE}{file}"), (*text).to_owned()))
        .collect();
    Links::read(SOURCE, &files)
}

/// Links as "from to", without the folder.
fn links(files: &[(&str, &str)]) -> Vec<String> {
    let links = read(files);
    let name = |file: usize| links.files[file].strip_prefix(SOURCE).unwrap().to_owned();
    links
        .links
        .keys()
        .map(|(from, to)| format!("{} {}", name(*from), name(*to)))
        .collect()
}

#[test]
fn facade_links_to_the_defining_file() {
    let found = links(&[
        ("lib.rs", "mod a; mod b;"),
        (
            "a/mod.rs",
            "mod one; mod two; pub(crate) use one::*; pub use two::Two as Second;",
        ),
        (
            "a/one.rs",
            "pub struct One; fn f() { super::Second::new() }",
        ),
        ("a/two.rs", "pub struct Two;"),
        ("b.rs", "use crate::a::{One, Second};"),
    ]);
    assert_eq!(
        found,
        ["a/one.rs a/two.rs", "b.rs a/one.rs", "b.rs a/two.rs"]
    );
}

#[test]
fn code_of_a_mod_rs_links_like_any_other() {
    let found = links(&[
        (
            "lib.rs",
            "mod a; mod b; use a::A; pub use b::B; struct Top(B);",
        ),
        ("a.rs", "pub struct A(crate::Top);"),
        ("b.rs", "pub struct B;"),
    ]);
    assert_eq!(found, ["lib.rs a.rs", "lib.rs b.rs", "a.rs lib.rs"]);
}

#[test]
fn imported_modules_and_globs_are_followed() {
    let found = links(&[
        ("lib.rs", "mod a; mod b; mod c; mod d;"),
        ("a.rs", "use crate::b; fn f() { b::inner::g(); }"),
        ("b.rs", "pub mod inner { pub fn g() {} }"),
        ("c.rs", "use super::d::*; fn f(x: Deep) { x.unrelated() }"),
        (
            "d.rs",
            "bitflags! { pub struct Deep: u8 {} } pub fn unrelated() {}",
        ),
    ]);
    assert_eq!(found, ["a.rs b.rs", "c.rs d.rs"]);
}

#[test]
fn code_for_tests_does_not_count() {
    let found = links(&[
        (
            "lib.rs",
            "mod a; #[cfg(all(test, x))] mod checked; #[cfg(not(test))] mod b;",
        ),
        (
            "a.rs",
            "#[cfg(test)] fn f(x: u8, y: crate::b::B) {} #[cfg(test)] mod tests { use crate::b::B; }",
        ),
        ("checked.rs", "use crate::a::f;"),
        (
            "b.rs",
            "pub struct B; fn g() { crate::a::f(0) } #[cfg(any(test, x))] use crate::Gone;",
        ),
    ]);
    assert_eq!(found, [""; 0]);
}

#[test]
fn module_and_function_may_share_a_name() {
    let found = links(&[
        ("lib.rs", "mod read; pub use read::read; mod a;"),
        ("read.rs", "pub fn read() {} pub enum Kind { Plain }"),
        (
            "a.rs",
            "fn f() { crate::read(); crate::read::Kind::Plain; }",
        ),
    ]);
    assert_eq!(found, ["a.rs read.rs"]);
}

#[test]
fn circles_name_the_link_to_cut() {
    let links = read(&[
        ("lib.rs", "mod a; mod b;"),
        (
            "a.rs",
            "use crate::b::{B, C};\nuse crate::b::D; pub struct A;",
        ),
        (
            "b.rs",
            "pub struct B; pub struct C; pub struct D;\nfn f(a: crate::a::A) {}",
        ),
    ]);
    let found = circles(&links);
    assert_eq!(found.len(), 1);
    let text = found[0].short(&links);
    assert!(
        text.contains("b.rs:2 crate::a::A -> crates/x/src/a.rs"),
        "{text}"
    );
}

#[test]
fn allowed_links_need_a_reason() {
    assert!(parse_allowed("# head\na -> b: a reason\n").is_ok());
    assert!(parse_allowed("a -> b").is_err());
}

#[test]
fn upward_links_and_unplaced_files_are_listed() {
    let folder = "crates/folio/src/fs/ext4";
    let file = |name: &str, text: &str| (format!("{folder}/{name}"), text.to_owned());
    let files = [
        file("mod.rs", "mod file; mod space; mod stray;"),
        file("file/mod.rs", "use super::space::Space;"),
        file(
            "space/mod.rs",
            "pub struct Space; fn f() { super::file::g() }",
        ),
        file("file/g.rs", ""),
        file("stray.rs", ""),
    ];
    let links = Links::read("crates/folio/src/", &files);
    let found = upward(&links);
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].contains("stray.rs"));
    let files = [
        file("file/mod.rs", "pub fn g() {}"),
        file("space/mod.rs", "fn f() { super::file::g() }"),
    ];
    let found = upward(&Links::read("crates/folio/src/", &files));
    assert_eq!(found.len(), 1, "{found:?}");
}
