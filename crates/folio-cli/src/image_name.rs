//! Names of images that are more than a path: `file:`, `json:` and the options of `--image-opts`.

use crate::exit::{Failure, Outcome};
use crate::image_path::refuse_protocol;
use clap::Args;
use clap::builder::{PathBufValueParser, TypedValueParser};
use folio::block::ImageFormat;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Options of an image that select how it is cached or locked, and not what it contains.
const WITHOUT_EFFECT: [&str; 19] = [
    "aio",
    "auto-read-only",
    "cache-clean-interval",
    "cache-size",
    "cache.direct",
    "cache.no-flush",
    "detect-zeroes",
    "discard",
    "force-share",
    "l2-cache-entry-size",
    "l2-cache-size",
    "lazy-refcounts",
    "locking",
    "node-name",
    "overlap-check",
    "pass-discard-other",
    "pass-discard-request",
    "pass-discard-snapshot",
    "read-only",
];

/// Options about the names of images.
#[derive(Args)]
pub(crate) struct NameOptions {
    /// Names of images are options: driver=qcow2,file.filename=disk.qcow2
    #[arg(long)]
    image_opts: bool,
    /// Accepted without effect: only encryption needs objects
    #[arg(long, value_name = "OBJECT", hide = true)]
    object: Vec<String>,
}

/// A file and the format to open it with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NamedImage {
    pub(crate) path: PathBuf,
    pub(crate) format: Option<ImageFormat>,
}

impl NameOptions {
    /// Whether names are options.
    pub(crate) fn has_options(&self) -> bool {
        self.image_opts
    }

    /// Returns the file and format that `name` means. `format` is that of the command line.
    pub(crate) fn resolve(&self, name: &Path, format: Option<ImageFormat>) -> Outcome<NamedImage> {
        let text = name.to_string_lossy();
        let json = text.strip_prefix("json:");
        if json.is_none() && !self.image_opts {
            let path = local(name).map_err(Failure::usage)?;
            return Ok(NamedImage { path, format });
        }
        let fail = |why: String| Failure::usage(format!("{text}: {why}"));
        if format.is_some() && self.image_opts {
            return Err(Failure::usage(
                "--image-opts and --format are mutually exclusive",
            ));
        }
        let options = match json {
            Some(json) => json_options(json),
            None => list_options(&text),
        };
        let named = options.and_then(from_options).map_err(fail)?;
        Ok(NamedImage {
            format: format.or(named.format),
            ..named
        })
    }
}

/// Returns the local path of a name, without `file:`. A name with `json:` is returned unchanged.
///
/// # Errors
///
/// The message of a usage error for the other protocols of QEMU.
pub(crate) fn local(name: &Path) -> Result<PathBuf, String> {
    let text = name.to_str().unwrap_or_default();
    if let Some(path) = text.strip_prefix("file:")
        && !path.starts_with("//")
    {
        // As in qemu-img, the name remains one of a file.
        let has_colon = path
            .split('/')
            .next()
            .is_some_and(|name| name.contains(':'));
        let lead = if has_colon { "./" } else { "" };
        return Ok(format!("{lead}{path}").into());
    }
    if !text.starts_with("json:") {
        refuse_protocol(name)?;
    }
    Ok(name.to_owned())
}

/// Splits at commas; a doubled comma is a comma within a part.
pub(crate) fn split_commas(text: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut letters = text.chars().peekable();
    while let Some(letter) = letters.next() {
        if letter == ',' && letters.next_if_eq(&',').is_none() {
            words.push(String::new());
        } else if let Some(word) = words.last_mut() {
            word.push(letter);
        }
    }
    words.retain(|word| !word.is_empty());
    words
}

type Options = BTreeMap<String, String>;

fn list_options(text: &str) -> Result<Options, String> {
    let pair = |word: String| match word.split_once('=') {
        Some((key, value)) => Ok((key.to_owned(), value.to_owned())),
        None => Err(format!("invalid option {word:?}: expected KEY=VALUE")),
    };
    split_commas(text).into_iter().map(pair).collect()
}

fn json_options(text: &str) -> Result<Options, String> {
    let value: Value = serde_json::from_str(&double_quoted(text))
        .map_err(|error| format!("invalid JSON: {error}"))?;
    let mut options = Options::new();
    flatten("", &value, &mut options)?;
    Ok(options)
}

/// Returns JSON whose strings have double quotes; QEMU accepts single quotes too.
fn double_quoted(text: &str) -> String {
    let mut json = String::new();
    let mut quote = None;
    let mut letters = text.chars();
    while let Some(letter) = letters.next() {
        match (quote, letter) {
            (Some(_), '\\') => match letters.next() {
                Some('\'') => json.push('\''),
                Some(escaped) => json.extend(['\\', escaped]),
                None => json.push('\\'),
            },
            (Some('\''), '"') => json.push_str("\\\""),
            (Some(open), _) if open == letter => {
                quote = None;
                json.push('"');
            }
            (None, '"' | '\'') => {
                quote = Some(letter);
                json.push('"');
            }
            _ => json.push(letter),
        }
    }
    json
}

