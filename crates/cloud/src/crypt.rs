//! Objects that only who has the volume's key can read or make.
//!
//! How: an object is cut into frames of [`FRAME_BYTES`]; each is sealed by XChaCha20-Poly1305 under
//! a nonce of its own, drawn at random, and bound to the object's key, to its place and to whether
//! it is the last. So a range of an object is read by whole frames, and frames that were changed,
//! moved, cut off, or taken from another object are refused.
//! Invariant: open(seal(x)) == x; nothing that fails its tag is handed out.
//! Cost: 40 bytes per 16 KiB, and a pass of the cipher; a small read fetches one or two frames.
//! Not for: hiding keys' names, sizes and times; an old version of the whole store is not noticed,
//! since nothing but the store remembers which is the newest.
//!
//! Source: RFC 8439 with the nonces of draft-irtf-cfrg-xchacha; frames as in Hoang et al., "Online
//! authenticated-encryption", CRYPTO 2015 (STREAM), with drawn nonces instead of a counter.

use chacha20poly1305::aead::{Aead as _, Payload};
use chacha20poly1305::{KeyInit as _, XChaCha20Poly1305, XNonce};
use std::fmt;
use std::ops::Range;

/// First bytes of an object that is sealed, with the version of the layout.
const MAGIC: &[u8; 16] = b"LAYBYENC\x01\0\0\0\0\0\0\0";
/// Bytes of a frame before it is sealed; the last one may have fewer.
pub(crate) const FRAME_BYTES: u64 = 16 << 10;
const NONCE_BYTES: usize = 24;
const TAG_BYTES: usize = 16;
/// Bytes of a sealed frame.
const SEALED_BYTES: u64 = FRAME_BYTES + (NONCE_BYTES + TAG_BYTES) as u64;
/// What seals frames, by its usual name.
pub const CIPHER: &str = "XChaCha20-Poly1305";
/// Bytes of a key.
pub const KEY_BYTES: usize = 32;

/// A volume's key.
#[derive(Clone)]
pub struct Key(XChaCha20Poly1305);

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(hidden)")
    }
}

impl Key {
    /// From its bytes.
    #[must_use]
    pub fn new(bytes: &[u8; KEY_BYTES]) -> Self {
        Key(XChaCha20Poly1305::new(bytes.into()))
    }

