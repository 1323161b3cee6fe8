//! The transmission phase on the server: requests by hand, replies byte for byte.

use crate::common::be32;
use layby_frontend::nbd::{
    EXTENTS_MAX, ExportInfo, NbdSession, PAYLOAD_SWALLOW_MAX, REQUEST_LENGTH_MAX, SessionFeatures,
};
use layby_types::{Call, CallFlags, ErrorKind, Extent, Operation, Parsed, Session, VolumeId};

const SIZE: u64 = 1 << 40;
const COOKIE: u64 = 0x0102_0304_0506_0708;
const SIMPLE: SessionFeatures = SessionFeatures { structured: false, allocation_context: false };
const FULL: SessionFeatures = SessionFeatures { structured: true, allocation_context: true };

fn session(features: SessionFeatures) -> NbdSession {
    NbdSession::new(&ExportInfo::new(VolumeId(1), "alpha", SIZE), features)
}

fn request(flags: u16, command: u16, offset: u64, length: u32) -> Vec<u8> {
    let mut bytes = vec![0x25, 0x60, 0x95, 0x13];
    bytes.extend_from_slice(&flags.to_be_bytes());
    bytes.extend_from_slice(&command.to_be_bytes());
    bytes.extend_from_slice(&COOKIE.to_be_bytes());
    bytes.extend_from_slice(&offset.to_be_bytes());
    bytes.extend_from_slice(&length.to_be_bytes());
    bytes
}

fn call(operation: Operation, offset: u64, length: u64) -> Call {
    Call { cookie: COOKIE, operation, offset, length, flags: CallFlags::default() }
}

/// The error value in a reply of either style, which must be for the one cookie.
fn errno(reply: &[u8]) -> u32 {
    assert_eq!(reply[8..16], COOKIE.to_be_bytes());
    if reply[..4] == [0x67, 0x44, 0x66, 0x98] {
        assert_eq!(reply.len(), 16);
        return be32(&reply[4..]);
    }
    assert_eq!(reply[..8], [0x66, 0x8e, 0x33, 0xef, 0, 1, 0x80, 1]);
    let message_length = u16::from_be_bytes([reply[24], reply[25]]);
    assert!(message_length > 0, "people read it");
    assert_eq!(be32(&reply[16..]), 6 + u32::from(message_length));
    assert_eq!(reply.len(), 26 + usize::from(message_length));
    be32(&reply[20..])
}

/// Goal: each command becomes its call with its flags. Method: a table of heads.
#[test]
fn commands_become_calls() {
    let fua = CallFlags { fua: true, ..CallFlags::default() };
    let zero = CallFlags { fua: true, no_hole: true, fast_zero: true, ..CallFlags::default() };
    let whole = CallFlags { dont_fragment: true, ..CallFlags::default() };
    let one = CallFlags { one_extent: true, ..CallFlags::default() };
    let plain = CallFlags::default();
    let cases = [
        (0, 0, Operation::Read, plain),
        (4, 0, Operation::Read, whole),
        (1, 0, Operation::Read, plain),
        (0, 4, Operation::Trim, plain),
        (1, 4, Operation::Trim, fua),
        (0, 5, Operation::Cache, plain),
        (1, 5, Operation::Cache, plain),
        (0, 6, Operation::WriteZeroes, plain),
        (0x13, 6, Operation::WriteZeroes, zero),
        (0, 7, Operation::BlockStatus, plain),
        (9, 7, Operation::BlockStatus, one),
    ];
    for (wire_flags, command, operation, flags) in cases {
        let (bytes, mut out) = (request(wire_flags, command, 4097, 513), Vec::new());
        let expected = Call { flags, ..call(operation, 4097, 513) };
        let parsed = session(FULL).parse(&bytes, &mut out);
        assert_eq!(parsed, Ok(Parsed::Call { consumed: 28, call: expected, payload: &[] }));
        assert!(out.is_empty());
    }
    for flags in [0, 1] {
        let bytes = request(flags, 3, 0, 0);
        let expected = call(Operation::Flush, 0, 0);
        let parsed = session(SIMPLE).parse(&bytes, &mut Vec::new());
        assert_eq!(parsed, Ok(Parsed::Call { consumed: 28, call: expected, payload: &[] }));
    }
}

