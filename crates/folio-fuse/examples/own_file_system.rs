//! A file system of one's own, mounted in a kernel, read through the page cache and served by FUSE:
//!
//! - `cargo run --example own_file_system` reads it in the process.
//! - `cargo run --example own_file_system -- /mnt` serves it at `/mnt` until it is unmounted.
//!
//! The file system has one file, `/squares`: a million lines of 16 bytes that exist nowhere. The
//! page cache asks for the pages that a reader needs, and keeps them.

use folio::cache::{Mapping, Store};
use folio::syscall::Credentials;
use folio::vfs::{
    AttributeChange, Attributes, DirectoryEntry, FileOperations, FileSystem, FileSystemStatistics,
    FileType, Inode, InodeCommon, InodeNumber, MountOptions,
};
use folio::{Errno, Fs, Kernel, KernelOptions, Result, Timespec};
use std::any::Any;
use std::error::Error;
use std::io::{IoSlice, IoSliceMut};
use std::ops::ControlFlow;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Weak};

const LINES: u64 = 1_000_000;
/// A square in 15 columns, and a newline.
const LINE_BYTES: u64 = 16;
const ROOT: InodeNumber = InodeNumber(1);
const SQUARES: InodeNumber = InodeNumber(2);

struct SquaresFs {
    root: Arc<Root>,
}

impl SquaresFs {
    /// Creates the file system; its file has its pages in the page cache of `kernel`.
    fn new(kernel: &Kernel) -> Arc<Self> {
        let writeback = kernel.cache().writeback();
        let squares = Arc::new_cyclic(|this: &Weak<Squares>| {
            let mapping = Mapping::new(&writeback, this.clone(), LINES * LINE_BYTES);
            let attributes = attributes(SQUARES, FileType::Regular, LINES * LINE_BYTES);
            Squares {
                common: InodeCommon::new(&attributes, Some(mapping)),
            }
        });
        let attributes = attributes(ROOT, FileType::Directory, 0);
        let common = InodeCommon::new(&attributes, None);
        let root = Arc::new(Root { common, squares });
        Arc::new(Self { root })
    }
}

impl FileSystem for SquaresFs {
    fn kind(&self) -> &'static str {
        "squares"
    }

    fn root(&self) -> Arc<dyn Inode> {
        self.root.clone()
    }

    fn statistics(&self) -> Result<FileSystemStatistics> {
        Ok(FileSystemStatistics {
            block_size: 4096,
            inodes: 2,
            name_max: 255,
            ..FileSystemStatistics::default()
        })
    }

    fn sync(&self) -> Result<()> {
        Ok(())
    }

    fn unmount(&self) -> Result<()> {
        Ok(())
    }

    fn is_read_only(&self) -> bool {
        true
    }
}

/// The root directory.
struct Root {
    common: InodeCommon,
    squares: Arc<Squares>,
}

impl Inode for Root {
    fn common(&self) -> &InodeCommon {
        &self.common
    }

    fn set_attributes(&self, _credentials: &Credentials, _change: &AttributeChange) -> Result<()> {
        Err(Errno::ROFS.into())
    }

    fn lookup(&self, name: &[u8]) -> Result<Option<Arc<dyn Inode>>> {
        Ok((name == b"squares").then(|| self.squares.clone() as Arc<dyn Inode>))
    }

    fn read_directory(
        &self,
        cookie: u64,
        sink: &mut dyn FnMut(&DirectoryEntry<'_>) -> ControlFlow<()>,
    ) -> Result<()> {
        let entries = [
            (b".".as_slice(), ROOT, FileType::Directory),
            (b"..", ROOT, FileType::Directory),
            (b"squares", SQUARES, FileType::Regular),
        ];
        for (at, (name, number, file_type)) in (1..).zip(entries).skip(cookie as usize) {
            let entry = DirectoryEntry {
                name,
                number,
                file_type: Some(file_type),
                next_cookie: at,
            };
            if sink(&entry).is_break() {
                break;
            }
        }
        Ok(())
    }

    fn parent_number(&self) -> Result<InodeNumber> {
        Ok(ROOT)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// The file `/squares`: an inode, and the store below its pages.
struct Squares {
    common: InodeCommon,
}

impl Inode for Squares {
    fn common(&self) -> &InodeCommon {
        &self.common
    }

    fn file_operations(&self) -> Option<&dyn FileOperations> {
        Some(self)
    }

    fn set_attributes(&self, _credentials: &Credentials, _change: &AttributeChange) -> Result<()> {
        Err(Errno::ROFS.into())
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// Reads are the buffered default. The VFS refuses writes before it calls these methods, because
/// the file system is read-only.
impl FileOperations for Squares {
    fn write_begin(&self, _credentials: &Credentials, _offset: u64, _len_bytes: u64) -> Result<()> {
        Err(Errno::ROFS.into())
    }

    fn write_end(&self, _written_bytes: u64) -> Result<()> {
        Err(Errno::ROFS.into())
    }
}

impl Store for Squares {
    fn read_pages(&self, offset: u64, bufs: &mut [IoSliceMut<'_>]) -> Result<()> {
        // Offsets and lengths are multiples of the page size, and so of a line.
        let lines = bufs.iter_mut().flat_map(|buf| buf.chunks_exact_mut(16));
        for (number, line) in (offset / LINE_BYTES..).zip(lines) {
            if number < LINES {
                line.copy_from_slice(format!("{:>15}\n", number * number).as_bytes());
            } else {
                line.fill(0);
            }
        }
        Ok(())
    }

    fn write_pages(&self, _offset: u64, _bufs: &[IoSlice<'_>]) -> Result<()> {
        Err(Errno::ROFS.into())
    }
}

fn attributes(number: InodeNumber, file_type: FileType, size_bytes: u64) -> Attributes {
    let is_directory = file_type == FileType::Directory;
    let time = Timespec::new(1_700_000_000, 0);
    let mode = if is_directory { 0o555 } else { 0o444 };
    Attributes {
        link_count: if is_directory { 2 } else { 1 },
        size_bytes,
        accessed: time,
        modified: time,
        changed: time,
        ..Attributes::new(number, file_type, mode)
    }
}

fn main() -> std::result::Result<(), Box<dyn Error>> {
    let kernel = Kernel::new(KernelOptions::default());
    let squares = SquaresFs::new(&kernel);
    let options = MountOptions::parse("ro,noatime")?;
    kernel.mount(squares, "/", &options)?;

    if let Some(target) = std::env::args_os().nth(1) {
        let session = folio_fuse::SessionOptions::new("squares");
        folio_fuse::Session::mount(kernel, &options, target.as_ref(), &session)?.serve()?;
        return Ok(());
    }

    let fs = Fs::new(kernel);
    let file = fs.open("/squares")?;
    let mut line = [0; LINE_BYTES as usize];
    file.read_exact_at(&mut line, 12_345 * LINE_BYTES)?;
    println!("12345 squared: {}", String::from_utf8_lossy(&line).trim());
    let text = fs.read_to_string("/squares")?;
    assert_eq!(text.lines().nth(999_999), Some("   999998000001"));
    println!("{} lines read through the page cache", text.lines().count());
    Ok(())
}
