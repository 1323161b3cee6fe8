//! Each option of the handshake, asked well and asked badly.

use crate::common::{
    ACK, GO, Hand, INFO, INVALID, LIST, LIST_CONTEXT, POLICY, Reply, SET_CONTEXT, SHUTDOWN,
    STRUCTURED, TOO_BIG, UNKNOWN, UNSUPPORTED, contexts, info, option, replies, text,
};
use layby_frontend::nbd::{
    ExportError, ExportInfo, Exports, Handshake, HandshakeNext, HandshakeOptions, TlsPolicy,
};

fn server() -> Hand {
    Hand::new(TlsPolicy::Off)
}

fn structured() -> Hand {
    let mut hand = server();
    assert_eq!(hand.kind(STRUCTURED, &[]), ACK);
    hand
}

/// Goal: LIST names what the peer may see, and takes no data. Method: exact replies.
#[test]
fn list_names_exports() {
    let line = |name| Reply { option: LIST, kind: 2, data: text(name) };
    let ack = Reply { option: LIST, kind: ACK, data: vec![] };
    assert_eq!(server().ask(LIST, &[]), [line("alpha"), line("beta"), ack]);
    assert_eq!(server().kind(LIST, b"x"), INVALID);
}

/// Goal: a list that no reply should hold is refused. Method: a node with too many names.
#[test]
fn list_is_bounded() {
    struct Crowd;
    impl Exports for Crowd {
        fn list(&self) -> Vec<String> {
            vec!["n".to_owned(); (1 << 16) + 1]
        }
        fn find(&self, _: &str) -> Result<ExportInfo, ExportError> {
            Err(ExportError::Unknown)
        }
    }
    let mut handshake = Handshake::new(HandshakeOptions { tls: TlsPolicy::Off });
    let mut out = Vec::new();
    handshake.on_bytes(&[0, 0, 0, 3], &Crowd, &mut out).expect("known flags");
    handshake.on_bytes(&option(LIST, &[]), &Crowd, &mut out).expect("an error reply");
    assert_eq!(replies(&out)[0].kind, TOO_BIG);
}

/// Goal: INFO tells what was asked, once each. Method: all items, repeated and unknown ones too.
#[test]
fn info_gives_each_item_once() {
    let answer = server().ask(INFO, &info("", &[0, 1, 1, 2, 3, 3, 77]));
    let data: Vec<&[u8]> = answer.iter().map(|reply| reply.data.as_slice()).collect();
    let expected: [&[u8]; 5] = [
        b"\0\0\0\0\0\0\0\x10\0\0\x0d\x6d",
        b"\0\x01alpha",
        b"\0\x02first",
        b"\0\x03\0\0\0\x01\0\0\x10\0\x02\0\0\0",
        b"",
    ];
    assert_eq!(data, expected);
    let kinds: Vec<u32> = answer.iter().map(|reply| reply.kind).collect();
    assert_eq!(kinds, [3, 3, 3, 3, ACK]);
}

/// Goal: a read-only export says so and offers no writes. Method: its flags, written out.
#[test]
fn info_shows_read_only() {
    let mut hand = structured();
    let answer = hand.ask(INFO, &info("beta", &[2, 3]));
    assert_eq!(answer[0].data, b"\0\0\0\0\0\0\0\0\x27\x10\x05\x9f");
    assert_eq!(answer[1].data, b"\0\x03\0\0\0\x01\0\0\x20\0\x02\0\0\0");
    assert_eq!(answer.len(), 3, "an empty description is left out");
}

/// Goal: malformed data is refused and the stream stays in step. Method: each field bent.
#[test]
fn info_refuses_malformed_data() {
    let good = info("alpha", &[1, 3]);
    let mut cases: Vec<Vec<u8>> = (0..good.len()).map(|length| good[..length].to_vec()).collect();
    cases.push([good.as_slice(), b"x"].concat());
    cases.push(info("al\0pha", &[]));
    cases.push(info(&"n".repeat(4097), &[]));
    cases.push(b"\0\0\0\x02\xff\xfe\0\0".to_vec());
    cases.push(b"\xff\xff\xff\xff\0\0".to_vec());
    for code in [INFO, GO] {
        let mut hand = server();
        for data in &cases {
            assert_eq!(hand.kind(code, data), INVALID, "{data:?}");
        }
        assert_eq!(hand.go("alpha").export.name, "alpha");
    }
}

/// Goal: each way to be refused has its reply, and negotiation goes on. Method: INFO and GO.
#[test]
fn refused_exports_have_their_replies() {
    for code in [INFO, GO] {
        let mut hand = server();
        assert_eq!(hand.kind(code, &info("nobody", &[])), UNKNOWN);
        assert_eq!(hand.kind(code, &info("denied", &[])), POLICY);
        assert_eq!(hand.kind(code, &info("closing", &[])), SHUTDOWN);
        assert_eq!(hand.go("beta").export.size, 10_000);
    }
}

