//! Requests of `folio debug`, parsed.

use super::answer::LsOptions;
use crate::exit::{Failure, Outcome};
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;

/// A request, in the words of debugfs.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Request {
    Stat(InodeName),
    Blocks(InodeName),
    Bmap(InodeName, u64),
    Icheck(Vec<u64>),
    Ncheck(Vec<u32>),
    Ls(InodeName, LsOptions),
    Testb(u64, u64),
    Testi(InodeName),
    Logdump,
}

/// An inode, by its number or by a path.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum InodeName {
    Number(u32),
    Path(Vec<u8>),
}

/// The words of all requests, for messages.
const WORDS: &str = "stat, blocks, bmap, icheck, ncheck, ls, testb, testi, logdump";

impl Request {
    /// Parses a request: words, or one word that holds all, as for `debugfs -R`.
    pub(super) fn parse(words: &[OsString]) -> Outcome<Self> {
        let is_space = |byte: &u8| byte.is_ascii_whitespace();
        let words: Vec<Vec<u8>> = match words {
            [one] => {
                let words = one.as_bytes().split(is_space);
                words
                    .filter(|word| !word.is_empty())
                    .map(<[u8]>::to_vec)
                    .collect()
            }
            words => words.iter().map(|word| word.as_bytes().to_vec()).collect(),
        };
        let Some((name, arguments)) = words.split_first() else {
            return Err(Failure::usage(format!(
                "empty request: expected one of {WORDS}"
            )));
        };
        let name = String::from_utf8_lossy(name);
        match (&*name, arguments) {
            ("stat", [inode]) => Ok(Self::Stat(inode_name(inode)?)),
            ("blocks", [inode]) => Ok(Self::Blocks(inode_name(inode)?)),
            ("bmap", [inode, block]) => Ok(Self::Bmap(inode_name(inode)?, number(block)?)),
            ("icheck", [_, ..]) => {
                let blocks = arguments.iter().map(|word| number(word));
                Ok(Self::Icheck(blocks.collect::<Outcome<_>>()?))
            }
            ("ncheck", [_, ..]) => {
                let inodes = arguments.iter().map(|word| number(word));
                Ok(Self::Ncheck(inodes.collect::<Outcome<_>>()?))
            }
            ("ls", arguments) => ls(arguments),
            ("testb", [block]) => Ok(Self::Testb(number(block)?, 1)),
            ("testb", [block, count]) => Ok(Self::Testb(number(block)?, number(count)?)),
            ("testi", [inode]) => Ok(Self::Testi(inode_name(inode)?)),
            ("logdump", []) => Ok(Self::Logdump),
            (known, _) if WORDS.split(", ").any(|word| word == known) => Err(Failure::usage(
                format!("{known}: wrong arguments; see folio debug --help"),
            )),
            (unknown, _) => Err(Failure::usage(format!(
                "unknown request {unknown:?}: expected one of {WORDS}"
            ))),
        }
    }
}

fn ls(arguments: &[Vec<u8>]) -> Outcome<Request> {
    let mut options = LsOptions::default();
    let mut names = Vec::new();
    for word in arguments {
        match &word[..] {
            b"-l" => options.is_long = true,
            b"-d" => options.shows_unused = true,
            b"-ld" | b"-dl" => (options.is_long, options.shows_unused) = (true, true),
            name => names.push(name),
        }
    }
    match names[..] {
        [] => Ok(Request::Ls(InodeName::Path(b"/".to_vec()), options)),
        [name] => Ok(Request::Ls(inode_name(name)?, options)),
        _ => Err(Failure::usage("ls: expected one directory")),
    }
}

/// Parses `<N>` or a path.
fn inode_name(word: &[u8]) -> Outcome<InodeName> {
    let inner = word
        .strip_prefix(b"<")
        .and_then(|word| word.strip_suffix(b">"));
    match inner {
        Some(digits) => number(digits).map(InodeName::Number),
        None => Ok(InodeName::Path(word.to_vec())),
    }
}

/// Parses a number in base 10 or, with `0x`, in base 16.
fn number<N: TryFrom<u64>>(word: &[u8]) -> Outcome<N> {
    let text = String::from_utf8_lossy(word);
    let parsed = match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => text.parse(),
    };
    let number = parsed.ok().and_then(|number| N::try_from(number).ok());
    number.ok_or_else(|| Failure::usage(format!("invalid number {text:?}: expected digits")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(words: &[&str]) -> Result<Request, String> {
        let words: Vec<OsString> = words.iter().map(OsString::from).collect();
        Request::parse(&words).map_err(|failure| failure.message)
    }

    #[test]
    fn requests_are_words_or_one_word() {
        let twelve = Request::Stat(InodeName::Number(12));
        assert_eq!(parse(&["stat <12>"]), Ok(twelve));
        let path = InodeName::Path(b"/a b".to_vec());
        assert_eq!(parse(&["stat", "/a b"]), Ok(Request::Stat(path)));
        assert_eq!(parse(&["icheck 1 0x10"]), Ok(Request::Icheck(vec![1, 16])));
        assert_eq!(parse(&["testb", "7", "3"]), Ok(Request::Testb(7, 3)));
    }

    #[test]
    fn invalid_requests_are_refused() {
        for words in [
            "",
            "stat",
            "stat <x>",
            "rm /a",
            "bmap <2>",
            "ncheck 99999999999",
        ] {
            assert!(parse(&[words]).is_err(), "{words}");
        }
    }
}
