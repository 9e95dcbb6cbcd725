//! The user interface on a terminal: help, manual pages, completions, colors, and hints for
//! mistyped words.

use crate::cli::TestDir;
use crate::support::tools::{command, succeed, text};
use crate::support::{Need, report_skip, requires};
use std::path::Path;
use std::process::{Command, Stdio};

/// Returns the command, with an environment that does not affect its output.
fn folio(words: &[&str]) -> Command {
    let mut folio = Command::new(env!("CARGO_BIN_EXE_folio"));
    folio
        .args(words)
        .stdin(Stdio::null())
        .env("TZ", "UTC")
        .env("TERM", "xterm");
    for name in [
        "NO_COLOR",
        "CLICOLOR",
        "CLICOLOR_FORCE",
        "COLUMNS",
        "FOLIO_LOG",
    ] {
        folio.env_remove(name);
    }
    folio
}

pub(crate) fn help(words: &[String], columns: usize) -> String {
    let words: Vec<_> = words.iter().map(String::as_str).chain(["--help"]).collect();
    text(&succeed(folio(&words).env("COLUMNS", columns.to_string())))
}

/// Returns the words of all commands, as the help texts list them.
pub(crate) fn commands() -> Vec<Vec<String>> {
    let (mut open, mut all) = (vec![Vec::new()], Vec::new());
    while let Some(words) = open.pop() {
        // That help is of folio-bench, a program of its own.
        if words == ["bench"] {
            all.push(words);
            continue;
        }
        let help = help(&words, 100);
        let listed = help.lines().skip_while(|line| *line != "Commands:").skip(1);
        for line in listed.take_while(|line| !line.is_empty()) {
            let name = line
                .strip_prefix("  ")
                .filter(|rest| !rest.starts_with(' '))
                .unwrap_or_default();
            if let Some(name) = name
                .split(' ')
                .next()
                .filter(|name| !name.is_empty() && *name != "help")
            {
                open.push(words.iter().cloned().chain([name.to_owned()]).collect());
            }
        }
        all.push(words);
    }
    all.sort();
    all
}

#[test]
fn help_fits_terminal_and_has_examples() {
    let commands = commands();
    for words in ["cp", "image create", "serve nbd", "mount", "man"] {
        assert!(
            commands.iter().any(|found| found.join(" ") == words),
            "{words}: {commands:?}"
        );
    }
    for words in &commands {
        for columns in [80, 100] {
            let help = help(words, columns);
            for line in help.lines() {
                assert!(
                    line.chars().count() <= columns,
                    "folio {words:?} --help, {columns} columns: {line}"
                );
            }
        }
        let help = help(words, 100);
        let has_subcommands = help.contains("\nCommands:");
        // A command with many variants may have its examples in the parent's help.
        let is_shown_above =
            || words.len() > 1 && self::help(&words[..words.len() - 1], 100).contains("\nExample");
        let is_shown = help.contains("\nExample") || is_shown_above();
        assert!(
            has_subcommands || is_shown,
            "folio {words:?} --help shows no example"
        );
    }
}

#[test]
fn every_command_has_a_manual_page() {
    requires!(tool("groff"));
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("man1");
    let output = succeed(folio(&["man", "--dir"]).arg(&dir));
    assert_eq!(text(&output), "");
    for words in commands() {
        let name = ["folio".to_owned()]
            .into_iter()
            .chain(words.clone())
            .collect::<Vec<_>>()
            .join("-");
        let page = dir.join(format!("{name}.1"));
        let words: Vec<_> = ["man"]
            .into_iter()
            .chain(words.iter().map(String::as_str))
            .collect();
        assert_eq!(
            text(&succeed(&mut folio(&words))),
            std::fs::read_to_string(&page).unwrap(),
            "{name}"
        );
        assert_no_warnings(&page);
        let shown = succeed(
            command("groff")
                .args(["-man", "-Tascii", "-P-cbou"])
                .arg(&page),
        );
        let shown = text(&shown);
        for section in ["NAME", "SYNOPSIS", "DESCRIPTION", "EXIT STATUS", "SEE ALSO"] {
            assert!(
                shown.lines().any(|line| line == section),
                "{name} lacks {section}:\n{shown}"
            );
        }
    }
    let whole = std::fs::read_to_string(dir.join("folio.1")).unwrap();
    assert!(
        whole.contains("SOURCE_DATE_EPOCH") && whole.contains("141"),
        "{whole}"
    );
    let cp = std::fs::read_to_string(dir.join("folio-cp.1")).unwrap();
    assert!(
        cp.contains(".SH \"EXAMPLES\"") && cp.contains(".SH NOTES"),
        "{cp}"
    );
}

