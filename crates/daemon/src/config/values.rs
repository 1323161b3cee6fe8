//! The values a configuration and the control API are written in: names, sizes, times, amounts.
//!
//! How: each type reads the text a person writes and prints it back the same way, so that the
//! catalog, the API and the file share one notation. A refused text is answered with what would
//! have been accepted.
//! Invariant: a value that exists is well formed; only its relation to other values is left to
//! check.

use layby_engine::core::IO_TIMEOUT_DEFAULT;
use layby_types::{ByteSize, Nanos, parse_bytes, parse_duration, parse_rate};
use serde::de::{Error as _, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::borrow::Borrow;
use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::str::FromStr;

/// Gives a type that is written as text its serde and schema, by way of `FromStr` and `Display`.
macro_rules! written_as_text {
    ($type:ty, $example:literal) => {
        impl Serialize for $type {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }
        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
            }
        }
        impl utoipa::PartialSchema for $type {
            fn schema() -> utoipa::openapi::RefOr<utoipa::openapi::schema::Schema> {
                utoipa::openapi::ObjectBuilder::new()
                    .schema_type(utoipa::openapi::schema::Type::String)
                    .examples([serde_json::Value::from($example)])
                    .into()
            }
        }
        impl utoipa::ToSchema for $type {}
    };
}

pub(super) use written_as_text;

/// The name of a volume, class or level: safe in a path, a URL, a metric label and a terminal.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name(String);

impl Name {
    /// Characters of the longest name.
    pub const LENGTH_MAX: usize = 64;
    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for Name {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
        let fits = (1..=Self::LENGTH_MAX).contains(&text.len()) && text.chars().all(allowed);
        if fits && text != "." && text != ".." {
            Ok(Name(text.to_owned()))
        } else {
            let shown: String = text.chars().take(Self::LENGTH_MAX).collect();
            Err(format!(
                "`{}` is not a name; write 1 to {} of A-Z a-z 0-9 . _ -",
                shown.escape_debug(),
                Self::LENGTH_MAX
            ))
        }
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl Borrow<str> for Name {
    fn borrow(&self) -> &str {
        &self.0
    }
}

written_as_text!(Name, "vol0");

/// How a type that holds a number of bytes is read, from text or an integer, and written.
macro_rules! written_as_bytes {
    ($type:ident, $parse:path, $expected:literal, $example:literal) => {
        impl FromStr for $type {
            type Err = String;
            fn from_str(text: &str) -> Result<Self, String> {
                $parse(text).map($type).map_err(|refused| refused.to_string())
            }
        }
        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                ByteSize(self.0).fmt(f)
            }
        }
        impl Serialize for $type {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }
        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                deserializer.deserialize_any(BytesVisitor($expected, $type))
            }
        }
        impl utoipa::PartialSchema for $type {
            fn schema() -> utoipa::openapi::RefOr<utoipa::openapi::schema::Schema> {
                text_or_integer($example)
            }
        }
        impl utoipa::ToSchema for $type {}
    };
}

/// A number of bytes, written `64GiB` or as a plain integer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Size(pub u64);

written_as_bytes!(Size, parse_bytes, "a size such as `64GiB`", "64GiB");

/// Bytes in a second, written `100MiB`, `100MiB/s`, `80Mbit/s` or as a plain integer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Bandwidth(pub u64);

written_as_bytes!(Bandwidth, parse_rate, "a rate such as `100MiB/s`", "100MiB");

/// What is expected, and what a number of bytes becomes.
struct BytesVisitor<T>(&'static str, fn(u64) -> T);

impl<T: FromStr<Err = String>> Visitor<'_> for BytesVisitor<T> {
    type Value = T;
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<T, E> {
        text.parse().map_err(E::custom)
    }
    fn visit_u64<E: serde::de::Error>(self, bytes: u64) -> Result<T, E> {
        Ok(self.1(bytes))
    }
    fn visit_i64<E: serde::de::Error>(self, bytes: i64) -> Result<T, E> {
        u64::try_from(bytes).map(self.1).map_err(|_| E::custom("it cannot be negative"))
    }
}

