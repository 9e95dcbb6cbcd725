//! `folio`: copies trees into and out of disk images, inspects and changes them, mounts and serves
//! them.
//!
//! ```text
//!   cli            the tree of commands
//!     v
//!   commands/      one file or folder for each command; none uses another
//!     v
//!   arguments/     options that several commands have
//!   tree_copy/     trees into images          unpacking      archives into images
//!   object_copy    files to object storage    warm_engine    reads into the host's page cache
//!   change_tree, destination                  commands that change files of an image
//!   remote_share, remount, serving, ready, sandbox           commands that serve until a signal
//!   new_erofs      any source into an EROFS
//!   new_file_system, file_system_resize       of ext4       image_chain    of qcow2
//!   verity         hash trees of dm-verity    identity      UUIDs that are not given
//!     v
//!   image, source  an opened image or directory: device, kernel, process      walk   trees in images
//!     v
//!   observer       progress and failures of copies
//!     v
//!   session        errors, notes, Ctrl-C, global options     progress   bars     trace   -v
//!     v
//!   image_path     IMAGE:/path              exit             exit codes
//!   image_name     file:, json:, --image-opts        objects, volumes   URLs of object stores
//!   value_parsers, global_options           option values     interruptible   writes that Ctrl-C ends
//!   user_command   commands of the user that the shell runs
//!   output/        tables, JSON, names      manual/          help texts and manual pages
//!   hints, nearest suggestions for unknown words     qemu_img, qemu_words, percent   manners of qemu-img
//! ```

/// Prints a line on standard error. That of `std` panics if no reader is left.
macro_rules! eprintln {
    ($($words:tt)*) => {{
        use std::io::Write as _;
        let _ = writeln!(std::io::stderr(), $($words)*);
    }};
}

mod arguments;
mod change_tree;
mod cli;
mod commands;
mod control;
mod destination;
mod exit;
mod file_system_resize;
mod global_options;
mod hints;
mod identity;
mod image;
mod image_chain;
mod image_name;
mod image_path;
mod interruptible;
mod manual;
mod memory;
mod mount_helper;
mod mount_record;
mod nearest;
mod new_erofs;
mod new_file_system;
#[cfg(feature = "object-store")]
mod object_copy;
#[cfg(feature = "object-store")]
mod object_options;
mod objects;
mod observer;
mod output;
mod percent;
mod progress;
mod qemu_img;
mod qemu_words;
mod ready;
mod remote_share;
mod remount;
mod sandbox;
mod serving;
mod session;
mod socket_activation;
mod source;
mod system_log;
mod temporary_overlay;
mod trace;
mod tree_copy;
mod unmount_process;
mod unpacking;
mod user_command;
mod value_parsers;
mod verity;
mod volumes;
mod walk;
mod warm_engine;

use std::io::Write;

fn main() -> std::process::ExitCode {
    let words = qemu_img::command_line(mount_helper::command_line(std::env::args_os().collect()));
    if qemu_img::is_version_requested(&words) {
        // If the output is closed, no reader is left for the version.
        let _ = std::io::stdout().write_all(qemu_img::version().as_bytes());
        return exit::Exit::Done.into();
    }
    match cli::parse(&words) {
        Ok(arguments) => commands::run(&arguments.command, &arguments.global, cli::tree).into(),
        Err(error) if error.use_stderr() && qemu_img::is_requested(&words) => {
            qemu_img::usage_error(&error).into()
        }
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
