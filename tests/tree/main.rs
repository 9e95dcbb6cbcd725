//! Copies of trees by the library: into images, out of them, and of sources of the caller.

#[path = "../support"]
mod support {
    #![allow(dead_code, unreachable_pub)]
    #[macro_use]
    pub mod require;
    pub mod tools;
    pub(crate) use require::requires;
}

use folio::{Errno, Image, errno_of};
use folio_tree::{
    CopyJob, CopyOptions, CopyTree, FirstFailure, HostSource, MountTarget, NewImage, OpenMode,
    Source, SourceName, copy,
};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use support::requires;
use support::tools::fsck;

/// The program of docs/guide/library.md.
fn guide() -> std::io::Result<()> {
    use folio_tree::{CopyOptions, CopyTree, NewImage};

    NewImage::default().build("root.qcow2".as_ref(), "./rootfs".as_ref())?;
    let fs = Image::file("root.qcow2").mount()?;
    fs.copy_in("./app", "/srv/app", &CopyOptions::archive())?;
    fs.copy_out("/etc", "./etc", &CopyOptions::content())?;
    fs.close()
}

/// Makes a tree with what a copy may lose.
fn make_tree(top: &Path) {
    std::fs::create_dir_all(top.join("etc/deep")).unwrap();
    std::fs::write(top.join("etc/motd"), "hello\n").unwrap();
    std::fs::hard_link(top.join("etc/motd"), top.join("etc/second")).unwrap();
    symlink("motd", top.join("etc/link")).unwrap();
    let sparse = std::fs::File::create(top.join("sparse")).unwrap();
    sparse.write_all_at(b"end", 1 << 30).unwrap();
    std::fs::write(top.join("skip.o"), "").unwrap();
    let mode = |name: &str, mode| {
        let permissions = std::fs::Permissions::from_mode(mode);
        std::fs::set_permissions(top.join(name), permissions).unwrap();
    };
    mode("etc/motd", 0o4666);
    mode("etc/deep", 0o777);
}

fn mode(path: &Path) -> u32 {
    path.symlink_metadata().unwrap().mode() & 0o7777
}

#[test]
fn tree_comes_back_as_it_was() {
    requires!(tool("e2fsck"));
    let folder = tempfile::tempdir().unwrap();
    let (tree, disk) = (folder.path().join("tree"), folder.path().join("disk.img"));
    make_tree(&tree);
    NewImage::default().build(&disk, &tree).unwrap();
    fsck(&disk);

    let fs = Image::file(&disk).mount().unwrap();
    assert!(fs.metadata("/sparse").unwrap().attributes().blocks_512 <= 8);
    let back = folder.path().join("back");
    fs.copy_out("/", &back, &CopyOptions::archive()).unwrap();
    // The umask of this process does not change what is kept.
    assert_eq!(mode(&back.join("etc/motd")), 0o4666);
    assert_eq!(mode(&back.join("etc/deep")), 0o777);
    let inode = |name: &str| back.join(name).metadata().unwrap().ino();
    assert_eq!(inode("etc/motd"), inode("etc/second"));
    assert_eq!(
        std::fs::read_link(back.join("etc/link")).unwrap(),
        Path::new("motd")
    );
    let sparse = back.join("sparse").metadata().unwrap();
    assert!(sparse.len() == (1 << 30) + 3 && sparse.blocks() < 64);
}

#[test]
fn content_alone_gets_new_modes_and_owners() {
    let folder = tempfile::tempdir().unwrap();
    let tree = folder.path().join("tree");
    make_tree(&tree);
    let fs = folio::Fs::memory();
    let excludes = folio_tree::Excludes::new(&[], &["*.o"]).unwrap();
    let options = CopyOptions {
        umask: 0o027,
        excludes: Some(excludes.into()),
        ..CopyOptions::content()
    };
    fs.copy_in(&tree, "/tree", &options).unwrap();
    assert_eq!(fs.metadata("/tree/etc/motd").unwrap().mode(), 0o640);
    assert!(!fs.exists("/tree/skip.o").unwrap());
    // Again: the contents are added.
    fs.write("/tree/own", "").unwrap();
    fs.copy_in(&tree, "/tree", &options).unwrap();
    assert!(fs.exists("/tree/own").unwrap() && !fs.exists("/tree/tree").unwrap());
    assert_eq!(fs.process().umask(0o022), 0o022);
}

