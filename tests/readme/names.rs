//! The names that ARCHITECTURE.md and the guides quote, and the programs in Rust of all documents,
//! compared with the source.

use super::{documents, repository};
use std::collections::HashSet;
use std::path::Path;

/// The words before a name where an item is defined or implemented.
const KEYWORDS: [&str; 8] = [
    "fn", "struct", "enum", "trait", "type", "impl", "for", "mod",
];

/// A file of Rust.
struct Source {
    /// Below the repository's root.
    path: String,
    /// Without comments.
    text: String,
    words: HashSet<String>,
    /// Names, each with the keyword before it.
    defined: HashSet<(&'static str, String)>,
}

impl Source {
    fn new(path: String, text: &str) -> Self {
        let lines = text.lines().filter_map(|line| line.split("//").next());
        let text = lines.collect::<Vec<_>>().join("\n");
        let all: Vec<_> = words_of(&text).map(str::to_owned).collect();
        let keyword = |word: &String| KEYWORDS.into_iter().find(|keyword| keyword == word);
        let defined = all
            .windows(2)
            .filter_map(|pair| Some((keyword(&pair[0])?, pair[1].clone())));
        Self {
            path,
            defined: defined.collect(),
            words: all.iter().cloned().collect(),
            text,
        }
    }

    fn defines_function(&self, name: &str) -> bool {
        self.defined.contains(&("fn", name.to_owned()))
    }

    /// Whether the file defines or implements the type `owner`, or is part of a module or crate of
    /// that name.
    fn is_of(&self, owner: &str) -> bool {
        self.path
            .contains(&format!("/{}/", owner.replace('_', "-")))
            || self.path.ends_with(&format!("/{owner}.rs"))
            || KEYWORDS
                .iter()
                .any(|keyword| self.defined.contains(&(keyword, owner.to_owned())))
    }
}

fn words_of(text: &str) -> impl Iterator<Item = &str> {
    let is_mark = |c: char| !c.is_ascii_alphanumeric() && c != '_';
    text.split(is_mark).filter(|word| !word.is_empty())
}

/// Returns the files of Rust below `folder`.
fn sources(folder: &Path) -> Vec<Source> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(sources(&path));
        } else if path.extension().is_some_and(|end| end == "rs") {
            let below = path.strip_prefix(repository()).unwrap();
            let text = std::fs::read_to_string(&path).unwrap();
            found.push(Source::new(below.to_str().unwrap().to_owned(), &text));
        }
    }
    found
}

fn all_sources() -> Vec<Source> {
    let folders = ["crates", "tests", "xtask"];
    folders
        .iter()
        .flat_map(|folder| sources(&repository().join(folder)))
        .collect()
}

/// Returns the quoted words of a document outside of its programs and of columns titled Linux, each
/// with the text that follows it up to the next one.
fn quoted(document: &str) -> Vec<(String, String)> {
    let (mut text, mut is_program, mut is_beside_linux) = (String::new(), false, false);
    for line in document.lines() {
        is_program ^= line.starts_with("```");
        is_beside_linux = line.starts_with('|') && (is_beside_linux || line.ends_with("| Linux |"));
        let line = match line.trim_end_matches(" |").rsplit_once(" |") {
            Some((cells, _)) if is_beside_linux => cells,
            _ => line,
        };
        if !is_program && !line.starts_with("```") {
            text.push_str(line);
            text.push(' ');
        }
    }
    let pieces: Vec<_> = text.split('`').map(str::to_owned).collect();
    pieces[1..]
        .chunks(2)
        .map(|pair| (pair[0].clone(), pair.get(1).cloned().unwrap_or_default()))
        .collect()
}

