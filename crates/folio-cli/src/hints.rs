//! Hints for words of other programs' command lines: the folio command or option that does the
//! same.

use clap::builder::StyledStr;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use std::ffi::OsString;

/// Each entry: the command ("" for the first word), words that it does not have, and the hint.
pub(crate) const HINTS: &[(&str, &[&str], &str)] = &[
    // qemu-img, qemu-nbd
    ("", &["qemu-img"], "use 'folio image' and its subcommands"),
    (
        "",
        &["create"],
        "use 'folio image create' for an empty image, 'folio mkfs' for one with an ext4",
    ),
    ("", &["convert"], "use 'folio image convert'"),
    ("", &["map"], "use 'folio image map'"),
    ("", &["compare"], "use 'folio image compare'"),
    ("", &["snapshot"], "use 'folio image snapshot'"),
    ("", &["rebase"], "use 'folio image rebase'"),
    ("", &["commit"], "use 'folio image commit'"),
    ("", &["nbd", "qemu-nbd", "nbdkit"], "use 'folio serve nbd'"),
    (
        "serve nbd",
        &["-k", "--socket-path", "-U", "--unix"],
        "use '--socket PATH'",
    ),
    ("serve nbd", &["-p"], "use '--port PORT'"),
    ("serve nbd", &["-b"], "use '--bind ADDRESS'"),
    ("serve nbd", &["-r"], "use '--read-only'"),
    // e2fsprogs
    ("", &["mke2fs", "mkfs.ext4", "newfs"], "use 'folio mkfs'"),
    (
        "mkfs",
        &["-d"],
        "use 'folio cp -a TREE/. IMAGE:/ --create SIZE' to copy a tree into a new image",
    ),
    ("mkfs", &["-F"], "use '--force'"),
    (
        "mkfs",
        &["-t"],
        "not needed: folio mkfs always creates an ext4",
    ),
    (
        "",
        &["build", "pack"],
        "use 'folio cp -a TREE/. IMAGE:/ --create SIZE' to copy a tree into a new image",
    ),
    (
        "",
        &["extract", "unpack", "rdump", "dump"],
        "use 'folio cp -a IMAGE:/path DIR' to copy files out of an image",
    ),
    (
        "",
        &["debugfs"],
        "use 'folio debug' to read structures, 'folio ls' and 'folio cp' to list and copy files",
    ),
    (
        "",
        &["dumpe2fs", "blkid"],
        "use 'folio info' to show a file system as a whole",
    ),
    ("", &["fsck", "e2fsck", "fsck.ext4"], "use 'folio check'"),
    (
        "check",
        &["-f", "-n"],
        "not needed: folio check always checks everything, and writes only with '--repair'",
    ),
    ("check", &["-p", "-a"], "use '--repair'"),
    ("", &["resize2fs"], "use 'folio resize'"),
    ("", &["tune2fs", "e2label"], "use 'folio tune'"),
    (
        "cp",
        &["--include"],
        "use '--exclude PATTERN'; a pattern that starts with ! includes names again",
    ),
    // tar, containers
    (
        "tar",
        &["--numeric-owner"],
        "not needed: folio tar keeps owners as numbers",
    ),
    (
        "",
        &["skopeo", "umoci", "docker"],
        "use 'folio cp -a oci:DIR:TAG IMAGE:/ --create SIZE' for a container image",
    ),
    // coreutils, mount(8), virtiofsd
    (
        "",
        &["copy", "rsync", "put", "get", "copy-in", "copy-out"],
        "use 'folio cp'",
    ),
    ("", &["dir", "list"], "use 'folio ls'"),
    ("", &["rmdir", "del", "delete"], "use 'folio rm'"),
    ("", &["move", "rename"], "use 'folio mv'"),
    ("find", &["-n"], "use '--name PATTERN'"),
    ("find", &["-i"], "use '--iname PATTERN'"),
    ("find", &["-p"], "use '--path PATTERN'"),
    ("find", &["-t"], "use '--type LETTER'"),
    ("find", &["-s"], "use '--size SIZE'"),
    ("find", &["-m"], "use '--maxdepth LEVELS'"),
    (
        "",
        &["umount", "unmount"],
        "use umount(8) as for any mount, or fusermount3 -u without root",
    ),
    (
        "mount",
        &["-t"],
        "not needed: the file system type is detected",
    ),
    ("", &["virtiofsd"], "use 'folio share'"),
    // systemd-nspawn, docker, guestfish
    (
        "",
        &[
            "exec",
            "chroot",
            "nspawn",
            "systemd-nspawn",
            "customize",
            "bwrap",
            "proot",
        ],
        "use 'folio run' to run a command inside an image",
    ),
    ("run", &["--volume", "-v", "--mount"], "use '--bind'"),
    ("run", &["--rm"], "use '--throw-away' to drop the changes"),
    ("run", &["--read"], "use '--read-only'"),
    (
        "run",
        &["-t", "-i", "--tty", "--interactive"],
        "not needed: the command has a terminal if standard input and output are one",
    ),
    (
        "share",
        &["--shared-dir"],
        "the directory is an argument: 'folio share DIR --socket PATH'",
    ),
    ("share", &["--socket-path"], "use '--socket PATH'"),
    // vmtouch, fincore
    (
        "",
        &["vmtouch"],
        "use 'folio warm' to read files into memory, 'folio cache status' to show cached files",
    ),
    (
        "warm",
        &["-t"],
        "not needed: folio warm always reads files into memory",
    ),
    ("warm", &["-l"], "use '--lock'"),
    ("warm", &["-f"], "use '-L'"),
    ("warm", &["-b"], "use '--recipe FILE'"),
    ("warm", &["-i"], "use '--exclude GLOB'"),
    ("warm", &["-I"], "use '--include GLOB'"),
    ("warm", &["-e"], "use 'folio cache drop'"),
    ("", &["fincore", "status"], "use 'folio cache status'"),
    ("", &["evict", "drop"], "use 'folio cache drop'"),
    ("", &["save"], "use 'folio cache save'"),
    ("", &["restore"], "use 'folio cache restore'"),
    ("", &["top"], "use 'folio cache top'"),
    ("", &["meminfo", "sar", "free"], "use 'folio cache meminfo'"),
];

