//! `folio completions`: shell scripts that complete commands, options, and paths inside images.
//!
//! clap makes the scripts. The parts added here complete `IMAGE:/path` by running `folio
//! completions SHELL WORD`.

use crate::exit::Outcome;
use crate::image::{Access, with_image};
use crate::image_path::PathArgument;
use crate::session::Session;
use crate::walk::join;
use clap::{Arg, Args, Command, ValueHint};
use clap_complete::Shell;
use folio::vfs::FileType;
use std::any::TypeId;
use std::ffi::{OsStr, OsString};
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

const EXAMPLES: &str = "\
Examples:
  source <(folio completions bash)                 for this shell
  folio completions bash > /usr/share/bash-completion/completions/folio
  folio completions zsh > /usr/share/zsh/site-functions/_folio
  folio completions fish > /usr/share/fish/vendor_completions.d/folio.fish

Paths inside images are completed too: folio ls disk.img:/et<TAB>.";

/// The addition to clap's script for bash: it completes paths inside images. If a command takes
/// files, it offers only options before the first letter.
///
/// bash splits words at colons, so only the text after the last colon is replaced. Quoted words are
/// left to bash.
const BASH: &str = r#"
_folio_names() {
    local line="${COMP_LINE:0:COMP_POINT}" word image prefix name
    local pattern='(^|[[:space:]])(([^[:space:]\"'\'']|\\.)+)$'
    COMPREPLY=()
    [[ ${line} =~ ${pattern} ]] || return 1
    word="${BASH_REMATCH[2]}"
    [[ ${word} == ?*:* ]] || return 1
    prefix="${word%"$2"}"
    word="${word//\\/}"
    prefix="${prefix//\\/}"
    image="${word%%:*}"
    [[ -e ${image} || -e ${image%@*} ]] || return 1
    # Nothing on the host is meant.
    compopt +o default +o bashdefault 2> /dev/null
    while IFS= read -r name; do
        printf -v name '%q' "${name#"${prefix}"}"
        COMPREPLY+=("${name}")
    done < <("$1" completions bash "${word}" 2> /dev/null)
    [[ ${#COMPREPLY[@]} == 1 && ${COMPREPLY[0]} == */ ]] && compopt -o nospace 2> /dev/null
    return 0
}

_folio_or_files() {
    local word
    _folio_names "$@" && return 0
    _folio "$@"
    [[ -n ${COMP_WORDS[COMP_CWORD]} ]] && return 0
    for word in "${COMPREPLY[@]}"; do
        [[ ${word} == -* ]] || return 0
    done
    COMPREPLY=()
}

complete -F _folio_or_files -o bashdefault -o default folio
"#;

/// The addition for zsh. zsh loads the script at the first completion, so the script answers that
/// one too.
const ZSH: &str = r#"
() {
    _folio_names() {
        local word="${(Q)PREFIX}" image name
        local -a folders files
        [[ ${word} == ?*:* ]] || return 1
        image="${word%%:*}"
        [[ -e ${image} || -e ${image%@*} ]] || return 1
        for name in "${(@f)$("${(Q)words[1]}" completions zsh "${word}" 2> /dev/null)}"; do
            case "${name}" in
                */) folders+=("${name}") ;;
                ?*) files+=("${name}") ;;
            esac
        done
        compadd -S '' -a folders
        compadd -a files
        return 0
    }
    _folio_or_names() {
        _folio_names || _folio "$@"
    }
    compdef _folio_or_names folio
    [[ ${funcstack[2]} == _folio ]] || return 0
    _folio_names || return $1
} $?
"#;

/// The addition for fish.
const FISH: &str = r#"
function __fish_folio_names
    set -l word (commandline -ct | string unescape)
    string match -q '?*:*' -- $word; or return 1
    set -l image (string replace -r ':.*' '' -- $word)
    test -e "$image"; or test -e (string replace -r '@[0-9]*$' '' -- $image); or return 1
    set -l program (commandline -opc)[1]
    $program completions fish $word 2>/dev/null
    return 0
end

complete -c folio -f -n '__fish_folio_names >/dev/null' -a '(__fish_folio_names)'
"#;

/// Print a shell's completion script
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Completions {
    /// The shell
    shell: Shell,
    /// Print the completions of this word, if it is like IMAGE:/path; for the scripts
    word: Option<OsString>,
}

/// Runs the command.
pub(crate) fn run(completions: &Completions, session: &Session, tree: &Command) -> Outcome {
    session.refuse_options()?;
    let out = match &completions.word {
        Some(word) => words(word, session)?,
        None => script(completions.shell, tree),
    };
    let mut stdout = std::io::stdout().lock();
    stdout.write_all(&out)?;
    Ok(stdout.flush()?)
}

fn script(shell: Shell, tree: &Command) -> Vec<u8> {
    let mut script = Vec::new();
    clap_complete::generate(
        shell,
        &mut hint_at_paths(tree.clone()),
        "folio",
        &mut script,
    );
    script.extend_from_slice(match shell {
        Shell::Bash => BASH.as_bytes(),
        Shell::Zsh => ZSH.as_bytes(),
        Shell::Fish => FISH.as_bytes(),
        _ => b"",
    });
    script
}

/// Marks the arguments that are paths on the host or in an image: those that need not be UTF-8.
fn hint_at_paths(tree: Command) -> Command {
    let hint = |arg: Arg| {
        let is_path =
            arg.is_positional() && arg.get_value_parser().type_id() == TypeId::of::<OsString>();
        if is_path {
            arg.value_hint(ValueHint::AnyPath)
        } else {
            arg
        }
    };
    tree.mut_args(hint).mut_subcommands(hint_at_paths)
}

/// Returns the completions of the word, one in each line; directories end in a slash. Names with
/// control characters are left out.
fn words(word: &OsStr, session: &Session) -> Outcome<Vec<u8>> {
    let PathArgument::Image(place) = PathArgument::parse(word, false) else {
        return Ok(Vec::new());
    };
    // A word that ends in the colon means the root.
    let typed = word.as_bytes();
    let inside = place.path.as_os_str().as_bytes();
    let colon = if typed.ends_with(inside) {
        typed.len() - inside.len() - 1
    } else {
        typed.len() - 1
    };
    let slash = inside.iter().rposition(|byte| *byte == b'/').unwrap_or(0);
    let (folder, begin) = inside.split_at((slash + 1).min(inside.len()));
    let lead = [&typed[..colon], b":", folder].concat();
    let folder = place.with_path(Path::new(OsStr::from_bytes(folder)));
    let mut lines = Vec::new();
    with_image(session, &folder, Access::Read, |image| {
        let found = image
            .names(&folder.path)
            .map_err(|error| image.name(error))?;
        for name in found.iter().filter(|name| may_be_meant(name, begin)) {
            let is_folder = image
                .stat(&join(&folder.path, name), false)
                .is_ok_and(|found| found.file_type == FileType::Directory);
            lines.extend_from_slice(&lead);
            lines.extend_from_slice(name);
            lines.extend_from_slice(if is_folder { b"/\n" } else { b"\n" });
        }
        Ok(())
    })?;
    Ok(lines)
}

/// Whether to offer a name; hidden names only if the word starts with a dot.
fn may_be_meant(name: &[u8], begin: &[u8]) -> bool {
    name.starts_with(begin)
        && (begin.starts_with(b".") || !name.starts_with(b"."))
        && !name.iter().any(|byte| byte.is_ascii_control())
}
