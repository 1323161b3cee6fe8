//! An NBD client over a unix socket: one request at a time, or a window of them.
//!
//! How: the frontend's client session does the protocol; this moves bytes.
//! Invariant: an answer is matched to its request by cookie; a broken stream ends the client.
//! Cost: a copy of the data on each side. Not for: TLS and TCP; foreign clients test those.

use layby_frontend::nbd::{
    ClientError, ClientHandshake, ClientNext, ClientOptions, ClientSession, Content, Decoded,
};
use layby_types::Call;
use std::fmt;
use std::path::Path;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

/// Room made for each receive.
const RECEIVE_BYTES: usize = 256 << 10;

/// Why an NBD client gave up.
#[derive(Debug)]
pub enum NbdClientError {
    /// The socket failed or was closed.
    Io(std::io::Error),
    /// The server refused the export, or did not keep to the protocol.
    Protocol(ClientError),
    /// The server answered a request with this error value.
    Refused(u32),
}

impl fmt::Display for NbdClientError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NbdClientError::Io(cause) => cause.fmt(f),
            NbdClientError::Protocol(cause) => cause.fmt(f),
            NbdClientError::Refused(value) => write!(f, "the server answered with error {value}"),
        }
    }
}

impl std::error::Error for NbdClientError {}

impl From<std::io::Error> for NbdClientError {
    fn from(cause: std::io::Error) -> Self {
        NbdClientError::Io(cause)
    }
}

impl From<ClientError> for NbdClientError {
    fn from(cause: ClientError) -> Self {
        NbdClientError::Protocol(cause)
    }
}

/// A client that has entered an export.
#[derive(Debug)]
pub struct NbdClient {
    socket: UnixStream,
    session: ClientSession,
    received: Vec<u8>,
    /// Bytes at the front of `received` that have been read already.
    consumed: usize,
    out: Vec<u8>,
}

impl NbdClient {
    /// Connects to `socket` and enters `export`.
    ///
    /// # Errors
    /// [`NbdClientError`] when there is no server, or it refuses.
    pub async fn connect(socket: &Path, export: &str) -> Result<NbdClient, NbdClientError> {
        let mut socket = UnixStream::connect(socket).await?;
        let options =
            ClientOptions { export: export.to_owned(), structured: true, block_status: false };
        let mut handshake = ClientHandshake::new(options);
        let (mut received, mut out) = (Vec::new(), Vec::new());
        loop {
            let step = handshake.on_bytes(&received, &mut out)?;
            received.drain(..step.consumed);
            socket.write_all(&out).await?;
            out.clear();
            match step.next {
                ClientNext::Continue => {}
                ClientNext::NeedMore { .. } => receive(&mut socket, &mut received).await?,
                ClientNext::Ready(session) => {
                    return Ok(NbdClient { socket, session: *session, received, consumed: 0, out });
                }
            }
        }
    }

    /// Bytes of the export.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.session.export().size
    }

    /// Sends a request without waiting for its answer.
    ///
    /// # Errors
    /// [`NbdClientError::Io`] when the socket fails.
    pub async fn send(&mut self, call: &Call, payload: &[u8]) -> Result<(), NbdClientError> {
        self.session.encode(call, payload, &mut self.out);
        self.socket.write_all(&self.out).await?;
        self.out.clear();
        Ok(())
    }

    /// Waits for the next whole answer and returns its request's cookie. The data of a read is
    /// thrown away but for the pieces that `on_data` sees.
    ///
    /// # Errors
    /// [`NbdClientError`]; after `Refused` the connection goes on.
    pub async fn finish_one(
        &mut self,
        mut on_data: impl FnMut(u64, &[u8]),
    ) -> Result<u64, NbdClientError> {
        loop {
            let mut take = |content: Content<'_>| {
                if let Content::Data { offset, bytes } = content {
                    on_data(offset, bytes);
                }
            };
            match self.session.decode(&self.received[self.consumed..])? {
                Decoded::Incomplete { .. } => {
                    self.received.drain(..self.consumed);
                    self.consumed = 0;
                    receive(&mut self.socket, &mut self.received).await?;
                }
                Decoded::Part { consumed, content, .. } => {
                    take(content);
                    self.consumed += consumed;
                }
                Decoded::Reply { consumed, cookie, result } => {
                    let refused = result.map(take).err();
                    self.consumed += consumed;
                    return match refused {
                        None => Ok(cookie),
                        Some(value) => Err(NbdClientError::Refused(value)),
                    };
                }
            }
        }
    }

    /// Sends a request and waits for its answer.
    ///
    /// # Errors
    /// [`NbdClientError`]; after `Refused` the connection goes on.
    pub async fn call(&mut self, call: &Call, payload: &[u8]) -> Result<(), NbdClientError> {
        self.send(call, payload).await?;
        self.finish_one(|_, _| ()).await.map(drop)
    }

    /// Says goodbye.
    ///
    /// # Errors
    /// [`NbdClientError::Io`] when the socket fails.
    pub async fn disconnect(mut self) -> Result<(), NbdClientError> {
        self.session.encode_disconnect(&mut self.out);
        self.socket.write_all(&self.out).await?;
        Ok(())
    }
}

async fn receive(socket: &mut UnixStream, received: &mut Vec<u8>) -> Result<(), NbdClientError> {
    received.reserve(RECEIVE_BYTES);
    match socket.read_buf(received).await? {
        0 => Err(std::io::Error::from(std::io::ErrorKind::UnexpectedEof).into()),
        _ => Ok(()),
    }
}
