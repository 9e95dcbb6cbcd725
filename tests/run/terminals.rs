//! A terminal of the command's own.

use crate::support::terminal::converse;
use crate::{Fixture, for_each_caller};

for_each_caller! {
    shell_has_job_control_and_window_size;
}

fn shell_has_job_control_and_window_size(fixture: &Fixture) {
    if let Err(reason) = crate::Need::Tool("python3").met() {
        crate::report_skip(&reason);
        return;
    }
    let run = fixture.command(&["disk.img", "--", "sh", "-i"]);
    // Each line: what is awaited, and the keys that follow.
    // Keys that send signals wait for a program that has begun, in the mode of programs. The next
    // command comes with them: Linux signals first and then drops the terminal's output, so what
    // the shell prints at once can be lost.
    let start = "sh -c 'echo beg''un; exec sleep 1000'\\n";
    let dialog = format!(
        "# |tty; stty size\\n\n/dev/pts/0|\n33 99|{start}\n\
         begun|\\x1akill -9 %1; echo kil''led\\n\nkilled|{start}\nbegun|\\x03exit 6\\n\n"
    );
    let (code, errors) = converse(&run, &dialog);
    assert_eq!(code, Some(6), "{errors}");
    fixture.check();
}
