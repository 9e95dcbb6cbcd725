//! The modules of a crate: the items that each defines, what it imports, and the paths it mentions.

use crate::source::{Token, closing_brace, is_identifier};
use std::collections::HashMap;

/// Keywords that define an item; the identifier after one is the item's name.
const ITEM_KEYWORDS: [&str; 9] = [
    "struct",
    "enum",
    "union",
    "trait",
    "type",
    "fn",
    "const",
    "static",
    "macro_rules",
];

/// A path as written, with its line: `super::Name` is `[super, Name]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Path {
    pub(crate) line: usize,
    pub(crate) segments: Vec<String>,
}

/// One name that a `use` brings in; a glob has the name `*`.
#[derive(Debug, Clone)]
pub(crate) struct Import {
    pub(crate) name: String,
    pub(crate) path: Path,
    /// `pub use` or `pub(...) use`.
    pub(crate) is_reexport: bool,
}

/// A module: a file, or an inline `mod` within one.
#[derive(Debug, Default)]
pub(crate) struct Module {
    /// Index of the file.
    pub(crate) file: usize,
    pub(crate) parent: Option<usize>,
    pub(crate) children: HashMap<String, usize>,
    pub(crate) items: Vec<String>,
    pub(crate) imports: Vec<Import>,
    /// Paths outside of `use`, single identifiers included.
    pub(crate) paths: Vec<Path>,
    /// Modules in files of their own that exist in test builds only.
    pub(crate) test_children: Vec<String>,
}

/// Reads the tokens of one file into `modules[at]` and new entries for its inline modules.
pub(crate) fn read(tokens: &[Token], modules: &mut Vec<Module>, at: usize) {
    Reader { tokens, modules }.body(0, tokens.len(), at, true);
}

struct Reader<'a> {
    tokens: &'a [Token],
    modules: &'a mut Vec<Module>,
}