/// Adds the hint for an unknown word to the error about it, if there is one.
pub(crate) fn add(error: &mut clap::Error, tree: &clap::Command, words: &[OsString]) {
    let kind = match error.kind() {
        ErrorKind::InvalidSubcommand => ContextKind::InvalidSubcommand,
        ErrorKind::UnknownArgument => ContextKind::InvalidArg,
        _ => return,
    };
    let Some(ContextValue::String(word)) = error.get(kind) else {
        return;
    };
    let hint = hint(&command_name(tree, words), word);
    if word.starts_with('-') {
        // An option is hardly meant as a file, which clap suggests.
        error.remove(ContextKind::Suggested);
    }
    let Some(hint) = hint else {
        return;
    };
    // clap's similar words mean something else.
    error.remove(ContextKind::SuggestedSubcommand);
    error.remove(ContextKind::SuggestedArg);
    error.insert(
        ContextKind::Suggested,
        ContextValue::StyledStrs(vec![StyledStr::from(hint)]),
    );
}

fn hint(command: &str, word: &str) -> Option<&'static str> {
    let found = HINTS
        .iter()
        .find(|(of, words, _)| *of == command && words.contains(&word))?;
    Some(found.2)
}

/// Returns the names of the command and its subcommands at the start of a command line, without
/// options.
pub(crate) fn command_name(tree: &clap::Command, words: &[OsString]) -> String {
    let mut at = tree;
    let mut names = Vec::new();
    for word in words.iter().skip(1) {
        if let Some(next) = at.find_subcommand(word) {
            names.push(next.get_name().to_owned());
            at = next;
        }
    }
    names.join(" ")
}
