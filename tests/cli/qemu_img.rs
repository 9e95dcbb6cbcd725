//! `folio` called as qemu-img: the same command lines through both programs, with equal exit codes,
//! output and images.

use super::support::requires;
use super::support::tools::{command, run};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use tempfile::TempDir;

/// A folder for each program, with files of the same names.
pub(super) struct Pair {
    folder: TempDir,
}

impl Pair {
    pub(super) fn new() -> Self {
        let folder = TempDir::new().unwrap();
        for side in ["own", "real"] {
            std::fs::create_dir(folder.path().join(side)).unwrap();
        }
        let name = folder.path().join("qemu-img");
        std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_folio"), name).unwrap();
        Self { folder }
    }

    pub(super) fn path(&self, side: &str, name: &str) -> PathBuf {
        self.folder.path().join(side).join(name)
    }

    /// Writes a file into both folders.
    pub(super) fn file(&self, name: &str, bytes: &[u8]) {
        for side in ["own", "real"] {
            std::fs::write(self.path(side, name), bytes).unwrap();
        }
    }

    /// Runs a program, which makes the same file in both folders.
    pub(super) fn both(&self, program: &str, arguments: &[&str]) {
        for side in ["own", "real"] {
            let mut command = command(program);
            command
                .args(arguments)
                .current_dir(self.folder.path().join(side));
            assert!(
                command.output().unwrap().status.success(),
                "{program} {arguments:?}"
            );
        }
    }

    pub(super) fn run(&self, side: &str, arguments: &[&str]) -> Output {
        let mut command = match side {
            "own" => Command::new(self.folder.path().join("qemu-img")),
            _ => command("qemu-img"),
        };
        command
            .args(arguments)
            .stdin(Stdio::null())
            .env("TZ", "UTC");
        command.current_dir(self.folder.path().join(side));
        command.output().unwrap()
    }

    /// Runs a command line in both programs; exit code and standard output must be equal, and the
    /// messages must begin with qemu-img's name. Returns the output.
    #[track_caller]
    pub(super) fn same(&self, arguments: &[&str]) -> String {
        let (own, real) = (self.run("own", arguments), self.run("real", arguments));
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        assert_eq!(
            own.status.code(),
            real.status.code(),
            "{arguments:?}: {} / {}",
            text(&own.stderr),
            text(&real.stderr)
        );
        assert_eq!(text(&own.stdout), text(&real.stdout), "{arguments:?}");
        let own_errors = text(&own.stderr);
        assert!(
            own.status.code() != Some(1)
                || own_errors.is_empty()
                || own_errors.starts_with("qemu-img: "),
            "{arguments:?}: {own_errors}"
        );
        text(&own.stdout)
    }

    /// Asserts that a file of both folders has the same content and the same properties.
    #[track_caller]
    pub(super) fn same_image(&self, name: &str) {
        let (own, real) = (self.path("own", name), self.path("real", name));
        run(
            "qemu-img",
            [OsStr::new("compare"), own.as_os_str(), real.as_os_str()],
        );
        let (own, real) = (info(&own), info(&real));
        for key in ["format", "virtual-size", "cluster-size", "format-specific"] {
            assert_eq!(own[key], real[key], "{name}: {key}");
        }
        assert_eq!(own["backing-filename"], real["backing-filename"], "{name}");
        if own["format"] == "qcow2" {
            run(
                "qemu-img",
                [OsStr::new("check"), self.path("own", name).as_os_str()],
            );
        }
    }
}

/// Splits a command line at spaces.
pub(super) fn words(line: &str) -> Vec<&str> {
    line.split_whitespace().collect()
}

fn info(path: &Path) -> serde_json::Value {
    let words = ["info", "--output=json"].map(OsStr::new);
    let text = run("qemu-img", words.into_iter().chain([path.as_os_str()]));
    serde_json::from_str(&text).unwrap()
}

