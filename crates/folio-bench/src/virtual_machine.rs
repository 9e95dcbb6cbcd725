//! A Linux guest in QEMU, for measurements that need a guest: one kernel, one busybox, one script,
//! no disk.
//!
//! ```text
//!   Guest::new()  the kernel in /boot, its modules, busybox, QEMU; or what of them is missing
//!     .share(tag, socket)  .network()  .program("setfattr")  .file(...)  .device(...)
//!     .run(script, on_line)initramfs -> QEMU -> serial line: `on_line` gets each line, the script's exit status ends it
//! ```
//!
//! Uses only the standard library and tempfile, so that tests/support includes this file by path.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

/// Modules of the guest's kernel, loaded with what they need.
const MODULES: [&str; 2] = ["virtio_pci", "virtiofs"];
/// Address of this machine in a guest's network.
pub const HOST_ADDRESS: &str = "10.0.2.2";
/// The commands that set up the guest's network.
pub const START_NETWORK: &str =
    "ip link set lo up; ip addr add 10.0.2.15/24 dev eth0; ip link set eth0 up\n";
/// How long a guest may take until its script begins.
const BOOT_LIMIT: Duration = Duration::from_secs(200);
/// The end of the line before those of the script.
const BEGUN: &str = "@@begun";
/// The prefix of the line with the script's exit status.
const ENDED: &str = "@@ended ";

/// Search path of programs; tests' PATH may lack the folders of system programs.
const FOLDERS: [&str; 6] = [
    "/usr/local/bin",
    "/usr/bin",
    "/bin",
    "/usr/local/sbin",
    "/usr/sbin",
    "/sbin",
];

/// A guest to be started.
pub struct Guest {
    kernel: PathBuf,
    archive: Archive,
    found: KernelModules,
    /// Those that are loaded, by their paths in the guest.
    modules: Vec<String>,
    devices: Vec<String>,
    memory_mib: u32,
    processors: u32,
    reboots: bool,
}

/// The result of a run.
#[derive(Debug)]
pub struct Run {
    /// Output of the script, line by line.
    pub lines: Vec<String>,
    /// Its exit status; `None` if the guest ended otherwise.
    pub status: Option<i32>,
    /// Whether the script began.
    pub has_begun: bool,
    /// The time within which the guest had to boot or to end, if it did not.
    pub missed: Option<Duration>,
    /// Standard error of QEMU.
    pub errors: String,
}

impl Run {
    /// Collects the lines of a guest until it ends, or misses the time to boot or to end.
    pub(crate) fn collect(
        lines: &mpsc::Receiver<String>,
        [boot_limit, limit]: [Duration; 2],
        mut on_line: impl FnMut(&str),
    ) -> Self {
        let start = Instant::now();
        let mut run = Self {
            lines: Vec::new(),
            status: None,
            has_begun: false,
            missed: None,
            errors: String::new(),
        };
        loop {
            let limit = if run.has_begun { limit } else { boot_limit };
            let line = match lines.recv_timeout(limit.saturating_sub(start.elapsed())) {
                Ok(line) => line,
                // The end of QEMU.
                Err(RecvTimeoutError::Disconnected) => return run,
                Err(RecvTimeoutError::Timeout) => {
                    run.missed = Some(limit);
                    return run;
                }
            };
            if line.ends_with(BEGUN) {
                run.has_begun = true;
                continue;
            }
            if let Some(status) = line.strip_prefix(ENDED) {
                run.status = status.trim().parse().ok();
            }
            on_line(&line);
            run.lines.push(line);
        }
    }

    /// Returns how it failed, in words, with the last lines.
    pub fn explain(&self) -> String {
        const SHOWN: usize = 20;
        let how = match self.missed {
            Some(limit) => {
                let what = if self.has_begun { "end" } else { "boot" };
                format!("the guest did not {what} within {} s", limit.as_secs())
            }
            None => "the guest failed".to_owned(),
        };
        let last = &self.lines[self.lines.len().saturating_sub(SHOWN)..];
        let said = [last.join(" | "), self.errors.trim().to_owned()];
        said.into_iter()
            .filter(|text| !text.is_empty())
            .fold(how, |all, text| all + "; " + &text)
    }
}