fn text_or_integer(example: &str) -> utoipa::openapi::RefOr<utoipa::openapi::schema::Schema> {
    utoipa::openapi::ObjectBuilder::new()
        .schema_type(utoipa::openapi::schema::SchemaType::from_iter([
            utoipa::openapi::schema::Type::String,
            utoipa::openapi::schema::Type::Integer,
        ]))
        .examples([serde_json::Value::from(example)])
        .into()
}

/// A span of time, written `5s`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Time(pub Nanos);

impl FromStr for Time {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        parse_duration(text).map(Time)
    }
}

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

written_as_text!(Time, "5s");

/// A time such as `30s`, or `off` for as long as it takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Patience(pub(super) Nanos);

impl Default for Patience {
    fn default() -> Self {
        Patience(IO_TIMEOUT_DEFAULT)
    }
}

impl FromStr for Patience {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        if text.trim() == "off" {
            return Ok(Patience(Nanos::NEVER));
        }
        parse_duration(text).map(Patience)
    }
}

impl fmt::Display for Patience {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 == Nanos::NEVER { f.write_str("off") } else { self.0.fmt(f) }
    }
}

written_as_text!(Patience, "30s");

/// A whole number of percent, written `25%`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Percent(pub u8);

impl FromStr for Percent {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let number = text.trim().strip_suffix('%').and_then(|digits| digits.trim().parse().ok());
        number.filter(|percent| *percent <= 100).map(Percent).ok_or_else(|| {
            format!("`{text}` is not a percentage; write `0%` to `100%`, such as `25%`")
        })
    }
}

impl fmt::Display for Percent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}%", self.0)
    }
}

written_as_text!(Percent, "70%");

/// A part of a level: `25%` of it, or a size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Amount {
    /// Of the whole level.
    Percent(Percent),
    /// Whatever the level's size.
    Bytes(u64),
}

impl Amount {
    /// The amount in bytes of a level of `level_bytes`.
    #[must_use]
    pub fn bytes_of(self, level_bytes: u64) -> u64 {
        match self {
            Amount::Percent(Percent(percent)) => {
                let exact = u128::from(level_bytes) * u128::from(percent) / 100;
                u64::try_from(exact).expect("a part of a level is no larger than the level")
            }
            Amount::Bytes(bytes) => bytes,
        }
    }
}

impl FromStr for Amount {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        if text.trim().ends_with('%') {
            return text.parse().map(Amount::Percent);
        }
        let is_bare = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
        if is_bare(text.trim()) && text.trim() != "0" {
            let percent = if text.trim().len() < 3 { text.trim() } else { "25" };
            return Err(format!(
                "`{text}` has no unit; write `{percent}%` of the level, or a size such as \
                 `{text}MiB`"
            ));
        }
        parse_bytes(text).map(Amount::Bytes).map_err(|_| {
            format!("`{text}` is not a part of a level; write `25%` or a size such as `64MiB`")
        })
    }
}

impl fmt::Display for Amount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Amount::Percent(percent) => percent.fmt(f),
            Amount::Bytes(bytes) => ByteSize(*bytes).fmt(f),
        }
    }
}

written_as_text!(Amount, "25%");

/// Who a client is, as far as an allow-list cares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peer {
    /// Came through the unix socket.
    Unix,
    /// Came through TCP from this address.
    Network(IpAddr),
}

/// Bits that all IPv4-mapped addresses (`::ffff:0:0/96`) begin with.
const MAPPED_PREFIX: u8 = 96;

/// One line of a volume's allow-list: `unix`, an address, or a network such as `10.0.0.0/8`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AllowRule {
    /// Clients on the unix socket.
    Unix,
    /// Clients whose address begins with the first `prefix` bits of `address`.
    Network {
        /// The network's address.
        address: IpAddr,
        /// Bits that must agree.
        prefix: u8,
    },
}

