//! Disks that boot: container images, archives and a Debian become disks, built by an ordinary
//! user without /dev/fuse and without user namespaces, and started by QEMU: with firmware (OVMF)
//! and systemd-boot, or with the kernel of the command line.

mod machine;

use crate::support::guest::machine_file;
use crate::support::tools::{command, qemu_check, run, succeed, text};
use crate::support::{report_skip, requires};
use machine::Machine;
use std::fs;
use std::os::unix::fs::{chown, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;

const BOOT_LOADER: &str = "/usr/lib/systemd/boot/efi/systemd-bootx64.efi";
const FIRMWARE: &str = "/usr/share/OVMF/OVMF_CODE_4M.fd";
const FIRMWARE_VARIABLES: &str = "/usr/share/OVMF/OVMF_VARS_4M.fd";
/// What a kernel needs so that it mounts an ext4 without an initial RAM disk.
const KERNEL_OPTIONS: [&str; 3] = [
    "CONFIG_EXT4_FS=y",
    "CONFIG_BLK_DEV_NVME=y",
    "CONFIG_EFI_STUB=y",
];
/// The ordinary user.
const USER_ID: u32 = 65534;
const ROOT_PARTITION: &str = "6f3c0a53-7b6f-4d0d-9f5e-2f1d9c34aa03";
/// Names the tar archive of a Debian with a kernel, to use or to make.
const DEBIAN: &str = "FOLIO_BOOT_DEBIAN";
const DEBIAN_PACKAGES: &str = "linux-image-cloud-amd64,systemd-sysv,udev,initramfs-tools";

/// Takes all capabilities, new user namespaces and /dev/fuse from a program, in namespaces of its
/// own: nothing outside of them changes.
const CONFINE: &str = r#"set -e
echo 0 >/proc/sys/user/max_user_namespaces
if [ -e /dev/fuse ]; then mount --bind /dev/null /dev/fuse; fi
exec setpriv --inh-caps=-all --ambient-caps=-all --bounding-set=-all "$@""#;

const INITTAB: &str = "\
::sysinit:/bin/busybox dmesg -n 1
::sysinit:/bin/busybox mount -t proc proc /proc
::sysinit:/bin/busybox mount -t devtmpfs dev /dev
::sysinit:/bin/busybox hostname -F /etc/hostname
ttyS0::respawn:/bin/busybox getty -L 115200 ttyS0 vt100
::shutdown:/bin/busybox umount -a -r
";

/// A folder of the ordinary user, with a copy of the command.
struct Workshop(TempDir);

impl Workshop {
    /// Returns `None`, and reports a skip, if this machine lacks a file that boots.
    fn new(files: &[&str]) -> Option<Self> {
        if let Some(missing) = files.iter().find(|file| !machine_file(file).is_file()) {
            report_skip(&format!("needs the file {missing}"));
            return None;
        }
        let folder = TempDir::new().unwrap();
        fs::copy(env!("CARGO_BIN_EXE_folio"), folder.path().join("folio")).unwrap();
        let workshop = Self(folder);
        workshop.give(workshop.0.path());
        Some(workshop)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Gives a file or a tree to the ordinary user.
    fn give(&self, path: &Path) {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let is_tree = path.is_dir() && !path.is_symlink();
        for entry in fs::read_dir(path).into_iter().flatten().filter(|_| is_tree) {
            self.give(&entry.unwrap().path());
        }
        if !path.is_symlink() {
            chown(path, Some(USER_ID), Some(USER_ID)).unwrap();
        }
    }

    /// Returns a program of the ordinary user, confined.
    fn confined(&self, words: &[&str]) -> Command {
        let unshare = [
            "--user",
            "--map-current-user",
            "--keep-caps",
            "--mount",
            "sh",
            "-c",
            CONFINE,
            "sh",
        ];
        let mut command = if rustix::process::geteuid().is_root() {
            let mut command = command("setpriv");
            let ids = [format!("--reuid={USER_ID}"), format!("--regid={USER_ID}")];
            command.args(ids).args(["--clear-groups", "unshare"]);
            command
        } else {
            command("unshare")
        };
        command
            .args(unshare)
            .args(words)
            .current_dir(self.0.path())
            .env("TMPDIR", self.0.path());
        command
    }

    /// Runs folio, confined.
    #[track_caller]
    fn folio(&self, words: &[&str]) -> String {
        text(&succeed(
            &mut self.confined(&[&["./folio", "-q"], words].concat()),
        ))
    }

    /// Runs one of the blocks of docs/build.md that make disks, confined.
    #[track_caller]
    fn run_document(&self, number: usize, kernel: &Path) {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/build.md");
        let document = fs::read_to_string(path).unwrap();
        let block = document.split("```bash\n").nth(number + 1).unwrap();
        let script = block.split("```").next().unwrap();
        let loader = machine_file(BOOT_LOADER).display().to_string();
        let script = &script.replace(BOOT_LOADER, &loader);
        fs::copy(kernel, self.path("kernel")).unwrap();
        self.give(&self.path("kernel"));
        let path = std::env::var("PATH").unwrap_or_default();
        let mut shell = self.confined(&["bash", "-euxc", script]);
        shell
            .env("PATH", format!("{}:{path}", self.0.path().display()))
            .env("KERNEL", self.path("kernel"));
        succeed(&mut shell);
    }

    /// Writes a root directory of busybox with init, getty and login.
    fn write_root(&self) {
        let root = self.path("root");
        for folder in ["bin", "sbin", "etc", "dev", "proc", "root"] {
            fs::create_dir_all(root.join(folder)).unwrap();
        }
        let busybox = crate::support::require::find("busybox").unwrap();
        fs::copy(busybox, root.join("bin/busybox")).unwrap();
        for name in ["sh", "login", "mount", "cat", "poweroff"] {
            symlink("busybox", root.join("bin").join(name)).unwrap();
        }
        symlink("../bin/busybox", root.join("sbin/init")).unwrap();
        for (name, content) in [
            ("inittab", INITTAB),
            ("passwd", "root::0:0:root:/root:/bin/sh\n"),
            ("group", "root:x:0:\n"),
            ("hostname", "folio-boot\n"),
        ] {
            fs::write(root.join("etc").join(name), content).unwrap();
        }
        self.give(&root);
    }

    /// Writes the files of an EFI system partition: systemd-boot with one entry.
    fn write_boot(&self, kernel: &Path, initrd: &Path) {
        let boot = self.path("boot");
        for folder in ["EFI/BOOT", "loader/entries"] {
            fs::create_dir_all(boot.join(folder)).unwrap();
        }
        fs::copy(machine_file(BOOT_LOADER), boot.join("EFI/BOOT/BOOTX64.EFI")).unwrap();
        fs::copy(kernel, boot.join("linux")).unwrap();
        fs::write(boot.join("loader/loader.conf"), "timeout 0\n").unwrap();
        fs::copy(initrd, boot.join("initrd")).unwrap();
        let entry = format!(
            "title Linux\nlinux /linux\ninitrd /initrd\n\
             options root=PARTUUID={ROOT_PARTITION} rw console=ttyS0\n"
        );
        fs::write(boot.join("loader/entries/linux.conf"), entry).unwrap();
        self.give(&boot);
    }

    /// Writes a specification: a system partition, and a root from `source`.
    fn write_spec(&self, boot_size: &str, source: &str) {
        let spec = format!(
            "[[partition]]\ntype = 'esp'\nsize = '{boot_size}'\nformat = 'fat32'\n\
             source = 'boot'\n\n[[partition]]\ntype = 'linux-root-x86-64'\nlabel = 'root'\n\
             uuid = '{ROOT_PARTITION}'\nsize = 'auto+64M'\nformat = 'ext4'\nsource = '{source}'\n"
        );
        fs::write(self.path("spec.toml"), spec).unwrap();
        self.give(&self.path("spec.toml"));
    }

    /// Starts a machine whose firmware finds the boot loader on the disk.
    fn boot(&self, disk: &str) -> Machine {
        fs::copy(machine_file(FIRMWARE_VARIABLES), self.path("variables")).unwrap();
        let path = |name: &str| self.path(name).display().to_string();
        let firmware = machine_file(FIRMWARE);
        let firmware = format!(
            "if=pflash,format=raw,readonly=on,file={}",
            firmware.display()
        );
        let variables = format!("if=pflash,format=raw,file={}", path("variables"));
        let disk = format!("if=none,id=disk,format=qcow2,file={}", path(disk));
        let device = "nvme,drive=disk,serial=1";
        Machine::start(
            ["-drive", &firmware, "-drive", &variables, "-drive", &disk]
                .into_iter()
                .chain(["-device", device]),
        )
    }

    /// Asserts that both file systems and the qcow2 are consistent.
    fn check(&self, disk: &str) {
        qemu_check(&self.path(disk));
        self.folio(&["check", &format!("{disk}@root")]);
        self.folio(&["image", "convert", "-O", "raw", disk, "disk.raw"]);
        let raw = self.path("disk.raw");
        let verified = run("sgdisk", ["-v".as_ref(), raw.as_os_str()]);
        assert!(verified.contains("No problems found"), "{verified}");
    }
}

/// Returns the newest kernel in /boot that mounts a root by itself.
fn kernel() -> Option<PathBuf> {
    let boot = machine_file("/boot");
    let mut kernels: Vec<_> = fs::read_dir(&boot)
        .ok()?
        .flatten()
        .filter_map(|entry| {
            let name = entry.file_name().into_string().ok()?;
            let release = name.strip_prefix("vmlinuz-")?;
            let config = fs::read_to_string(boot.join(format!("config-{release}"))).ok()?;
            let has = |option: &&str| config.lines().any(|line| line == *option);
            KERNEL_OPTIONS.iter().all(has).then(|| entry.path())
        })
        .filter(|path| fs::File::open(path).is_ok())
        .collect();
    kernels.sort();
    if kernels.is_empty() {
        let options = KERNEL_OPTIONS.join(", ");
        report_skip(&format!("needs a kernel in /boot with {options}"));
    }
    kernels.pop()
}

/// Logs in, runs a command, and turns the machine off.
fn use_machine(mut machine: Machine) {
    machine.wait_for("folio-boot login:");
    machine.ask("root", "#");
    machine.ask("echo sum=$((6 * 7)); cat /proc/mounts", "sum=42");
    machine.wait_for(" / ext4 rw");
    machine.ask("echo kept >/root/file; poweroff", "Power down");
    machine.wait_for_end();
}

#[test]
fn builder_has_neither_root_nor_namespaces() {
    requires!(user_namespaces, tool("setpriv"), tool("unshare"));
    let Some(workshop) = Workshop::new(&[]) else {
        return;
    };
    let id = text(&succeed(&mut workshop.confined(&["id", "-u"])));
    assert_ne!(id.trim(), "0");
    let namespace = workshop.confined(&["unshare", "--user", "true"]).output();
    assert!(!namespace.unwrap().status.success());
    if Path::new("/dev/fuse").exists() {
        let script = "stat -c %t:%T /dev/fuse";
        let device = text(&succeed(&mut workshop.confined(&["sh", "-c", script])));
        assert_eq!(device.trim(), "1:3");
    }
}

#[test]
fn container_image_boots_by_firmware() {
    requires!(
        user_namespaces,
        tool("setpriv"),
        tool("unshare"),
        tool("qemu-system-x86_64"),
        tool("qemu-img"),
        tool("sgdisk"),
        tool("busybox")
    );
    let files = [BOOT_LOADER, FIRMWARE, FIRMWARE_VARIABLES];
    let (Some(workshop), Some(kernel)) = (Workshop::new(&files), kernel()) else {
        return;
    };
    workshop.write_root();
    let to_image = ["cp", "-a", "--create", "auto", "--chown", "0:0", "root/."];
    workshop.folio(&[&to_image[..], &["base.img:/"]].concat());
    workshop.folio(&["cp", "-a", "base.img:/", "oci:layout:base"]);
    workshop.run_document(0, &kernel);
    use_machine(workshop.boot("disk.qcow2"));
    workshop.give(&workshop.path("disk.qcow2"));
    workshop.check("disk.qcow2");
    let kept = workshop.folio(&["cat", "disk.qcow2@root:/root/file"]);
    assert_eq!(kept, "kept\n");
}

#[test]
fn raw_root_boots_with_the_given_kernel() {
    requires!(
        user_namespaces,
        tool("setpriv"),
        tool("unshare"),
        tool("qemu-system-x86_64"),
        tool("e2fsck"),
        tool("busybox")
    );
    let (Some(workshop), Some(kernel)) = (Workshop::new(&[]), kernel()) else {
        return;
    };
    workshop.write_root();
    let root = workshop.path("root");
    let words = ["--owner=0", "--group=0", "-C"].map(std::ffi::OsStr::new);
    let archive = workshop.path("root.tar");
    let rest = [
        root.as_os_str(),
        "-cf".as_ref(),
        archive.as_os_str(),
        ".".as_ref(),
    ];
    run("tar", words.into_iter().chain(rest));
    workshop.give(&archive);
    workshop.run_document(1, &kernel);
    let drive = format!(
        "if=none,id=disk,format=raw,file={}",
        workshop.path("root.img").display()
    );
    let kernel = kernel.display().to_string();
    let append = "root=/dev/nvme0n1 rw console=ttyS0";
    use_machine(Machine::start([
        "-drive",
        &drive,
        "-device",
        "nvme,drive=disk,serial=1",
        "-kernel",
        &kernel,
        "-append",
        append,
    ]));
    crate::support::tools::fsck(&workshop.path("root.img"));
    let kept = workshop.folio(&["cat", "root.img:/root/file"]);
    assert_eq!(kept, "kept\n");
}

/// Makes the archive of a Debian, or returns the one that was made before.
fn debian() -> Option<PathBuf> {
    let Some(archive) = std::env::var_os(DEBIAN).map(PathBuf::from) else {
        report_skip(&format!(
            "on request, because it takes minutes and a mirror of Debian: {DEBIAN}=FILE, a tar \
             archive to use, or to make with mmdebstrap"
        ));
        return None;
    };
    if !archive.exists() {
        let part = archive.with_extension("part");
        let include = format!("--include={DEBIAN_PACKAGES}");
        let hook = "--customize-hook=echo folio-boot >\"$1/etc/hostname\"; \
                    chroot \"$1\" passwd -d root";
        let words = ["--variant=minbase", "--format=tar", &include, hook];
        let mut made = command("mmdebstrap");
        succeed(made.args(words).arg("bookworm").arg(&part));
        fs::rename(part, &archive).unwrap();
    }
    Some(archive)
}

#[test]
fn debian_boots_to_a_login() {
    requires!(
        user_namespaces,
        tool("setpriv"),
        tool("unshare"),
        tool("qemu-system-x86_64"),
        tool("qemu-img"),
        tool("sgdisk")
    );
    let files = [BOOT_LOADER, FIRMWARE, FIRMWARE_VARIABLES];
    let (Some(archive), Some(workshop)) = (debian(), Workshop::new(&files)) else {
        return;
    };
    fs::copy(archive, workshop.path("debian.tar")).unwrap();
    workshop.give(&workshop.path("debian.tar"));
    // The kernel and its initial RAM disk are in the archive.
    let image = [
        "tar",
        "-xf",
        "debian.tar",
        "debian.img:",
        "--create",
        "auto",
    ];
    workshop.folio(&image);
    let find = |name: &str| {
        let listed = workshop.folio(&["ls", "debian.img:/boot"]);
        let found = listed.lines().find(|line| line.starts_with(name));
        found
            .unwrap_or_else(|| panic!("{name}: {listed}"))
            .to_owned()
    };
    for (name, copy) in [("vmlinuz-", "kernel"), ("initrd.img-", "initrd")] {
        let from = format!("debian.img:/boot/{}", find(name));
        workshop.folio(&["cp", &from, copy]);
    }
    workshop.write_boot(&workshop.path("kernel"), &workshop.path("initrd"));
    workshop.write_spec("128M", "debian.tar");
    workshop.folio(&["disk", "create", "disk.qcow2", "spec.toml"]);
    use_machine(workshop.boot("disk.qcow2"));
    workshop.give(&workshop.path("disk.qcow2"));
    workshop.check("disk.qcow2");
}
