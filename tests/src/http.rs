//! An HTTP client of a few lines that shares no code with the node's, over TCP or a unix socket.
//!
//! How: one request per connection, which the node is asked to close; what was received up to its
//! end is the answer. A test that wants a connection to hang writes to the stream itself.
//! Cost: a connection per request. Not for: bodies in chunks, which this API does not send.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// Longest that an answer may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// What came back.
#[derive(Clone, Debug)]
pub struct HttpAnswer {
    /// The status.
    pub status: u16,
    /// Status line and headers.
    pub head: String,
    /// The body.
    pub body: String,
}

/// A request, as text.
#[derive(Clone, Debug)]
pub struct HttpRequest {
    method: String,
    path: String,
    headers: Vec<String>,
    body: String,
}

impl HttpRequest {
    /// A request for `localhost`.
    #[must_use]
    pub fn new(method: &str, path: &str) -> Self {
        let headers = vec!["host: localhost".to_owned()];
        HttpRequest { method: method.into(), path: path.into(), headers, body: String::new() }
    }

    /// With another header, or with another host.
    #[must_use]
    pub fn header(mut self, name: &str, value: &str) -> Self {
        if name == "host" {
            self.headers.clear();
        }
        self.headers.push(format!("{name}: {value}"));
        self
    }

    /// With a token.
    #[must_use]
    pub fn token(self, token: &str) -> Self {
        self.header("authorization", &format!("Bearer {token}"))
    }

    /// With a body of JSON.
    #[must_use]
    pub fn json(self, body: &serde_json::Value) -> Self {
        let request = self.header("content-type", "application/json");
        HttpRequest { body: body.to_string(), ..request }
    }

    /// The request as it is sent.
    #[must_use]
    pub fn text(&self) -> String {
        let HttpRequest { method, path, headers, body } = self;
        let (headers, length) = (headers.join("\r\n"), body.len());
        format!(
            "{method} {path} HTTP/1.1\r\n{headers}\r\nconnection: close\r\n\
             content-length: {length}\r\n\r\n{body}"
        )
    }

    /// Sends it to a TCP address.
    ///
    /// # Panics
    /// When there is no answer.
    #[must_use]
    pub fn send(&self, address: &str) -> HttpAnswer {
        let mut stream = TcpStream::connect(address).expect("the node listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("a bound");
        self.exchange(&mut stream)
    }

    /// Sends it to a unix socket.
    ///
    /// # Panics
    /// When there is no answer.
    #[must_use]
    pub fn send_unix(&self, socket: &Path) -> HttpAnswer {
        let mut stream = UnixStream::connect(socket).expect("the node listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("a bound");
        self.exchange(&mut stream)
    }

    fn exchange(&self, stream: &mut (impl Read + Write)) -> HttpAnswer {
        // Refused early, the rest of the request finds a closed connection; the answer is there.
        let _ = stream.write_all(self.text().as_bytes());
        let mut bytes = Vec::new();
        let _ = stream.read_to_end(&mut bytes);
        let text = String::from_utf8(bytes).expect("the API speaks text");
        let (head, body) =
            text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no answer: {text}"));
        let status = head.split(' ').nth(1).and_then(|code| code.parse().ok());
        let status = status.unwrap_or_else(|| panic!("no status: {head}"));
        HttpAnswer { status, head: head.to_owned(), body: body.to_owned() }
    }
}
