//! Remedies for shares of other servers, executed: bindfs on this machine; QEMU's 9p, NFS and
//! SMB in a guest.
//!
//! A guest boots twice: its first reports name the remedies, of which the first for a fault is
//! then the script of another one.

use super::guest::EXAMINE;
use super::{DoctorRun, apply};
use crate::support::guest::{Guest, HOST_ADDRESS, START_NETWORK};
use crate::support::tools::{command, run};
use crate::support::{report_skip, requires};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

const LIMIT: Duration = Duration::from_secs(300);

const ATTRIBUTES: &str = "attributes-not-trusted";
const PAGES: &str = "page-cache-bypassed";

/// A file that the doctor examines, in a folder that all users may read.
fn shared_folder() -> TempDir {
    let folder = TempDir::new().unwrap();
    std::fs::write(folder.path().join("file"), [7; 300_000]).unwrap();
    let permissions = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(folder.path(), permissions).unwrap();
    folder
}

/// Returns the commands that fix a fault.
#[track_caller]
fn remedies(report: &DoctorRun, cause: &str) -> Vec<String> {
    let check = report.check(cause);
    assert_eq!(check["verdict"], "fault", "{:#}", report.report);
    let remedies = check["remedies"].as_array().expect("remedies");
    let text = |remedy: &serde_json::Value| remedy.as_str().expect("a command").to_owned();
    remedies.iter().map(text).collect()
}

#[track_caller]
fn is_cured(report: &DoctorRun, cause: &str, remedy: &str) {
    let check = report.check(cause);
    assert_eq!(check["verdict"], "fine", "{remedy}: {:#}", report.report);
}

#[test]
fn remedies_of_bindfs_are_executed() {
    requires!(root, fuse, tool("bindfs"));
    let source = shared_folder();
    let target = TempDir::new().unwrap();
    let file = target.path().join("file");
    let mount = || {
        let options = "attr_timeout=0,entry_timeout=0,direct_io";
        let paths = [source.path(), target.path()];
        run(
            "bindfs",
            ["-o".as_ref(), options.as_ref()].into_iter().chain(paths),
        );
    };
    let unmount = || run("umount", [target.path()]);
    for cause in [ATTRIBUTES, PAGES] {
        for server in ["bindfs -o", "folio mount"] {
            mount();
            // Each names the process of the server.
            let before = DoctorRun::of(&file, &[]);
            let all = remedies(&before, cause);
            let remedy = all.iter().find(|remedy| remedy.contains(server));
            let remedy = remedy.unwrap_or_else(|| panic!("{:#}", before.report));
            apply(remedy);
            DoctorRun::of(&file, &[]);
            is_cured(&DoctorRun::of(&file, &[]), cause, remedy);
            unmount();
        }
    }
}

/// A server of this machine, which ends with the value.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

struct Fault {
    cause: &'static str,
    option: &'static str,
}

fn fault(cause: &'static str, option: &'static str) -> Fault {
    Fault { cause, option }
}

/// A share whose mount asks its server again and again.
struct Share {
    name: &'static str,
    modules: &'static [&'static str],
    /// Words of mount(8); `PORT` is that of the server.
    mount: &'static str,
    /// Faults, each with an option that the mount shows after the remedy.
    faults: Vec<Fault>,
    /// Whether attributes are trusted after the remedy. The kernel asks ganesha for each stat,
    /// whatever its options.
    is_cured: bool,
    /// Starts the server of a folder at a port, with files of its own in another folder.
    serve: Option<fn(shared: &Path, own: &Path, port: u16) -> Server>,
}

impl Share {
    /// Boots a guest that mounts the share, runs `script`, and examines the file; returns the
    /// report.
    fn examine(&self, guest: Guest, port: u16, script: &str) -> DoctorRun {
        let mount = self.mount.replace("PORT", &port.to_string());
        let script = format!(
            "{EXAMINE}{START_NETWORK}mount {mount} || {{ dmesg | tail -n 5; exit 1; }}\n\
             {script}\n[ $? = 0 ] || exit 1\nexamine\n",
        );
        let ran = guest.run(&script, LIMIT, |_| {}).unwrap();
        assert_eq!(ran.status, Some(0), "{}: {}", self.name, ran.explain());
        let mut reports = ran.lines.iter();
        let report = reports.find_map(|line| line.strip_prefix("report "));
        let report = report.unwrap_or_else(|| panic!("{}: {}", self.name, ran.explain()));
        DoctorRun::read(Path::new("/mnt/file"), report.as_bytes())
    }

    fn guest(&self, shared: &Path) -> Result<Guest, String> {
        let shared = shared.display();
        let guest = Guest::with_modules(&[&["virtio_net"], self.modules].concat())?;
        let guest = guest.size(768, 1).network()?;
        let guest = match self.serve {
            Some(_) => guest,
            None => guest
                .device(
                    "-fsdev",
                    &format!("local,id=fs,path={shared},security_model=none"),
                )
                .device("-device", "virtio-9p-pci,fsdev=fs,mount_tag=share"),
        };
        guest.program(Path::new(env!("CARGO_BIN_EXE_folio")))
    }

