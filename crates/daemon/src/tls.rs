//! TLS for NBD: the node's certificate, the handshake, and the cipher that goes with a connection.
//!
//! How: `rustls` is driven by hand, without a stream of its own: during negotiation by the server's
//! task, afterwards by the shard through [`layby_types::Cipher`]. While the NBD handshake runs,
//! records are opened one at a time, so that what follows it is handed to the shard unopened.
//! Invariant: no byte is lost or read twice when the connection changes hands.
//! Cost: a copy in and a copy out per record.

use crate::certificate::{CertificateNames, doubt, unfit};
use crate::config::{NbdConfig, foreign_file};
use crate::error::{Report, ReportKind};
use layby_types::{Cipher, SessionError};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig, ServerConnection};
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::Arc;

/// Bytes of a TLS record's head: type, version, length.
pub const RECORD_HEAD_BYTES: usize = 5;
/// Bytes of a TLS record's body at most, by RFC 8446 and RFC 5246.
pub const RECORD_BODY_BYTES_MAX: usize = (1 << 14) + 2048;
/// Bytes of a file of certificates, or of a key, at most.
const FILE_BYTES_MAX: u64 = 4 << 20;
/// Rights that a private key's file must not give: all to others, writing to its group.
const KEY_MODES_REFUSED: u32 = 0o027;

/// Reads certificates and key of the configuration.
///
/// # Errors
/// A report that names the file that cannot be used.
pub fn server_config(nbd: &NbdConfig) -> Result<Arc<ServerConfig>, Report> {
    let path = |path: &Option<std::path::PathBuf>| path.clone().unwrap_or_default();
    let (certificate_path, key_path) = (path(&nbd.tls_certificate), path(&nbd.tls_key));
    let certificates = certificates(&certificate_path)?;
    // Those behind it are sent as they are: what a client makes of an authority's is its own.
    if let Some(cause) = certificates.first().and_then(|leaf| unfit(leaf)) {
        return Err(unusable("certificate", &certificate_path, &cause).hint(HINT_VERSION));
    }
    if let Some(doubt) = certificates.first().and_then(|leaf| doubt(leaf, now_unix())) {
        let file = certificate_path.display();
        tracing::warn!(%file, doubt, "clients will not take the node's certificate, or soon");
    }
    refuse_open_key(&key_path)?;
    let pem = pem("private key", &key_path)?;
    let key = PrivateKeyDer::from_pem_slice(&pem)
        .map_err(|cause| unusable("private key", &key_path, &cause.to_string()))?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .expect("the ring provider supports the default versions");
    let builder = match &nbd.tls_client_ca {
        None => builder.with_no_client_auth(),
        Some(path) => {
            refuse_foreign("authority", path)?;
            let mut roots = RootCertStore::empty();
            for root in self::certificates(path)? {
                roots.add(root).map_err(|e| unusable("authority", path, &e.to_string()))?;
            }
            let verifier =
                WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build();
            let verifier = verifier.map_err(|e| unusable("authority", path, &e.to_string()))?;
            builder.with_client_cert_verifier(verifier)
        }
    };
    let config = builder.with_single_cert(certificates, key);
    let config = config.map_err(|e| unusable("certificate", &certificate_path, &e.to_string()))?;
    Ok(Arc::new(config))
}

/// Seconds since 1970, by this machine's clock.
fn now_unix() -> i64 {
    chrono::Utc::now().timestamp()
}

/// What is believed in is none that another user owns, can write, or can put another in place of:
/// it would let in whom that user likes.
fn refuse_foreign(what: &str, path: &Path) -> Result<(), Report> {
    let Some(cause) = foreign_file(path) else { return Ok(()) };
    Err(Report::new(ReportKind::Denied, format!("cannot trust the {what} in `{}`", path.display()))
        .cause(cause)
        .state("nothing was started; stored data is untouched")
        .hint(
            "`chown` what the cause names to the node's user or root, and `chmod go-w` it, once \
             you know what is in it; each folder on the path counts",
        ))
}