/// Asserts that groff and, if it is installed, mandoc accept the page without warnings.
fn assert_no_warnings(page: &Path) {
    let output = succeed(
        command("groff")
            .args(["-man", "-Tutf8", "-ww", "-z"])
            .arg(page),
    );
    assert_eq!(text(&output), "", "{}", page.display());
    if Need::Tool("mandoc").met().is_ok() {
        // Pages have no date, so that they do not depend on the time of the build.
        let output = command("mandoc")
            .args(["-Tlint", "-Wwarning"])
            .arg(page)
            .output()
            .unwrap();
        let printed: Vec<_> = text(&output)
            .lines()
            .filter(|line| !line.contains("missing date"))
            .map(str::to_owned)
            .collect();
        assert!(printed.is_empty(), "{printed:?}");
    }
}

#[test]
fn man_of_unknown_command_is_refused() {
    let dir = TestDir::new();
    dir.fails(
        &["man", "imge"],
        2,
        "unknown command \"imge\"; did you mean image?",
    );
    dir.fails(&["man", "image", "convrt"], 2, "did you mean convert?");
    dir.fails(&["man", "--dir", "disk.img"], 1, "disk.img: ");
}

#[test]
fn completion_scripts_parse_in_their_shell() {
    let folder = tempfile::tempdir().unwrap();
    for shell in ["bash", "zsh", "fish"] {
        let script = folder.path().join(shell);
        std::fs::write(&script, text(&succeed(&mut folio(&["completions", shell])))).unwrap();
        match Need::Tool(shell).met() {
            Ok(()) => assert_eq!(
                text(&succeed(command(shell).arg("-n").arg(&script))),
                "",
                "{shell}"
            ),
            Err(reason) => report_skip(&reason),
        }
    }
}

#[test]
fn bash_completes_commands_and_options() {
    requires!(tool("bash"));
    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("folio.bash");
    std::fs::write(
        &script,
        text(&succeed(&mut folio(&["completions", "bash"]))),
    )
    .unwrap();
    let complete = |line: &str| {
        let program = format!(
            "source '{}'; COMP_WORDS=({line}); COMP_CWORD=$(( ${{#COMP_WORDS[@]}} - 1 )); \
             cur=${{COMP_WORDS[-1]}}; prev=${{COMP_WORDS[-2]}}; _folio_or_files folio \"$cur\" \"$prev\"; echo \"${{COMPREPLY[*]}}\"",
            script.display()
        );
        text(&succeed(command("bash").args(["-c", &program])))
            .trim()
            .to_owned()
    };
    assert_eq!(complete("folio imag"), "image");
    assert_eq!(complete("folio image conv"), "convert");
    assert_eq!(
        complete("folio image convert --output-f"),
        "--output-format"
    );
    assert_eq!(complete("folio image create --format qc"), "qcow2");
    assert_eq!(complete("folio --color al"), "always");
    assert!(complete("folio ''").contains("image"));
    // Words that are not of the command are left to bash, which completes files.
    assert_eq!(complete("folio mount ''"), "");
    assert_eq!(complete("folio mount di"), "");
    assert_eq!(complete("folio doctor ''"), "");
    assert_eq!(complete("folio doctor di"), "");
    let program = format!("source '{}'; complete -p folio", script.display());
    assert!(text(&succeed(command("bash").args(["-c", &program]))).contains("-o default"));
}

