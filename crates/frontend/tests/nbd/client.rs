//! The client by hand: a server's words written out, whole answers and fragments.

use layby_frontend::nbd::{
    ClientError, ClientHandshake, ClientNext, ClientOptions, ClientSession, Content, Decoded,
};
use layby_types::{CallFlags, ErrorKind, Extent};

pub(crate) fn client_options(structured: bool) -> ClientOptions {
    ClientOptions { export: "alpha".to_owned(), structured, block_status: structured }
}

fn option_reply(option: u8, kind: u32, data: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0, 3, 0xe8, 0x89, 0x04, 0x55, 0x65, 0xa9, 0, 0, 0, option];
    bytes.extend_from_slice(&kind.to_be_bytes());
    bytes.extend_from_slice(&(data.len() as u32).to_be_bytes());
    bytes.extend_from_slice(data);
    bytes
}

/// What a server says up to transmission, for an export of 4096 bytes.
fn server_words(structured: bool) -> Vec<Vec<u8>> {
    let mut words = vec![b"NBDMAGICIHAVEOPT\0\x03".to_vec()];
    if structured {
        words.push(option_reply(8, 1, b""));
        words.push(option_reply(10, 4, b"\0\0\0\x07base:allocation"));
        words.push(option_reply(10, 1, b""));
    }
    words.push(option_reply(7, 3, b"\0\0\0\0\0\0\0\0\x10\0\0\x8d"));
    words.push(option_reply(7, 3, b"\0\x03\0\0\0\x01\0\0\x10\0\x02\0\0\0"));
    words.push(option_reply(7, 1, b""));
    words
}

/// A client that has entered the export, and what the server said to get it there.
pub(crate) fn converse(structured: bool) -> (ClientSession, Vec<u8>) {
    let mut client = ClientHandshake::new(client_options(structured));
    let words = server_words(structured);
    for word in &words {
        let step = client.on_bytes(word, &mut Vec::new()).expect("valid words");
        assert_eq!(step.consumed, word.len());
        if let ClientNext::Ready(session) = step.next {
            return (*session, words.concat());
        }
    }
    panic!("the client did not enter")
}

fn chunk(flags: u8, kind: u16, cookie: u64, payload: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0x66, 0x8e, 0x33, 0xef, 0, flags];
    bytes.extend_from_slice(&kind.to_be_bytes());
    bytes.extend_from_slice(&cookie.to_be_bytes());
    bytes.extend_from_slice(&(payload.len() as u32).to_be_bytes());
    bytes.extend_from_slice(payload);
    bytes
}

fn simple(error: u8, cookie: u64, data: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0x67, 0x44, 0x66, 0x98, 0, 0, 0, error];
    bytes.extend_from_slice(&cookie.to_be_bytes());
    bytes.extend_from_slice(data);
    bytes
}

/// Goal: the client says what the protocol expects, in order. Method: its bytes, written out.
#[test]
fn the_client_negotiates() {
    let mut client = ClientHandshake::new(client_options(true));
    let mut said = Vec::new();
    for word in server_words(true) {
        client.on_bytes(&word, &mut said).expect("valid words");
    }
    let expected = b"\0\0\0\x03IHAVEOPT\0\0\0\x08\0\0\0\0\
        IHAVEOPT\0\0\0\x0a\0\0\0\x20\0\0\0\x05alpha\0\0\0\x01\0\0\0\x0fbase:allocation\
        IHAVEOPT\0\0\0\x07\0\0\0\x0d\0\0\0\x05alpha\0\x01\0\x03";
    assert_eq!(said, expected);
    let (session, _) = converse(true);
    assert!(session.is_structured() && session.has_block_status() && !session.is_read_only());
    let export = session.export();
    assert_eq!((export.size, export.flags), (4096, 0x8d));
    assert_eq!((export.block_size_min, export.block_size), (1, 4096));
    assert_eq!(export.request_length_max, 32 << 20);
}

/// Goal: features that a server lacks are done without. Method: refusals of each.
#[test]
fn the_client_does_without() {
    for refused in [8, 10] {
        let mut client = ClientHandshake::new(client_options(true));
        let mut said = Vec::new();
        client.on_bytes(&server_words(true)[0], &mut said).expect("a greeting");
        if refused == 10 {
            client.on_bytes(&option_reply(8, 1, b""), &mut said).expect("an ack");
        }
        client.on_bytes(&option_reply(refused, 0x8000_0001, b"no"), &mut said).expect("goes on");
        client.on_bytes(&server_words(false)[1], &mut said).expect("info");
        let step = client.on_bytes(&option_reply(7, 1, b""), &mut said).expect("an ack");
        let ClientNext::Ready(session) = step.next else { panic!("{step:?}") };
        assert_eq!(session.is_structured(), refused == 10);
        assert!(!session.has_block_status());
    }
}

