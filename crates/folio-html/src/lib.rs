//! Pages of HTML for reports: one file, no script, no request, light and dark.
//!
//! ```text
//!   folio-bench   folio-cli      the body, and a style of its own
//!        \          /
//!       page, Text               the frame and the common style; escaped text
//! ```
//!
//! Neighbors: the two programs above; none below.
//!
//! Invariant: text that is written as [`Text`] stays text, whatever its bytes are.

#![deny(unsafe_code)]

mod escape;

pub use escape::Text;

/// The beginning of each page.
pub const BEGINNING: &str = "<!DOCTYPE html>";

/// The style that all pages have.
const STYLE: &str = include_str!("style.css");

/// Nothing is loaded from anywhere, and no script runs, whatever a name in the page says.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'";

/// Returns a complete page. `style` is added to the common style; `body` is HTML below the heading.
pub fn page(title: &str, style: &str, body: &str) -> String {
    let title = Text(title);
    format!(
        "{BEGINNING}\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"{POLICY}\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n\
         <title>{title}</title>\n<style>\n{STYLE}{style}</style>\n</head>\n<body>\n<main>\n\
         <h1>{title}</h1>\n{body}</main>\n</body>\n</html>\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn title_is_escaped_and_body_is_not() {
        let page = page("<a>", "p { margin: 0; }\n", "<p>body</p>\n");
        assert_eq!(page.matches("&lt;a&gt;").count(), 2);
        assert!(page.contains("p { margin: 0; }\n</style>"), "{page}");
        assert!(page.ends_with("<p>body</p>\n</main>\n</body>\n</html>\n"));
    }
}
