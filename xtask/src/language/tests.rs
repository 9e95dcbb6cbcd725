//! Tests: each rule on a few lines.

use super::*;

fn found(file: &str, source: &str) -> Vec<(usize, &'static str, String)> {
    let breaches = if file.ends_with(".md") {
        markdown_breaches(file, source)
    } else {
        rust_breaches(file, source, &mut Part::default())
    };
    let breaches = breaches.into_iter();
    breaches
        .map(|breach| (breach.line, breach.rule, breach.phrase))
        .collect()
}

fn rules_of(file: &str, source: &str) -> Vec<&'static str> {
    let found = found(file, source).into_iter();
    found.map(|(_, rule, _)| rule).collect()
}

#[test]
fn banned_words_in_comments_have_their_line() {
    let source = "//! A file.\n// Code.\n// The caller lets\n// go of it; `who` waits.\nfn f() {}\n// Who waits?\n";
    assert_eq!(
        found("crates/x/src/a.rs", source),
        [
            (3, "release", "lets go".to_owned()),
            (6, "actor", "who".to_owned())
        ]
    );
}

#[test]
fn strings_count_outside_of_tests_only() {
    let source = "fn f() { println!(\"{}: nobody\\n\\\n   is told {who}\", 1); }\n#[cfg(test)]\nmod tests { const A: &str = \"nobody\"; }\n";
    assert_eq!(
        found("crates/x/src/a.rs", source),
        [
            (1, "actor", "nobody".to_owned()),
            (2, "tell", "told".to_owned())
        ]
    );
    assert_eq!(
        rules_of("tests/a/mod.rs", "const A: &str = \"nobody\";"),
        [""; 0]
    );
}

#[test]
fn names_are_split_into_words() {
    let source =
        "struct LastBelief; fn let_go(others: u8) {} const IS_TOLD: u8 = 0; fn let_go() {}";
    assert_eq!(
        rules_of("crates/x/src/a.rs", source),
        ["belief", "release", "tell"]
    );
}

#[test]
fn is_no_noun_is_found() {
    for (text, want) in [
        ("// It is no size.", true),
        ("// There is no size.", false),
        ("// There really are no sizes.", false),
        ("// It is no longer here.", false),
        ("// It is no larger than that.", false),
        ("// It is no `size`.", true),
        ("// The answer is no.", false),
    ] {
        assert_eq!(!found("a.rs", text).is_empty(), want, "{text}");
    }
}

#[test]
fn lay_out_is_allowed() {
    assert_eq!(rules_of("a.rs", "// mkfs must lay out groups."), [""; 0]);
    assert_eq!(rules_of("a.rs", "// It lay there."), ["place"]);
}

#[test]
fn british_spelling_is_found() {
    assert_eq!(
        rules_of(
            "a.rs",
            "// Behaviour of an optimised, optimistic initialisation."
        ),
        ["spelling"; 3]
    );
}

#[test]
fn a_file_opens_without_a_question() {
    assert_eq!(rules_of("a.rs", "//! What is read.\n"), ["opening"]);
    assert_eq!(rules_of("a.md", "# How to read\n"), ["opening"]);
    assert_eq!(
        rules_of("a.rs", "//! Readahead: whatever is next.\n"),
        [""; 0]
    );
}

#[test]
fn long_lines_are_found() {
    let long = "a ".repeat(60);
    assert_eq!(rules_of("a.rs", &format!("// {long}")), ["columns"]);
    assert_eq!(rules_of("a.md", &long), ["columns"]);
    let free = [
        format!("// https://x {long}"),
        format!("//! ```text\n//! {long}\n//! ```"),
        format!("let a = \"{long}\";"),
    ];
    for text in free {
        assert_eq!(rules_of("a.rs", &text), [""; 0]);
    }
    let free = format!("| {long} |\n```sh\n{long}\n```\n[a](b) {long}\n");
    assert_eq!(rules_of("a.md", &free), [""; 0]);
}

#[test]
fn markdown_code_is_left_out() {
    let text = "A `who`.\n\n```sh\nwho\n```\n\nWho is\ntold?\n";
    let want = [
        (7, "actor", "who".to_owned()),
        (8, "tell", "told".to_owned()),
    ];
    assert_eq!(found("README.md", text), want);
}

