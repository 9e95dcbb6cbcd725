//! Debian packages of the programs and of libfolio, by dpkg-deb.

use super::build::{Release, SONAME, files, run, strip};
use crate::run::output;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Name, section, packages that it needs beside the C library, and description.
pub(super) const PACKAGES: [(&str, &str, &str, &str); 4] = [
    (
        "folio",
        "admin",
        "",
        "disk images and page caches from the command line, without root\n Copies trees into and out of \
         ext4 in raw and qcow2 images, changes, checks,\n mounts and serves them, shares folders with \
         virtual machines, warms the page\n cache, and finds the layer that makes a file slow.",
    ),
    (
        "folio-bench",
        "admin",
        "folio",
        "measurements of folio, the kernel and peer programs\n The program that 'folio bench' starts.",
    ),
    (
        "libfolio0",
        "libs",
        "",
        "Linux's file I/O path as a library, for C\n System calls as function calls on ext4 in disk \
         images, without root or mount.",
    ),
    (
        "libfolio-dev",
        "libdevel",
        "libfolio0",
        "header and static library of libfolio\n Linux's file I/O path as a library, for C.",
    ),
];

/// Shell, and the file of its completions.
pub(super) const COMPLETIONS: [(&str, &str); 3] = [
    ("bash", "usr/share/bash-completion/completions/folio"),
    ("zsh", "usr/share/zsh/vendor-completions/_folio"),
    ("fish", "usr/share/fish/vendor_completions.d/folio.fish"),
];

/// The systemd units, in the repository.
pub(super) const UNITS: &str = "contrib/systemd";
/// Both types of mounts that the kernel shows: `mount_helper` of folio-cli.
pub(super) const MOUNT_HELPERS: [&str; 2] =
    ["usr/sbin/mount.fuse.folio", "usr/sbin/mount.fuseblk.folio"];
pub(super) const HEADER: &str = "usr/include/folio.h";

const LIBRARY_FOLDER: &str = "usr/lib/x86_64-linux-gnu";

/// Files of libfolio, in [`LIBRARY_FOLDER`].
pub(super) const LINKED_NAME: &str = "libfolio.so";
pub(super) const STATIC_LIBRARY: &str = "libfolio.a";
pub(super) const PKG_CONFIG: &str = "pkgconfig/folio.pc";

/// Packs what was built.
pub(super) fn make(release: &Release<'_>, built: &Path) -> Result<(), String> {
    let stage = release.target.join("debian");
    let _ = fs::remove_dir_all(&stage);
    fill_folio(release, built, &stage.join("folio"))?;
    strip_into(
        &built.join("folio-bench"),
        &stage.join("folio-bench/usr/bin/folio-bench"),
    )?;
    fill_library(release, built, &stage)?;
    for (name, section, needs, description) in PACKAGES {
        let root = stage.join(name);
        let documents = root.join("usr/share/doc").join(name);
        copy(
            &release.root.join("LICENSE-MIT"),
            &documents.join("copyright"),
            0o644,
        )?;
        let needs = needs_of(release, &root, needs)?;
        write(
            &root.join("DEBIAN/control"),
            &format!(
                "Package: {name}\nVersion: {}\nArchitecture: amd64\nSection: {section}\n\
                 Priority: optional\nMaintainer: Folio's developers <folio@localhost>\n{needs}\
                 Description: {description}\n",
                release.version
            ),
        )?;
        if name == "libfolio0" {
            write(&root.join("DEBIAN/triggers"), "activate-noawait ldconfig\n")?;
        }
        let mut pack = Command::new("dpkg-deb");
        pack.args(["--root-owner-group", "-Zxz", "--build"])
            .arg(&root)
            .arg(
                release
                    .folder
                    .join(format!("{name}_{}_amd64.deb", release.version)),
            )
            .env("SOURCE_DATE_EPOCH", &release.time);
        run(&mut pack)?;
    }
    Ok(())
}

/// The command with its pages, completions, units and the helper of mount(8).
fn fill_folio(release: &Release<'_>, built: &Path, root: &Path) -> Result<(), String> {
    let program = built.join("folio");
    strip_into(&program, &root.join("usr/bin/folio"))?;
    let pages = root.join("usr/share/man/man1");
    run(Command::new(&program).args(["man", "--dir"]).arg(&pages))?;
    let mut compress = Command::new("gzip");
    compress.args(["-9", "-n"]).args(files(&pages));
    run(&mut compress)?;
    for (shell, file) in COMPLETIONS {
        write(
            &root.join(file),
            &output(Command::new(&program).args(["completions", shell]))?,
        )?;
    }
    for unit in files(&release.root.join(UNITS)) {
        let name = unit.file_name().unwrap_or_default();
        copy(
            &unit,
            &root.join("usr/lib/systemd/system").join(name),
            0o644,
        )?;
    }
    for helper in MOUNT_HELPERS {
        let helper = root.join(helper);
        parent(&helper)?;
        symlink("../bin/folio", &helper).map_err(|error| error.to_string())?;
    }
    Ok(())
}

