//! How long a client is kept waiting for the store: for ever, unless its class says otherwise.
//!
//! How: reads that need the store, writes that find the journal full, and calls that the store's
//! first answer holds up have a time to be answered in. What the forecast, or a store known to be
//! silent, says cannot be kept is refused at once; what turns out so later is refused then. Once in
//! that time something is tried all the same, so that a store that answers again is noticed.
//! Invariant: what is in the journal is never refused, nor are flushes, which need no store. What
//! is refused was not begun, or is a write each of whose blocks holds its old or its new version.
//! Time in which the volume's thread did not run, although it was to, is left out of each wait: the
//! store could not be asked in it, and answers that came meanwhile are taken first.
//! Cost: a look at the oldest call that waits, per tick; a pass over the calls after a pause.

use super::session::RequestKind;
use super::{OWN_TOKEN, Volume};
use crate::action::Request;
use crate::journal::PAGE_BYTES;
use layby_policy::forecast::Bandwidth;
use layby_policy::uplink::{Ask, Room, Verdict, admit};
use layby_types::pauses::PAUSE_MIN;
use layby_types::{BackingOperation, ErrorKind, Nanos};
use std::ops::DerefMut;

/// The least gap that may be a pause, however short a limit is: a busy machine runs a thread late.
const PAUSE_LEAST: Nanos = Nanos::from_millis(250);

/// How long a volume's clients wait, and what is expected of its link.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct WaitPlan {
    /// How long a call may wait for the store; none for as long as it takes.
    pub answer_within: Option<Nanos>,
    /// What the link is expected to drain; none where nothing is known of it.
    pub drain: Option<Bandwidth>,
}

/// See the file's header.
#[derive(Default)]
pub(super) struct Waiting {
    plan: WaitPlan,
    /// When requests of a kind failed last.
    fault_at: [Option<Nanos>; RequestKind::ALL.len()],
    /// Since when those of a kind fail, and how much of the time since is left out.
    left_out: [(Nanos, Nanos); RequestKind::ALL.len()],
    /// Why a call was refused last.
    pub(super) refusal: Option<String>,
}

impl Waiting {
    pub(super) fn on_fault(&mut self, request: &Request, now: Nanos) {
        self.fault_at[RequestKind::of(request) as usize] = Some(now);
    }
}

impl<B: DerefMut<Target = [u8]>> Volume<B> {
    /// How long calls wait from now on, those that do already included.
    pub fn set_wait(&mut self, plan: WaitPlan) {
        self.waiting.plan = plan;
    }

    /// How late the volume's thread may run without a pause: as a shard, by the limit of its calls.
    #[must_use]
    pub fn pause_min(&self) -> Nanos {
        let within = self.waiting.plan.answer_within.unwrap_or(Nanos::NEVER);
        PAUSE_MIN.min(PAUSE_LEAST.max(Nanos(within.0 / 4)))
    }

    /// The volume's thread did not run for the time `pause` that has just ended: no call's wait
    /// counts it. To be said after [`Volume::set_now`], before anything else that has come.
    pub fn leave_out(&mut self, pause: Nanos) {
        let now = self.now;
        let later = |since: &mut Nanos| *since = since.saturating_add(pause).min(now);
        self.held.iter_mut().for_each(|held| later(&mut held.0));
        self.reads_since().for_each(later);
        self.writes_since().for_each(later);
        for kind in RequestKind::ALL {
            if let Some(down_since) = self.session.down_since(kind) {
                let before = self.left_out_since(kind, down_since);
                let left_out = (down_since, before.saturating_add(pause));
                self.waiting.left_out[kind as usize] = left_out;
            }
        }
    }

    /// How much of the time since requests of a kind fail is left out.
    fn left_out_since(&self, kind: RequestKind, down_since: Nanos) -> Nanos {
        let (since, left_out) = self.waiting.left_out[kind as usize];
        if since == down_since { left_out } else { Nanos::ZERO }
    }

    /// Why no answer to a request of this kind can be expected in time.
    fn silence(&self, kind: RequestKind) -> Option<String> {
        let within = self.waiting.plan.answer_within?;
        let down_since = self.session.down_since(kind)?;
        let left_out = self.left_out_since(kind, down_since);
        let for_time = self.now.since(down_since).since(left_out);
        let is_fresh = self.now.since(self.waiting.fault_at[kind as usize]?) < within;
        (for_time >= within && is_fresh).then(|| {
            let is_put = matches!(kind, RequestKind::Put);
            let what = if is_put { "taken nothing" } else { "not answered" };
            let (silent, within) = (for_time.as_secs_f64(), within.as_secs_f64());
            format!("the store has {what} for {silent:.1} s, {within:.1} s may be waited")
        })
    }