#[test]
fn create_prints_and_makes_the_same() {
    requires!(tool("qemu-img"));
    let pair = Pair::new();
    for line in [
        "create -f qcow2 a.qcow2 1M",
        "create -f qcow2 -o cluster_size=4k,compat=0.10 a.qcow2 1000",
        "create -fqcow2 -o extended_l2=on,lazy_refcounts=on b.qcow2 1.5M",
        "create -b a.qcow2 -F qcow2 -f qcow2 over.qcow2",
        "create -f qcow2 -u -b none -F raw c.qcow2 0x10000",
        "create -f raw raw.qcow2 1000",
        "create -f qcow2 -f raw r.img 1G",
        "create -q r.img 64k",
        "create -f raw -o preallocation=off,nocow=off,extent_size_hint=2M r 1M",
        "create -f qcow2 -o size=2M,nocow=on,compat=v3,preallocation=off d --",
        "create --object secret,id=s,data=x -f qcow2 file:e.qcow2 1M",
    ] {
        pair.same(&words(line));
    }
    for name in [
        "a.qcow2",
        "b.qcow2",
        "over.qcow2",
        "raw.qcow2",
        "r.img",
        "r",
        "d",
    ] {
        pair.same_image(name);
    }
}

#[test]
fn errors_have_exit_code_one_and_its_name() {
    requires!(tool("qemu-img"));
    let pair = Pair::new();
    pair.file("raw", &[7; 1024]);
    for line in [
        "",
        "bogus",
        "create",
        "create --bogus",
        "create -f qcow2 c.qcow2",
        "create -f qcow2 c.qcow2 1X",
        "create -f foo c.qcow2 1M",
        "create -f qcow2 -o bogus=1 c.qcow2 1M",
        "create -f qcow2 -b none -F raw c.qcow2 1M",
        "info none",
        "info --output=xml raw",
        "check none",
        "check -f raw raw",
        "compare raw",
        "compare raw none",
        "convert raw",
        "convert none x",
        "convert -O qcow2 -c none x",
        "map none",
        "resize raw 512",
        "rebase -b x raw",
        "commit raw",
        "snapshot -c x raw",
        "snapshot -a x raw",
    ] {
        pair.same(&words(line));
    }
}

#[test]
fn changes_print_and_make_the_same() {
    requires!(tool("qemu-img"), tool("qemu-io"));
    let pair = Pair::new();
    pair.file("base", &[7; 300_000]);
    pair.same(&[
        "convert",
        "-O",
        "qcow2",
        "-T",
        "none",
        "-t",
        "writeback",
        "base",
        "a.qcow2",
    ]);
    pair.same_image("a.qcow2");
    // The target exists.
    pair.same(&[
        "convert", "-q", "-C", "-f", "raw", "-O", "qcow2", "-W", "base", "a.qcow2",
    ]);
    pair.same(&[
        "create", "-f", "qcow2", "-F", "qcow2", "-b", "a.qcow2", "o.qcow2", "1M",
    ]);
    pair.both("qemu-io", &["-c", "write -P 3 64k 200k", "o.qcow2"]);
    pair.same(&["info", "-U", "--output=json", "a.qcow2", "--bogus"]);
    pair.same(&["check", "-U", "-T", "none", "--output=human", "o.qcow2"]);
    pair.same(&[
        "compare", "-U", "-T", "none", "-p", "-q", "a.qcow2", "o.qcow2",
    ]);
    pair.same(&["compare", "-f", "raw", "-F", "qcow2", "base", "a.qcow2"]);
    pair.same(&["commit", "-t", "unsafe", "-d", "o.qcow2"]);
    pair.same_image("a.qcow2");
    pair.same(&["commit", "-q", "o.qcow2"]);
    pair.same(&["snapshot", "-q", "-c", "s", "a.qcow2"]);
    pair.same(&["snapshot", "-U", "-a", "s", "a.qcow2"]);
    pair.same(&["snapshot", "-d", "s", "a.qcow2"]);
    pair.same(&["snapshot", "-l", "a.qcow2"]);
    pair.same(&["resize", "-q", "a.qcow2", "0x200000"]);
    pair.same(&["resize", "a.qcow2", "+1000"]);
    pair.same(&[
        "rebase", "-U", "-T", "none", "-t", "none", "-b", "", "o.qcow2",
    ]);
    for name in ["a.qcow2", "o.qcow2"] {
        pair.same_image(name);
    }
    pair.same(&["convert", "base", "r.raw"]);
    pair.same_image("r.raw");
}

