//! The node's listening sockets: bound, or taken from the service manager, before anything is
//! started, so that a port in use is known before a level is opened.
//!
//! How: names of hosts are looked up; where one has several addresses, the first of IPv4 is taken,
//! so that `localhost` is `127.0.0.1` everywhere. A unix socket's file that nobody answers on is
//! left from a crash and is replaced; one that somebody answers on is refused, as is any other kind
//! of file.
//! Invariant: no file that is not a socket is ever removed, neither before it is bound nor at the
//! end, when something else may have come into its place.

use crate::config::Address;
use crate::error::{Report, ReportKind};
use std::fs::Metadata;
use std::io::ErrorKind as Io;
use std::net::SocketAddr;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener as StdUnixListener, UnixStream as StdUnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::net::{TcpListener, TcpSocket, UnixListener};
use tokio::time::Instant;

/// Wait after a failed accept, so that a lack of descriptors is not met with a busy loop.
const ACCEPT_RETRY: Duration = Duration::from_millis(50);
/// Time between two lines about failed accepts.
const ACCEPT_LINE_EVERY: Duration = Duration::from_secs(1);
/// Who may connect to the control socket: the node's user, for it has no other login.
pub const CONTROL_SOCKET_MODE: u32 = 0o600;
/// Who may connect to the NBD socket: the node's user and group.
pub const NBD_SOCKET_MODE: u32 = 0o660;

/// The folder of sockets that the node makes.
const SOCKET_FOLDER_MODE: u32 = 0o755;

/// A unix socket whose file goes with it, if the node has made it.
#[derive(Debug)]
pub struct UnixSocket {
    /// Accepts connections.
    pub listener: UnixListener,
    /// Its file, with its file system's number and its own there; none where the service manager
    /// has made it.
    path: Option<(PathBuf, (u64, u64))>,
    is_removed: AtomicBool,
}

impl Drop for UnixSocket {
    fn drop(&mut self) {
        self.remove();
    }
}

impl UnixSocket {
    /// Listens on `path`.
    ///
    /// # Errors
    /// A report when somebody answers there, or the file cannot be made.
    pub fn bind(path: &Path, mode: u32) -> Result<UnixSocket, Report> {
        let refused = |cause: &std::io::Error| {
            let hint = match cause.kind() {
                Io::StorageFull | Io::QuotaExceeded => {
                    "make room on the file system of the socket, or choose another path for it"
                }
                _ => "choose another path for the socket, or correct the directory's permissions",
            };
            listen_refused(&path.display().to_string(), cause).hint(hint)
        };
        clear_the_way(path)?;
        if let Some(parent) = path.parent() {
            make_parent(parent).map_err(|e| refused(&e))?;
        }
        let listener = UnixListener::bind(path).map_err(|e| refused(&e))?;
        let number = numbers(&std::fs::symlink_metadata(path).map_err(|e| refused(&e))?);
        let path_kept = Some((path.to_owned(), number));
        let socket = UnixSocket { listener, path: path_kept, is_removed: false.into() };
        let mode = std::fs::Permissions::from_mode(mode);
        std::fs::set_permissions(path, mode).map_err(|e| refused(&e))?;
        Ok(socket)
    }

    /// Listens on a socket that the service manager has passed and keeps.
    ///
    /// # Errors
    /// A report when the runtime cannot take it.
    pub fn adopt(listener: StdUnixListener) -> Result<UnixSocket, Report> {
        let taken = listener.set_nonblocking(true).and_then(|()| UnixListener::from_std(listener));
        let listener = taken.map_err(|cause| listen_refused("a passed socket", &cause))?;
        Ok(UnixSocket { listener, path: None, is_removed: false.into() })
    }

    /// Where clients find it.
    #[must_use]
    pub fn path(&self) -> Option<PathBuf> {
        self.listener.local_addr().ok()?.as_pathname().map(Path::to_owned)
    }

    /// Its path or abstract name, for people.
    #[must_use]
    pub fn name(&self) -> String {
        let address = self.listener.local_addr().ok();
        let name = address.as_ref().and_then(|address| address.as_abstract_name());
        let name = name.map(|name| format!("@{}", String::from_utf8_lossy(name)));
        let path = || self.path().map(|path| path.display().to_string());
        name.or_else(path).unwrap_or_else(|| "a passed socket".to_owned())
    }

