//! Selecting files: `--exclude`, patterns inside images, `-U`; `folio diff` and `folio edit`.

use super::TestDir;
use crate::support::tools::{succeed, text, write_program};
use std::fs;
use std::io::Write;
use std::process::Stdio;

fn fixture() -> TestDir {
    let dir = TestDir::new();
    fs::create_dir_all(dir.path("tree/build/deep")).unwrap();
    for name in [
        "a.c",
        "a.o",
        "build/x",
        "build/deep/y.o",
        "keep.o",
        ".hidden.c",
    ] {
        fs::write(dir.path("tree").join(name), name).unwrap();
    }
    dir
}

#[test]
fn patterns_come_from_a_pipe() {
    let dir = fixture();
    let mut copy = dir.command(&["cp", "-a", "tree/.", "disk.img:/", "--exclude-from"]);
    copy.arg("/dev/stdin").stdin(Stdio::piped());
    let mut copy = copy.spawn().unwrap();
    let mut patterns = copy.stdin.take().unwrap();
    patterns.write_all(b"*.o\n").unwrap();
    drop(patterns);
    assert!(copy.wait().unwrap().success());
    assert!(!dir.ok(&["ls", "disk.img"]).contains(".o\n"));
    let invalid = ["cp", "-a", "tree", "disk.img:/u", "--exclude", "{a"];
    dir.fails(&invalid, 2, "--exclude \"{a\": ");
}

