//! The crates of the programs: their licenses (THIRD-PARTY.txt), and a CycloneDX list of them.

use super::build::{FEATURES, Release, TARGET, WHEEL_FEATURES};
use crate::run::output;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

/// Writes both files.
pub(super) fn write(release: &Release<'_>) -> Result<(), String> {
    println!("== notices");
    let wheel = format!("foliofs-python/{}", WHEEL_FEATURES);
    let text = output(
        Command::new("cargo")
            .args(["metadata", "--format-version", "1", "--locked"])
            .args(["--filter-platform", TARGET])
            .args(["--features", FEATURES, "--features", &wheel])
            .current_dir(release.root),
    )?;
    let metadata: Value = serde_json::from_str(&text).map_err(|error| error.to_string())?;
    let crates = crates(&metadata)?;
    release.write("THIRD-PARTY.txt", &notices(&crates)?)?;
    let list = bill_of_materials(&release.version, &crates);
    let text = serde_json::to_string_pretty(&list).map_err(|error| error.to_string())?;
    release.write("folio.cdx.json", &(text + "\n"))
}

/// The crates from outside this repository that the programs have in them, by name and version.
fn crates(metadata: &Value) -> Result<Vec<&Value>, String> {
    let nodes = metadata["resolve"]["nodes"].as_array().ok_or("no nodes")?;
    let nodes: BTreeMap<_, _> = nodes
        .iter()
        .filter_map(|node| Some((node["id"].as_str()?, node)))
        .collect();
    let packages = metadata["packages"].as_array().ok_or("no packages")?;
    let programs = ["folio-cli", "folio-bench", "folio-c", "foliofs-python"];
    let mut open: Vec<&str> = packages
        .iter()
        .filter(|package| programs.iter().any(|name| package["name"] == *name))
        .filter_map(|package| package["id"].as_str())
        .collect();
    let mut found = BTreeSet::new();
    while let Some(id) = open.pop() {
        if !found.insert(id) {
            continue;
        }
        let needs = nodes.get(id).and_then(|node| node["deps"].as_array());
        // Neither crates of tests nor of build scripts are in a program.
        let is_part = |need: &&Value| {
            let kinds = need["dep_kinds"].as_array();
            kinds.is_some_and(|kinds| kinds.iter().any(|kind| kind["kind"].is_null()))
        };
        open.extend(
            needs
                .into_iter()
                .flatten()
                .filter(is_part)
                .filter_map(|need| need["pkg"].as_str()),
        );
    }
    let mut crates: Vec<_> = packages
        .iter()
        .filter(|package| !package["source"].is_null())
        .filter(|package| package["id"].as_str().is_some_and(|id| found.contains(id)))
        .collect();
    crates.sort_by_key(|package| (package["name"].as_str(), package["version"].as_str()));
    Ok(crates)
}

/// Name, version, license and the license files of each crate.
fn notices(crates: &[&Value]) -> Result<String, String> {
    let mut text = String::from("Folio's programs and libraries contain these crates.\n");
    for package in crates {
        let field = |name: &str| package[name].as_str().unwrap_or("unknown");
        let line = "=".repeat(80);
        text += &format!(
            "\n{line}\n{} {}\n{}\n{}\n\n",
            field("name"),
            field("version"),
            field("license"),
            field("repository")
        );
        let folder = Path::new(field("manifest_path"))
            .parent()
            .ok_or("a crate without folder")?;
        let mut files: Vec<_> = super::build::files(folder)
            .into_iter()
            .filter(|file| {
                let name = file.file_name().unwrap_or_default().to_string_lossy();
                let name = name.to_uppercase();
                ["LICEN", "COPYING", "NOTICE", "COPYRIGHT"]
                    .iter()
                    .any(|start| name.starts_with(start))
            })
            .collect();
        files.sort();
        for file in files {
            text +=
                &String::from_utf8_lossy(&std::fs::read(&file).map_err(|error| error.to_string())?);
            text += "\n";
        }
    }
    Ok(text)
}

/// CycloneDX 1.5, as JSON.
fn bill_of_materials(version: &str, crates: &[&Value]) -> Value {
    let components = crates.iter().map(|package| {
        let (name, version) = (package["name"].as_str(), package["version"].as_str());
        let reference = format!(
            "pkg:cargo/{}@{}",
            name.unwrap_or_default(),
            version.unwrap_or_default()
        );
        // The older form of "OR".
        let license = package["license"]
            .as_str()
            .map(|text| text.replace('/', " OR "));
        let mut component = json!({
            "type": "library",
            "bom-ref": reference,
            "name": name,
            "version": version,
            "purl": reference,
        });
        if let Some(license) = license {
            component["licenses"] = json!([{ "expression": license }]);
        }
        component
    });
    json!({
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {
            "component": { "type": "application", "bom-ref": "folio", "name": "folio", "version": version }
        },
        "components": components.collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn crates_of_tests_are_left_out() {
        let metadata = json!({
            "packages": [
                {"name": "folio-cli", "id": "cli", "source": null},
                {"name": "b", "id": "b", "version": "1.0.0", "source": "registry", "license": "MIT/Apache-2.0"},
                {"name": "a", "id": "a", "version": "2.0.0", "source": "registry", "license": "MIT"},
                {"name": "judge", "id": "judge", "source": "registry"},
            ],
            "resolve": {"nodes": [
                {"id": "cli", "deps": [
                    {"pkg": "b", "dep_kinds": [{"kind": null}]},
                    {"pkg": "judge", "dep_kinds": [{"kind": "dev"}]},
                ]},
                {"id": "b", "deps": [{"pkg": "a", "dep_kinds": [{"kind": null}]}]},
            ]},
        });
        let crates = crates(&metadata).unwrap();
        let names: Vec<_> = crates
            .iter()
            .map(|package| package["name"].as_str().unwrap())
            .collect();
        assert_eq!(names, ["a", "b"]);
        let list = bill_of_materials("0.1.0", &crates);
        assert_eq!(list["components"][1]["purl"], "pkg:cargo/b@1.0.0");
        assert_eq!(
            list["components"][1]["licenses"][0]["expression"],
            "MIT OR Apache-2.0"
        );
    }
}
