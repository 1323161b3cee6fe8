//! The handshake's course: greeting, flags, TLS, bounds, and the ways out.

use crate::common::{
    ABORT, ACK, EXPORT_NAME, GO, Hand, INFO, INVALID, LIST, POLICY, STARTTLS, STRUCTURED, Shelf,
    TLS_REQUIRED, TOO_BIG, UNSUPPORTED, contexts, info, option, replies,
};
use layby_frontend::nbd::{
    Handshake, HandshakeNext, HandshakeOptions, OPTION_LENGTH_MAX, OPTION_SWALLOW_MAX, OPTIONS_MAX,
    TlsPolicy,
};

/// Goal: the greeting is the one clients wait for. Method: its bytes, written out.
#[test]
fn greeting_is_fixed_newstyle() {
    let mut out = Vec::new();
    Handshake::new(HandshakeOptions { tls: TlsPolicy::Off }).greeting(&mut out);
    assert_eq!(out, b"NBDMAGICIHAVEOPT\0\x03");
}

/// Goal: flags nobody offered close the connection. Method: each bit of the field.
#[test]
fn unknown_client_flags_are_refused() {
    for bit in 0..32 {
        let (_, next) = Hand::fresh(TlsPolicy::Off).send(&(1u32 << bit).to_be_bytes());
        assert_eq!(next.is_ok(), bit < 2, "bit {bit}");
    }
}

/// Goal: a client without fixed newstyle may only name its export. Method: every option number.
#[test]
fn unfixed_newstyle_knows_one_option() {
    for code in 2..16 {
        let mut hand = Hand::fresh(TlsPolicy::Allowed);
        hand.send(&[0; 4]).1.expect("no flag is a valid set");
        assert!(hand.send(&option(code, &[])).1.is_err(), "option {code}");
    }
    let mut hand = Hand::fresh(TlsPolicy::Allowed);
    hand.send(&[0; 4]).1.expect("no flag is a valid set");
    let (out, next) = hand.send(&option(EXPORT_NAME, b"alpha"));
    assert!(matches!(next, Ok(HandshakeNext::Ready(_))));
    assert_eq!(out.len(), 134);
}

/// Goal: EXPORT_NAME answers with size and flags, padded unless declined. Method: exact bytes.
#[test]
fn export_name_answers_with_and_without_zeroes() {
    let expected = [0, 0, 0, 0, 0, 0x10, 0, 0, 0x0d, 0x6d];
    for (flags, padding) in [(1, 124), (3, 0)] {
        let mut hand = Hand::fresh(TlsPolicy::Off);
        hand.send(&[0, 0, 0, flags]).1.expect("known flags");
        let (out, next) = hand.send(&option(EXPORT_NAME, b""));
        let Ok(HandshakeNext::Ready(transmission)) = next else { panic!("{next:?}") };
        assert_eq!(transmission.export.name, "alpha");
        assert_eq!(out[..10], expected);
        assert_eq!(out[10..], vec![0; padding]);
    }
}

/// Goal: EXPORT_NAME has no error reply, so what is wrong closes. Method: each wrong name.
#[test]
fn export_name_closes_when_it_fails() {
    let long = "n".repeat(4097);
    let names: [&[u8]; 6] =
        [b"nobody", b"denied", b"closing", b"\xff\xfe", b"al\0pha", long.as_bytes()];
    for name in names {
        let (out, next) = Hand::new(TlsPolicy::Off).send(&option(EXPORT_NAME, name));
        assert!(next.is_err() && out.is_empty(), "{name:?}");
    }
}

/// Goal: ABORT is acknowledged whatever comes with it. Method: with and without data, and long.
#[test]
fn abort_is_acknowledged() {
    for data in [&b""[..], b"so long"] {
        let (out, next) = Hand::new(TlsPolicy::Required).send(&option(ABORT, data));
        assert!(matches!(next, Ok(HandshakeNext::Aborted)));
        assert_eq!(replies(&out)[0].kind, ACK);
    }
    let bytes = option(ABORT, &vec![0; OPTION_LENGTH_MAX as usize + 1]);
    let mut hand = Hand::new(TlsPolicy::Off);
    let (_, next) = hand.send(&bytes[..16]);
    assert!(matches!(next, Ok(HandshakeNext::Answered)));
    let (out, next) = hand.send(&bytes[16..]);
    assert!(matches!(next, Ok(HandshakeNext::Aborted)));
    assert_eq!(replies(&out)[0].kind, ACK);
}

