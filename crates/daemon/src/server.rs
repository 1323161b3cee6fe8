//! NBD clients: accepted, bounded, negotiated with, and handed to the shard of their volume.
//!
//! How: a task per client drives the frontend's handshake (and TLS, where asked for) until the
//! client has entered an export; then socket, session and cipher move to the shard and the task
//! ends. The data path never comes back here.
//! Invariant: a client that stalls, haggles or floods before it has entered costs a place of a
//! small pool of such clients (see `places`) for at most `handshake_timeout` per option, and a
//! buffer of [`BUFFER_BYTES_MAX`].
//! Cost: negotiation only.

mod places;

use crate::clients::{ConnectedClient, NotLet, Visitor};
use crate::config::{Name, NbdConfig, Peer, TlsMode};
use crate::control::{Command, Control, PeerExports};
use crate::error::Report;
use crate::refusals::{Refusals, Refused};
use crate::session::Served;
use crate::sockets::AcceptFaults;
use crate::tls::{RECORD_BODY_BYTES_MAX, RECORD_HEAD_BYTES, TlsStream};
use crate::tls_files::{TlsFiles, tls_of};
use layby_engine::control::{ClientId, Connection};
use layby_frontend::nbd::{
    Handshake, HandshakeNext, HandshakeOptions, OPTION_LENGTH_MAX, TlsPolicy, Transmission,
};
use layby_types::SessionError;
use places::{Entered as Place, Half, Kind, Places};
use rustls::ServerConfig;
use std::io::{Error as IoError, ErrorKind as Io};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::{Mutex, oneshot};

/// Bytes of a client's that are held at once while it negotiates.
pub const BUFFER_BYTES_MAX: usize =
    2 * (OPTION_LENGTH_MAX as usize + RECORD_HEAD_BYTES + RECORD_BODY_BYTES_MAX);
/// How often `handshake_timeout`, which each option of a client has, all of them have together.
const HANDSHAKE_TIMEOUTS_MAX: u32 = 30;
/// How long a stop waits for the last clients' lines in the log.
const LINES_TIMEOUT: Duration = Duration::from_secs(1);
/// How long a client waits for the place of an idle one that is cut off.
const PLACE_TIMEOUT: Duration = Duration::from_secs(1);
const CONNECTIONS_TAKEN: &str = "as many clients as `connections_max` are connected";
const HALF_OPEN_TAKEN: &str = "newer clients came before it had chosen its volume";
const HANDSHAKE_TOO_LONG: &str = "the handshake took longer than `handshake_timeout`";
const WITHOUT_TLS: &str = "the client asked for a volume without TLS, which is required";

/// Serves NBD clients of one node.
#[derive(Clone)]
pub struct NbdServer {
    control: Arc<Control>,
    tls: Arc<TlsFiles>,
    mode: TlsMode,
    handshake_timeout: Duration,
    places: Places,
    /// Held by the one client for which an idle one is cut off.
    dropping: Arc<Mutex<()>>,
    refusals: Arc<Refusals>,
}

/// A client's socket, before it moves to a shard.
pub trait ClientSocket: AsyncRead + AsyncWrite + Unpin + Send + 'static {
    /// Takes the socket out of the runtime; it stays non-blocking.
    ///
    /// # Errors
    /// The system's error when it cannot be taken out.
    fn into_descriptor(self) -> std::io::Result<OwnedFd>;
}

impl ClientSocket for UnixStream {
    fn into_descriptor(self) -> std::io::Result<OwnedFd> {
        self.into_std().map(OwnedFd::from)
    }
}

impl ClientSocket for TcpStream {
    fn into_descriptor(self) -> std::io::Result<OwnedFd> {
        self.into_std().map(OwnedFd::from)
    }
}

impl NbdServer {
    /// A server for the node's volumes; reads the TLS files where TLS is configured.
    ///
    /// # Errors
    /// A report when a TLS file cannot be used.
    pub fn new(nbd: &NbdConfig, control: Arc<Control>) -> Result<NbdServer, Report> {
        Ok(NbdServer::with_tls(nbd, tls_of(nbd)?, control))
    }

