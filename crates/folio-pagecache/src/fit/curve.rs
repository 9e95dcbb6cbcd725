//! The curve of memory and misses, and the memory need that follows from it.

use super::report::{Need, Point};

/// The points in the order of memory, with misses that never rise with memory: neighbors that do
/// are replaced by their mean, weighted by time.
pub(super) fn monotone(points: &[Point]) -> Vec<Point> {
    let mut sorted = points.to_vec();
    sorted.sort_by_key(|point| point.cache_bytes);
    let mut out: Vec<Point> = Vec::new();
    for mut point in sorted {
        while let Some(last) = out.pop_if(|last| last.misses_per_s <= point.misses_per_s) {
            point = merged(&last, &point);
        }
        out.push(point);
    }
    out
}

fn merged(a: &Point, b: &Point) -> Point {
    let seconds = a.seconds + b.seconds;
    let mean = |x: f64, y: f64| (x * a.seconds + y * b.seconds) / seconds;
    Point {
        cache_bytes: mean(a.cache_bytes as f64, b.cache_bytes as f64) as u64,
        misses_per_s: mean(a.misses_per_s, b.misses_per_s),
        stalled_percent: mean(a.stalled_percent, b.stalled_percent),
        seconds,
    }
}

/// Returns the smallest memory at which the misses stay at or below `limit_per_s`.
pub(super) fn need(points: &[Point], limit_per_s: f64) -> Need {
    let curve = monotone(points);
    let Some(at) = curve
        .iter()
        .position(|point| point.misses_per_s <= limit_per_s)
    else {
        return curve
            .last()
            .map_or(Need::Unknown, |last| Need::MoreThan(last.cache_bytes));
    };
    let Some(below) = at.checked_sub(1) else {
        return Need::AtMost(curve[at].cache_bytes);
    };
    // Straight in the logarithm of the misses; less than one per second counts as one.
    let log = |misses: f64| misses.max(1.0).min(limit_per_s.max(misses)).ln();
    let (few, many) = (&curve[at], &curve[below]);
    let (low, high) = (log(few.misses_per_s), log(many.misses_per_s));
    let share = if high > low {
        ((high - log(limit_per_s)) / (high - low)).clamp(0.0, 1.0)
    } else {
        1.0
    };
    let width = (few.cache_bytes - many.cache_bytes) as f64;
    Need::About(many.cache_bytes + (width * share).round() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(cache_bytes: u64, misses_per_s: f64) -> Point {
        Point {
            cache_bytes,
            misses_per_s,
            stalled_percent: 0.0,
            seconds: 1.0,
        }
    }

    #[test]
    fn need_between_neighbors_is_interpolated() {
        let points = [point(100, 10.0), point(300, 0.0), point(200, 1000.0)];
        let Need::About(bytes) = need(&points, 100.0) else {
            panic!("between two points");
        };
        assert!((150..300).contains(&bytes), "{bytes}");
        let points = [point(400, 10.0), point(200, 1000.0)];
        assert_eq!(need(&points, 100.0), Need::About(300));
    }

    #[test]
    fn need_outside_of_curve_is_a_bound() {
        let points = [point(200, 5.0), point(100, 50.0)];
        assert_eq!(need(&points, 50.0), Need::AtMost(100));
        assert_eq!(need(&points, 1.0), Need::MoreThan(200));
        assert_eq!(need(&[], 1.0), Need::Unknown);
    }

    #[test]
    fn rising_neighbors_become_their_mean() {
        let points = [point(100, 50.0), point(200, 10.0), point(300, 20.0)];
        let curve = monotone(&points);
        assert_eq!(curve, [point(100, 50.0), merged(&points[1], &points[2])]);
        assert!((curve[1].misses_per_s - 15.0).abs() < 1e-9);
        assert_eq!(curve[1].cache_bytes, 250);
    }
}
