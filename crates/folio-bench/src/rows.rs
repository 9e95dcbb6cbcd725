//! Rows of a report: the figures of one contender at one job, their unit, their spread and the
//! evidence for them.

use folio_pagecache::median;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// What figures count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) enum Unit {
    /// Seconds.
    #[serde(rename = "s")]
    Seconds,
    /// MiB per second.
    #[serde(rename = "MiB/s")]
    MibPerSecond,
    /// Operations per second.
    #[serde(rename = "/s")]
    PerSecond,
    /// Of all, from 0 to 1.
    #[serde(rename = "share")]
    Share,
    /// A multiple of another figure.
    #[serde(rename = "times")]
    Times,
    /// FUSE requests for each operation.
    #[serde(rename = "requests")]
    Requests,
}

/// One contender at one job.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Row {
    /// The job.
    pub(crate) job: String,
    /// Name of the contender.
    pub(crate) contender: String,
    /// Median of the rounds, in the table's unit.
    pub(crate) median: f64,
    /// Minimum of the rounds.
    pub(crate) least: f64,
    /// Maximum of the rounds.
    pub(crate) most: f64,
    /// The figure of each round.
    pub(crate) rounds: Vec<f64>,
    /// The median divided by the base's; null without a base.
    #[serde(default)]
    pub(crate) ratio: Option<f64>,
    /// What the figure measures, if not what its job says, such as the speed of memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) label: Option<String>,
    /// Other measurements, medians of the rounds; absent if not measured.
    #[serde(default)]
    pub(crate) evidence: Evidence,
    /// FUSE requests per operation of the job, by FUSE operation; absent if not counted.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) requests: BTreeMap<String, f64>,
}

/// Evidence collected beside the clock; medians of the rounds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Evidence {
    /// Share of the files' bytes in the kernel's page cache before the measurement.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) cached_before: Option<f64>,
    /// The same after the measurement.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) cached_after: Option<f64>,
    /// Bytes from devices, as the kernel counts them for the process.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) device_read_bytes: Option<f64>,
    /// Bytes to devices; counted when a page becomes dirty.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) device_written_bytes: Option<f64>,
    /// User and system seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) cpu_seconds: Option<f64>,
    /// Largest resident set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) resident_kib: Option<f64>,
    /// Voluntary context switches for each operation: waits for another thread or process.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) switches: Option<f64>,
    /// Seeks of a modeled disk's head.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) seeks: Option<f64>,
    /// Requests to an object store.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) requests: Option<f64>,
    /// The longest chain of requests that waited for one another.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) requests_in_sequence: Option<f64>,
    /// Bytes that the store sent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) received_bytes: Option<f64>,
}

/// One measurement.
#[derive(Debug, Clone, Default)]
pub(crate) struct Sample {
    pub(crate) value: f64,
    pub(crate) evidence: Evidence,
    /// What the figure is, where it is not what its job says.
    pub(crate) label: Option<&'static str>,
    /// FUSE requests for each operation of the job, by their own operation.
    pub(crate) requests: BTreeMap<String, f64>,
}

impl Sample {
    /// Returns a figure without evidence.
    pub(crate) fn of(value: f64) -> Self {
        Self {
            value,
            ..Self::default()
        }
    }

    /// Adds what was seen beside the clock.
    pub(crate) fn with(self, evidence: Evidence) -> Self {
        Self { evidence, ..self }
    }

    /// Adds a label.
    pub(crate) fn labeled(self, label: Option<&'static str>) -> Self {
        Self { label, ..self }
    }

    /// Converts the figure.
    pub(crate) fn map(self, convert: impl FnOnce(f64) -> f64) -> Self {
        Self {
            value: convert(self.value),
            ..self
        }
    }
}

impl Unit {
    /// Whether more is better.
    pub(crate) fn is_rate(self) -> bool {
        matches!(self, Self::MibPerSecond | Self::PerSecond | Self::Share)
    }

    /// What its figures are, and which are good.
    pub(crate) fn words(self) -> &'static str {
        match self {
            Self::Seconds => "time, less is better",
            Self::MibPerSecond => "MiB/s, more is better",
            Self::PerSecond => "a second, more is better",
            Self::Share => "share of all, more is better",
            Self::Times => "times, less is better",
            Self::Requests => "requests for each operation, less is better",
        }
    }

    /// Formats a figure with its unit, in about three digits.
    pub(crate) fn figure(self, value: f64) -> String {
        let digits = |value: f64| match value.abs() {
            value if value >= 100.0 => 0,
            value if value >= 10.0 => 1,
            _ => 2,
        };
        if value == 0.0 {
            return "0".to_owned();
        }
        let (value, unit) = match self {
            Self::Seconds => match value.abs() {
                size if size >= 1.0 => (value, " s"),
                size if size >= 1e-3 => (value * 1e3, " ms"),
                size if size >= 1e-6 => (value * 1e6, " us"),
                _ => (value * 1e9, " ns"),
            },
            Self::MibPerSecond => (value, " MiB/s"),
            Self::PerSecond => (value, "/s"),
            Self::Share => return significant(value, 3),
            Self::Times if value.abs() < 0.1 => return format!("{} times", ratio(value)),
            Self::Times => (value, " times"),
            Self::Requests => return significant(value, 2),
        };
        format!("{value:.digits$}{unit}", digits = digits(value))
    }
}

/// Formats a ratio: two decimals, and more where these would hide the figure.
pub(crate) fn ratio(value: f64) -> String {
    significant(value, 2)
}

