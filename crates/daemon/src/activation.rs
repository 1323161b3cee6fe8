//! What the service manager gives a node and is told by it: listening sockets that outlive the
//! process, and when it is ready.
//!
//! How: a passed socket is sorted by its name (`control`, or else NBD) and its family, and takes
//! the place of those that the node would bind itself. States go as a datagram to `NOTIFY_SOCKET`.
//! Invariant: nothing is opened, removed or changed that belongs to the service manager; without
//! one, all this does nothing.
//! Cost: once per start and stop.

use crate::error::{Report, ReportKind};
use layby_engine::io::take_passed;
use rustix::net::{AddressFamily, SocketType, sockopt};
use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram, UnixListener};

/// What the control socket is called by who passes it (`FileDescriptorName=`).
pub const CONTROL_NAME: &str = "control";

/// Listening sockets that were passed to the node.
#[derive(Debug, Default)]
pub struct Passed {
    /// For NBD, instead of the configured unix socket.
    pub nbd: Vec<UnixListener>,
    /// For NBD, instead of the configured addresses.
    pub tcp: Vec<TcpListener>,
    /// For the control API, instead of the configured socket.
    pub control: Option<UnixListener>,
}

impl Passed {
    /// Takes over what was passed to this process; nothing is left for a second call.
    ///
    /// # Errors
    /// A report when something other than a listening stream socket was passed.
    pub fn take() -> Result<Passed, Report> {
        Passed::sort(take_passed())
    }

    fn sort(sockets: Vec<(String, OwnedFd)>) -> Result<Passed, Report> {
        let mut passed = Passed::default();
        for (name, socket) in sockets {
            match family(&name, &socket)? {
                AddressFamily::UNIX if name == CONTROL_NAME => {
                    passed.control = Some(UnixListener::from(socket));
                }
                AddressFamily::UNIX => passed.nbd.push(UnixListener::from(socket)),
                AddressFamily::INET | AddressFamily::INET6 if name != CONTROL_NAME => {
                    passed.tcp.push(TcpListener::from(socket));
                }
                _ => {
                    return Err(refused(&name, "it is of a kind that is not served")
                        .hint("pass unix and TCP sockets; the control socket is a unix socket"));
                }
            }
        }
        Ok(passed)
    }
}

fn refused(name: &str, cause: &str) -> Report {
    Report::new(ReportKind::Invalid, format!("cannot listen on the passed socket `{name}`"))
        .cause(cause)
        .state("nothing was started; stored data is untouched")
}

fn family(name: &str, socket: &OwnedFd) -> Result<AddressFamily, Report> {
    let known = || {
        let listens = sockopt::socket_type(socket)? == SocketType::STREAM
            && sockopt::socket_acceptconn(socket)?;
        Ok::<_, rustix::io::Errno>((listens, sockopt::socket_domain(socket)?))
    };
    match known() {
        Ok((true, family)) => Ok(family),
        Ok((false, _)) => Err(refused(name, "it is no stream socket that listens")
            .hint("use `ListenStream=` and `Accept=no` in the socket's unit")),
        Err(errno) => Err(refused(name, &std::io::Error::from(errno).to_string())
            .hint("use `ListenStream=` in the socket's unit")),
    }
}

/// Tells the service manager, if there is one that wants to know, a state such as `READY=1`.
pub fn notify(state: &str) {
    let Some(path) = std::env::var_os("NOTIFY_SOCKET") else { return };
    let address = match path.as_bytes() {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name),
        _ => SocketAddr::from_pathname(&path),
    };
    let told = address
        .and_then(|address| UnixDatagram::unbound()?.send_to_addr(state.as_bytes(), &address));
    if let Err(cause) = told {
        tracing::warn!(%cause, state, "cannot tell the service manager");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tempfile::TempDir;

    /// Goal: sockets are sorted by name and family, and nothing else is taken for one. Method: one
    /// of each kind, then a datagram socket, a connected one, a file, and a control address.
    #[test]
    fn sockets_are_sorted() {
        let dir = TempDir::new().expect("a temporary directory");
        let unix = |name: &str| {
            OwnedFd::from(UnixListener::bind(dir.path().join(name)).expect("a fresh path"))
        };
        let tcp = || OwnedFd::from(TcpListener::bind("127.0.0.1:0").expect("a free port"));
        let sockets = vec![
            ("nbd".to_owned(), unix("a")),
            ("control".to_owned(), unix("b")),
            ("unknown".to_owned(), tcp()),
        ];
        let passed = Passed::sort(sockets).expect("all listen");
        assert_eq!((passed.nbd.len(), passed.tcp.len()), (1, 1));
        assert!(passed.control.is_some());
        let file = std::fs::File::open("/dev/null").expect("it is there");
        let pair = UnixDatagram::pair().expect("a pair").0;
        let connected = std::os::unix::net::UnixStream::pair().expect("a pair").0;
        for (name, bad) in [
            ("nbd", OwnedFd::from(file)),
            ("nbd", OwnedFd::from(pair)),
            ("nbd", OwnedFd::from(connected)),
            ("control", tcp()),
        ] {
            let report = Passed::sort(vec![(name.to_owned(), bad)]).expect_err("it is unfit");
            assert!(!report.hint.is_empty(), "{report}");
        }
    }
}