impl Guest {
    /// Returns a guest with the newest kernel of this machine that has virtiofs; the error names
    /// what is missing.
    pub fn new() -> Result<Self, String> {
        Self::with_modules(&[])
    }

    /// Returns a guest with the newest kernel of this machine that has virtiofs and these modules.
    pub fn with_modules(modules: &[&str]) -> Result<Self, String> {
        find("qemu-system-x86_64").ok_or("needs the program qemu-system-x86_64")?;
        let busybox = find("busybox").ok_or("needs the program busybox")?;
        let modules = [&MODULES[..], modules].concat();
        let (kernel, found) = newest_kernel(&modules)?;
        let mut archive = Archive::default();
        archive.add("/bin/busybox", 0o755, &read(&busybox)?);
        let bare = Self {
            kernel,
            archive,
            found,
            modules: Vec::new(),
            devices: Vec::new(),
            memory_mib: 256,
            processors: 1,
            reboots: false,
        };
        let mut modules = modules.into_iter();
        modules.try_fold(bare, |guest, module| guest.module(module))
    }

    /// Adds a module of the guest's kernel, with its dependencies, unless the kernel has it built
    /// in.
    pub fn module(mut self, module: &str) -> Result<Self, String> {
        if self.found.is_built_in(module) {
            return Ok(self);
        }
        let paths = with_dependencies(&self.found.table, module);
        for path in paths.ok_or(format!("needs the module {module}"))? {
            let name = format!("/modules/{}", path.rsplit('/').next().unwrap_or_default());
            if !self.modules.contains(&name) {
                self.archive
                    .add(&name, 0o644, &read(&self.found.folder.join(&path))?);
                self.modules.push(name);
            }
        }
        Ok(self)
    }

    /// A network card, eth0, behind which [`HOST_ADDRESS`] is the loopback of this machine: QEMU's
    /// user networking.
    pub fn network(self) -> Result<Self, String> {
        let guest = self.module("virtio_net")?.device("-netdev", "user,id=net");
        Ok(guest.device("-device", "virtio-net-pci,netdev=net,romfile="))
    }

    /// Memory in MiB, and processors.
    pub fn size(mut self, memory_mib: u32, processors: u32) -> Self {
        (self.memory_mib, self.processors) = (memory_mib, processors);
        self
    }

    /// Lets the script boot the same machine again (`reboot -f`), in which it runs from its
    /// beginning.
    pub fn may_reboot(mut self) -> Self {
        self.reboots = true;
        self
    }

    /// Adds a virtiofs device, mounted as `tag`: the server listens at `socket` (vhost-user).
    pub fn share(self, tag: &str, socket: &Path) -> Self {
        let socket = socket.display();
        self.device("-chardev", &format!("socket,id={tag},path={socket}"))
            .device(
                "-device",
                &format!("vhost-user-fs-pci,chardev={tag},tag={tag},queue-size=1024"),
            )
    }

    /// Two more words for QEMU.
    pub fn device(mut self, option: &str, value: &str) -> Self {
        self.devices.extend([option.to_owned(), value.to_owned()]);
        self
    }

    /// Adds a file to the guest's root file system.
    pub fn file(mut self, path: &str, mode: u32, bytes: &[u8]) -> Self {
        self.archive.add(path, mode, bytes);
        self
    }

    /// Adds a program of this machine as /bin/NAME, with the libraries that it needs.
    pub fn program(mut self, program: &Path) -> Result<Self, String> {
        let name = program.file_name().unwrap_or_default().to_string_lossy();
        self.archive
            .add(&format!("/bin/{name}"), 0o755, &read(program)?);
        let output = Command::new("ldd")
            .arg(program)
            .output()
            .map_err(|error| format!("ldd: {error}"))?;
        for word in String::from_utf8_lossy(&output.stdout).split_whitespace() {
            if word.starts_with('/') {
                self.archive.add(word, 0o755, &read(Path::new(word))?);
            }
        }
        Ok(self)
    }

