//! The names in a certificate that a layer has verified.
//!
//! Problem: the library that verifies certificates does not tell their names. Approach: read the few fields of the DER
//! encoding that hold names, and skip the rest. A trusted authority has signed the certificate, so the names need no
//! further check. Even so, the reader accepts any bytes: it never panics and never allocates more than the certificate
//! holds.

/// Names of a certificate: its subject alternative names, and the common name of its subject.
///
/// A name may hold any characters that its authority signed. Escape it before it reaches a log or a terminal.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CertificateNames {
    /// DNS names, in the order of the certificate. A name may begin with `*.`.
    pub dns: Vec<String>,
    /// Mail addresses.
    pub emails: Vec<String>,
    /// URIs, for example of SPIFFE.
    pub uris: Vec<String>,
    /// The last common name of the subject.
    pub common_name: Option<String>,
    /// Whether there are subject alternative names, also of kinds that are not read.
    has_alternatives: bool,
}

impl CertificateNames {
    /// The memory of the names, in bytes. A certificate may have many short names.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        let lists = [&self.dns, &self.emails, &self.uris];
        let of_list = |list: &&Vec<String>| {
            let texts: usize = list.iter().map(String::capacity).sum();
            list.capacity() * size_of::<String>() + texts
        };
        let common_name = self.common_name.as_ref().map_or(0, String::capacity);
        lists.iter().map(of_list).sum::<usize>() + common_name
    }

    /// Reads the names of a certificate in DER. Returns `None` if it is no certificate.
    #[must_use]
    pub fn of_der(certificate: &[u8]) -> Option<Self> {
        let mut names = Self::default();
        let mut signed = signed_fields(certificate)?;
        // Signature algorithm, issuer and validity.
        for _ in 0..3 {
            signed.expect(SEQUENCE)?;
        }
        names.read_subject(signed.expect(SEQUENCE)?)?;
        while let Some((tag, content)) = signed.next() {
            if tag == EXTENSIONS {
                names.read_extensions(Der(content).expect(SEQUENCE)?)?;
            }
        }
        Some(names)
    }

    /// The best name: the first URI, mail address or DNS name. It is the common name of a certificate without subject
    /// alternative names.
    #[must_use]
    pub fn preferred(&self) -> Option<&str> {
        self.iter().next()
    }

    /// All URIs, mail addresses and DNS names, or the common name of a certificate without subject alternative names. A
    /// certificate that has only others of them, such as IP addresses, has no name here.
    pub fn iter(&self) -> impl Iterator<Item = &str> {
        let alternatives = self.uris.iter().chain(&self.emails).chain(&self.dns);
        let has_none = !self.has_alternatives;
        let common = self.common_name.iter().filter(move |_| has_none);
        alternatives.chain(common).map(String::as_str)
    }

    fn read_subject(&mut self, subject: &[u8]) -> Option<()> {
        let mut sets = Der(subject);
        while let Some((_, set)) = sets.next() {
            let mut attributes = Der(set);
            while let Some((_, attribute)) = attributes.next() {
                let mut attribute = Der(attribute);
                let kind = attribute.expect(OBJECT_ID)?;
                let (_, value) = attribute.next()?;
                if kind == COMMON_NAME {
                    self.common_name = text(value);
                }
            }
        }
        Some(())
    }

    fn read_extensions(&mut self, extensions: &[u8]) -> Option<()> {
        let mut extensions = Der(extensions);
        while let Some((_, extension)) = extensions.next() {
            let mut extension = Der(extension);
            if extension.expect(OBJECT_ID)? != SUBJECT_ALTERNATIVE_NAME {
                continue;
            }
            self.has_alternatives = true;
            let (mut tag, mut value) = extension.next()?;
            if tag == BOOLEAN {
                (tag, value) = extension.next()?;
            }
            if tag == OCTET_STRING {
                self.read_alternatives(Der(value).expect(SEQUENCE)?);
            }
        }
        Some(())
    }

    fn read_alternatives(&mut self, names: &[u8]) {
        let mut names = Der(names);
        while let Some((tag, name)) = names.next() {
            let list = match tag {
                EMAIL => &mut self.emails,
                DNS => &mut self.dns,
                URI => &mut self.uris,
                _ => continue,
            };
            list.extend(text(name));
        }
    }
}

/// Returns the fields of a certificate in DER that its authority signed, from the algorithm of the signature on.
pub(super) fn signed_fields(certificate: &[u8]) -> Option<Der<'_>> {
    let mut outer = Der(Der(certificate).expect(SEQUENCE)?);
    let mut signed = Der(outer.expect(SEQUENCE)?);
    match signed.next()?.0 {
        VERSION => {
            signed.expect(INTEGER)?;
        }
        // A certificate of version 1 begins with its serial number.
        INTEGER => {}
        _ => return None,
    }
    Some(signed)
}

/// A non-empty text in UTF-8. ASCII, in which most names are, is a part of it.
fn text(bytes: &[u8]) -> Option<String> {
    let text = str::from_utf8(bytes).ok()?;
    (!text.is_empty()).then(|| text.to_owned())
}

/// The values of a DER encoding that are not read yet.
pub(super) struct Der<'a>(pub(super) &'a [u8]);