#[test]
fn prose_after_a_drawing_is_checked() {
    let text = "```text\n  told\n```\n\nWho\n\n```sh\nwho\n```\n\nWho\n";
    let lines = |file: &str, text: &str| -> Vec<usize> {
        let found = found(file, text).into_iter();
        found.map(|(line, ..)| line).collect()
    };
    assert_eq!(lines("README.md", text), [2, 5, 11]);
    let comment: String = text.lines().map(|line| format!("//! {line}\n")).collect();
    assert_eq!(lines("a.rs", &comment), [2, 5, 11]);
}

#[test]
fn an_open_fence_ends_with_its_comment() {
    let source = "/// ```\n/// who\nfn f() {}\n\n/// Who\nfn g() {}\n";
    assert_eq!(found("a.rs", source), [(5, "actor", "who".to_owned())]);
}

#[test]
fn long_test_names_are_found() {
    let name = "a".repeat(51);
    let source = format!("#[test]\nfn {name}() {{}}\n#[test] fn short() {{}}\nfn b{name}() {{}}");
    assert_eq!(rules_of("a.rs", &source), ["test-name"]);
}

#[test]
fn exceptions_need_a_reason_and_a_use() {
    let mut list = parse_exceptions("# head\na/ | \"who\" | quoted\n").unwrap();
    let breach = |file: &str| Breach {
        file: file.to_owned(),
        line: 1,
        rule: "actor",
        phrase: "who".to_owned(),
        is_comment: true,
    };
    assert!(!is_excepted(&mut list, &breach("b/c.rs"), "the \"who\""));
    assert!(!list[0].is_used);
    assert!(is_excepted(&mut list, &breach("a/c.rs"), "the \"Who\""));
    assert!(list[0].is_used);
    assert!(parse_exceptions("a | b").is_err());
}

#[test]
fn parts_are_layers_and_crates() {
    for (file, part) in [
        ("crates/folio/src/fs/ext4/space/mod.rs", "folio/fs/ext4"),
        ("crates/folio/src/vfs/walk.rs", "folio/vfs"),
        ("crates/folio/src/lib.rs", "folio"),
        ("crates/folio-export/src/a/b.rs", "folio-export"),
        ("tests/hostfs/mod.rs", "tests/hostfs"),
        ("docs/a.md", "docs"),
        ("README.md", "docs"),
    ] {
        assert_eq!(part_of(file), part);
    }
}

fn documents() -> Vec<(String, String)> {
    crate::tidy::documents(&crate::repository::root()).unwrap()
}

#[test]
fn architecture_lists_every_unsafe_file() {
    let files = documents();
    let list = &files.iter().find(|(name, _)| name == "ARCHITECTURE.md");
    let list = &list.unwrap().1;
    for (name, text) in &files {
        let is_checked = name.contains("/src/") && !name.starts_with("xtask/");
        let mut tokens = source::tokens(text).into_iter();
        if !is_checked || !tokens.any(|token| token.text == "unsafe") {
            continue;
        }
        let place = name
            .strip_prefix("crates/folio/src/")
            .or_else(|| name.strip_prefix("crates/")?.split('/').next())
            .unwrap_or("bindings/python");
        assert!(list.contains(&format!("`{place}`")), "{name}: not listed");
    }
}

/// The last column of a table names functions of Linux.
#[test]
fn names_in_guides_are_in_the_source() {
    let files = documents();
    let is_source = |file: &str| file.starts_with("crates/") && file.ends_with(".rs");
    let sources: Vec<_> = files.iter().filter(|(file, _)| is_source(file)).collect();
    let mut names = std::collections::BTreeSet::new();
    for (_, text) in &sources {
        names.extend(source::tokens(text).into_iter().map(|token| token.text));
    }
    for (guide, text) in &files {
        if !guide.starts_with("docs/guide/") || guide.ends_with("tour.md") {
            continue;
        }
        let lines = text.split("```").step_by(2).flat_map(str::lines);
        let lines = lines.map(|line| {
            line.trim_end_matches('|')
                .rsplit_once('|')
                .map_or(line, |(own, _)| own)
        });
        for span in lines.flat_map(|line| line.split('`').skip(1).step_by(2)) {
            let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte == b'_';
            if span.ends_with(".rs") {
                let is_there = sources.iter().any(|(file, _)| file.ends_with(span));
                assert!(is_there, "{guide}: {span}");
            } else if span.contains('_') && span.bytes().all(is_plain) {
                assert!(names.contains(span), "{guide}: {span}");
            }
        }
    }
}
