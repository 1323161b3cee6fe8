//! The volume's local map file: what the node needs to know of the cloud while the link is down.
//!
//! How: sealed frames, one behind the other; the file is replaced as a whole by its newest
//! checkpoint where it has grown. A frame is durable before what rests on it begins.
//! Invariant: a torn last frame is void; damage before whole frames is an error.
//! Cost: the index of each segment, once. Not for: data; see `journal`.

use crate::codec::{NUMBER_END, Put, Reader, is_block_bytes, seal, unseal};
use crate::journal::{PAGE_BYTES, RingId};
use crate::map::{self, CloudMap};
use crate::segment::{Index, VolumeUuid};

/// A step that the node must remember.
#[derive(Clone, Debug)]
pub(crate) enum Frame {
    /// The first of a file: whose it is and where its journal begins.
    Born(Born),
    /// The whole map as of the last committed segment.
    Checkpoint(Box<CloudMap>),
    /// A segment is complete in the store.
    Stored(Box<Index>),
    /// The superblock says that all up to this segment is the volume.
    Committed(Committed),
    /// Another node has the volume, in words for people: what is here is of the past.
    Taken(String),
    /// Batches of the journal before this one were durable once: what is missing of them, or is
    /// not whole, is damaged and not torn.
    Durable(u64),
}

/// What never changes of a file but by replacing it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Born {
    pub(crate) volume: VolumeUuid,
    pub(crate) ring: RingId,
    /// Bytes of the ring.
    pub(crate) capacity: u64,
    pub(crate) block_bytes: u32,
}

/// How far the cloud has come, and where the journal begins that is still needed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Committed {
    /// The session that knew it; zero where there never was one.
    pub(crate) epoch: u32,
    pub(crate) number: u64,
    pub(crate) journal_at: u64,
    pub(crate) journal_next: u64,
    /// The life of the ring that wrote the batch there, or is to: an older one's is none of it.
    /// Zero in files of builds that did not write it down.
    pub(crate) journal_life: u32,
    /// The sessions of this node's directory.
    pub(crate) claims: Claims,
}

/// Sessions that a map file remembers.
const CLAIMS_MAX: usize = 8;

/// A session that the node's directory claimed the volume with, or found and went on from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Claim {
    /// See [`crate::superblock::Superblock::session`]; zero where there is none.
    pub(crate) session: u64,
    /// The life of the ring that was its, at the latest: what later ones wrote it did not upload.
    pub(crate) life: u32,
}

/// The newest sessions of a node's directory, newest first. None in files of builds that did not
/// write them down.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Claims([Claim; CLAIMS_MAX]);

impl Claims {
    pub(crate) fn find(&self, session: u64) -> Option<Claim> {
        self.iter().find(|claim| claim.session == session)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.iter().next().is_none()
    }

    /// The last life of the journal that the newest session may have uploaded.
    pub(crate) fn newest_life(&self) -> Option<u32> {
        self.iter().next().map(|claim| claim.life)
    }

    /// Their numbers, newest first.
    pub(crate) fn sessions(&self) -> impl Iterator<Item = u64> {
        self.iter().map(|claim| claim.session)
    }

    /// The same with `session` as the newest: one that is there keeps its life.
    pub(crate) fn with(&self, session: u64, life: u32) -> Claims {
        let newest = self.find(session).unwrap_or(Claim { session, life });
        let others = self.iter().filter(|claim| claim.session != session);
        let mut claims = Claims::default();
        let all = std::iter::once(newest).chain(others);
        claims.0.iter_mut().zip(all).for_each(|(slot, claim)| *slot = claim);
        claims
    }

    fn iter(&self) -> impl Iterator<Item = Claim> {
        self.0.iter().copied().take_while(|claim| claim.session != 0)
    }

    /// Nothing where there are none, as in files of earlier builds.
    fn encode(&self, body: &mut Vec<u8>) {
        for claim in self.iter() {
            body.put_u64(claim.session);
            body.put_u32(claim.life);
        }
    }

    fn decode(reader: &mut Reader<'_>) -> Option<Claims> {
        let mut claims = Claims::default();
        let mut slots = claims.0.iter_mut();
        while !reader.0.is_empty() {
            let (session, life) = (reader.u64()?, reader.u32()?);
            *slots.next()? = Claim { session, life };
            if session == 0 {
                return None;
            }
        }
        Some(claims)
    }
}