impl<'a> Der<'a> {
    /// Takes the next value with its tag. Returns `None` at the end, and if the value is longer than the bytes.
    pub(super) fn next(&mut self) -> Option<(u8, &'a [u8])> {
        let (&[tag, first], rest) = self.0.split_first_chunk()?;
        let (length, rest) = match first {
            0..=0x7F => (usize::from(first), rest),
            // A length of more than three bytes is refused: no certificate has 16 MiB.
            0x81..=0x83 => {
                let (length, rest) = rest.split_at_checked(usize::from(first & 0x7F))?;
                let length = length
                    .iter()
                    .fold(0, |sum, byte| sum << 8 | usize::from(*byte));
                (length, rest)
            }
            _ => return None,
        };
        let (value, rest) = rest.split_at_checked(length)?;
        self.0 = rest;
        Some((tag, value))
    }

    pub(super) fn expect(&mut self, expected: u8) -> Option<&'a [u8]> {
        let (tag, value) = self.next()?;
        (tag == expected).then_some(value)
    }
}

const BOOLEAN: u8 = 0x01;
const INTEGER: u8 = 0x02;
const OCTET_STRING: u8 = 0x04;
const OBJECT_ID: u8 = 0x06;
pub(super) const SEQUENCE: u8 = 0x30;
const VERSION: u8 = 0xA0;
const EXTENSIONS: u8 = 0xA3;

/// The tags of names in a subject alternative name.
const EMAIL: u8 = 0x81;
const DNS: u8 = 0x82;
const URI: u8 = 0x86;

/// The object identifiers 2.5.4.3 and 2.5.29.17.
const COMMON_NAME: &[u8] = &[0x55, 0x04, 0x03];
const SUBJECT_ALTERNATIVE_NAME: &[u8] = &[0x55, 0x1D, 0x11];

#[cfg(test)]
mod tests {
    use super::*;

    fn value(tag: u8, parts: &[&[u8]]) -> Vec<u8> {
        let content = parts.concat();
        let mut bytes = vec![tag, 0x82];
        bytes.extend(u16::try_from(content.len()).unwrap().to_be_bytes());
        bytes.extend(content);
        bytes
    }

    fn certificate() -> Vec<u8> {
        certificate_with(Some(&[
            &value(DNS, &[b"a.example"]),
            &value(EMAIL, &[b"ann@example"]),
            &value(0x87, &[&[127, 0, 0, 1]]),
            &value(URI, &[b"spiffe://example/ann"]),
            &value(DNS, &[b"\xFF"]),
            &value(DNS, &[b"b.example"]),
        ]))
    }

    /// A certificate for `Änn` with these subject alternative names, or without the extension.
    fn certificate_with(names: Option<&[&[u8]]>) -> Vec<u8> {
        let sequence = |parts: &[&[u8]]| value(SEQUENCE, parts);
        let attribute = |name: &[u8]| {
            let pair = sequence(&[&value(OBJECT_ID, &[COMMON_NAME]), &value(0x0C, &[name])]);
            value(0x31, &[&pair])
        };
        let extension = names.map_or_else(Vec::new, |names| {
            sequence(&[
                &value(OBJECT_ID, &[SUBJECT_ALTERNATIVE_NAME]),
                &value(BOOLEAN, &[&[0xFF]]),
                &value(OCTET_STRING, &[&sequence(names)]),
            ])
        });
        let empty = sequence(&[]);
        let signed = sequence(&[
            &value(VERSION, &[&value(INTEGER, &[&[2]])]),
            &value(INTEGER, &[&[1]]),
            &empty,
            &empty,
            &empty,
            &sequence(&[&attribute(b"old"), &attribute("Änn".as_bytes())]),
            &empty,
            &value(EXTENSIONS, &[&sequence(&[&extension])]),
        ]);
        sequence(&[&signed, &empty])
    }

    #[test]
    fn names_are_read_and_addresses_left_out() {
        let names = CertificateNames::of_der(&certificate()).unwrap();
        assert_eq!(names.dns, ["a.example", "b.example"]);
        assert_eq!(names.emails, ["ann@example"]);
        assert_eq!(names.uris, ["spiffe://example/ann"]);
        assert_eq!(names.common_name.as_deref(), Some("Änn"));
        assert_eq!(names.preferred(), Some("spiffe://example/ann"));
    }

    /// A certificate for an IP address or another kind of name was taken for its common name.
    #[test]
    fn a_common_name_counts_only_without_subject_alternative_names() {
        let preferred = |names: Option<&[&[u8]]>| {
            let names = CertificateNames::of_der(&certificate_with(names)).unwrap();
            assert_eq!(names.common_name.as_deref(), Some("Änn"));
            names.preferred().map(str::to_owned)
        };
        assert_eq!(preferred(None).as_deref(), Some("Änn"));
        let address = value(0x87, &[&[127, 0, 0, 1]]);
        let other = value(0xA0, &[b"x"]);
        for names in [&[][..], &[&*address], &[&*other], &[&*address, &*other]] {
            assert_eq!(preferred(Some(names)), None);
        }
    }

    #[test]
    fn cut_and_changed_certificates_yield_no_names_or_other_names_and_never_panic() {
        let whole = certificate();
        for length in 0..whole.len() {
            assert_eq!(CertificateNames::of_der(&whole[..length]), None);
        }
        for at in 0..whole.len() {
            for byte in [0, 1, 0x7F, 0x80, 0x83, 0x84, 0xFF] {
                let mut changed = whole.clone();
                changed[at] = byte;
                let names = CertificateNames::of_der(&changed).unwrap_or_default();
                let count = names.dns.len() + names.emails.len() + names.uris.len();
                assert!(count <= whole.len(), "names come from the bytes");
            }
        }
    }
}
