//! PostgreSQL on a volume whose writer is killed: after each takeover it recovers, and every
//! transaction that it acknowledged is there. `FOLIO_PGBENCH=1` runs it; it takes minutes.

use crate::server::Server;
use crate::support::require::{report_skip, requires};
use crate::{Mounted, ROUNDS, succeed};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use tempfile::TempDir;

/// A cluster on a mount; its programs run as the user postgres.
struct Cluster<'a> {
    programs: &'a Path,
    data: PathBuf,
    sockets: &'a Path,
    user: u32,
}

impl Cluster<'_> {
    fn command(&self, program: &str, arguments: &[&str]) -> Command {
        let mut command = Command::new(self.programs.join(program));
        command.args(arguments).uid(self.user).gid(self.user);
        command.current_dir(self.sockets);
        command
            .env("PGHOST", self.sockets)
            .env("PGUSER", "postgres");
        command.env("PGDATA", &self.data);
        command
    }

    #[track_caller]
    fn run(&self, program: &str, arguments: &[&str]) -> String {
        let output = self.command(program, arguments).output();
        let output = output.expect("a program of PostgreSQL");
        assert!(output.status.success(), "{program}: {}", text(&output));
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }

    /// Starts the server, which recovers first.
    #[track_caller]
    fn start(&self) {
        let options = format!("-c listen_addresses= -k {}", self.sockets.display());
        let log = self.sockets.join("log");
        let log = log.to_str().expect("a name in UTF-8");
        let mut start = self.command("pg_ctl", &["start", "-w", "-t", "300", "-l", log]);
        // The server inherits the output of pg_ctl: a pipe would never end.
        start.args(["-o", &options]).stdout(Stdio::null());
        let status = start.status().expect("pg_ctl");
        let log = std::fs::read_to_string(log).unwrap_or_default();
        assert!(status.success(), "the server does not start: {log}");
    }

    fn query(&self, sql: &str) -> i64 {
        let answer = self.run("psql", &["-Atc", sql, "postgres"]);
        answer.parse().expect("a number")
    }

    /// Starts transactions; their log has a line for each that was acknowledged.
    fn bench(&self, round: usize) -> Child {
        let prefix = self.sockets.join(format!("round{round}"));
        let prefix = format!("--log-prefix={}", prefix.display());
        let arguments = [
            "-n", "-c", "4", "-T", "1000", "-P", "1", "-l", &prefix, "postgres",
        ];
        let mut bench = self.command("pgbench", &arguments);
        bench.stdout(Stdio::null()).stderr(Stdio::piped());
        bench.spawn().expect("pgbench")
    }

    /// Returns the number of transactions that all rounds saw acknowledged.
    fn acknowledged(&self) -> i64 {
        let files = std::fs::read_dir(self.sockets).expect("a folder");
        let logs = files.filter_map(|file| Some(file.ok()?.path()));
        let logs = logs.filter(|path| path.to_string_lossy().contains("/round"));
        let lines = logs.map(|path| std::fs::read_to_string(path).unwrap_or_default());
        lines.map(|text| text.lines().count() as i64).sum()
    }

    /// Returns the process of the server.
    fn server(&self) -> Pid {
        let file = std::fs::read_to_string(self.data.join("postmaster.pid"));
        let file = file.expect("the server writes its id");
        let id = file.lines().next().and_then(|line| line.parse().ok());
        Pid::from_raw(id.expect("a number")).expect("a process")
    }
}

/// Ends a server that cannot write any more, and waits for its end.
fn end(server: Pid) {
    let process = pidfd_open(server, PidfdFlags::empty()).expect("a process");
    kill_process(server, Signal::QUIT).expect("a signal");
    poll(&mut [PollFd::new(&process, PollFlags::IN)], None).expect("its end");
}

fn text(output: &Output) -> String {
    let (out, errors) = (&output.stdout, &output.stderr);
    format!(
        "{}{}",
        String::from_utf8_lossy(out),
        String::from_utf8_lossy(errors)
    )
}

/// Returns the folder with the programs of PostgreSQL, and its user.
fn installed() -> Result<(PathBuf, u32), String> {
    if std::env::var_os("FOLIO_PGBENCH").is_none() {
        return Err("runs on request: FOLIO_PGBENCH=1".to_owned());
    }
    let versions = std::fs::read_dir("/usr/lib/postgresql").map_err(|e| e.to_string())?;
    let mut folders = versions.filter_map(|version| Some(version.ok()?.path().join("bin")));
    let folder = folders.find(|folder| folder.join("pgbench").exists());
    let folder = folder.ok_or("needs PostgreSQL with pgbench (apt-get install postgresql)")?;
    let user = Command::new("id").args(["-u", "postgres"]).output();
    let user = String::from_utf8(user.map_err(|e| e.to_string())?.stdout).unwrap_or_default();
    let user = user.trim().parse();
    Ok((folder, user.map_err(|_| "needs the user postgres")?))
}

#[test]
fn killed_writer_loses_no_transaction() {
    requires!(root, fuse);
    let (programs, user) = match installed() {
        Ok(found) => found,
        Err(reason) => return report_skip(&reason),
    };
    let server = match Server::versitygw() {
        Ok(server) => server,
        Err(reason) => return report_skip(&reason),
    };
    let url = server.url("database");
    succeed(&server, &["volume", "create", &url, "--size", "2G"]);
    succeed(&server, &["mkfs", &url, "--size", "2G"]);
    let sockets = TempDir::new().expect("a folder");
    std::os::unix::fs::chown(sockets.path(), Some(user), Some(user)).expect("an owner");
    let cluster = |mount: &Mounted| Cluster {
        programs: &programs,
        data: mount.path().join("data"),
        sockets: sockets.path(),
        user,
    };
    for round in 0..=ROUNDS {
        let mount = Mounted::new(&server, &url);
        let cluster = cluster(&mount);
        if round == 0 {
            std::fs::create_dir(&cluster.data).expect("a folder");
            std::os::unix::fs::chown(&cluster.data, Some(user), Some(user)).expect("an owner");
            cluster.run("initdb", &["-U", "postgres", "-A", "trust"]);
            cluster.start();
            cluster.run("pgbench", &["-i", "-q", "-s", "2", "postgres"]);
        } else {
            // The server has ended; its process may not be reaped yet.
            std::fs::remove_file(cluster.data.join("postmaster.pid")).expect("a lock file");
            cluster.start();
        }
        let (kept, acknowledged) = (
            cluster.query("SELECT count(*) FROM pgbench_history"),
            cluster.acknowledged(),
        );
        eprintln!("round {round}: {kept} transactions, {acknowledged} acknowledged");
        assert!(
            kept >= acknowledged,
            "round {round}: {kept} of {acknowledged}"
        );
        for table in ["accounts", "branches", "tellers"] {
            let column = &table[..1];
            let difference = format!(
                "SELECT (SELECT sum({column}balance) FROM pgbench_{table}) - \
                 (SELECT coalesce(sum(delta), 0) FROM pgbench_history)"
            );
            assert_eq!(cluster.query(&difference), 0, "round {round}: {table}");
        }
        let mut bench = cluster.bench(round);
        // It reports its progress after a second of transactions.
        let mut reports = BufReader::new(bench.stderr.take().expect("a pipe"));
        reports.read_line(&mut String::new()).expect("a report");
        let postgres = cluster.server();
        drop(mount);
        end(postgres);
        std::io::copy(&mut reports, &mut std::io::sink()).expect("its end");
        bench.wait().expect("pgbench ends");
    }
    succeed(&server, &["volume", "check", &url, "--data"]);
}
