//! The expression of limits, `p99<5ms,loss<0.01%`, and where it is wrong.

use std::str::FromStr;

use thiserror::Error;

use super::{Objective, Slo};

impl FromStr for Slo {
    type Err = SloError;

    /// Reads `p99<5ms,loss<0.01%`: limits separated by commas. Names are `p50`, `p90`, `p99`, `p999` or
    /// `p99.9`, each below a time in `us`, `ms` or `s`; `loss` below a percentage; `delivery` above a share,
    /// `0.999` or `99.9%`.
    fn from_str(text: &str) -> Result<Self, SloError> {
        let mut slo = Self::default();
        let mut start = 0;
        for part in text.split(',') {
            let (objective, limit) = parse_limit(text, start, part)?;
            if slo.field(objective).replace(limit).is_some() {
                return Err(SloError::new(text, start, part, SloErrorKind::Repeated));
            }
            start += part.len() + 1;
        }
        Ok(slo)
    }
}

/// Where and why an expression of limits cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("`{text}`, at character {column}{}: {kind}", quoted(part))]
#[non_exhaustive]
pub struct SloError {
    /// The whole expression.
    pub text: String,
    /// The character, from 1, at which `part` begins.
    pub column: usize,
    /// The part that is wrong.
    pub part: String,
    /// The fault.
    pub kind: SloErrorKind,
}

impl SloError {
    fn new(text: &str, start_byte: usize, part: &str, kind: SloErrorKind) -> Self {
        let blanks = part.len() - part.trim_start().len();
        let before = text.get(..start_byte + blanks).unwrap_or(text);
        Self {
            text: text.to_owned(),
            column: before.chars().count() + 1,
            part: part.trim().to_owned(),
            kind,
        }
    }
}

/// The fault in a part of an expression of limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum SloErrorKind {
    /// There is nothing between two commas, or nothing at all.
    #[error("a limit is missing; write one such as p99<5ms")]
    Empty,
    /// The name means nothing.
    #[error("unknown name; known are p50, p90, p99, p99.9, loss and delivery")]
    Name,
    /// No `<` or `>` follows the name, or the wrong one.
    #[error("`{expected}` must follow the name")]
    Sign {
        /// The sign that belongs there.
        expected: char,
    },
    /// No number, or one that is negative or not finite.
    #[error("not a number of 0 or more")]
    Number,
    /// The unit is missing or does not fit.
    #[error("the unit must be {expected}")]
    Unit {
        /// The form that would be right.
        expected: &'static str,
    },
    /// A share above 100 %.
    #[error("more than everything; a share is at most 100 %")]
    Share,
    /// The same thing is limited twice.
    #[error("this is limited twice; remove one of the two")]
    Repeated,
}

fn parse_limit(text: &str, start: usize, part: &str) -> Result<(Objective, f64), SloError> {
    let wrong = |offset: usize, part: &str, kind| SloError::new(text, start + offset, part, kind);
    if part.trim().is_empty() {
        return Err(wrong(0, part, SloErrorKind::Empty));
    }
    let name_end = part.find(['<', '>', '=']).unwrap_or(part.len());
    let name = &part[..name_end];
    let objective =
        Objective::by_name(name.trim()).ok_or_else(|| wrong(0, name, SloErrorKind::Name))?;
    let expected = objective.sign();
    let rest = &part[name_end..];
    let after_sign = rest
        .strip_prefix(expected)
        .ok_or_else(|| wrong(name_end, rest, SloErrorKind::Sign { expected }))?;
    let value = after_sign.strip_prefix('=').unwrap_or(after_sign);
    let value_start = part.len() - value.len();
    let digits_end = value
        .find(|letter: char| letter == '%' || letter.is_ascii_alphabetic())
        .unwrap_or(value.len());
    let (digits, unit) = value.split_at(digits_end);
    let number: f64 = digits
        .trim()
        .parse()
        .ok()
        .filter(|number: &f64| number.is_finite() && *number >= 0.0)
        .ok_or_else(|| wrong(value_start, value, SloErrorKind::Number))?;
    let unit_start = value_start + digits_end;
    let limit = in_unit_of(objective, number, unit.trim())
        .map_err(|expected| wrong(unit_start, unit, SloErrorKind::Unit { expected }))?;
    if limit > objective.whole() {
        return Err(wrong(value_start, value, SloErrorKind::Share));
    }
    Ok((objective, limit))
}

