//! `folio edit`: changes a file of an image in an editor.

use crate::exit::{Failure, Outcome};
use crate::image::{Access, Image, with_image};
use crate::image_path::ImagePath;
use crate::output::io_reason;
use crate::session::Session;
use clap::Args;
use folio::syscall::OpenFlags;
use folio::vfs::FileType;
use folio_tree::read_file;
use std::ffi::OsString;
use std::fs::{File, Permissions};
use std::io::Write;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::process::Command;

/// Largest file that is edited.
const FILE_BYTES_MAX: usize = 64 << 20;

const AFTER_HELP: &str = "\
The editor is $VISUAL, else $EDITOR, else vi. The image is closed while it runs. If the editor changed the file, its content is
replaced; mode, owner and extended attributes stay.

Example:
  EDITOR=nano folio edit disk.qcow2:/etc/fstab";

/// Edit a file of an image
#[derive(Args)]
#[command(after_help = AFTER_HELP)]
pub(crate) struct Edit {
    /// The file, as IMAGE:/path; a new one is created
    file: OsString,
}

/// Runs the command.
pub(crate) fn run(edit: &Edit, session: &Session) -> Outcome {
    let place = ImagePath::parse(&edit.file)?;
    // Without a lock, which a write of this process would meet. Another program's lock is met then.
    session.share_images();
    let before = with_image(session, &place, Access::Read, |image| read(image, &place))?;
    // The file may be private in the image.
    let private = Permissions::from_mode(0o700);
    let folder = tempfile::Builder::new().permissions(private).tempdir()?;
    let name = place.path.file_name().unwrap_or("file".as_ref());
    let path = folder.path().join(name);
    let mut file = File::options()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&path)?;
    file.write_all(before.as_deref().unwrap_or_default())?;
    drop(file);
    start_editor(&path)?;
    let after = std::fs::read(&path)
        .map_err(|error| Failure::new(format!("{}: {}", path.display(), io_reason(&error))))?;
    if before.as_deref().unwrap_or_default() == after {
        if !session.quiet {
            session.note(format_args!("{place}: not changed"));
        }
        return Ok(());
    }
    let written = with_image(session, &place, Access::Write, |image| {
        if read(image, &place)? != before {
            let text = format!("{place}: changed by another program meanwhile; nothing is written");
            return Err(Failure::new(text));
        }
        write(image, &place, &after)
    });
    written.map_err(|failure| {
        // The user's work must not be lost.
        let kept = folder.keep().join(name);
        let message = format!("{}; the edited file is {}", failure.message, kept.display());
        Failure { message, ..failure }
    })
}

/// Returns the content of the file; `None` if it does not exist.
fn read(image: &Image, place: &ImagePath) -> Outcome<Option<Vec<u8>>> {
    match image.stat(&place.path, true) {
        Err(error) if error.errno() == folio::Errno::NOENT => return Ok(None),
        Err(error) => return Err(image.name(error)),
        Ok(found) if found.file_type != FileType::Regular => {
            return Err(Failure::new(format!("{place}: not a regular file")));
        }
        Ok(found) if found.size_bytes > FILE_BYTES_MAX as u64 => {
            return Err(Failure::new(format!(
                "{place}: larger than 64M; use folio cp"
            )));
        }
        Ok(_) => {}
    }
    let bytes = read_file(image.process(), &place.path, FILE_BYTES_MAX);
    bytes.map(Some).map_err(|error| image.name(error))
}

fn start_editor(path: &Path) -> Outcome {
    let set = |name| std::env::var_os(name).filter(|value| !value.is_empty());
    let editor = set("VISUAL")
        .or_else(|| set("EDITOR"))
        .unwrap_or("vi".into());
    // A shell, because the variable may have options of the editor.
    let mut shell = Command::new("sh");
    let mut script = editor.clone();
    script.push(" \"$0\"");
    shell.arg("-c").arg(script).arg(path);
    let status = shell
        .status()
        .map_err(|error| Failure::new(format!("cannot start sh: {}", io_reason(&error))))?;
    if status.success() {
        return Ok(());
    }
    let editor = editor.to_string_lossy();
    Err(Failure::new(format!(
        "{editor}: {status}; nothing is written"
    )))
}

/// Writes the new content. An existing file keeps its inode, and so its attributes and links.
fn write(image: &Image, place: &ImagePath, bytes: &[u8]) -> Outcome {
    let process = image.process();
    let flags = OpenFlags::WRONLY | OpenFlags::CREAT | OpenFlags::TRUNC;
    let failed = |error| image.name(error);
    let fd = process.open(&place.path, flags, 0o644).map_err(failed)?;
    let mut rest = bytes;
    let mut written = Ok(());
    while !rest.is_empty() && written.is_ok() {
        written = process.write(fd, rest).map(|count| rest = &rest[count..]);
    }
    process.close(fd).map_err(failed)?;
    written.map_err(failed)
}