    /// The same with TLS files that [`tls_of`] has read.
    #[must_use]
    pub fn with_tls(
        nbd: &NbdConfig,
        tls: Option<Arc<ServerConfig>>,
        control: Arc<Control>,
    ) -> NbdServer {
        let timeout = nbd.handshake_timeout.max(layby_types::Nanos(1));
        NbdServer {
            refusals: Arc::clone(&control.facts().refusals),
            control,
            tls: Arc::new(TlsFiles::new(nbd, tls)),
            mode: nbd.tls,
            handshake_timeout: Duration::from_nanos(timeout.0),
            places: Places::new(nbd.connections_max, nbd.half_open_max),
            dropping: Arc::default(),
        }
    }

    /// The TLS files, to be read again.
    pub(crate) fn tls_files(&self) -> Arc<TlsFiles> {
        Arc::clone(&self.tls)
    }

    /// Writes what the log has not said yet, when all shards have stopped.
    pub(crate) async fn finish_log(&self) {
        // A client that hangs in its handshake has no line anyway.
        drop(tokio::time::timeout(LINES_TIMEOUT, self.places.all_left()).await);
        self.refusals.flush();
    }

    /// Accepts clients of the unix socket until the task is dropped.
    pub async fn accept_unix(self, listener: &UnixListener) {
        let mut faults = AcceptFaults::default();
        loop {
            match listener.accept().await {
                Ok((socket, _)) => self.admit(socket, Peer::Unix, "unix".to_owned()),
                Err(cause) => faults.rest("cannot accept a client", &cause).await,
            }
        }
    }

    /// Accepts clients of a TCP address until the task is dropped.
    pub async fn accept_tcp(self, listener: &TcpListener) {
        let mut faults = AcceptFaults::default();
        loop {
            match listener.accept().await {
                Ok((socket, address)) => {
                    if let Err(cause) = prepare_tcp(&socket) {
                        tracing::debug!(%address, %cause, "a client left at once");
                    } else {
                        self.admit(socket, Peer::Network(address.ip()), address.to_string());
                    }
                }
                Err(cause) => faults.rest("cannot accept a client", &cause).await,
            }
        }
    }

    /// Negotiates with a client in a task of its own, which ends when too many others come.
    fn admit(&self, socket: impl ClientSocket, peer: Peer, name: String) {
        let kind = if peer == Peer::Unix { Kind::Unix } else { Kind::Network };
        let (half, has_dropped) = self.places.begin(kind);
        if has_dropped {
            let unknown = Refused { peer: "of many".to_owned(), volume: None };
            self.refusals.note(HALF_OPEN_TAKEN, &unknown);
        }
        let server = self.clone();
        half.spawn(|half| async move { server.serve(socket, peer, name, half).await });
    }

    /// Negotiates with one client and hands it over.
    async fn serve(&self, socket: impl ClientSocket, peer: Peer, name: String, half: Half) {
        let negotiation = Negotiation::new(self, socket, peer, &half);
        let limit = self.handshake_timeout * HANDSHAKE_TIMEOUTS_MAX;
        let ended = tokio::time::timeout(limit, negotiation.run()).await;
        let refuse =
            |cause, volume| self.refusals.note(cause, &Refused { peer: name.clone(), volume });
        match ended {
            Err(_) | Ok(Err(Ending::Slow)) => refuse(HANDSHAKE_TOO_LONG, None),
            Ok(Err(Ending::Refused { cause, volume })) => refuse(cause, volume),
            Ok(Err(Ending::Broke(SessionError { reason }))) => refuse(reason, None),
            Ok(Err(Ending::Left)) => tracing::debug!(peer = name, "a client left"),
            Ok(Err(Ending::Failed(cause))) => tracing::debug!(peer = name, %cause, "client lost"),
            Ok(Ok(entered)) => {
                let volume = Some(entered.transmission.export.name.clone());
                let Some(place) = self.enter(half.kind, entered.volume()).await else {
                    return refuse(CONNECTIONS_TAKEN, volume);
                };
                if let Err(NotLet { cause, .. }) = self.hand_over(entered, name.clone(), place) {
                    refuse(cause, volume);
                }
            }
        }
    }

