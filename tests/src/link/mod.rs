//! A link that can be made slow, narrow and broken, in front of a server of the test.
//!
//! How: [`LinkProxy`] listens on loopback, with a thread and a runtime of its own, and carries each
//! connection over a link whose [`Shape`] may change at any time. In front of an object store it
//! also reads the HTTP inside, counts requests, and puts [`Fault`]s upon some. The port stays the
//! proxy's own while the link refuses connections: a second socket holds it.
//! Invariant: a change is in force when the call returns; what was changed ends with the value.
//! Cost: one thread; about a processor for a gigabyte per second. Not for: TLS, and packets.
//!
//! Everything is decided by one seed and by what the test does; only times are the machine's.

mod counts;
mod fault;
mod http;
mod shape;

pub use counts::{Counts, Operation, Seen};
pub use fault::{Answer, Effect, Fault, StoreError};
pub use shape::{Cut, Shape};

use fault::{Rule, Rules};
use shape::{Lane, Link};
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::task::{LocalSet, spawn_local};

/// Clients that have not been accepted yet.
const BACKLOG: u32 = 1024;
/// Bytes that the kernel takes before the link does, per connection; more would widen the link.
const KERNEL_BYTES: u32 = 64 << 10;
/// Bytes between a link's end and the HTTP behind it, per direction.
const DUPLEX_BYTES: usize = 64 << 10;

/// What the proxy's thread and the test share.
#[derive(Debug)]
struct Shared {
    server: SocketAddr,
    link: Link,
    rules: Rules,
    is_http: bool,
    /// Requests that lingered and have arrived again.
    late: AtomicU64,
}

/// A change of the link, and who waits until it is in force.
type Order = (Shape, Sender<()>);

/// A link to a server, as long as the value lives.
#[derive(Debug)]
pub struct LinkProxy {
    address: SocketAddr,
    shared: Arc<Shared>,
    /// Hung up to end the proxy.
    orders: Option<mpsc::UnboundedSender<Order>>,
    thread: Option<JoinHandle<()>>,
}

impl LinkProxy {
    /// A link to the object store at `server`.
    ///
    /// # Panics
    /// When there is no socket to be had.
    #[must_use]
    pub fn start(server: SocketAddr, seed: u64) -> Self {
        LinkProxy::launch(server, seed, true)
    }

    /// A link that carries bytes of any protocol; faults have no effect on it.
    ///
    /// # Panics
    /// When there is no socket to be had.
    #[must_use]
    pub fn start_plain(server: SocketAddr) -> Self {
        LinkProxy::launch(server, 0, false)
    }

    fn launch(server: SocketAddr, seed: u64, is_http: bool) -> Self {
        let shape = watch::Sender::new(Shape::default());
        let link = Link { shape, up: Lane::new(), down: Lane::new(), board: Default::default() };
        let late = AtomicU64::new(0);
        let shared = Arc::new(Shared { server, link, rules: Rules::new(seed), is_http, late });
        let (orders, inbox) = mpsc::unbounded_channel();
        let (tell, started) = channel();
        let own = shared.clone();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let runtime = runtime.expect("a runtime can be had");
            LocalSet::new().block_on(&runtime, live(own, inbox, tell));
        });
        let address = started.recv().expect("the proxy listens");
        LinkProxy { address, shared, orders: Some(orders), thread: Some(thread) }
    }

    /// Where clients connect.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Where clients of HTTP connect.
    #[must_use]
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Changes the link; open connections go on over the new one.
    ///
    /// # Panics
    /// When the proxy's thread has failed.
    pub fn shape(&self, shape: Shape) {
        let (tell, done) = channel();
        let orders = self.orders.as_ref().expect("it is taken by drop alone");
        orders.send((shape, tell)).expect("the proxy runs");
        done.recv().expect("the proxy runs");
    }

    /// Breaks the link; its other qualities stay.
    ///
    /// # Panics
    /// As [`LinkProxy::shape`].
    pub fn cut(&self, cut: Cut) {
        let shape = *self.shared.link.shape.borrow();
        self.shape(Shape { cut: Some(cut), ..shape });
    }

    /// Makes a broken link whole.
    ///
    /// # Panics
    /// As [`LinkProxy::shape`].
    pub fn restore(&self) {
        let shape = *self.shared.link.shape.borrow();
        self.shape(Shape { cut: None, ..shape });
    }

    /// Puts a fault upon requests to come, until the value is dropped or lifted.
    #[must_use = "a fault ends with its value"]
    pub fn fault(&self, fault: Fault) -> Injected<'_> {
        assert!(self.shared.is_http, "a plain link knows of no requests");
        Injected { shared: &self.shared, rule: self.shared.rules.put(fault) }
    }

    /// What has passed since the start.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.shared.link.board.counts()
    }

    /// The latest requests, in the order in which they came.
    #[must_use]
    pub fn journal(&self) -> Vec<Seen> {
        self.shared.link.board.journal()
    }

    /// Waits until so much has passed.
    ///
    /// # Panics
    /// With the counts, when that takes more than a minute.
    #[track_caller]
    pub fn wait(&self, is_so: impl FnMut(&Counts) -> bool) {
        let came_to_be = self.shared.link.board.wait(is_so);
        assert!(came_to_be, "not in time: {:?}", self.counts());
    }
}

impl Drop for LinkProxy {
    fn drop(&mut self) {
        drop(self.orders.take());
        if let Some(thread) = self.thread.take() {
            // It has told already what it panicked of.
            let _ = thread.join();
        }
    }
}

