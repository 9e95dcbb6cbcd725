//! The guard: a process that restores a group's limit when this process ends, however it ends.
//!
//! The guard is a shell in a process group of its own that waits for the end of a pipe. Only this
//! process holds the other end, so SIGKILL ends the wait, too.

use super::group::Group;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

/// Arguments: the group to remove or nothing, where its processes go, then pairs of file and value.
const SCRIPT: &str = r#"
trap '' INT TERM HUP QUIT
read -r _
group=$1 above=$2
shift 2
while [ $# -ge 2 ]; do
    echo "$2" > "$1"
    shift 2
done
[ -n "$group" ] || exit 0
for _ in 1 2 3 4 5 6 7 8 9 10; do
    while read -r process; do echo "$process" > "$above"; done < "$group/cgroup.procs"
    rmdir "$group" && exit 0
    sleep 0.1
done 2> /dev/null
"#;

/// A limit that is restored when the value is dropped or this process ends.
#[derive(Debug)]
pub(super) struct Guard(Child);

impl Guard {
    /// Starts the guard of a group's present limit. `removed` names where the processes of a group
    /// that is to be removed go.
    ///
    /// # Errors
    ///
    /// Fails if the limit cannot be read, or if there is no shell.
    pub(super) fn new(group: &Group, removed: Option<PathBuf>) -> io::Result<Self> {
        let mut values = vec![(group.folder.join(group.version.limit), group.limit()?)];
        let mut command = Command::new("/bin/sh");
        command.args(["-c", SCRIPT, "folio-cache-fit-guard"]);
        match removed {
            Some(above) => command.arg(&group.folder).arg(above),
            None => command.args(["", ""]),
        };
        let oom_killer = group.oom_killer();
        let has_oom_killer = oom_killer.is_some();
        values.extend(oom_killer);
        for (file, value) in values {
            command.arg(file).arg(value);
        }
        let command = command
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .current_dir("/")
            .process_group(0);
        let guard = command.spawn().map(Self).map_err(|error| {
            io::Error::new(
                error.kind(),
                format!("/bin/sh, which restores the limit: {error}"),
            )
        })?;
        if has_oom_killer {
            // The root group refuses it.
            let _ = group.disable_oom_killer();
        }
        Ok(guard)
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ = self.0.wait();
    }
}