/// Goal: a write waits for its payload and hands it over. Method: every prefix, then bytes more.
#[test]
fn a_write_carries_its_payload() {
    let mut bytes = request(1, 1, 8192, 5);
    bytes.extend_from_slice(b"hello");
    let mut session = session(SIMPLE);
    for length in 0..bytes.len() {
        let wanted = if length < 28 { 28 } else { 33 };
        let parsed = session.parse(&bytes[..length], &mut Vec::new());
        assert_eq!(parsed, Ok(Parsed::Incomplete { wanted }));
    }
    bytes.extend_from_slice(b"next");
    let flags = CallFlags { fua: true, ..CallFlags::default() };
    let expected = Call { flags, ..call(Operation::Write, 8192, 5) };
    let parsed = session.parse(&bytes, &mut Vec::new());
    assert_eq!(parsed, Ok(Parsed::Call { consumed: 33, call: expected, payload: b"hello" }));
}

/// Goal: what the protocol calls wrong gets its error value. Method: a table, both reply styles.
#[test]
fn wrong_requests_get_their_errors() {
    let max = REQUEST_LENGTH_MAX;
    let cases: [(u16, u16, u64, u32, u32); 27] = [
        (0, 0, SIZE, 1, 22),
        (0, 0, SIZE - 1, 2, 22),
        (0, 0, u64::MAX, 2, 22),
        (0, 0, 0, max + 1, 22),
        (2, 0, 0, 1, 22),
        (8, 0, 0, 1, 22),
        (16, 0, 0, 1, 22),
        (0x8000, 0, 0, 1, 22),
        (0, 3, 1, 0, 22),
        (0, 3, 0, 1, 22),
        (2, 3, 0, 0, 22),
        (0, 4, SIZE, 1, 22),
        (2, 4, 0, 1, 22),
        (0, 5, SIZE, 1, 22),
        (0, 5, 0, max + 1, 22),
        (4, 5, 0, 1, 22),
        (0, 6, SIZE, 1, 28),
        (0, 6, u64::MAX - 1, 1, 28),
        (4, 6, 0, 1, 22),
        (8, 6, 0, 1, 22),
        (0, 7, SIZE, 1, 22),
        (0, 7, 0, 0, 22),
        (2, 7, 0, 1, 22),
        (0, 8, 0, 1, 22),
        (0, 9, 0, u32::MAX, 22),
        (0, 0x4000, 0, 1, 22),
        (0, 0xffff, u64::MAX, u32::MAX, 22),
    ];
    for features in [SIMPLE, FULL] {
        let mut session = session(features);
        for (flags, command, offset, length, expected) in cases {
            let (bytes, mut out) = (request(flags, command, offset, length), Vec::new());
            let parsed = session.parse(&bytes, &mut out);
            assert_eq!(parsed, Ok(Parsed::Answered { consumed: 28 }), "{command} {flags}");
            assert_eq!(errno(&out), expected, "{command} {flags} {offset} {length}");
        }
    }
}

/// Goal: what was not negotiated is not taken. Method: DF and block status on plain sessions.
#[test]
fn features_must_be_negotiated() {
    let structured = SessionFeatures { structured: true, allocation_context: false };
    for (features, flags, command) in [(SIMPLE, 4, 0), (SIMPLE, 0, 7), (structured, 0, 7)] {
        let mut out = Vec::new();
        let bytes = request(flags, command, 0, 512);
        let parsed = session(features).parse(&bytes, &mut out);
        assert_eq!(parsed, Ok(Parsed::Answered { consumed: 28 }));
        assert_eq!(errno(&out), 22);
    }
}

/// Goal: a read-only export is never written. Method: each writing command, and a read.
#[test]
fn read_only_is_kept() {
    let info = ExportInfo { read_only: true, ..ExportInfo::new(VolumeId(1), "alpha", 4096) };
    let mut session = NbdSession::new(&info, FULL);
    for (command, length) in [(4, 512), (6, 512), (1, 0), (4, 0)] {
        let mut out = Vec::new();
        let bytes = request(0, command, 0, length);
        let parsed = session.parse(&bytes, &mut out);
        assert_eq!(parsed, Ok(Parsed::Answered { consumed: 28 }));
        assert_eq!(errno(&out), 1);
    }
    let bytes = request(0, 0, 0, 512);
    assert!(matches!(session.parse(&bytes, &mut Vec::new()), Ok(Parsed::Call { .. })));
}

