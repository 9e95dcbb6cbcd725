//! `folio doctor --html`: the page has what the text report has, and no name becomes markup.

use super::*;
use crate::workload::{REPEAT, checked, synchronous_writes};

/// Reads a page with the parser of Python; fails at tags that do not match, at scripts, and at
/// requests.
const PARSER: &str = "\
import html.parser, sys
class Page(html.parser.HTMLParser):
    opened = []
    def handle_starttag(self, tag, attributes):
        names = [name for name, value in attributes]
        assert tag != 'script' and not {'src', 'href', 'onload'} & set(names), (tag, names)
        assert len(names) == len(set(names)), names
        if tag != 'meta': self.opened.append(tag)
    def handle_startendtag(self, tag, attributes): pass
    def handle_endtag(self, tag):
        assert self.opened.pop() == tag, tag
page = Page()
page.feed(open(sys.argv[1], encoding='utf-8').read())
page.close()
assert page.opened == [], page.opened
";

/// Runs a command under the doctor; returns the page and the output of the doctor.
#[track_caller]
fn page_of(folder: &Path, options: &[&str], words: &[&str]) -> (String, Output) {
    let path = folder.join("page.html");
    let output = command(env!("CARGO_BIN_EXE_folio"))
        .current_dir(folder)
        .args(["doctor", "--html", "page.html"])
        .args(options)
        .arg("--")
        .args(words)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let page = std::fs::read_to_string(&path).unwrap_or_else(|_| panic!("{}", text(&output)));
    run(
        "python3",
        ["-c".as_ref(), PARSER.as_ref(), path.as_os_str()],
    );
    (page, output)
}

#[test]
fn page_has_the_parts_of_the_text_report() {
    requires!(tool("python3"));
    let folder = TempDir::new().unwrap();
    let words = ["python3", "-c", &synchronous_writes(), "log"];
    let (page, output) = page_of(folder.path(), &[], &words);
    let shown = String::from_utf8(output.stdout).unwrap();
    let first = shown.lines().next().unwrap();
    let parts: Vec<_> = first.split("   ").skip(1).collect();
    assert!(
        parts.iter().any(|part| part.starts_with("sync writes ")),
        "{shown}"
    );
    for part in parts {
        assert!(
            page.contains(&format!("<strong>{part}</strong> s, ")),
            "{part}: {page}"
        );
    }
    let log = folder.path().join("log");
    let row = format!("<th scope=\"row\">{}</th>", log.display());
    assert!(page.contains(&row), "{page}");
    assert!(
        page.contains("<pre><code>in the program: no O_SYNC"),
        "{page}"
    );
    assert!(page.contains("<div>python3"), "{page}");
}

#[test]
fn names_of_files_and_words_stay_text() {
    requires!(tool("python3"));
    let folder = TempDir::new().unwrap();
    let name = "<script src=x>'\"&\u{202e}\u{1b}]0;";
    let words = ["python3", "-c", &synchronous_writes(), name];
    let (page, _) = page_of(folder.path(), &[], &words);
    assert!(page.contains("/&lt;script src=x&gt;"), "{page}");
    assert!(
        !page.contains('\u{202e}') && !page.contains('\u{1b}'),
        "{page}"
    );
}

#[test]
fn many_processes_make_no_larger_page() {
    requires!(tool("python3"));
    let folder = TempDir::new().unwrap();
    let script = "i=0; while [ $i -lt 300 ]; do cat /etc/passwd > copy; i=$((i+1)); done";
    let (page, _) = page_of(folder.path(), &[], &["sh", "-c", script]);
    assert!(page.len() < 200_000, "{}", page.len());
    // How many there are depends on the waits.
    let lanes = page.matches("<div class=\"lane thread\">").count();
    assert!((1..=16).contains(&lanes), "{page}");
}

#[test]
fn threads_that_wait_for_files_are_shown() {
    requires!(tool("python3"));
    let folder = TempDir::new().unwrap();
    let script = "import os, threading, time\n\
                  end = time.monotonic() + 0.5\n\
                  def write(name):\n\
                  \x20   fd = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_DSYNC)\n\
                  \x20   while time.monotonic() < end: os.write(fd, b'x' * 4096)\n\
                  threads = [threading.Thread(target=write, args=(n,)) for n in 'ab']\n\
                  for thread in threads: thread.start()\n\
                  for thread in threads: thread.join()";
    let words = [
        "sh",
        "-c",
        "for i in $(seq 30); do cat /dev/null; done; python3 -c \"$0\"",
        script,
    ];
    let (page, _) = page_of(folder.path(), &[], &words);
    assert_eq!(page.matches(", thread ").count(), 3 * 2, "{page}");
}