    /// Boots, runs `script` with busybox's sh, and powers off; `on_line` gets each line that the
    /// script says while it runs. Killed after `limit`.
    pub fn run(
        mut self,
        script: &str,
        limit: Duration,
        on_line: impl FnMut(&str),
    ) -> Result<Run, String> {
        self.archive.add("/script", 0o755, script.as_bytes());
        let init = self.init();
        self.archive.add("/init", 0o755, init.as_bytes());
        let folder = tempfile::tempdir().map_err(|error| error.to_string())?;
        let initramfs = folder.path().join("initramfs");
        std::fs::write(&initramfs, self.archive.finish()).map_err(|error| error.to_string())?;
        let mut machine = Machine(
            self.command(&initramfs)
                .spawn()
                .map_err(|error| format!("QEMU: {error}"))?,
        );
        let out = machine.0.stdout.take().ok_or("QEMU has no output")?;
        let mut err = machine.0.stderr.take().ok_or("QEMU has no error output")?;
        let errors = std::thread::spawn(move || {
            let mut text = Vec::new();
            let _ = err.read_to_end(&mut text);
            String::from_utf8_lossy(&text).into_owned()
        });
        let (sender, receiver) = mpsc::channel();
        let reader = std::thread::spawn(move || {
            for line in BufReader::new(out).split(b'\n').map_while(Result::ok) {
                let line = String::from_utf8_lossy(&line)
                    .trim_end_matches('\r')
                    .to_owned();
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        let mut run = Run::collect(&receiver, [BOOT_LIMIT.min(limit), limit], on_line);
        drop(machine);
        drop(receiver);
        let _ = reader.join();
        run.errors = errors.join().unwrap_or_default();
        Ok(run)
    }

    fn init(&self) -> String {
        let mut text = "#!/bin/busybox sh\n/bin/busybox mkdir -p /proc /sys /dev /tmp /mnt\n\
             /bin/busybox --install -s /bin\nexport PATH=/bin\n\
             mount -t proc proc /proc; mount -t sysfs sys /sys; mount -t devtmpfs dev /dev\n\
             mount -t tmpfs tmp /tmp\n"
            .to_owned();
        for module in &self.modules {
            text.push_str(&format!("insmod {module}\n"));
        }
        text.push_str(&format!(
            "echo {BEGUN}\nsh /script 2>&1\nstatus=$?; echo; echo {ENDED}$status\nsync\npoweroff -f\n"
        ));
        text
    }

    fn command(&self, initramfs: &Path) -> Command {
        let memory = format!(
            "memory-backend-memfd,id=mem,size={}M,share=on",
            self.memory_mib
        );
        let mut command = Command::new(find("qemu-system-x86_64").unwrap_or_default());
        command.args([
            "-nodefaults",
            "-no-user-config",
            "-display",
            "none",
            "-serial",
            "stdio",
        ]);
        if !self.reboots {
            command.arg("-no-reboot");
        }
        command.args(["-machine", "q35,accel=tcg", "-cpu", "max"]);
        command.args([
            "-m",
            &format!("{}M", self.memory_mib),
            "-smp",
            &self.processors.to_string(),
        ]);
        command.args(["-object", &memory, "-numa", "node,memdev=mem"]);
        command
            .arg("-kernel")
            .arg(&self.kernel)
            .arg("-initrd")
            .arg(initramfs);
        command.args([
            "-append",
            "console=ttyS0 quiet loglevel=0 panic=-1 mitigations=off",
        ]);
        command.args(&self.devices);
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }
}

/// QEMU, which ends with the value.
struct Machine(Child);

impl Drop for Machine {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn read(path: &Path) -> Result<Vec<u8>, String> {
    std::fs::read(path).map_err(|error| format!("{}: {error}", path.display()))
}

fn find(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain(FOLDERS.map(PathBuf::from));
    folders
        .map(|folder| folder.join(name))
        .find(|path| path.is_file())
}

/// Returns the path of a file of this machine that guests use (kernel, firmware): below the folder
/// that FOLIO_GUEST_FILES names, where it is there.
pub fn machine_file(path: &str) -> PathBuf {
    let folder = std::env::var_os("FOLIO_GUEST_FILES");
    let unpacked = folder.map(|folder| Path::new(&folder).join(path.trim_start_matches('/')));
    unpacked
        .filter(|unpacked| unpacked.exists())
        .unwrap_or_else(|| PathBuf::from(path))
}

/// The modules of a kernel: their folder, and the texts of `modules.dep` and `modules.builtin`.
struct KernelModules {
    folder: PathBuf,
    table: String,
    builtin: String,
}

impl KernelModules {
    fn of(release: &str) -> Result<Self, String> {
        let folder = machine_file("/lib/modules").join(release);
        let table = read(&folder.join("modules.dep"))?;
        // Some packages lack it.
        let builtin = read(&folder.join("modules.builtin")).unwrap_or_default();
        Ok(Self {
            folder,
            table: String::from_utf8_lossy(&table).into_owned(),
            builtin: String::from_utf8_lossy(&builtin).into_owned(),
        })
    }

    fn is_built_in(&self, module: &str) -> bool {
        let file = format!("/{module}.ko");
        self.builtin.lines().any(|line| line.ends_with(&file))
    }

    fn has(&self, module: &str) -> bool {
        self.is_built_in(module) || with_dependencies(&self.table, module).is_some()
    }
}

/// The newest kernel in /boot that has these modules, none of them compressed.
fn newest_kernel(modules: &[&str]) -> Result<(PathBuf, KernelModules), String> {
    let boot = machine_file("/boot");
    let entries =
        std::fs::read_dir(&boot).map_err(|error| format!("{}: {error}", boot.display()))?;
    let mut releases: Vec<String> = entries
        .filter_map(|entry| {
            let name = entry.ok()?.file_name();
            name.to_str()?.strip_prefix("vmlinuz-").map(str::to_owned)
        })
        .collect();
    releases.sort();
    let found = releases.iter().rev().find_map(|release| {
        let found = KernelModules::of(release).ok()?;
        let kernel = boot.join(format!("vmlinuz-{release}"));
        modules
            .iter()
            .all(|module| found.has(module))
            .then_some((kernel, found))
    });
    found.ok_or_else(|| {
        format!(
            "needs a kernel in /boot with the modules {} (Debian: linux-image-amd64)",
            modules.join(", ")
        )
    })
}

/// The paths of a module and of all that it needs, those first; `None` if it is not there. From
/// `modules.dep`.
fn with_dependencies(table: &str, module: &str) -> Option<Vec<String>> {
    let file = format!("/{module}.ko");
    let line = table.lines().find(|line| {
        line.split(':')
            .next()
            .is_some_and(|path| path.ends_with(&file))
    })?;
    let (path, needs) = line.split_once(':')?;
    // Each is listed before what it needs itself.
    let mut paths: Vec<String> = needs.split_whitespace().map(str::to_owned).collect();
    paths.reverse();
    paths.push(path.to_owned());
    Some(paths)
}

/// An initramfs: cpio's format `newc`. Source: Linux,
/// Documentation/driver-api/early-userspace/buffer-format.rst.
#[derive(Default)]
struct Archive {
    bytes: Vec<u8>,
    paths: BTreeSet<String>,
}

impl Archive {
    /// Adds a file once, with the folders above it.
    fn add(&mut self, path: &str, mode: u32, bytes: &[u8]) {
        if self.paths.contains(path) {
            return;
        }
        let slashes: Vec<usize> = path
            .match_indices('/')
            .map(|(at, _)| at)
            .filter(|at| *at > 0)
            .collect();
        for at in slashes {
            if self.paths.insert(path[..at].to_owned()) {
                self.entry(&path[..at], 0o040_755, &[]);
            }
        }
        self.paths.insert(path.to_owned());
        self.entry(path, 0o100_000 | mode, bytes);
    }

    fn entry(&mut self, path: &str, mode: u32, bytes: &[u8]) {
        let name = path.trim_start_matches('/');
        let links = 1;
        // Number, mode, owner, group, links, time, size, four device numbers, length of the name,
        // checksum.
        let number = self.paths.len() as u32;
        let fields = [
            number,
            mode,
            0,
            0,
            links,
            0,
            bytes.len() as u32,
            0,
            0,
            0,
            0,
            name.len() as u32 + 1,
            0,
        ];
        self.bytes.extend_from_slice(b"070701");
        for field in fields {
            let _ = write!(self.bytes, "{field:08x}");
        }
        self.bytes.extend_from_slice(name.as_bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend_from_slice(bytes);
        self.pad();
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }

    /// Returns the whole archive.
    fn finish(&mut self) -> &[u8] {
        self.entry("TRAILER!!!", 0, &[]);
        &self.bytes
    }
}