    /// Removes the file now, unless something else is in its place; who is connected stays so. The
    /// path is free for another socket.
    pub fn remove(&self) {
        let Some((path, number)) = &self.path else { return };
        let is_own = |found: &Metadata| found.file_type().is_socket() && numbers(found) == *number;
        if !self.is_removed.swap(true, Ordering::Relaxed)
            && std::fs::symlink_metadata(path).is_ok_and(|found| is_own(&found))
        {
            // It may have been removed meanwhile; then there is nothing left to do.
            drop(std::fs::remove_file(path));
        }
    }
}

/// What tells a file from all others of the machine.
fn numbers(found: &Metadata) -> (u64, u64) {
    (found.dev(), found.ino())
}

/// Like [`UnixSocket::adopt`], for a TCP address.
///
/// # Errors
/// A report when the runtime cannot take it.
pub fn adopt_tcp(listener: std::net::TcpListener) -> Result<TcpListener, Report> {
    let taken = listener.set_nonblocking(true).and_then(|()| TcpListener::from_std(listener));
    taken.map_err(|cause| listen_refused("a passed socket", &cause))
}

/// Accepts of one socket that failed: a line a second at most says so.
#[derive(Default)]
pub(crate) struct AcceptFaults {
    said: Option<Instant>,
    left_out: u64,
}

impl AcceptFaults {
    /// Says what failed, and lets a moment pass: the backlog stays, and no event says when there
    /// are descriptors again.
    pub(crate) async fn rest(&mut self, what: &'static str, cause: &std::io::Error) {
        let now = Instant::now();
        if self.said.is_none_or(|said| now.duration_since(said) >= ACCEPT_LINE_EVERY) {
            let left_out = std::mem::take(&mut self.left_out);
            tracing::warn!(%cause, left_out, "{what}");
            self.said = Some(now);
        } else {
            self.left_out += 1;
        }
        tokio::time::sleep(ACCEPT_RETRY).await;
    }
}

/// Makes the folder of a socket, which others may enter: the socket's own mode says who connects.
fn make_parent(parent: &Path) -> std::io::Result<()> {
    if parent.is_dir() {
        return Ok(());
    }
    std::fs::create_dir_all(parent)?;
    std::fs::set_permissions(parent, std::fs::Permissions::from_mode(SOCKET_FOLDER_MODE))
}

fn listen_refused(address: &str, cause: &std::io::Error) -> Report {
    Report::from_io(format!("cannot listen on `{address}`"), cause)
        .state("nothing was started; stored data is untouched")
}

/// Removes a socket file that nobody answers on.
fn clear_the_way(path: &Path) -> Result<(), Report> {
    let Ok(metadata) = std::fs::symlink_metadata(path) else { return Ok(()) };
    let in_use = |cause: &str, hint: &str| {
        Report::new(ReportKind::InUse, format!("cannot listen on `{}`", path.display()))
            .cause(cause)
            .state("nothing was started; stored data is untouched")
            .hint(hint)
    };
    if !metadata.file_type().is_socket() {
        let hint = "choose another path for the socket, or move the file away";
        return Err(in_use("there is a file that is no socket", hint));
    }
    match StdUnixStream::connect(path) {
        Err(cause) if cause.kind() == Io::ConnectionRefused => std::fs::remove_file(path)
            .map_err(|cause| listen_refused(&path.display().to_string(), &cause)),
        Err(cause) if cause.kind() == Io::NotFound => Ok(()),
        Err(cause) if crate::descriptors::is_lack(&cause) => {
            Err(listen_refused(&path.display().to_string(), &cause))
        }
        Ok(_) | Err(_) => {
            let hint = "stop that program, or choose another path for the socket";
            Err(in_use("another program answers there", hint))
        }
    }
}

/// Where addresses lead by now, names too; asks the machine's resolver for these.
///
/// # Errors
/// A report that names the one whose name has no address: it may have one later.
pub(crate) async fn look_up(
    addresses: impl IntoIterator<Item = &Address>,
) -> Result<Vec<SocketAddr>, Report> {
    let mut found = Vec::new();
    for address in addresses {
        found.push(match address {
            Address::Numbers(address) => *address,
            Address::Name(name) => address_of(name).await?,
        });
    }
    Ok(found)
}