impl Frame {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let (kind, body) = match self {
            Frame::Born(born) => (1, encode_born(born)),
            Frame::Checkpoint(map) => (2, map.encode()),
            Frame::Stored(index) => (3, index.encode()),
            Frame::Committed(committed) => (4, encode_committed(committed)),
            Frame::Taken(why) => (5, why.as_bytes().to_vec()),
            Frame::Durable(next) => (6, next.to_le_bytes().to_vec()),
        };
        let mut bytes = Vec::with_capacity(body.len() + 16);
        bytes.put_u64(body.len() as u64);
        bytes.put_u32(kind);
        bytes.extend_from_slice(&body);
        seal(&mut bytes);
        bytes
    }
}

fn encode_born(born: &Born) -> Vec<u8> {
    let mut body = born.volume.0.to_vec();
    body.put_u64(born.ring.instance);
    body.put_u64(born.capacity);
    body.put_u32(born.ring.life);
    body.put_u32(born.block_bytes);
    body
}

fn encode_committed(committed: &Committed) -> Vec<u8> {
    let mut body = Vec::new();
    body.put_u32(committed.epoch);
    body.put_u64(committed.number);
    body.put_u64(committed.journal_at);
    body.put_u64(committed.journal_next);
    body.put_u32(committed.journal_life);
    committed.claims.encode(&mut body);
    body
}

/// Kinds of frames.
const KINDS: std::ops::RangeInclusive<u32> = 1..=6;

fn decode_frame(bytes: &[u8]) -> Option<(Frame, usize)> {
    let length = usize::try_from(Reader(bytes).u64()?).ok()?.checked_add(16)?;
    // Before the checksum: where a frame is sought, any number may stand for a length.
    if !KINDS.contains(&Reader(bytes.get(8..)?).u32()?) {
        return None;
    }
    let body = unseal(bytes.get(..length)?)?;
    let mut reader = Reader(body.get(8..)?);
    let frame = match reader.u32()? {
        1 => {
            let volume = VolumeUuid(reader.id()?);
            let (instance, capacity) = (reader.u64()?, reader.u64()?);
            let ring = RingId { instance, life: reader.u32()? };
            let block_bytes = reader.u32()?;
            let is_ring = capacity >= PAGE_BYTES && capacity.is_multiple_of(PAGE_BYTES);
            if !is_ring || !is_block_bytes(block_bytes.into()) || ring.life == u32::MAX {
                return None;
            }
            Frame::Born(Born { volume, ring, capacity, block_bytes })
        }
        2 => Frame::Checkpoint(Box::new(CloudMap::decode(reader.0)?)),
        3 => Frame::Stored(Box::new(Index::decode(reader.0)?)),
        4 => {
            let (epoch, number) = (reader.u32()?, reader.u64()?);
            let (journal_at, journal_next) = (reader.u64()?, reader.u64()?);
            if [number, journal_at, journal_next].iter().any(|number| *number >= NUMBER_END) {
                return None;
            }
            let journal_life = if reader.0.is_empty() { 0 } else { reader.u32()? };
            let claims = Claims::decode(&mut reader)?;
            Frame::Committed(Committed {
                epoch,
                number,
                journal_at,
                journal_next,
                journal_life,
                claims,
            })
        }
        5 => Frame::Taken(std::str::from_utf8(reader.0).ok()?.to_owned()),
        6 => Frame::Durable(reader.u64().filter(|next| *next < NUMBER_END)?),
        _ => return None,
    };
    Some((frame, length))
}

/// Whether a map file has a checkpoint of an earlier build, which is not read: not damaged.
#[must_use]
pub fn is_earlier(mut bytes: &[u8]) -> bool {
    loop {
        let length = Reader(bytes).u64().and_then(|length| usize::try_from(length).ok());
        let frame = length.and_then(|length| bytes.get(..length.checked_add(16)?));
        let Some(frame) = frame else { return false };
        let Some(body) = unseal(frame) else { return false };
        if map::is_earlier(body.get(12..).unwrap_or_default()) {
            return true;
        }
        bytes = &bytes[frame.len()..];
    }
}

/// All frames of a file, or the byte at which it is damaged.
pub(crate) fn decode(bytes: &[u8]) -> Result<Vec<Frame>, u64> {
    let (mut frames, mut at) = (Vec::new(), 0);
    while at < bytes.len() {
        match decode_frame(&bytes[at..]) {
            Some((frame, length)) => {
                frames.push(frame);
                at += length;
            }
            None if is_torn_end(&bytes[at..]) => break,
            None => return Err(at as u64),
        }
    }
    Ok(frames)
}

