//! Names on the wire: `service.method.vVERSION.FINGERPRINT`.
//!
//! The fingerprint gives a changed signature another name. It is computed over single tokens, so that neither line
//! breaks nor a compiler's way to print tokens change it. It covers only the parts that both sides must agree on. The
//! server decides whether a method answers at once or later, so that is not a part of it.

use proc_macro2::{TokenStream, TokenTree};
use quote::ToTokens;

/// The parts of a signature that both sides must agree on, mixed into one number (FNV-1a).
#[derive(Debug)]
pub(crate) struct Fingerprint(u64);

impl Fingerprint {
    pub(crate) fn new() -> Self {
        Self(0xCBF2_9CE4_8422_2325)
    }

    pub(crate) fn add(&mut self, part: &impl ToTokens) {
        self.add_tokens(part.to_token_stream());
        self.add_text(PART_END);
    }

    pub(crate) fn add_word(&mut self, word: &str) {
        self.add_text(word);
        self.add_text(PART_END);
    }

    fn add_tokens(&mut self, tokens: TokenStream) {
        for token in tokens {
            match token {
                TokenTree::Group(group) => {
                    let (open, close) = match group.delimiter() {
                        proc_macro2::Delimiter::Parenthesis => ("(", ")"),
                        proc_macro2::Delimiter::Brace => ("{", "}"),
                        proc_macro2::Delimiter::Bracket => ("[", "]"),
                        // A macro in the user's code inserted this group as a whole.
                        proc_macro2::Delimiter::None => ("", ""),
                    };
                    self.add_text(open);
                    self.add_tokens(group.stream());
                    self.add_text(close);
                }
                token => self.add_text(&token.to_string()),
            }
        }
    }

    fn add_text(&mut self, text: &str) {
        if text.is_empty() {
            return;
        }
        for byte in text.bytes().chain([TOKEN_END]) {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x0100_0000_01B3);
        }
    }

    /// Returns half of the bits, which is enough for a handful of versions of one method.
    fn finish(&self) -> u32 {
        (self.0 ^ (self.0 >> 32)) as u32
    }
}

pub(crate) fn wire_name(
    service: &str,
    method: &str,
    version: u32,
    fingerprint: &Fingerprint,
) -> String {
    format!("{service}.{method}.v{version}.{:08x}", fingerprint.finish())
}

/// Converts `HTTPGateway` to `http_gateway`, the language's style for names of modules.
pub(crate) fn snake_case(name: &str) -> String {
    let letters: Vec<char> = name.chars().collect();
    let mut out = String::with_capacity(name.len() + 4);
    for (index, letter) in letters.iter().enumerate() {
        let before = index.checked_sub(1).map(|index| letters[index]);
        let after = letters.get(index + 1);
        let starts_word = letter.is_uppercase()
            && before.is_some_and(|before| {
                before.is_lowercase()
                    || before.is_numeric()
                    || (before.is_uppercase() && after.is_some_and(|after| after.is_lowercase()))
            });
        if starts_word {
            out.push('_');
        }
        out.extend(letter.to_lowercase());
    }
    out
}

/// Returns the reason why a text cannot be a name on the wire, or the first part of a name.
pub(crate) fn name_problem(name: &str) -> Option<String> {
    if name.is_empty() {
        return Some("a name on the wire cannot be empty".to_owned());
    }
    if name.len() > NAME_BYTES_MAX {
        return Some(format!(
            "a name on the wire has at most {NAME_BYTES_MAX} bytes"
        ));
    }
    let odd = name.chars().find(|letter| !letter.is_ascii_graphic())?;
    Some(format!(
        "a name on the wire is made of visible ASCII characters; {odd:?} is none"
    ))
}

/// The end of a token. No token contains it.
const TOKEN_END: u8 = 0;

/// The end of a part. No token equals it.
const PART_END: &str = "\u{1}";

/// Longest name that a user may choose. Every call carries it.
const NAME_BYTES_MAX: usize = 200;

#[cfg(test)]
mod tests {
    use super::*;
    use quote::quote;

    fn fingerprint(parts: &[TokenStream]) -> u32 {
        let mut fingerprint = Fingerprint::new();
        parts.iter().for_each(|part| fingerprint.add(part));
        fingerprint.finish()
    }

    #[test]
    fn trait_names_become_modules_names() {
        for (name, expected) in [
            ("Calculator", "calculator"),
            ("HTTPGateway", "http_gateway"),
            ("Version2Store", "version2_store"),
            ("MarketData", "market_data"),
            ("X", "x"),
        ] {
            assert_eq!(snake_case(name), expected);
        }
    }

    #[test]
    fn layout_does_not_change_a_fingerprint_and_types_do() {
        let spaced: TokenStream = "Vec < u8 >\n".parse().unwrap();
        assert_eq!(fingerprint(&[spaced]), fingerprint(&[quote!(Vec<u8>)]));
        let different = [
            vec![quote!(a), quote!(i64)],
            vec![quote!(a), quote!(i32)],
            vec![quote!(b), quote!(i64)],
            vec![quote!(ai64)],
            vec![quote!(a i64)],
            vec![quote!((a)), quote!(i64)],
            vec![quote!([a]), quote!(i64)],
        ];
        let mut numbers: Vec<u32> = different.iter().map(|parts| fingerprint(parts)).collect();
        numbers.sort_unstable();
        numbers.dedup();
        assert_eq!(numbers.len(), different.len());
    }

    /// Older programs must still understand each other: this number must never change.
    #[test]
    fn a_fingerprint_is_the_same_for_ever() {
        let mut fingerprint = Fingerprint::new();
        fingerprint.add_word("postcard");
        fingerprint.add(&quote!(a));
        fingerprint.add(&quote!(Vec<(u8, String)>));
        let name = wire_name("service", "method", 3, &fingerprint);
        assert_eq!(name, "service.method.v3.b26ad2b4");
    }

    #[test]
    fn names_are_visible_ascii() {
        for name in ["Login", "chat/say", "a.b-c_d"] {
            assert_eq!(name_problem(name), None);
        }
        for name in ["", "a b", "é", "a\n", &"n".repeat(201)] {
            assert!(name_problem(name).is_some(), "{name:?}");
        }
    }
}