/// A private key is none that every user may read, that more than its owner may write, or that is
/// another user's.
fn refuse_open_key(path: &Path) -> Result<(), Report> {
    let Ok(found) = std::fs::metadata(path) else { return Ok(()) };
    let mode = found.permissions().mode() & 0o777;
    if mode & KEY_MODES_REFUSED == 0 {
        return refuse_foreign("private key", path);
    }
    let error = format!("cannot use the private key in `{}`", path.display());
    Err(Report::new(ReportKind::Denied, error)
        .cause(format!("other users can read or write it: its mode is {mode:04o}"))
        .state("nothing was started; stored data is untouched")
        .hint(format!(
            "`chmod 600 {}` keeps it to its owner (640 to its group, too); make a new key where \
             others may have read it",
            path.display()
        )))
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, Report> {
    let pem = pem("certificate", path)?;
    let read: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&pem).collect();
    let chain = read.map_err(|e| unusable("certificate", path, &e.to_string()))?;
    if chain.is_empty() {
        return Err(unusable("certificate", path, "the file holds no certificate"));
    }
    Ok(chain)
}

fn pem(what: &str, path: &Path) -> Result<Vec<u8>, Report> {
    // A pipe that nothing is written into would be waited for, and files after it never read.
    if std::fs::metadata(path).is_ok_and(|found| !found.is_file()) {
        return Err(unusable(what, path, "it is no file"));
    }
    crate::config::read_small(path, FILE_BYTES_MAX)
        .map_err(|cause| unusable(what, path, &cause.to_string()))
}

/// What to do about a certificate of an earlier version.
const HINT_VERSION: &str = "issue it again with an extension, such as subjectAltName: \
                            `openssl x509 -req` writes version 3 with `-extfile FILE`";
/// What the verifier says of one that a client shows.
const EARLIER_VERSION: &str = "UnsupportedCertVersion";

fn unusable(what: &str, path: &Path, cause: &str) -> Report {
    Report::new(ReportKind::Invalid, format!("cannot use the {what} in `{}`", path.display()))
        .cause(cause)
        .state("nothing was started")
        .hint("set tls_certificate and tls_key to PEM files that belong together")
}

const BROKEN: SessionError = SessionError { reason: "the client broke TLS" };

/// What went wrong, in a text that an operator can act on.
fn broken(error: &rustls::Error) -> SessionError {
    use rustls::AlertDescription as Alert;
    use rustls::CertificateError as Bad;
    let reason = match error {
        rustls::Error::NoCertificatesPresented => "the client showed no certificate",
        rustls::Error::InvalidCertificate(why) => match why {
            Bad::Expired | Bad::ExpiredContext { .. } => "the client's certificate has expired",
            Bad::NotValidYet | Bad::NotValidYetContext { .. } => {
                "the client's certificate is not valid yet, by this node's clock"
            }
            Bad::UnknownIssuer | Bad::BadSignature => {
                "the client's certificate is of an authority that is not in `tls_client_ca`"
            }
            Bad::InvalidPurpose | Bad::InvalidPurposeContext { .. } => {
                "the client's certificate is not one for clients"
            }
            Bad::Other(why) if why.to_string() == EARLIER_VERSION => {
                "the client's certificate is of an earlier version of X.509 than 3"
            }
            _ => "the client's certificate is not valid",
        },
        rustls::Error::AlertReceived(
            Alert::BadCertificate
            | Alert::CertificateExpired
            | Alert::CertificateUnknown
            | Alert::UnknownCA
            | Alert::UnsupportedCertificate,
        ) => "the client did not take the node's certificate",
        rustls::Error::PeerIncompatible(_) => {
            "the client and the node have no version or cipher of TLS in common"
        }
        _ => BROKEN.reason,
    };
    SessionError { reason }
}

