//! Figures in JSON that may be infinite: a number, or the text `"inf"`.
//!
//! JSON has no infinity, and serde writes `null` for it, which reads like "not measured". For fields, by
//! `#[serde(with = "…")]`.

use serde::de::{Error as _, Unexpected};
use serde::{Deserialize, Deserializer, Serializer};

pub(crate) fn serialize<S: Serializer>(value: &f64, serializer: S) -> Result<S::Ok, S::Error> {
    if *value == f64::INFINITY {
        serializer.serialize_str(INFINITE)
    } else {
        serializer.serialize_f64(*value)
    }
}

pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    match NumberOrText::deserialize(deserializer)? {
        NumberOrText::Number(value) => Ok(value),
        NumberOrText::Text(text) if text == INFINITE => Ok(f64::INFINITY),
        NumberOrText::Text(text) => Err(D::Error::invalid_value(
            Unexpected::Str(&text),
            &"a number or \"inf\"",
        )),
    }
}

#[derive(Deserialize)]
#[serde(untagged)]
enum NumberOrText {
    Number(f64),
    Text(String),
}

const INFINITE: &str = "inf";

#[cfg(test)]
mod tests {
    use serde::{Deserialize, Serialize};

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Figure(#[serde(with = "super")] f64);

    #[test]
    fn infinity_survives_and_other_texts_are_refused() {
        for (figure, json) in [(Figure(1.5), "1.5"), (Figure(f64::INFINITY), "\"inf\"")] {
            assert_eq!(serde_json::to_string(&figure).unwrap(), json);
            assert_eq!(serde_json::from_str::<Figure>(json).unwrap(), figure);
        }
        let error = serde_json::from_str::<Figure>("\"many\"").unwrap_err();
        assert!(error.to_string().contains("a number or \"inf\""), "{error}");
    }
}
