//! The known key a mistyped one most likely stands for.
//!
//! Optimal string alignment distance: insertions, deletions, substitutions and swaps of neighbours cost one
//! each. Keys are short and few, so the plain quadratic table is enough.

/// The known key nearest to `key`, if fewer than half of its letters would have to change.
pub(super) fn nearest(key: &str, known: &[&'static str]) -> Option<&'static str> {
    let key = key.to_lowercase();
    known
        .iter()
        .map(|candidate| (distance(&key, candidate), *candidate))
        .filter(|(distance, candidate)| distance * 2 < candidate.chars().count())
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

fn distance(left: &str, right: &str) -> usize {
    let left: Vec<char> = left.chars().take(LETTERS_MAX).collect();
    let right: Vec<char> = right.chars().collect();
    let mut before_last: Vec<usize> = Vec::new();
    let mut last: Vec<usize> = (0..=right.len()).collect();
    for (row, &letter) in left.iter().enumerate() {
        let mut current = vec![row + 1];
        for (column, &other) in right.iter().enumerate() {
            let substituted = last[column] + usize::from(letter != other);
            let mut best = substituted
                .min(last[column + 1] + 1)
                .min(current[column] + 1);
            let swapped =
                row > 0 && column > 0 && letter == right[column - 1] && left[row - 1] == other;
            if swapped {
                best = best.min(before_last[column - 1] + 1);
            }
            current.push(best);
        }
        before_last = std::mem::replace(&mut last, current);
    }
    last[right.len()]
}

/// Longer keys resemble nothing; this bounds the work a hostile file can cause.
const LETTERS_MAX: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    const KNOWN: &[&str] = &["name", "concurrency", "duration_secs", "think_time_ms"];

    #[test]
    fn typing_mistakes_find_their_key() {
        assert_eq!(nearest("concurency", KNOWN), Some("concurrency"));
        assert_eq!(nearest("Duration_Sec", KNOWN), Some("duration_secs"));
        assert_eq!(nearest("nmae", KNOWN), Some("name"));
        assert_eq!(nearest("think_time", KNOWN), Some("think_time_ms"));
    }

    #[test]
    fn a_strange_key_resembles_nothing() {
        assert_eq!(nearest("colour", KNOWN), None);
        assert_eq!(nearest("", KNOWN), None);
        assert_eq!(nearest(&"x".repeat(100_000), KNOWN), None);
    }

    #[test]
    fn distances_are_those_of_the_textbook() {
        assert_eq!(distance("kitten", "sitting"), 3);
        assert_eq!(distance("ab", "ba"), 1);
        assert_eq!(distance("", "abc"), 3);
        assert_eq!(distance("same", "same"), 0);
    }
}