/// Goal: a refused export is an error with its remedy. Method: each refusal of GO.
#[test]
fn refusals_have_a_kind() {
    for (code, expected) in [
        (0x8000_0006, ErrorKind::Invalid),
        (0x8000_0002, ErrorKind::Denied),
        (0x8000_0005, ErrorKind::Denied),
        (0x8000_0007, ErrorKind::Closed),
        (0x8000_0001, ErrorKind::Unsupported),
    ] {
        let mut client = ClientHandshake::new(client_options(false));
        client.on_bytes(&server_words(false)[0], &mut Vec::new()).expect("a greeting");
        let error = client.on_bytes(&option_reply(7, code, b"sorry"), &mut Vec::new());
        let error = error.expect_err("a refusal");
        assert_eq!(error.kind(), expected);
        assert!(error.to_string().ends_with("sorry"));
    }
}

/// Goal: a server out of step is left. Method: wrong magics, wrong option, ack without info.
#[test]
fn broken_negotiations_end() {
    let broken = |words: &[&[u8]]| {
        let mut client = ClientHandshake::new(client_options(false));
        let last = words.iter().map(|word| client.on_bytes(word, &mut Vec::new())).last();
        matches!(last, Some(Err(ClientError::Broken { .. })))
    };
    let greeting = b"NBDMAGICIHAVEOPT\0\x03".as_slice();
    assert!(broken(&[b"NBDMAGICIHAVEOPX\0\x03"]));
    assert!(broken(&[b"NBDMAGICIHAVEOPT\0\0"]), "no fixed newstyle");
    assert!(broken(&[greeting, &[0; 20]]));
    assert!(broken(&[greeting, &option_reply(8, 1, b"")]), "another option's reply");
    assert!(broken(&[greeting, &option_reply(7, 1, b"")]), "nothing said of the export");
    assert!(broken(&[greeting, &option_reply(7, 2, b"")]), "a list line");
    assert!(broken(&[greeting, &option_reply(7, 3, b"\0\0\0")]), "a short item");
}

/// Goal: a fragmented read arrives piece by piece. Method: data, hole, then the closing chunk,
/// with another answer between.
#[test]
fn fragments_are_handed_on() {
    let (mut client, _) = converse(true);
    let mut sent = Vec::new();
    client.encode_read(1, 100, 20, &mut sent);
    client.encode_flush(2, &mut sent);
    let data = chunk(0, 1, 1, b"\0\0\0\0\0\0\0\x6eabcdefghij");
    let content = Content::Data { offset: 110, bytes: b"abcdefghij" };
    assert_eq!(client.decode(&data), Ok(Decoded::Part { consumed: 38, cookie: 1, content }));
    let reply = Decoded::Reply { consumed: 16, cookie: 2, result: Ok(Content::Nothing) };
    assert_eq!(client.decode(&simple(0, 2, b"")), Ok(reply));
    let hole = chunk(0, 2, 1, b"\0\0\0\0\0\0\0\x64\0\0\0\x0a");
    let content = Content::Hole { offset: 100, length: 10 };
    assert_eq!(client.decode(&hole), Ok(Decoded::Part { consumed: 32, cookie: 1, content }));
    let reply = Decoded::Reply { consumed: 20, cookie: 1, result: Ok(Content::Nothing) };
    assert_eq!(client.decode(&chunk(1, 0, 1, b"")), Ok(reply));
    assert_eq!(client.inflight_count(), 0);
}

/// Goal: an error anywhere in an answer fails the whole. Method: an error chunk, then the end.
#[test]
fn an_error_chunk_fails_the_answer() {
    let (mut client, _) = converse(true);
    client.encode_read(1, 0, 16, &mut Vec::new());
    let error = chunk(0, 0x8002, 1, b"\0\0\0\x05\0\x02no\0\0\0\0\0\0\0\x08");
    assert!(matches!(client.decode(&error), Ok(Decoded::Part { cookie: 1, .. })));
    let reply = Decoded::Reply { consumed: 20, cookie: 1, result: Err(5) };
    assert_eq!(client.decode(&chunk(1, 0, 1, b"")), Ok(reply));
}