    /// From 64 hexadecimal digits, with white space around them.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let bytes: [u8; KEY_BYTES] = hexadecimal(text.trim())?.try_into().ok()?;
        Some(Key::new(&bytes))
    }

    /// What tells this key from others and gives nothing of it away: the tag of no bytes, in
    /// hexadecimal, under a nonce that no object has.
    #[must_use]
    pub fn check(&self) -> String {
        let sealed = self.seal("key check", b"", |nonce| nonce.fill(0));
        let tag = &sealed[sealed.len() - TAG_BYTES..];
        tag.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// Whether a text has the form of [`Key::check`].
    #[must_use]
    pub fn is_check(text: &str) -> bool {
        text.len() == 2 * TAG_BYTES && text.bytes().all(|byte| byte.is_ascii_hexdigit())
    }

    /// A small secret as it may be kept where others read, in hexadecimal, bound to a name;
    /// `random` fills nonces, which must never repeat.
    #[must_use]
    pub fn seal_secret(&self, name: &str, secret: &[u8], random: impl FnMut(&mut [u8])) -> String {
        self.seal(name, secret, random).iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// The secret that [`Key::seal_secret`] sealed under that name; `None` where this key did not.
    #[must_use]
    pub fn open_secret(&self, name: &str, sealed: &str) -> Option<Vec<u8>> {
        let sealed = hexadecimal(sealed)?;
        self.open(name, (&sealed, 0), sealed.len() as u64, None)
    }

    /// An object's bytes as the store gets them; `random` fills nonces, which must never repeat.
    pub(crate) fn seal(
        &self,
        name: &str,
        plain: &[u8],
        mut random: impl FnMut(&mut [u8]),
    ) -> Vec<u8> {
        let frames = plain.len().div_ceil(FRAME_BYTES as usize).max(1);
        let mut sealed = Vec::with_capacity(MAGIC.len() + plain.len() + frames * 40);
        sealed.extend_from_slice(MAGIC);
        for frame in 0..frames {
            let from = frame * FRAME_BYTES as usize;
            let message = &plain[from..plain.len().min(from + FRAME_BYTES as usize)];
            let mut nonce = [0; NONCE_BYTES];
            random(&mut nonce);
            let bound = bound_to(name, frame as u64, frame + 1 == frames);
            let payload = Payload { msg: message, aad: &bound };
            let cipher = self.0.encrypt(&XNonce::from(nonce), payload);
            sealed.extend_from_slice(&nonce);
            sealed.extend_from_slice(&cipher.expect("a frame is far below the cipher's bound"));
        }
        sealed
    }

    /// The plain bytes of `wanted` (all of it without) from the sealed ones at `at` of an object
    /// that has `total` bytes in the store; `None` where they are not what this key sealed.
    pub(crate) fn open(
        &self,
        name: &str,
        (sealed, at): (&[u8], u64),
        total: u64,
        wanted: Option<&Range<u64>>,
    ) -> Option<Vec<u8>> {
        let head = MAGIC.len() as u64;
        let (frames, first) = match at {
            0 => (sealed.strip_prefix(&MAGIC[..])?, 0),
            at => (sealed, at.checked_sub(head)? / SEALED_BYTES),
        };
        let last = total.checked_sub(head + 1)? / SEALED_BYTES;
        let mut plain = Vec::with_capacity(frames.len());
        for (place, frame) in frames.chunks(SEALED_BYTES as usize).enumerate() {
            let number = first + place as u64;
            let (nonce, cipher) = frame.split_at_checked(NONCE_BYTES)?;
            let nonce: [u8; NONCE_BYTES] = nonce.try_into().ok()?;
            let bound = bound_to(name, number, number == last);
            let payload = Payload { msg: cipher, aad: &bound };
            plain.extend_from_slice(&self.0.decrypt(&XNonce::from(nonce), payload).ok()?);
        }
        let Some(wanted) = wanted else { return Some(plain) };
        let base = first * FRAME_BYTES;
        let end = plain.len().min((wanted.end - base) as usize);
        let start = end.min((wanted.start - base) as usize);
        Some(plain[start..end].to_vec())
    }
}

/// The bytes of an even number of hexadecimal digits.
fn hexadecimal(text: &str) -> Option<Vec<u8>> {
    let digits = text.chars().map(|c| c.to_digit(16).map(|digit| digit as u8));
    let digits: Vec<u8> = digits.collect::<Option<_>>()?;
    let is_even = digits.len().is_multiple_of(2);
    is_even.then(|| digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect())
}

/// The sealed bytes that hold a range of plain ones, whole frames.
pub(crate) fn sealed_range(plain: &Range<u64>) -> Range<u64> {
    let head = MAGIC.len() as u64;
    let from = match plain.start / FRAME_BYTES {
        0 => 0,
        frame => head + frame * SEALED_BYTES,
    };
    from..head + plain.end.div_ceil(FRAME_BYTES).max(1) * SEALED_BYTES
}

/// Whether an object is sealed, by its first bytes.
pub(crate) fn is_sealed(bytes: &[u8]) -> bool {
    bytes.starts_with(&MAGIC[..8])
}

/// What a frame's tag vouches for beside its contents.
fn bound_to(name: &str, frame: u64, is_last: bool) -> Vec<u8> {
    let mut bound = frame.to_le_bytes().to_vec();
    bound.push(u8::from(is_last));
    bound.extend_from_slice(name.as_bytes());
    bound
}

#[cfg(test)]
mod tests {
    use super::*;
    use layby_types::Rng;

    fn key() -> Key {
        Key::parse(&"4b".repeat(KEY_BYTES)).expect("a key")
    }

    fn sealed(bytes: usize) -> (Vec<u8>, Vec<u8>) {
        let mut rng = Rng::new(bytes as u64);
        let mut plain = vec![0; bytes];
        rng.fill(&mut plain);
        let sealed = key().seal("segments/1", &plain, |nonce| rng.fill(nonce));
        (plain, sealed)
    }

    /// Goal: what was sealed is opened, whole and by any range. Method: sizes around frames' ends,
    /// ranges drawn by seed, fetched as a store would.
    #[test]
    fn ranges_open() {
        let frame = FRAME_BYTES as usize;
        for bytes in [0, 1, frame - 1, frame, frame + 1, 3 * frame, 5 * frame + 77] {
            let (plain, sealed) = sealed(bytes);
            let total = sealed.len() as u64;
            let opened = key().open("segments/1", (&sealed, 0), total, None);
            assert_eq!(opened.as_deref(), Some(&plain[..]), "{bytes} bytes");
            let mut rng = Rng::new(3);
            for _ in 0..if bytes == 0 { 0 } else { 50 } {
                let start = rng.below(bytes as u64);
                let end = start + 1 + rng.below(2 * FRAME_BYTES);
                let stored = sealed_range(&(start..end));
                let part = &sealed[stored.start as usize..total.min(stored.end) as usize];
                let wanted = start..end;
                let opened = key().open("segments/1", (part, stored.start), total, Some(&wanted));
                let end = bytes.min(end as usize);
                assert_eq!(opened.as_deref(), Some(&plain[start as usize..end]), "{wanted:?}");
            }
        }
    }

    /// Goal: nothing passes but what the key sealed under this name, whole and in order. Method:
    /// flipped bits, another name, another key, frames swapped, an end cut off.
    #[test]
    fn tampering_is_refused() {
        let (_, sealed) = sealed(3 * FRAME_BYTES as usize);
        let open = |bytes: &[u8], name: &str, key: &Key| {
            key.open(name, (bytes, 0), bytes.len() as u64, None).is_some()
        };
        assert!(open(&sealed, "segments/1", &key()));
        for at in (0..sealed.len()).step_by(977) {
            let mut bad = sealed.clone();
            bad[at] ^= 0x10;
            assert!(!open(&bad, "segments/1", &key()), "byte {at}");
        }
        assert!(!open(&sealed, "segments/2", &key()));
        assert!(!open(&sealed, "segments/1", &Key::new(&[1; KEY_BYTES])));
        let mut swapped = sealed.clone();
        let (one, other) = (MAGIC.len(), MAGIC.len() + SEALED_BYTES as usize);
        swapped[one..other].copy_from_slice(&sealed[other..other + SEALED_BYTES as usize]);
        assert!(!open(&swapped, "segments/1", &key()));
        let cut = &sealed[..sealed.len() - SEALED_BYTES as usize];
        assert!(!open(cut, "segments/1", &key()), "its last frame says that it is not the last");
    }

    /// Goal: a secret is had back by its key under its name alone. Method: one, another key,
    /// another name, each digit changed.
    #[test]
    fn secrets_are_kept() {
        let mut rng = Rng::new(1);
        let sealed = key().seal_secret("key of level a", &[5; 64], |nonce| rng.fill(nonce));
        assert_eq!(key().open_secret("key of level a", &sealed), Some(vec![5; 64]));
        assert_eq!(key().open_secret("key of level b", &sealed), None);
        assert_eq!(Key::new(&[1; KEY_BYTES]).open_secret("key of level a", &sealed), None);
        for at in 0..sealed.len() {
            let other = if sealed.as_bytes()[at] == b'0' { "1" } else { "0" };
            let bad = format!("{}{other}{}", &sealed[..at], &sealed[at + 1..]);
            assert_eq!(key().open_secret("key of level a", &bad), None, "digit {at}");
            assert_eq!(key().open_secret("key of level a", &sealed[..at]), None, "{at} digits");
        }
    }

    /// Goal: a key is 64 digits. Method: good and bad ones.
    #[test]
    fn keys_are_digits() {
        assert!(Key::parse(&format!(" {}\n", "aB".repeat(KEY_BYTES))).is_some());
        for bad in ["", "ab", &"a".repeat(63), &"a".repeat(65), &"zz".repeat(KEY_BYTES)] {
            assert!(Key::parse(bad).is_none(), "{bad}");
        }
    }
}
