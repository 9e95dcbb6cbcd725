//! The verdict on a layer: fault, fine, note or unknown.

use crate::cure::{Cure, Trial};
use serde::Serialize;
use serde_json::Value;

/// How sure a fault is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum Certainty {
    /// Something points to it; other causes would look the same.
    Hint,
    /// Counted, but one step was inferred.
    Likely,
    /// Counted.
    Certain,
}

/// What is known of one thing that was looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum Verdict {
    /// It makes the file slow.
    Fault,
    /// It does not.
    Fine,
    /// Worth knowing, no fault.
    Note,
    /// It could not be found out.
    Unknown,
}

/// One thing that was looked at.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[cfg_attr(feature = "schema", schemars(extend(
    "if" = {"properties": {"verdict": {"const": "fault"}}},
    "then" = {
        "required": ["certainty"],
        "properties": {"evidence": {"minLength": 1}, "remedies": {"minItems": 1}},
    },
    "else" = {"not": {"required": ["certainty"]}},
)))]
pub struct Check {
    /// The layer: `attributes`, `page-cache`, `memory`, `copy`, `file-system`, `blocks`, `image` or
    /// `device`.
    #[cfg_attr(feature = "schema", schemars(extend("enum" = [
        "attributes", "page-cache", "copy", "memory", "file-system", "blocks", "image", "device",
    ])))]
    pub layer: &'static str,
    /// What was looked for, a word that stays: `page-cache-bypassed`.
    #[cfg_attr(feature = "schema", schemars(extend("enum" = [
        "attributes-not-trusted", "attributes-trusted-briefly", "page-cache-bypassed",
        "dropped-at-open", "cold", "slow-copy", "evicted", "larger-than-memory",
        "no-delayed-allocation", "flush-on-truncate", "flush-on-rename", "sparse", "unwritten",
        "fragmented", "compressed", "shared", "clusters-not-allocated", "backing-chain",
        "device-limit", "allocates-at-first-write", "fsync-waits", "synchronous-writes",
        "write-waits", "lock-waits", "tiny-buffers", "names-not-cached",
    ])))]
    pub cause: &'static str,
    /// What was found.
    pub verdict: Verdict,
    /// How sure a fault is; absent for anything else.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub certainty: Option<Certainty>,
    /// One sentence: the cause, what is well, or why it is unknown.
    #[cfg_attr(feature = "schema", schemars(length(min = 1)))]
    pub says: String,
    /// What it rests on, with numbers; empty where nothing could be counted.
    pub evidence: String,
    /// The numbers of the evidence; only those that are known.
    #[cfg_attr(feature = "schema", schemars(extend(
        "additionalProperties" = {"type": ["number", "string"]}
    )))]
    pub numbers: serde_json::Map<String, Value>,
    /// Commands that fix it.
    #[cfg_attr(feature = "schema", schemars(inner(length(min = 1))))]
    pub remedies: Vec<String>,
    /// What a trial of the cure found, with `--try`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trial: Option<Trial>,
    /// What a trial changes.
    #[serde(skip)]
    pub cure: Option<Cure>,
}

impl Check {
    fn new(
        layer: &'static str,
        cause: &'static str,
        verdict: Verdict,
        says: impl Into<String>,
    ) -> Self {
        Self {
            layer,
            cause,
            verdict,
            certainty: None,
            says: says.into(),
            evidence: String::new(),
            numbers: serde_json::Map::new(),
            remedies: Vec::new(),
            trial: None,
            cure: None,
        }
    }

    /// It makes the file slow.
    pub(crate) fn fault(
        layer: &'static str,
        cause: &'static str,
        certainty: Certainty,
        says: impl Into<String>,
    ) -> Self {
        Self {
            certainty: Some(certainty),
            ..Self::new(layer, cause, Verdict::Fault, says)
        }
    }

    /// It does not make the file slow.
    pub(crate) fn fine(layer: &'static str, cause: &'static str, says: impl Into<String>) -> Self {
        Self::new(layer, cause, Verdict::Fine, says)
    }

    /// Worth knowing.
    pub(crate) fn note(layer: &'static str, cause: &'static str, says: impl Into<String>) -> Self {
        Self::new(layer, cause, Verdict::Note, says)
    }

    /// It could not be found out, for this reason.
    pub(crate) fn unknown(
        layer: &'static str,
        cause: &'static str,
        why: impl Into<String>,
    ) -> Self {
        Self::new(layer, cause, Verdict::Unknown, why)
    }

    /// As a note, if it is a fault.
    pub(crate) fn into_note(mut self) -> Self {
        if self.verdict == Verdict::Fault {
            self.verdict = Verdict::Note;
            self.certainty = None;
        }
        self
    }

    /// With what it rests on.
    pub(crate) fn with_evidence(mut self, text: impl Into<String>) -> Self {
        self.evidence = text.into();
        self
    }

    /// With a number of the evidence.
    pub(crate) fn with(mut self, name: &str, number: impl Into<Value>) -> Self {
        self.numbers.insert(name.to_owned(), number.into());
        self
    }

    /// Adds a command that fixes it.
    pub(crate) fn with_remedy(mut self, command: impl Into<String>) -> Self {
        self.remedies.push(command.into());
        self
    }
}
