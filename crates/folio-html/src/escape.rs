//! Escaped text of a page: no content of it becomes markup.

use std::fmt::{self, Display, Write};

/// Text as HTML and SVG have it, in an element or in an attribute with double quotes.
#[derive(Debug, Clone, Copy)]
pub struct Text<T>(pub T);

impl<T: Display> Display for Text<T> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(Escaping(out), "{}", self.0)
    }
}

struct Escaping<'a, 'b>(&'a mut fmt::Formatter<'b>);

impl Write for Escaping<'_, '_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        text.chars().try_for_each(|character| match character {
            '&' => self.0.write_str("&amp;"),
            '<' => self.0.write_str("&lt;"),
            '>' => self.0.write_str("&gt;"),
            '"' => self.0.write_str("&quot;"),
            '\'' => self.0.write_str("&#39;"),
            // XML has no other ones below a space.
            '\n' | '\t' => self.0.write_char(character),
            character if character.is_control() || is_bidi(character) => {
                self.0.write_char('\u{fffd}')
            }
            character => self.0.write_char(character),
        })
    }
}

/// Returns whether a character changes the direction of the text after it: a name could then show
/// words of the page in another order.
fn is_bidi(character: char) -> bool {
    matches!(
        character,
        '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}'
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_gets_out_of_its_place() {
        let hostile = "</title><script>alert(\"1\")</script>&amp;'\u{0}\u{1b}";
        let text = Text(hostile).to_string();
        let wanted = "&lt;/title&gt;&lt;script&gt;alert(&quot;1&quot;)&lt;/script&gt;&amp;amp;&#39;\u{fffd}\u{fffd}";
        assert_eq!(text, wanted);
        assert_eq!(Text("a\u{202e}b").to_string(), "a\u{fffd}b");
    }
}