    /// Executes the first remedy of each fault that is a mount of the guest.
    #[track_caller]
    fn remedies_are_executed(&self) {
        let folder = shared_folder();
        if let Err(reason) = self.guest(folder.path()) {
            return report_skip(&reason);
        }
        let guest = || self.guest(folder.path()).unwrap();
        let own = TempDir::new().unwrap();
        let port = free_port();
        let _server = self
            .serve
            .map(|serve| serve(folder.path(), own.path(), port));
        let before = self.examine(guest(), port, "");
        for Fault { cause, option } in &self.faults {
            // An answer may arrive before the guest waits for it.
            let checks = before.report["paths"][0]["checks"]
                .as_array()
                .expect("checks");
            let is_fault =
                |check: &serde_json::Value| check["cause"] == *cause && check["verdict"] == "fault";
            if !checks.iter().any(is_fault) {
                report_skip(&format!(
                    "{}: the answers are too fast for {cause}",
                    self.name
                ));
                continue;
            }
            let remedies = remedies(&before, cause);
            let mut remedies = remedies.iter().filter(|remedy| remedy.contains("mount -"));
            let remedy = remedies
                .next()
                .unwrap_or_else(|| panic!("{:#}", before.report));
            let after = self.examine(guest(), port, remedy);
            let options = after.report["paths"][0]["chain"][0]["options"].to_string();
            let shown = format!("\"{option}\"");
            assert!(options.contains(&shown), "{remedy}: {options}");
            if self.is_cured {
                is_cured(&after, cause, remedy);
            }
        }
    }
}

fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().port()
}

/// Starts a server, and waits until it listens.
fn start(program: &str, words: &[&str], port: u16) -> Server {
    let mut command = command(program);
    command.args(words).stdin(Stdio::null());
    let server = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn();
    let mut server = Server(server.unwrap());
    let start = Instant::now();
    while TcpStream::connect(("127.0.0.1", port)).is_err() {
        assert!(
            server.0.try_wait().unwrap().is_none(),
            "{program} has ended"
        );
        assert!(start.elapsed() < LIMIT, "{program} does not listen");
        std::thread::yield_now();
    }
    server
}

#[test]
fn remedies_of_9p_are_executed() {
    Share {
        name: "9p",
        modules: &["9p", "9pnet_virtio"],
        mount: "-t 9p -o trans=virtio,cache=none share /mnt",
        faults: vec![fault(ATTRIBUTES, "loose"), fault(PAGES, "loose")],
        is_cured: true,
        serve: None,
    }
    .remedies_are_executed();
}

#[test]
fn remedy_of_nfs_is_executed() {
    requires!(root, tool("ganesha.nfsd"));
    let serve = |shared: &Path, own: &Path, port: u16| {
        let (configuration, log) = (own.join("conf"), own.join("log"));
        let text = format!(
            "NFS_CORE_PARAM {{ Protocols = 4; NFS_Port = {port}; Bind_addr = 127.0.0.1; \
             Enable_NLM = false; Enable_RQUOTA = false; }}\n\
             NFSV4 {{ Graceless = true; RecoveryRoot = \"{own}\"; }}\n\
             EXPORT {{ Export_Id = 1; Path = \"{shared}\"; Pseudo = /data; Access_Type = RW; \
             Squash = None; SecType = sys; FSAL {{ Name = VFS; }} }}\n",
            own = own.display(),
            shared = shared.display(),
        );
        std::fs::write(&configuration, text).unwrap();
        let [configuration, log, pid] =
            [configuration, log, own.join("pid")].map(|path| path.display().to_string());
        let words = ["-F", "-f", &configuration, "-L", &log, "-p", &pid];
        start("ganesha.nfsd", &words, port)
    };
    // Without mount.nfs(8) the kernel gets the addresses as options.
    assert_eq!(HOST_ADDRESS, "10.0.2.2");
    Share {
        name: "nfs",
        modules: &["nfsv4"],
        mount: "-t nfs4 -o addr=10.0.2.2,clientaddr=10.0.2.15,port=PORT,vers=4.2,noac \
                10.0.2.2:/data /mnt",
        faults: vec![fault(ATTRIBUTES, "acregmax=3")],
        is_cured: false,
        serve: Some(serve),
    }
    .remedies_are_executed();
}

#[test]
fn remedies_of_smb_are_executed() {
    requires!(root, tool("smbd"));
    let serve = |shared: &Path, own: &Path, port: u16| {
        let mut text = format!(
            "[global]\nserver role = standalone\nmap to guest = Bad User\nguest account = root\n\
             smb ports = {port}\ninterfaces = lo\nbind interfaces only = yes\n\
             disable netbios = yes\nlog file = {}/log\n",
            own.display()
        );
        let folders = "private dir,lock directory,state directory,cache directory,pid directory,\
                       ncalrpc dir";
        for option in folders.split(',') {
            text.push_str(&format!("{option} = {}\n", own.display()));
        }
        text.push_str(&format!(
            "[data]\npath = {}\nguest ok = yes\nread only = no\n",
            shared.display()
        ));
        let configuration = own.join("conf");
        std::fs::write(&configuration, text).unwrap();
        let configuration = configuration.display().to_string();
        start(
            "smbd",
            &["-F", "--no-process-group", "-s", &configuration],
            port,
        )
    };
    Share {
        name: "smb",
        modules: &["cifs", "sha512_generic", "hmac", "md5", "cmac", "aes_generic", "ccm", "gcm", "ghash-generic", "ctr", "nls_utf8"],
        mount: "-t cifs -o ip=10.0.2.2,port=PORT,username=nobody,password=,vers=3.1.1,actimeo=0,cache=none \
                //10.0.2.2/data /mnt",
        faults: vec![fault(ATTRIBUTES, "actimeo=1"), fault(PAGES, "cache=strict")],
        is_cured: true,
        serve: Some(serve),
    }
    .remedies_are_executed();
}