async fn address_of(name: &str) -> Result<SocketAddr, Report> {
    let refused = |cause: &std::io::Error| {
        let hint = "see that the machine's resolver knows the name (`getent ahosts`), or write the \
                    address in numbers";
        Report { kind: ReportKind::Failure, ..listen_refused(name, cause) }.hint(hint)
    };
    let found: Vec<SocketAddr> = match tokio::net::lookup_host(name).await {
        Ok(found) => found.collect(),
        Err(cause) => return Err(refused(&cause)),
    };
    let first = found.iter().find(|address| address.is_ipv4()).or(found.first());
    let none = || refused(&std::io::Error::other("the name has no address"));
    first.copied().ok_or_else(none)
}

/// No two addresses lead to the same place, as a name and its numbers do; each stands with its key
/// in the configuration. A port that the system chooses is each one's own.
///
/// # Errors
/// A report that names both.
pub(crate) fn refuse_twice(asked: &[(&str, &Address, SocketAddr)]) -> Result<(), Report> {
    let fixed = asked.iter().filter(|(.., found)| found.port() != 0);
    for (at, (key, address, found)) in fixed.clone().enumerate() {
        let Some((other_key, other, _)) = fixed.clone().take(at).find(|(.., one)| one == found)
        else {
            continue;
        };
        let error = format!("cannot listen on `{address}` of `{key}`");
        let cause = format!("it is {found}, as `{other}` of `{other_key}` is");
        return Err(Report::new(ReportKind::Invalid, error)
            .cause(cause)
            .state("nothing was started; stored data is untouched")
            .hint("leave one of them out, or give it another address or port"));
    }
    Ok(())
}

/// The address of the control API, which a name may have led elsewhere.
///
/// # Errors
/// A report where other machines can reach it.
pub(crate) fn loopback(found: &[SocketAddr]) -> Result<Option<SocketAddr>, Report> {
    match found.first() {
        Some(address) if !address.ip().is_loopback() => {
            let error = format!("cannot listen on `{address}` for the control API");
            Err(Report::new(ReportKind::Invalid, error)
                .cause(format!("{} can be reached from other machines", address.ip()))
                .state("nothing was started; stored data is untouched")
                .hint("write a loopback address for `http` of [control], such as `127.0.0.1:0`"))
        }
        found => Ok(found.copied()),
    }
}

/// Listens on a TCP address. An IPv6 one takes IPv4 as well where it is that of all interfaces,
/// unless one of `others` has its port for IPv4.
///
/// # Errors
/// A report that names the address and who may hold it.
pub async fn bind_tcp(address: SocketAddr, others: &[SocketAddr]) -> Result<TcpListener, Report> {
    let is_shared = |other: &SocketAddr| other.is_ipv4() && other.port() == address.port();
    let bound = match address.is_ipv6() && address.port() != 0 && others.iter().any(is_shared) {
        true => bind_v6_only(address),
        false => TcpListener::bind(address).await,
    };
    bound.map_err(|cause| {
        let hint = match cause.kind() {
            Io::AddrInUse => {
                "stop the program that listens there (`ss -ltnp` shows it), or choose \
                              another port"
            }
            Io::PermissionDenied => "choose a port above 1023",
            _ => "choose an address of this machine",
        };
        listen_refused(&address.to_string(), &cause).hint(hint)
    })
}