/// Returns a directory with an image that contains names with special characters, and the shell's
/// script.
fn bench_to_complete(shell: &str) -> (TestDir, String) {
    let dir = TestDir::new();
    for folder in ["tree/etc/conf.d", "tree/my dir"] {
        std::fs::create_dir_all(dir.path(folder)).unwrap();
    }
    for file in [
        "etc/passwd",
        "etc/group",
        "my dir/it's $x",
        "a:b",
        ".hidden",
    ] {
        std::fs::write(dir.path("tree").join(file), "").unwrap();
    }
    dir.ok(&["cp", "-a", "tree/.", "disk.img:/"]);
    let script = dir.path("script");
    std::fs::write(&script, dir.ok(&["completions", shell])).unwrap();
    let script = script.to_str().unwrap().to_owned();
    (dir, script)
}

/// Returns a program that finds `folio` in its PATH.
fn with_folio(dir: &TestDir, program: &str) -> Command {
    let folder = Path::new(env!("CARGO_BIN_EXE_folio")).parent().unwrap();
    let path = std::env::join_paths([folder.into()].into_iter().chain(std::env::split_paths(
        &std::env::var_os("PATH").unwrap_or_default(),
    )));
    let mut command = command(program);
    command
        .env("PATH", path.unwrap())
        .env("HOME", dir.folder.path())
        .current_dir(dir.folder.path());
    command
}

#[test]
fn completions_list_paths_in_images() {
    let (dir, _) = bench_to_complete("bash");
    let complete = |word: &str| dir.ok(&["completions", "bash", word]);
    assert_eq!(complete("disk.img:/etc/p"), "disk.img:/etc/passwd\n");
    let root = "disk.img:/a:b\ndisk.img:/etc/\ndisk.img:/lost+found/\ndisk.img:/my dir/\n";
    assert_eq!(complete("disk.img:"), root);
    assert_eq!(complete("disk.img:/"), root);
    assert_eq!(complete("disk.img:/.h"), "disk.img:/.hidden\n");
    for nothing in [
        "disk.img:/none",
        "disk.img",
        "none.img:/",
        "tree:/",
        "",
        ":/",
    ] {
        assert_eq!(complete(nothing), "", "{nothing}");
    }
    dir.fails(
        &["completions", "bash", "disk.img:/none/x"],
        1,
        "No such file",
    );
    dir.fails(&["completions", "bash", "script:/"], 3, "script");
}

/// Typed lines, with ~ for a tab, and the resulting words of the command.
const TYPED: &[(&str, &str)] = &[
    ("ls disk.img:/et~", "<ls><disk.img:/etc/>"),
    ("ls disk.img:/etc/pa~", "<ls><disk.img:/etc/passwd>"),
    ("ls disk.img:/etc/co~", "<ls><disk.img:/etc/conf.d/>"),
    ("cp x disk.img:/my~it~", "<cp><x><disk.img:/my dir/it's $x>"),
    (
        "cat disk.img:/a~ disk.img:/a:~",
        "<cat><disk.img:/a:b><disk.img:/a:b>",
    ),
    // Paths of the host are not completed.
    ("ls disk.img:/us~", "<ls><disk.img:/us>"),
    ("ls none.img:/etc/pas~", "<ls><none.img:/etc/passwd>"),
    ("doctor tre~", "<doctor><tree/>"),
    ("image inf~ dis~", "<image><info><disk.img>"),
];

#[test]
fn bash_completes_paths_in_images() {
    requires!(tool("bash"), tool("script"));
    let (dir, script) = bench_to_complete("bash");
    let mut lines = format!(
        "source '{script}'; folio() {{ if [ \"$1\" = completions ]; then command folio \"$@\"; \
         else printf '<%s>' \"$@\"; echo; fi; }}\n"
    );
    for (typed, _) in TYPED {
        lines.push_str(&format!("folio {}\n", typed.replace('~', "\t")));
    }
    lines.push_str("exit\n");
    let typed = dir.path("typed");
    std::fs::write(&typed, lines).unwrap();
    let mut shell = with_folio(&dir, "script");
    shell
        .args(["-qec", "bash --norc --noprofile -i", "/dev/null"])
        .env("TERM", "dumb");
    shell
        .env("INPUTRC", "/dev/null")
        .stdin(std::fs::File::open(&typed).unwrap());
    let printed = text(&shell.output().unwrap());
    for (typed, words) in TYPED {
        let is_got = printed.lines().any(|line| line.trim_end() == *words);
        assert!(is_got, "{typed}: no {words} in\n{printed}");
    }
}

