//! An address to listen on, as it is written: numbers or a host's name, and a port.
//!
//! How: numbers are taken as they are; a name is kept, and looked up where the address is bound
//! (see [`crate::sockets`]): what only reads a configuration needs no resolver, and one that does
//! not answer yet is no mistake of the configuration.
//! Invariant: an address that exists has a port. Cost: none. Not for: unix sockets, and `off`.

use serde::de::Error as _;
use serde::{Deserialize, Deserializer};
use std::fmt;
use std::net::SocketAddr;
use std::str::FromStr;

/// See the file's header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// Numbers.
    Numbers(SocketAddr),
    /// A host's name, a colon and a port.
    Name(String),
}

impl Address {
    /// Whether the system chooses its port.
    #[must_use]
    pub fn has_any_port(&self) -> bool {
        match self {
            Address::Numbers(address) => address.port() == 0,
            Address::Name(text) => port_of(text) == Some(0),
        }
    }
}

fn port_of(text: &str) -> Option<u16> {
    text.rsplit_once(':')?.1.parse().ok()
}

impl From<SocketAddr> for Address {
    fn from(address: SocketAddr) -> Address {
        Address::Numbers(address)
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Numbers(address) => address.fmt(f),
            Address::Name(text) => text.fmt(f),
        }
    }
}

impl FromStr for Address {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Ok(address) = text.parse() {
            return Ok(Address::Numbers(address));
        }
        let cause = match text.rsplit_once(':') {
            None => "it has no port",
            Some((_, port)) if port.parse::<u16>().is_err() => {
                "what follows the last colon is no port"
            }
            Some(("", _)) => "it has no host; 0.0.0.0 is all of this machine",
            Some((host, _)) if host.starts_with('[') => "what is in brackets is no IPv6 address",
            Some((host, _)) if host.contains(':') => "an address of IPv6 stands in brackets",
            Some((host, _)) if !host.chars().all(is_of_name) => "its host is no name",
            Some((host, _)) if are_numbers(host) => "its four numbers are no IPv4 address",
            Some(_) => return Ok(Address::Name(text.to_owned())),
        };
        Err(format!(
            "`{}` is no address to listen on: {cause}; write 127.0.0.1:10809, [::1]:10809 or \
             localhost:10809",
            text.escape_debug()
        ))
    }
}

/// What a host's name consists of. Names beyond ASCII are the resolver's to judge.
fn is_of_name(letter: char) -> bool {
    letter.is_alphanumeric() || ['-', '.', '_'].contains(&letter)
}

fn are_numbers(host: &str) -> bool {
    let is_number = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
    host.split('.').count() == 4 && host.split('.').all(is_number)
}

impl<'de> Deserialize<'de> for Address {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: numbers and names are read, and what is neither is refused with its reason; no
    /// resolver is asked. Method: by hand; one name that none knows.
    #[test]
    fn addresses_are_read() {
        let read = |text: &str| text.parse::<Address>().map(|address| address.to_string());
        for (text, address) in [
            ("127.0.0.1:10809", "127.0.0.1:10809"),
            ("[::1]:0", "[::1]:0"),
            ("localhost:10809", "localhost:10809"),
            ("nowhere.invalid:1", "nowhere.invalid:1"),
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
            ("[::x]:10809", "in brackets"),
            ("local host:10809", "no name"),
            ("10.0.0.256:10809", "no IPv4"),
            ("", "no port"),
        ] {
            let cause = read(text).expect_err(text);
            assert!(cause.contains(word) && cause.contains("localhost:10809"), "{text}: {cause}");
        }
    }
}
