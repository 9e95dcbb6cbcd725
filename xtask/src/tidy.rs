//! The house rules as a program: each breach is printed with its file, line and rule.

use crate::arguments;
use crate::circles;
use crate::counts;
use crate::language;
use crate::source::{self, Mention};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Longest file, in lines; longer ones are listed in the ratchet file.
const FILE_LINES_MAX: usize = 800;
/// Longest function, in lines.
const FUNCTION_LINES_MAX: usize = 70;
/// The list of existing excess; it may shrink, never grow.
const RATCHET: &str = "xtask/ratchet.txt";
/// The layers that each layer may name besides itself. A `Process` holds its `Kernel`, so `syscall`
/// may name that type.
const LAYERS: [(&str, &[&str]); 6] = [
    ("syscall", &["vfs", "base", "kernel"]),
    ("vfs", &["cache", "base"]),
    ("fs", &["vfs", "cache", "block", "base"]),
    ("cache", &["base"]),
    ("block", &["base"]),
    ("base", &[]),
];
/// Words that mark unfinished work or a name that says nothing; split so that this file passes.
const STRAY_WORDS: [&str; 5] = [
    concat!("TO", "DO"),
    concat!("FIX", "ME"),
    concat!("XX", "X"),
    concat!("HA", "CK"),
    concat!("WI", "P"),
];
/// Names of files and modules that say nothing.
const STRAY_NAMES: [&str; 6] = ["utils", "util", "helpers", "misc", "common", "stuff"];

/// One breach of a house rule.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Breach {
    file: String,
    line: usize,
    rule: &'static str,
    message: String,
}

impl fmt::Display for Breach {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            out,
            "{}:{}: [{}] {}",
            self.file, self.line, self.rule, self.message
        )
    }
}

/// Sizes above the limits: "path" or "path::function" with its lines.
type Sizes = BTreeMap<String, usize>;

/// Checks the tree and prints the breaches.
pub(crate) fn main(root: &Path, lower: bool) -> ExitCode {
    match check(root, lower) {
        Ok(breaches) if breaches.is_empty() => ExitCode::SUCCESS,
        Ok(breaches) => {
            for breach in &breaches {
                println!("{breach}");
            }
            println!("tidy: {} breaches of the house rules", breaches.len());
            ExitCode::FAILURE
        }
        Err(error) => {
            println!("tidy: {error}");
            ExitCode::FAILURE
        }
    }
}

fn check(root: &Path, lower: bool) -> Result<Vec<Breach>, String> {
    let mut breaches = Vec::new();
    let mut sizes = BTreeMap::new();
    let seam = device_seam(&read(&root.join("crates/folio/src/block/mod.rs"))?);
    let files = sources(root)?;
    for (name, text) in &files {
        breaches.extend(words(name, text));
        breaches.extend(layers(name, text, &seam));
        measure(name, text, &mut sizes);
    }
    let mut found = circles::counts(root, &files)?;
    found.extend(arguments::counts(&files));
    found.extend(language::counts(root, &documents(root)?)?);
    breaches.extend(counted(root, lower, found)?);
    let path = root.join(RATCHET);
    let allowed = parse_ratchet(&read(&path)?)?;
    let (mut large, lowered) = ratchet(&sizes, &allowed);
    if lower {
        let kept = lowered
            .iter()
            .map(|(key, lines)| format!("{key} {lines}\n"));
        let text = format!("{RATCHET_HEAD}{}", kept.collect::<String>());
        fs::write(&path, text).map_err(|error| format!("{RATCHET}: {error}"))?;
        large.retain(|breach| breach.file != RATCHET);
    }
    breaches.extend(large);
    breaches.sort();
    Ok(breaches)
}

/// Compares counts with their ratchet.
fn counted(root: &Path, lower: bool, found: circles::Counts) -> Result<Vec<Breach>, String> {
    let measured = found.iter().map(|(key, (count, _))| (key.clone(), *count));
    let above = counts::check(root, &measured.collect(), lower)?;
    Ok(above
        .into_iter()
        .map(|(key, limit)| {
            let (count, details) = &found[&key];
            Breach {
                file: counts::FILE.to_owned(),
                line: 1,
                rule: "counts",
                message: format!(
                    "{key}: {count}, at most {limit} are allowed:\n  {}",
                    details.join("\n  ")
                ),
            }
        })
        .collect())
}

const RATCHET_HEAD: &str = "# Files and functions above the limits (800 and 70 lines), and what each may be at most.\n\
    # Entries shrink or go: `cargo xtask tidy --lower` writes them anew. New entries need a reason in review.\n";

fn read(path: &Path) -> Result<String, String> {
    fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))
}