    /// A place with a volume; where there is none, that of an idle client.
    async fn enter(&self, kind: Kind, volume: u32) -> Option<Place> {
        let volumes = self.control.view().volumes().count() as u32;
        let enter = || self.places.enter(kind, volume, volumes);
        if let Some(place) = enter() {
            return Some(place);
        }
        let _dropping = self.dropping.lock().await;
        if let Some(place) = enter() {
            return Some(place);
        }
        let left = self.places.left();
        if self.control.drop_idle().await {
            drop(tokio::time::timeout(PLACE_TIMEOUT, left).await);
        }
        enter()
    }

    /// Hands a client to the shard of its volume, unless that has been closed to it meanwhile.
    fn hand_over(&self, entered: Entered, peer: String, place: Place) -> Result<(), NotLet> {
        let Entered { visitor, transmission, socket, cipher, received, pending } = entered;
        let Transmission { export, session } = transmission;
        let volume = self.control.deal(export.volume);
        let name: Name = export.name.parse().expect("volumes are found by their names");
        let client = ConnectedClient {
            visitor,
            peer: peer.clone(),
            volume: name,
            part: volume,
            since: chrono::Utc::now(),
            entered: tokio::time::Instant::now(),
        };
        self.control.enter(client, |client| {
            let is_encrypted = cipher.is_some();
            tracing::info!(
                peer,
                volume = export.name,
                client = client.0,
                tls = is_encrypted,
                "client connected"
            );
            let ending = log_end(&self.control, client, (peer.clone(), export.name.clone()), place);
            let session = Served::new(session, ending);
            let socket = Some(socket);
            let connection =
                Connection { client, socket, cipher, session, volume, received, pending, peer };
            if self.control.port_of(volume).send(Command::Attach(Box::new(connection))).is_err() {
                tracing::error!(volume = export.name, "the volume's shard has ended");
            }
        })
    }

    /// On the unix socket nobody listens in, so TLS is offered there but not demanded.
    fn policy(&self, peer: Peer) -> TlsPolicy {
        match (self.mode, peer) {
            (TlsMode::Off, _) => TlsPolicy::Off,
            (TlsMode::Required, Peer::Network(_)) => TlsPolicy::Required,
            (TlsMode::Allowed, _) | (TlsMode::Required, Peer::Unix) => TlsPolicy::Allowed,
        }
    }
}

/// Has the log say when the session has ended that holds the result; the client is forgotten and
/// its place is free then.
fn log_end(
    control: &Arc<Control>,
    client: ClientId,
    (peer, volume): (String, String),
    place: Place,
) -> oneshot::Sender<()> {
    let (held, ended) = oneshot::channel();
    let control = Arc::downgrade(control);
    tokio::spawn(async move {
        // Nothing is ever sent: the end of the sender is what is waited for.
        drop(ended.await);
        if let Some(control) = control.upgrade() {
            control.forget_client(client);
        }
        tracing::info!(peer, volume, client = client.0, "client disconnected");
        drop(place);
    });
    held
}

fn prepare_tcp(socket: &TcpStream) -> std::io::Result<()> {
    socket.set_nodelay(true)?;
    // A client whose machine died would otherwise hold its place for ever.
    rustix::net::sockopt::set_socket_keepalive(socket, true)?;
    Ok(())
}

/// Why a client never entered an export.
enum Ending {
    Left,
    /// It was told why, and left.
    Refused {
        cause: &'static str,
        volume: Option<String>,
    },
    Broke(SessionError),
    Failed(IoError),
    /// An option took longer than it may.
    Slow,
}

/// Some clients say no more where they do not take the node's certificate, or have none to show.
const LEFT_IN_TLS: SessionError = SessionError { reason: "the client left while TLS began" };

impl From<IoError> for Ending {
    fn from(cause: IoError) -> Self {
        if cause.kind() == Io::UnexpectedEof { Ending::Left } else { Ending::Failed(cause) }
    }
}

impl From<SessionError> for Ending {
    fn from(broke: SessionError) -> Self {
        Ending::Broke(broke)
    }
}