/// A TLS connection that opens received bytes record by record.
pub struct TlsStream {
    connection: ServerConnection,
}

impl TlsStream {
    /// A connection that has not seen a byte yet.
    ///
    /// # Errors
    /// [`SessionError`] when the configuration offers no common ground at all.
    pub fn new(config: Arc<ServerConfig>) -> Result<TlsStream, SessionError> {
        let mut connection = ServerConnection::new(config).map_err(|_| BROKEN)?;
        // Replies are bounded by the shard, which must not see half of one refused.
        connection.set_buffer_limit(None);
        Ok(TlsStream { connection })
    }

    /// Whether clear bytes may not flow yet.
    #[must_use]
    pub fn is_handshaking(&self) -> bool {
        self.connection.is_handshaking()
    }

    /// The names of the certificate that the client has shown, once the handshake has verified it.
    #[must_use]
    pub fn client_names(&self) -> Option<CertificateNames> {
        let chain = self.connection.peer_certificates()?;
        chain.first().map(|certificate| CertificateNames::of(certificate))
    }

    /// Opens the record at the front of `wire` and returns its length, or `None` when it is not
    /// whole yet.
    ///
    /// # Errors
    /// [`SessionError`] when the bytes are no record, or do not authenticate.
    pub fn open_record(
        &mut self,
        wire: &[u8],
        clear: &mut Vec<u8>,
    ) -> Result<Option<usize>, SessionError> {
        let Some(head) = wire.get(..RECORD_HEAD_BYTES) else { return Ok(None) };
        let body = usize::from(u16::from_be_bytes([head[3], head[4]]));
        if body > RECORD_BODY_BYTES_MAX {
            return Err(BROKEN);
        }
        let Some(record) = wire.get(..RECORD_HEAD_BYTES + body) else { return Ok(None) };
        self.feed(record, clear)?;
        Ok(Some(record.len()))
    }

    /// Opens all of `wire`; returns false when the peer has closed.
    fn feed(&mut self, mut wire: &[u8], clear: &mut Vec<u8>) -> Result<bool, SessionError> {
        loop {
            if !wire.is_empty() {
                let read = self.connection.read_tls(&mut wire).map_err(|_| BROKEN)?;
                if read == 0 {
                    return Ok(false);
                }
            }
            let state = self.connection.process_new_packets().map_err(|error| broken(&error))?;
            let start = clear.len();
            clear.resize(start + state.plaintext_bytes_to_read(), 0);
            self.connection.reader().read_exact(&mut clear[start..]).map_err(|_| BROKEN)?;
            if state.peer_has_closed() {
                return Ok(false);
            }
            if wire.is_empty() {
                return Ok(true);
            }
        }
    }

    /// Appends what TLS itself has to say.
    ///
    /// # Errors
    /// [`SessionError`] when the connection can no longer encrypt.
    pub fn take_output(&mut self, wire: &mut Vec<u8>) -> Result<(), SessionError> {
        while self.connection.wants_write() {
            self.connection.write_tls(wire).map_err(|_| BROKEN)?;
        }
        Ok(())
    }

    /// Encrypts `clear`, appending records to `wire`.
    ///
    /// # Errors
    /// [`SessionError`] when the connection can no longer encrypt.
    pub fn seal(&mut self, clear: &[u8], wire: &mut Vec<u8>) -> Result<(), SessionError> {
        self.connection.writer().write_all(clear).map_err(|_| BROKEN)?;
        self.take_output(wire)
    }

    /// The cipher of the transmission phase. `clear` was opened already and comes first.
    #[must_use]
    pub fn into_cipher(self, clear: Vec<u8>) -> TlsCipher {
        TlsCipher { stream: self, opened: clear }
    }
}

/// TLS behind the border that the engine knows.
pub struct TlsCipher {
    stream: TlsStream,
    /// Opened before the connection changed hands.
    opened: Vec<u8>,
}

