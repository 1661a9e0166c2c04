//! The end of the validity of a server's own certificate.

use std::time::SystemTime;

use tidewire_proto::layer::certificate_expiry;

/// Returns the expiry of a certificate in DER. `None` if the bytes are no certificate.
pub(super) fn expiry(certificate: &[u8]) -> Option<SystemTime> {
    SystemTime::UNIX_EPOCH.checked_add(certificate_expiry(certificate)?)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

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
