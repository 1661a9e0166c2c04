//! The end of a certificate's validity.

use std::time::Duration;

use super::certificate::{Der, SEQUENCE, signed_fields};

/// Returns the expiry of a certificate in DER, as the time since the beginning of 1970. `None` if the bytes are no
/// certificate.
#[must_use]
pub fn certificate_expiry(certificate: &[u8]) -> Option<Duration> {
    let mut fields = signed_fields(certificate)?;
    fields.expect(SEQUENCE)?; // the algorithm of the signature
    fields.expect(SEQUENCE)?; // the issuer
    let mut validity = Der(fields.expect(SEQUENCE)?);
    time(&mut validity)?; // its begin
    time(&mut validity)
}

/// Takes a time: `YYMMDDHHMMSSZ` in one form, and with four digits of the year in the other.
fn time(validity: &mut Der<'_>) -> Option<Duration> {
    let (tag, digits) = validity.next()?;
    let (century, digits) = match tag {
        UTC_TIME => {
            let year = number(digits.get(..2)?)?;
            (if year < 50 { 2000 } else { 1900 }, digits)
        }
        GENERALIZED_TIME => (100 * number(digits.get(..2)?)?, digits.get(2..)?),
        _ => return None,
    };
    let [fields @ .., b'Z'] = digits else {
        return None;
    };
    if fields.len() != 12 {
        return None;
    }
    let field = |index: usize| number(&fields[2 * index..2 * index + 2]);
    let (year, month, day) = (century + field(0)?, field(1)?, field(2)?);
    if !(1..=12).contains(&month) || !(1..=31).contains(&day) || year < 1970 {
        return None;
    }
    let seconds = (field(3)? * 60 + field(4)?) * 60 + field(5)?;
    let since = days_since_1970(year, month, day) * 86_400 + seconds;
    Some(Duration::from_secs(since))
}

fn number(digits: &[u8]) -> Option<u64> {
    let digits = digits.iter().all(u8::is_ascii_digit).then_some(digits)?;
    std::str::from_utf8(digits).ok()?.parse().ok()
}

/// The days from 1970 to a day of the Gregorian calendar. The year is counted from March, so that a leap day is its
/// last.
fn days_since_1970(year: u64, month: u64, day: u64) -> u64 {
    let (year, month) = match month {
        1 | 2 => (year - 1, month + 9),
        _ => (year, month - 3),
    };
    let days = 365 * year + year / 4 - year / 100 + year / 400;
    days + (153 * month + 2) / 5 + day - 1 - DAYS_TO_1970
}

/// The days from March of the year 0 to 1970.
const DAYS_TO_1970: u64 = 719_468;

const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;