/// Goal: nothing is read until all of it is there. Method: every prefix of an option.
#[test]
fn short_messages_wait() {
    let bytes = option(INFO, &info("alpha", &[3]));
    let mut hand = Hand::new(TlsPolicy::Off);
    for length in 0..bytes.len() {
        let mut out = Vec::new();
        let step = hand.handshake.on_bytes(&bytes[..length], &Shelf, &mut out).expect("waits");
        assert_eq!(step.consumed, 0);
        let expected = if length < 16 { 16 } else { bytes.len() };
        let HandshakeNext::NeedMore { wanted } = step.next else { panic!("{:?}", step.next) };
        assert_eq!((wanted, out.len()), (expected, 0));
    }
    assert_eq!(hand.ask(INFO, &info("alpha", &[3])).len(), 3);
}

/// Goal: TLS is refused where it is not offered, misasked, or there already. Method: each case.
#[test]
fn starttls_refusals() {
    assert_eq!(Hand::new(TlsPolicy::Off).kind(STARTTLS, &[]), POLICY);
    assert_eq!(Hand::new(TlsPolicy::Allowed).kind(STARTTLS, b"x"), INVALID);
    assert_eq!(Hand::new(TlsPolicy::Required).kind(STARTTLS, b"x"), INVALID);
    assert_eq!(Hand::encrypted(TlsPolicy::Allowed).kind(STARTTLS, &[]), INVALID);
    assert_eq!(Hand::encrypted(TlsPolicy::Required).kind(STARTTLS, &[]), INVALID);
}

/// Goal: clear bytes behind STARTTLS never count as encrypted. Method: in one piece and in two.
#[test]
fn clear_bytes_after_starttls_are_refused() {
    let mut joined = option(STARTTLS, &[]);
    joined.extend(option(LIST, &[]));
    let mut out = Vec::new();
    let mut hand = Hand::new(TlsPolicy::Required);
    assert!(hand.handshake.on_bytes(&joined, &Shelf, &mut out).is_err());

    let mut hand = Hand::new(TlsPolicy::Required);
    let (_, next) = hand.send(&option(STARTTLS, &[]));
    assert!(matches!(next, Ok(HandshakeNext::StartTls)));
    assert!(hand.send(&option(LIST, &[])).1.is_err());
}

/// Goal: nothing negotiated in clear survives into TLS. Method: features before, none after.
#[test]
fn starttls_forgets_what_was_negotiated() {
    let mut hand = Hand::new(TlsPolicy::Allowed);
    assert_eq!(hand.kind(STRUCTURED, &[]), ACK);
    assert_eq!(hand.ask(10, &contexts("alpha", &["base:allocation"])).len(), 2);
    assert!(matches!(hand.send(&option(STARTTLS, &[])).1, Ok(HandshakeNext::StartTls)));
    hand.handshake.tls_established();
    assert!(hand.handshake.is_encrypted());
    assert_eq!(hand.kind(10, &contexts("alpha", &["base:allocation"])), INVALID);
    let features = hand.go("alpha").session.features();
    assert!(!features.structured && !features.allocation_context);
}

/// Goal: required TLS hides everything else. Method: every option number, before and after.
#[test]
fn required_tls_comes_first() {
    for code in (0..24).filter(|code| ![EXPORT_NAME, ABORT, STARTTLS].contains(code)) {
        assert_eq!(Hand::new(TlsPolicy::Required).kind(code, b"any"), TLS_REQUIRED, "{code}");
    }
    assert!(Hand::new(TlsPolicy::Required).send(&option(EXPORT_NAME, b"alpha")).1.is_err());
    let mut hand = Hand::encrypted(TlsPolicy::Required);
    assert_eq!(hand.ask(LIST, &[]).len(), 3);
    assert_eq!(hand.kind(77, &[]), UNSUPPORTED);
    hand.go("beta");
}