/// Formats with so many decimals, or as many as show two digits of a small number.
fn significant(value: f64, decimals: usize) -> String {
    let size = value.abs();
    if !size.is_finite() || size == 0.0 {
        return format!("{value:.decimals$}");
    }
    let needed = (1.0 - size.log10().floor()).clamp(0.0, 12.0) as usize;
    // The last decimal alone is not enough: 0.01 may be 0.006.
    let least = 10.0_f64.powi(1 - decimals as i32);
    let decimals = if size < least { needed } else { decimals };
    format!("{value:.decimals$}")
}

impl Row {
    /// Returns a row with the median and spread of rounds.
    pub(crate) fn new(
        job: impl Into<String>,
        contender: impl Into<String>,
        rounds: Vec<f64>,
    ) -> Self {
        let bound = |most: fn(f64, f64) -> f64| rounds.iter().copied().reduce(most).unwrap_or(0.0);
        let (least, most) = (bound(f64::min), bound(f64::max));
        Self {
            job: job.into(),
            contender: contender.into(),
            median: median(rounds.clone()),
            least,
            most,
            rounds,
            ratio: None,
            label: None,
            evidence: Evidence::default(),
            requests: BTreeMap::new(),
        }
    }

    /// Returns what was seen beside the clock, in words.
    pub(crate) fn seen(&self) -> String {
        let label = self.label.iter().map(|label| format!("[{label}]"));
        let mut requests: Vec<_> = self.requests.iter().collect();
        requests.sort_by(|left, right| right.1.total_cmp(left.1));
        let requests: Vec<String> = requests
            .into_iter()
            .map(|(name, count)| format!("{name} {}", ratio(*count)))
            .collect();
        let words: Vec<String> = label
            .chain([self.evidence.words(), requests.join(", ")])
            .filter(|words| !words.is_empty())
            .collect();
        words.join(" ")
    }

    /// Returns the row of measurements with evidence.
    pub(crate) fn of_samples(job: &str, contender: &str, samples: &[Sample]) -> Self {
        let mut row = Self::new(
            job,
            contender,
            samples.iter().map(|sample| sample.value).collect(),
        );
        row.evidence = Evidence::middle(samples);
        row.label = samples
            .iter()
            .find_map(|sample| sample.label)
            .map(str::to_owned);
        let names: BTreeSet<&String> = samples.iter().flat_map(|one| one.requests.keys()).collect();
        for name in names {
            let counts = samples.iter().map(|sample| sample.requests.get(name));
            let counts = counts.map(|count| count.copied().unwrap_or(0.0)).collect();
            row.requests.insert(name.clone(), median(counts));
        }
        row
    }
}

impl Evidence {
    /// Returns the medians of the rounds' evidence.
    fn middle(samples: &[Sample]) -> Self {
        let of = |field: fn(&Self) -> Option<f64>| {
            let seen: Vec<f64> = samples
                .iter()
                .filter_map(|sample| field(&sample.evidence))
                .collect();
            (!seen.is_empty()).then(|| median(seen))
        };
        Self {
            cached_before: of(|seen| seen.cached_before),
            cached_after: of(|seen| seen.cached_after),
            device_read_bytes: of(|seen| seen.device_read_bytes),
            device_written_bytes: of(|seen| seen.device_written_bytes),
            cpu_seconds: of(|seen| seen.cpu_seconds),
            resident_kib: samples
                .iter()
                .filter_map(|sample| sample.evidence.resident_kib)
                .reduce(f64::max),
            switches: of(|seen| seen.switches),
            seeks: of(|seen| seen.seeks),
            requests: of(|seen| seen.requests),
            requests_in_sequence: of(|seen| seen.requests_in_sequence),
            received_bytes: of(|seen| seen.received_bytes),
        }
    }

    /// Returns the evidence in words; empty if there is none.
    pub(crate) fn words(&self) -> String {
        let percent = |share: f64| format!("{:.0} %", share * 100.0);
        let mib = |bytes: f64| format!("{:.1} MiB", bytes / f64::from(1 << 20));
        let cached = [self.cached_before, self.cached_after].map(|share| share.map(percent));
        let cached = match cached {
            [Some(before), Some(after)] => Some(format!("cached {before} before, {after} after")),
            [share, None] | [None, share] => share.map(|share| format!("cached {share}")),
        };
        let cpu = self
            .cpu_seconds
            .map(|seconds| Unit::Seconds.figure(seconds));
        let words = [
            cached,
            self.device_read_bytes
                .map(|bytes| mib(bytes) + " from the device"),
            self.device_written_bytes
                .map(|bytes| mib(bytes) + " to the device"),
            cpu.map(|time| format!("cpu {time}")),
            self.resident_kib
                .map(|kib| format!("{:.0} MiB resident", kib / 1024.0)),
            self.seeks.map(|count| format!("{count:.0} seeks")),
            self.requests.map(|count| ratio(count) + " requests"),
            self.requests_in_sequence
                .map(|count| ratio(count) + " in sequence"),
            self.received_bytes.map(|bytes| mib(bytes) + " received"),
            self.switches
                .map(|count| format!("{count:.1} switches each")),
        ];
        let words: Vec<String> = words.into_iter().flatten().collect();
        words.join(", ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_ratios_keep_two_digits() {
        let texts = [0.0, 0.0023, 0.046, 0.123, 1.0, 12.345, -0.004].map(ratio);
        assert_eq!(
            texts,
            [
                "0.00", "0.0023", "0.046", "0.12", "1.00", "12.35", "-0.0040"
            ]
        );
        assert_eq!(ratio(f64::INFINITY), "inf");
    }
}
