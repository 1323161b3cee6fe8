//! The faulty link itself, held against a server of a few lines that counts what reaches it.
//!
//! How: plain sockets on both sides, so that what is seen is what passed. What an object store
//! makes of it is in `store`.

use layby_tests::link::{Answer, Cut, Effect, Fault, LinkProxy, Operation, Shape, StoreError};
use std::io::{BufReader, ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

/// A body that arrived whole, or what came of one that did not.
type Arrived = Result<Vec<u8>, usize>;

/// A server that answers every request with its own body.
struct Echo {
    address: SocketAddr,
    arrived: Receiver<Arrived>,
}

impl Echo {
    fn start() -> Echo {
        let listener = TcpListener::bind("127.0.0.1:0").expect("loopback has ports left");
        let address = listener.local_addr().expect("it is bound");
        let (tell, arrived) = channel();
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let tell = tell.clone();
                std::thread::spawn(move || echo(client, |body| tell.send(body).is_ok()));
            }
        });
        Echo { address, arrived }
    }
    fn next(&self) -> Arrived {
        self.arrived.recv_timeout(Duration::from_secs(60)).expect("a request arrives")
    }
}

fn echo(client: TcpStream, tell: impl Fn(Arrived) -> bool) {
    let mut answers = client.try_clone().expect("descriptors are left");
    let mut reader = BufReader::new(client);
    while let Some(length) = head(&mut reader) {
        let mut body = Vec::new();
        let read = (&mut reader).take(length as u64).read_to_end(&mut body);
        if read.is_err() || body.len() < length {
            tell(Err(body.len()));
            return;
        }
        let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n\r\n");
        let answer = [head.as_bytes(), &body].concat();
        // First, so that requests that wait for each other's answers are told in their order.
        if !tell(Ok(body)) || answers.write_all(&answer).is_err() {
            return;
        }
    }
}

/// Reads a head; the length of the body that follows it.
fn head(reader: &mut impl std::io::BufRead) -> Option<usize> {
    let mut length = 0;
    for number in 0.. {
        let mut line = String::new();
        if reader.read_line(&mut line).ok()? == 0 {
            return None;
        }
        let line = line.trim().to_ascii_lowercase();
        if let Some(value) = line.strip_prefix("content-length:") {
            length = value.trim().parse().ok()?;
        }
        if line.is_empty() && number > 0 {
            break;
        }
    }
    Some(length)
}

/// A client that says what it is told.
struct Client(BufReader<TcpStream>);

impl Client {
    fn connect(link: &LinkProxy) -> Client {
        let stream = TcpStream::connect(link.address()).expect("the link takes clients");
        stream.set_read_timeout(Some(Duration::from_secs(60))).expect("a minute is no zero");
        Client(BufReader::new(stream))
    }
    fn send(&mut self, key: &str, body: &[u8]) {
        let length = body.len();
        let head = format!("PUT /b/{key} HTTP/1.1\r\nhost: x\r\ncontent-length: {length}\r\n\r\n");
        // A link that breaks while we send is seen when we read.
        let _ = self.0.get_mut().write_all(&[head.as_bytes(), body].concat());
    }
    /// The answer's body; none where the connection ended before it was whole.
    fn receive(&mut self) -> Option<Vec<u8>> {
        let length = head(&mut self.0)?;
        let mut body = Vec::new();
        (&mut self.0).take(length as u64).read_to_end(&mut body).ok()?;
        (body.len() == length).then_some(body)
    }
    fn exchange(&mut self, key: &str, body: &[u8]) -> Option<Vec<u8>> {
        self.send(key, body);
        self.receive()
    }
}

/// Goal: without a fault every byte passes, and is counted. Method: bodies of many sizes over one
/// connection.
#[test]
fn an_untroubled_link_changes_nothing() {
    let (echo, mut total) = (Echo::start(), 0);
    let link = LinkProxy::start(echo.address, 1);
    let mut client = Client::connect(&link);
    for size in [0, 1, 4096, 70_000, 3_000_000] {
        let body: Vec<u8> = (0..size).map(|at| (at % 253) as u8).collect();
        assert_eq!(client.exchange("a", &body).as_ref(), Some(&body));
        assert_eq!(echo.next(), Ok(body));
        total += size;
    }
    let counts = link.counts();
    assert_eq!((counts.requests_all(), counts.connections), (5, 1));
    assert_eq!(counts.answers.get(&200), Some(&5));
    for bytes in [counts.bytes_up, counts.bytes_down] {
        assert!((total..total + 2000).contains(&bytes), "{bytes} of {total}");
    }
    let journal = link.journal();
    assert_eq!((journal[4].key.as_str(), journal[4].status), ("a", Some(200)));
}

