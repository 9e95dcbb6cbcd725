//! A Rust source file as tokens: enough to see paths, functions and modules without a parser.

/// One word or punctuation mark of the source, with comments and literals left out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Token {
    /// Counted from 1.
    pub(crate) line: usize,
    pub(crate) text: String,
}

/// A path that begins with `crate`, written out: a group becomes one path per member.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Mention {
    pub(crate) line: usize,
    /// Segments after `crate`.
    pub(crate) segments: Vec<String>,
}

/// A function and the lines from `fn` to its closing brace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Function {
    pub(crate) line: usize,
    pub(crate) name: String,
    pub(crate) lines: usize,
}

/// A part of the source that is not blank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Comment,
    /// A string, with its prefix and quotes.
    String,
    /// A character or the quote of a lifetime.
    Quote,
    Token,
}

/// A part of the source and the line it begins on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Piece<'a> {
    pub(crate) kind: Kind,
    /// Counted from 1.
    pub(crate) line: usize,
    pub(crate) text: &'a str,
}

/// Splits `source` into comments, literals and tokens.
pub(crate) fn pieces(source: &str) -> Vec<Piece<'_>> {
    let (mut out, mut line, mut at) = (Vec::new(), 1, 0);
    while let Some(first) = source[at..].chars().next() {
        let rest = &source[at..];
        let (kind, len) = if first.is_whitespace() {
            at += first.len_utf8();
            line += usize::from(first == '\n');
            continue;
        } else if rest.starts_with("//") {
            (Kind::Comment, rest.find('\n').unwrap_or(rest.len()))
        } else if rest.starts_with("/*") {
            (Kind::Comment, block_comment(rest))
        } else if let Some(len) = raw_string(rest) {
            (Kind::String, len)
        } else if first == '"' || rest.starts_with("b\"") || rest.starts_with("c\"") {
            (Kind::String, quoted(rest))
        } else if first == '\'' || rest.starts_with("b'") {
            (Kind::Quote, character_or_lifetime(rest))
        } else if first == '_' || first.is_ascii_alphanumeric() {
            let is_end = |byte| byte != b'_' && !u8::is_ascii_alphanumeric(&byte);
            let end = rest.bytes().position(is_end);
            (Kind::Token, end.unwrap_or(rest.len()))
        } else if rest.starts_with("::") {
            (Kind::Token, 2)
        } else {
            (Kind::Token, first.len_utf8())
        };
        let text = &rest[..len];
        out.push(Piece { kind, line, text });
        line += text.matches('\n').count();
        at += len;
    }
    out
}

/// Splits `source` into tokens; comments, strings and characters are dropped.
pub(crate) fn tokens(source: &str) -> Vec<Token> {
    pieces(source)
        .into_iter()
        .filter(|piece| piece.kind == Kind::Token)
        .map(|piece| Token {
            line: piece.line,
            text: piece.text.to_owned(),
        })
        .collect()
}

fn block_comment(rest: &str) -> usize {
    let bytes = rest.as_bytes();
    let (mut depth, mut at) = (0, 0);
    while at + 1 < bytes.len() {
        match &bytes[at..at + 2] {
            b"/*" => (depth, at) = (depth + 1, at + 2),
            b"*/" => {
                (depth, at) = (depth - 1, at + 2);
                if depth == 0 {
                    return at;
                }
            }
            _ => at += 1,
        }
    }
    rest.len()
}

/// Returns the length of a raw string that `rest` begins with: `r"a"`, `br##"a"##`.
fn raw_string(rest: &str) -> Option<usize> {
    let prefix = ["r", "br", "cr"].into_iter().find(|prefix| {
        let after = rest.strip_prefix(prefix).unwrap_or("");
        after.trim_start_matches('#').starts_with('"')
    })?;
    let hashes = rest[prefix.len()..]
        .bytes()
        .take_while(|&byte| byte == b'#')
        .count();
    let open = prefix.len() + hashes + 1;
    let close = format!("\"{}", "#".repeat(hashes));
    Some(
        rest[open..]
            .find(&close)
            .map_or(rest.len(), |end| open + end + close.len()),
    )
}

/// Returns the length of the string that `rest` begins with, its prefix and quotes included.
fn quoted(rest: &str) -> usize {
    let bytes = rest.as_bytes();
    let mut at = rest.find('"').unwrap_or(0) + 1;
    while at < bytes.len() {
        match bytes[at] {
            b'\\' => at += 2,
            b'"' => return at + 1,
            _ => at += 1,
        }
    }
    rest.len()
}

