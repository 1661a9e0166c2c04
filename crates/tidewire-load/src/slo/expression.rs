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
                let fault = "this is limited twice; remove one of the two";
                return Err(SloError::new(text, start, part, fault));
            }
            start += part.len() + 1;
        }
        Ok(slo)
    }
}

/// Where and why an expression of limits cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("`{text}`, at character {column}{}: {fault}", quoted(part))]
#[non_exhaustive]
pub struct SloError {
    /// The whole expression.
    pub text: String,
    /// The character, from 1, at which `part` begins.
    pub column: usize,
    /// The part that is wrong.
    pub part: String,
    /// The fault, and what to write instead.
    pub fault: String,
}

impl SloError {
    fn new(text: &str, start_byte: usize, part: &str, fault: impl Into<String>) -> Self {
        let blanks = part.len() - part.trim_start().len();
        let before = text.get(..start_byte + blanks).unwrap_or(text);
        Self {
            text: text.to_owned(),
            column: before.chars().count() + 1,
            part: part.trim().to_owned(),
            fault: fault.into(),
        }
    }
}

fn parse_limit(text: &str, start: usize, part: &str) -> Result<(Objective, f64), SloError> {
    let wrong =
        |offset: usize, part: &str, fault: &str| SloError::new(text, start + offset, part, fault);
    if part.trim().is_empty() {
        let fault = "a limit is missing; write one such as p99<5ms";
        return Err(wrong(0, part, fault));
    }
    let name_end = part.find(['<', '>', '=']).unwrap_or(part.len());
    let name = &part[..name_end];
    let unknown = "unknown name; known are p50, p90, p99, p99.9, loss and delivery";
    let objective = Objective::by_name(name.trim()).ok_or_else(|| wrong(0, name, unknown))?;
    let sign = objective.sign();
    let rest = &part[name_end..];
    let after_sign = rest.strip_prefix(sign);
    let after_sign = after_sign
        .ok_or_else(|| wrong(name_end, rest, &format!("`{sign}` must follow the name")))?;
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
        .ok_or_else(|| wrong(value_start, value, "not a number of 0 or more"))?;
    let unit_start = value_start + digits_end;
    let limit = in_unit_of(objective, number, unit.trim())
        .map_err(|expected| wrong(unit_start, unit, &format!("the unit must be {expected}")))?;
    if limit > objective.whole() {
        let fault = "more than everything; a share is at most 100 %";
        return Err(wrong(value_start, value, fault));
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

    fn shown(slo: &Slo) -> String {
        let limit = |objective: Objective| {
            let (name, sign, unit) = (objective.name(), objective.sign(), objective.unit());
            Some(format!("{name}{sign}{}{unit}", slo.limit(objective)?))
        };
        let limits: Vec<String> = Objective::ALL.into_iter().filter_map(limit).collect();
        limits.join(",")
    }

    fn error(text: &str) -> SloError {
        text.parse::<Slo>().unwrap_err()
    }

    #[test]
    fn the_example_of_the_help_parses() {
        let slo = parse("p99<5ms,loss<0.01%");
        assert_eq!(slo.p99_ms, Some(5.0));
        assert_eq!(slo.loss_pct, Some(0.01));
        assert_eq!(shown(&slo), "p99<5ms,loss<0.01%");
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
            ("", 1, "", "a limit is missing"),
            ("p99<5ms,", 9, "", "a limit is missing"),
            ("p99<5ms, p98<1ms", 10, "p98", "unknown name"),
            ("p99", 4, "", "`<` must follow the name"),
            ("p99>5ms", 4, ">5ms", "`<` must follow the name"),
            ("p99<ms", 5, "ms", "not a number"),
            ("p99<-1ms", 5, "-1ms", "not a number"),
            ("p99<5", 6, "", "the unit must be us, ms or s"),
            ("loss<1", 7, "", "the unit must be %"),
            ("loss<101%", 6, "101%", "more than everything"),
            ("delivery>1.5", 10, "1.5", "more than everything"),
            ("p50<1ms,p50<2ms", 9, "p50<2ms", "this is limited twice"),
        ];
        for (text, column, part, fault) in cases {
            let found = error(text);
            assert_eq!(
                (found.column, found.part.as_str()),
                (column, part),
                "{text}"
            );
            assert!(found.fault.starts_with(fault), "{text}: {found}");
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
            prop_assert_eq!(shown(&slo).parse::<Slo>().unwrap(), slo);
        }
    }
}