/// Goal: GO answers as INFO does, then enters. Method: both answers side by side.
#[test]
fn go_answers_as_info() {
    let data = info("alpha", &[1, 2, 3]);
    let mut hand = server();
    let told = hand.ask(INFO, &data);
    let (out, next) = hand.send(&option(GO, &data));
    assert!(matches!(next, Ok(HandshakeNext::Ready(_))));
    let entered = replies(&out);
    assert_eq!(told.len(), entered.len());
    for (told, entered) in told.iter().zip(&entered) {
        assert_eq!((told.kind, &told.data), (entered.kind, &entered.data));
        assert_eq!(entered.option, GO);
    }
}

/// Goal: structured replies take no data and may be asked twice. Method: features after each.
#[test]
fn structured_replies_are_negotiated() {
    let mut hand = server();
    assert_eq!(hand.kind(STRUCTURED, b"x"), INVALID);
    assert!(!hand.go("alpha").session.features().structured);
    let mut hand = structured();
    assert_eq!(hand.kind(STRUCTURED, &[]), ACK);
    assert!(hand.go("alpha").session.features().structured);
}

/// Goal: what is not offered is said to be so. Method: withdrawn, extended and made-up options.
#[test]
fn unknown_options_are_unsupported() {
    let mut hand = server();
    for code in [0, 4, 11, 12, 1000, u32::MAX] {
        assert_eq!(hand.kind(code, b"whatever"), UNSUPPORTED);
    }
}

/// Goal: contexts need structured replies. Method: both options without.
#[test]
fn contexts_need_structured_replies() {
    for code in [LIST_CONTEXT, SET_CONTEXT] {
        assert_eq!(server().kind(code, &contexts("alpha", &["base:allocation"])), INVALID);
    }
}

/// Goal: listing finds the context by wildcard, by name and by default. Method: query sets.
#[test]
fn contexts_are_listed() {
    let listed = |queries: &[&str]| {
        let answer = structured().ask(LIST_CONTEXT, &contexts("alpha", queries));
        assert_eq!(answer.last().map(|reply| reply.kind), Some(ACK));
        answer.len() == 2 && answer[0].data == b"\0\0\0\0base:allocation"
    };
    assert!(listed(&[]) && listed(&["base:"]) && listed(&["qemu:dirty", "base:allocation"]));
    assert!(!listed(&["base:other"]) && !listed(&["qemu:"]) && !listed(&["nonsense"]));
}

/// Goal: a context is selected by its name only, once. Method: query sets, and the session.
#[test]
fn contexts_are_selected() {
    let selected = |queries: &[&str]| {
        let mut hand = structured();
        let answer = hand.ask(SET_CONTEXT, &contexts("alpha", queries));
        assert_eq!(answer.last().map(|reply| reply.kind), Some(ACK));
        let told = answer.len() == 2 && answer[0].data == b"\0\0\0\x01base:allocation";
        assert_eq!(hand.go("alpha").session.features().allocation_context, told);
        told
    };
    assert!(selected(&["base:allocation"]) && selected(&["base:allocation", "base:allocation"]));
    assert!(!selected(&[]) && !selected(&["base:"]) && !selected(&["base:other", "x-y:"]));
}

/// Goal: a selection holds for its export and until the next. Method: other export, failed set.
#[test]
fn a_selection_is_replaced() {
    let select = |hand: &mut Hand| {
        assert_eq!(hand.ask(SET_CONTEXT, &contexts("", &["base:allocation"])).len(), 2);
    };
    let mut hand = structured();
    select(&mut hand);
    assert!(!hand.go("beta").session.features().allocation_context, "another export");
    let mut hand = structured();
    select(&mut hand);
    assert_eq!(hand.kind(SET_CONTEXT, &contexts("nobody", &["base:allocation"])), UNKNOWN);
    assert!(!hand.go("alpha").session.features().allocation_context, "a failed set");
    let mut hand = structured();
    select(&mut hand);
    hand.kind(LIST_CONTEXT, &contexts("alpha", &["base:other"]));
    assert!(hand.go("alpha").session.features().allocation_context, "the default's own name");
}

/// Goal: malformed queries are refused. Method: every prefix, trailing bytes, a huge count.
#[test]
fn contexts_refuse_malformed_data() {
    let good = contexts("alpha", &["base:allocation", "base:"]);
    let mut cases: Vec<Vec<u8>> = (0..good.len()).map(|length| good[..length].to_vec()).collect();
    cases.push([good.as_slice(), b"x"].concat());
    cases.push([text("alpha").as_slice(), &[0xff; 8]].concat());
    cases.push([text("alpha").as_slice(), b"\0\0\0\x01\0\0\0\x01\xff"].concat());
    for code in [LIST_CONTEXT, SET_CONTEXT] {
        let mut hand = structured();
        for data in &cases {
            assert_eq!(hand.kind(code, data), INVALID, "{data:?}");
        }
    }
}
