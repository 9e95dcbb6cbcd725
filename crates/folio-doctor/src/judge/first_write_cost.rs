//! The cost of first writes beside writes in place.

use crate::finding::{Certainty, Check};
use crate::text::round;
use folio_pagecache::median;

/// Why nothing is concluded from times that differ from place to place.
pub(super) const VARIES: &str = "whether that is slow varies: try again on a quiet machine";

/// What first writes cost beside writes in place, where it was tried.
pub(super) struct FirstWriteCost {
    /// Medians.
    first_us: f64,
    again_us: f64,
    /// Places at which the first write was slow, and all.
    slow: usize,
    places: usize,
    slow_factor: f64,
}

impl FirstWriteCost {
    /// Sums up pairs of times in nanoseconds: of a first write, and of one in place. A first write
    /// is slow if it takes `slow_factor` times what one in place takes.
    pub(super) fn of(
        pairs: impl Iterator<Item = (u64, u64)> + Clone,
        slow_factor: f64,
    ) -> Option<Self> {
        let times_us = |time: fn((u64, u64)) -> u64| {
            let times: Vec<f64> = pairs
                .clone()
                .map(|pair| time(pair) as f64 / 1000.0)
                .collect();
            (!times.is_empty()).then(|| round(median(times), 0))
        };
        let is_slow =
            |&(first, again): &(u64, u64)| first as f64 >= slow_factor * again.max(1000) as f64;
        Some(Self {
            first_us: times_us(|(first, _)| first)?,
            again_us: times_us(|(_, again)| again)?,
            slow: pairs.clone().filter(is_slow).count(),
            places: pairs.count(),
            slow_factor,
        })
    }

    /// Returns a fault if first writes are slow at nearly all places, a note if they are at few
    /// ones, or were not tried; else it is unknown.
    pub(super) fn judge(
        cost: Option<&Self>,
        layer: &'static str,
        cause: &'static str,
        says: &str,
        evidence: String,
    ) -> Check {
        let Some(cost) = cost else {
            let evidence = format!("{evidence}; --write-probe measures what that costs");
            return Check::note(layer, cause, says).with_evidence(evidence);
        };
        let check = if cost.is_expensive() {
            Check::fault(layer, cause, Certainty::Likely, says)
        } else if cost.is_cheap() {
            Check::note(layer, cause, says)
        } else {
            Check::unknown(layer, cause, format!("{says}; {VARIES}"))
        };
        cost.add_to(
            check,
            &format!("{evidence}; beside it 4 KiB with fdatasync"),
        )
    }

    /// Whether first writes are slow at nearly all places.
    pub(super) fn is_expensive(&self) -> bool {
        self.slow * 4 >= self.places * 3
    }

    /// Returns how many times the time of a write in place a first write takes.
    pub(super) fn ratio(&self) -> f64 {
        self.first_us / self.again_us.max(1.0)
    }

    /// Whether first writes are slow at few places or none.
    pub(super) fn is_cheap(&self) -> bool {
        self.slow * 4 <= self.places
    }

    /// Adds the times to a check, as evidence that begins with what was written.
    pub(super) fn add_to(&self, check: Check, written: &str) -> Check {
        let evidence = format!(
            "{written} took {} us the first time, {} us again (medians), \
             at least {} times as long at {} of {} places",
            self.first_us, self.again_us, self.slow_factor, self.slow, self.places
        );
        check
            .with_evidence(evidence)
            .with("first_write_us", self.first_us)
            .with("rewrite_us", self.again_us)
            .with("slow_places", self.slow)
            .with("places", self.places)
    }
}