#[test]
fn excluded_names_are_not_copied() {
    let dir = fixture();
    fs::write(dir.path("patterns"), "*.o\n!keep.o\n# a comment\n").unwrap();
    let words = [
        "cp",
        "-a",
        "tree/.",
        "disk.img:/t",
        "--exclude-from",
        "patterns",
        "--exclude",
        "/build",
    ];
    dir.ok(&["mkdir", "disk.img:/t"]);
    dir.ok(&words);
    assert_eq!(
        dir.ok(&["ls", "-a", "disk.img:/t"]),
        ".hidden.c\na.c\nkeep.o\n"
    );
    dir.ok(&[
        "cp",
        "-a",
        "tree/.",
        "new.img:/",
        "--create",
        "auto",
        "--exclude",
        "*.c",
    ]);
    assert_eq!(
        dir.ok(&["ls", "new.img"]),
        "a.o\nbuild\nkeep.o\nlost+found\n"
    );
    dir.ok(&[
        "cp",
        "-a",
        "new.img:/.",
        "back",
        "--exclude",
        "build/",
        "--exclude",
        "lost+found",
    ]);
    let mut names: Vec<_> = fs::read_dir(dir.path("back"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    assert_eq!(names, ["a.o", "keep.o"]);
    dir.fails(
        &["cp", "-a", "tree", "disk.img:/u", "--exclude-from", "none"],
        2,
        "none",
    );
}

#[test]
fn patterns_match_names_in_an_image() {
    let dir = fixture();
    dir.ok(&["cp", "-a", "tree", "disk.img:/tree"]);
    assert_eq!(dir.ok(&["cat", "disk.img:/tree/*.[co]"]), "a.ca.okeep.o");
    assert_eq!(dir.ok(&["ls", "disk.img:/*/b?ild/x"]), "/tree/build/x\n");
    fs::create_dir(dir.path("out")).unwrap();
    dir.ok(&["cp", "disk.img:/tree/*.o", "out"]);
    assert_eq!(fs::read_dir(dir.path("out")).unwrap().count(), 2);
    dir.fails(&["cat", "disk.img:/tree/*.none"], 1, "*.none");
    fs::write(dir.path("[x]"), "literal").unwrap();
    dir.ok(&["cp", "[x]", "disk.img:/[x]"]);
    assert_eq!(dir.ok(&["cat", "disk.img:/[x]"]), "literal");
}

#[test]
fn patterns_match_in_copies_between_images() {
    let dir = fixture();
    dir.ok(&["cp", "-a", "tree", "disk.img:/tree"]);
    dir.ok(&["mkfs", "other.img", "--size", "16M"]);
    dir.ok(&["cp", "disk.img:/tree/*.[co]", "other.img:/"]);
    assert_eq!(dir.ok(&["cat", "other.img:/*.[co]"]), "a.ca.okeep.o");
    // A directory of the same image, and together with a file of the host.
    dir.ok(&["mkdir", "disk.img:/objects"]);
    dir.ok(&["cp", "disk.img:/tree/*.o", "tree/a.c", "disk.img:/objects"]);
    assert_eq!(dir.ok(&["cat", "disk.img:/objects/*"]), "a.ca.okeep.o");
    // Several files need a directory; in a new image it is created.
    let copy = ["cp", "disk.img:/tree/*.o", "other.img:/none"];
    dir.fails(&copy, 1, "other.img:/none: not a directory");
    let words = ["cp", "disk.img:/tree/*.o", "new.img:/objects"];
    dir.ok(&[&words[..], &["--create", "auto"]].concat());
    assert_eq!(dir.ok(&["cat", "new.img:/objects/*"]), "a.okeep.o");
    dir.fails(&["cp", "disk.img:/tree/*.none", "other.img:/"], 1, "*.none");
}

#[test]
fn image_in_use_is_read_with_force_share() {
    let dir = fixture();
    dir.ok(&["cp", "tree/a.c", "disk.img:/a.c"]);
    let options = folio::block::OpenOptions::default();
    let open = folio::block::open(dir.path("disk.img"), &options).unwrap();
    dir.fails(&["cat", "disk.img:/a.c"], 3, "in use");
    assert_eq!(dir.ok(&["cat", "-U", "disk.img:/a.c"]), "a.c");
    assert!(dir.ok(&["ls", "--force-share", "disk.img"]).contains("a.c"));
    dir.ok(&["cp", "-U", "disk.img:/a.c", "copied"]);
    for command in ["find", "tree", "stat", "du", "df"] {
        dir.fails(&[command, "disk.img"], 3, "in use");
        let printed = dir.ok(&[command, "-U", "disk.img"]);
        assert!(printed.contains("disk.img") || command == "du", "{printed}");
    }
    dir.fails(&["ls", "disk.img"], 3, "; -U reads it nevertheless");
    dir.fails(&["tar", "-cf", "a.tar", "disk.img"], 3, "; -U reads");
    dir.ok(&["tar", "-U", "-cf", "a.tar", "disk.img"]);
    dir.fails(&["tar", "-U", "-tf", "a.tar"], 2, "only with -c");
    dir.fails(&["info", "disk.img"], 3, "; -U reads");
    assert!(dir.ok(&["info", "-U", "disk.img"]).contains("disk.img"));
    dir.fails(&["check", "disk.img"], 8, "; -U reads");
    dir.ok(&["check", "-U", "--quiet", "disk.img"]);
    dir.fails(&["disk", "list", "disk.img"], 3, "; -U reads");
    dir.fails(&["disk", "list", "-U", "disk.img"], 1, "no partition table");
    dir.fails(&["mount", "-U", "disk.img", "out"], 2, "-U needs --ro");
    drop(open);
}

#[test]
fn diff_reports_each_kind_of_difference() {
    let dir = fixture();
    dir.ok(&["cp", "-a", "tree/.", "a.img:/", "--create", "auto+1M"]);
    fs::copy(dir.path("a.img"), dir.path("b.img")).unwrap();
    assert_eq!(dir.ok(&["diff", "a.img", "b.img"]), "");
    dir.ok(&["rm", "b.img:/a.o"]);
    dir.ok(&["mkdir", "b.img:/new"]);
    dir.ok(&["chmod", "600", "b.img:/a.c"]);
    fs::write(dir.path("other"), "BUILD/x").unwrap();
    dir.ok(&["cp", "other", "b.img:/build/x"]);
    let output = dir.command(&["diff", "a.img", "b.img"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(text(&output), "m /a.c\n- /a.o\nc /build/x\n+ /new\n");
    let output = dir
        .command(&["diff", "--brief", "a.img", "b.img"])
        .output()
        .unwrap();
    assert_eq!(
        (output.status.code(), text(&output).as_str()),
        (Some(1), "")
    );
    assert_eq!(
        dir.ok(&["diff", "a.img:/build/deep", "tree/build/deep"]),
        ""
    );
    dir.fails(
        &["diff", "a.img:/x", "b.img:/x"],
        2,
        "a.img:/x: No such file",
    );
    dir.fails(
        &["diff", "a.img:/a.c", "b.img:/x"],
        2,
        "b.img:/x: No such file",
    );
    dir.fails(&["diff", "a.img:/x", "tree"], 2, "a.img:/x: No such file");
    dir.fails(&["diff", "a.img", "none.img"], 3, "none.img");
}

#[test]
fn diff_compares_single_files() {
    let dir = fixture();
    dir.ok(&["cp", "-a", "tree/.", "a.img:/", "--create", "auto+1M"]);
    dir.ok(&["diff", "a.img:/a.c", "tree/a.c"]);
    let diff = |words: &[&str]| {
        let output = dir.command(&[&["diff"], words].concat()).output().unwrap();
        (output.status.code(), text(&output))
    };
    let content = (Some(1), "c /\n".to_owned());
    assert_eq!(diff(&["tree/a.o", "a.img:/a.c"]), content);
    assert_eq!(diff(&["a.img:/a.c", "a.img:/a.o"]), content);
    // Holes are not read: 1 TiB of zeros would take minutes.
    for image in ["a.img", "disk.img"] {
        dir.ok(&["truncate", "-s", "1T", &format!("{image}:/hole")]);
    }
    let holes = ["a.img:/hole", "disk.img:/hole"];
    dir.ok(&["diff", holes[0], holes[1]]);
    dir.ok(&["cp", "a.img:/hole", "hole"]);
    dir.ok(&["diff", "--no-owners", holes[0], "hole"]);
    // Against a directory, a file of the host is an image.
    dir.ok(&["diff", "a.img", "a.img:/"]);
    dir.fails(&["diff", "a.img:/build", "tree/a.c"], 3, "tree/a.c");
}

#[test]
fn options_may_follow_the_first_source() {
    let dir = fixture();
    dir.ok(&[
        "cp",
        "tree/a.c",
        "-a",
        "tree/build",
        "--create",
        "16M",
        "a.img:/",
    ]);
    assert_eq!(dir.ok(&["ls", "a.img:/build"]), "deep\nx\n");
    dir.fails(&["cp", "a.img:/a.c"], 2, "expected SOURCE and DESTINATION");
    dir.fails(&["mv", "a.img:/a.c"], 2, "expected SOURCE and DESTINATION");
}

#[test]
fn patterns_match_in_changes() {
    let dir = fixture();
    dir.ok(&["cp", "-a", "tree/.", "disk.img:/"]);
    dir.ok(&["chmod", "600", "disk.img:/*.o"]);
    dir.ok(&["chown", "7:8", "disk.img:/*.o"]);
    let found = dir.json(&["stat", "--json", "disk.img:/*.o"]);
    let found = found.as_array().unwrap();
    assert_eq!(found.len(), 2);
    for file in found {
        assert_eq!((&file["mode"], &file["uid"]), (&"0600".into(), &7.into()));
    }
    assert_eq!(dir.ok(&["du", "disk.img:/*.o"]).lines().count(), 2);
    dir.ok(&["rm", "disk.img:/*.o"]);
    assert_eq!(dir.ok(&["ls", "disk.img"]), "a.c\nbuild\nlost+found\n");
    dir.fails(&["rm", "disk.img:/*.o"], 1, "*.o");
    dir.ok(&["rm", "-f", "disk.img:/*.o"]);
}

#[test]
fn edited_file_keeps_its_attributes() {
    let dir = fixture();
    dir.ok(&["cp", "tree/a.c", "disk.img:/a.c"]);
    dir.ok(&["chmod", "640", "disk.img:/a.c"]);
    let editor = dir.path("an editor");
    write_program(&editor, b"#!/bin/sh\necho more >>\"$1\"\n");
    let edit = |editor: &str, file: &str| {
        let mut edit = dir.command(&["-q", "edit", file]);
        edit.env_remove("VISUAL").env("EDITOR", editor);
        edit.output().unwrap()
    };
    let quoted = format!("'{}'", editor.display());
    succeed(
        dir.command(&["-q", "edit", "disk.img:/a.c"])
            .env("VISUAL", &quoted),
    );
    assert_eq!(dir.ok(&["cat", "disk.img:/a.c"]), "a.cmore\n");
    assert!(
        dir.ok(&["ls", "-l", "disk.img:/a.c"])
            .starts_with("-rw-r-----")
    );
    assert!(edit(&quoted, "disk.img:/new").status.success());
    assert_eq!(dir.ok(&["cat", "disk.img:/new"]), "more\n");
    assert!(edit("true", "disk.img:/a.c").status.success());
    let failed = edit("false", "disk.img:/a.c");
    assert!(!failed.status.success() && text(&failed).contains("nothing is written"));
    dir.fails(&["edit", "disk.img:/lost+found"], 1, "not a regular file");
}