/// Returns whether a quoted word names something of the source. Commands, options and names of the
/// standard library are not looked up.
fn exists(word: &str, sources: &[Source]) -> bool {
    let name = word.split('(').next().unwrap_or(word);
    let is_word = |name: &str| words_of(name).eq([name]);
    let parts: Vec<_> = name.split("::").collect();
    match parts[..] {
        ["std" | "io" | "tokio", ..] => true,
        [single] if is_word(single) => {
            // `O_APPEND` is `OpenFlags::APPEND`.
            let single = single.trim_start_matches("O_");
            sources.iter().any(|source| source.words.contains(single))
        }
        [.., owner, item] if parts.iter().all(|part| is_word(part)) => sources
            .iter()
            .any(|source| source.is_of(owner) && source.words.contains(item)),
        _ if word.starts_with('/') || word.contains([' ', ':']) => true,
        _ if word.contains('/') => BELOW
            .iter()
            .any(|folder| repository().join(folder).join(word).exists()),
        _ if word.ends_with(".rs") => {
            let end = format!("/{word}");
            sources.iter().any(|source| source.path.ends_with(&end))
        }
        _ => true,
    }
}

/// The folders in which documents name files.
const BELOW: [&str; 7] = [
    "",
    "crates/folio",
    "crates/folio/src",
    "crates/folio/src/block",
    "crates/folio/src/fs/ext4",
    "crates/folio-doctor/src",
    "crates/folio-fuse/src",
];

#[test]
fn documents_name_what_the_source_has() {
    let sources = all_sources();
    let mut count = 0;
    let guides = std::fs::read_dir(repository().join("docs/guide")).unwrap();
    let guides = guides.map(|entry| entry.unwrap().path());
    for document in guides.chain([repository().join("ARCHITECTURE.md")]) {
        let quoted = quoted(&std::fs::read_to_string(&document).unwrap());
        count += quoted.len();
        for (at, (word, _)) in quoted.iter().enumerate() {
            let name = document.display();
            assert!(exists(word, &sources), "{name}: {word}");
            if !word.ends_with(".rs") {
                continue;
            }
            // `these`, `functions` in `file.rs`.
            let before = quoted[..at].iter().rev().enumerate();
            let functions = before.take_while(|(distance, (_, after))| {
                after == if *distance == 0 { " in " } else { ", " }
            });
            let end = format!("/{word}");
            for (_, (function, _)) in functions {
                let function = function.rsplit("::").next().unwrap();
                let mut files = sources.iter().filter(|source| source.path.ends_with(&end));
                let is_there = files.any(|file| file.defines_function(function));
                assert!(is_there, "{name}: {function} in {word}");
            }
        }
    }
    assert!(count > 200, "{count}");
}

#[test]
fn documents_name_tests_that_exist() {
    let sources = all_sources();
    let is_function = |name: &str| sources.iter().any(|source| source.defines_function(name));
    for name in [
        "SECURITY.md",
        "docs/promises.md",
        "docs/remote.md",
        "docs/run.md",
        "docs/semantics.md",
    ] {
        let text = std::fs::read_to_string(repository().join(name)).unwrap();
        let quoted = text.split('`').skip(1).step_by(2);
        // Four words and more are the name of a test.
        let is_name = |word: &&str| {
            let mut bytes = word.bytes();
            word.matches('_').count() > 2
                && bytes.all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_')
        };
        let mut tests = quoted.filter(is_name);
        let missing = tests.find(|test| !is_function(test));
        assert_eq!(missing, None, "{name}");
    }
}

/// Removes comments, white space and the commas that rustfmt adds.
fn normalized(code: &str) -> String {
    let lines = code.lines().filter_map(|line| line.split("//").next());
    let text: String = lines.flat_map(str::split_whitespace).collect();
    text.replace(",)", ")").replace(",]", "]")
}

#[test]
fn rust_programs_of_documents_are_compiled() {
    let sources: Vec<_> = all_sources()
        .iter()
        .map(|source| normalized(&source.text))
        .collect();
    let mut count = 0;
    for document in documents() {
        let text = std::fs::read_to_string(&document).unwrap();
        assert!(!text.contains("```rust,"), "{}", document.display());
        for block in text.split("```rust\n").skip(1) {
            let program = normalized(block.split("```").next().unwrap());
            let is_compiled = sources.iter().any(|source| source.contains(&program));
            assert!(
                is_compiled,
                "{}: no source has\n{block}",
                document.display()
            );
            count += 1;
        }
    }
    assert!(count > 8);
}
