//! Builds of the programs, of libfolio and of the wheel.

use crate::packages;
use crate::python;
use crate::repository;
use crate::run::{output, words};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

pub(super) const TARGET: &str = "x86_64-unknown-linux-gnu";
/// Features of the packaged programs.
pub(crate) const FEATURES: &str = "folio-cli/full,folio-bench/object-store";
/// Features of the wheel.
pub(super) const WHEEL_FEATURES: &str = "object-store";
/// The name by which programs find libfolio.
pub(super) const SONAME: &str = "libfolio.so.0";

/// Most bytes of a stripped static program: a larger one has gained a dependency unseen.
const PROGRAM_BYTES_MAX: u64 = 36 << 20;

/// What is being made, and where.
pub(super) struct Release<'a> {
    pub(super) root: &'a Path,
    /// Of the artifacts.
    pub(super) folder: PathBuf,
    pub(super) target: PathBuf,
    pub(super) version: String,
    /// Seconds since 1970 of the last commit.
    pub(super) time: String,
}

impl<'a> Release<'a> {
    /// Empties the folder of artifacts.
    pub(super) fn begin(root: &'a Path) -> Result<Self, String> {
        let target = std::path::absolute(repository::target_folder());
        let target = target.map_err(|error| error.to_string())?;
        let folder = target.join("release-artifacts");
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).map_err(|error| error.to_string())?;
        let mut log = Command::new("git");
        log.arg("-C").arg(root).args(["log", "-1", "--format=%ct"]);
        Ok(Self {
            root,
            folder,
            target,
            version: version(root)?,
            time: output(&mut log)?.trim().to_owned(),
        })
    }

    /// Builds the programs without shared libraries: one file for every Linux.
    pub(super) fn make_static(&self) -> Result<(), String> {
        println!("== static programs");
        let built = self.build("static", "-C target-feature=+crt-static")?;
        for program in ["folio", "folio-bench"] {
            let to = self
                .folder
                .join(format!("{program}-{}-{TARGET}", self.version));
            strip(&built.join(program), &to)?;
            let len_bytes = std::fs::metadata(&to).map_or(0, |file| file.len());
            println!(
                "{program}: {:.1} MiB",
                len_bytes as f64 / f64::from(1 << 20)
            );
            if len_bytes > PROGRAM_BYTES_MAX {
                return Err(format!("{program} has more than {PROGRAM_BYTES_MAX} bytes"));
            }
        }
        Ok(())
    }

    /// Builds the programs and libfolio as Debian has them; returns their folder.
    pub(super) fn build_for_debian(&self) -> Result<PathBuf, String> {
        println!("== Debian packages");
        let built = self.build("dynamic", "")?;
        let mut cargo = self.cargo("dynamic", "");
        cargo.args([
            "rustc",
            "--profile",
            "dist",
            "--package",
            "folio-c",
            "--lib",
        ]);
        cargo.args(["--crate-type", "cdylib,staticlib"]);
        cargo.args(["--", "-C", &format!("link-arg=-Wl,-soname,{SONAME}")]);
        run(&mut cargo)?;
        Ok(built)
    }

    pub(super) fn make_wheel(&self) -> Result<(), String> {
        println!("== wheel");
        let environment = python::provide()?;
        let wheels = self.target.join("release-wheels");
        let _ = std::fs::remove_dir_all(&wheels);
        let command = self.program("folio");
        let mut build = Command::new(self.root.join("bindings/python/build-wheel"));
        build
            .args(["--profile", "dist", "--features"])
            .args([WHEEL_FEATURES, "--out"])
            .arg(&wheels)
            // Static, so that the wheel's command runs with any C library.
            .arg("--command")
            .arg(command)
            .env("PATH", python::path_with(&environment))
            .env("VIRTUAL_ENV", &environment)
            .env("SOURCE_DATE_EPOCH", &self.time);
        run(&mut build)?;
        for wheel in files(&wheels) {
            let name = wheel.file_name().unwrap_or_default();
            std::fs::copy(&wheel, self.folder.join(name)).map_err(|error| error.to_string())?;
        }
        Ok(())
    }

    pub(super) fn make_sums(&self) -> Result<(), String> {
        let mut names: Vec<_> = files(&self.folder)
            .into_iter()
            .filter_map(|path| Some(path.file_name()?.to_owned()))
            .collect();
        names.sort();
        let sums = output(
            Command::new("sha256sum")
                .args(names)
                .current_dir(&self.folder),
        )?;
        print!("{sums}");
        self.write("SHA256SUMS", &sums)
    }

    /// Builds both programs with all features; returns their folder.
    fn build(&self, kind: &str, flags: &str) -> Result<PathBuf, String> {
        let mut cargo = self.cargo(kind, flags);
        cargo.args([
            "build",
            "--profile",
            "dist",
            "--package",
            "folio-cli",
            "--package",
            "folio-bench",
        ]);
        cargo.args(["--features", FEATURES]);
        run(&mut cargo)?;
        Ok(self.built(kind))
    }

    /// The folder of what a build of this kind makes.
    fn built(&self, kind: &str) -> PathBuf {
        self.target.join(kind).join(TARGET).join("dist")
    }

    /// Returns cargo in a target folder for these flags of the compiler.
    fn cargo(&self, kind: &str, flags: &str) -> Command {
        let home = std::env::var("CARGO_HOME")
            .or_else(|_| std::env::var("HOME").map(|home| home + "/.cargo"))
            .unwrap_or_default();
        let root = self.root.display();
        let flags =
            format!("{flags} --remap-path-prefix={home}=/cargo --remap-path-prefix={root}=/folio");
        let mut cargo = Command::new("cargo");
        cargo
            .current_dir(self.root)
            .env("CARGO_TARGET_DIR", self.target.join(kind))
            .env("CARGO_INCREMENTAL", "0")
            .env("SOURCE_DATE_EPOCH", &self.time)
            .env("RUSTFLAGS", flags.trim())
            // Of cargo, for the subcommand that follows.
            .env("CARGO_BUILD_TARGET", TARGET)
            .env("CARGO_PROFILE_RELEASE_DEBUG", "false");
        cargo
    }

    /// The static program of this name.
    pub(super) fn program(&self, name: &str) -> PathBuf {
        self.folder
            .join(format!("{name}-{}-{TARGET}", self.version))
    }

    /// Writes an artifact.
    pub(super) fn write(&self, name: &str, text: &str) -> Result<(), String> {
        let path = self.folder.join(name);
        std::fs::write(&path, text).map_err(|error| format!("{}: {error}", path.display()))
    }
}

