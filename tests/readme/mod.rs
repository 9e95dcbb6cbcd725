//! The documents: shell blocks of the README and of the tour run in order, in one directory each;
//! other commands parse; links, names and figures are those of the repository.

mod names;

use crate::support;

use std::path::{Path, PathBuf};
use std::process::Command;
use support::requires;
use support::tools::{command, fsck, qemu_check, succeed, text, to_raw};
use tempfile::TempDir;

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .canonicalize()
        .expect("the repository is here")
}

/// Returns the lines of all fenced blocks of `language`.
fn blocks(markdown: &str, language: &str) -> Vec<String> {
    let fence = format!("```{language}");
    let mut lines = markdown.lines();
    let mut out = Vec::new();
    while lines.by_ref().any(|line| line == fence) {
        out.extend(
            lines
                .by_ref()
                .take_while(|line| *line != "```")
                .map(str::to_owned),
        );
    }
    out
}

/// Runs `cargo run --release --` as the command of this build.
const CARGO: &str = r#"
cargo() {
    [ "$1 $2 $3" = "run --release --" ] || { echo "not the main job: cargo $*" >&2; return 1; }
    shift 3
    folio "$@"
}
"#;

#[test]
fn readme_and_tour_commands_succeed() {
    for name in ["README.md", "docs/guide/tour.md"] {
        let document = std::fs::read_to_string(repository().join(name)).unwrap();
        let lines = blocks(&document, "sh");
        assert!(
            lines
                .iter()
                .any(|line| line.starts_with("cargo run --release -- cp -a ")),
            "{name} begins with a tree copied into an image"
        );
        let scratch = TempDir::new().unwrap();
        run_commands(&lines, scratch.path());
        check_images(scratch.path());
        if name == "docs/guide/tour.md" {
            let config = scratch.path().join("etc/app/settings.toml");
            assert_eq!(
                std::fs::read_to_string(config).unwrap(),
                "level = \"debug\"\n"
            );
        }
    }
}

/// Runs each line with bash in `folder`, which holds the sources that the documents copy.
fn run_commands(lines: &[String], folder: &Path) {
    assert!(lines.len() > 5, "the document has commands: {lines:?}");
    let source = folder.join("crates/folio/src");
    std::fs::create_dir_all(&source).unwrap();
    let mut copy = Command::new("cp");
    succeed(
        copy.arg("-a")
            .arg(repository().join("crates/folio/src/."))
            .arg(&source),
    );
    let path = search_path();
    for line in lines {
        let script = format!("set -eu\n{CARGO}\n{line}\n");
        let mut shell = command("bash");
        let output = shell
            .args(["-o", "pipefail", "-c", &script])
            .current_dir(folder)
            .env("PATH", &path)
            .output();
        let output = output.expect("bash runs");
        assert!(
            output.status.success(),
            "$ {line}\n{}\n{}",
            output.status,
            text(&output)
        );
    }
}

/// Returns PATH with the command of this build first.
fn search_path() -> std::ffi::OsString {
    let program = Path::new(env!("CARGO_BIN_EXE_folio"));
    let folders = std::env::var_os("PATH").unwrap_or_default();
    let folders = program
        .parent()
        .into_iter()
        .map(PathBuf::from)
        .chain(std::env::split_paths(&folders));
    std::env::join_paths(folders).unwrap()
}

#[test]
fn build_document_commands_succeed() {
    requires!(
        tool("skopeo"),
        tool("zstd"),
        tool("jq"),
        tool("veritysetup")
    );
    let document = std::fs::read_to_string(repository().join("docs/build.md")).unwrap();
    let lines = blocks(&document, "sh");
    let scratch = TempDir::new().unwrap();
    let mut shell = command("bash");
    shell.args(["-o", "pipefail", "-euxc", &lines.join("\n")]);
    succeed(shell.current_dir(scratch.path()).env("PATH", search_path()));
    check_images(scratch.path());
    if support::Need::Tool("e2fsck").met().is_ok() {
        fsck(&scratch.path().join("app.img"));
        for image in ["copy.img", "etc.img", "piped.img"] {
            fsck(&scratch.path().join(image));
        }
    }
}