#[test]
fn failure_names_the_file_and_spares_the_rest() {
    let folder = tempfile::tempdir().unwrap();
    let tree = folder.path().join("tree");
    make_tree(&tree);
    let fs = folio::Fs::memory();
    fs.create_dir_all("/tree/etc/motd").unwrap();
    let failed = fs.copy_in(&tree, "/tree", &CopyOptions::archive());
    let error = failed.unwrap_err();
    assert_eq!(errno_of(&error), Some(Errno::ISDIR));
    assert!(error.to_string().starts_with("/tree/etc/motd: "), "{error}");
    assert_eq!(
        fs.read_to_string("/tree/etc/link").unwrap_err().kind(),
        std::io::ErrorKind::IsADirectory
    );
    assert!(fs.exists("/tree/sparse").unwrap());

    let missing = folder.path().join("none");
    let error = fs
        .copy_in(&missing, "/x", &CopyOptions::archive())
        .unwrap_err();
    assert!(
        error
            .to_string()
            .starts_with(&missing.display().to_string()),
        "{error}"
    );
    let disk = folder.path().join("disk.img");
    let error = NewImage::default().build(&disk, &missing).unwrap_err();
    assert_eq!(errno_of(&error), Some(Errno::NOENT), "{error}");
    assert!(!disk.exists());
}

#[test]
fn links_of_an_image_lead_nowhere() {
    let folder = tempfile::tempdir().unwrap();
    let outside = folder.path().join("outside");
    std::fs::create_dir(&outside).unwrap();
    let fs = folio::Fs::memory();
    fs.create_dir("/tree").unwrap();
    fs.symlink(&outside, "/tree/a").unwrap();
    let back = folder.path().join("back");
    fs.copy_out("/tree", &back, &CopyOptions::archive())
        .unwrap();
    fs.remove_file("/tree/a").unwrap();
    fs.create_dir("/tree/a").unwrap();
    fs.write("/tree/a/file", "escaped").unwrap();
    let error = fs
        .copy_out("/tree", &back, &CopyOptions::archive())
        .unwrap_err();
    assert_eq!(errno_of(&error), Some(Errno::NOTDIR), "{error}");
    assert_eq!(outside.read_dir().unwrap().count(), 0);
}

#[test]
fn image_does_not_overwrite_itself() {
    let folder = tempfile::tempdir().unwrap();
    let disk = folder.path().join("disk.img");
    let fs = Image::create(&disk, 16 << 20).mount().unwrap();
    fs.write("/disk.img", "hostile").unwrap();
    fs.write("/other", "content").unwrap();
    fs.sync().unwrap();
    for options in [CopyOptions::archive(), CopyOptions::content()] {
        let error = fs.copy_out("/", folder.path(), &options).unwrap_err();
        assert_eq!(errno_of(&error), Some(Errno::BUSY), "{error}");
    }
    assert_eq!(
        std::fs::read(folder.path().join("other")).unwrap(),
        b"content"
    );
    assert_eq!(disk.metadata().unwrap().len(), 16 << 20);
    // Into itself: what it was when it was opened, so the copy ends.
    std::fs::remove_file(folder.path().join("other")).unwrap();
    let small = folder.path().join("small.qcow2");
    let inner = Image::create(&small, 64 << 20).mount().unwrap();
    inner.sync().unwrap();
    inner
        .copy_in(folder.path(), "/x", &CopyOptions::archive())
        .unwrap();
    assert!(inner.metadata("/x/small.qcow2").unwrap().len() < 32 << 20);
}

#[test]
fn directory_of_the_host_is_not_copied_onto_itself() {
    let folder = tempfile::tempdir().unwrap();
    let (data, big) = (folder.path().join("data"), vec![7; 8 << 20]);
    std::fs::create_dir_all(data.join("deep")).unwrap();
    std::fs::write(data.join("big"), &big).unwrap();
    let fs = folio::Fs::host(&data).unwrap();
    let options = CopyOptions::archive();
    for (from, to) in [
        (data.join("big"), "/big"),
        (data.clone(), "/"),
        (data.clone(), "/deep/x"),
    ] {
        let error = fs.copy_in(from, to, &options).unwrap_err();
        assert_eq!(errno_of(&error), Some(Errno::INVAL), "{to}: {error}");
    }
    for (from, to) in [
        ("/big", data.join("big")),
        ("/", data.clone()),
        ("/", data.join("deep/x")),
    ] {
        let error = fs.copy_out(from, &to, &options).unwrap_err();
        assert_eq!(errno_of(&error), Some(Errno::INVAL), "{from}: {error}");
    }
    assert_eq!(std::fs::read(data.join("big")).unwrap(), big);
    fs.copy_in(data.join("big"), "/deep/copy", &options)
        .unwrap();
    assert_eq!(std::fs::read(data.join("deep/copy")).unwrap(), big);
}

#[test]
fn links_stay_within_their_mount() {
    let kernel = folio::Kernel::new(folio::KernelOptions::default());
    let fs = folio::Fs::new(kernel.clone());
    for name in ["/a", "/b"] {
        fs.create_dir(name).unwrap();
        kernel
            .mount_ramfs(name, &folio::vfs::MountOptions::default())
            .unwrap();
        fs.write(format!("{name}/first"), name).unwrap();
        fs.hard_link(format!("{name}/first"), format!("{name}/second"))
            .unwrap();
    }
    let folder = tempfile::tempdir().unwrap();
    fs.process().chdir("/b").unwrap();
    fs.symlink("first", "/b/link").unwrap();
    fs.copy_out("/", folder.path().join("all"), &CopyOptions::archive())
        .unwrap();
    fs.copy_out(".", folder.path().join("one"), &CopyOptions::archive())
        .unwrap();
    for (path, content) in [
        ("all/a/second", "/a"),
        ("all/b/second", "/b"),
        ("one/second", "/b"),
    ] {
        let found = std::fs::read_to_string(folder.path().join(path)).unwrap();
        assert_eq!(found, content, "{path}");
    }
}