fn character_or_lifetime(rest: &str) -> usize {
    let open = rest.find('\'').unwrap_or(0) + 1;
    let mut characters = rest[open..].char_indices();
    match characters.next() {
        Some((_, '\\')) => {
            let body = &rest[open + 1..];
            let skip = body.chars().next().map_or(0, char::len_utf8);
            open + 1 + skip + body[skip..].find('\'').map_or(0, |end| end + 1)
        }
        _ => match characters.next() {
            Some((at, '\'')) => open + at + 1,
            _ => open,
        },
    }
}

/// Returns the lines of inline `#[cfg(test)]` modules.
pub(crate) fn test_lines(source: &str) -> Vec<std::ops::RangeInclusive<usize>> {
    let tokens = tokens(source);
    test_modules(&tokens)
        .into_iter()
        .map(|range| tokens[range.start].line..=tokens[range.end].line)
        .collect()
}

/// Returns inline `#[cfg(test)]` modules, as ranges of token indices.
fn test_modules(tokens: &[Token]) -> Vec<std::ops::Range<usize>> {
    let attribute = ["#", "[", "cfg", "(", "test", ")", "]"];
    let mut out = Vec::new();
    for at in 0..tokens.len() {
        let here = &tokens[at..];
        if here.len() < 10
            || !here
                .iter()
                .zip(attribute)
                .all(|(token, text)| token.text == text)
        {
            continue;
        }
        let open = here
            .iter()
            .position(|token| token.text == "{" || token.text == ";");
        if let Some(open) = open
            && here[..open].iter().any(|token| token.text == "mod")
            && here[open].text == "{"
        {
            out.push(at..closing_brace(tokens, at + open));
        }
    }
    out
}

/// Returns the index of the brace that closes the one at `open`.
pub(crate) fn closing_brace(tokens: &[Token], open: usize) -> usize {
    let mut depth = 0;
    for (at, token) in tokens.iter().enumerate().skip(open) {
        match token.text.as_str() {
            "{" => depth += 1,
            "}" => {
                depth -= 1;
                if depth == 0 {
                    return at;
                }
            }
            _ => {}
        }
    }
    tokens.len() - 1
}

/// Returns all paths of the crate in `tokens`, outside of test modules. `module` is the file's own
/// path.
pub(crate) fn mentions(tokens: &[Token], module: &[String]) -> Vec<Mention> {
    let tests = test_modules(tokens);
    let mut out = Vec::new();
    let mut modules: Vec<(usize, String)> = Vec::new();
    for at in 0..tokens.len() {
        modules.retain(|(end, _)| at < *end);
        let text = tokens[at].text.as_str();
        let next = tokens.get(at + 1).map(|token| token.text.as_str());
        if text == "mod" && tokens.get(at + 2).is_some_and(|token| token.text == "{") {
            modules.push((closing_brace(tokens, at + 2), tokens[at + 1].text.clone()));
        }
        let starts = matches!(text, "crate" | "super") && next == Some("::");
        let follows = at > 0 && tokens[at - 1].text == "::";
        if !starts || follows || tests.iter().any(|range| range.contains(&at)) {
            continue;
        }
        let mut prefix: Vec<String> = Vec::new();
        let mut begin = at;
        if text == "super" {
            prefix.extend(module.iter().cloned());
            prefix.extend(modules.iter().map(|(_, name)| name.clone()));
            while tokens.get(begin).is_some_and(|token| token.text == "super") {
                prefix.pop();
                begin += 2;
            }
        } else {
            begin += 2;
        }
        tree(tokens, begin, prefix, tokens[at].line, &mut out);
    }
    out
}

/// Reads a use tree or a plain path from `at`; returns the index after it.
fn tree(
    tokens: &[Token],
    mut at: usize,
    mut prefix: Vec<String>,
    mut line: usize,
    out: &mut Vec<Mention>,
) -> usize {
    while let Some(token) = tokens.get(at) {
        line = line.max(token.line);
        if token.text == "{" {
            at += 1;
            while tokens.get(at).is_some_and(|token| token.text != "}") {
                let before = at;
                at = tree(tokens, at, prefix.clone(), tokens[at].line, out);
                while tokens
                    .get(at)
                    .is_some_and(|token| token.text != "," && token.text != "}")
                {
                    at += 1;
                }
                if tokens.get(at).is_some_and(|token| token.text == ",") {
                    at += 1;
                }
                if at == before {
                    break;
                }
            }
            return at + 1;
        }
        if token.text == "self" && !prefix.is_empty() {
            break;
        }
        if !is_identifier(&token.text) {
            break;
        }
        prefix.push(token.text.clone());
        at += 1;
        if tokens.get(at).is_none_or(|token| token.text != "::") {
            break;
        }
        at += 1;
    }
    out.push(Mention {
        line,
        segments: prefix,
    });
    at
}