/// All `.rs` files of the repository: their paths from its root, and their text.
///
/// # Errors
/// A folder or a file cannot be read.
pub(crate) fn sources(root: &Path) -> Result<Vec<(String, String)>, String> {
    let mut files = documents(root)?;
    files.retain(|(name, _)| name.ends_with(".rs"));
    Ok(files)
}

/// All `.rs` and `.md` files of the repository, like [`sources`].
///
/// # Errors
/// A folder or a file cannot be read.
pub(crate) fn documents(root: &Path) -> Result<Vec<(String, String)>, String> {
    let mut files = Vec::new();
    let mut open = vec![PathBuf::new()];
    while let Some(folder) = open.pop() {
        let failed = |error| format!("{}: {error}", folder.display());
        for entry in fs::read_dir(root.join(&folder)).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let name = entry.file_name().to_string_lossy().into_owned();
            let path = folder.join(&name);
            if entry.file_type().map_err(failed)?.is_dir() {
                if name != "target" && !name.starts_with('.') {
                    open.push(path);
                }
            } else if name.ends_with(".rs") || name.ends_with(".md") {
                let text = read(&root.join(&path))?;
                files.push((path.to_string_lossy().into_owned(), text));
            }
        }
    }
    files.sort();
    Ok(files)
}

/// Opening line, ASCII, stray words and names, the picture in a layer's `mod.rs`.
fn words(file: &str, text: &str) -> Vec<Breach> {
    let breach = |line, rule, message| Breach {
        file: file.to_owned(),
        line,
        rule,
        message,
    };
    let mut out = Vec::new();
    if !text.starts_with("//! ") {
        out.push(breach(
            1,
            "opening",
            "the file does not open with a `//!` line that says what it is".into(),
        ));
    }
    for (index, line) in text.lines().enumerate() {
        if let Some(character) = line.chars().find(|character| !character.is_ascii()) {
            let message = format!(
                "{:?} (U+{:04X}) is not ASCII: write it as an escape",
                character, character as u32
            );
            out.push(breach(index + 1, "ascii", message));
        }
        let split = |character: char| !character.is_ascii_alphanumeric() && character != '_';
        if let Some(word) = line.split(split).find(|word| STRAY_WORDS.contains(word)) {
            out.push(breach(
                index + 1,
                "stray-word",
                format!("`{word}`: finish it, or open an issue"),
            ));
        }
    }
    let path = Path::new(file);
    for part in path.iter().filter_map(|part| part.to_str()) {
        let stem = part.strip_suffix(".rs").unwrap_or(part);
        if STRAY_NAMES.contains(&stem) {
            out.push(breach(
                1,
                "stray-name",
                format!("`{stem}` says nothing: name it after what it holds"),
            ));
        }
    }
    let is_layer_root = LAYERS
        .iter()
        .any(|(layer, _)| file == format!("crates/folio/src/{layer}/mod.rs"));
    let is_picture = |line: &str| line.starts_with("//! ```text");
    if is_layer_root && !text.lines().any(is_picture) {
        out.push(breach(
            1,
            "picture",
            "a layer's mod.rs shows its neighbors in a `//! ```text` picture".into(),
        ));
    }
    out
}

/// Returns the module path of a file of `crates/folio/src`: `fs/ext4/mod.rs` is `[fs, ext4]`.
fn module(file: &str) -> Option<Vec<String>> {
    let inside = file
        .strip_prefix("crates/folio/src/")?
        .strip_suffix(".rs")?;
    let inside = inside.strip_suffix("/mod").unwrap_or(inside);
    Some(inside.split('/').map(str::to_owned).collect())
}

/// Returns the names of `block` that file systems may use: those that block/mod.rs re-exports from
/// device.rs, from overlay.rs, which keeps writes over any device in memory, from claim.rs, which
/// records the mounts of any device, from guarded.rs, which catches panics of any device, and from
/// contents.rs, which names what any device holds. None of these depends on a format.
fn device_seam(block_mod: &str) -> BTreeSet<String> {
    const MODULES: [&str; 5] = ["claim", "contents", "device", "guarded", "overlay"];
    let mut rooted = block_mod.to_owned();
    for module in MODULES {
        for exported in ["pub", "pub(crate)"] {
            rooted = rooted.replace(
                &format!("{exported} use {module}::"),
                &format!("use crate::{module}::"),
            );
        }
    }
    source::mentions(&source::tokens(&rooted), &[])
        .into_iter()
        .filter(|mention| {
            mention
                .segments
                .first()
                .is_some_and(|first| MODULES.contains(&first.as_str()))
        })
        .filter_map(|mention| mention.segments.get(1).cloned())
        .collect()
}

