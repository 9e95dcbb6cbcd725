//! Words of other programs' command lines, and what does the same here: a hint for who types them
//! out of habit.

use clap::builder::StyledStr;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use std::ffi::OsString;

/// The command whose word it is ("" for the first word), words that it does not know, and what is
/// meant by them.
pub(crate) const HINTS: &[(&str, &[&str], &str)] = &[
    // qemu-img, qemu-nbd
    ("", &["qemu-img"], "'folio image' has its commands"),
    (
        "",
        &["create"],
        "'folio image create' makes an empty image, 'folio mkfs' one with an ext4",
    ),
    ("", &["convert"], "it is 'folio image convert'"),
    ("", &["info"], "it is 'folio image info'"),
    ("", &["map"], "it is 'folio image map'"),
    ("", &["compare"], "it is 'folio image compare'"),
    ("", &["snapshot"], "it is 'folio image snapshot'"),
    ("", &["rebase"], "it is 'folio image rebase'"),
    ("", &["commit"], "it is 'folio image commit'"),
    (
        "",
        &["nbd", "qemu-nbd", "nbdkit"],
        "it is 'folio serve nbd'",
    ),
    (
        "serve nbd",
        &["-k", "--socket-path", "-U", "--unix"],
        "it is '--socket PATH'",
    ),
    ("serve nbd", &["-p"], "it is '--port PORT'"),
    ("serve nbd", &["-b"], "it is '--bind ADDRESS'"),
    ("serve nbd", &["-r"], "it is '--read-only'"),
    // e2fsprogs
    ("", &["mke2fs", "mkfs.ext4", "newfs"], "it is 'folio mkfs'"),
    (
        "mkfs",
        &["-d"],
        "a tree goes into a new image by 'folio cp -a TREE/. IMAGE:/ --create SIZE'",
    ),
    ("mkfs", &["-F"], "it is '--force'"),
    ("mkfs", &["-t"], "it makes an ext4 in any case"),
    (
        "",
        &["build", "pack"],
        "a tree goes into a new image by 'folio cp -a TREE/. IMAGE:/ --create SIZE'",
    ),
    (
        "",
        &["extract", "unpack", "rdump", "dump"],
        "files come out of an image by 'folio cp -a IMAGE:/path DIR'",
    ),
    (
        "",
        &["debugfs"],
        "'folio ls', 'folio stat' and 'folio cp' look into an image and take files out",
    ),
    (
        "",
        &["dumpe2fs"],
        "'folio df' tells of a file system as a whole",
    ),
    ("", &["fsck", "e2fsck", "fsck.ext4"], "it is 'folio check'"),
    (
        "check",
        &["-f", "-n"],
        "it checks all and writes nothing in any case",
    ),
    (
        "check",
        &["-p", "-y", "-a"],
        "nothing is mended here: that is the job of e2fsck",
    ),
    ("", &["resize2fs"], "it is 'folio resize'"),
    ("", &["tune2fs", "e2label"], "it is 'folio tune'"),
    // coreutils, mount(8), virtiofsd
    (
        "",
        &["copy", "rsync", "put", "get", "copy-in", "copy-out"],
        "it is 'folio cp'",
    ),
    ("", &["dir", "list"], "it is 'folio ls'"),
    ("", &["rmdir", "del", "delete"], "it is 'folio rm'"),
    ("", &["move", "rename"], "it is 'folio mv'"),
    (
        "",
        &["umount", "unmount"],
        "umount(8) does it as for any mount, or fusermount3 -u without root",
    ),
    (
        "mount",
        &["-t"],
        "the kind of file system is found by itself",
    ),
    ("", &["virtiofsd"], "it is 'folio share'"),
    (
        "share",
        &["--shared-dir"],
        "the directory is an argument: 'folio share DIR --socket PATH'",
    ),
    ("share", &["--socket-path"], "it is '--socket PATH'"),
    // vmtouch, fincore
    (
        "",
        &["vmtouch"],
        "'folio warm' reads files into memory, 'folio cache status' tells what is there",
    ),
    ("warm", &["-t"], "it does so in any case"),
    ("warm", &["-l"], "it is '--lock'"),
    ("warm", &["-f"], "it is '-L'"),
    ("warm", &["-b"], "it is '--recipe FILE'"),
    ("warm", &["-i"], "it is '--exclude GLOB'"),
    ("warm", &["-I"], "it is '--include GLOB'"),
    ("warm", &["-e"], "it is 'folio cache drop'"),
    ("", &["fincore", "status"], "it is 'folio cache status'"),
    ("", &["evict", "drop"], "it is 'folio cache drop'"),
    ("", &["save"], "it is 'folio cache save'"),
    ("", &["restore"], "it is 'folio cache restore'"),
    ("", &["top"], "it is 'folio cache top'"),
    (
        "",
        &["meminfo", "sar", "free"],
        "it is 'folio cache meminfo'",
    ),
];

/// Puts the hint into the error about a word that is not known, if there is one for it.
pub(crate) fn add(error: &mut clap::Error, tree: &clap::Command, words: &[OsString]) {
    let kind = match error.kind() {
        ErrorKind::InvalidSubcommand => ContextKind::InvalidSubcommand,
        ErrorKind::UnknownArgument => ContextKind::InvalidArg,
        _ => return,
    };
    let Some(ContextValue::String(word)) = error.get(kind) else {
        return;
    };
    let Some(hint) = hint(&command_name(tree, words), word) else {
        return;
    };
    // What looks alike means something else.
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

/// The names of the command and the commands below it that a command line begins with, options left
/// out.
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