/// Goal: allowed TLS asks for nothing. Method: the same options in clear.
#[test]
fn allowed_tls_is_a_choice() {
    let mut hand = Hand::new(TlsPolicy::Allowed);
    assert_eq!(hand.ask(LIST, &[]).len(), 3);
    hand.go("alpha");
}

/// Goal: an overlong option is skipped unread and refused. Method: data in pieces, then LIST.
#[test]
fn long_options_are_skipped() {
    let length = OPTION_LENGTH_MAX as usize + 1;
    for (code, tls, kind) in [
        (GO, TlsPolicy::Off, TOO_BIG),
        (99, TlsPolicy::Off, UNSUPPORTED),
        (LIST, TlsPolicy::Required, TLS_REQUIRED),
        (STARTTLS, TlsPolicy::Required, TOO_BIG),
    ] {
        let bytes = option(code, &vec![0; length]);
        let mut hand = Hand::new(tls);
        assert!(hand.send(&bytes[..16]).0.is_empty());
        let (out, next) = hand.send(&bytes[16..9000]);
        assert!(out.is_empty() && matches!(next, Ok(HandshakeNext::NeedMore { wanted: 1 })));
        let mut rest = bytes[9000..].to_vec();
        rest.extend(option(LIST, &[]));
        let mut out = Vec::new();
        let step = hand.handshake.on_bytes(&rest, &Shelf, &mut out).expect("answers");
        assert_eq!(step.consumed, bytes.len() - 9000);
        assert_eq!(replies(&out)[0].kind, kind);
        assert!(!hand.ask(LIST, &[]).is_empty());
    }
}

/// Goal: data that nobody would skip closes the connection. Method: one byte past each bound.
#[test]
fn absurd_options_close() {
    let head = |code: u32, length: u32| {
        let mut bytes = option(code, &[]);
        bytes[12..].copy_from_slice(&length.to_be_bytes());
        bytes
    };
    assert!(Hand::new(TlsPolicy::Off).send(&head(GO, OPTION_SWALLOW_MAX)).1.is_ok());
    assert!(Hand::new(TlsPolicy::Off).send(&head(GO, OPTION_SWALLOW_MAX + 1)).1.is_err());
    assert!(Hand::new(TlsPolicy::Off).send(&head(GO, u32::MAX)).1.is_err());
    let name = head(EXPORT_NAME, OPTION_LENGTH_MAX + 1);
    assert!(Hand::new(TlsPolicy::Off).send(&name).1.is_err());
}

/// Goal: nobody haggles for ever. Method: as many options as allowed, then one more.
#[test]
fn options_are_counted() {
    let mut hand = Hand::new(TlsPolicy::Off);
    for _ in 0..OPTIONS_MAX {
        assert_eq!(hand.kind(99, &[]), UNSUPPORTED);
    }
    assert!(hand.send(&option(GO, &info("alpha", &[]))).1.is_err());
}

/// Goal: going into TLS does not reset the count. Method: half the options on either side.
#[test]
fn options_are_counted_across_tls() {
    let mut hand = Hand::new(TlsPolicy::Allowed);
    for _ in 0..OPTIONS_MAX - 1 {
        hand.kind(99, &[]);
    }
    assert!(hand.send(&option(STARTTLS, &[])).1.is_ok());
    hand.handshake.tls_established();
    assert!(hand.send(&option(LIST, &[])).1.is_err());
}

/// Goal: a stream out of step is not followed. Method: a wrong byte in the option's magic.
#[test]
fn wrong_magic_closes() {
    for at in 0..8 {
        let mut bytes = option(LIST, &[]);
        bytes[at] ^= 1;
        assert!(Hand::new(TlsPolicy::Off).send(&bytes).1.is_err());
    }
}