/// A client that has entered an export.
struct Entered {
    visitor: Visitor,
    transmission: Transmission,
    socket: OwnedFd,
    cipher: Option<Box<dyn layby_types::Cipher>>,
    received: Vec<u8>,
    pending: Vec<u8>,
}

impl Entered {
    /// The number of its volume.
    fn volume(&self) -> u32 {
        self.transmission.export.volume.0
    }
}

/// One client's way to its export.
struct Negotiation<'a, T> {
    half: &'a Half,
    socket: T,
    option_timeout: Duration,
    exports: PeerExports,
    handshake: Handshake,
    tls_config: Option<Arc<ServerConfig>>,
    tls: Option<TlsStream>,
    /// As received; under TLS not yet opened.
    wire: Vec<u8>,
    /// For the handshake to read.
    clear: Vec<u8>,
}

impl<'a, T: ClientSocket> Negotiation<'a, T> {
    fn new(server: &NbdServer, socket: T, peer: Peer, half: &'a Half) -> Self {
        Negotiation {
            half,
            socket,
            option_timeout: server.handshake_timeout,
            exports: server.control.exports_for(peer),
            handshake: Handshake::new(HandshakeOptions { tls: server.policy(peer) }),
            tls_config: server.tls.current(),
            tls: None,
            wire: Vec::new(),
            clear: Vec::new(),
        }
    }

    async fn run(mut self) -> Result<Entered, Ending> {
        match self.negotiate().await {
            Ok((transmission, pending)) => self.enter(transmission, pending),
            Err(ending) => Err(self.refusal().unwrap_or(ending)),
        }
    }

    /// What the client was refused before it left.
    fn refusal(&self) -> Option<Ending> {
        if let Some((volume, cause)) = self.exports.refused() {
            return Some(Ending::Refused { cause, volume: Some(volume) });
        }
        let lacked_tls = self.handshake.was_refused_without_tls();
        lacked_tls.then_some(Ending::Refused { cause: WITHOUT_TLS, volume: None })
    }

    /// Drives the handshake up to an export; what is still to be sent comes with it.
    async fn negotiate(&mut self) -> Result<(Transmission, Vec<u8>), Ending> {
        let mut out = Vec::new();
        self.handshake.greeting(&mut out);
        loop {
            // A client that lists many exports sends many options; each has its own time-out.
            let option = tokio::time::timeout(self.option_timeout, self.answer_one(&mut out));
            if let Some(transmission) = option.await.map_err(|_| Ending::Slow)?? {
                return Ok((transmission, out));
            }
        }
    }

    /// Answers the next option; one that chooses an export ends the handshake.
    async fn answer_one(&mut self, out: &mut Vec<u8>) -> Result<Option<Transmission>, Ending> {
        loop {
            let step = match self.handshake.on_bytes(&self.clear, &self.exports, out) {
                Ok(step) => step,
                Err(broke) => {
                    self.send(out).await?;
                    return Err(broke.into());
                }
            };
            self.clear.drain(..step.consumed);
            if let HandshakeNext::Ready(transmission) = step.next {
                return Ok(Some(*transmission));
            }
            self.send(out).await?;
            match step.next {
                HandshakeNext::NeedMore { wanted } => self.fill(wanted).await?,
                HandshakeNext::StartTls => self.start_tls().await?,
                HandshakeNext::Aborted => return Err(Ending::Left),
                HandshakeNext::Answered | HandshakeNext::Ready(_) => return Ok(None),
            }
        }
    }

    fn enter(self, transmission: Transmission, pending: Vec<u8>) -> Result<Entered, Ending> {
        let (cipher, received) = match self.tls {
            None => (None, self.clear),
            Some(tls) => {
                let cipher: Box<dyn layby_types::Cipher> = Box::new(tls.into_cipher(self.clear));
                (Some(cipher), self.wire)
            }
        };
        let socket = self.socket.into_descriptor()?;
        let visitor = self.exports.visitor().clone();
        Ok(Entered { visitor, transmission, socket, cipher, received, pending })
    }