#[test]
fn json_lists_the_costliest_files() {
    requires!(tool("python3"));
    let folder = TempDir::new().unwrap();
    let script = format!(
        "import os\n\
         a, b = (os.open(name, os.O_WRONLY | os.O_CREAT) for name in 'ab')\n\
         {REPEAT}(os.write(a, b'x' * 4096), os.fsync(a), os.write(b, b'x'), os.fsync(b))"
    );
    let (page, output) = page_of(folder.path(), &["--json"], &["python3", "-c", &script]);
    let found = checked(&output);
    let files = found["files"].as_array().unwrap();
    for name in ["a", "b"] {
        let path = folder.path().join(name);
        let file = files
            .iter()
            .find(|file| file["path"] == *path.to_str().unwrap());
        let file = file.unwrap_or_else(|| panic!("{name}: {found:#}"));
        assert_eq!(file["part"], "fsync", "{found:#}");
        assert!(file["wait_s"].as_f64() > Some(0.0), "{found:#}");
        assert!(page.contains(path.to_str().unwrap()));
    }
    let costs: Vec<_> = files.iter().map(|file| file["cost_s"].as_f64()).collect();
    assert!(costs.is_sorted_by(|a, b| a >= b), "{found:#}");
}

#[test]
fn tiny_buffers_have_their_file() {
    requires!(tool("dd"), tool("python3"));
    let folder = TempDir::new().unwrap();
    let words = [
        "dd",
        "if=/dev/zero",
        "of=file",
        "bs=1",
        "count=100000",
        "status=none",
    ];
    let (_, output) = page_of(folder.path(), &["--json"], &words);
    let found = checked(&output);
    let path = folder.path().join("file");
    let mut files = found["files"].as_array().unwrap().iter();
    let file = files.find(|file| file["path"] == *path.to_str().unwrap());
    let file = file.unwrap_or_else(|| panic!("{found:#}"));
    assert_eq!(file["part"], "tiny-buffers", "{found:#}");
    // Calls that lost the processor are not counted as small.
    assert!(file["calls"].as_u64() >= Some(1000), "{found:#}");
}

#[test]
fn loop_that_copies_has_both_files() {
    requires!(tool("dd"), tool("python3"));
    let folder = TempDir::new().unwrap();
    std::fs::write(folder.path().join("a"), vec![7; 200_000]).unwrap();
    let words = ["dd", "if=a", "of=b", "bs=1", "status=none"];
    let (_, output) = page_of(folder.path(), &["--json"], &words);
    let found = checked(&output);
    for name in ["a", "b"] {
        let path = folder.path().join(name);
        let mut files = found["files"].as_array().unwrap().iter();
        let file = files.find(|file| file["path"] == *path.to_str().unwrap());
        let file = file.unwrap_or_else(|| panic!("{name}: {found:#}"));
        assert!(file["calls"].as_u64() >= Some(1000), "{found:#}");
    }
}

#[test]
fn page_of_a_path_has_its_layers_and_checks() {
    requires!(tool("python3"));
    let folder = TempDir::new().unwrap();
    let (file, page) = (folder.path().join("<b>"), folder.path().join("page.html"));
    std::fs::write(&file, vec![1; 1 << 20]).unwrap();
    let words = [OsStr::new("--html"), page.as_os_str(), file.as_os_str()];
    let output = doctor(words);
    let shown = std::fs::read_to_string(&page).unwrap_or_else(|_| panic!("{}", text(&output)));
    assert!(shown.contains("/&lt;b&gt;<small>") && shown.contains("<ul class=\"chain\">"));
    run(
        "python3",
        ["-c".as_ref(), PARSER.as_ref(), page.as_os_str()],
    );
}

#[test]
fn page_without_a_folder_stops_before_the_command() {
    let folder = TempDir::new().unwrap();
    let words = ["--html", "no/page.html", "--", "touch", "ran"];
    let output = command(env!("CARGO_BIN_EXE_folio"))
        .current_dir(folder.path())
        .arg("doctor")
        .args(words)
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(3), "{}", text(&output));
    assert!(!folder.path().join("ran").exists());
}

#[test]
fn page_replaces_no_examined_file() {
    let folder = TempDir::new().unwrap();
    let path = |name| folder.path().join(name);
    std::fs::write(path("data"), "data").unwrap();
    std::fs::write(path("index.html"), "<!DOCTYPE html>").unwrap();
    std::os::unix::fs::symlink("index.html", path("link")).unwrap();
    for words in [["data", "data"], ["data", "."], ["link", "index.html"]] {
        let [page, examined] = words.map(path);
        let before = std::fs::read(&page).unwrap();
        let output = doctor([OsStr::new("--html"), page.as_os_str(), examined.as_os_str()]);
        assert_eq!(output.status.code(), Some(3), "{}", text(&output));
        assert_eq!(std::fs::read(&page).unwrap(), before, "{words:?}");
    }
}

#[test]
fn page_is_written_where_the_command_removed_it() {
    requires!(tool("python3"));
    let folder = TempDir::new().unwrap();
    let earlier = folder.path().join("page.html");
    std::fs::write(&earlier, "<!DOCTYPE html>earlier").unwrap();
    let (page, _) = page_of(folder.path(), &[], &["rm", "page.html"]);
    assert!(page.contains("rm page.html"), "{page}");
}
