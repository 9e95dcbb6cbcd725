//! An EROFS as the target of a copy, and as the place of contents of an unpacked archive.

use crate::content::{Content, ContentOwner};
use crate::new_erofs::NewErofs;
use crate::state::State;
use crate::tree::{Body, Directory, Node, NodeId};
use folio::base::{DeviceNumber, InodeNumber};
use folio::vfs::FileType;
use folio::{Errno, Error, Result};
use folio_tree::{AttributeFailures, ContentSink, FileMeta, Target, WrittenFile};

/// A directory of a new image.
#[derive(Debug, Clone, Copy)]
pub struct ErofsDir(NodeId);

/// A file of a new image that is being written.
#[derive(Debug)]
pub struct ErofsFile {
    node: NodeId,
    /// The content was written before.
    is_staged: bool,
}

/// The longest target of a symbolic link, in bytes.
const TARGET_MAX: usize = 4095;

fn add(
    state: &mut State,
    at: ErofsDir,
    name: &[u8],
    meta: &FileMeta,
    body: Body,
) -> Result<NodeId> {
    let node = Node::new(&meta.attributes, Vec::new(), body);
    state.tree.add(at.0, name, node)
}

impl Target for NewErofs {
    type Dir = ErofsDir;
    type File = ErofsFile;

    fn open_parent(&self, path: &[u8]) -> Result<ErofsDir> {
        let state = self.lock();
        let id = state.tree.find(path)?;
        state.tree.directory(id)?;
        Ok(ErofsDir(id))
    }

    fn make_dir(&self, at: &ErofsDir, name: &[u8], meta: &FileMeta) -> Result<ErofsDir> {
        if name == b"." {
            return Ok(*at);
        }
        let mut state = self.lock();
        if let Some(found) = state.tree.directory(at.0)?.names.get(name).copied() {
            state.tree.directory(found).map_err(|_| {
                let reason = "cannot overwrite a non-directory with a directory";
                Error::new(Errno::NOTDIR, reason)
            })?;
            return Ok(ErofsDir(found));
        }
        let body = Body::Directory(Directory {
            parent: at.0,
            ..Directory::default()
        });
        add(&mut state, *at, name, meta, body).map(ErofsDir)
    }

    fn finish_dir(
        &self,
        dir: ErofsDir,
        meta: &FileMeta,
        failures: &mut AttributeFailures,
    ) -> Result<()> {
        self.lock().set(dir.0, meta, failures);
        Ok(())
    }

    fn create(&self, at: &ErofsDir, name: &[u8], meta: &FileMeta) -> Result<ErofsFile> {
        let mut state = self.lock();
        let staged = state.take_staged(meta.attributes.number);
        let is_staged = staged.is_some();
        let body = Body::File(staged.unwrap_or(Content::EMPTY));
        let node = add(&mut state, *at, name, meta, body)?;
        if !is_staged
            && let Err(error) = state.begin(ContentOwner::Node(node), meta.attributes.size_bytes)
        {
            state.tree.unlink(at.0, name);
            return Err(error);
        }
        Ok(ErofsFile { node, is_staged })
    }

    fn write(&self, file: &ErofsFile, bytes: &[u8], offset: u64) -> Result<()> {
        if file.is_staged {
            return Ok(());
        }
        self.lock().write(bytes, offset)
    }

    fn finish(
        &self,
        written: WrittenFile<'_, ErofsFile>,
        failures: &mut AttributeFailures,
    ) -> Result<()> {
        let mut state = self.lock();
        state.set(written.file.node, written.meta, failures);
        if written.file.is_staged {
            return Ok(());
        }
        state.end(written.size_bytes)
    }

    fn symlink(
        &self,
        at: &ErofsDir,
        name: &[u8],
        meta: &FileMeta,
        target: &[u8],
        failures: &mut AttributeFailures,
    ) -> Result<()> {
        if target.len() > TARGET_MAX {
            return Err(Errno::NAMETOOLONG.into());
        }
        let mut state = self.lock();
        let node = add(&mut state, *at, name, meta, Body::Symlink(target.to_vec()))?;
        state.set(node, meta, failures);
        Ok(())
    }

    fn special(
        &self,
        at: &ErofsDir,
        name: &[u8],
        meta: &FileMeta,
        failures: &mut AttributeFailures,
    ) -> Result<()> {
        let device = match meta.attributes.file_type {
            FileType::CharacterDevice | FileType::BlockDevice => meta.attributes.device,
            _ => DeviceNumber::default(),
        };
        let mut state = self.lock();
        let node = add(&mut state, *at, name, meta, Body::Special(device))?;
        state.set(node, meta, failures);
        Ok(())
    }

    fn link(&self, first: &[u8], at: &ErofsDir, name: &[u8]) -> Result<()> {
        let mut state = self.lock();
        let id = state.tree.find(first)?;
        state.tree.link(at.0, name, id)
    }

    fn remove(&self, at: &ErofsDir, name: &[u8]) {
        self.lock().tree.unlink(at.0, name);
    }
}

impl ContentSink for NewErofs {
    fn forget(&self, file: InodeNumber) -> Result<()> {
        self.lock().forget(file)
    }

    fn begin(&self, file: InodeNumber, size_bytes: u64) -> Result<()> {
        self.lock().begin(ContentOwner::Staged(file), size_bytes)
    }

    fn write(&self, bytes: &[u8], offset: u64) -> Result<()> {
        self.lock().write(bytes, offset)
    }

    fn end(&self, size_bytes: u64) -> Result<()> {
        self.lock().end(size_bytes)
    }
}
