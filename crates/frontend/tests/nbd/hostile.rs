//! Hostile peers: random bytes, bent transcripts, and servers that lie to the client.

use crate::client::{client_options, converse};
use crate::common::{
    ABORT, GO, INFO, LIST, LIST_CONTEXT, SET_CONTEXT, STARTTLS, STRUCTURED, contexts,
    for_each_seed, info, option,
};
use layby_frontend::nbd::fuzz::{FuzzEnd, fuzz_server, run_server};
use layby_frontend::nbd::{ClientHandshake, ClientNext, Decoded, TlsPolicy};
use layby_types::{Operation, Rng};

fn pick<T: Copy>(rng: &mut Rng, from: &[T]) -> T {
    from[rng.below(from.len() as u64) as usize]
}

fn random_bytes(rng: &mut Rng, length_max: u64) -> Vec<u8> {
    let mut bytes = vec![0; rng.below(length_max + 1) as usize];
    rng.fill(&mut bytes);
    bytes
}

/// A request that is often valid on an export of 4096 bytes; writes carry their payload.
fn random_request(rng: &mut Rng) -> Vec<u8> {
    let command = if rng.chance(1, 20) { rng.next_u64() as u16 } else { rng.below(8) as u16 };
    let command = if command == 2 { 3 } else { command };
    let flags = if rng.chance(1, 3) { 1 << rng.below(6) } else { 0u16 };
    let length = if rng.chance(1, 10) { 0 } else { rng.below(2048) as u32 };
    let length = if command == 3 { 0 } else { length };
    let offset = if command == 3 { 0 } else { rng.below(2560) };
    let mut bytes = vec![0x25, 0x60, 0x95, 0x13];
    bytes.extend_from_slice(&flags.to_be_bytes());
    bytes.extend_from_slice(&command.to_be_bytes());
    bytes.extend_from_slice(&rng.next_u64().to_be_bytes());
    bytes.extend_from_slice(&offset.to_be_bytes());
    bytes.extend_from_slice(&length.to_be_bytes());
    if command == 1 {
        bytes.resize(28 + length as usize, 0xaa);
    }
    bytes
}

fn random_option(rng: &mut Rng) -> Vec<u8> {
    let name = pick(rng, &["", "a", "b", "denied", "closing", "nobody"]);
    let code = if rng.chance(1, 8) { rng.below(20) as u32 } else { pick(rng, &[3, 6, 8, 9, 10]) };
    // Those that end a transcript have their own place in it.
    let code = if [1, ABORT, STARTTLS, GO].contains(&code) { LIST } else { code };
    let data = match code {
        INFO => info(name, &[0, 1, 2, 3, 9][..rng.below(6) as usize]),
        LIST_CONTEXT | SET_CONTEXT => {
            contexts(name, &["base:allocation", "base:", "x-y:z"][..rng.below(4) as usize])
        }
        _ if rng.chance(1, 50) => vec![0; 33_000 + rng.below(3000) as usize],
        _ if rng.chance(1, 4) => random_bytes(rng, 40),
        _ => Vec::new(),
    };
    option(code, &data)
}

/// What a well-behaved client would say, from its flags to its goodbye.
fn valid_transcript(rng: &mut Rng, with_flags: bool) -> Vec<u8> {
    let mut bytes = if with_flags { vec![0, 0, 0, 3] } else { Vec::new() };
    for _ in 0..rng.below(6) {
        bytes.extend(random_option(rng));
    }
    if rng.chance(2, 3) {
        bytes.extend(option(STRUCTURED, &[]));
        bytes.extend(option(SET_CONTEXT, &contexts("a", &["base:allocation"])));
    }
    if rng.chance(1, 4) {
        bytes.extend(option(1, b"a"));
    } else {
        let name = pick(rng, &["", "a", "b"]);
        bytes.extend(option(GO, &info(name, &[3])));
    }
    for _ in 0..rng.below(12) {
        bytes.extend(random_request(rng));
    }
    bytes.extend([0x25, 0x60, 0x95, 0x13, 0, 0, 0, 2]);
    bytes.resize(bytes.len() + 20, 0);
    bytes
}

/// Bends bytes: flips, overwrites with edge values, removes, repeats and inserts.
fn bend(rng: &mut Rng, bytes: &mut Vec<u8>) {
    for _ in 0..1 + rng.below(4) {
        let at = rng.below(bytes.len() as u64 + 1) as usize;
        let end = (at + rng.below(40) as usize).min(bytes.len());
        match rng.below(5) {
            0 if at < bytes.len() => bytes[at] ^= 1 << rng.below(8),
            1 if at < bytes.len() => bytes[at] = pick(rng, &[0, 1, 0x7f, 0x80, 0xff]),
            2 => drop(bytes.drain(at..end)),
            3 => {
                let again = bytes[at..end].to_vec();
                bytes.splice(at..at, again);
            }
            _ => {
                let new = random_bytes(rng, 12);
                bytes.splice(at..at, new);
            }
        }
    }
}

/// Goal: no byte string harms the server. Method: random strings, alone and behind a good start.
#[test]
fn random_bytes_do_no_harm() {
    for_each_seed(400, |rng| {
        let mut bytes = Vec::new();
        if rng.chance(1, 2) {
            bytes.extend([0, 0, 0, 3]);
        }
        if rng.chance(1, 2) {
            bytes.extend(option(GO, &info("a", &[])));
            bytes.extend([0x25, 0x60, 0x95, 0x13]);
        }
        bytes.extend(random_bytes(rng, 3000));
        fuzz_server(&bytes);
    });
}

