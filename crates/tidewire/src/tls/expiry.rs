//! The end of a certificate's validity.
//!
//! Only this one field of the server's own certificate is needed, and it stands behind four others of fixed order (RFC 5280,
//! 4.1). A parser of whole certificates would be a dozen dependencies.

use std::time::{Duration, SystemTime};

/// Returns when a certificate in DER expires. `None` if its bytes are not those of a certificate.
pub(super) fn expiry(certificate: &[u8]) -> Option<SystemTime> {
    let mut outer = certificate;
    let mut certificate = take(&mut outer, SEQUENCE)?;
    let mut fields = take(&mut certificate, SEQUENCE)?;
    if fields.first() == Some(&VERSION) {
        take(&mut fields, VERSION)?;
    }
    take(&mut fields, INTEGER)?; // the serial number
    take(&mut fields, SEQUENCE)?; // the algorithm of the signature
    take(&mut fields, SEQUENCE)?; // the issuer
    let mut validity = take(&mut fields, SEQUENCE)?;
    time(&mut validity)?; // its begin
    time(&mut validity)
}

/// Takes the content of one element with this tag from the front of `bytes`.
fn take<'a>(bytes: &mut &'a [u8], tag: u8) -> Option<&'a [u8]> {
    let (&[found, length], rest) = bytes.split_first_chunk::<2>()?;
    let (length, rest) = match length {
        _ if found != tag => return None,
        0..=0x7F => (usize::from(length), rest),
        0x81 => (usize::from(*rest.first()?), &rest[1..]),
        0x82 => {
            let (length, rest) = rest.split_first_chunk::<2>()?;
            (usize::from(u16::from_be_bytes(*length)), rest)
        }
        // A certificate above 64 KiB fits no handshake.
        _ => return None,
    };
    let (content, rest) = rest.split_at_checked(length)?;
    *bytes = rest;
    Some(content)
}

/// Takes a time: `YYMMDDHHMMSSZ` in one form, and with four digits of the year in the other.
fn time(bytes: &mut &[u8]) -> Option<SystemTime> {
    let (century, digits) = match bytes.first()? {
        &UTC_TIME => {
            let digits = take(bytes, UTC_TIME)?;
            let year = number(digits.get(..2)?)?;
            (if year < 50 { 2000 } else { 1900 }, digits)
        }
        _ => {
            let digits = take(bytes, GENERALIZED_TIME)?;
            (100 * number(digits.get(..2)?)?, digits.get(2..)?)
        }
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
    SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(since))
}

fn number(digits: &[u8]) -> Option<u64> {
    let digits = digits.iter().all(u8::is_ascii_digit).then_some(digits)?;
    std::str::from_utf8(digits).ok()?.parse().ok()
}

/// The days from 1970 to a day of the Gregorian calendar. The year is counted from March, so that a leap day is its last.
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

const INTEGER: u8 = 0x02;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;
const SEQUENCE: u8 = 0x30;
const VERSION: u8 = 0xA0;

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::{CertificateParams, KeyPair, date_time_ymd};

    fn certificate(year: i32, month: u8, day: u8) -> Vec<u8> {
        let mut parameters = CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
        parameters.not_after = date_time_ymd(year, month, day);
        let key = KeyPair::generate().unwrap();
        parameters.self_signed(&key).unwrap().der().to_vec()
    }

    #[test]
    fn the_expiry_is_that_of_the_certificate() {
        // 2050 and later are written with four digits of the year.
        for (year, month, day, since) in [
            (2027, 3, 1, 1_803_859_200),
            (2028, 2, 29, 1_835_395_200),
            (2049, 12, 31, 2_524_521_600),
            (2100, 1, 1, 4_102_444_800_u64),
        ] {
            let expected = SystemTime::UNIX_EPOCH + Duration::from_secs(since);
            let found = expiry(&certificate(year, month, day));
            assert_eq!(found, Some(expected), "{year}-{month}-{day}");
        }
    }

    #[test]
    fn bytes_that_are_cut_or_changed_do_no_harm() {
        let good = certificate(2027, 3, 1);
        for length in 0..good.len() {
            assert_eq!(expiry(&good[..length]), None);
        }
        for index in 0..good.len() {
            for flip in [1, 0x80, 0xFF] {
                let mut bad = good.clone();
                bad[index] ^= flip;
                // Most changes are not in the date.
                let _ = expiry(&bad);
            }
        }
    }
}