/// All whole frames of a file around such that are damaged; or the byte of one where the last
/// [`Frame::Committed`] is not behind it, since it may have been a later one.
pub(crate) fn decode_around(bytes: &[u8]) -> Result<Vec<Frame>, u64> {
    let (mut frames, mut at) = (Vec::new(), 0);
    // Damage that no frame is known to follow is an append that a crash cut.
    let (mut damaged, mut open) = (None, None);
    while at < bytes.len() {
        let Some((frame, length)) = decode_frame(&bytes[at..]) else {
            open.get_or_insert(at as u64);
            at += 1;
            continue;
        };
        damaged = match frame {
            Frame::Committed(_) => None,
            _ => damaged.or(open),
        };
        open = None;
        frames.push(frame);
        at += length;
    }
    damaged.map_or(Ok(frames), Err)
}

/// Whether no whole frame follows: then it is an append that a crash cut.
fn is_torn_end(bytes: &[u8]) -> bool {
    (1..bytes.len()).all(|at| decode_frame(&bytes[at..]).is_none())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: numbers that no journal has are refused, whatever the checksum says. Method: one odd
    /// field after the other, in the file's only frame.
    #[test]
    fn absurd_frames_are_refused() {
        let ring = RingId { instance: 1, life: 2 };
        let volume = VolumeUuid([3; 16]);
        let born = Born { volume, ring, capacity: 4 * PAGE_BYTES, block_bytes: 4096 };
        let count = |frame: Frame| decode(&frame.encode()).map(|frames| frames.len());
        assert_eq!(count(Frame::Born(born)), Ok(1));
        let last = RingId { life: u32::MAX, ..ring };
        for absurd in [
            Frame::Born(Born { capacity: 0, ..born }),
            Frame::Born(Born { capacity: PAGE_BYTES + 1, ..born }),
            Frame::Born(Born { block_bytes: 0, ..born }),
            Frame::Born(Born { ring: last, ..born }),
            Frame::Durable(u64::MAX),
            Frame::Committed(Committed { number: u64::MAX, ..Committed::default() }),
            Frame::Committed(Committed { journal_at: u64::MAX, ..Committed::default() }),
            Frame::Committed(Committed { journal_next: u64::MAX, ..Committed::default() }),
        ] {
            assert_eq!(count(absurd.clone()), Ok(0), "{absurd:?}");
        }
    }

    /// Goal: a map file of a build whose checkpoints named no volume is known as that, and not
    /// called damaged; one of this build, or one that is damaged, is not taken for it. Method: a
    /// map file with a checkpoint of each kind; a byte of it changed.
    #[test]
    fn map_files_of_earlier_builds_are_known() {
        let ring = RingId { instance: 1, life: 2 };
        let volume = VolumeUuid([3; 16]);
        let born = Born { volume, ring, capacity: 4 * PAGE_BYTES, block_bytes: 4096 };
        let file = |checkpoint: &[u8]| {
            let mut frame = Vec::new();
            frame.put_u64(checkpoint.len() as u64);
            frame.put_u32(2);
            frame.extend_from_slice(checkpoint);
            seal(&mut frame);
            [Frame::Born(born).encode(), frame].concat()
        };
        let own = CloudMap::new(volume).encode();
        assert!(!is_earlier(&file(&own)) && decode(&file(&own)).is_ok());
        for magic in [b"LAYBYCCP", b"LAYBYCCB"] {
            let mut earlier = magic.to_vec();
            earlier.extend([5; 40]);
            seal(&mut earlier);
            let mut bytes = file(&earlier);
            assert!(is_earlier(&bytes));
            *bytes.last_mut().expect("it has bytes") ^= 1;
            assert!(!is_earlier(&bytes), "that is damage");
        }
    }

    /// Goal: a map file remembers the newest sessions, those of builds that knew none are read, and
    /// theirs are the bytes of one without. Method: more sessions than there is room for, one of
    /// them again; round trips; golden bytes.
    #[test]
    fn sessions_are_remembered() {
        let plain = Committed { epoch: 1, number: 2, journal_next: 3, ..Committed::default() };
        let golden = [&[1, 0, 0, 0, 2][..], &[0; 15], &[3], &[0; 11]].concat();
        assert_eq!(encode_committed(&plain), golden);
        let mut claims = Claims::default();
        assert!(claims.is_empty());
        for session in 1..=20 {
            claims = claims.with(13, 9).with(session, session as u32);
            let committed = Committed { claims, ..plain };
            let bytes = Frame::Committed(committed).encode();
            let frames = decode(&bytes).expect("it is whole");
            assert!(matches!(frames[..], [Frame::Committed(found)] if found == committed));
        }
        let kept = [20, 13, 19, 18, 17, 16, 15, 14];
        assert!(claims.iter().map(|claim| claim.session).eq(kept), "{claims:?}");
        assert_eq!(claims.find(13), Some(Claim { session: 13, life: 9 }));
        assert_eq!(claims.find(12), None);
    }
}
