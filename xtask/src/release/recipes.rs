//! Tests of the recipes in contrib: version, license, features and files are those of the Debian
//! packages.

use super::build::{FEATURES, SONAME, files};
use super::debian::{
    COMPLETIONS, HEADER, LINKED_NAME, MOUNT_HELPERS, PACKAGES, PKG_CONFIG, STATIC_LIBRARY, UNITS,
};
use crate::repository;
use std::collections::BTreeMap;

fn read(path: &str) -> String {
    std::fs::read_to_string(repository::root().join(path)).unwrap()
}

/// A key of the workspace's Cargo.toml.
fn workspace(key: &str) -> String {
    let text = read("Cargo.toml");
    let start = format!("{key} = \"");
    let value = text.lines().find_map(|line| line.strip_prefix(&start));
    value.unwrap().trim_end_matches('"').to_owned()
}

/// Checks that a recipe has each of these texts.
#[track_caller]
fn assert_has(recipe: &str, texts: &[&str]) {
    for text in texts {
        assert!(recipe.contains(text), "no {text:?} in:\n{recipe}");
    }
}

/// Returns the text of a recipe without comments.
fn recipe(path: &str) -> String {
    let text = read(path);
    let lines = text.lines().filter(|line| !line.trim().starts_with('#'));
    lines.flat_map(|line| [line, "\n"]).collect()
}

/// Returns the last part of a path.
fn file_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap()
}

/// Packages, and the names of their files.
type Files = BTreeMap<String, Vec<String>>;

/// The files of each package in a spec, without their folders: `%files -n NAME`, `%files SUFFIX`.
fn spec_files(spec: &str) -> Files {
    let mut out = BTreeMap::new();
    for section in spec.split("\n%files").skip(1) {
        let (name, lines) = section.split_once('\n').unwrap();
        let package = match name.trim() {
            "" => "folio".to_owned(),
            name => name
                .strip_prefix("-n ")
                .map_or_else(|| format!("folio-{name}"), str::to_owned),
        };
        let paths = lines.lines().filter(|line| line.starts_with("%{_"));
        let mut names: Vec<_> = paths.map(|path| file_name(path).to_owned()).collect();
        names.sort();
        out.insert(package, names);
    }
    out
}

/// The files of the Debian packages, by the names that packages have in RPM.
fn debian_files() -> Files {
    let units = files(&repository::root().join(UNITS));
    let units = units.iter().map(|unit| file_name(unit.to_str().unwrap()));
    let completions = COMPLETIONS.map(|(_, file)| file_name(file));
    let helpers = MOUNT_HELPERS.map(file_name);
    let command = ["folio", "folio*.1*"].into_iter().chain(helpers);
    let shared = format!("{SONAME}*");
    let development = [HEADER, LINKED_NAME, STATIC_LIBRARY, PKG_CONFIG].map(file_name);
    PACKAGES
        .iter()
        .map(|(name, ..)| {
            let (name, mut names): (_, Vec<_>) = match *name {
                "folio" => (
                    "folio",
                    command
                        .clone()
                        .chain(completions)
                        .chain(units.clone())
                        .collect(),
                ),
                "libfolio0" => ("libfolio", vec![&shared]),
                "libfolio-dev" => ("libfolio-devel", development.to_vec()),
                program => (program, vec![program]),
            };
            names.sort();
            (
                name.to_owned(),
                names.into_iter().map(str::to_owned).collect(),
            )
        })
        .collect()
}

#[test]
fn rpm_spec_has_the_files_of_the_debian_packages() {
    let spec = recipe("contrib/rpm/folio.spec");
    let field = |name: &str| {
        let line = spec.lines().find_map(|line| line.strip_prefix(name));
        line.unwrap().trim().to_owned()
    };
    assert_eq!(field("Version:"), workspace("version"));
    assert_eq!(field("License:"), workspace("license"));
    assert_has(&spec, &[&format!("--features {FEATURES}\n")]);
    let rust = format!("cargo >= {}\n", workspace("rust-version"));
    assert_has(&spec, &[&rust]);
    assert_eq!(spec_files(&spec), debian_files());
}

#[test]
fn nix_recipe_installs_what_debian_has() {
    let nix = recipe("contrib/nix/package.nix");
    assert_has(&nix, &[&format!("version = \"{}\";", workspace("version"))]);
    assert_eq!(workspace("license"), "MIT OR Apache-2.0");
    assert_has(&nix, &["licenses; [\n      mit\n      asl20\n    ];"]);
    let features = FEATURES.replace(',', "\"\n    \"");
    assert_has(
        &nix,
        &[&format!("buildFeatures = [\n    \"{features}\"\n  ];")],
    );
    for (shell, _) in COMPLETIONS {
        assert_has(
            &nix,
            &[&format!("--{shell} <($out/bin/folio completions {shell})")],
        );
    }
    let units = format!("{UNITS}/*.service");
    for helper in MOUNT_HELPERS {
        assert_has(&nix, &[&format!("$out/bin/{}\n", file_name(helper))]);
    }
    assert_has(&nix, &[&units, "folio man --dir", "cargo cinstall"]);
}

/// Without the units and the helper of mount(8): neither systemd nor mount(8) looks in Homebrew's
/// folders.
#[test]
fn homebrew_formula_installs_what_debian_has() {
    let formula = recipe("contrib/homebrew/folio.rb");
    let source = format!("/folio-{}.tar.gz\"\n", workspace("version"));
    let license = workspace("license").replace(" OR ", "\", \"");
    assert_has(&formula, &[&source, &format!("any_of: [\"{license}\"]")]);
    for package in FEATURES.split(',') {
        let (package, features) = package.split_once('/').unwrap();
        let build = format!("path: \"crates/{package}\", features: \"{features}\"");
        assert_has(&formula, &[&build]);
    }
    let completions = "generate_completions_from_executable(bin/\"folio\", \"completions\")";
    assert_has(
        &formula,
        &[completions, "\"man\", \"--dir\", man1", "\"cinstall\""],
    );
}

#[test]
fn recipes_of_sources_name_the_version() {
    let archive = format!("folio-{}.tar.gz", workspace("version"));
    for path in ["contrib/rpm/folio.spec", "contrib/homebrew/folio.rb"] {
        assert_has(&read(path), &[&archive]);
    }
}
