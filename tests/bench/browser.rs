//! A headless browser, driven over a pipe (the DevTools protocol), that records the requests of a
//! page.

use crate::support::require::find;
use serde_json::{Value, json};
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;
use tempfile::TempDir;

/// How long the browser may take to answer: it starts on machines that have much else to do.
const ANSWER: Duration = Duration::from_secs(120);

/// A browser with one page.
pub(crate) struct Browser {
    child: Child,
    to: File,
    from: Receiver<Value>,
    next_id: u64,
    session: Option<String>,
    /// Addresses that pages have asked for.
    pub(crate) requests: Vec<String>,
    _folder: TempDir,
}

impl Browser {
    /// Starts chromium with an empty page.
    pub(crate) fn start() -> Self {
        let folder = TempDir::new().expect("a folder");
        let [to, from] = ["to", "from"].map(|name| folder.path().join(name));
        for pipe in [&to, &from] {
            let mode = rustix::fs::Mode::from_raw_mode(0o600);
            rustix::fs::mknodat(rustix::fs::CWD, pipe, rustix::fs::FileType::Fifo, mode, 0)
                .expect("a pipe");
        }
        let program = find("chromium").expect("chromium is here");
        // The browser has its pipe at the descriptors 3 and 4.
        let script = r#"exec "$0" --headless=new --remote-debugging-pipe --no-sandbox --disable-gpu --no-first-run \
            --disable-background-networking --disable-component-update --user-data-dir="$1/profile" \
            3<"$1/to" 4>"$1/from""#;
        let mut shell = Command::new("sh");
        shell
            .args(["-c", script])
            .arg(program)
            .arg(folder.path())
            .env("HOME", folder.path());
        let child = shell
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        let child = child.expect("a shell");
        let to = File::options()
            .write(true)
            .open(&to)
            .expect("the browser's input");
        let from = listen(&from);
        let mut browser = Self {
            child,
            to,
            from,
            next_id: 0,
            session: None,
            requests: Vec::new(),
            _folder: folder,
        };
        let target = browser.call("Target.createTarget", json!({ "url": "about:blank" }));
        let attached = browser.call(
            "Target.attachToTarget",
            json!({ "targetId": target["targetId"], "flatten": true }),
        );
        browser.session = attached["sessionId"].as_str().map(str::to_owned);
        browser.call("Page.enable", json!({}));
        browser.call("Network.enable", json!({}));
        browser
    }

    /// Opens a file, and waits until it is loaded.
    pub(crate) fn open(&mut self, page: &Path) -> String {
        let url = format!("file://{}", page.display());
        self.call("Page.navigate", json!({ "url": url }));
        while self.hear()["method"] != "Page.loadEventFired" {}
        url
    }

    /// Evaluates an expression in the page; its value must be text with JSON.
    pub(crate) fn evaluate(&mut self, expression: &str) -> Value {
        let answer = self.call(
            "Runtime.evaluate",
            json!({ "expression": expression, "returnByValue": true }),
        );
        let text = answer["result"]["value"]
            .as_str()
            .unwrap_or_else(|| panic!("{expression}: {answer}"));
        serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
    }

    /// Emulates a device with the dark color scheme.
    pub(crate) fn turn_dark(&mut self) {
        let dark = json!({ "features": [{ "name": "prefers-color-scheme", "value": "dark" }] });
        self.call("Emulation.setEmulatedMedia", dark);
    }

    /// Emulates a phone with a screen of this size.
    pub(crate) fn resize(&mut self, width: u32, height: u32) {
        let screen = json!({
            "width": width, "height": height, "deviceScaleFactor": 2, "mobile": true
        });
        self.call("Emulation.setDeviceMetricsOverride", screen);
    }

    fn call(&mut self, method: &str, parameters: Value) -> Value {
        self.next_id += 1;
        let id = self.next_id;
        let mut message = json!({ "id": id, "method": method, "params": parameters });
        if let Some(session) = &self.session {
            message["sessionId"] = session.as_str().into();
        }
        let mut text = message.to_string().into_bytes();
        text.push(0);
        self.to
            .write_all(&text)
            .unwrap_or_else(|error| panic!("{method}: {error}"));
        loop {
            let mut heard = self.hear();
            if heard["id"] == id {
                assert!(heard.get("error").is_none(), "{method}: {heard}");
                return heard["result"].take();
            }
        }
    }

    fn hear(&mut self) -> Value {
        let heard = self.from.recv_timeout(ANSWER).expect("the browser answers");
        if heard["method"] == "Network.requestWillBeSent" {
            let url = heard["params"]["request"]["url"]
                .as_str()
                .unwrap_or_default();
            self.requests.push(url.to_owned());
        }
        heard
    }
}

fn listen(pipe: &Path) -> Receiver<Value> {
    let from = File::open(pipe).expect("the browser's output");
    let (heard, hear) = channel();
    std::thread::spawn(move || {
        for message in BufReader::new(from).split(0).map_while(Result::ok) {
            let Ok(message) = serde_json::from_slice(&message) else {
                continue;
            };
            if heard.send(message).is_err() {
                return;
            }
        }
    });
    hear
}

impl Drop for Browser {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