impl AllowRule {
    /// Whether the rule lets `peer` in. An IPv4 client on an IPv6 socket counts as IPv4.
    #[must_use]
    pub fn matches(&self, peer: Peer) -> bool {
        match (*self, peer) {
            (AllowRule::Unix, Peer::Unix) => true,
            (AllowRule::Network { address, prefix }, Peer::Network(client)) => {
                match (address, client.to_canonical()) {
                    (IpAddr::V4(net), IpAddr::V4(client)) => {
                        let shift = 32 - u32::from(prefix);
                        (u32::from(net) ^ u32::from(client)).checked_shr(shift).unwrap_or(0) == 0
                    }
                    (IpAddr::V6(net), IpAddr::V6(client)) => is_within(net, prefix, client),
                    // Wider than all mapped addresses. A rule of IPv6 that is not written as one
                    // of them, such as `::/0`, lets in no IPv4 client.
                    (IpAddr::V6(net), IpAddr::V4(client)) => {
                        net.to_ipv4_mapped().is_some()
                            && is_within(net, prefix, client.to_ipv6_mapped())
                    }
                    (IpAddr::V4(_), IpAddr::V6(_)) => false,
                }
            }
            _ => false,
        }
    }
}

/// Whether the first `prefix` bits of a network and a client agree.
fn is_within(network: Ipv6Addr, prefix: u8, client: Ipv6Addr) -> bool {
    let shift = 128 - u32::from(prefix);
    (u128::from(network) ^ u128::from(client)).checked_shr(shift).unwrap_or(0) == 0
}

/// An IPv4 network that is written as IPv4-mapped addresses, as IPv4.
fn canonical(address: IpAddr, prefix: u8) -> (IpAddr, u8) {
    match address.to_canonical() {
        address @ IpAddr::V4(_) if prefix >= MAPPED_PREFIX => (address, prefix - MAPPED_PREFIX),
        _ => (address, prefix),
    }
}

impl FromStr for AllowRule {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let refused = || {
            format!(
                "`{text}` is no allow rule; write `unix`, an IP address, or a network such as \
                 `10.0.0.0/8` or `fd00::/8`"
            )
        };
        if text == "unix" {
            return Ok(AllowRule::Unix);
        }
        let (address, prefix) = text.split_once('/').map_or((text, None), |(a, p)| (a, Some(p)));
        let address: IpAddr = address.parse().map_err(|_| refused())?;
        let bits = if address.is_ipv4() { 32 } else { 128 };
        let prefix = prefix.map_or(Ok(bits), |p| p.parse::<u8>().map_err(|_| refused()))?;
        if prefix > bits {
            return Err(refused());
        }
        let (address, prefix) = canonical(address, prefix);
        Ok(AllowRule::Network { address, prefix })
    }
}

impl fmt::Display for AllowRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AllowRule::Unix => f.write_str("unix"),
            AllowRule::Network { address, prefix } => write!(f, "{address}/{prefix}"),
        }
    }
}

written_as_text!(AllowRule, "10.0.0.0/8");