/// Goal: what cannot be true is not believed. Method: one lie each.
#[test]
fn lies_are_not_believed() {
    let lies: [Vec<u8>; 10] = [
        simple(0, 1, b""),
        simple(0, 9, b""),
        chunk(1, 0, 1, b""),
        chunk(1, 0, 9, b""),
        chunk(1, 0, 2, b"x"),
        chunk(1, 1, 1, b"\0\0\0\0\0\0\0\x01abcdefghijklmnop"),
        chunk(1, 1, 2, b"\0\0\0\0\0\0\0\0abcd"),
        chunk(1, 5, 3, b"\0\0\0\x08\0\0\0\x10\0\0\0\0"),
        chunk(1, 5, 3, b"\0\0\0\x07\0\0\0\x10"),
        chunk(1, 0x8001, 1, b"\0\0\0\x05\xff\xff"),
    ];
    for lie in lies {
        let (mut client, _) = converse(true);
        let mut sent = Vec::new();
        client.encode_read(1, 0, 16, &mut sent);
        client.encode_flush(2, &mut sent);
        client.encode_block_status(3, 0, 4096, &mut sent);
        assert!(client.decode(&lie).is_err(), "{lie:?}");
    }
    let (mut client, _) = converse(false);
    client.encode_read(1, 0, 16, &mut Vec::new());
    assert!(client.decode(&chunk(1, 0, 1, b"")).is_err(), "structure was not negotiated");
}

/// Goal: nothing is decoded until all of it is there. Method: every prefix of three answers.
#[test]
fn short_answers_wait() {
    let (mut client, _) = converse(true);
    let mut sent = Vec::new();
    client.encode_block_status(3, 0, 4096, &mut sent);
    let status = chunk(1, 5, 3, b"\0\0\0\x07\0\0\x08\0\0\0\0\0\0\0\x08\0\0\0\0\x03");
    for length in 0..status.len() {
        let decoded = client.decode(&status[..length]).expect("waits");
        assert!(matches!(decoded, Decoded::Incomplete { wanted } if wanted > length));
    }
    let Ok(Decoded::Reply { result: Ok(content), .. }) = client.decode(&status) else {
        panic!("all of it is there")
    };
    let extent = |hole| Extent { length: 2048, hole, zero: hole };
    assert_eq!(content.extents().collect::<Vec<_>>(), [extent(false), extent(true)]);

    let (mut client, _) = converse(false);
    client.encode_read(1, 0, 4, &mut sent);
    let reply = simple(0, 1, b"data");
    for length in 0..reply.len() {
        assert!(matches!(client.decode(&reply[..length]), Ok(Decoded::Incomplete { .. })));
    }
    let content = Content::Data { offset: 0, bytes: b"data" };
    let whole = Decoded::Reply { consumed: 20, cookie: 1, result: Ok(content) };
    assert_eq!(client.decode(&reply), Ok(whole));
}

/// Goal: requests are encoded as the protocol lays them out. Method: one of each, written out.
#[test]
fn requests_are_exact() {
    let (mut client, _) = converse(true);
    let mut sent = Vec::new();
    client.encode_write(1, 2, b"ab", true, &mut sent);
    let expected = b"\x25\x60\x95\x13\0\x01\0\x01\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0\x02\0\0\0\x02ab";
    assert_eq!(sent, expected);
    let flags = CallFlags { fast_zero: true, no_hole: true, ..CallFlags::default() };
    sent.clear();
    client.encode_read(2, 0, 512, &mut sent);
    client.encode_flush(3, &mut sent);
    client.encode_trim(4, 0, 512, &mut sent);
    client.encode_cache(5, 0, 512, &mut sent);
    client.encode_write_zeroes(6, 0, 512, flags, &mut sent);
    client.encode_block_status(7, 0, 512, &mut sent);
    client.encode_disconnect(&mut sent);
    let heads: Vec<&[u8]> = sent.chunks(28).map(|head| &head[4..8]).collect();
    let expected = [(0, 0), (0, 3), (0, 4), (0, 5), (0x12, 6), (0, 7), (0, 2)];
    assert_eq!(heads, expected.map(|(flags, command)| [0, flags, 0, command]));
}