#[test]
fn zsh_completes_paths_in_images() {
    requires!(tool("zsh"));
    let (dir, script) = bench_to_complete("zsh");
    let complete = |word: &str| {
        // The test replaces the functions of the completion system, and reads their arguments.
        let program = format!(
            "compdef() {{ }}; compadd() {{ print -rl -- \"${{(@P)@[-1]}}\"; }}; source '{script}'; \
             words=(folio ls '{word}'); PREFIX='{word}'; _folio_names || echo none"
        );
        let printed = text(&succeed(
            with_folio(&dir, "zsh").args(["-f", "-c", &program]),
        ));
        printed
            .lines()
            .filter(|line| !line.is_empty())
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    assert_eq!(
        complete("disk.img:/etc/"),
        [
            "disk.img:/etc/conf.d/",
            "disk.img:/etc/group",
            "disk.img:/etc/passwd"
        ]
    );
    assert_eq!(complete("disk.img:/my\\ d"), ["disk.img:/my dir/"]);
    assert!(complete("disk.img:/us").is_empty());
    for word in ["disk", "none.img:/", ":/"] {
        assert_eq!(complete(word), ["none"], "{word}");
    }
    // Arguments that are paths are completed as paths.
    let lines = std::fs::read_to_string(&script).unwrap();
    let doctor = lines
        .lines()
        .find(|line| line.starts_with("'*::paths -- Files, directories, mounts"));
    assert!(
        doctor.is_some_and(|line| line.contains(":_files'")),
        "{doctor:?}"
    );
}

#[test]
fn fish_completes_paths_in_images() {
    requires!(tool("fish"));
    let (dir, script) = bench_to_complete("fish");
    let complete = |line: &str| {
        let program = format!("source '{script}'; complete -C '{line}'");
        let printed = text(&succeed(
            with_folio(&dir, "fish").args(["-N", "-c", &program]),
        ));
        printed
            .lines()
            .map(|line| line.split('\t').next().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    assert_eq!(complete("folio ls disk.img:/et"), ["disk.img:/etc/"]);
    assert_eq!(
        complete("folio cp x disk.img:/my\\ "),
        ["disk.img:/my dir/"]
    );
    assert!(complete("folio ls disk.img:/us").is_empty());
    assert_eq!(complete("folio doctor tre"), ["tree/"]);
    assert_eq!(complete("folio imag"), ["image"]);
}

const BOLD: &str = "\u{1b}[1m";

#[test]
fn colors_follow_option_and_environment() {
    let dir = TestDir::new();
    let run = |words: &[&str], variables: &[(&str, &str)]| {
        let output = folio(words)
            .current_dir(dir.folder.path())
            .envs(variables.iter().copied())
            .output();
        text(&output.unwrap())
    };
    let is_plain = |text: &str| !text.contains('\u{1b}') && !text.is_empty();
    for words in [
        &["df", "disk.img"][..],
        &["ls", "none.img"],
        &["cp", "--help"],
        &["nonsense"],
        &["--help"],
    ] {
        let with = |word| {
            words
                .iter()
                .copied()
                .chain(["--color", word])
                .collect::<Vec<_>>()
        };
        assert!(is_plain(&run(words, &[])), "not on a pipe: {words:?}");
        assert!(
            is_plain(&run(&with("never"), &[("CLICOLOR_FORCE", "1")])),
            "{words:?}"
        );
        assert!(
            run(&with("always"), &[("NO_COLOR", "1")]).contains(BOLD),
            "{words:?}"
        );
        assert!(
            run(words, &[("CLICOLOR_FORCE", "1")]).contains(BOLD),
            "{words:?}"
        );
    }
    dir.ok(&["mkdir", "disk.img:/d"]);
    let listed = run(&["ls", "--color=always", "disk.img"], &[]);
    assert!(listed.contains("\u{1b}[34md\u{1b}[0m"), "{listed:?}");
    dir.fails(&["--color", "never", "check"], 16, "required");
    dir.fails(
        &["ls", "--color=purple", "disk.img"],
        2,
        "possible values: auto, always, never",
    );
    // Data that passes through stays unchanged.
    let data = "\u{1b}[31mred\u{1b}[0m";
    dir.write("disk.img:/red", data);
    assert_eq!(dir.ok(&["cat", "--color=never", "disk.img:/red"]), data);
}

/// Returns the output on a terminal of 90 columns.
fn on_terminal(dir: &TestDir, words: &str, variables: &[(&str, &str)]) -> String {
    let line = format!(
        "stty cols 90 rows 30; {} {words}",
        env!("CARGO_BIN_EXE_folio")
    );
    let mut script = command("script");
    script
        .args(["-qec", &line, "/dev/null"])
        .current_dir(dir.folder.path())
        .env("TERM", "xterm");
    for name in ["CI", "NO_COLOR", "CLICOLOR", "CLICOLOR_FORCE"] {
        script.env_remove(name);
    }
    text(&script.envs(variables.iter().copied()).output().unwrap())
}

#[test]
fn terminal_shows_colors_unless_disabled() {
    requires!(tool("script"), tool("stty"));
    let dir = TestDir::new();
    assert!(on_terminal(&dir, "df disk.img", &[]).contains(BOLD));
    assert!(on_terminal(&dir, "ls none.img", &[]).contains("\u{1b}[31m"));
    assert!(on_terminal(&dir, "df --help", &[]).contains(BOLD));
    for variables in [
        &[("NO_COLOR", "1")][..],
        &[("TERM", "dumb")],
        &[("TERM", "dumb"), ("CI", "1")],
    ] {
        for words in ["df disk.img", "ls none.img", "df --help", "nonsense"] {
            let printed = on_terminal(&dir, words, variables);
            assert!(
                !printed.contains('\u{1b}') && !printed.is_empty(),
                "{words} with {variables:?}: {printed:?}"
            );
        }
    }
    assert!(!on_terminal(&dir, "df --color=never disk.img", &[]).contains('\u{1b}'));
    let help = on_terminal(&dir, "mount --help --color=never", &[]);
    let longest = help
        .lines()
        .map(|line| line.trim_end().chars().count())
        .max();
    assert!(
        longest.is_some_and(|len| len <= 90 && len > 80),
        "{longest:?}"
    );
}

#[test]
fn control_characters_never_reach_a_terminal() {
    requires!(tool("script"), tool("stty"));
    let dir = TestDir::new();
    let name = "a\u{1b}[2Jb";
    dir.ok(&["mkdir", &format!("disk.img:/{name}")]);
    assert_eq!(
        dir.ok(&["ls", "disk.img"]),
        format!("{name}\nlost+found\n"),
        "bytes in a pipe"
    );
    let printed = on_terminal(&dir, "ls --color=never disk.img", &[]);
    assert!(
        printed.contains("a?[2Jb") && !printed.contains('\u{1b}'),
        "{printed:?}"
    );
    let printed = on_terminal(&dir, "tree --color=never disk.img", &[]);
    assert!(
        printed.contains("a?[2Jb") && !printed.contains('\u{1b}'),
        "{printed:?}"
    );
    dir.fails(
        &["cat", &format!("disk.img:/{name}")],
        1,
        "a\\u{1b}[2Jb: Is a directory",
    );
}

#[test]
fn unknown_word_suggests_nearest_word() {
    let dir = TestDir::new();
    dir.ok(&["mkdir", "disk.img:/etc"]);
    dir.write("disk.img:/etc/passwd", "root:x:0:0:\n");
    let meant = "did you mean disk.img:/etc";
    dir.fails(
        &["cat", "disk.img:/ect/passwd"],
        1,
        "disk.img:/ect/passwd: No such file or directory; ",
    );
    dir.fails(&["cat", "disk.img:/ect/passwd"], 1, &format!("{meant}?"));
    dir.fails(
        &["stat", "disk.img:/etc/passwrd"],
        1,
        &format!("{meant}/passwd?"),
    );
    dir.fails(&["ls", "disk.img:/etcc"], 1, &format!("{meant}?"));
    dir.fails(
        &["cp", "disk.img:/etc/paswd", "out"],
        1,
        &format!("{meant}/passwd?"),
    );
    dir.fails(&["write", "disk.img:/ect/new"], 1, &format!("{meant}?"));
    dir.fails(&["ls", "disk.ing"], 3, "did you mean disk.img?");
    dir.fails(
        &["cp", "disk.igm", "disk.img:/"],
        1,
        "did you mean disk.img?",
    );
    dir.fails(&["lss"], 2, "a similar subcommand exists: 'ls'");
    dir.fails(
        &["image", "map", "--format", "qcow", "disk.img"],
        2,
        "a similar value exists: 'qcow2'",
    );
    dir.fails(
        &["image", "create", "-o", "cluster_sise=4k", "x.qcow2", "1M"],
        2,
        "did you mean cluster_size?",
    );
    dir.fails(
        &["ls", "-o", "noatmie", "disk.img"],
        2,
        "did you mean noatime?",
    );
    dir.fails(
        &["mount", "-o", "chache=none", "disk.img", "."],
        2,
        "did you mean cache?",
    );
    dir.fails(
        &["share", "-o", "writebak", "disk.img", "--socket", "s"],
        2,
        "did you mean writeback?",
    );
    // A word without a similar one gets no hint.
    let output = dir
        .command(&["cat", "disk.img:/something"])
        .output()
        .unwrap();
    assert_eq!(
        text(&output),
        "folio: cat: disk.img:/something: No such file or directory\n"
    );
}

#[test]
fn word_of_another_program_gets_one_hint() {
    let dir = TestDir::new();
    dir.fails(
        &["mkfs", "disk.img", "-d", "tree"],
        2,
        "tip: use 'folio cp -a TREE/. IMAGE:/ --create SIZE'",
    );
    dir.fails(
        &["convert", "disk.img", "x.qcow2"],
        2,
        "tip: use 'folio image convert'\n",
    );
    dir.fails(&["status", "."], 2, "tip: use 'folio cache status'\n");
    dir.fails(
        &["--quiet", "warm", "-t", "."],
        2,
        "tip: not needed: folio warm always reads",
    );
    dir.fails(
        &["check", "-f", "disk.img"],
        16,
        "tip: not needed: folio check always checks",
    );
    let output = dir.command(&["create", "x.img", "1G"]).output().unwrap();
    assert!(
        !text(&output).contains("truncate"),
        "one hint: {}",
        text(&output)
    );
}

#[test]
fn verbose_option_logs_all_layers() {
    let dir = TestDir::new();
    dir.ok(&["image", "convert", "disk.img", "base.qcow2"]);
    dir.ok(&[
        "image",
        "create",
        "-f",
        "qcow2",
        "-b",
        "base.qcow2",
        "top.qcow2",
    ]);
    let run = |words: &[&str], log: &str| {
        let mut folio = folio(words);
        let output = folio
            .current_dir(dir.folder.path())
            .env("FOLIO_LOG", log)
            .output()
            .unwrap();
        assert!(output.status.success(), "{words:?}: {}", text(&output));
        let lossy = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (lossy(&output.stdout), lossy(&output.stderr))
    };
    let (listed, printed) = run(&["ls", "top.qcow2"], "");
    assert_eq!(printed, "");
    let (out, printed) = run(&["ls", "-v", "top.qcow2"], "");
    assert_eq!(out, listed, "the standard output is the same");
    for what in [
        "image file opened file=top.qcow2 format=qcow2 read_only=true depth=0\n",
        "base.qcow2 format=qcow2 read_only=true depth=1\n",
        "image top.qcow2: ext4 mounted block_size=1024",
        "image top.qcow2: closed; page cache hits=",
    ] {
        assert!(printed.contains(what), "{printed:?} lacks {what:?}");
    }
    assert!(
        !printed.contains("host I/O") && !printed.contains('\u{1b}'),
        "{printed:?}"
    );
    let (_, printed) = run(&["mkdir", "-vv", "disk.img:/d"], "");
    for what in [
        "fdatasync file=disk.img",
        "host I/O: reads: ",
        "ext4 options",
    ] {
        assert!(printed.contains(what), "{printed:?} lacks {what:?}");
    }
    let (_, printed) = run(&["ls", "disk.img"], "folio::block=info");
    assert!(
        printed.lines().count() == 1 && printed.contains("image file opened"),
        "{printed:?}"
    );
    let (_, printed) = run(&["ls", "disk.img"], "folio=loud");
    assert!(
        printed.starts_with("folio: ls: invalid FOLIO_LOG \"folio=loud\": "),
        "{printed:?}"
    );
}