/// Returns the names of functions marked `#[test]`, each with its line.
pub(crate) fn test_names(tokens: &[Token]) -> Vec<(usize, String)> {
    let attribute = ["#", "[", "test", "]"];
    let is_test = |here: &[Token]| {
        here.iter()
            .zip(attribute)
            .all(|(token, text)| token.text == text)
    };
    tokens
        .windows(4)
        .enumerate()
        .filter(|(_, window)| is_test(window))
        .filter_map(|(at, _)| {
            let rest = &tokens[at..];
            let name = rest.iter().position(|token| token.text == "fn")? + 1;
            Some((rest.get(name)?.line, rest[name].text.clone()))
        })
        .collect()
}

/// Returns whether a token is a name or a keyword.
pub(crate) fn is_identifier(text: &str) -> bool {
    text.starts_with(|first: char| first == '_' || first.is_ascii_alphabetic())
}

/// Returns every function with a body.
pub(crate) fn functions(tokens: &[Token]) -> Vec<Function> {
    let mut out = Vec::new();
    for at in 0..tokens.len().saturating_sub(1) {
        let name = &tokens[at + 1];
        if tokens[at].text != "fn" || !is_identifier(&name.text) {
            continue;
        }
        let mut nested = 0;
        let open = tokens[at..].iter().position(|token| {
            match token.text.as_str() {
                "(" | "[" => nested += 1,
                ")" | "]" => nested -= 1,
                _ => {}
            }
            nested == 0 && (token.text == "{" || token.text == ";")
        });
        if let Some(open) = open.map(|open| at + open)
            && tokens[open].text == "{"
        {
            let end = tokens[closing_brace(tokens, open)].line;
            let line = tokens[at].line;
            out.push(Function {
                line,
                name: name.text.clone(),
                lines: end - line + 1,
            });
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paths(source: &str, module: &[&str]) -> Vec<(usize, String)> {
        let module: Vec<String> = module.iter().map(|name| (*name).to_owned()).collect();
        mentions(&tokens(source), &module)
            .into_iter()
            .map(|mention| (mention.line, mention.segments.join("::")))
            .collect()
    }

    #[test]
    fn literals_and_comments_are_left_out() {
        let source = "// crate::fs::x\n/* crate::a /* b */ */ let a = \"crate::b\"; r#\"crate::c \" \"#; 'c'; '\\'' crate::d";
        assert_eq!(paths(source, &[]), [(2, "d".to_owned())]);
    }

    #[test]
    fn groups_are_written_out_with_their_lines() {
        let source = "use crate::{\n  base::{self, Result as R},\n  block::*,\n};\nfn f(a: crate::vfs::Inode) {}";
        let want = [
            (2, "base"),
            (2, "base::Result"),
            (3, "block"),
            (5, "vfs::Inode"),
        ];
        assert_eq!(
            paths(source, &[]),
            want.map(|(line, path)| (line, path.to_owned()))
        );
    }

    #[test]
    fn super_is_resolved_from_files_and_inline_modules() {
        assert_eq!(
            paths("use super::super::fs::ext4;", &["cache", "mapping"]),
            [(1, "fs::ext4".to_owned())]
        );
        let source = "mod inner { use super::super::block::Device; }";
        assert_eq!(paths(source, &["cache"]), [(1, "block::Device".to_owned())]);
    }

    #[test]
    fn visibility_and_tests_are_left_out() {
        assert_eq!(
            paths("pub(crate) fn f() {} pub(in crate::vfs) struct A;", &[]),
            [(1, "vfs".to_owned())]
        );
        assert_eq!(
            paths("#[cfg(test)]\nmod tests { use crate::fs::ext4; }", &[]),
            []
        );
    }

    #[test]
    fn functions_are_measured_from_fn_to_brace() {
        let source = "impl A {\n fn long(\n  a: [u8; 4],\n ) {\n  if a { b }\n }\n fn none();\n}\nlet f: fn(u8);";
        assert_eq!(
            functions(&tokens(source)),
            [Function {
                line: 2,
                name: "long".into(),
                lines: 5
            }]
        );
    }

    #[test]
    fn lifetimes_do_not_open_a_string() {
        assert_eq!(
            paths("fn f<'a>(x: &'a str) -> crate::base::R<'a> {}", &[]),
            [(1, "base::R".to_owned())]
        );
    }
}
