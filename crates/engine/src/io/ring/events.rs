//! Event descriptors in the ring: polled by the kernel, emptied by a read that cannot block.
//!
//! How: a wait is a poll in the ring, since a read there would end at once where the descriptor's
//! other owner has made it non-blocking, and that mode is shared.
//! Invariant: an id is free again only when its wait has ended. Cost: one system call per event.

use super::super::events::empty;
use super::super::{EventId, IoError};
use super::{FileMark, RingIo, SLOT_NONE, entries};
use std::os::fd::{AsFd, OwnedFd};

pub(super) struct Event {
    file: OwnedFd,
    mark: FileMark,
    /// The wait in flight.
    slot: Option<u32>,
    closing: bool,
}

pub(super) fn mark_of(events: &[Option<Event>], event: EventId) -> FileMark {
    events[event.0 as usize].as_ref().expect("the event is attached").mark
}

impl RingIo {
    /// Takes an event descriptor over.
    ///
    /// # Errors
    /// `EINVAL` for a semaphore, or another kind of descriptor.
    pub fn attach_event(&mut self, file: OwnedFd) -> Result<EventId, IoError> {
        super::super::events::check_awaited(&file)?;
        let mark = self.kernel.register_file(file.as_fd());
        let event = Some(Event { file, mark, slot: None, closing: false });
        let vacant = self.events.iter().position(Option::is_none);
        let index = vacant.unwrap_or_else(|| {
            self.events.push(None);
            self.events.len() - 1
        });
        self.events[index] = event;
        Ok(EventId(index as u32))
    }

    fn event(&mut self, event: EventId) -> &mut Event {
        self.events[event.0 as usize].as_mut().expect("the event is attached")
    }

    pub(super) fn event_begins(&mut self, event: EventId, slot: u32) {
        let old = self.event(event).slot.replace(slot);
        assert!(old.is_none(), "two waits for one event");
    }

    pub(super) fn event_is_closing(&mut self, event: EventId) -> bool {
        self.event(event).closing
    }

    /// The kernel says that there was an event: takes it off the counter.
    pub(super) fn event_came(&mut self, event: EventId) {
        empty(&self.event(event).file);
    }

    /// A wait has ended.
    pub(super) fn leave_event(&mut self, id: EventId) {
        let event = self.event(id);
        event.slot = None;
        if event.closing {
            self.events[id.0 as usize] = None;
        }
    }

    pub(super) fn forget_event(&mut self, id: EventId) {
        let is_flushed = self.flush();
        let event = self.event(id);
        assert!(!event.closing, "an event is closed once");
        event.closing = true;
        let (mark, slot) = (event.mark, event.slot);
        if is_flushed {
            self.kernel.forget_file(mark);
        }
        match slot {
            Some(slot) => self.push(SLOT_NONE, entries::cancel(u64::from(slot))),
            None => self.events[id.0 as usize] = None,
        }
    }
}
