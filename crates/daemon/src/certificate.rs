//! What a certificate says: the names by which a client's calls its owner, and for how long it is
//! good.
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

/// Seconds before a certificate's end from which on that is told.
const NOTICE_SECONDS: i64 = 14 * 24 * 3600;

/// What is wrong with the time of a certificate in DER, at `now` in seconds since 1970: it has
/// ended, ends within two weeks, or has not begun.
#[must_use]
pub fn doubt(der: &[u8], now: i64) -> Option<String> {
    let (_, certificate) = X509Certificate::from_der(der).ok()?;
    let validity = certificate.validity();
    let (from, until) = (validity.not_before.timestamp(), validity.not_after.timestamp());
    match now {
        now if now < from => Some(format!("it is not valid before {}", validity.not_before)),
        now if now > until => Some(format!("it expired on {}", validity.not_after)),
        now if now > until - NOTICE_SECONDS => {
            let days = (until - now) / (24 * 3600);
            Some(format!("it expires on {}, in {days} day(s)", validity.not_after))
        }
        _ => None,
    }
}

/// Why TLS takes no certificate of this form for its own, if so.
#[must_use]
pub fn unfit(der: &[u8]) -> Option<String> {
    let (_, certificate) = X509Certificate::from_der(der).ok()?;
    let version = u64::from(certificate.version().0) + 1;
    (version != 3).then(|| format!("the first certificate is of X.509 version {version}, not 3"))
}

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

    /// Goal: the end of a certificate is told in time, and nothing before. Method: one of two
    /// months, looked at before, in and after them.
    #[test]
    fn an_end_is_told() {
        let mut params = CertificateParams::new(Vec::new()).expect("good names");
        params.not_before = rcgen::date_time_ymd(2026, 1, 1);
        params.not_after = rcgen::date_time_ymd(2026, 3, 1);
        let key = KeyPair::generate().expect("a key");
        let certificate = params.self_signed(&key).expect("a certificate");
        let from = params.not_before.unix_timestamp();
        let told = |days: i64| doubt(certificate.der(), from + days * 24 * 3600);
        assert!(told(-1).expect("told").contains("not valid before"));
        assert_eq!((told(1), told(44)), (None, None));
        assert!(told(57).expect("told").contains("in 2 day(s)"));
        assert!(told(60).expect("told").contains("expired"));
        assert_eq!(doubt(b"none", 0), None);
    }

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