impl Reader<'_> {
    fn text(&self, at: usize) -> &str {
        self.tokens.get(at).map_or("", |token| &token.text)
    }

    /// Reads `begin..end` into a module. `defines` holds outside of function bodies and the like.
    fn body(&mut self, begin: usize, end: usize, module: usize, defines: bool) {
        let mut at = begin;
        while at < end {
            at = self.step(at, module, defines);
        }
    }

    /// Reads what begins at `at`; returns the index after it.
    fn step(&mut self, at: usize, module: usize, defines: bool) -> usize {
        let text = self.text(at).to_owned();
        match text.as_str() {
            "#" if self.text(at + 1) == "[" => return self.attribute(at, module),
            "use" => return self.import(at, module),
            "mod" if self.text(at + 2) == ";" => return at + 3,
            "mod" if self.text(at + 2) == "{" => {
                let end = closing_brace(self.tokens, at + 2);
                let inner = self.child(at + 1, module);
                self.body(at + 3, end, inner, true);
                return end + 1;
            }
            "{" => {
                // The body of a macro call defines items as its surroundings do.
                let called = at >= 2 && self.text(at - 1) == "!" && self.text(at - 2) != "=";
                let end = closing_brace(self.tokens, at);
                self.body(at + 1, end, module, defines && called);
                return end + 1;
            }
            _ => {}
        }
        if defines && ITEM_KEYWORDS.contains(&text.as_str()) {
            let skip = usize::from(matches!(self.text(at + 1), "!" | "mut"));
            let name = self.text(at + 1 + skip);
            if is_identifier(name) && !ITEM_KEYWORDS.contains(&name) {
                let name = name.to_owned();
                self.modules[module].items.push(name);
                return at + 2 + skip;
            }
        }
        if !is_identifier(&text) || (at > 0 && self.text(at - 1) == ".") {
            return at + 1;
        }
        let line = self.tokens[at].line;
        let (mut segments, mut next) = (vec![text], at + 1);
        while self.text(next) == "::" && is_identifier(self.text(next + 1)) {
            segments.push(self.text(next + 1).to_owned());
            next += 2;
        }
        self.modules[module].paths.push(Path { line, segments });
        next
    }

    /// Skips an attribute, and the item below it where that is for tests only.
    fn attribute(&mut self, at: usize, module: usize) -> usize {
        let close = closing_bracket(self.tokens, at + 1);
        let is_off = self.text(at + 2) == "cfg"
            && predicate(&mut self.tokens[at + 4..close].iter().peekable()) == Some(false);
        if !is_off {
            return close + 1;
        }
        let (mut end, mut depth) = (close + 1, 0);
        while end < self.tokens.len() {
            match self.text(end) {
                "(" | "[" | "<" => depth += 1,
                ")" | "]" => depth -= 1,
                ">" if !matches!(self.text(end - 1), "-" | "=") => depth -= 1,
                "{" | ";" | "," if depth <= 0 => break,
                "mod" if self.text(end + 2) == ";" => {
                    let name = self.text(end + 1).to_owned();
                    self.modules[module].test_children.push(name);
                }
                _ => {}
            }
            end += 1;
        }
        if self.text(end) == "{" {
            end = closing_brace(self.tokens, end);
        }
        end + 1
    }

    fn child(&mut self, name: usize, module: usize) -> usize {
        let name = self.text(name).to_owned();
        let index = self.modules.len();
        self.modules.push(Module {
            file: self.modules[module].file,
            parent: Some(module),
            ..Module::default()
        });
        self.modules[module].children.insert(name, index);
        index
    }

    fn import(&mut self, at: usize, module: usize) -> usize {
        let is_reexport = at > 0 && matches!(self.text(at - 1), "pub" | ")");
        let mut found = Vec::new();
        let mut end = self.tree(at + 1, Vec::new(), &mut found);
        while end < self.tokens.len() && self.text(end) != ";" {
            end += 1;
        }
        let imports = found.into_iter().map(|(name, path)| Import {
            name,
            path,
            is_reexport,
        });
        self.modules[module].imports.extend(imports);
        end + 1
    }

    /// Reads a use tree; returns the index after it.
    fn tree(&self, mut at: usize, prefix: Vec<String>, found: &mut Vec<(String, Path)>) -> usize {
        let mut segments = prefix;
        loop {
            let line = self.tokens.get(at).map_or(0, |token| token.line);
            match self.text(at) {
                "::" => at += 1,
                "{" => {
                    at += 1;
                    while at < self.tokens.len() && self.text(at) != "}" {
                        at = self.tree(at, segments.clone(), found);
                        at += usize::from(self.text(at) == ",");
                    }
                    return at + 1;
                }
                "*" => {
                    found.push(("*".to_owned(), Path { line, segments }));
                    return at + 1;
                }
                text if is_identifier(text) => {
                    if text != "self" || segments.is_empty() {
                        segments.push(text.to_owned());
                    }
                    at += 1;
                    if self.text(at) == "::" {
                        continue;
                    }
                    let mut name = segments.last().cloned().unwrap_or_default();
                    if self.text(at) == "as" {
                        self.text(at + 1).clone_into(&mut name);
                        at += 2;
                    }
                    found.push((name, Path { line, segments }));
                    return at;
                }
                _ => return at + 1,
            }
        }
    }
}

fn closing_bracket(tokens: &[Token], open: usize) -> usize {
    let mut depth = 0;
    for (at, token) in tokens.iter().enumerate().skip(open) {
        match token.text.as_str() {
            "[" => depth += 1,
            "]" => depth -= 1,
            _ => continue,
        }
        if depth == 0 {
            return at;
        }
    }
    tokens.len() - 1
}

/// The value of a `cfg` predicate without tests; `None` where other settings decide.
fn predicate<'a>(
    tokens: &mut std::iter::Peekable<impl Iterator<Item = &'a Token>>,
) -> Option<bool> {
    let name = tokens.next()?.text.as_str();
    let mut members = Vec::new();
    if tokens.next_if(|token| token.text == "(").is_some() {
        while tokens.peek().is_some_and(|token| token.text != ")") {
            members.push(predicate(tokens));
            tokens.next_if(|token| token.text == ",");
        }
        tokens.next();
    } else {
        while tokens
            .next_if(|token| !matches!(token.text.as_str(), "," | ")"))
            .is_some()
        {}
    }
    let all = |wanted: bool| members.iter().all(|member| *member == Some(wanted));
    match name {
        "test" => Some(false),
        "not" => members.first()?.map(|value| !value),
        "all" if members.contains(&Some(false)) => Some(false),
        "all" if all(true) => Some(true),
        "any" if members.contains(&Some(true)) => Some(true),
        "any" if all(false) => Some(false),
        _ => None,
    }
}