    fn refused(&mut self, what: &str, why: &str) {
        self.counters.refused += 1;
        self.waiting.refusal = Some(format!("{what}: {why}"));
    }

    /// Whether a read that needs the store is refused. A store that only takes nothing serves it.
    pub(super) fn refuses_read(&mut self) -> bool {
        let silence = self.silence(RequestKind::Get);
        silence.map(|why| self.refused("a read", &why)).is_some()
    }

    /// Whether a write of `bytes` is refused: it does not fit into the journal, and room will not
    /// come in time.
    pub(super) fn refuses_write(&mut self, bytes: u64) -> bool {
        let Some(within) = self.waiting.plan.answer_within else { return false };
        let free_bytes = self.journal.ring.capacity - self.journal.used();
        let bytes = self.write.queued_bytes(self.block()) + bytes + PAGE_BYTES;
        if bytes <= free_bytes {
            return false;
        }
        let ask = Ask { bytes, accepted_within: Some(within), uploaded_within: None };
        let room = Room { free_bytes, ahead_bytes: 0 };
        let expected = self.waiting.plan.drain.map(|drain| admit(&ask, &room, Some(drain)));
        let why = match expected {
            Some(Verdict::Refuse(refusal)) => Some(refusal.to_string()),
            // What is in the journal leaves it by puts, and some of these are looked at after.
            _ => self.silence(RequestKind::Get).or_else(|| self.silence(RequestKind::Put)),
        };
        why.map(|why| self.refused("a write", &why)).is_some()
    }

    /// Answers calls whose time is over.
    pub(super) fn give_up(&mut self) {
        let Some(within) = self.waiting.plan.answer_within else { return };
        let over = Nanos(self.now.0.saturating_sub(within.0));
        if self.now.0 < within.0 {
            return;
        }
        let before = self.done.len();
        self.give_up_held(over);
        self.give_up_reads(over);
        self.give_up_writes(over);
        let count = self.done.len() - before;
        if count > 0 {
            self.counters.refused += count as u64;
            let what = format!("{count} calls");
            let why = format!("not answered within {:.1} s", within.as_secs_f64());
            self.waiting.refusal = Some(format!("{what}: {why}"));
        }
        self.start_held_syncs(over);
    }

    /// Reads that reach behind byte `from` of the volume fail: what lies there is being given up.
    /// What comes for them later is not wanted any more.
    pub fn give_up_reads_behind(&mut self, from: u64) {
        let is_behind = |held: &mut (Nanos, u64, BackingOperation<B>)| match &held.2 {
            BackingOperation::Read { offset, buffer } => offset + buffer.len() as u64 > from,
            _ => false,
        };
        let held: Vec<_> = self.held.extract_if(.., is_behind).collect();
        for (_, token, operation) in held {
            if let BackingOperation::Read { buffer, .. } = operation {
                self.finish(token, Err(ErrorKind::Retry), Some(buffer));
            }
        }
        self.fail_reads_behind(from);
    }

    fn give_up_held(&mut self, over: Nanos) {
        let is_over = |held: &mut (Nanos, u64, BackingOperation<B>)| {
            held.0 <= over && is_limited(held) && !matches!(held.2, BackingOperation::Sync)
        };
        let late: Vec<_> = self.held.extract_if(.., is_over).collect();
        for (_, token, operation) in late {
            let buffer = match operation {
                BackingOperation::Read { buffer, .. } | BackingOperation::Write { buffer, .. } => {
                    Some(buffer)
                }
                _ => None,
            };
            self.finish(token, Err(ErrorKind::Retry), buffer);
        }
    }

    /// Flushes that were held until now need no store: what had ended before is in the journal.
    fn start_held_syncs(&mut self, over: Nanos) {
        let is_over = |held: &mut (Nanos, u64, BackingOperation<B>)| {
            held.0 <= over && matches!(held.2, BackingOperation::Sync)
        };
        let late: Vec<_> = self.held.extract_if(.., is_over).collect();
        late.into_iter().for_each(|(_, token, _)| self.start_sync(token));
    }

    /// When the first call that waits has waited long enough.
    pub(super) fn wait_deadline(&self) -> Nanos {
        let Some(within) = self.waiting.plan.answer_within else { return Nanos::NEVER };
        let held = self.held.iter().find(|held| is_limited(held)).map(|held| held.0);
        let oldest = [held, self.oldest_read(), self.oldest_waiting_write()];
        let oldest = oldest.into_iter().flatten().min();
        oldest.map_or(Nanos::NEVER, |since| since.saturating_add(within))
    }
}

/// The volume's own zeroings wait for as long as it takes: a later size rests on them.
fn is_limited<B>((_, token, _): &(Nanos, u64, BackingOperation<B>)) -> bool {
    *token != OWN_TOKEN
}
