//! The documents as a site with search, by mdBook, in target/site.
//!
//! The pages link to files beside `docs/`, which mdBook does not see. So a copy of all documents is
//! made, in the same folders, and `docs/SUMMARY.md` is moved to its top.

use crate::packages;
use crate::repository;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

/// Documents outside `docs/`.
const BESIDE: [&str; 6] = [
    "README.md",
    "ARCHITECTURE.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "SECURITY.md",
    "bindings/python/README.md",
];

/// Makes the site.
///
/// # Errors
///
/// mdBook is missing or fails, or a file cannot be copied.
pub(crate) fn make(root: &Path) -> Result<(), String> {
    if !packages::has("mdbook") {
        return Err("mdbook is not installed: cargo install --locked mdbook@0.4".to_owned());
    }
    let target = std::path::absolute(repository::target_folder());
    let target = target.map_err(|error| error.to_string())?;
    let stage = target.join("site-source");
    let _ = fs::remove_dir_all(&stage);
    copy_all(&root.join("docs"), &stage.join("docs")).map_err(|error| error.to_string())?;
    for file in BESIDE {
        let to = stage.join(file);
        let folder = to.parent().unwrap_or(&stage);
        fs::create_dir_all(folder)
            .and_then(|()| fs::copy(root.join(file), &to))
            .map_err(|error| format!("{file}: {error}"))?;
    }
    let summary = fs::read_to_string(root.join("docs/SUMMARY.md"));
    let summary = summary.map_err(|error| error.to_string())?;
    fs::write(stage.join("SUMMARY.md"), from_top(&summary)).map_err(|error| error.to_string())?;
    let _ = fs::remove_file(stage.join("docs/SUMMARY.md"));
    fs::rename(stage.join("docs/book.toml"), stage.join("book.toml"))
        .map_err(|error| error.to_string())?;
    let status = Command::new("mdbook")
        .args(["build", "--dest-dir"])
        .arg(target.join("site"))
        .arg(&stage)
        .env("PATH", packages::search_path())
        .stdin(Stdio::null())
        .status();
    match status {
        Ok(status) if status.success() => {
            println!("{}", target.join("site/index.html").display());
            Ok(())
        }
        Ok(status) => Err(format!("mdbook: {status}")),
        Err(error) => Err(format!("mdbook: {error}")),
    }
}

/// The summary as it reads one folder further up.
fn from_top(summary: &str) -> String {
    summary.replace("](", "](docs/").replace("](docs/../", "](")
}

fn copy_all(from: &Path, to: &Path) -> std::io::Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy_all(&entry.path(), &target)?;
        } else {
            fs::copy(entry.path(), target)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn summary_leads_from_the_top() {
        let summary = "- [Run](run.md)\n- [Security](../SECURITY.md)\n";
        assert_eq!(
            from_top(summary),
            "- [Run](docs/run.md)\n- [Security](SECURITY.md)\n"
        );
    }
}
