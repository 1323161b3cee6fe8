//! An address to listen on, as it is written: numbers or a host's name, and a port.
//!
//! How: numbers are taken as they are. A name is looked up once, when it is read; where it has
//! several addresses, the first of IPv4 is taken, so that `localhost` is `127.0.0.1` everywhere.
//! Invariant: an address that exists has a port. Cost: a name may ask the machine's resolver.
//! Not for: unix sockets, and `off`.

use serde::de::Error as _;
use serde::{Deserialize, Deserializer};
use std::net::{SocketAddr, ToSocketAddrs as _};
use std::str::FromStr;

/// See the file's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address(pub SocketAddr);

impl FromStr for Address {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Ok(address) = text.parse() {
            return Ok(Address(address));
        }
        let refused = |cause: &str| {
            format!(
                "`{}` is no address to listen on: {cause}; write 127.0.0.1:10809, [::1]:10809 or \
                 localhost:10809",
                text.escape_debug()
            )
        };
        match text.rsplit_once(':') {
            None => return Err(refused("it has no port")),
            Some((_, port)) if port.parse::<u16>().is_err() => {
                return Err(refused("what follows the last colon is no port"));
            }
            Some(("", _)) => return Err(refused("it has no host; 0.0.0.0 is all of this machine")),
            Some((host, _)) if host.contains(':') && !host.starts_with('[') => {
                return Err(refused("an address of IPv6 stands in brackets"));
            }
            Some(_) => {}
        }
        let found = text.to_socket_addrs().map_err(|cause| refused(&cause.to_string()))?;
        let found: Vec<SocketAddr> = found.collect();
        let first = found.iter().find(|address| address.is_ipv4()).or(found.first());
        first.copied().map(Address).ok_or_else(|| refused("the name has no address"))
    }
}

impl<'de> Deserialize<'de> for Address {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: numbers and `localhost` are read, and what is neither is refused with its reason.
    /// Method: by hand; no name that a resolver beyond this machine would be asked for.
    #[test]
    fn addresses_are_read() {
        let read = |text: &str| text.parse::<Address>().map(|address| address.0.to_string());
        for (text, address) in [
            ("127.0.0.1:10809", "127.0.0.1:10809"),
            ("[::1]:0", "[::1]:0"),
            ("localhost:10809", "127.0.0.1:10809"),
        ] {
            assert_eq!(read(text).as_deref(), Ok(address));
        }
        for (text, word) in [
            ("10809", "no port"),
            ("localhost", "no port"),
            ("localhost:http", "is no port"),
            ("localhost:70000", "is no port"),
            (":10809", "no host"),
            ("::1:10809", "in brackets"),
            ("", "no port"),
        ] {
            let cause = read(text).expect_err(text);
            assert!(cause.contains(word) && cause.contains("localhost:10809"), "{text}: {cause}");
        }
    }
}
