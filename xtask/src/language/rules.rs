//! The rules of plain English that a program can check, each with the words that breach it.

use super::text::{Origin, Run, Word};

/// A rule and the words or phrases that breach it.
const PHRASES: [(&str, &[&str]); 6] = [
    (
        "actor",
        &[
            "who",
            "whom",
            "whoever",
            "whomever",
            "nobody",
            "somebody",
            "anybody",
            "everybody",
            "someone",
            "anyone",
            "everyone",
            "others",
        ],
    ),
    ("tell", &["tell", "tells", "telling", "told", "untold"]),
    (
        "belief",
        &[
            "belief", "beliefs", "believe", "believes", "believed", "doubt", "doubts", "doubted",
            "doubtful",
        ],
    ),
    (
        "release",
        &[
            "let go",
            "lets go",
            "letting go",
            "let it go",
            "let them go",
            "gone",
            "take away",
            "takes away",
            "took away",
            "taken away",
            "taking away",
        ],
    ),
    (
        "place",
        &[
            "lie", "lies", "lay", "lain", "lying", "stand", "stands", "standing", "stood",
        ],
    ),
    (
        "plain",
        &[
            "shall",
            "crew",
            "crews",
            "mend",
            "mends",
            "mended",
            "mending",
            "bear",
            "bears",
            "bore",
            "borne",
            "come to",
            "comes to",
            "came to",
            "make no sense",
            "makes no sense",
            "trouble",
            "troubles",
            "talk",
            "talks",
            "wish",
            "wishes",
            "newborn",
            "newborns",
            "nudge",
            "nudges",
            "nudged",
            "quick walk",
            "quick way",
        ],
    ),
];
/// British spellings: the beginnings of words.
const BRITISH: [&str; 22] = [
    "behaviour",
    "colour",
    "neighbour",
    "licence",
    "favour",
    "honour",
    "centre",
    "catalogue",
    "grey",
    "defence",
    "analyse",
    "artefact",
    "judgement",
    "whilst",
    "amongst",
    "learnt",
    "modelled",
    "modelling",
    "labelled",
    "labelling",
    "travelled",
    "travelling",
];
/// British spellings: the part before "e", "ing" or "ation".
const BRITISH_STEMS: [&str; 17] = [
    "initialis",
    "optimis",
    "unoptimis",
    "minimis",
    "maximis",
    "recognis",
    "organis",
    "realis",
    "normalis",
    "synchronis",
    "utilis",
    "summaris",
    "serialis",
    "specialis",
    "generalis",
    "customis",
    "virtualis",
];
/// First words of a file that give a question where a noun phrase belongs.
const OPENINGS: [&str; 4] = ["What", "Which", "How", "Who"];

/// Returns the breaches within a run of words: line, rule, phrase.
pub(crate) fn words(run: &Run) -> Vec<(usize, &'static str, String)> {
    let mut out = Vec::new();
    for at in 0..run.words.len() {
        let here = &run.words[at..];
        let line = here[0].line;
        if let Some((rule, phrase)) = phrase(here) {
            let is_variable = run.origin == Origin::Name && run.words.len() == 1;
            if !(is_variable && phrase == "others") {
                out.push((line, rule, phrase.to_owned()));
            }
        } else if is_british(&here[0].text) {
            out.push((line, "spelling", here[0].text.clone()));
        } else if let Some(phrase) = is_no(&run.words[..at], here) {
            out.push((line, "no-noun", phrase));
        }
    }
    out
}

fn phrase(here: &[Word]) -> Option<(&'static str, &'static str)> {
    // "Lay out" is the verb of layouts.
    if here[0].text == "lay" && here.get(1).is_some_and(|next| next.text == "out") {
        return None;
    }
    let is_here = |phrase: &str| {
        let mut words = here.iter();
        phrase
            .split(' ')
            .all(|wanted| words.next().is_some_and(|word| word.text == wanted))
    };
    PHRASES.iter().find_map(|(rule, phrases)| {
        let phrase = phrases.iter().find(|phrase| is_here(phrase))?;
        Some((*rule, *phrase))
    })
}

fn is_british(word: &str) -> bool {
    BRITISH.iter().any(|start| word.starts_with(start))
        || BRITISH_STEMS.iter().any(|stem| {
            word.strip_prefix(stem).is_some_and(|rest| {
                rest.starts_with('e') || rest.starts_with("ing") || rest.starts_with("ation")
            })
        })
}

/// "X is no Y" in place of "X is not a Y". "There is no Y" is plain English, and so is "is no
/// longer" or "is no larger than".
fn is_no(before: &[Word], here: &[Word]) -> Option<String> {
    let is_verb = matches!(here[0].text.as_str(), "is" | "are" | "was" | "were" | "be");
    let next = here.get(2)?.text.as_str();
    let is_plain = before.iter().rev().take(2).any(|word| word.text == "there")
        || next.ends_with("er")
        || matches!(
            next,
            "more" | "less" | "better" | "there" | super::text::STOP
        );
    (is_verb && here[1].text == "no" && !is_plain).then(|| format!("{} no {next}", here[0].text))
}

/// Whether a file's first line opens with a question word.
pub(crate) fn is_question(first_line: &str) -> bool {
    let text = first_line.trim_start_matches(['/', '!', '#', ' ']);
    let word = text.split_whitespace().next().unwrap_or("");
    OPENINGS.contains(&word)
}
