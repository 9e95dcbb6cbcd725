//! The first program: its process in the library, and the files that its loader begins with.

use super::options::{Failure, Options};
use super::program;
use super::sys::{self, LoaderFiles};
use super::view::{View, change_directory};
use crate::shared::layout::{DESCRIPTORS_MAX, Handoff, RESERVED, VERSION};
use folio::syscall::Credentials;
use folio::{Kernel, Process};
use rustix::fs::{MemfdFlags, Mode, SealFlags, fcntl_add_seals, memfd_create};
use rustix::process::{Resource, getegid, geteuid, getgroups, getrlimit, umask};
use std::env;
use std::ffi::{CString, OsString};
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::process::Child;
use std::sync::Arc;

/// The name of the loader's file in memory.
pub(super) const LOADER_NAME: &str = "folio-loader";

/// The first program, before it is started.
pub(super) struct First {
    /// The process that it attaches to.
    pub(super) process: Process,
    program: PathBuf,
    /// The host's working directory.
    host_directory: PathBuf,
    is_in_image: bool,
}

impl First {
    /// Finds the program, and makes its process.
    pub(super) fn new(kernel: &Arc<Kernel>, options: &Options) -> Result<Self, Failure> {
        let process = kernel.process(credentials()?);
        process.umask(current_umask());
        let directory = working_directory(options)?;
        let place = |error: &dyn std::fmt::Display| {
            Failure::new(format!(
                "working directory {}: {error}",
                directory.display()
            ))
        };
        let outside = change_directory(&process, &directory).map_err(|error| place(&error))?;
        let path = variable(options, "PATH");
        let name = options
            .command
            .first()
            .ok_or_else(|| Failure::new("no command".to_owned()))?;
        let program = program::find(&process, &directory, name, path.as_deref())
            .map_err(|errno| Failure::of_program(name, errno))?;
        Ok(Self {
            process,
            program,
            is_in_image: outside.is_none(),
            host_directory: outside.unwrap_or_else(|| PathBuf::from("/")),
        })
    }

    /// Starts the program, which attaches by `token`.
    pub(super) fn start(
        &self,
        options: &Options,
        token: u64,
        door: BorrowedFd<'_>,
    ) -> Result<Child, Failure> {
        let started = self.try_start(options, token, door);
        started.map_err(|error| Failure::new(format!("cannot start the loader: {error}")))
    }

    fn try_start(&self, options: &Options, token: u64, door: BorrowedFd<'_>) -> io::Result<Child> {
        let limit = getrlimit(Resource::Nofile).current;
        let limit = limit.map_or(DESCRIPTORS_MAX as u64 - 1, |limit| {
            limit.min(DESCRIPTORS_MAX as u64 - 1)
        });
        let base = limit as RawFd - RESERVED;
        let loader = sealed_file(LOADER_NAME, crate::LOADER, MemfdFlags::EXEC)?;
        let handoff = self.handoff(&options.view, token);
        let handoff = sealed_file("folio-handoff", &handoff, MemfdFlags::empty())?;
        let files = LoaderFiles {
            loader: loader.as_fd(),
            handoff: handoff.as_fd(),
            door,
        };
        let arguments = options.command.iter().map(|text| text.as_bytes().to_vec());
        let mut variables: Vec<_> = env::vars_os()
            .filter(|(name, _)| !options.environment.iter().any(|(set, _)| set == name))
            .collect();
        variables.extend(options.environment.iter().cloned());
        let variables = variables.into_iter().map(|(name, value)| {
            let mut text = name.into_vec();
            text.push(b'=');
            text.extend_from_slice(value.as_bytes());
            text
        });
        let arguments = texts(arguments)?;
        let variables = texts(variables)?;
        sys::start(&files, base, &self.host_directory, &arguments, &variables)
    }

    /// Returns the file that the loader begins with.
    fn handoff(&self, view: &View, token: u64) -> Vec<u8> {
        let mut bytes = Vec::new();
        let is_in_image = u32::from(self.is_in_image);
        let mask = u32::from(current_umask());
        for word in [VERSION, is_in_image, 0, mask] {
            bytes.extend_from_slice(&word.to_ne_bytes());
        }
        bytes.extend_from_slice(&token.to_ne_bytes());
        bytes.resize(size_of::<Handoff>(), 0);
        let hosts = view.host_prefixes();
        let program = self.program.as_os_str().as_bytes();
        for text in [
            view.target().as_os_str().as_bytes(),
            hosts.as_bytes(),
            program,
            program,
        ] {
            bytes.extend_from_slice(text);
            bytes.push(0);
        }
        bytes
    }
}

fn texts(texts: impl Iterator<Item = Vec<u8>>) -> io::Result<Vec<CString>> {
    texts
        .map(|text| CString::new(text).map_err(|_| io::ErrorKind::InvalidInput.into()))
        .collect()
}

/// Returns the identity of this process.
fn credentials() -> Result<Credentials, Failure> {
    let groups = getgroups().map_err(|error| Failure::new(format!("getgroups: {error}")))?;
    let groups = groups.into_iter().map(|group| group.as_raw()).collect();
    let (user, group) = (geteuid().as_raw(), getegid().as_raw());
    Ok(Credentials::user(user, group, groups))
}

fn current_umask() -> u16 {
    let mask = umask(Mode::from_raw_mode(0o077));
    umask(mask);
    (mask.as_raw_mode() & 0o777) as u16
}

fn working_directory(options: &Options) -> Result<PathBuf, Failure> {
    let current = || match options.view {
        View::Root => Ok(PathBuf::from("/")),
        View::At(_) => env::current_dir(),
    };
    let current = current().map_err(|error| Failure::new(format!("working directory: {error}")))?;
    let chosen = options.working_directory.as_deref();
    Ok(current.join(chosen.unwrap_or(Path::new(""))))
}

fn variable(options: &Options, name: &str) -> Option<OsString> {
    let set = options.environment.iter().rfind(|(set, _)| set == name);
    set.map(|(_, value)| value.clone())
        .or_else(|| env::var_os(name))
}

/// Returns a file in memory with these bytes, which no process can change.
fn sealed_file(name: &str, bytes: &[u8], flags: MemfdFlags) -> io::Result<OwnedFd> {
    let common = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    // Linux before 6.3 has no flag for programs.
    let file = memfd_create(name, common | flags).or_else(|_| memfd_create(name, common))?;
    let mut file = File::from(file);
    file.write_all(bytes)?;
    let seals = SealFlags::WRITE | SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
    fcntl_add_seals(&file, seals)?;
    Ok(file.into())
}
