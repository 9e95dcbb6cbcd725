//! `folio shell`: commands inside an image, with a current directory and completion.
//!
//! ```text
//!   mod.rs          the loop over lines: cd, pwd, put, get, !, help; scripts and -c
//!     v
//!   line.rs         a line: words, a tail for the host's shell     completion.rs   Tab
//!   names.rs        the commands
//! ```
//!
//! All other commands are those of `folio`. Each runs as a process of its own with `--inside
//! IMAGE:/directory`, so what it changed is in the image when it ends, Ctrl-C ends only that
//! command, and the image is free between two commands.

mod completion;
mod line;
mod names;

use crate::arguments::force_share::ForceShare;
use crate::exit::{Exit, Failure, Outcome};
use crate::image::{Access, with_image};
use crate::image_path::ImagePath;
use crate::objects::is_url;
use crate::output::io_reason;
use crate::session::Session;
use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{ArgAction, Args};
use completion::Completion;
use line::Line;
use names::{COMMANDS, OWN_COMMANDS};
use rustyline::config::CompletionType;
use rustyline::error::ReadlineError;
use rustyline::history::MemHistory;
use rustyline::{Config, Editor};
use signal_hook::consts::{SIGINT, SIGQUIT};
use std::ffi::{OsStr, OsString};
use std::io::{BufRead, IsTerminal, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::Arc;

const AFTER_HELP: &str = "\
Commands: cd, pwd, put HOST... [DIR], get PATH... [HOST], lcd, lpwd, help, exit, and folio's ls, cat, cp, mv, rm, ln, find,
tree, stat, du, df, diff, edit, write, touch, truncate, mkdir, mknod, chmod, chown with paths inside the image.
!COMMAND runs on the host; | > < and what follows go to the host's shell. A script ends at the first command that fails,
unless the line starts with '-'.

Examples:
  folio shell disk.qcow2
  folio shell disk.qcow2@2:/etc
  folio shell disk.qcow2 -c 'mkdir -p /srv' -c 'put ./site /srv' -c 'ls -lR /srv'
  folio shell disk.qcow2 <script";

/// Work inside an image, one command at a time
#[derive(Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Shell {
    /// The image; with a path, start in that directory
    image: OsString,
    /// Run this line and exit; repeatable
    #[arg(
        short,
        long = "command",
        value_name = "LINE",
        allow_hyphen_values = true
    )]
    commands: Vec<String>,
    #[command(flatten)]
    share: ForceShare,
}

/// The state between two lines.
struct State<'a> {
    /// The image and the current directory.
    place: ImagePath,
    is_shared: bool,
    /// Standard input is the script, and no input for its commands.
    reads_script: bool,
    session: &'a Session,
    /// Options of all commands, as words.
    global: Vec<OsString>,
    tree: fn() -> clap::Command,
}

/// Whether the shell goes on after a line.
#[derive(Debug, PartialEq, Eq)]
enum Next {
    Line,
    Exit,
}

/// Runs the command and returns the exit code of the command that ended a script.
pub(crate) fn run(shell: &Shell, session: &Session, tree: fn() -> clap::Command) -> Outcome<u8> {
    shell.share.apply(session);
    let mut state = State {
        place: ImagePath::parse(&shell.image)?,
        is_shared: session.shares_images(),
        reads_script: shell.commands.is_empty() && !std::io::stdin().is_terminal(),
        session,
        global: global_words(tree()),
        tree,
    };
    let start = state.place.path.clone();
    state.change_directory(&start)?;
    // The command that runs ends at Ctrl-C; the shell does not.
    for signal in [SIGINT, SIGQUIT] {
        let _ = signal_hook::flag::register(signal, Arc::default());
    }
    if !shell.commands.is_empty() {
        let lines = shell.commands.iter().cloned().map(Ok);
        return run_script(&mut state, lines);
    }
    if state.reads_script {
        return run_script(&mut state, std::io::stdin().lock().lines());
    }
    run_terminal(&mut state).map(|()| 0)
}

/// Runs lines until one fails.
fn run_script(
    state: &mut State<'_>,
    lines: impl Iterator<Item = std::io::Result<String>>,
) -> Outcome<u8> {
    for line in lines {
        let line = line?;
        let (text, ignores_failure) = match line.trim_start().strip_prefix('-') {
            Some(rest) => (rest, true),
            None => (line.as_str(), false),
        };
        match state.run(text) {
            Ok((Next::Exit, code)) => return Ok(code),
            Ok((Next::Line, code)) if code != 0 && !ignores_failure => return Ok(code),
            Err(failure) if ignores_failure => state.session.note(failure.message),
            Err(failure) => return Err(failure),
            Ok(_) => {}
        }
    }
    Ok(0)
}

