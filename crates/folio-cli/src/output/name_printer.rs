//! Names from an image, as standard output shows them.

use super::color::{self, DIRECTORY, LINK};
use super::printable;
use folio::vfs::FileType;
use std::borrow::Cow;
use std::io::IsTerminal;

/// Prints names: on a terminal without control characters, perhaps in color; elsewhere as their
/// bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NamePrinter {
    is_terminal: bool,
    has_colors: bool,
}

impl NamePrinter {
    /// Creates the printer for standard output.
    pub(crate) fn on_stdout() -> Self {
        Self {
            is_terminal: std::io::stdout().is_terminal(),
            has_colors: color::on_stdout(),
        }
    }

    /// Returns the name without color.
    pub(crate) fn plain(self, name: &[u8]) -> Cow<'_, [u8]> {
        if !self.is_terminal {
            return Cow::Borrowed(name);
        }
        // As ls(1) and find(1) do.
        let text = String::from_utf8_lossy(name).replace(char::is_control, "?");
        Cow::Owned(text.into_bytes())
    }

    /// Returns text that contains names, with its line breaks and tabs.
    pub(crate) fn text(self, text: &str) -> Cow<'_, str> {
        if self.is_terminal {
            Cow::Owned(printable(text))
        } else {
            Cow::Borrowed(text)
        }
    }

    /// Returns the name in the color of its file type.
    pub(crate) fn of(self, name: &[u8], file_type: FileType) -> Cow<'_, [u8]> {
        let style = match file_type {
            FileType::Directory => DIRECTORY,
            FileType::Symlink => LINK,
            _ => return self.plain(name),
        };
        if !self.has_colors {
            return self.plain(name);
        }
        let mut shown = style.render().to_string().into_bytes();
        shown.extend_from_slice(&self.plain(name));
        shown.extend_from_slice(style.render_reset().to_string().as_bytes());
        Cow::Owned(shown)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_replaced_on_terminal() {
        let name = b"a\x1b[2J\xff";
        let pipe = NamePrinter {
            is_terminal: false,
            has_colors: false,
        };
        let terminal = NamePrinter {
            is_terminal: true,
            ..pipe
        };
        let colored = |printer| NamePrinter {
            has_colors: true,
            ..printer
        };
        assert_eq!(*pipe.of(name, FileType::Directory), *name);
        assert_eq!(*terminal.plain(name), *"a?[2J\u{fffd}".as_bytes());
        assert_eq!(
            *colored(pipe).of(b"d", FileType::Directory),
            *b"\x1b[1m\x1b[34md\x1b[0m"
        );
        assert_eq!(*colored(terminal).of(b"f\n", FileType::Regular), *b"f?");
    }
}
