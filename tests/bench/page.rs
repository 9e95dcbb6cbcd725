//! The page with charts: whole in one file, drawn in a browser, and nothing is asked for.

use super::bench;
use super::browser::Browser;
use crate::support::requires;
use serde_json::Value;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

fn page(folder: &Path, words: &[&str]) -> PathBuf {
    let page = folder.join("report.html");
    bench(folder, &[words, &["--html", "report.html"]].concat());
    page
}

#[test]
fn a_page_is_one_file_that_replaces_another() {
    use std::os::unix::fs::PermissionsExt;
    let folder = TempDir::new().unwrap();
    std::fs::write(folder.path().join("report.html"), "before").unwrap();
    let page = page(folder.path(), &["memcpy"]);
    let text = std::fs::read_to_string(&page).unwrap();
    assert!(text.starts_with("<!DOCTYPE html>") && text.ends_with("</html>\n"));
    assert!(text.contains("<svg ") && !text.contains("<script") && !text.contains("src="));
    assert!(!text.contains("http:") && !text.contains("https:"));
    let mode = std::fs::metadata(&page).unwrap().permissions().mode();
    assert_eq!(mode & 0o600, 0o600);
    let names: Vec<_> = std::fs::read_dir(folder.path())
        .unwrap()
        .flatten()
        .collect();
    assert_eq!(names.len(), 1, "{names:?}");
}

const CHARTS: &str = r"JSON.stringify([...document.querySelectorAll('svg')].map(svg => {
    const size = element => element.getBoundingClientRect();
    const within = element => {
        const [inner, outer] = [size(element), size(svg)];
        return inner.left >= outer.left - 1 && inner.right <= outer.right + 1
            && inner.top >= outer.top - 1 && inner.bottom <= outer.bottom + 1;
    };
    const texts = [...svg.querySelectorAll('text')];
    return {
        title: svg.querySelector('title').textContent,
        width: size(svg).width,
        height: size(svg).height,
        bars: [...svg.querySelectorAll('rect')].map(bar => size(bar).width * size(bar).height),
        texts: texts.map(text => text.textContent),
        drawn: texts.every(text => size(text).width > 0 && within(text)),
        colors: [...svg.querySelectorAll('rect')].map(bar => getComputedStyle(bar).fill),
    };
}))";

const COLORS: &str = r"JSON.stringify([
    getComputedStyle(document.body).backgroundColor,
    getComputedStyle(document.body).color,
    getComputedStyle(document.querySelector('svg .name')).fill,
])";

/// Luminance of `rgb(r, g, b)`, as WCAG counts it.
fn luminance(color: &str) -> f64 {
    let numbers = color
        .trim_start_matches("rgb(")
        .trim_end_matches(')')
        .split(", ");
    let linear = numbers.map(|number| {
        let part = number.parse::<f64>().unwrap_or_else(|_| panic!("{color}")) / 255.0;
        if part <= 0.04045 {
            part / 12.92
        } else {
            ((part + 0.055) / 1.055).powf(2.4)
        }
    });
    linear
        .zip([0.2126, 0.7152, 0.0722])
        .map(|(part, weight)| part * weight)
        .sum()
}

fn contrast(one: &str, other: &str) -> f64 {
    let (one, other) = (luminance(one) + 0.05, luminance(other) + 0.05);
    one.max(other) / one.min(other)
}

#[test]
fn charts_are_drawn_and_nothing_is_asked_for() {
    requires!(tool("chromium"));
    let folder = TempDir::new().unwrap();
    let page = page(folder.path(), &["memcpy"]);
    let mut browser = Browser::start();
    let url = browser.open(&page);
    let charts = browser.evaluate(CHARTS);
    let charts = charts.as_array().expect("charts");
    // Four jobs, and two published figures.
    assert_eq!(charts.len(), 6);
    for chart in charts {
        let [width, height] = ["width", "height"].map(|key| chart[key].as_f64().expect("a size"));
        assert!(width > 250.0 && height > 50.0, "{chart}");
        assert!(
            chart["title"]
                .as_str()
                .is_some_and(|title| !title.is_empty()),
            "{chart}"
        );
        assert_eq!(chart["drawn"], true, "{chart}");
        let bars = chart["bars"].as_array().expect("bars");
        assert!(
            bars.len() > 1 && bars.iter().all(|area| area.as_f64() > Some(0.0)),
            "{chart}"
        );
        assert!(
            chart["texts"]
                .as_array()
                .is_some_and(|texts| texts.len() > bars.len()),
            "{chart}"
        );
    }
    let published = |chart: &&Value| {
        chart["texts"]
            .as_array()
            .is_some_and(|texts| texts.contains(&Value::from("published")))
    };
    assert_eq!(charts.iter().filter(published).count(), 2);
    let light = browser.evaluate(COLORS);
    browser.turn_dark();
    let dark = browser.evaluate(COLORS);
    assert_ne!(light[0], dark[0]);
    for colors in [light, dark] {
        let [back, text, label] =
            [0, 1, 2].map(|at| colors[at].as_str().expect("a color").to_owned());
        assert!(
            contrast(&back, &text) > 7.0 && contrast(&back, &label) > 7.0,
            "{back} {text} {label}"
        );
    }
    assert_eq!(browser.requests, [url]);
}

const PHONE: &str = r"JSON.stringify({
    width: innerWidth,
    scrolled: document.documentElement.scrollWidth,
    cut: [...document.querySelectorAll('h1, h2, h3, p, li, figure, figcaption, svg, svg text')]
        .filter(element => element.getBoundingClientRect().right > innerWidth + 0.5
            || element.getBoundingClientRect().left < -0.5)
        .map(element => element.outerHTML.slice(0, 200)),
    small: [...document.querySelectorAll('svg .name, svg .figure')]
        .filter(text => text.getBoundingClientRect().height < 11)
        .map(text => text.textContent),
    overlapping: [...document.querySelectorAll('svg g')]
        .filter(bar => bar.querySelector('.name').getBoundingClientRect().right
            > bar.querySelector('.figure').getBoundingClientRect().left)
        .map(bar => bar.textContent),
    figures: document.querySelectorAll('svg .figure').length,
    bars: document.querySelectorAll('svg rect').length,
    summaries: document.querySelectorAll('.summary li').length,
})";

/// At the width of a phone, nothing is cut, and every bar has its name and its figure.
#[test]
fn page_fits_a_phone() {
    requires!(tool("chromium"));
    let folder = TempDir::new().unwrap();
    let page = page(folder.path(), &["memcpy"]);
    let mut browser = Browser::start();
    browser.resize(390, 844);
    browser.open(&page);
    let seen = browser.evaluate(PHONE);
    assert_eq!(
        (&seen["width"], &seen["scrolled"]),
        (&390.into(), &390.into())
    );
    for key in ["cut", "small", "overlapping"] {
        assert_eq!(seen[key], Value::Array(Vec::new()), "{key}");
    }
    assert_eq!(seen["figures"], seen["bars"]);
    assert_eq!(seen["summaries"], 1);
}
