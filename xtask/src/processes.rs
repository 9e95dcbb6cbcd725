//! Processes by /proc: those below a test that hangs, and the signals that this program ignores.

use rustix::process::{Pid, Signal, kill_process};
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Describes a process and all below it, one line each, and kills them.
pub(crate) fn describe_and_kill(root: u32) -> String {
    let tree = tree(root);
    let lines: Vec<_> = tree.iter().map(|pid| describe(*pid)).collect();
    // Parents first: none starts another child, or goes on because its child has ended.
    for pid in tree {
        if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
            let _ = kill_process(pid, Signal::KILL);
        }
    }
    lines.concat()
}

/// The process, its children, and theirs, parents first.
fn tree(root: u32) -> Vec<u32> {
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let parents: Vec<(u32, u32)> = processes
        .filter_map(|process| {
            let pid = process.file_name().to_str()?.parse().ok()?;
            let stat = std::fs::read_to_string(process.path().join("stat")).ok()?;
            Some((pid, parse_stat(&stat)?.1))
        })
        .collect();
    let mut found = vec![root];
    let mut next = 0;
    while let Some(at) = found.get(next).copied() {
        next += 1;
        let children = parents.iter().filter(|(_, parent)| *parent == at);
        found.extend(children.map(|(pid, _)| pid));
    }
    found
}

/// Reads the state and the parent from /proc/PID/stat: proc_pid_stat(5). They follow the name,
/// which is in parentheses.
fn parse_stat(stat: &str) -> Option<(&str, u32)> {
    let mut words = stat.rsplit_once(") ")?.1.split(' ');
    Some((words.next()?, words.next()?.parse().ok()?))
}

/// Its number, state, the kernel's function in which each thread waits, and its command line.
fn describe(pid: u32) -> String {
    let read = |file: &str| std::fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default();
    let words = read("cmdline");
    let words = String::from_utf8_lossy(&words).replace('\0', " ");
    let threads = std::fs::read_dir(format!("/proc/{pid}/task"));
    let threads = threads.into_iter().flatten().flatten();
    let mut waits: Vec<_> = threads
        .map(|thread| {
            let stat = std::fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
            let state = parse_stat(&stat).map(|(state, _)| state);
            let wait = std::fs::read_to_string(thread.path().join("wchan")).unwrap_or_default();
            format!("{} {wait}", state.unwrap_or("?"))
        })
        .collect();
    waits.sort();
    waits.dedup();
    format!("  {pid}: {}: {words}\n", waits.join(", "))
}

/// Starts this program anew where it was started with SIGINT or SIGQUIT ignored, as by a shell
/// script with `&`: tests send them, and the setting is inherited.
pub(crate) fn restore_signals() {
    const MARK: &str = "XTASK_SIGNALS_RESTORED";
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    if std::env::var_os(MARK).is_some() || !ignores(&status, &[2, 3]) {
        return;
    }
    let Ok(program) = std::env::current_exe() else {
        return;
    };
    let error = Command::new("env")
        .args(["--default-signal=INT,QUIT"])
        .arg(program)
        .args(std::env::args_os().skip(1))
        .env(MARK, "1")
        .exec();
    println!("SIGINT and SIGQUIT stay ignored, tests that send them fail: env: {error}");
}

/// Whether the text of /proc/PID/status shows one of the signals ignored.
fn ignores(status: &str, signals: &[u32]) -> bool {
    let mask = status
        .lines()
        .find_map(|line| line.strip_prefix("SigIgn:"))
        .and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| signals.iter().any(|signal| mask >> (signal - 1) & 1 == 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ignored_signals_are_read_from_status() {
        let status = "Name:\tsh\nSigBlk:\t0\nSigIgn:\t0000000000000006\n";
        assert!(ignores(status, &[2]) && ignores(status, &[3]));
        assert!(!ignores(status, &[1, 15]));
        assert!(!ignores("", &[2]));
    }

    #[test]
    fn names_may_have_parentheses() {
        assert_eq!(parse_stat("7 (a) b) S 3 7 7 0"), Some(("S", 3)));
        assert_eq!(parse_stat(""), None);
    }

    #[test]
    fn tree_has_the_children_of_children() {
        let mut child = Command::new("sh")
            .args(["-c", "sh -c 'sleep 1000; :' & wait"])
            .spawn()
            .unwrap();
        let is_sleep = |pid: &u32| describe(*pid).contains(": sleep 1000");
        while !tree(child.id()).iter().any(is_sleep) {}
        let text = describe_and_kill(child.id());
        assert!(text.contains("sleep 1000"), "{text}");
        assert!(!child.wait().unwrap().success());
    }
}
