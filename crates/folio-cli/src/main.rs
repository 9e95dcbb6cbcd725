//! `folio`: copies trees into and out of disk images, inspects and changes them, mounts and serves
//! them.
//!
//! ```text
//!   cli            the tree of commands     value_parsers, global_options    option values
//!     v
//!   commands/      one file per command     serving, ready   commands that serve until a signal
//!     v
//!   image, source  an opened image or directory: device, kernel, process      walk   trees in images
//!     v
//!   interruptible  a device whose writes Ctrl-C ends
//!     v
//!   session        errors, notes, Ctrl-C, global options     progress   bars     trace   -v
//!     v
//!   image_path     IMAGE:/path              exit             exit codes
//!   output/        tables, JSON, names      manual/          help texts and manual pages
//!   hints, nearest suggestions for unknown words
//! ```

mod cli;
mod commands;
mod exit;
mod global_options;
mod hints;
mod image;
mod image_path;
mod interruptible;
mod manual;
mod nearest;
mod output;
mod progress;
mod ready;
mod serving;
mod session;
mod source;
mod trace;
mod value_parsers;
mod walk;

fn main() -> std::process::ExitCode {
    let words: Vec<_> = std::env::args_os().collect();
    match cli::parse(&words) {
        Ok(arguments) => commands::run(&arguments.command, &arguments.global, cli::tree).into(),
        Err(error) => {
            // If the terminal is closed, no reader is left for the message.
            let _ = error.print();
            if error.use_stderr() {
                exit::usage_of(words.into_iter().skip(1)).into()
            } else {
                exit::Exit::Done.into()
            }
        }
    }
}