#[test]
fn powercut_document_commands_succeed() {
    requires!(fuse);
    let document = std::fs::read_to_string(repository().join("docs/powercut.md")).unwrap();
    let lines = blocks(&document, "sh");
    let scratch = TempDir::new().unwrap();
    let mut shell = command("bash");
    shell.args(["-o", "pipefail", "-euxc", &lines.join("\n")]);
    let ended = succeed(shell.current_dir(scratch.path()).env("PATH", search_path()));
    let printed = text(&ended);
    // The program loses counters, and the cured one does not.
    let words = [
        "a saved counter is lost",
        "\neio@fsync:11 ",
        "\nkill@any:1 ",
    ];
    for word in words {
        assert!(printed.contains(word), "{word:?} is not in:\n{printed}");
    }
    let needs = [
        support::require::root(),
        support::require::loop_devices(),
        support::require::file_system("ext4"),
    ];
    let has_kernel = needs.into_iter().all(|need| need.met().is_ok());
    let clean = printed.matches(" 0 failed the check").count();
    assert_eq!(
        clean,
        4 + usize::from(has_kernel),
        "cured, in a qcow2 file, on a full disk, on Folio's ext4, on the kernel's:\n{printed}"
    );
    if has_kernel {
        let leaked = "bytes of another file\n  lost:";
        assert!(printed.contains(leaked), "{printed}");
    }
}

/// Lets qemu-img and e2fsck judge the images that the commands left behind.
fn check_images(folder: &Path) {
    if support::Need::Tool("qemu-img").met().is_err()
        || support::Need::Tool("e2fsck").met().is_err()
    {
        return;
    }
    qemu_check(&folder.join("disk.qcow2"));
    to_raw(&folder.join("disk.qcow2"), &folder.join("disk.raw"));
    for image in ["disk.raw", "other.img", "empty.img"] {
        if folder.join(image).exists() {
            fsck(&folder.join(image));
        }
    }
}

#[test]
fn readme_program_is_the_example() {
    let readme = std::fs::read_to_string(repository().join("README.md")).unwrap();
    let example = repository().join("crates/folio/examples/first_steps.rs");
    let example = std::fs::read_to_string(example).unwrap();
    let program: Vec<_> = example
        .lines()
        .skip_while(|line| line.starts_with("//!") || line.is_empty())
        .collect();
    assert_eq!(blocks(&readme, "rust"), program);
}

/// Returns the documents of the root, and of docs.
fn documents() -> Vec<PathBuf> {
    let root = repository();
    let mut documents: Vec<_> = [
        "README",
        "README.ja",
        "ARCHITECTURE",
        "CONTRIBUTING",
        "CHANGELOG",
        "SECURITY",
    ]
    .map(|name| root.join(format!("{name}.md")))
    .into();
    for folder in ["docs", "docs/guide", "docs/design"] {
        let entries = std::fs::read_dir(root.join(folder)).unwrap();
        let paths = entries.map(|entry| entry.unwrap().path());
        documents.extend(paths.filter(|path| path.extension().is_some_and(|end| end == "md")));
    }
    documents
}

#[test]
fn document_links_lead_to_files() {
    for document in documents() {
        let text = std::fs::read_to_string(&document).unwrap();
        let links = text
            .split("](")
            .skip(1)
            .filter_map(|rest| rest.split(')').next());
        for link in links.filter(|link| !link.starts_with("http") && !link.starts_with('#')) {
            let target = document
                .parent()
                .unwrap()
                .join(link.split('#').next().unwrap());
            assert!(target.exists(), "{} links to {link}", document.display());
        }
    }
}

#[test]
fn document_lists_name_every_document() {
    let docs = repository().join("docs");
    // The index, and the order of the site.
    let lists = ["README.md", "SUMMARY.md"];
    for list in lists {
        let text = std::fs::read_to_string(docs.join(list)).unwrap();
        for folder in ["", "guide/", "design/"] {
            for entry in std::fs::read_dir(docs.join(folder)).unwrap() {
                let name = entry.unwrap().file_name().into_string().unwrap();
                let link = format!("]({folder}{name})");
                assert!(
                    !name.ends_with(".md")
                        || lists.contains(&name.as_str())
                        || text.contains(&link),
                    "docs/{list} lacks {folder}{name}"
                );
            }
        }
    }
}

