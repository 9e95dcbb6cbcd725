//! File modes as in chmod(1): octal and symbolic.

use folio::{Errno, Error, Result};

/// Parses an octal or symbolic mode as in chmod(1). A symbolic mode changes `old`.
///
/// # Errors
///
/// EINVAL: the text is neither.
pub fn parse_mode(text: &str, old: u16, is_directory: bool) -> Result<u16> {
    changed(text, old, is_directory).ok_or_else(|| {
        let reason = format!(
            "invalid mode {text:?}: expected an octal or symbolic mode (e.g. 644 or u=rwX,go-w)"
        );
        Error::new(Errno::INVAL, reason)
    })
}

fn changed(text: &str, old: u16, is_directory: bool) -> Option<u16> {
    if text.starts_with(|c: char| c.is_ascii_digit()) {
        return u16::from_str_radix(text, 8)
            .ok()
            .filter(|mode| *mode <= 0o7777);
    }
    let mut clauses = text.split(',');
    clauses.try_fold(old, |mode, clause| apply(clause, mode, is_directory))
}

/// Applies one clause: `[ugoa]*([-+=][rwxXst]*)+`.
fn apply(clause: &str, mut mode: u16, is_directory: bool) -> Option<u16> {
    let at = clause.find(['+', '-', '='])?;
    let (classes, mut rest) = clause.split_at(at);
    let mut mask = 0;
    for letter in classes.chars() {
        mask |= match letter {
            'u' => 0o4700,
            'g' => 0o2070,
            'o' => 0o1007,
            'a' => 0o7777,
            _ => return None,
        };
    }
    if classes.is_empty() {
        mask = 0o7777;
    }
    while let Some(operator) = rest.chars().next() {
        rest = &rest[1..];
        let end = rest.find(['+', '-', '=']).unwrap_or(rest.len());
        let mut bits = 0;
        for letter in rest[..end].chars() {
            bits |= match letter {
                'r' => 0o444,
                'w' => 0o222,
                'x' => 0o111,
                'X' if is_directory || mode & 0o111 != 0 => 0o111,
                'X' => 0,
                's' => 0o6000,
                't' => 0o1000,
                _ => return None,
            };
        }
        rest = &rest[end..];
        // The sticky bit belongs to no class.
        let bits = bits & (mask | 0o1000);
        mode = match operator {
            '+' => mode | bits,
            '-' => mode & !bits,
            // A directory keeps setuid and setgid unless the clause names them.
            _ => mode & !(mask & if is_directory { 0o777 } else { 0o6777 }) | bits,
        };
    }
    Some(mode)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mode_follows_chmod() {
        let parse_mode = |text: &str, old, is_directory| parse_mode(text, old, is_directory).ok();
        assert_eq!(parse_mode("755", 0, false), Some(0o755));
        assert_eq!(parse_mode("u=rwX,go-w", 0o666, false), Some(0o644));
        assert_eq!(parse_mode("u=rwX,go-w", 0o666, true), Some(0o744));
        assert_eq!(parse_mode("+x", 0o644, false), Some(0o755));
        assert_eq!(parse_mode("u+s,g+s,+t", 0o755, true), Some(0o7755));
        assert_eq!(parse_mode("go=", 0o777, false), Some(0o700));
        for invalid in ["rwx", "99", "u+q", "-1", ""] {
            assert_eq!(parse_mode(invalid, 0, false), None, "{invalid}");
        }
    }
}
