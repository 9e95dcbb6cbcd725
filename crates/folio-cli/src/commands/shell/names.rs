//! The commands of `folio shell`.

/// The commands of folio that the shell offers.
pub(super) const COMMANDS: [&str; 20] = [
    "cat", "chmod", "chown", "cp", "df", "diff", "du", "edit", "find", "ln", "ls", "mkdir",
    "mknod", "mv", "rm", "stat", "touch", "tree", "truncate", "write",
];

/// The commands of the shell itself, and their help.
pub(super) const OWN_COMMANDS: [(&str, &str); 8] = [
    ("cd", "cd [DIR]: change the directory inside the image"),
    ("pwd", "pwd: print the directory inside the image"),
    (
        "put",
        "put HOST... [DIR]: copy files of the host here, or to the last path (folio cp -a)",
    ),
    (
        "get",
        "get PATH... [HOST]: copy to the host's directory, or to the last path (folio cp -a)",
    ),
    ("lcd", "lcd [DIR]: change the directory on the host"),
    ("lpwd", "lpwd: print the directory on the host"),
    (
        "help",
        "help [COMMAND]: print this list, or the help of a command",
    ),
    ("exit", "exit, quit, Ctrl-D: end"),
];
