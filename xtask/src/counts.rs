//! The ratchet of counts: how many breaches of a rule each part of the repository may have.

use std::collections::BTreeMap;
use std::path::Path;

/// Counts that may fall, never grow.
pub(crate) const FILE: &str = "xtask/counts.txt";
const HEAD: &str = "# Breaches of rules that are counted, and how many there may be at most.\n\
    # `cargo xtask tidy --lower` writes them anew: counts fall or go, none is added.\n";

/// Counts by key: a rule and a part of the repository.
pub(crate) type Counts = BTreeMap<String, usize>;

/// Compares what was measured with what is allowed; returns the keys above their limit, with it.
///
/// # Errors
/// The file is missing or malformed.
pub(crate) fn check(
    root: &Path,
    measured: &Counts,
    lower: bool,
) -> Result<Vec<(String, usize)>, String> {
    let path = root.join(FILE);
    let text = std::fs::read_to_string(&path).map_err(|error| format!("{FILE}: {error}"))?;
    let allowed = parse(&text)?;
    if lower {
        std::fs::write(&path, lowered(measured, &allowed))
            .map_err(|error| format!("{FILE}: {error}"))?;
    }
    Ok(above(measured, &allowed))
}

fn above(measured: &Counts, allowed: &Counts) -> Vec<(String, usize)> {
    let limit = |key: &String| allowed.get(key).copied().unwrap_or(0);
    measured
        .iter()
        .filter(|(key, count)| **count > limit(key))
        .map(|(key, _)| (key.clone(), limit(key)))
        .collect()
}

fn lowered(measured: &Counts, allowed: &Counts) -> String {
    let lines = allowed.iter().filter_map(|(key, most)| {
        let count = measured.get(key).copied().unwrap_or(0).min(*most);
        (count > 0).then(|| format!("{key} {count}\n"))
    });
    format!("{HEAD}{}", lines.collect::<String>())
}

fn parse(text: &str) -> Result<Counts, String> {
    let entries = text
        .lines()
        .filter(|line| !line.starts_with('#') && !line.trim().is_empty());
    entries
        .map(|line| {
            let entry = line.rsplit_once(' ');
            let entry = entry.and_then(|(key, count)| Some((key.to_owned(), count.parse().ok()?)));
            entry.ok_or_else(|| format!("{FILE}: {line}: expected a rule, a part and a number"))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_fall_and_never_grow() {
        let counts = |pairs: &[(&str, usize)]| -> Counts {
            let pairs = pairs.iter();
            pairs.map(|(key, n)| ((*key).to_owned(), *n)).collect()
        };
        let allowed = parse("# head\ncircles a 3\nactor b 4\nactor c 1\n").unwrap();
        let measured = counts(&[("circles a", 2), ("actor b", 5), ("actor d", 1)]);
        let want = [("actor b".to_owned(), 4), ("actor d".to_owned(), 0)];
        assert_eq!(above(&measured, &allowed), want);
        let lowered = parse(&lowered(&measured, &allowed)).unwrap();
        assert_eq!(lowered, counts(&[("circles a", 2), ("actor b", 4)]));
        assert!(parse("nonsense").is_err());
    }
}