impl Cipher for TlsCipher {
    fn open(&mut self, wire: &[u8], clear: &mut Vec<u8>) -> Result<bool, SessionError> {
        clear.append(&mut self.opened);
        self.stream.feed(wire, clear)
    }
    fn seal(&mut self, clear: &[u8], wire: &mut Vec<u8>) -> Result<(), SessionError> {
        self.stream.seal(clear, wire)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use layby_types::Rng;
    use rcgen::{CertifiedKey, generate_simple_self_signed};
    use rustls::pki_types::ServerName;
    use rustls::{ClientConfig, ClientConnection};
    use tempfile::TempDir;

    /// A certificate for `localhost`, its key, and a client that trusts it.
    pub(crate) struct Certificate {
        pub(crate) dir: TempDir,
        pub(crate) nbd: NbdConfig,
        pub(crate) client: Arc<ClientConfig>,
    }

    impl Certificate {
        pub(crate) fn new() -> Certificate {
            let CertifiedKey { cert, signing_key } =
                generate_simple_self_signed(vec!["localhost".to_owned()]).expect("a certificate");
            let dir = TempDir::new().expect("a temporary directory");
            let (cert_path, key_path) = (dir.path().join("c.pem"), dir.path().join("k.pem"));
            std::fs::write(&cert_path, cert.pem()).expect("a writable directory");
            std::fs::write(&key_path, signing_key.serialize_pem()).expect("a writable directory");
            let own = std::fs::Permissions::from_mode(0o600);
            std::fs::set_permissions(&key_path, own).expect("the test's own file");
            let mut roots = RootCertStore::empty();
            roots.add(cert.der().clone()).expect("a good certificate");
            let provider = Arc::new(rustls::crypto::ring::default_provider());
            let client = ClientConfig::builder_with_provider(provider)
                .with_safe_default_protocol_versions()
                .expect("ring supports the default versions")
                .with_root_certificates(roots)
                .with_no_client_auth();
            let text =
                "[nbd]\ntls = \"required\"\ntls_certificate = \"c.pem\"\ntls_key = \"k.pem\"\n";
            let overrides = crate::config::Overrides {
                dir: Some(dir.path().into()),
                ..crate::config::Overrides::default()
            };
            let config = crate::config::Config::parse(None, text, &overrides).expect("good");
            Certificate { dir, nbd: config.nbd, client: Arc::new(client) }
        }

        pub(crate) fn client(&self) -> ClientConnection {
            let name = ServerName::try_from("localhost").expect("a name");
            ClientConnection::new(Arc::clone(&self.client), name).expect("a client")
        }
    }

    /// What `openssl x509 -req` makes without extensions.
    const V1: &str = "-----BEGIN CERTIFICATE-----\n\
        MIIBFTCBvQIUHmw27gIAk8CzzjtqmpXCv3kQBqkwCgYIKoZIzj0EAwIwDTELMAkG\n\
        A1UEAwwCdjEwIBcNMjYxMTI5MTcyMjUyWhgPMjEyNjExMDUxNzIyNTJaMA0xCzAJ\n\
        BgNVBAMMAnYxMFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAEq5SK3D8fyE764F7b\n\
        K7/jxC4oOk4njWOLggsLJQv++tTjbuNNgwPVr64WoUWujYzz0OpyYlXFNIj2NOOU\n\
        Ela3JDAKBggqhkjOPQQDAgNHADBEAiBx0g7XanyOnUGX/DWbUmxxYIl+jZxGdxxv\n\
        UvELKwOopAIgc8+6DMezJlIuVaYoZaJt2qjqhGdQ6KD4URtNhX2+jP8=\n\
        -----END CERTIFICATE-----\n";

    /// Goal: a certificate of X.509 version 1 is refused in words that say so, the node's own with
    /// what to do, a client's by what it is told; an authority's own behind the node's is taken.
    /// Method: one in the place of each.
    #[test]
    fn earlier_versions_of_certificates_are_named() {
        let own = Certificate::new();
        let path = own.dir.path().join("c.pem");
        let leaf = std::fs::read_to_string(&path).expect("it was written");
        std::fs::write(&path, leaf + V1).expect("a writable directory");
        server_config(&own.nbd).expect("the node's own is of version 3");
        std::fs::write(&path, V1).expect("a writable directory");
        let report = server_config(&own.nbd).expect_err("version 1").to_string();
        for word in ["c.pem", "X.509 version 1", "nothing was started", "-extfile"] {
            assert!(report.contains(word), "`{word}` is missing: {report}");
        }
        let v1 = CertificateDer::from_pem_slice(V1.as_bytes()).expect("PEM");
        let mut roots = RootCertStore::empty();
        roots.add(v1.clone()).expect("an authority may be of version 1");
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
        let verifier = verifier.build().expect("there is an authority");
        let time = std::time::Duration::from_secs(1_800_000_000);
        let now = rustls::pki_types::UnixTime::since_unix_epoch(time);
        let refused = verifier.verify_client_cert(&v1, &[], now).expect_err("version 1");
        assert!(broken(&refused).reason.contains("earlier version of X.509"), "{refused:?}");
    }

    /// Both ends in memory, past the handshake.
    fn established() -> (TlsStream, ClientConnection) {
        let certificate = Certificate::new();
        let config = server_config(&certificate.nbd).expect("good files");
        let mut server = TlsStream::new(config).expect("a server");
        let mut client = certificate.client();
        for _ in 0..10 {
            let (mut up, mut down, mut clear) = (Vec::new(), Vec::new(), Vec::new());
            while client.wants_write() {
                client.write_tls(&mut up).expect("a Vec takes all");
            }
            while let Some(length) = server.open_record(&up, &mut clear).expect("good records") {
                up.drain(..length);
            }
            assert!(up.is_empty() && clear.is_empty());
            server.take_output(&mut down).expect("a Vec takes all");
            let mut rest = down.as_slice();
            while !rest.is_empty() {
                client.read_tls(&mut rest).expect("a slice");
                client.process_new_packets().expect("a good server");
            }
            if !server.is_handshaking() && !client.is_handshaking() && !client.wants_write() {
                return (server, client);
            }
        }
        panic!("the handshake does not end");
    }

    fn sealed(client: &mut ClientConnection, clear: &[u8]) -> Vec<u8> {
        client.set_buffer_limit(None);
        client.writer().write_all(clear).expect("buffered");
        let mut wire = Vec::new();
        while client.wants_write() {
            client.write_tls(&mut wire).expect("a Vec takes all");
        }
        wire
    }

    /// Goal: the connection changes hands without loss. Method: three messages; the first is opened
    /// during negotiation, half of it is kept, the rest goes through the cipher in random pieces,
    /// and the answer comes back.
    #[test]
    fn cipher_takes_over_without_loss() {
        let (mut server, mut client) = established();
        let mut rng = Rng::new(5);
        let mut wire = sealed(&mut client, b"handshake+early");
        let mut long = vec![0; 100_000];
        rng.fill(&mut long);
        wire.extend(sealed(&mut client, &long));
        let mut clear = Vec::new();
        let length = server.open_record(&wire, &mut clear).expect("good").expect("whole");
        assert_eq!(clear, b"handshake+early");
        let mut cipher = server.into_cipher(clear.split_off(10));
        let (mut opened, mut rest) = (Vec::new(), &wire[length..]);
        while !rest.is_empty() {
            let piece = usize::try_from(rng.below(5000) + 1).expect("small").min(rest.len());
            assert_eq!(cipher.open(&rest[..piece], &mut opened), Ok(true));
            rest = &rest[piece..];
        }
        assert_eq!(&opened[..5], b"early");
        assert!(opened[5..] == long[..]);
        let mut down = Vec::new();
        cipher.seal(&long, &mut down).expect("open");
        let (mut rest, mut answer) = (down.as_slice(), Vec::new());
        while !rest.is_empty() {
            client.read_tls(&mut rest).expect("a slice");
            let state = client.process_new_packets().expect("good records");
            let start = answer.len();
            answer.resize(start + state.plaintext_bytes_to_read(), 0);
            client.reader().read_exact(&mut answer[start..]).expect("announced");
        }
        assert!(answer == long);
        client.send_close_notify();
        assert_eq!(cipher.open(&sealed(&mut client, b""), &mut opened), Ok(false));
    }

    /// Goal: damaged and foreign bytes end the connection and nothing else. Method: one flipped bit
    /// of a record, a plain request, a record that is too long.
    #[test]
    fn damaged_records_are_refused() {
        let (server, mut client) = established();
        let mut wire = sealed(&mut client, b"request");
        *wire.last_mut().expect("a record") ^= 1;
        let mut cipher = server.into_cipher(Vec::new());
        assert!(cipher.open(&wire, &mut Vec::new()).is_err());
        for bytes in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[22, 3, 3, 0xff, 0xff]] {
            let (mut server, _) = established();
            let refused = server.open_record(bytes, &mut Vec::new());
            assert!(refused.is_err() || refused == Ok(None), "{bytes:?}");
        }
    }

