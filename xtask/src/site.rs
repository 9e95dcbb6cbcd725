//! The documents as a site with search, by mdBook, in target/site.
//!
//! The pages link to files beside `docs/`, which mdBook does not see. So a copy of all documents,
//! and of the files to which they link, is made, in the same folders, and `docs/SUMMARY.md` is
//! moved to its top. In the site every link must lead to a file.

use crate::packages;
use crate::repository;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Documents outside `docs/`.
const BESIDE: [&str; 8] = [
    "README.md",
    "README.ja.md",
    "ARCHITECTURE.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "SECURITY.md",
    "bindings/python/README.md",
    "fuzz/README.md",
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
    let _ = fs::remove_dir_all(target.join("site"));
    stage_documents(root, &stage)?;
    let status = Command::new("mdbook")
        .args(["build", "--dest-dir"])
        .arg(target.join("site"))
        .arg(&stage)
        .env("PATH", packages::search_path())
        .stdin(Stdio::null())
        .status();
    match status {
        Ok(status) if status.success() => {
            let site = target.join("site");
            check_links(&site)?;
            println!("{}", site.join("index.html").display());
            Ok(())
        }
        Ok(status) => Err(format!("mdbook: {status}")),
        Err(error) => Err(format!("mdbook: {error}")),
    }
}

/// Copies the documents, and the files to which they link, into `stage`.
fn stage_documents(root: &Path, stage: &Path) -> Result<(), String> {
    let failed = |place: &Path| {
        let place = place.display().to_string();
        move |error: std::io::Error| format!("{place}: {error}")
    };
    let docs = root.join("docs");
    copy_all(&docs, &stage.join("docs")).map_err(failed(&docs))?;
    for file in BESIDE {
        copy_file(&root.join(file), &stage.join(file)).map_err(failed(Path::new(file)))?;
    }
    let summary = stage.join("docs/SUMMARY.md");
    let text = fs::read_to_string(&summary).map_err(failed(&summary))?;
    fs::write(stage.join("SUMMARY.md"), from_top(&text)).map_err(failed(&summary))?;
    fs::remove_file(&summary).map_err(failed(&summary))?;
    let book = stage.join("docs/book.toml");
    fs::rename(&book, stage.join("book.toml")).map_err(failed(&book))?;
    for page in files_below(stage).map_err(failed(stage))? {
        let is_page = page.extension().is_some_and(|end| end == "md");
        let text = fs::read_to_string(&page).unwrap_or_default();
        let links = text.split("](").skip(1).filter(|_| is_page);
        for link in links.filter_map(|rest| rest.split([')', '#']).next()) {
            let Some(linked) = linked_file(&page, link) else {
                continue;
            };
            let inside = linked.strip_prefix(stage).unwrap_or(&linked);
            let source = root.join(inside);
            if source.is_file() && !linked.exists() {
                copy_file(&source, &linked).map_err(failed(&source))?;
            }
        }
    }
    Ok(())
}

/// Fails with the links of the site's pages that lead to no file.
fn check_links(site: &Path) -> Result<(), String> {
    let mut broken = Vec::new();
    for page in files_below(site).map_err(|error| error.to_string())? {
        // Neither is read as a page: all chapters in one, from one folder; and that of a server.
        let is_other = page.ends_with("print.html") || page.ends_with("404.html");
        if is_other || page.extension().is_none_or(|end| end != "html") {
            continue;
        }
        let text = fs::read_to_string(&page).map_err(|error| error.to_string())?;
        let links = ["href=\"", "src=\"", "srcset=\""]
            .into_iter()
            .flat_map(|attribute| text.split(attribute).skip(1));
        for link in links.filter_map(|rest| rest.split(['"', '#', '?']).next()) {
            if linked_file(&page, link).is_some_and(|linked| !linked.is_file()) {
                broken.push(format!("{}: {link}", page.display()));
            }
        }
    }
    if broken.is_empty() {
        Ok(())
    } else {
        Err(format!("links that lead nowhere:\n{}", broken.join("\n")))
    }
}

/// Returns the file to which a page links; `None` for an address, or a place in the page.
fn linked_file(page: &Path, link: &str) -> Option<PathBuf> {
    if link.is_empty() || link.contains(':') {
        return None;
    }
    let mut place = page.parent()?.to_owned();
    for name in link.split('/') {
        match name {
            "" | "." => {}
            ".." => drop(place.pop()),
            name => place.push(name),
        }
    }
    Some(place)
}

/// Returns all files below a folder.
fn files_below(folder: &Path) -> std::io::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            files.extend(files_below(&entry.path())?);
        } else {
            files.push(entry.path());
        }
    }
    Ok(files)
}

/// The summary as it reads one folder further up.
fn from_top(summary: &str) -> String {
    summary.replace("](", "](docs/").replace("](docs/../", "](")
}

fn copy_all(from: &Path, to: &Path) -> std::io::Result<()> {
    for file in files_below(from)? {
        let inside = file.strip_prefix(from).unwrap_or(&file);
        copy_file(&file, &to.join(inside))?;
    }
    Ok(())
}

/// Copies a file, into folders made for it.
fn copy_file(from: &Path, to: &Path) -> std::io::Result<()> {
    if let Some(folder) = to.parent() {
        fs::create_dir_all(folder)?;
    }
    fs::copy(from, to).map(drop)
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

    #[test]
    fn broken_links_of_a_site_are_named() {
        let site = std::env::temp_dir().join(format!("folio-site-{}", std::process::id()));
        fs::create_dir_all(site.join("docs")).unwrap();
        let page = "<a href=\"../index.html#a\"> <a href=\"#b\"> <a href=\"https://x/\">";
        fs::write(site.join("docs/a.html"), page).unwrap();
        fs::write(site.join("index.html"), "<img src=\"docs/b.svg\">").unwrap();
        let checked = check_links(&site);
        fs::write(site.join("docs/b.svg"), "").unwrap();
        let complete = check_links(&site);
        fs::remove_dir_all(&site).unwrap();
        assert!(checked.unwrap_err().ends_with("index.html: docs/b.svg"));
        assert_eq!(complete, Ok(()));
    }
}
