//! A small NBD client, written from the protocol's text and from nothing of ours.
//!
//! How: fixed newstyle handshake with `NBD_OPT_GO`, then simple replies; requests may be sent
//! without waiting for the replies of others. Invariant: any breach of the protocol by the server
//! panics; a connection that ends is [`Lost`], which a crash test expects.
//! Not for: structured replies and TLS, which foreign clients test.

use std::collections::BTreeMap;
use std::io::{self, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

const MAGIC: u64 = 0x4e42_444d_4147_4943;
const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;
const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
const REQUEST_MAGIC: u32 = 0x2560_9513;
const REPLY_MAGIC: u32 = 0x6744_6698;
const CLIENT_FLAGS: u32 = 0b11;
const OPTION_GO: u32 = 7;
const REPLY_ACK: u32 = 1;
const REPLY_INFO: u32 = 3;
const INFO_EXPORT: u16 = 0;
const FLAG_FUA: u16 = 1;
const OPTION_REPLY_BYTES_MAX: u32 = 64 << 10;

/// Longest that a reply may take; a server that does not answer counts as gone.
const PATIENCE: Duration = Duration::from_secs(60);

/// The server went away.
#[derive(Debug)]
pub struct Lost;

impl From<io::Error> for Lost {
    fn from(_: io::Error) -> Self {
        Lost
    }
}

/// A request of the transmission phase.
#[derive(Clone, Debug)]
pub enum Request {
    /// Read `length` bytes.
    Read {
        /// First byte.
        offset: u64,
        /// Bytes.
        length: u32,
    },
    /// Write the bytes; durable before the reply with `fua`.
    Write {
        /// First byte.
        offset: u64,
        /// New contents.
        data: Vec<u8>,
        /// Ask for durability.
        fua: bool,
    },
    /// Zero the range.
    Zero {
        /// First byte.
        offset: u64,
        /// Bytes.
        length: u32,
    },
    /// Give the range up.
    Trim {
        /// First byte.
        offset: u64,
        /// Bytes.
        length: u32,
    },
    /// Make completed writes durable.
    Flush,
}

/// An open export.
#[derive(Debug)]
pub struct Connection {
    stream: UnixStream,
    size: u64,
    cookie_next: u64,
    /// Bytes that the reply of each request in flight brings.
    in_flight: BTreeMap<u64, u32>,
}

impl Connection {
    /// Opens `export` on the server behind `socket`.
    ///
    /// # Errors
    /// [`Lost`] when the server goes away meanwhile.
    ///
    /// # Panics
    /// When the server refuses the export or breaks the protocol.
    pub fn open(socket: &Path, export: &str) -> Result<Connection, Lost> {
        let asked = Connection::ask(socket, export)?;
        Ok(asked.unwrap_or_else(|why| panic!("refused: {why}")))
    }

    /// Asks for an export, which the server may refuse with a reason.
    ///
    /// # Errors
    /// [`Lost`] when the server goes away meanwhile.
    ///
    /// # Panics
    /// As [`Connection::open`], but for a refusal.
    pub fn ask(socket: &Path, export: &str) -> Result<Result<Connection, String>, Lost> {
        let mut stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        assert_eq!(read_u64(&mut stream)?, MAGIC, "the server's greeting");
        assert_eq!(read_u64(&mut stream)?, OPTION_MAGIC, "the server's style");
        let server_flags = read_u16(&mut stream)?;
        assert!(server_flags & 1 == 1, "the server is not fixed newstyle: {server_flags:#x}");
        stream.write_all(&CLIENT_FLAGS.to_be_bytes())?;
        stream.write_all(&go(export))?;
        let size = option_replies(&mut stream)?;
        let opened = |size| Connection { stream, size, cookie_next: 1, in_flight: BTreeMap::new() };
        Ok(size.map(opened))
    }

    /// Bytes of the export.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Sends a request and returns its cookie; its reply comes from [`Connection::receive`].
    ///
    /// # Errors
    /// [`Lost`] when the server is gone.
    pub fn send(&mut self, request: &Request) -> Result<u64, Lost> {
        let (kind, flags, offset, length, data): (u16, u16, u64, u32, &[u8]) = match request {
            Request::Read { offset, length } => (0, 0, *offset, *length, &[]),
            Request::Write { offset, data, fua } => {
                let length = u32::try_from(data.len()).expect("tests write less than 4 GiB");
                (1, if *fua { FLAG_FUA } else { 0 }, *offset, length, data)
            }
            Request::Flush => (3, 0, 0, 0, &[]),
            Request::Trim { offset, length } => (4, 0, *offset, *length, &[]),
            Request::Zero { offset, length } => (6, 0, *offset, *length, &[]),
        };
        let cookie = self.cookie_next;
        self.cookie_next += 1;
        self.in_flight.insert(cookie, if kind == 0 { length } else { 0 });
        self.put((flags, kind, cookie), (offset, length), data)?;
        Ok(cookie)
    }

    /// Sends a goodbye, after which nothing more is sent.
    ///
    /// # Errors
    /// [`Lost`] when the server is gone.
    pub fn say_goodbye(&mut self) -> Result<(), Lost> {
        self.put((0, 2, self.cookie_next), (0, 0), &[])
    }

    fn put(
        &mut self,
        (flags, kind, cookie): (u16, u16, u64),
        (offset, length): (u64, u32),
        data: &[u8],
    ) -> Result<(), Lost> {
        let mut bytes = REQUEST_MAGIC.to_be_bytes().to_vec();
        bytes.extend(flags.to_be_bytes());
        bytes.extend(kind.to_be_bytes());
        bytes.extend(cookie.to_be_bytes());
        bytes.extend(offset.to_be_bytes());
        bytes.extend(length.to_be_bytes());
        bytes.extend(data);
        Ok(self.stream.write_all(&bytes)?)
    }

    /// The next reply: the cookie of its request, and the data of a read or the error's number.
    ///
    /// # Errors
    /// [`Lost`] when the server is gone.
    ///
    /// # Panics
    /// When the reply is none, or answers no request in flight.
    pub fn receive(&mut self) -> Result<(u64, Result<Vec<u8>, u32>), Lost> {
        assert_eq!(read_u32(&mut self.stream)?, REPLY_MAGIC, "the head of a reply");
        let error = read_u32(&mut self.stream)?;
        let cookie = read_u64(&mut self.stream)?;
        let length = self.in_flight.remove(&cookie).expect("a reply answers a request in flight");
        if error != 0 {
            return Ok((cookie, Err(error)));
        }
        let mut data = vec![0; length as usize];
        self.stream.read_exact(&mut data)?;
        Ok((cookie, Ok(data)))
    }

    /// Sends one request with nothing else in flight, and waits for its reply.
    ///
    /// # Errors
    /// [`Lost`] when the server is gone.
    pub fn call(&mut self, request: &Request) -> Result<Result<Vec<u8>, u32>, Lost> {
        let cookie = self.send(request)?;
        let (answered, result) = self.receive()?;
        assert_eq!(answered, cookie, "only one request was in flight");
        Ok(result)
    }
}

/// `NBD_OPT_GO` for `export`, with no information asked for beyond what is always sent.
fn go(export: &str) -> Vec<u8> {
    let name_length = u32::try_from(export.len()).expect("names are short");
    let mut bytes = OPTION_MAGIC.to_be_bytes().to_vec();
    bytes.extend(OPTION_GO.to_be_bytes());
    bytes.extend((name_length + 6).to_be_bytes());
    bytes.extend(name_length.to_be_bytes());
    bytes.extend(export.as_bytes());
    bytes.extend(0_u16.to_be_bytes());
    bytes
}

/// Reads the replies to `NBD_OPT_GO` and returns the size of the export.
fn option_replies(stream: &mut UnixStream) -> Result<Result<u64, String>, Lost> {
    let mut size = None;
    loop {
        assert_eq!(read_u64(stream)?, OPTION_REPLY_MAGIC, "the head of an option reply");
        assert_eq!(read_u32(stream)?, OPTION_GO, "the option that is answered");
        let (kind, length) = (read_u32(stream)?, read_u32(stream)?);
        assert!(length <= OPTION_REPLY_BYTES_MAX, "an option reply of {length} bytes");
        let mut data = vec![0; length as usize];
        stream.read_exact(&mut data)?;
        match kind {
            REPLY_ACK => {
                return Ok(Ok(size.expect("the export's information comes before the end")));
            }
            REPLY_INFO if data.starts_with(&INFO_EXPORT.to_be_bytes()) => {
                let number = data[2..10].try_into().expect("the slice has eight bytes");
                size = Some(u64::from_be_bytes(number));
            }
            REPLY_INFO => {}
            _ => return Ok(Err(format!("{kind:#x} {}", String::from_utf8_lossy(&data)))),
        }
    }
}

fn read_u16(stream: &mut UnixStream) -> io::Result<u16> {
    let mut bytes = [0; 2];
    stream.read_exact(&mut bytes).map(|()| u16::from_be_bytes(bytes))
}

fn read_u32(stream: &mut UnixStream) -> io::Result<u32> {
    let mut bytes = [0; 4];
    stream.read_exact(&mut bytes).map(|()| u32::from_be_bytes(bytes))
}

fn read_u64(stream: &mut UnixStream) -> io::Result<u64> {
    let mut bytes = [0; 8];
    stream.read_exact(&mut bytes).map(|()| u64::from_be_bytes(bytes))
}