#[test]
fn json_and_image_options_name_images() {
    requires!(tool("qemu-img"));
    let pair = Pair::new();
    pair.file("base", &[7; 65536]);
    let json = r#"json:{"driver":"qcow2","file":{"driver":"file","filename":"a.qcow2"}}"#;
    pair.same(&["convert", "-O", "qcow2", "file:base", "a.qcow2"]);
    pair.same(&[
        "compare",
        "--image-opts",
        "driver=file,filename=base",
        "file.filename=a.qcow2",
    ]);
    pair.same(&["compare", json, "base"]);
    pair.same(&["convert", "-O", "raw", json, "b.raw"]);
    pair.same_image("b.raw");
    pair.same(&["map", "--image-opts", "driver=qcow2,file.filename=a.qcow2"]);
    pair.same(&[
        "check",
        "--image-opts",
        "driver=qcow2,file.filename=a.qcow2",
    ]);
    pair.same(&[
        "resize",
        "--image-opts",
        "driver=qcow2,file.filename=a.qcow2",
        "2M",
    ]);
    pair.same(&[
        "info",
        "--image-opts",
        "-f",
        "raw",
        "driver=qcow2,file.filename=a.qcow2",
    ]);
    pair.same(&["info", "json:{\"driver\":\"bogus\"}"]);
    pair.same_image("a.qcow2");
}

#[test]
fn check_reports_leaks_with_the_same_words() {
    requires!(tool("qemu-img"), tool("qemu-io"));
    let pair = Pair::new();
    pair.both(
        "qemu-img",
        &["create", "-q", "-f", "qcow2", "a.qcow2", "1M"],
    );
    pair.both("qemu-io", &["-c", "write 0 128k", "a.qcow2"]);
    for side in ["own", "real"] {
        // Cluster 8 gets a refcount: the refcount block is the third cluster.
        let file = std::fs::File::options()
            .write(true)
            .open(pair.path(side, "a.qcow2"))
            .unwrap();
        file.set_len(9 << 16).unwrap();
        std::os::unix::fs::FileExt::write_all_at(&file, &[0, 1], (2 << 16) + 16).unwrap();
    }
    pair.same(&["check", "a.qcow2"]);
    pair.same(&["check", "-q", "a.qcow2"]);
    pair.same(&["check", "-r", "leaks", "a.qcow2"]);
    let values = ["own", "real"].map(|side| {
        let output = pair.run(side, &["check", "--out", "json", "a.qcow2"]);
        serde_json::from_slice::<serde_json::Value>(&output.stdout).unwrap()
    });
    assert_eq!(values[0], values[1]);
}

#[test]
fn option_help_lists_the_same_options() {
    requires!(tool("qemu-img"));
    let pair = Pair::new();
    let keys = |output: Output| -> Vec<String> {
        assert!(output.status.success());
        let text = String::from_utf8(output.stdout).unwrap();
        let lines = text.lines().filter_map(|line| line.strip_prefix("  "));
        // Encryption is not supported.
        let lines = lines.filter(|line| !line.starts_with("encrypt"));
        lines
            .map(|line| line.split(" - ").next().unwrap().trim().to_owned())
            .collect()
    };
    for line in [
        "create -f qcow2 -o help",
        "create -f qcow2 -o help x",
        "create -f raw -o ?",
        "create -o size=1M,help x",
    ] {
        let (own, real) = (
            pair.run("own", &words(line)),
            pair.run("real", &words(line)),
        );
        assert_eq!(keys(own), keys(real), "{line}");
        assert!(!pair.path("own", "x").exists());
    }
}