fn in_unit_of(objective: Objective, number: f64, unit: &str) -> Result<f64, &'static str> {
    match (objective, unit) {
        (Objective::Loss, "%") | (Objective::DeliveryRatio, "") => Ok(number),
        (Objective::Loss, _) => Err("%"),
        (Objective::DeliveryRatio, "%") => Ok(number / 100.0),
        (Objective::DeliveryRatio, _) => Err("% or nothing"),
        (_, "ms") => Ok(number),
        (_, "us" | "µs") => Ok(number / 1e3),
        (_, "s") => Ok(number * 1e3),
        _ => Err("us, ms or s"),
    }
}

/// The part in the message, unless it is the empty end of the text.
fn quoted(part: &str) -> String {
    if part.is_empty() {
        return String::new();
    }
    format!(" (`{part}`)")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn parse(text: &str) -> Slo {
        text.parse().unwrap()
    }

    fn error(text: &str) -> SloError {
        text.parse::<Slo>().unwrap_err()
    }

    #[test]
    fn the_example_of_the_help_parses() {
        let slo = parse("p99<5ms,loss<0.01%");
        assert_eq!(slo.p99_ms, Some(5.0));
        assert_eq!(slo.loss_pct, Some(0.01));
        assert_eq!(slo.to_string(), "p99<5ms,loss<0.01%");
    }

    #[test]
    fn units_and_spellings_are_equivalent() {
        assert_eq!(parse("p50<250us"), parse(" p50 <= 0.25 ms "));
        assert_eq!(parse("p999<2s"), parse("p99.9<2000ms"));
        assert_eq!(parse("delivery>99.5%"), parse("delivery>=0.995"));
    }

    #[test]
    fn errors_point_at_the_place() {
        let cases = [
            ("", 1, "", SloErrorKind::Empty),
            ("p99<5ms,", 9, "", SloErrorKind::Empty),
            ("p99<5ms, p98<1ms", 10, "p98", SloErrorKind::Name),
            ("p99", 4, "", SloErrorKind::Sign { expected: '<' }),
            ("p99>5ms", 4, ">5ms", SloErrorKind::Sign { expected: '<' }),
            ("p99<ms", 5, "ms", SloErrorKind::Number),
            ("p99<-1ms", 5, "-1ms", SloErrorKind::Number),
            (
                "p99<5",
                6,
                "",
                SloErrorKind::Unit {
                    expected: "us, ms or s",
                },
            ),
            ("loss<1", 7, "", SloErrorKind::Unit { expected: "%" }),
            ("loss<101%", 6, "101%", SloErrorKind::Share),
            ("delivery>1.5", 10, "1.5", SloErrorKind::Share),
            ("p50<1ms,p50<2ms", 9, "p50<2ms", SloErrorKind::Repeated),
        ];
        for (text, column, part, kind) in cases {
            let found = error(text);
            assert_eq!(
                (found.column, found.part.as_str(), found.kind),
                (column, part, kind),
                "{text}"
            );
        }
        assert_eq!(
            error("p99<5").to_string(),
            "`p99<5`, at character 6: the unit must be us, ms or s"
        );
    }

    proptest! {
        #[test]
        fn no_text_panics(text in ".{0,60}") {
            let _ = text.parse::<Slo>();
        }

        #[test]
        fn what_is_shown_parses_to_the_same(
            times in prop::array::uniform4(prop::option::of(0.0_f64..1e6)),
            loss_pct in prop::option::of(0.0_f64..100.0),
            delivery_ratio_min in 0.0_f64..1.0,
        ) {
            let [p50_ms, p90_ms, p99_ms, p999_ms] = times;
            let slo = Slo {
                p50_ms, p90_ms, p99_ms, p999_ms, loss_pct,
                delivery_ratio_min: Some(delivery_ratio_min),
            };
            prop_assert_eq!(slo.to_string().parse::<Slo>().unwrap(), slo);
        }
    }
}