    /// Goal: a wrong file is named. Method: a missing file, one without a certificate, a key that
    /// belongs to another certificate.
    #[test]
    fn unusable_files_are_named() {
        let good = Certificate::new();
        let mut wrong = good.nbd.clone();
        wrong.tls_certificate = Some(good.dir.path().join("none.pem"));
        assert!(server_config(&wrong).expect_err("missing").error.contains("none.pem"));
        wrong.tls_certificate.clone_from(&good.nbd.tls_key);
        assert!(server_config(&wrong).expect_err("a key").error.contains("k.pem"));
        let other = Certificate::new();
        wrong.tls_certificate.clone_from(&other.nbd.tls_certificate);
        assert!(server_config(&wrong).expect_err("another's").error.contains("c.pem"));
    }

    /// Goal: authorities and a key that another user can change are refused, since they decide who
    /// enters. Method: modes; as root, another owner; a folder in which others can replace them.
    #[test]
    fn files_of_other_users_are_not_trusted() {
        let good = Certificate::new();
        let (folder, key) = (good.dir.path(), good.dir.path().join("k.pem"));
        let ca = folder.join("ca.pem");
        std::fs::copy(folder.join("c.pem"), &ca).expect("the test's own");
        let nbd = NbdConfig { tls_client_ca: Some(ca.clone()), ..good.nbd.clone() };
        let set = |path: &Path, mode| {
            let mode = std::fs::Permissions::from_mode(mode);
            std::fs::set_permissions(path, mode).expect("the test's own");
        };
        let refused = |what: &str| {
            let refused = server_config(&nbd).expect_err(what);
            assert_eq!(refused.kind, ReportKind::Denied, "{what}: {refused}");
            refused.to_string()
        };
        set(&ca, 0o644);
        assert!(server_config(&nbd).is_ok());
        for mode in [0o666, 0o664] {
            set(&ca, mode);
            assert!(refused("others write it").contains(&format!("mode {mode:04o}")));
        }
        set(&ca, 0o644);
        set(folder, 0o777);
        assert!(refused("others replace it").contains("0777"));
        set(folder, 0o700);
        if rustix::process::geteuid().is_root() {
            for path in [&ca, &key] {
                std::os::unix::fs::chown(path, Some(65_534), None).expect("as root");
                assert!(refused("another's").contains("user 65534 owns it"));
                std::os::unix::fs::chown(path, Some(0), None).expect("as root");
            }
        }
        assert!(server_config(&nbd).is_ok());
    }
}