/// Checks the order of layers inside `crates/folio/src`.
fn layers(file: &str, text: &str, seam: &BTreeSet<String>) -> Vec<Breach> {
    let Some(module) = module(file) else {
        return Vec::new();
    };
    // A test composes layers as kernel.rs does.
    if module.iter().any(|part| part == "tests") {
        return Vec::new();
    }
    let layer = module[0].as_str();
    let Some((_, allowed)) = LAYERS.iter().find(|(name, _)| *name == layer) else {
        return Vec::new();
    };
    source::mentions(&source::tokens(text), &module)
        .into_iter()
        .filter_map(|mention| {
            let (rule, message) = judge(&module, allowed, &mention, seam)?;
            Some(Breach {
                file: file.to_owned(),
                line: mention.line,
                rule,
                message,
            })
        })
        .collect()
}

fn judge(
    module: &[String],
    allowed: &[&str],
    mention: &Mention,
    seam: &BTreeSet<String>,
) -> Option<(&'static str, String)> {
    let layer = module[0].as_str();
    let target = mention.segments.first()?.as_str();
    let path = format!("crate::{}", mention.segments.join("::"));
    let second = mention.segments.get(1).map(String::as_str);
    if layer == "fs" && target == "fs" && module.len() > 1 {
        let own = second.is_none_or(|second| second == module[1]);
        let message = || {
            format!(
                "fs/{} names {path}: one file system never names another",
                module[1]
            )
        };
        return (!own).then(|| ("file-systems-apart", message()));
    }
    if target == layer {
        return None;
    }
    if !LAYERS.iter().any(|(name, _)| *name == target) && target != "kernel" {
        return Some((
            "layers",
            format!("{path} hides its layer: name it as crate::<layer>::..."),
        ));
    }
    if !allowed.contains(&target) {
        let list = if allowed.is_empty() {
            "nothing".to_owned()
        } else {
            allowed.join(", ")
        };
        return Some((
            "layers",
            format!("{layer} names {path}, but may name only: {list}"),
        ));
    }
    if target == "block"
        && second.is_some_and(|second| second != "device" && !seam.contains(second))
    {
        let message = format!(
            "{path} is a concrete device: only kernel.rs names those, other files use the device seam"
        );
        return Some(("concrete", message));
    }
    None
}

fn measure(file: &str, text: &str, sizes: &mut Sizes) {
    let lines = text.lines().count();
    if lines > FILE_LINES_MAX {
        sizes.insert(file.to_owned(), lines);
    }
    for function in source::functions(&source::tokens(text)) {
        if function.lines > FUNCTION_LINES_MAX {
            let entry = sizes
                .entry(format!("{file}::{}", function.name))
                .or_default();
            *entry = function.lines.max(*entry);
        }
    }
}

fn parse_ratchet(text: &str) -> Result<Sizes, String> {
    let entries = text
        .lines()
        .filter(|line| !line.starts_with('#') && !line.trim().is_empty());
    entries
        .map(|line| {
            let (key, lines) = line
                .rsplit_once(' ')
                .ok_or_else(|| format!("{RATCHET}: {line}"))?;
            let lines = lines
                .parse()
                .map_err(|error| format!("{RATCHET}: {line}: {error}"))?;
            Ok((key.to_owned(), lines))
        })
        .collect()
}