/// A fault that is in force.
#[derive(Debug)]
pub struct Injected<'a> {
    shared: &'a Shared,
    rule: Arc<Rule>,
}

impl Injected<'_> {
    /// Requests that it was put upon.
    #[must_use]
    pub fn hits(&self) -> u64 {
        self.rule.hits()
    }

    /// Waits until it was put upon so many.
    ///
    /// # Panics
    /// When that takes more than a minute.
    #[track_caller]
    pub fn wait_hits(&self, hits: u64) {
        let came_to_be = self.shared.link.board.wait(|_| self.hits() >= hits);
        assert!(came_to_be, "not in time: {} of {hits} hits", self.hits());
    }

    /// Ends it: connections that it holds are closed.
    pub fn lift(self) {
        drop(self);
    }

    /// Ends it, and waits until each request that lingered has arrived again.
    ///
    /// # Panics
    /// When that takes more than a minute.
    #[track_caller]
    pub fn lift_and_deliver(self) {
        let late = || self.shared.late.load(Ordering::Acquire);
        let (before, lingering) = (late(), self.hits());
        self.shared.rules.lift(&self.rule);
        let came_to_be = self.shared.link.board.wait(|_| late() >= before + lingering);
        assert!(came_to_be, "not in time: {} of {lingering} arrived", late() - before);
    }
}

impl Drop for Injected<'_> {
    fn drop(&mut self) {
        self.shared.rules.lift(&self.rule);
    }
}

/// Below those that the kernel gives away by itself.
const CHOSEN_PORTS: std::ops::Range<u16> = 20_000..32_000;

/// A port on loopback that stays one's own, whether somebody listens on it or not.
#[derive(Debug)]
pub(crate) struct Port {
    address: SocketAddr,
    /// Bound and never listening: the kernel gives the port to nobody else, and refuses clients.
    _holder: TcpSocket,
}

impl Port {
    pub(crate) fn reserve() -> io::Result<Self> {
        // Not of those that the kernel chooses from: it gives one that is bound and may be shared
        // to a server that asks for any.
        let of_process = std::process::id() as usize * 31;
        for turn in 0..CHOSEN_PORTS.len() {
            let offset = of_process.wrapping_add(turn * 7919) % CHOSEN_PORTS.len();
            let address = (Ipv4Addr::LOCALHOST, CHOSEN_PORTS.start + offset as u16).into();
            let holder = TcpSocket::new_v4()?;
            // As long as it is not to be shared, one that anything else has is refused.
            if holder.bind(address).is_ok() {
                holder.set_reuseaddr(true)?;
                return Ok(Port { address, _holder: holder });
            }
        }
        Err(io::ErrorKind::AddrInUse.into())
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    fn listen(&self) -> io::Result<TcpListener> {
        let socket = bound(self.address)?;
        socket.set_recv_buffer_size(KERNEL_BYTES)?;
        socket.listen(BACKLOG)
    }
}

fn bound(address: SocketAddr) -> io::Result<TcpSocket> {
    let socket = TcpSocket::new_v4()?;
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    Ok(socket)
}

/// A child that another thread has just forked has the socket, too, until it runs its program: to
/// close it here would not end it.
fn end_listening(listener: &TcpListener) {
    let ended = rustix::net::shutdown(listener, rustix::net::Shutdown::Both);
    ended.expect("it listens");
}

/// The proxy's thread: listens, and obeys until nobody orders any more.
async fn live(
    shared: Arc<Shared>,
    mut orders: mpsc::UnboundedReceiver<Order>,
    started: Sender<SocketAddr>,
) {
    let port = Port::reserve().expect("loopback has ports left");
    let mut listener = Some(port.listen().expect("the port is our own"));
    // Whoever started us waits for this.
    let _ = started.send(port.address());
    loop {
        tokio::select! {
            order = orders.recv() => {
                let Some((shape, done)) = order else { return };
                listener = match (shape.cut, listener) {
                    (Some(Cut::Refuse), kept) => {
                        kept.iter().for_each(end_listening);
                        None
                    }
                    (_, Some(kept)) => Some(kept),
                    (_, None) => Some(port.listen().expect("the port is our own")),
                };
                shared.link.shape.send_replace(shape);
                let _ = done.send(());
            }
            Some(client) = accept(listener.as_ref()), if listener.is_some() => {
                shared.link.board.connected();
                spawn_local(connection(client, shared.clone()));
            }
        }
    }
}

/// None where the client was gone before it was accepted.
async fn accept(listener: Option<&TcpListener>) -> Option<TcpStream> {
    listener?.accept().await.ok().map(|(client, _)| client)
}

async fn connection(client: TcpStream, shared: Arc<Shared>) {
    // A client that is gone already is noticed at the first read.
    let _ = client.set_nodelay(true);
    let (near, far) = tokio::io::duplex(DUPLEX_BYTES);
    let own = shared.clone();
    let service = async move {
        if own.is_http { http::serve(far, own).await } else { relay(far, own.server).await }
    };
    shape::carry(client, near, &shared.link, service).await;
}

async fn relay(mut far: tokio::io::DuplexStream, server: SocketAddr) {
    if let Ok(mut server) = TcpStream::connect(server).await {
        let _ = server.set_nodelay(true);
        // An end of either side ends both.
        let _ = tokio::io::copy_bidirectional(&mut far, &mut server).await;
    }
}