#[test]
fn japanese_readme_has_the_same_commands() {
    let [english, japanese] = ["README.md", "README.ja.md"]
        .map(|name| std::fs::read_to_string(repository().join(name)).unwrap());
    for language in ["sh", "rust", "python"] {
        let (ours, theirs) = (blocks(&english, language), blocks(&japanese, language));
        assert_eq!(ours, theirs, "{language}");
    }
    let commands = |text: &str| {
        let lines = blocks(text, "console");
        let lines = lines.iter().map(|line| without_comment(line).to_owned());
        lines.collect::<Vec<_>>()
    };
    assert_eq!(commands(&english), commands(&japanese));
    let count = |text: &str, start: &str| text.lines().filter(|l| l.starts_with(start)).count();
    for start in ["## ", "| ", "- "] {
        assert_eq!(count(&english, start), count(&japanese, start), "{start:?}");
    }
}

/// Returns a command without the comment at its end.
fn without_comment(line: &str) -> &str {
    line.split_once("  #")
        .map_or(line, |(command, _)| command)
        .trim_end()
}

#[test]
fn readme_console_commands_parse() {
    let readme = std::fs::read_to_string(repository().join("README.md")).unwrap();
    let lines = blocks(&readme, "console");
    assert!(lines.len() > 8, "{lines:?}");
    for line in &lines {
        let command_line = line.strip_prefix("$ ").or_else(|| line.strip_prefix("# "));
        let command_line = without_comment(command_line.expect("a prompt begins each line"));
        succeed(command("bash").args(["-n", "-c", command_line]));
        let words: Vec<_> = command_line.split_whitespace().collect();
        match words[..] {
            ["folio", ref words @ ..] => check_options(words),
            ["cargo", "install", "--path", path, ..] => {
                assert!(repository().join(path).is_dir(), "{line}");
            }
            _ => {}
        }
    }
}

/// Checks that the command has a help page, which names each long option among `words`.
fn check_options(words: &[&str]) {
    let names = if words[0] == "serve" { 2 } else { 1 };
    let mut folio = Command::new(env!("CARGO_BIN_EXE_folio"));
    let output = folio.arg("help").args(&words[..names]).output().unwrap();
    assert!(output.status.success(), "{words:?}");
    let help = String::from_utf8(output.stdout).unwrap();
    let own = words[names..].iter().take_while(|word| **word != "--");
    for option in own.filter(|word| word.starts_with("--")) {
        assert!(help.contains(option), "{words:?}: {option}");
    }
}

#[test]
fn plots_show_the_figures_of_the_table() {
    let read = |name: &str| std::fs::read_to_string(repository().join(name)).unwrap();
    let readme = read("README.md");
    let plots = ["light", "dark"].map(|theme| read(&format!("docs/plots/measured-{theme}.svg")));
    // Only the colors differ.
    let [light, dark] = plots.each_ref().map(|plot| {
        let lines = plot.lines().filter(|line| !line.starts_with("<style>"));
        lines.collect::<Vec<_>>()
    });
    assert_eq!(light, dark);
    let figures: Vec<_> = light
        .iter()
        .filter(|line| line.contains("class=\"figure\""))
        .map(|line| without_tags(line))
        .collect();
    assert_eq!(figures.len(), 10);
    for figure in figures {
        let (ours, peer) = figure.split_once(" beside ").unwrap();
        let (theirs, _) = peer.rsplit_once(", ").unwrap();
        let is_row = |line: &str| line.starts_with("| ") && has(line, ours) && has(line, theirs);
        assert!(readme.lines().any(is_row), "{figure}");
    }
}

/// Returns whether a row of a table has this figure, and not as a part of another one.
fn has(row: &str, figure: &str) -> bool {
    let figures = row.split(['|', ';']).map(str::trim);
    figures
        .map(|cell| cell.split(", ").next())
        .any(|cell| cell == Some(figure))
}

/// Returns the text of a line of XML.
fn without_tags(line: &str) -> String {
    let pieces = line.split('<').filter_map(|piece| piece.split_once('>'));
    pieces.map(|(_, text)| text).collect()
}