/// Reads the version from the workspace's Cargo.toml.
fn version(root: &Path) -> Result<String, String> {
    let text =
        std::fs::read_to_string(root.join("Cargo.toml")).map_err(|error| error.to_string())?;
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("version = \""));
    let version = line.and_then(|rest| rest.strip_suffix('"'));
    version
        .map(str::to_owned)
        .ok_or("Cargo.toml has no version".to_owned())
}

pub(super) fn strip(from: &Path, to: &Path) -> Result<(), String> {
    run(Command::new("strip").arg("-o").arg(to).arg(from))
}

/// The files in a folder.
pub(super) fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries
        .map(|entry| entry.path())
        .filter(|path| path.is_file())
        .collect()
}

/// Runs a command to its end, with its output on this program's.
pub(super) fn run(command: &mut Command) -> Result<(), String> {
    let name = words(command);
    let status = command
        .env("PATH", command_path(command))
        .stdin(Stdio::null())
        .status()
        .map_err(|error| format!("{name}: {error}"))?;
    if status.success() {
        Ok(())
    } else {
        Err(format!("{name}: {status}"))
    }
}

/// The PATH that was set for a command, else that of the tests.
fn command_path(command: &Command) -> OsString {
    let set = command.get_envs().find(|(name, _)| *name == "PATH");
    set.and_then(|(_, path)| path)
        .map_or_else(packages::search_path, ToOwned::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_is_that_of_the_workspace() {
        let version = version(&repository::root()).unwrap();
        assert_eq!(version.split('.').count(), 3, "{version}");
    }
}