/// Goal: a refused write is skipped, then answered, and the stream stays in step. Method: its
/// payload in uneven pieces, with a read behind it.
#[test]
fn a_refused_write_is_skipped() {
    for (flags, offset, length, expected) in
        [(0, SIZE, 1000, 28), (4, 0, 1000, 22), (0, 0, REQUEST_LENGTH_MAX + 1, 22)]
    {
        let mut session = session(FULL);
        let mut out = Vec::new();
        let bytes = request(flags, 1, offset, length);
        let parsed = session.parse(&bytes, &mut out);
        assert_eq!(parsed, Ok(Parsed::Answered { consumed: 28 }));
        assert_eq!(session.parse(&[], &mut out), Ok(Parsed::Incomplete { wanted: 1 }));
        let mut stream = vec![7; length as usize];
        stream.extend(request(0, 0, 0, 512));
        let parsed = session.parse(&stream[..999], &mut out);
        assert_eq!(parsed, Ok(Parsed::Answered { consumed: 999 }));
        assert!(out.is_empty(), "the error follows the payload");
        let rest = length as usize - 999;
        let parsed = session.parse(&stream[999..], &mut out);
        assert_eq!(parsed, Ok(Parsed::Answered { consumed: rest }));
        assert_eq!(errno(&out), expected);
        let parsed = session.parse(&stream[999 + rest..], &mut out);
        assert!(matches!(parsed, Ok(Parsed::Call { consumed: 28, .. })));
    }
}

/// Goal: a stream that cannot be followed is closed. Method: a write too long to skip, bad magic.
#[test]
fn hopeless_streams_close() {
    let bytes = request(0, 1, 0, PAYLOAD_SWALLOW_MAX + 1);
    assert!(session(FULL).parse(&bytes, &mut Vec::new()).is_err());
    for at in 0..4 {
        let mut bytes = request(0, 0, 0, 512);
        bytes[at] ^= 0x10;
        assert!(session(FULL).parse(&bytes, &mut Vec::new()).is_err());
    }
}

/// Goal: a goodbye is heard, whatever its fields. Method: with and without an offset.
#[test]
fn disconnect_is_heard() {
    for offset in [0, 9] {
        let parsed = session(SIMPLE)
            .parse(&request(0, 2, offset, 0), &mut Vec::new())
            .is_ok_and(|parsed| parsed == Parsed::Goodbye);
        assert!(parsed);
    }
}

/// Goal: requests about nothing succeed at once. Method: each command with length zero.
#[test]
fn empty_requests_succeed() {
    for command in [0, 1, 4, 5, 6] {
        for features in [SIMPLE, FULL] {
            let mut out = Vec::new();
            let bytes = request(0, command, SIZE, 0);
            let parsed = session(features).parse(&bytes, &mut out);
            assert_eq!(parsed, Ok(Parsed::Answered { consumed: 28 }));
            if command == 0 && features.structured {
                let mut expected = vec![0x66, 0x8e, 0x33, 0xef, 0, 1, 0, 0];
                expected.extend_from_slice(&COOKIE.to_be_bytes());
                expected.extend_from_slice(&[0; 4]);
                assert_eq!(out, expected);
            } else {
                assert_eq!(errno(&out), 0);
            }
        }
    }
}

/// Goal: the head of a read's data is exact. Method: both reply styles, written out.
#[test]
fn read_heads_are_exact() {
    let read = call(Operation::Read, 0x0a0b, 512);
    let mut out = Vec::new();
    session(SIMPLE).reply_read_head(&read, &mut out);
    assert_eq!(out, b"\x67\x44\x66\x98\0\0\0\0\x01\x02\x03\x04\x05\x06\x07\x08");
    out.clear();
    session(FULL).reply_read_head(&read, &mut out);
    let expected = b"\x66\x8e\x33\xef\0\x01\0\x01\x01\x02\x03\x04\x05\x06\x07\x08\
        \0\0\x02\x08\0\0\0\0\0\0\x0a\x0b";
    assert_eq!(out, expected);
}

/// Goal: success without data is one simple reply. Method: both sessions, appended to old bytes.
#[test]
fn done_is_a_simple_reply() {
    for features in [SIMPLE, FULL] {
        let mut out = b"before".to_vec();
        session(features).reply_done(&call(Operation::Write, 0, 512), &mut out);
        assert_eq!(&out[..6], b"before");
        assert_eq!(errno(&out[6..]), 0);
    }
}

