//! The examples of the crate, and the programs of the manual.

use crate::support::requires;
use crate::support::tools::{command, fsck, mke2fs, run, succeed, text};
use crate::toolchain::{Build, Program, crate_folder, library_folder};
use std::path::{Path, PathBuf};

fn example(name: &str) -> PathBuf {
    crate_folder().join("examples").join(name)
}

fn possible() -> impl Iterator<Item = Build> {
    Build::ALL.into_iter().filter(|build| build.is_possible())
}

#[test]
fn article_measures_three_copies() {
    for build in possible() {
        let printed = Program::new(&example("article.c"), build).run(["3"]);
        let names: Vec<_> = printed.lines().map(|line| line[..24].trim()).collect();
        let want = [
            "200 KiB from a ramfs",
            "folio_pread",
            "a loop of single bytes",
        ];
        assert_eq!(&names[..3], want, "{build:?}: {printed}");
    }
}

#[test]
fn device_of_a_program_holds_a_file_system() {
    for build in possible() {
        let printed = Program::new(&example("device.c"), build).run([""; 0]);
        assert!(
            printed.starts_with("the device served "),
            "{build:?}: {printed}"
        );
        assert!(!printed.contains(" 0 writes"), "{build:?}: {printed}");
    }
}

#[test]
fn tree_goes_into_an_image_and_out() {
    requires!(
        tool("mke2fs"),
        tool("e2fsck"),
        tool("debugfs"),
        tool("diff")
    );
    for build in possible() {
        let tree = Program::new(&example("tree.c"), build);
        let folder = tree.folder();
        let (image, copy) = (folder.join("disk.img"), folder.join("copy"));
        let source = folder.join("source");
        make_tree(&source);
        mke2fs(&image, "32M", &[]);
        tree.run(["in", "disk.img", "source", "/srv"]);
        fsck(&image);
        let listed = run(
            "debugfs",
            ["-R", "cat /srv/a/file", image.to_str().unwrap()],
        );
        assert!(listed.contains("text of a file"), "{build:?}: {listed}");
        tree.run(["out", "disk.img", "/srv", "copy"]);
        run(
            "diff",
            [
                "-r",
                "--no-dereference",
                source.to_str().unwrap(),
                copy.to_str().unwrap(),
            ],
        );
        let modified = |path: &Path| path.symlink_metadata().unwrap().modified().unwrap();
        assert_eq!(
            modified(&source.join("a/file")),
            modified(&copy.join("a/file"))
        );
    }
}

fn make_tree(source: &Path) {
    std::fs::create_dir_all(source.join("a/b")).unwrap();
    std::fs::write(source.join("a/file"), "text of a file\n").unwrap();
    std::fs::write(source.join("a/b/large"), vec![7; 3 << 20]).unwrap();
    std::fs::write(source.join("empty"), "").unwrap();
    std::os::unix::fs::symlink("a/file", source.join("link")).unwrap();
    for number in 0..200 {
        std::fs::write(source.join(format!("a/b/{number}")), "x").unwrap();
    }
}

#[test]
fn go_writes_and_reads_an_image() {
    requires!(tool("go"), tool("cc"), tool("pkg-config"), tool("e2fsck"));
    let folder = tempfile::tempdir().unwrap();
    let (image, library) = (folder.path().join("disk.img"), library_folder());
    let include = crate_folder().join("include");
    let pc = format!(
        "Name: folio\nDescription: libfolio\nVersion: 0\nLibs: -L{} -lfolio\nCflags: -I{}\n",
        library.display(),
        include.display()
    );
    std::fs::write(folder.path().join("folio.pc"), pc).unwrap();
    let program = folder.path().join("program");
    let mut build = command("go");
    build.args(["build", "-o"]).arg(&program).arg(".");
    build.current_dir(example("go"));
    build.env("PKG_CONFIG_PATH", folder.path());
    succeed(&mut build);
    let mut go = command(program.to_str().unwrap());
    go.arg(&image).env("LD_LIBRARY_PATH", library);
    let printed = text(&succeed(&mut go));
    let want = "Hello from Go!\nas expected: open: /: Is a directory: is a directory\n";
    assert_eq!(printed, want);
    fsck(&image);
}

#[test]
fn programs_of_the_manual_run() {
    let manual = crate_folder().join("../../docs/c-library.md");
    let manual = std::fs::read_to_string(manual).unwrap();
    let programs: Vec<_> = manual
        .split("```c\n")
        .skip(1)
        .filter_map(|block| block.split("\n```").next())
        .filter(|block| block.contains("int main("))
        .collect();
    assert!(!programs.is_empty());
    for build in possible() {
        for (number, source) in programs.iter().enumerate() {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join(format!("{number}.c"));
            std::fs::write(&path, format!("{source}\n")).unwrap();
            Program::new(&path, build).run([""; 0]);
        }
    }
}