/// libfolio: the shared library, and what programs are built with.
fn fill_library(release: &Release<'_>, built: &Path, stage: &Path) -> Result<(), String> {
    let shared = stage.join("libfolio0").join(LIBRARY_FOLDER);
    let file = format!("{LINKED_NAME}.{}", release.version);
    strip_into(&built.join("libfolio_c.so"), &shared.join(&file))?;
    symlink(&file, shared.join(SONAME)).map_err(|error| error.to_string())?;
    let development = stage.join("libfolio-dev");
    let folder = development.join(LIBRARY_FOLDER);
    copy(
        &built.join("libfolio_c.a"),
        &folder.join(STATIC_LIBRARY),
        0o644,
    )?;
    symlink(SONAME, folder.join(LINKED_NAME)).map_err(|error| error.to_string())?;
    let header = release.root.join("crates/folio-c/include/folio.h");
    copy(&header, &development.join(HEADER), 0o644)?;
    write(
        &folder.join(PKG_CONFIG),
        &format!(
            "prefix=/usr\nlibdir=${{prefix}}/lib/x86_64-linux-gnu\nincludedir=${{prefix}}/include\n\n\
             Name: folio\nDescription: Linux's file I/O path as a library\nVersion: {}\n\
             Libs: -L${{libdir}} -lfolio\nLibs.private: -lgcc_s -lutil -lrt -lpthread -lm -ldl -lc\n\
             Cflags: -I${{includedir}}\n",
            release.version
        ),
    )
}

/// The fields on what a package needs: the newest version of the C library that a file of it asks
/// for.
fn needs_of(release: &Release<'_>, root: &Path, needs: &str) -> Result<String, String> {
    let mut list = Vec::new();
    let folders = ["usr/bin", LIBRARY_FOLDER];
    let programs = folders.iter().flat_map(|folder| files(&root.join(folder)));
    let symbols: Vec<_> = programs
        .filter(|file| !file.is_symlink() && file.extension().is_none_or(|end| end != "a"))
        .map(|file| output(Command::new("objdump").arg("-T").arg(file)))
        .collect::<Result<_, _>>()?;
    if let Some(minor) = symbols.iter().filter_map(|text| newest_glibc(text)).max() {
        list.push(format!("libc6 (>= 2.{minor})"));
        list.push("libgcc-s1".to_owned());
    }
    if !needs.is_empty() {
        list.push(format!("{needs} (= {})", release.version));
    }
    let recommended = if root.ends_with("folio") {
        "Recommends: fuse3, uidmap\nSuggests: folio-bench\n"
    } else {
        ""
    };
    Ok(if list.is_empty() {
        recommended.to_owned()
    } else {
        format!("Depends: {}\n{recommended}", list.join(", "))
    })
}

/// The minor number of the newest GLIBC_2.x in a table of symbols.
fn newest_glibc(symbols: &str) -> Option<u32> {
    let versions = symbols.split("GLIBC_2.").skip(1);
    versions
        .filter_map(|rest| {
            let digits = rest.split(|c: char| !c.is_ascii_digit()).next()?;
            digits.parse().ok()
        })
        .max()
}

fn parent(path: &Path) -> Result<(), String> {
    let folder = path.parent().map(PathBuf::from).unwrap_or_default();
    fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))
}

fn strip_into(from: &Path, to: &Path) -> Result<(), String> {
    parent(to)?;
    strip(from, to)
}

fn copy(from: &Path, to: &Path, mode: u32) -> Result<(), String> {
    parent(to)?;
    fs::copy(from, to)
        .and_then(|_| fs::set_permissions(to, PermissionsExt::from_mode(mode)))
        .map_err(|error| format!("{}: {error}", from.display()))
}

fn write(path: &Path, text: &str) -> Result<(), String> {
    parent(path)?;
    fs::write(path, text).map_err(|error| format!("{}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn newest_version_of_the_c_library_is_needed() {
        let symbols =
            "0 DF *UND* (GLIBC_2.9) a\n0 DF *UND* (GLIBC_2.34) b\n0 DF *UND* (GLIBC_2.2.5) c\n";
        assert_eq!(newest_glibc(symbols), Some(34));
        assert_eq!(newest_glibc("no symbols"), None);
    }
}