    /// Sends clear bytes, encrypted once TLS stands.
    async fn send(&mut self, out: &mut Vec<u8>) -> Result<(), Ending> {
        match &mut self.tls {
            None => self.socket.write_all(out).await?,
            Some(tls) => {
                let mut wire = Vec::new();
                tls.seal(out, &mut wire)?;
                self.socket.write_all(&wire).await?;
            }
        }
        out.clear();
        Ok(())
    }

    /// Receives until at least `wanted` clear bytes are there.
    async fn fill(&mut self, wanted: usize) -> Result<(), Ending> {
        while self.clear.len() < wanted {
            if self.tls.is_some() {
                self.open_one_record().await?;
            } else {
                let Negotiation { socket, clear, .. } = self;
                receive(socket, clear).await?;
                self.half.note();
            }
        }
        Ok(())
    }

    async fn open_one_record(&mut self) -> Result<(), Ending> {
        let tls = self.tls.as_mut().expect("called under TLS only");
        loop {
            if let Some(length) = tls.open_record(&self.wire, &mut self.clear)? {
                self.wire.drain(..length);
                return Ok(());
            }
            receive(&mut self.socket, &mut self.wire).await?;
            self.half.note();
        }
    }

    async fn start_tls(&mut self) -> Result<(), Ending> {
        let config = self.tls_config.clone().expect("TLS is offered only where it is configured");
        self.tls = Some(TlsStream::new(config)?);
        while self.tls.as_ref().is_some_and(TlsStream::is_handshaking) {
            let opened = self.open_one_record().await;
            let tls = self.tls.as_mut().expect("set above");
            let mut wire = Vec::new();
            // An alert tells the client why, so it goes out before the error does.
            tls.take_output(&mut wire)?;
            self.socket.write_all(&wire).await?;
            opened.map_err(|ending| match ending {
                Ending::Left => Ending::Broke(LEFT_IN_TLS),
                ending => ending,
            })?;
        }
        let names = self.tls.as_ref().and_then(TlsStream::client_names);
        names.into_iter().for_each(|names| self.exports.set_certificate(names));
        self.handshake.tls_established();
        Ok(())
    }
}

/// Receives what is there, at least one byte.
async fn receive(
    socket: &mut (impl AsyncRead + Unpin),
    buffer: &mut Vec<u8>,
) -> Result<(), Ending> {
    let room = BUFFER_BYTES_MAX.saturating_sub(buffer.len()).min(RECORD_BODY_BYTES_MAX);
    if room == 0 {
        return Err(SessionError { reason: "the client sent more than it was asked for" }.into());
    }
    let start = buffer.len();
    buffer.resize(start + room, 0);
    let received = socket.read(&mut buffer[start..]).await;
    buffer.truncate(start + *received.as_ref().unwrap_or(&0));
    if received? == 0 { Err(Ending::Left) } else { Ok(()) }
}

/// A path as a URI holds it.
fn encoded(path: &Path) -> String {
    use std::fmt::Write as _;
    let mut text = String::new();
    for &byte in path.as_os_str().as_bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' | b'/' => {
                text.push(char::from(byte));
            }
            // Writing to a string cannot fail.
            _ => drop(write!(text, "%{byte:02X}")),
        }
    }
    text
}

