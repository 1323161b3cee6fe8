//! The names by which a client's certificate calls its owner.
//!
//! How: the subject's common name and the alternative names that are names in the DNS, as they are
//! written, in the certificate that the TLS handshake has verified.
//! Invariant: bytes that are no certificate, or names that are no text, give no name.
//! Cost: one parse per handshake. Not for: whether the certificate is any good; see `tls`.

use x509_parser::prelude::{FromDer as _, GeneralName, X509Certificate};

/// Names of one certificate that are kept at most; the later ones give nothing.
const NAMES_MAX: usize = 64;
/// Bytes of a name at most, as of a name in the DNS.
const NAME_BYTES_MAX: usize = 253;

/// The names of a certificate, its common name first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CertificateNames(Vec<String>);

impl CertificateNames {
    /// The names in a certificate in DER that was verified before.
    #[must_use]
    pub fn of(der: &[u8]) -> CertificateNames {
        let Ok((_, certificate)) = X509Certificate::from_der(der) else {
            return CertificateNames::default();
        };
        let common = certificate.subject().iter_common_name();
        let common = common.filter_map(|name| name.as_str().ok());
        let alternative = certificate.subject_alternative_name().ok().flatten();
        let alternative = alternative.into_iter().flat_map(|found| &found.value.general_names);
        let dns = alternative.filter_map(|name| match name {
            GeneralName::DNSName(name) => Some(*name),
            _ => None,
        });
        let mut names: Vec<String> = Vec::new();
        for name in common.chain(dns) {
            let is_new = !names.iter().any(|known| known == name);
            if is_new && names.len() < NAMES_MAX && (1..=NAME_BYTES_MAX).contains(&name.len()) {
                names.push(name.to_owned());
            }
        }
        CertificateNames(names)
    }

    /// Each of them.
    pub fn iter(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(String::as_str)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::{CertificateParams, DnType, KeyPair};

    /// Goal: the common name and all names in the DNS are found, each once, and nothing where there
    /// is nothing. Method: certificates of rcgen, one with an address; and bytes that are none.
    #[test]
    fn names_are_found() {
        let names = |common: Option<&str>, alternative: &[&str]| {
            let alternative: Vec<String> = alternative.iter().map(|&name| name.into()).collect();
            let mut params = CertificateParams::new(alternative).expect("good names");
            params.distinguished_name = rcgen::DistinguishedName::new();
            if let Some(name) = common {
                params.distinguished_name.push(DnType::CommonName, name);
            }
            let key = KeyPair::generate().expect("a key");
            let certificate = params.self_signed(&key).expect("a certificate");
            CertificateNames::of(certificate.der()).0
        };
        let mixed = ["brake.example", "10.0.0.1", "brake-service"];
        assert_eq!(names(Some("brake-service"), &mixed), ["brake-service", "brake.example"]);
        assert_eq!(names(None, &["a.example"]), ["a.example"]);
        assert_eq!(names(None, &[]), Vec::<String>::new());
        assert_eq!(CertificateNames::of(b"none"), CertificateNames::default());
    }
}