/// Returns breaches of size limits and of entries that are larger than needed, and the lowered
/// entries.
fn ratchet(sizes: &Sizes, allowed: &Sizes) -> (Vec<Breach>, Sizes) {
    let mut breaches = Vec::new();
    for (key, &lines) in sizes {
        let (file, what, limit) = match key.split_once("::") {
            Some((file, function)) => (file, format!("function `{function}`"), FUNCTION_LINES_MAX),
            None => (key.as_str(), "file".to_owned(), FILE_LINES_MAX),
        };
        let most = allowed.get(key).copied().unwrap_or(limit);
        if lines > most {
            let message = format!("{what} has {lines} lines, at most {most} are allowed");
            breaches.push(Breach {
                file: file.to_owned(),
                line: 1,
                rule: "size",
                message,
            });
        }
    }
    let mut lowered = Sizes::new();
    for (key, &most) in allowed {
        let lines = sizes.get(key).copied().unwrap_or(0);
        if lines < most {
            let message = format!("{key} is down to {lines} lines: run `cargo xtask tidy --lower`");
            breaches.push(Breach {
                file: RATCHET.to_owned(),
                line: 1,
                rule: "size",
                message,
            });
        }
        if lines > 0 {
            lowered.insert(key.clone(), lines.min(most));
        }
    }
    (breaches, lowered)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn breaches(file: &str, text: &str) -> Vec<String> {
        let seam = device_seam(
            "mod device;\npub use device::{Allocation, Device};\npub use memory::MemoryDevice;",
        );
        layers(file, text, &seam)
            .iter()
            .map(ToString::to_string)
            .collect()
    }

    #[test]
    fn upward_layer_is_reported_with_line_and_rule() {
        let found = breaches(
            "crates/folio/src/cache/mapping.rs",
            "//! x\nuse crate::base::Error;\nuse crate::fs::ext4::Ext4;",
        );
        assert_eq!(
            found,
            [
                "crates/folio/src/cache/mapping.rs:3: [layers] cache names crate::fs::ext4::Ext4, but may name only: base"
            ]
        );
        assert_eq!(
            breaches(
                "crates/folio/src/block/raw.rs",
                "use super::super::vfs::Inode;"
            )
            .len(),
            1
        );
        assert_eq!(
            breaches(
                "crates/folio/src/vfs/walk.rs",
                "fn f(d: &crate::block::Device) {}"
            )
            .len(),
            1
        );
        assert_eq!(
            breaches(
                "crates/folio/src/base/time.rs",
                "use crate::{cache::Page, vfs::Inode};"
            )
            .len(),
            2
        );
    }

    #[test]
    fn each_layer_may_name_what_the_table_says() {
        for (layer, allowed) in LAYERS {
            for (other, _) in LAYERS {
                let text = format!("use crate::{other}::device;");
                let found = breaches(&format!("crates/folio/src/{layer}/mod.rs"), &text);
                assert_eq!(
                    found.is_empty(),
                    other == layer || allowed.contains(&other),
                    "{layer} {other} {found:?}"
                );
            }
        }
    }

    #[test]
    fn file_systems_name_neither_each_other_nor_devices() {
        let file = "crates/folio/src/fs/ext4/file.rs";
        assert_eq!(
            breaches(
                file,
                "use crate::fs::ext4::disk; use crate::block::{Device, Allocation};"
            ),
            [""; 0]
        );
        assert!(breaches(file, "use crate::fs::ramfs::Ramfs;")[0].contains("[file-systems-apart]"));
        assert!(
            breaches(file, "use super::super::ramfs::Ramfs;")[0].contains("[file-systems-apart]")
        );
        assert!(breaches(file, "use crate::block::MemoryDevice;")[0].contains("[concrete]"));
        assert_eq!(
            breaches(
                "crates/folio/src/kernel.rs",
                "use crate::fs::ramfs; use crate::block::Raw;"
            ),
            [""; 0]
        );
    }

    #[test]
    fn re_exports_at_the_root_do_not_hide_a_layer() {
        assert!(
            breaches("crates/folio/src/vfs/walk.rs", "use crate::Process;")[0]
                .contains("hides its layer")
        );
    }

    #[test]
    fn words_are_reported() {
        let text = format!(
            "// no opening\nlet a = \"\u{e9}\"; // {}: later\n",
            STRAY_WORDS[0]
        );
        let rules: Vec<_> = words("crates/x/src/utils.rs", &text)
            .iter()
            .map(|breach| breach.rule)
            .collect();
        assert_eq!(rules, ["opening", "ascii", "stray-word", "stray-name"]);
        assert_eq!(
            words("crates/folio/src/vfs/mod.rs", "//! x\n")[0].rule,
            "picture"
        );
    }

    #[test]
    fn ratchet_shrinks_and_never_grows() {
        let sizes = |pairs: &[(&str, usize)]| {
            pairs
                .iter()
                .map(|(key, n)| ((*key).to_owned(), *n))
                .collect()
        };
        let allowed = parse_ratchet("# head\na.rs 900\na.rs::f 80\n").unwrap();
        let (found, kept) = ratchet(&sizes(&[("a.rs", 900), ("a.rs::f", 80)]), &allowed);
        assert!(found.is_empty() && kept == allowed);
        let (found, kept) = ratchet(&sizes(&[("a.rs", 901), ("b.rs::g", 71)]), &allowed);
        let found: Vec<_> = found.iter().map(|breach| breach.message.as_str()).collect();
        assert_eq!(found.len(), 3, "{found:?}");
        assert!(
            found[0].contains("901") && found[1].contains("`g`") && found[2].contains("a.rs::f")
        );
        assert_eq!(kept, sizes(&[("a.rs", 900)]));
        assert!(parse_ratchet("nonsense").is_err());
    }

    #[test]
    fn measures_files_and_functions() {
        let mut sizes = Sizes::new();
        measure(
            "a.rs",
            &format!("fn f() {{\n{}}}\n{}", "a;\n".repeat(69), "\n".repeat(800)),
            &mut sizes,
        );
        let want: [(String, usize); 2] = [("a.rs".into(), 871), ("a.rs::f".into(), 71)];
        assert_eq!(sizes.into_iter().collect::<Vec<_>>(), want);
    }
}
