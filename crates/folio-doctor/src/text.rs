//! Numbers and paths as sentences and commands have them.

use std::fmt::Display;
use std::path::Path;

/// `64 MiB`, `1.5 GiB`, `812 B`.
pub(crate) fn bytes(count: u64) -> String {
    let (mut unit, mut size) = (0, count as f64);
    while size >= 1024.0 && unit < 5 {
        size /= 1024.0;
        unit += 1;
    }
    let name = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"][unit];
    if unit == 0 || size >= 100.0 || size.fract() == 0.0 {
        format!("{size:.0} {name}")
    } else {
        format!("{size:.1} {name}")
    }
}

/// Part of a whole in percent; 0 of nothing.
pub(crate) fn percent(part: u64, whole: u64) -> f64 {
    if whole == 0 {
        0.0
    } else {
        (part as f64 * 1000.0 / whole as f64).round() / 10.0
    }
}

/// `3.0`, and a number that goes into JSON in the same precision.
pub(crate) fn round(number: f64, digits: i32) -> f64 {
    let scale = 10_f64.powi(digits);
    (number * scale).round() / scale
}

/// What went wrong, without the number that Rust puts behind it.
pub fn reason(error: &impl Display) -> String {
    let text = error.to_string();
    text.split(" (os error").next().unwrap_or(&text).to_owned()
}

/// A path as a word of a shell command.
pub(crate) fn quote(path: &Path) -> String {
    let text = path.to_string_lossy();
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/._-+,:@%=".contains(c);
    if !text.is_empty() && text.chars().all(is_plain) && !text.starts_with('-') {
        return text.into_owned();
    }
    format!("'{}'", text.replace('\'', "'\\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_read_well() {
        let shown = [0, 812, 1024, 1536, 64 << 20, 3 << 29, 100 * 1024 * 1024 + 1].map(bytes);
        assert_eq!(
            shown,
            [
                "0 B", "812 B", "1 KiB", "1.5 KiB", "64 MiB", "1.5 GiB", "100 MiB"
            ]
        );
        assert_eq!((percent(1, 3), percent(1, 0)), (33.3, 0.0));
    }

    #[test]
    fn errors_are_words() {
        assert_eq!(
            reason(&std::io::Error::from_raw_os_error(13)),
            "Permission denied"
        );
        assert_eq!(reason(&"too much"), "too much");
    }

    #[test]
    fn paths_survive_the_shell() {
        assert_eq!(quote(Path::new("/srv/a-b.img")), "/srv/a-b.img");
        assert_eq!(quote(Path::new("/srv/it's here")), "'/srv/it'\\''s here'");
        assert_eq!(quote(Path::new("-rf")), "'-rf'");
    }
}
