//! Event descriptors in the epoll set: each write to one is an edge, so nothing is ever read.
//!
//! Invariant: an event between two waits is kept for the second. Cost: none beyond the epoll set's.

use super::super::{EventId, IoDone, IoError, Token, events};
use super::PoolIo;
use rustix::event::epoll;
use rustix::io::Errno;
use std::os::fd::OwnedFd;

/// The bit that tells an event's mark from a socket's.
pub(super) const MARK_EVENT: u64 = 1 << 32;

pub(super) struct Event {
    file: OwnedFd,
    waiting: Option<Token>,
    came: bool,
}

impl PoolIo {
    /// Takes an event descriptor over.
    ///
    /// # Errors `EINVAL` for a semaphore, or another kind of descriptor; the system's error where
    /// the epoll set is full.
    pub fn attach_event(&mut self, file: OwnedFd) -> Result<EventId, IoError> {
        events::check_awaited(&file)?;
        let vacant = self.events.iter().position(Option::is_none);
        let index = vacant.unwrap_or(self.events.len());
        let data = epoll::EventData::new_u64(MARK_EVENT | index as u64);
        epoll::add(&self.epoll, &file, data, epoll::EventFlags::IN | epoll::EventFlags::ET)?;
        let event = Some(Event { file, waiting: None, came: false });
        if vacant.is_some() {
            self.events[index] = event;
        } else {
            self.events.push(event);
        }
        Ok(EventId(index as u32))
    }

    pub(super) fn await_event(&mut self, id: EventId, token: Token) {
        let event = self.events[id.0 as usize].as_mut().expect("the event is attached");
        if std::mem::take(&mut event.came) {
            return self.ready.push(IoDone::new(token, Ok(0), None));
        }
        let old = event.waiting.replace(token);
        assert!(old.is_none(), "two waits for one event");
    }

    pub(super) fn on_event(&mut self, mark: u64) {
        let index = (mark & !MARK_EVENT) as usize;
        let Some(Some(event)) = self.events.get_mut(index) else { return };
        match event.waiting.take() {
            Some(token) => self.ready.push(IoDone::new(token, Ok(0), None)),
            None => event.came = true,
        }
    }

    pub(super) fn forget_event(&mut self, id: EventId) {
        let event = self.events[id.0 as usize].take().expect("an event is closed once");
        // A closed descriptor leaves the set, but this one has another owner who keeps it open.
        let _ = epoll::delete(&self.epoll, &event.file);
        if let Some(token) = event.waiting {
            self.ready.push(IoDone::new(token, Err(Errno::CANCELED.into()), None));
        }
    }
}
