//! A server on a free port of the loopback, with a bucket; it ends with the value.

use rustix::process::{Pid, Signal};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use tempfile::TempDir;

const KEY: &str = "folio-test-key";
const SECRET: &str = "folio-test-secret";

/// A store for volumes.
pub(crate) struct Server {
    process: Option<Child>,
    port: u16,
    folder: TempDir,
}

impl Server {
    /// Starts versitygw over a folder; it checks signatures.
    pub(crate) fn versitygw() -> Result<Self, String> {
        let program = find("versitygw")?;
        let folder = TempDir::new().map_err(|e| e.to_string())?;
        std::fs::create_dir(folder.path().join("bucket")).map_err(|e| e.to_string())?;
        let mut command = Command::new(program);
        let port = free_port();
        command
            .args(["--access", KEY, "--secret", SECRET, "--port"])
            .arg(format!("127.0.0.1:{port}"))
            .arg("posix")
            .arg(folder.path());
        Self::start(command, port, folder)
    }

    /// Starts gofakes3, which keeps its objects in memory.
    pub(crate) fn gofakes3() -> Result<Self, String> {
        Self::in_memory("gofakes3")
    }

    /// Starts a gofakes3 that ignores the conditions of requests.
    pub(crate) fn without_conditions() -> Result<Self, String> {
        Self::in_memory("without-conditions/gofakes3")
    }

    /// Starts a gofakes3 that answers some ranged reads with the whole object.
    pub(crate) fn without_ranges() -> Result<Self, String> {
        Self::in_memory("without-ranges/gofakes3")
    }

    fn in_memory(program: &str) -> Result<Self, String> {
        let program = find(program)?;
        let folder = TempDir::new().map_err(|e| e.to_string())?;
        let port = free_port();
        let mut command = Command::new(program);
        command
            .args(["-backend", "memory", "-initialbucket", "bucket", "-host"])
            .arg(format!("127.0.0.1:{port}"));
        Self::start(command, port, folder)
    }

    /// Starts s3s-fs, which checks conditions without a lock.
    pub(crate) fn s3s_fs() -> Result<Self, String> {
        let program = find("s3s-fs").map_err(|reason| {
            format!("{reason}: cargo install --version 0.14.1 --features binary s3s-fs")
        })?;
        let folder = TempDir::new().map_err(|e| e.to_string())?;
        std::fs::create_dir(folder.path().join("bucket")).map_err(|e| e.to_string())?;
        let port = free_port();
        let mut command = Command::new(program);
        command
            .args([
                "--access-key",
                KEY,
                "--secret-key",
                SECRET,
                "--host",
                "127.0.0.1",
            ])
            .args(["--port", &port.to_string()])
            .arg(folder.path());
        Self::start(command, port, folder)
    }

    /// Returns a store in a directory of the host, without a server.
    pub(crate) fn directory() -> Self {
        Self {
            process: None,
            port: 0,
            folder: TempDir::new().expect("a folder"),
        }
    }

    fn start(mut command: Command, port: u16, folder: TempDir) -> Result<Self, String> {
        let process = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .map_err(|e| e.to_string())?;
        let mut this = Self {
            process: Some(process),
            port,
            folder,
        };
        this.wait()?;
        Ok(this)
    }

    /// Waits until the server answers.
    fn wait(&mut self) -> Result<(), String> {
        while let Some(process) = &mut self.process {
            if let Ok(Some(status)) = process.try_wait() {
                return Err(format!("the server ended: {status}"));
            }
            if self.answers().is_ok() {
                return Ok(());
            }
            std::thread::yield_now();
        }
        Ok(())
    }

    fn answers(&self) -> std::io::Result<()> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port))?;
        stream.write_all(b"GET / HTTP/1.0\r\n\r\n")?;
        stream.read_exact(&mut [0])
    }

    /// Returns the URL of `name` in the store.
    pub(crate) fn url(&self, name: &str) -> String {
        match self.process {
            Some(_) => format!("s3://bucket/{name}"),
            None => format!("file://{}/{name}", self.folder.path().display()),
        }
    }

    /// Sends a signal to the server's process.
    pub(crate) fn signal(&self, signal: Signal) {
        if let Some(process) = &self.process {
            let id = Pid::from_child(process);
            rustix::process::kill_process(id, signal).expect("a signal");
        }
    }

    /// Lets a command find the server.
    pub(crate) fn set_environment(&self, command: &mut Command) {
        command
            .env("AWS_ACCESS_KEY_ID", KEY)
            .env("AWS_SECRET_ACCESS_KEY", SECRET)
            .env("AWS_REGION", "us-east-1")
            .env(
                "AWS_ENDPOINT_URL",
                format!("http://127.0.0.1:{}", self.port),
            );
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(process) = &mut self.process {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

/// Returns a program that `cargo xtask test` installs into the target folder, or one on the PATH.
fn find(name: &str) -> Result<PathBuf, String> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let installed = Path::new(env!("CARGO_TARGET_TMPDIR")).join("../object-stores");
    [installed]
        .into_iter()
        .chain(std::env::split_paths(&path))
        .map(|folder| folder.join(name))
        .find(|program| program.exists())
        .ok_or_else(|| format!("{name} is not installed"))
}

fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    listener.local_addr().expect("an address").port()
}