/// Goal: nearly valid input does no harm either. Method: bent transcripts, cut at random.
#[test]
fn bent_transcripts_do_no_harm() {
    for_each_seed(1500, |rng| {
        let with_flags = rng.chance(1, 2);
        let mut bytes = valid_transcript(rng, with_flags);
        bend(rng, &mut bytes);
        fuzz_server(&bytes);
    });
}

/// Goal: the runs above reach what they are meant to reach. Method: unbent transcripts end with
/// the client's own goodbye, and every operation gets through.
#[test]
fn valid_transcripts_are_served() {
    let mut seen = Vec::new();
    let mut rng = Rng::new(11);
    for _ in 0..300 {
        let encrypted = rng.chance(1, 2);
        let bytes = valid_transcript(&mut rng, !encrypted);
        let tls = if encrypted { TlsPolicy::Required } else { TlsPolicy::Off };
        let run = run_server(tls, encrypted, &bytes, Some(Rng::new(3)));
        assert_eq!(run.end, FuzzEnd::Left);
        seen.extend(run.calls.iter().map(|call| call.operation));
        fuzz_server(&bytes);
    }
    for operation in [
        Operation::Read,
        Operation::Write,
        Operation::Flush,
        Operation::Trim,
        Operation::WriteZeroes,
        Operation::Cache,
        Operation::BlockStatus,
    ] {
        assert!(seen.contains(&operation), "{operation:?} was never let through");
    }
}

/// Goal: requests cannot be smuggled past TLS. Method: a whole valid transcript, in clear.
#[test]
fn nothing_is_served_in_clear_when_tls_is_required() {
    for_each_seed(200, |rng| {
        let mut bytes = valid_transcript(rng, true);
        if rng.chance(1, 2) {
            bytes.splice(4..4, option(STARTTLS, &[]));
        }
        let run = run_server(TlsPolicy::Required, false, &bytes, None);
        assert!(run.calls.is_empty());
        assert!(matches!(run.end, FuzzEnd::Refused(_)), "{:?}", run.end);
    });
}

/// Goal: no server harms a client that negotiates. Method: random bytes, bent conversations.
#[test]
fn negotiating_clients_survive_any_server() {
    for_each_seed(1000, |rng| {
        let (_, mut said) = converse(true);
        bend(rng, &mut said);
        said.extend(random_bytes(rng, 100));
        let mut client = ClientHandshake::new(client_options(true));
        let mut rest = said.as_slice();
        while let Ok(step) = client.on_bytes(rest, &mut Vec::new()) {
            rest = &rest[step.consumed..];
            match step.next {
                ClientNext::Continue => assert!(step.consumed > 0),
                ClientNext::NeedMore { wanted } => {
                    assert!(wanted > rest.len());
                    break;
                }
                ClientNext::Ready(_) => break,
            }
        }
    });
}

/// Goal: no server harms a client in transmission. Method: bent and random replies.
#[test]
fn transmitting_clients_survive_any_server() {
    for_each_seed(2000, |rng| {
        let structured = rng.chance(2, 3);
        let (mut client, _) = converse(structured);
        let mut requests = Vec::new();
        for cookie in 0..4 {
            client.encode_read(cookie, 512 * cookie, 16, &mut requests);
        }
        client.encode_block_status(4, 0, 4096, &mut requests);
        client.encode_flush(5, &mut requests);
        let mut said = Vec::new();
        for _ in 0..6 {
            said.extend(random_reply(rng));
        }
        if rng.chance(1, 2) {
            bend(rng, &mut said);
        }
        let mut rest = said.as_slice();
        while let Ok(decoded) = client.decode(rest) {
            let consumed = match decoded {
                Decoded::Incomplete { wanted } => {
                    assert!(wanted > rest.len());
                    break;
                }
                Decoded::Part { consumed, .. } | Decoded::Reply { consumed, .. } => consumed,
            };
            assert!(consumed > 0);
            rest = &rest[consumed..];
        }
    });
}

/// A reply to one of six requests, right in form and often wrong in content.
fn random_reply(rng: &mut Rng) -> Vec<u8> {
    let cookie = rng.below(7);
    if rng.chance(1, 3) {
        let mut bytes = vec![0x67, 0x44, 0x66, 0x98, 0, 0, 0, pick(rng, &[0, 5])];
        bytes.extend_from_slice(&cookie.to_be_bytes());
        bytes.extend_from_slice(&[9; 16][..pick(rng, &[0, 16])]);
        return bytes;
    }
    let kind: u16 = pick(rng, &[0, 1, 2, 3, 5, 0x8001, 0x8002, 0x8777]);
    let payload = match kind {
        0 => vec![],
        1 => [&(512 * cookie).to_be_bytes()[..], &[9; 16]].concat(),
        2 => [&(512 * cookie).to_be_bytes()[..], &[0, 0, 0, 16]].concat(),
        5 => vec![0, 0, 0, 7, 0, 0, 16, 0, 0, 0, 0, 3],
        _ => vec![0, 0, 0, 5, 0, 2, b'n', b'o'],
    };
    let mut bytes = vec![0x66, 0x8e, 0x33, 0xef, 0, rng.below(2) as u8];
    bytes.extend_from_slice(&kind.to_be_bytes());
    bytes.extend_from_slice(&cookie.to_be_bytes());
    bytes.extend_from_slice(&(payload.len() as u32).to_be_bytes());
    bytes.extend(payload);
    bytes
}
