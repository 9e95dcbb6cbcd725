//! `folio completions`: what makes a shell complete the command's words.

use crate::exit::Outcome;
use crate::session::Session;
use clap::Args;
use clap_complete::Shell;
use std::io::Write;

const EXAMPLES: &str = "\
Examples:
  source <(folio completions bash)                 for this shell
  folio completions bash > /usr/share/bash-completion/completions/folio
  folio completions zsh > /usr/share/zsh/site-functions/_folio
  folio completions fish > /usr/share/fish/vendor_completions.d/folio.fish";

/// What clap's script for bash lacks: where a command takes files it offers options alone before the first letter.
const BASH_FILES: &str = r#"
_folio_or_files() {
    local word
    _folio "$@"
    [[ -n ${COMP_WORDS[COMP_CWORD]} ]] && return 0
    for word in "${COMPREPLY[@]}"; do
        [[ ${word} == -* ]] || return 0
    done
    COMPREPLY=()
}

complete -F _folio_or_files -o bashdefault -o default folio
"#;

/// Print a shell's completion script
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Completions {
    /// The shell
    shell: Shell,
}

/// Runs the command.
pub(crate) fn run(completions: &Completions, session: &Session) -> Outcome {
    session.refuse_options()?;
    let mut script = Vec::new();
    clap_complete::generate(completions.shell, &mut crate::args::tree(), "folio", &mut script);
    if completions.shell == Shell::Bash {
        script.extend_from_slice(BASH_FILES.as_bytes());
    }
    let mut out = std::io::stdout().lock();
    out.write_all(&script)?;
    Ok(out.flush()?)
}