/// Ready-to-paste addresses of a node's volumes.
#[must_use]
pub fn uris(nbd: &NbdConfig, unix: &[PathBuf], tcp: &[SocketAddr]) -> Vec<String> {
    let whole = |path: &PathBuf| std::path::absolute(path).unwrap_or_else(|_| path.clone());
    let unix = unix.iter().map(whole);
    let unix = unix.map(|path| format!("nbd+unix:///VOLUME?socket={}", encoded(&path)));
    let scheme = if nbd.tls == TlsMode::Off { "nbd" } else { "nbds" };
    let tcp = tcp.iter().map(|address| format!("{scheme}://{address}/VOLUME"));
    unix.chain(tcp).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::tests::MockNode;
    use crate::tls::tests::Certificate;
    use layby_frontend::nbd::{ClientHandshake, ClientNext, ClientOptions};
    use std::io::{Read, Write};

    fn server(node: &MockNode, nbd: &NbdConfig) -> NbdServer {
        NbdServer::new(nbd, Arc::clone(&node.control)).expect("a good configuration")
    }

    fn place(server: &NbdServer) -> Half {
        server.places.begin(Kind::Unix).0
    }

    /// Reads one message of `length` bytes.
    async fn read(client: &mut UnixStream, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        client.read_exact(&mut bytes).await.expect("the server answers");
        bytes
    }

    /// Drives the frontend's own client up to the export.
    async fn enter(client: &mut UnixStream, export: &str) -> Result<u64, String> {
        let options =
            ClientOptions { export: export.to_owned(), structured: true, block_status: true };
        let mut handshake = ClientHandshake::new(options);
        let (mut received, mut out) = (Vec::new(), Vec::new());
        loop {
            let step = handshake.on_bytes(&received, &mut out).map_err(|e| e.to_string())?;
            received.drain(..step.consumed);
            client.write_all(&out).await.map_err(|e| e.to_string())?;
            out.clear();
            match step.next {
                ClientNext::Ready(session) => return Ok(session.export().size),
                ClientNext::Continue => {}
                ClientNext::NeedMore { .. } => {
                    receive(client, &mut received).await.map_err(|_| "closed".to_owned())?;
                }
            }
        }
    }

    /// Goal: a client reaches the shard of its volume. Method: the frontend's client over a socket
    /// pair; the mock shard remembers who was attached; the place is free when the shard drops it.
    #[tokio::test]
    async fn client_is_handed_to_its_shard() {
        let node = MockNode::new("[volume.a]\nsize = \"1MiB\"\n[volume.b]\nsize = \"2MiB\"\n");
        let server = server(&node, &node.control.facts().config.nbd.clone());
        let (mut client, socket) = UnixStream::pair().expect("a pair");
        let place = place(&server);
        let serving = server.serve(socket, Peer::Unix, "test".into(), place);
        let (size, ()) = tokio::join!(enter(&mut client, "b"), serving);
        assert_eq!(size, Ok(2 << 20));
        assert_eq!(node.shards[1].state().attached, [layby_types::VolumeId(1)]);
        server.places.all_left().await;
    }

    /// Goal: what a client may not have it does not get. Method: an unknown name and a volume with
    /// an allow-list for others.
    #[tokio::test]
    async fn forbidden_volumes_are_refused() {
        let node = MockNode::new("[volume.a]\nsize = \"1MiB\"\nallow = [\"10.0.0.0/8\"]\n");
        let server = server(&node, &node.control.facts().config.nbd.clone());
        for export in ["a", "b"] {
            let (mut client, socket) = UnixStream::pair().expect("a pair");
            let serving = server.serve(socket, Peer::Unix, "test".into(), place(&server));
            let task = async move {
                let refused = enter(&mut client, export).await;
                drop(client);
                refused
            };
            let (refused, ()) = tokio::join!(task, serving);
            assert!(refused.is_err(), "{export}");
        }
        assert!(node.shards[0].state().attached.is_empty());
    }

    /// Goal: a silent client is closed in time. Method: paused time runs to the deadline by itself.
    #[tokio::test(start_paused = true)]
    async fn silent_clients_are_closed() {
        let node = MockNode::new("");
        let server = server(&node, &node.control.facts().config.nbd.clone());
        let (mut client, socket) = UnixStream::pair().expect("a pair");
        server.serve(socket, Peer::Unix, "test".into(), place(&server)).await;
        let mut rest = Vec::new();
        client.read_to_end(&mut rest).await.expect("closed cleanly");
        assert_eq!(rest.len(), 18, "the greeting and nothing more");
    }

    /// Goal: a client that makes progress may send many options, within a bound; one that trickles
    /// the bytes of one option may not. Method: paused time; a list of exports every eight seconds,
    /// and one option byte by byte.
    #[tokio::test(start_paused = true)]
    async fn each_option_has_its_time() {
        const LIST: &[u8] = b"IHAVEOPT\0\0\0\x03\0\0\0\0";
        let node = MockNode::new("");
        let server = server(&node, &node.control.facts().config.nbd.clone());
        for (piece, least, most) in [(LIST.len(), 290, 310), (1, 8, 12)] {
            let (mut client, socket) = UnixStream::pair().expect("a pair");
            let begun = tokio::time::Instant::now();
            let serving = server.serve(socket, Peer::Unix, "test".into(), place(&server));
            let talking = async move {
                client.write_all(&[0, 0, 0, 1]).await.expect("open");
                for bytes in LIST.repeat(100).chunks(piece) {
                    if client.write_all(bytes).await.is_err() {
                        return;
                    }
                    // The clock is paused: it jumps ahead when nothing else can run.
                    tokio::time::sleep(Duration::from_secs(8)).await;
                }
            };
            let ended = async {
                serving.await;
                begun.elapsed().as_secs()
            };
            let took = tokio::join!(ended, talking).0;
            assert!((least..=most).contains(&took), "{took} s with {piece} bytes at a time");
        }
    }

    const STARTTLS: [u8; 16] = *b"IHAVEOPT\0\0\0\x05\0\0\0\0";

    /// Goal: a client enters its export inside TLS. Method: a rustls client over a socket pair, the
    /// option of STARTTLS written by hand; EXPORT_NAME inside; and a client that does not ask.
    #[tokio::test]
    async fn clients_enter_inside_tls() {
        let certificate = Certificate::new();
        let node = MockNode::new("[volume.a]\nsize = \"1MiB\"\n");
        let server = server(&node, &certificate.nbd);
        let peer = Peer::Network([127, 0, 0, 1].into());
        let (mut client, socket) = UnixStream::pair().expect("a pair");
        let serving = server.serve(socket, peer, "test".into(), place(&server));
        let task = async move {
            read(&mut client, 18).await;
            client.write_all(&[0, 0, 0, 1]).await.expect("open");
            client.write_all(&STARTTLS).await.expect("open");
            assert_eq!(read(&mut client, 20).await[12..16], [0, 0, 0, 1], "acknowledged");
            let mut tls = certificate.client();
            let mut wire = Vec::new();
            while tls.is_handshaking() {
                exchange(&mut client, &mut tls, &mut wire).await;
            }
            tls.writer().write_all(b"IHAVEOPT\0\0\0\x01\0\0\0\x01a").expect("buffered");
            exchange(&mut client, &mut tls, &mut wire).await;
            client
        };
        let _client = tokio::join!(task, serving).0;
        assert_eq!(node.shards[0].state().attached.len(), 1);
        let (mut client, socket) = UnixStream::pair().expect("a pair");
        let serving = server.serve(socket, peer, "test".into(), place(&server));
        let task = async move {
            let refused = enter(&mut client, "a").await;
            drop(client);
            refused
        };
        assert!(tokio::join!(task, serving).0.is_err(), "TLS is required on TCP");
    }

    /// Sends what the client has to say, then takes what the server answers, if it owes an answer.
    async fn exchange(
        client: &mut UnixStream,
        tls: &mut rustls::ClientConnection,
        wire: &mut Vec<u8>,
    ) {
        while tls.wants_write() {
            tls.write_tls(wire).expect("a Vec takes all");
        }
        client.write_all(wire).await.expect("open");
        wire.clear();
        if tls.is_handshaking() {
            let mut received = Vec::new();
            assert!(receive(client, &mut received).await.is_ok(), "the server answers");
            let mut rest = received.as_slice();
            while !rest.is_empty() {
                tls.read_tls(&mut rest).expect("a slice");
                tls.process_new_packets().expect("a good server");
            }
            let mut nothing = Vec::new();
            drop(tls.reader().read_to_end(&mut nothing));
        }
    }

    /// Goal: the node names addresses that clients take as they are. Method: both kinds.
    #[test]
    fn uris_can_be_pasted() {
        let certificate = Certificate::new();
        let address = SocketAddr::from(([127, 0, 0, 1], 10809));
        let uris = uris(&certificate.nbd, &["layby.sock".into()], &[address]);
        assert!(uris[0].starts_with("nbd+unix:///VOLUME?socket=/"));
        assert_eq!(uris[1], "nbds://127.0.0.1:10809/VOLUME");
    }
}