/// Whether `peer` may use a volume with the allow-list `rules`; an empty list lets everybody in.
#[must_use]
pub fn is_allowed(rules: &[AllowRule], peer: Peer) -> bool {
    rules.is_empty() || rules.iter().any(|rule| rule.matches(peer))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn network(text: &str) -> Peer {
        Peer::Network(text.parse().expect("tests write good addresses"))
    }

    /// Goal: an allow-list admits its networks and nobody else. Method: edges of prefixes, both
    /// families, mapped addresses.
    #[test]
    fn allow_list_matches_networks() {
        let rule: AllowRule = "10.1.0.0/16".parse().expect("a good rule");
        assert!(rule.matches(network("10.1.255.255")) && !rule.matches(network("10.2.0.0")));
        assert!(rule.matches(network("::ffff:10.1.0.1")) && !rule.matches(Peer::Unix));
        let all: AllowRule = "0.0.0.0/0".parse().expect("a good rule");
        assert!(all.matches(network("203.0.113.7")) && !all.matches(network("::1")));
        let v6: AllowRule = "fd00::/8".parse().expect("a good rule");
        assert!(v6.matches(network("fdff::1")) && !v6.matches(network("fe00::1")));
        let one: AllowRule = "127.0.0.1".parse().expect("a good rule");
        assert!(one.matches(network("127.0.0.1")) && !one.matches(network("127.0.0.2")));
        assert!(is_allowed(&[], Peer::Unix) && !is_allowed(&[one], Peer::Unix));
        assert!(is_allowed(&[one, AllowRule::Unix], Peer::Unix));
    }

    /// Goal: a rule that is written as an IPv4-mapped address or network lets IPv4 clients in,
    /// whichever socket they came through, and one of all IPv6 does not. Method: prefixes on both
    /// sides of the mapped range, each with clients inside and outside.
    #[test]
    fn mapped_networks_match_ipv4_clients() {
        for (rule, inside, outside) in [
            ("::ffff:10.1.2.3", "10.1.2.3", "10.1.2.4"),
            ("::ffff:10.1.2.3/128", "::ffff:10.1.2.3", "::10.1.2.3"),
            ("::ffff:10.1.0.0/112", "10.1.255.255", "10.2.0.0"),
            ("::ffff:a01:0/112", "::ffff:10.1.0.1", "::a01:1"),
            ("::ffff:0:0/96", "203.0.113.7", "::1"),
            ("::ffff:0:0/90", "203.0.113.7", "::1"),
            ("::ffff:0:0/80", "203.0.113.7", "1::"),
            ("::ffff:0:0/80", "::1", "::1:0:0:0:0"),
            ("::/0", "::1", "10.1.2.3"),
            ("::/96", "::10.1.2.3", "10.1.2.3"),
        ] {
            let parsed: AllowRule = rule.parse().expect("a good rule");
            assert!(parsed.matches(network(inside)), "{rule} {inside}");
            assert!(!parsed.matches(network(outside)), "{rule} {outside}");
            assert!(!parsed.matches(Peer::Unix), "{rule}");
            assert_eq!(parsed.to_string().parse(), Ok(parsed), "{rule}");
        }
        let plain: AllowRule = "10.1.0.0/16".parse().expect("a good rule");
        assert_eq!("::ffff:10.1.0.0/112".parse(), Ok(plain));
    }

    /// Goal: nonsense is refused with what is accepted. Method: one bad text per rule.
    #[test]
    fn bad_values_are_refused() {
        for bad in ["", "unixx", "10.0.0.0/33", "::/129", "10.0.0/8", "10.0.0.0/x", "host"] {
            assert!(bad.parse::<AllowRule>().is_err(), "{bad} must be refused");
        }
        for bad in ["", ".", "..", "a/b", "a b", "ä", &"x".repeat(65)] {
            assert!(bad.parse::<Name>().is_err(), "{bad} must be refused");
        }
        for bad in ["101%", "-1%", "%", "5", "2.5%"] {
            assert!(bad.parse::<Percent>().is_err(), "{bad} must be refused");
        }
        for bad in ["half", "200%", "5 gbit", "25"] {
            assert!(bad.parse::<Amount>().is_err(), "{bad} must be refused");
        }
    }

    /// Goal: what is printed can be read back. Method: one text of each notation.
    #[test]
    fn values_print_as_they_are_written() {
        assert_eq!("25%".parse::<Amount>().map(|a| a.to_string()).as_deref(), Ok("25%"));
        assert_eq!("64MiB".parse::<Amount>().map(|a| a.to_string()).as_deref(), Ok("64MiB"));
        assert_eq!(
            "fd00::/8".parse::<AllowRule>().map(|r| r.to_string()).as_deref(),
            Ok("fd00::/8")
        );
        assert_eq!(
            "70%".parse::<Amount>().map(|a| a.bytes_of(u64::MAX)),
            Ok(12_912_720_851_596_686_130)
        );
    }
}