/// Goal: each fault reaches server and client as it says. Method: one of each, on a connection of
/// its own.
#[test]
fn faults_are_as_they_say() {
    let echo = Echo::start();
    let link = LinkProxy::start(echo.address, 1);
    let body = vec![9; 200_000];
    let with = |effect| {
        let fault = link.fault(Fault::new(effect).on(Operation::Put).times(1));
        let answer = Client::connect(&link).exchange("a", &body);
        assert_eq!(fault.hits(), 1, "{effect:?}");
        answer
    };
    let refused = with(Effect::Fail(StoreError::SLOW_DOWN)).expect("an answer");
    assert!(String::from_utf8_lossy(&refused).contains("<Code>SlowDown</Code>"));
    assert_eq!(with(Effect::LoseReply), None);
    assert_eq!(echo.next().as_ref(), Ok(&body));
    assert_eq!(with(Effect::TearUpload), None);
    assert_eq!(echo.next(), Err(100_000));
    assert_eq!(with(Effect::TearDownload), None);
    assert_eq!(echo.next().as_ref(), Ok(&body));
    let damaged = with(Effect::Damage).expect("an answer");
    let bits = damaged.iter().map(|byte| (byte ^ 9).count_ones()).sum::<u32>();
    assert_eq!((damaged.len(), bits), (body.len(), 1));
    assert_eq!(echo.next().as_ref(), Ok(&body));
    assert_eq!(with(Effect::Repeat(Answer::Second)).as_ref(), Some(&body));
    assert_eq!((echo.next().as_ref(), echo.next().as_ref()), (Ok(&body), Ok(&body)));
    assert_eq!(link.counts().faults, 6);
}

/// Goal: what is held back ends when the fault is lifted. Method: a silent key, beside another one;
/// a swallowed answer; a request that lingers.
#[test]
fn lifting_lets_go() {
    let echo = Echo::start();
    let link = LinkProxy::start(echo.address, 1);
    let silent = link.fault(Fault::new(Effect::NeverAnswer).key("silent"));
    let (mut client, mut other) = (Client::connect(&link), Client::connect(&link));
    client.send("silent/1", b"1");
    silent.wait_hits(1);
    assert_eq!(other.exchange("loud", b"2").as_deref(), Some(&b"2"[..]));
    assert_eq!(echo.next(), Ok(b"2".to_vec()));
    silent.lift();
    assert_eq!(client.receive(), None);
    let swallow = link.fault(Fault::new(Effect::SwallowReply).times(1));
    let mut client = Client::connect(&link);
    client.send("a", b"3");
    assert_eq!(echo.next(), Ok(b"3".to_vec()));
    swallow.lift();
    assert_eq!(client.receive(), None);
    let linger = link.fault(Fault::new(Effect::RepeatLate).times(1));
    assert_eq!(other.exchange("a", b"4").as_deref(), Some(&b"4"[..]));
    assert_eq!(other.exchange("a", b"5").as_deref(), Some(&b"5"[..]));
    linger.lift_and_deliver();
    let arrived: Vec<Arrived> = (0..3).map(|_| echo.next()).collect();
    assert_eq!(arrived, [b"4", b"5", b"4"].map(|body| Ok(body.to_vec())));
}

/// Goal: a cut link resets and refuses, or hangs and delivers later; the port stays. Method: each,
/// on a connection that is open and on a new one.
#[test]
fn cuts_are_as_they_say() {
    let echo = Echo::start();
    let link = LinkProxy::start(echo.address, 1);
    let mut client = Client::connect(&link);
    client.exchange("a", b"1").expect("the link is whole");
    link.cut(Cut::Refuse);
    assert_eq!(client.exchange("a", b"2"), None);
    let refused = TcpStream::connect(link.address()).expect_err("nobody listens");
    assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
    link.restore();
    let mut client = Client::connect(&link);
    client.exchange("a", b"3").expect("the link is whole");
    link.cut(Cut::Hang);
    let mut fresh = Client::connect(&link);
    client.send("a", b"4");
    fresh.send("a", b"5");
    assert_eq!((echo.next(), echo.next()), (Ok(b"1".to_vec()), Ok(b"3".to_vec())));
    assert!(echo.arrived.recv_timeout(Duration::from_millis(100)).is_err(), "it hangs");
    link.restore();
    assert_eq!(client.receive().as_deref(), Some(&b"4"[..]));
    assert_eq!(fresh.receive().as_deref(), Some(&b"5"[..]));
}

/// Goal: many connections share the width of a link that carries any protocol. Method: four clients
/// of 250 kB each over 8 Mbit/s; the bound from below is what was told, less what passes at once.
#[test]
#[expect(clippy::disallowed_methods, reason = "a link's width is a matter of time")]
fn connections_share_the_width() {
    let echo = Echo::start();
    let link = LinkProxy::start_plain(echo.address);
    link.shape(Shape::bits_per_second(8_000_000));
    let (link, body) = (&link, &vec![1; 250_000]);
    let begin = std::time::Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(move || {
                let mut client = Client::connect(link);
                assert_eq!(client.exchange("a", body).as_ref(), Some(body));
            });
        }
    });
    let taken = begin.elapsed();
    assert!(taken >= Duration::from_millis(950), "{taken:?}");
    assert_eq!(link.counts().requests_all(), 0, "a plain link knows of no requests");
}