fn bind_v6_only(address: SocketAddr) -> std::io::Result<TcpListener> {
    /// As many connections wait to be accepted as with any other address.
    const BACKLOG: u32 = 1024;
    let socket = TcpSocket::new_v6()?;
    rustix::net::sockopt::set_ipv6_v6only(&socket, true)?;
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tempfile::TempDir;

    /// Goal: a dead socket is replaced, a living one and a file are not. Method: each of the three.
    #[tokio::test]
    async fn only_dead_sockets_are_replaced() {
        let dir = TempDir::new().expect("a temporary directory");
        let path = dir.path().join("s");
        drop(std::os::unix::net::UnixListener::bind(&path).expect("a fresh path"));
        assert!(path.exists(), "the standard library leaves the file");
        let living = UnixSocket::bind(&path, NBD_SOCKET_MODE).expect("nobody answers");
        let report = UnixSocket::bind(&path, NBD_SOCKET_MODE).expect_err("it is alive");
        assert_eq!(report.kind, ReportKind::InUse);
        drop(living);
        assert!(!path.exists());
        std::fs::write(&path, b"precious").expect("a writable directory");
        let report = UnixSocket::bind(&path, NBD_SOCKET_MODE).expect_err("a file");
        assert!(report.cause.contains("no socket") && path.exists(), "{report}");
    }

    /// Goal: what has come into a socket's place is not removed with it. Method: a file and another
    /// socket, renamed over it.
    #[tokio::test]
    async fn what_replaced_a_socket_stays() {
        let dir = TempDir::new().expect("a temporary directory");
        let (path, other) = (dir.path().join("s"), dir.path().join("other"));
        let socket = UnixSocket::bind(&path, NBD_SOCKET_MODE).expect("a fresh path");
        std::fs::write(&other, b"precious").expect("a writable directory");
        std::fs::rename(&other, &path).expect("a writable directory");
        drop(socket);
        assert_eq!(std::fs::read(&path).expect("it is there"), b"precious");
        std::fs::remove_file(&path).expect("removable");
        let first = UnixSocket::bind(&path, NBD_SOCKET_MODE).expect("a fresh path");
        let second = UnixSocket::bind(&other, NBD_SOCKET_MODE).expect("a fresh path");
        std::fs::rename(&other, &path).expect("a writable directory");
        drop(first);
        assert!(path.exists(), "it is the second one's");
        drop(second);
    }

    /// Goal: all IPv4 and all IPv6 addresses can be listened on side by side, in either order, and
    /// an IPv6 one alone takes both. Method: both orders at a free port; a client of each kind.
    #[tokio::test]
    async fn both_kinds_of_addresses_listen() {
        let [all, all6]: [SocketAddr; 2] =
            ["0.0.0.0:0", "[::]:0"].map(|text| text.parse().expect("an address"));
        for order in [[all, all6], [all6, all], [all6, all6]] {
            let free = bind_tcp(all6, &[]).await.expect("IPv6 is there");
            let port = free.local_addr().expect("it is bound").port();
            drop(free);
            let pair = order.map(|mut address| {
                address.set_port(port);
                address
            });
            let is_pair = pair[0] != pair[1];
            let mut listeners = Vec::new();
            for address in pair.iter().take(1 + usize::from(is_pair)) {
                listeners.push(bind_tcp(*address, &pair).await.expect("it is free"));
            }
            for address in [format!("127.0.0.1:{port}"), format!("[::1]:{port}")] {
                let client = tokio::net::TcpStream::connect(&address).await;
                assert!(client.is_ok(), "{address} with {pair:?}");
            }
        }
    }

    /// Goal: a port in use is named. Method: bind it twice.
    #[tokio::test]
    async fn port_in_use_is_named() {
        let first =
            bind_tcp(SocketAddr::from(([127, 0, 0, 1], 0)), &[]).await.expect("a free port");
        let address = first.local_addr().expect("it is bound");
        let report = bind_tcp(address, &[]).await.expect_err("it is taken");
        assert_eq!(report.kind, ReportKind::InUse);
        assert!(report.error.contains(&address.to_string()), "{report}");
    }

    /// Goal: names are looked up, IPv4 first, none leads the control API beyond this machine, and a
    /// name and its numbers are not both listened on. Method: `localhost`, and addresses by hand.
    #[tokio::test]
    async fn names_lead_to_addresses() {
        let name = Address::Name("localhost:7".to_owned());
        let found = look_up([&name]).await.expect("every machine knows it");
        assert_eq!(found, [SocketAddr::from(([127, 0, 0, 1], 7))]);
        assert_eq!(loopback(&found).expect("it is this machine's"), Some(found[0]));
        let numbers = Address::from(found[0]);
        let twice = |other: SocketAddr| {
            refuse_twice(&[("listen", &name, found[0]), ("metrics", &numbers, other)])
        };
        let report = twice(found[0]).expect_err("they are one address");
        assert_eq!(report.kind, ReportKind::Invalid);
        for word in ["`127.0.0.1:7` of `metrics`", "`localhost:7` of `listen`"] {
            assert!(report.to_string().contains(word), "{report}");
        }
        twice(SocketAddr::from(([127, 0, 0, 2], 7))).expect("another address");
        let far = loopback(&[SocketAddr::from(([10, 0, 0, 1], 7))]);
        assert_eq!(far.expect_err("others reach it").kind, ReportKind::Invalid);
    }
}
