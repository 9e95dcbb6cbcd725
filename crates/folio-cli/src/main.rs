//! `folio`: put trees into disk images, look inside, change them, take them out.
//!
//! ```text
//!   args      what was asked           place     IMAGE:/path, told from host paths
//!     v                                image     an opened image: device, kernel, process
//!   commands/ one file per command     walk      all below a path in an image
//!     v                                session   failures told once, Ctrl-C, global options
//!   output/   tables, JSON, words      exit      exit codes
//!   manual/   help and manual pages    nearest   did you mean?    trace   -v
//!   hints     words of other programs
//! ```

mod args;
mod commands;
mod exit;
mod hints;
mod image;
mod manual;
mod nearest;
mod output;
mod place;
mod progress;
mod ready;
mod session;
mod source;
mod trace;
mod walk;

fn main() -> std::process::ExitCode {
    let words: Vec<_> = std::env::args_os().collect();
    match args::read(&words) {
        Ok(arguments) => commands::run(&arguments).into(),
        Err(error) => {
            // Words for a terminal that is gone have nobody to miss them.
            let _ = error.print();
            if error.use_stderr() {
                exit::usage_of(words.into_iter().skip(1)).into()
            } else {
                exit::Exit::Done.into()
            }
        }
    }
}