/// Runs lines from a terminal until the user ends the shell.
fn run_terminal(state: &mut State<'_>) -> Outcome {
    let failed = |error: ReadlineError| Failure::new(format!("terminal: {error}"));
    let config = Config::builder()
        .completion_type(CompletionType::List)
        .auto_add_history(true)
        .build();
    let history = MemHistory::with_config(&config);
    let mut editor =
        Editor::<Completion<'_>, MemHistory>::with_history(config, history).map_err(failed)?;
    if !state.session.quiet {
        state.session.note("help lists the commands; Ctrl-D ends");
    }
    loop {
        editor.set_helper(Some(Completion::new(state.place.clone(), state.session)));
        match editor.readline(&format!("{}> ", state.place)) {
            // Pasted text may have several lines. None runs after one that failed.
            Ok(text) => {
                for line in text.lines() {
                    match state.run(line) {
                        Ok((Next::Exit, _)) => return Ok(()),
                        Ok((Next::Line, 0)) => {}
                        Ok(_) => break,
                        Err(failure) => {
                            state.session.note(failure.message);
                            break;
                        }
                    }
                }
            }
            Err(ReadlineError::Interrupted) => {}
            Err(ReadlineError::Eof) => return Ok(()),
            Err(error) => return Err(failed(error)),
        }
    }
}

impl State<'_> {
    /// Runs a line. Returns the exit code of its command.
    fn run(&mut self, text: &str) -> Outcome<(Next, u8)> {
        if let Some(command) = text.trim_start().strip_prefix('!') {
            return Ok((Next::Line, self.run_on_host(command)?));
        }
        let line = Line::parse(text)?;
        let Some((name, words)) = line.words.split_first() else {
            return Ok((Next::Line, 0));
        };
        let code = match name.as_str() {
            "exit" | "quit" => return Ok((Next::Exit, 0)),
            "cd" => {
                let target = words.first().map_or("/", String::as_str);
                self.change_directory(Path::new(target)).map(|()| 0)?
            }
            "pwd" => print(&self.place)?,
            "lcd" => self.change_host_directory(words.first())?,
            "lpwd" => print(std::env::current_dir()?.display())?,
            "help" | "?" => self.help(words)?,
            "put" | "get" => self.copy(name == "put", words, line.tail)?,
            name if COMMANDS.contains(&name) => self.run_folio(&line)?,
            name => return Err(unknown(name)),
        };
        Ok((Next::Line, code))
    }

    /// Changes the current directory inside the image, which must exist.
    fn change_directory(&mut self, path: &Path) -> Outcome {
        let names = with_image(self.session, &self.place, Access::Read, |image| {
            let process = image.process();
            process
                .chdir(self.place.path.join(path))
                .map_err(|error| image.name(error))?;
            process.getcwd().map_err(|error| image.name(error))
        })?;
        self.place.path = PathBuf::from(OsString::from_vec(names));
        Ok(())
    }

    fn change_host_directory(&mut self, path: Option<&String>) -> Outcome<u8> {
        let home = || std::env::var("HOME").unwrap_or_else(|_| "/".to_owned());
        let path = path.cloned().unwrap_or_else(home);
        // The image keeps its place.
        let image = if is_url(self.place.image.as_os_str()) {
            self.place.image.clone()
        } else {
            std::path::absolute(&self.place.image)?
        };
        std::env::set_current_dir(&path)
            .map_err(|error| Failure::new(format!("{path}: {}", io_reason(&error))))?;
        self.place.image = image;
        Ok(0)
    }

    /// Copies files into the image or out of it. The last of several paths is the destination.
    fn copy(&self, is_put: bool, words: &[String], tail: &str) -> Outcome<u8> {
        let inside = |word: &str| {
            let path = self.place.path.join(word);
            self.place.with_path(path).to_string()
        };
        let host = |word: &str| word.to_owned();
        let (options, paths): (Vec<_>, Vec<_>) =
            words.iter().partition(|word| word.starts_with('-'));
        let (sources, destination) = match paths.as_slice() {
            [] => {
                let (name, what) = if is_put {
                    ("put", "HOST")
                } else {
                    ("get", "PATH")
                };
                return Err(Failure::usage(format!("{name}: expected {name} {what}...")));
            }
            [source] => (std::slice::from_ref(source), "."),
            [sources @ .., last] => (sources, last.as_str()),
        };
        let mut command = vec!["cp".to_owned(), "-a".to_owned()];
        command.extend(options.into_iter().cloned());
        command.push("--".to_owned());
        for source in sources {
            command.push(if is_put { host(source) } else { inside(source) });
        }
        command.push(if is_put {
            inside(destination)
        } else {
            host(destination)
        });
        self.start(&command, tail)
    }

    /// Runs a command of folio whose paths are inside the image.
    fn run_folio(&self, line: &Line<'_>) -> Outcome<u8> {
        let mut words = vec!["--inside".to_owned(), self.place.to_string()];
        words.extend(line.words.iter().cloned());
        if self.reads_script && line.words[0] == "write" && !line.tail.starts_with('<') {
            let text = "write: a script has no input for it: use write FILE <HOST";
            return Err(Failure::usage(text));
        }
        if self.is_missing_a_path(&line.words) {
            words.push(".".to_owned());
        }
        if self.is_shared && self.has_force_share(&line.words[0]) {
            words.push("--force-share".to_owned());
        }
        self.start(&words, line.tail)
    }

    /// Whether the command is one about a directory, and no path is given.
    fn is_missing_a_path(&self, words: &[String]) -> bool {
        let folio = std::iter::once("folio");
        let words = folio.chain(words.iter().map(String::as_str));
        let parsed = (self.tree)().try_get_matches_from(words);
        parsed.is_err_and(|error| error.kind() == ErrorKind::MissingRequiredArgument)
    }

    fn has_force_share(&self, name: &str) -> bool {
        let tree = (self.tree)();
        let command = tree.find_subcommand(name);
        command.is_some_and(|command| {
            command
                .get_arguments()
                .any(|argument| argument.get_long() == Some("force-share"))
        })
    }

    fn help(&self, words: &[String]) -> Outcome<u8> {
        if let Some(name) = words.first() {
            if let Some((_, help)) = OWN_COMMANDS.iter().find(|(own, _)| own == name) {
                return print(help);
            }
            return self.start(&[name.clone(), "--help".to_owned()], "");
        }
        let tree = (self.tree)();
        let mut out = std::io::stdout().lock();
        for (_, help) in OWN_COMMANDS {
            writeln!(out, "{help}")?;
        }
        for name in COMMANDS {
            let about = tree
                .find_subcommand(name)
                .and_then(clap::Command::get_about);
            let about = about.map(ToString::to_string).unwrap_or_default();
            writeln!(out, "{name}: {about}")?;
        }
        Ok(0)
    }

    /// Runs `folio` with these words; `tail` goes to the host's shell.
    fn start(&self, words: &[String], tail: &str) -> Outcome<u8> {
        let program = std::env::current_exe()?;
        let words = self
            .global
            .iter()
            .map(OsString::as_os_str)
            .chain(words.iter().map(OsStr::new));
        if tail.is_empty() {
            let mut folio = Command::new(program);
            if self.reads_script {
                folio.stdin(Stdio::null());
            }
            return code(folio.args(words).status(), "folio");
        }
        let mut script = OsString::new();
        for word in std::iter::once(program.as_os_str()).chain(words) {
            let quoted = shlex::bytes::try_quote(word.as_bytes())
                .map_err(|_| Failure::usage("a word has a NUL character"))?;
            script.push(OsStr::from_bytes(&quoted));
            script.push(" ");
        }
        script.push(tail);
        self.run_on_host(script)
    }

    fn run_on_host(&self, script: impl AsRef<OsStr>) -> Outcome<u8> {
        code(Command::new("sh").arg("-c").arg(script).status(), "sh")
    }
}