/// The descriptors of a status reply, checked for its head.
fn descriptors(reply: &[u8]) -> Vec<(u32, u32)> {
    assert_eq!(reply[..8], [0x66, 0x8e, 0x33, 0xef, 0, 1, 0, 5]);
    assert_eq!(be32(&reply[16..]) as usize, reply.len() - 20);
    assert_eq!(be32(&reply[20..]), 1, "the context's id");
    reply[24..].chunks(8).map(|extent| (be32(extent), be32(&extent[4..]))).collect()
}

/// Goal: extents are merged, cut to the request, and single when asked. Method: a small map.
#[test]
fn extents_fit_the_request() {
    let extent = |length, hole, zero| Extent { length, hole, zero };
    let map = [
        extent(100, false, false),
        extent(50, false, false),
        extent(10, true, false),
        extent(0, true, true),
        extent(u64::MAX, true, true),
    ];
    let status = |length, one_extent| {
        let flags = CallFlags { one_extent, ..CallFlags::default() };
        let call = Call { flags, ..call(Operation::BlockStatus, 4096, length) };
        let mut out = Vec::new();
        session(FULL).reply_extents(&call, &map, &mut out);
        descriptors(&out)
    };
    assert_eq!(status(1000, false), [(150, 0), (10, 1), (840, 3)]);
    assert_eq!(status(160, false), [(150, 0), (10, 1)]);
    assert_eq!(status(120, false), [(120, 0)]);
    assert_eq!(status(1000, true), [(150, 0)]);
    assert_eq!(status(u32::MAX.into(), false)[2], (u32::MAX - 160, 3));
}

/// Goal: a scattered map cannot blow up a reply. Method: more extents than one reply holds.
#[test]
fn extents_are_bounded() {
    let map: Vec<Extent> = (0..EXTENTS_MAX + 10)
        .map(|index| Extent { length: 512, hole: index % 2 == 0, zero: false })
        .collect();
    let mut out = Vec::new();
    let call = call(Operation::BlockStatus, 0, u32::MAX.into());
    session(FULL).reply_extents(&call, &map, &mut out);
    assert_eq!(descriptors(&out).len(), EXTENTS_MAX);
}

/// Goal: every kind of error has the value the protocol gives it. Method: all kinds.
#[test]
fn error_kinds_map_to_values() {
    let kinds = [
        (ErrorKind::Retry, 5),
        (ErrorKind::Invalid, 22),
        (ErrorKind::Full, 28),
        (ErrorKind::Corrupt, 5),
        (ErrorKind::Closed, 108),
        (ErrorKind::Unsupported, 22),
        (ErrorKind::Denied, 1),
    ];
    for features in [SIMPLE, FULL] {
        for (kind, expected) in kinds {
            let mut out = Vec::new();
            session(features).reply_error(&call(Operation::Read, 0, 512), kind, &mut out);
            assert_eq!(errno(&out), expected);
        }
        let flags = CallFlags { fast_zero: true, ..CallFlags::default() };
        let zeroes = Call { flags, ..call(Operation::WriteZeroes, 0, 512) };
        let mut out = Vec::new();
        session(features).reply_error(&zeroes, ErrorKind::Unsupported, &mut out);
        assert_eq!(errno(&out), 95);
    }
}

/// Goal: a goodbye is found behind whole requests and their bytes, and nothing else is taken for
/// one. Method: requests by hand, cut at every byte; a goodbye's bytes as the payload of a write;
/// the rest of a refused write in front.
#[test]
fn a_goodbye_is_seen_ahead() {
    let mut bytes = request(0, 1, 0, 28);
    bytes.extend(request(0, 2, 0, 0));
    bytes.extend(request(0, 0, 0, 512));
    let whole = bytes.len() + 28;
    bytes.extend(request(0, 2, 0, 0));
    for length in 0..=whole {
        let found = session(SIMPLE).says_goodbye(&bytes[..length]);
        assert_eq!(found, length == whole, "{length} bytes");
    }
    let mut refused = session(SIMPLE);
    let head = request(0, 1, SIZE, 28);
    let parsed = refused.parse(&head, &mut Vec::new());
    assert!(matches!(parsed, Ok(Parsed::Answered { consumed: 28 })), "{parsed:?}");
    assert!(!refused.says_goodbye(&bytes[28..56]), "its payload");
    assert!(refused.says_goodbye(&bytes[28..]));
}