#[test]
fn failure_that_ends_the_copy_is_returned() {
    let folder = tempfile::tempdir().unwrap();
    let tree = folder.path().join("tree");
    std::fs::create_dir_all(tree.join("a")).unwrap();
    std::fs::write(tree.join("b"), vec![1; 8 << 20]).unwrap();
    std::fs::write(tree.join("own"), "").unwrap();
    let fs = Image::create(folder.path().join("disk.img"), 4 << 20)
        .mount()
        .unwrap();
    fs.create_dir("/x").unwrap();
    fs.write("/x/a", "a file").unwrap();
    let error = fs
        .copy_in(&tree, "/x", &CopyOptions::archive())
        .unwrap_err();
    assert_eq!(errno_of(&error), Some(Errno::NOSPC), "{error}");
}

#[test]
fn user_gets_no_setuid_of_another_owner() {
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("program");
    std::fs::write(&program, "").unwrap();
    let permissions = std::fs::Permissions::from_mode(0o4755);
    std::fs::set_permissions(&program, permissions).unwrap();
    let root = folio::Fs::memory();
    root.create_dir("/home").unwrap();
    root.set_mode("/home", 0o777).unwrap();
    let user = folio::syscall::Credentials::user(12345, 12345, Vec::new());
    let fs = root.as_user(user);
    let error = fs
        .copy_in(&program, "/home/program", &CopyOptions::archive())
        .unwrap_err();
    assert_eq!(errno_of(&error), Some(Errno::PERM), "{error}");
    assert_eq!(root.metadata("/home/program").unwrap().mode(), 0o755);
}

/// One file that counts its readers; everything else is that of the host.
struct Generated(HostSource);

impl Source for Generated {
    type Node = <HostSource as Source>::Node;

    fn start(&self) -> Self::Node {
        self.0.start()
    }

    fn stat(
        &self,
        dir: &Self::Node,
        name: &[u8],
        follows_links: bool,
    ) -> folio::Result<folio_tree::FoundFile> {
        self.0.stat(dir, name, follows_links)
    }

    fn open(
        &self,
        dir: &Self::Node,
        name: &[u8],
        mode: OpenMode,
    ) -> folio::Result<(Self::Node, folio_tree::FoundFile)> {
        self.0.open(dir, name, mode)
    }

    fn list(&self, dir: &Self::Node) -> folio::Result<Vec<SourceName>> {
        self.0.list(dir)
    }

    fn read_at(&self, file: &Self::Node, buf: &mut [u8], offset: u64) -> folio::Result<usize> {
        let count = self.0.read_at(file, buf, offset)?;
        buf[..count].make_ascii_uppercase();
        Ok(count)
    }

    fn next_data(
        &self,
        file: &Self::Node,
        offset: u64,
    ) -> folio::Result<Option<std::ops::Range<u64>>> {
        self.0.next_data(file, offset)
    }

    fn read_link(&self, dir: &Self::Node, name: &[u8]) -> folio::Result<Vec<u8>> {
        self.0.read_link(dir, name)
    }

    fn xattrs(
        &self,
        node: &Self::Node,
        found: &folio_tree::FoundFile,
    ) -> folio::Result<folio_tree::Xattrs> {
        self.0.xattrs(node, found)
    }

    fn link_xattrs(
        &self,
        dir: &Self::Node,
        name: &[u8],
        found: &folio_tree::FoundFile,
    ) -> folio::Result<folio_tree::Xattrs> {
        self.0.link_xattrs(dir, name, found)
    }
}

#[test]
fn source_of_the_caller_is_copied() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("file"), "hello").unwrap();
    let fs = folio::Fs::memory();
    let options = CopyOptions::archive();
    let target = MountTarget::new(fs.process(), &options, folio_tree::FileRules::default());
    let jobs = [CopyJob::to(folder.path(), "/tree".as_ref())];
    let failures = FirstFailure::default();
    copy(
        &Generated(HostSource::default()),
        &target,
        &jobs,
        &options,
        &failures,
    )
    .unwrap();
    failures.into_result().unwrap();
    assert_eq!(fs.read("/tree/file").unwrap(), b"HELLO");
}

#[test]
fn image_of_the_guide_is_built() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["rootfs/etc", "rootfs/srv", "app"] {
        std::fs::create_dir_all(folder.path().join(name)).unwrap();
    }
    std::env::set_current_dir(folder.path()).unwrap();
    guide().unwrap();
    assert!(folder.path().join("etc").is_dir());
}
