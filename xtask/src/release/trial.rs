//! Each artifact in a root that has nothing of this machine: a static program in an empty one, the
//! packages in a Debian.

use super::build::{Release, run};
use crate::run::output;
use std::fs;
use std::path::Path;
use std::process::Command;

/// What is done with the packages in a Debian without Folio. Prints the last line if all held.
const IN_DEBIAN: &str = "set -eux
dpkg -i /release/folio_*.deb /release/folio-bench_*.deb /release/libfolio*.deb
cd /tmp
folio cp -a --create auto /etc etc.qcow2:/
folio check etc.qcow2
folio cat etc.qcow2:/etc/passwd | cmp - /etc/passwd
folio bench memcpy --quick >/dev/null
test -e /usr/share/man/man1/folio-cp.1.gz -o -e /etc/dpkg/dpkg.cfg.d/excludes
test -x /sbin/mount.fuse.folio
ldconfig -p | grep -q libfolio.so.0
test -e /usr/include/folio.h -a -e /usr/lib/x86_64-linux-gnu/pkgconfig/folio.pc
dpkg -r folio-bench folio libfolio-dev libfolio0
test ! -e /usr/bin/folio -a ! -e /usr/sbin/mount.fuse.folio
echo packages are installed, used and removed
";

/// Tries what was made.
pub(super) fn run_all(release: &Release<'_>) -> Result<(), String> {
    println!("== trial");
    let folder = release.target.join("release-trial");
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(&folder).map_err(|error| error.to_string())?;
    try_static(release, &folder)?;
    try_packages(release, &folder)
}

/// The static program alone in an image, as its only file: no C library, no /etc.
fn try_static(release: &Release<'_>, folder: &Path) -> Result<(), String> {
    let folio = release.program("folio");
    let linked = output(Command::new("readelf").arg("-d").arg(&folio))?;
    if linked.contains("NEEDED") {
        return Err(format!("{}: needs shared libraries", folio.display()));
    }
    let image = folder.join("empty.img");
    let place = |path: &str| format!("{}:{path}", image.display());
    run(Command::new(&folio)
        .args(["-q", "cp", "--create", "256M"])
        .arg(&folio)
        .arg(place("/folio")))?;
    let inside = |words: &[&str]| {
        let mut command = Command::new(&folio);
        command
            .args(["-q", "run"])
            .arg(&image)
            .arg("--")
            .args(words);
        output(&mut command)
    };
    inside(&["/folio", "mkfs", "/disk.qcow2", "--size", "16M"])?;
    let version = inside(&["/folio", "--version"])?;
    if version.trim() != format!("folio {}", release.version) {
        return Err(format!("in an empty root: {version}"));
    }
    println!("{}: runs in an empty root", folio.display());
    Ok(())
}

/// The packages in a new Debian, by `folio run`.
fn try_packages(release: &Release<'_>, folder: &Path) -> Result<(), String> {
    let archive = folder.join("debian.tar");
    run(Command::new("mmdebstrap")
        .args(["--variant=minbase", "bookworm"])
        .arg(&archive))?;
    let folio = release.program("folio");
    let image = folder.join("debian.qcow2");
    let into = format!("{}:/", image.display());
    run(Command::new(&folio)
        .args(["-q", "tar", "-x", "--create", "3G", "-f"])
        .arg(&archive)
        .arg(into))?;
    let mut command = Command::new(&folio);
    command.args(["-q", "run", "--bind"]);
    command.arg(format!("{}:/release:ro", release.folder.display()));
    command.arg(&image).args(["--", "sh", "-c", IN_DEBIAN]);
    let printed = output(&mut command)?;
    println!("{}", printed.lines().last().unwrap_or_default());
    Ok(())
}
