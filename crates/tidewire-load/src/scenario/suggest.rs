//! The known key a mistyped one most likely stands for.
//!
//! Optimal string alignment distance: insertions, deletions, substitutions and swaps of neighbours cost one each.

use strsim::osa_distance;

/// The known key nearest to `key`, if fewer than half of its letters would have to change, or if only its unit is
/// missing.
pub fn nearest_key<'k>(key: &str, known: &[&'k str]) -> Option<&'k str> {
    let key: String = key.chars().take(LETTERS_MAX).collect();
    let key = key.to_lowercase();
    known
        .iter()
        .map(|candidate| (osa_distance(&key, candidate), *candidate))
        .filter(|(distance, candidate)| {
            let rest = candidate.strip_prefix(&key);
            let is_cut = !key.is_empty() && rest.is_some_and(|rest| rest.starts_with('_'));
            is_cut || distance * 2 < candidate.chars().count()
        })
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

/// Longer keys resemble nothing; this bounds the work a hostile file can cause.
const LETTERS_MAX: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    const KNOWN: &[&str] = &["name", "concurrency", "duration_secs", "think_time_ms"];

    #[test]
    fn typing_mistakes_find_their_key() {
        assert_eq!(nearest_key("concurency", KNOWN), Some("concurrency"));
        assert_eq!(nearest_key("Duration_Sec", KNOWN), Some("duration_secs"));
        assert_eq!(nearest_key("nmae", KNOWN), Some("name"));
        assert_eq!(nearest_key("think_time", KNOWN), Some("think_time_ms"));
        let limits = ["p50_ms", "p99_ms", "p999_ms"];
        assert_eq!(nearest_key("p99", &limits), Some("p99_ms"));
    }

    #[test]
    fn a_strange_key_resembles_nothing() {
        assert_eq!(nearest_key("colour", KNOWN), None);
        assert_eq!(nearest_key("", KNOWN), None);
        assert_eq!(nearest_key(&"x".repeat(100_000), KNOWN), None);
    }
}