fn print(what: impl std::fmt::Display) -> Outcome<u8> {
    writeln!(std::io::stdout(), "{what}")?;
    Ok(0)
}

/// Returns the exit code of a process as shells do.
fn code(status: std::io::Result<ExitStatus>, program: &str) -> Outcome<u8> {
    let status = status
        .map_err(|error| Failure::new(format!("cannot start {program}: {}", io_reason(&error))))?;
    let signal = || 128 + status.signal().unwrap_or_default();
    Ok(u8::try_from(status.code().unwrap_or_else(signal)).unwrap_or(u8::MAX))
}

/// Returns the options of all commands that this command line has, for the commands of the shell.
fn global_words(tree: clap::Command) -> Vec<OsString> {
    let parsed = tree.clone().try_get_matches_from(std::env::args_os());
    let Some((_, found)) = parsed.as_ref().ok().and_then(clap::ArgMatches::subcommand) else {
        return Vec::new();
    };
    let mut words = Vec::new();
    for option in tree.get_arguments().filter(|option| option.is_global_set()) {
        let id = option.get_id().as_str();
        let (Some(name), Some(ValueSource::CommandLine)) =
            (option.get_long(), found.value_source(id))
        else {
            continue;
        };
        match option.get_action() {
            ArgAction::Count => {
                let count = usize::from(found.get_count(id));
                words.extend(std::iter::repeat_n(
                    OsString::from(format!("--{name}")),
                    count,
                ));
            }
            ArgAction::SetTrue => words.push(format!("--{name}").into()),
            _ => words.extend(found.get_raw(id).into_iter().flatten().map(|value| {
                let mut word = OsString::from(format!("--{name}="));
                word.push(value);
                word
            })),
        }
    }
    words
}

fn unknown(name: &str) -> Failure {
    let known = OWN_COMMANDS.iter().map(|(own, _)| *own).chain(COMMANDS);
    let hint = crate::nearest::nearest(name, known)
        .map(|meant| format!("; did you mean {meant}?"))
        .unwrap_or_default();
    Failure::exiting(
        Exit::Usage,
        format!("{name}: unknown command{hint} (help lists the commands)"),
    )
}