/// Adds the members of an object with dotted keys. serde_json limits the depth.
fn flatten(key: &str, value: &Value, options: &mut Options) -> Result<(), String> {
    let text = match value {
        Value::Object(members) => {
            for (name, value) in members {
                let key = match key {
                    "" => name.clone(),
                    _ => format!("{key}.{name}"),
                };
                flatten(&key, value, options)?;
            }
            return Ok(());
        }
        Value::String(text) => text.clone(),
        Value::Bool(true) => "on".to_owned(),
        Value::Bool(false) => "off".to_owned(),
        Value::Number(number) => number.to_string(),
        Value::Null | Value::Array(_) => return Err(format!("option {key:?} is not supported")),
    };
    options.insert(key.to_owned(), text);
    Ok(())
}

fn from_options(mut options: Options) -> Result<NamedImage, String> {
    let is_protocol = |driver: &str| matches!(driver, "file" | "host_device");
    let mut format = None;
    let mut is_file = false;
    match options.remove("driver") {
        Some(driver) if is_protocol(&driver) => {
            (format, is_file) = (Some(ImageFormat::Raw), true);
        }
        Some(driver) => format = Some(driver.parse().map_err(|_| unsupported("driver", &driver))?),
        None => {}
    }
    if let Some(driver) = options
        .remove("file.driver")
        .filter(|word| !is_protocol(word))
    {
        return Err(unsupported("file.driver", &driver));
    }
    let nested = options.remove("file.filename");
    let path = match options.remove("filename") {
        Some(name) if is_file || nested.is_none() => Some(name),
        _ => nested,
    };
    let unknown = options.keys().find(|key| {
        let key = key.strip_prefix("file.").unwrap_or(key);
        !WITHOUT_EFFECT.contains(&key)
    });
    if let Some(key) = unknown {
        return Err(format!("option {key:?} is not supported"));
    }
    let path = path.ok_or("missing option \"file.filename\"")?.into();
    Ok(NamedImage { path, format })
}

fn unsupported(key: &str, driver: &str) -> String {
    format!("{key}={driver} is not supported: expected raw, qcow2 or file")
}

/// Returns a parser of the names of image files.
pub(crate) fn value_parser() -> impl TypedValueParser<Value = PathBuf> {
    PathBufValueParser::new().try_map(|path| local(&path).map(|_| path))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolve(name: &str, image_opts: bool) -> Outcome<NamedImage> {
        let object = Vec::new();
        NameOptions { image_opts, object }.resolve(Path::new(name), None)
    }

    #[test]
    fn doubled_comma_does_not_split() {
        assert_eq!(split_commas("a=1,b=2,,3,"), ["a=1", "b=2,3"]);
    }

    #[test]
    fn json_and_options_name_the_same_image() {
        let want = NamedImage {
            path: "a,b".into(),
            format: Some(ImageFormat::Qcow2),
        };
        for (name, image_opts) in [
            ("driver=qcow2,file.driver=file,file.filename=a,,b", true),
            (
                r#"json:{"driver":"qcow2","file":{"filename":"a,b"},"read-only":true}"#,
                false,
            ),
            (
                r#"json:{"driver":"qcow2","file.filename":"a,b","file.locking":"off"}"#,
                true,
            ),
            ("json:{'driver':'qcow2','file':{'filename':'a,b'}}", false),
        ] {
            assert_eq!(resolve(name, image_opts).unwrap(), want, "{name}");
        }
        let raw = resolve(r#"json:{"driver":"file","filename":"x"}"#, false).unwrap();
        assert_eq!(raw.format, Some(ImageFormat::Raw));
    }

    #[test]
    fn single_quotes_become_double_quotes() {
        for (text, want) in [
            (r#"{'a':"it's"}"#, r#"{"a":"it's"}"#),
            (r#"{'a':'"\'\n'}"#, r#"{"a":"\"'\n"}"#),
        ] {
            assert_eq!(double_quoted(text), want);
        }
    }

    #[test]
    fn unknown_parts_are_refused() {
        for (name, words) in [
            ("json:{", "invalid JSON"),
            (
                r#"json:{"driver":"nbd","host":"x"}"#,
                "driver=nbd is not supported",
            ),
            (
                r#"json:{"driver":"raw","offset":512,"file.filename":"x"}"#,
                "\"offset\"",
            ),
            (
                r#"json:{"driver":"qcow2","backing":null,"file.filename":"x"}"#,
                "\"backing\"",
            ),
            (r#"json:{"driver":"qcow2"}"#, "missing option"),
        ] {
            let refused = resolve(name, false).unwrap_err();
            assert!(
                refused.message.contains(words),
                "{name}: {}",
                refused.message
            );
        }
    }

    #[test]
    fn file_protocol_is_omitted() {
        assert_eq!(local(Path::new("file:a:b")), Ok("./a:b".into()));
        assert_eq!(local(Path::new("file:/a:b")), Ok("/a:b".into()));
        assert_eq!(local(Path::new("json:{}")), Ok("json:{}".into()));
        assert!(local(Path::new("nbd:localhost:1")).is_err());
        // A URL with object storage; its host is refused when it is opened.
        let url = local(Path::new("file://host/x"));
        assert_eq!(url.is_err(), !cfg!(feature = "object-store"));
    }
}
