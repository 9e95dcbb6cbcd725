//! `folio shell`: scripts, paths, the host's shell, and a terminal.

use super::TestDir;
use crate::support::requires;
use crate::support::terminal::converse;
use crate::support::tools::{fsck, text};
use std::fs;
use std::process::Output;

fn script(dir: &TestDir, words: &[&str], lines: &str) -> Output {
    fs::write(dir.path("script"), lines).unwrap();
    let input = fs::File::open(dir.path("script")).unwrap();
    let mut words = words.to_vec();
    words.insert(0, "shell");
    dir.command(&words).stdin(input).output().unwrap()
}

#[test]
fn shell_script_works_inside_image() {
    let dir = TestDir::new();
    fs::create_dir(dir.path("site")).unwrap();
    fs::write(dir.path("site/in dex"), "hello\n").unwrap();
    let lines = "\
        mkdir -p srv/web   # a comment\n\
        cd srv/web\n\
        put site .\n\
        pwd\n\
        ls\n\
        cat 'site/in dex' | tr a-z A-Z\n\
        cp site/in\\ dex copy\n\
        mv copy ../moved\n\
        ln -s ../moved link\n\
        cat link\n\
        cd ..\n\
        find\n\
        get moved back\n\
        !cat back; rm script\n\
        chmod 600 moved\n\
        stat --json moved >stat.json\n\
        cd\n\
        rm -r srv/web\n\
        ls srv\n\
        exit\n\
        cat nothing\n";
    let output = script(&dir, &["disk.img"], lines);
    assert!(output.status.success(), "{}", text(&output));
    let want = "disk.img:/srv/web\nsite\nHELLO\nhello\n\
        disk.img:/srv\ndisk.img:/srv/moved\ndisk.img:/srv/web\ndisk.img:/srv/web/link\n\
        disk.img:/srv/web/site\ndisk.img:/srv/web/site/in dex\nhello\nmoved\n";
    assert_eq!(text(&output), want);
    let stat = fs::read_to_string(dir.path("stat.json")).unwrap();
    assert!(stat.contains("/srv/moved"), "{stat}");
    fsck(&dir.path("disk.img"));
}

#[test]
fn shell_script_ends_at_first_failure() {
    let dir = TestDir::new();
    let output = script(&dir, &["disk.img"], "-cat a\ncat b\ntouch c\n");
    assert_eq!(output.status.code(), Some(1));
    let printed = text(&output);
    assert!(
        printed.contains("/a: No such") && printed.contains("/b: No such"),
        "{printed}"
    );
    assert_eq!(dir.ok(&["ls", "disk.img"]), "lost+found\n");
    dir.fails(
        &["shell", "disk.img", "-c", "cd /no"],
        1,
        "disk.img:/no: No such file",
    );
    dir.fails(&["shell", "disk.img", "-c", "sl"], 2, "did you mean ls?");
    dir.fails(
        &["shell", "disk.img", "-c", "cat 'a"],
        2,
        "a quote has no end",
    );
    dir.fails(
        &["shell", "disk.img", "-c", "put"],
        2,
        "expected put HOST...",
    );
    dir.fails(&["shell", "none.img"], 3, "none.img");
    dir.fails(&["shell", "disk.img:/no"], 1, "disk.img:/no: No such file");
    dir.fails(&["shell", "disk.img", "-c", "!exit 7"], 7, "");
    let output = dir
        .command(&["shell", "disk.img", "-c", "-cat a", "-c", "touch b"])
        .output();
    assert!(output.unwrap().status.success());
    assert_eq!(dir.ok(&["ls", "disk.img"]), "b\nlost+found\n");
    let output = script(&dir, &["disk.img"], "write /b\nline\n");
    assert_eq!(output.status.code(), Some(2));
    assert!(
        text(&output).contains("write FILE <HOST"),
        "{}",
        text(&output)
    );
}

#[test]
fn shell_keeps_image_across_lcd() {
    let dir = TestDir::new();
    fs::create_dir(dir.path("host")).unwrap();
    fs::write(dir.path("host/file"), "x").unwrap();
    let output = script(&dir, &["disk.img"], "lcd host\nput file\nlpwd\ncat file\n");
    let want = format!("{}\nx", dir.path("host").canonicalize().unwrap().display());
    assert_eq!(text(&output), want);
}

#[test]
fn shell_reads_image_in_use() {
    let dir = TestDir::new();
    dir.ok(&["touch", "disk.img:/file"]);
    let in_use = folio::block::open(dir.path("disk.img"), &folio::block::OpenOptions::default());
    let _in_use = in_use.unwrap();
    dir.fails(&["shell", "disk.img", "-c", "ls"], 3, "disk.img");
    assert_eq!(
        dir.ok(&["shell", "-U", "disk.img", "-c", "ls"]),
        "file\nlost+found\n"
    );
}

#[test]
fn shell_runs_pasted_lines_one_by_one() {
    requires!(tool("python3"));
    let dir = TestDir::new();
    dir.ok(&["mkdir", "disk.img:/old", "disk.img:/etc"]);
    let mut shell = dir.command(&["shell", "disk.img"]);
    shell.env("TERM", "xterm");
    // A paste in brackets, then lines that arrive together with it.
    let dialog = "disk.img:/> |\\x1b[200~rm -r /old\\nls /etc\\x1b[201~\\r\
        mkdir /a\\rmkdir /b\\rmkdir /c\\rexit\\r\n";
    let (code, errors) = converse(&shell, dialog);
    assert_eq!(code, Some(0), "{errors}");
    assert_eq!(dir.ok(&["ls", "disk.img"]), "a\nb\nc\netc\nlost+found\n");
}

#[test]
fn shell_completes_names_on_a_terminal() {
    requires!(tool("python3"));
    let dir = TestDir::new();
    dir.ok(&["mkdir", "disk.img:/with space", "disk.img:/alpha"]);
    dir.ok(&["touch", "disk.img:/alpha/file"]);
    let mut shell = dir.command(&["shell", "disk.img"]);
    shell.env("TERM", "xterm");
    // Tab completes a command, a directory and a name; Ctrl-C clears a line.
    let dialog = "disk.img:/> |unlink\\x03\n\
        disk.img:/> |touc\\tal\\tnew\\r\n\
        disk.img:/> |cd wi\\t\\r\n\
        disk.img:/with space> |sleep\\r\n\
        unknown command|exit\\r\n";
    let (code, errors) = converse(&shell, dialog);
    assert_eq!(code, Some(0), "{errors}");
    assert_eq!(dir.ok(&["ls", "disk.img:/alpha"]), "file\nnew\n");
}