#[test]
fn version_is_that_of_qemu_img() {
    let pair = Pair::new();
    for word in ["--version", "-V"] {
        let output = pair.run("own", &[word]);
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(
            output.status.success() && text.starts_with("qemu-img version 7."),
            "{text}"
        );
    }
    let mut own = Command::new(env!("CARGO_BIN_EXE_folio"));
    let output = own.args(["image", "--qemu", "bogus"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(
        output
            .stderr
            .starts_with(b"qemu-img: Command not found: bogus\n")
    );
}

#[test]
fn messages_have_the_words_of_qemu_img() {
    requires!(tool("qemu-img"));
    let pair = Pair::new();
    pair.both("qemu-img", &["create", "-q", "-f", "qcow2", "a", "1M"]);
    pair.both("qemu-img", &["create", "-q", "-f", "qcow2", "b", "1M"]);
    pair.both("qemu-img", &["rebase", "-u", "-b", "b", "-F", "qcow2", "b"]);
    pair.file("raw", &[7; 1024]);
    for line in [
        "info none",
        "map none",
        "check none",
        "snapshot -l none",
        "convert none x",
        "compare none a",
        "commit none",
        "resize none 1M",
        "check raw",
        "create -f qcow2 -b a c",
        "create -f qcow2 -b none c",
        "create -f qcow2 -b none -F raw c",
        "create -f qcow2 c 1kilobyte",
        "create -f qcow2 -o cluster_size=1234 c 1M",
        "create -f qcow2 -o refcount_bits=128 c 1M",
        "create -f qcow2 -o refcount_bits=8,compat=v2 c 1M",
        "create -f qcow2 -o lazy_refcounts=on,compat=v2 c 1M",
        "create -f qcow2 c 1048576T",
        "convert -O qcow2 -B a a c",
        "rebase -u -b a b",
        "resize a 512K",
        "resize -f raw raw 512",
        "resize -f raw --shrink --preallocation=full raw 512",
        "info --backing-chain b",
    ] {
        let arguments = words(line);
        pair.same(&arguments);
        let [own, real] = ["own", "real"].map(|side| pair.run(side, &arguments).stderr);
        let [own, real] = [own, real].map(|text| String::from_utf8(text).unwrap());
        assert_eq!(own.trim_end(), real.trim_end(), "{line}");
    }
}

#[test]
fn json_is_the_same_text() {
    requires!(tool("qemu-img"), tool("qemu-io"));
    let pair = Pair::new();
    pair.file("base", &[7; 300_032]);
    pair.both(
        "qemu-img",
        &[
            "create", "-q", "-f", "qcow2", "-b", "base", "-F", "raw", "a",
        ],
    );
    pair.both("qemu-io", &["-c", "write -P 3 64k 100k", "a"]);
    pair.both("qemu-img", &["bitmap", "--add", "a", "b\u{e4}"]);
    let chain = r"json:{'driver':'qcow2','file':{'driver':'file','filename':'a'}}";
    for arguments in [
        &["info", "--output=json", "a"][..],
        &["info", "--output=json", "--backing-chain", "a"],
        &["check", "--output=json", "a"],
        &["map", "--output=json", "a"],
        &["map", "--output=json", chain],
        &["map", "--output=json", "-f", "raw", "base"],
    ] {
        pair.same(arguments);
    }
}

#[test]
fn file_name_with_colon_starts_at_the_folder() {
    requires!(tool("qemu-img"));
    let pair = Pair::new();
    pair.both("qemu-img", &["create", "-q", "-f", "qcow2", "base", "1M"]);
    pair.same(&words("create -f qcow2 -F qcow2 -b base file:image:top"));
    pair.same(&words("info file:image:top"));
    pair.same_image("image:top");
}

#[test]
fn new_image_has_the_size_of_a_qemu_image() {
    requires!(tool("qemu-img"));
    let pair = Pair::new();
    for options in [
        "compat=v3",
        "cluster_size=2M",
        "cluster_size=512,refcount_bits=64",
    ] {
        pair.same(&["create", "-f", "qcow2", "-o", options, "a", "1G"]);
        let [own, real] = ["own", "real"].map(|side| {
            let path = pair.path(side, "a");
            let len = std::fs::metadata(&path).unwrap().len();
            (len, info(&path)["actual-size"].clone())
        });
        assert_eq!(own, real, "{options}");
    }
}
