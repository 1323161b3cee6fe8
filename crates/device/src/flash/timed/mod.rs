//! A flash device in time: requests wait for a queue, channels and planes.
//!
//! How: a request starts when the queue has a place. Each of its page operations, and before them
//! those of cleaning that it set off, reserves the plane, which works in the order of asking, and
//! a stretch of the channel, which may lie in a gap between stretches reserved earlier. So there
//! is no queue of events, and a request's end is known when it is submitted.
//! Invariant: no plane or channel does two things at once; the counts are those of [`Flash`].
//! Cost: some hundred nanoseconds per page operation; memory by what is outstanding.
//! Not for: write buffers, suspended erases, reads that overtake: a plane is first come, first
//! served.

mod channel;
mod latency;
#[cfg(test)]
mod tests;

use super::blocks::NONE;
use super::ftl::{Failure, Flash, LogicalPage, Stream};
use super::medium::Performed;
use alloc::collections::{BinaryHeap, VecDeque};
use alloc::vec;
use alloc::vec::Vec;
use channel::Channel;
use core::cmp::Reverse;
use core::fmt;
use layby_types::Nanos;

pub use latency::Latencies;

/// How long flash takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// A page from cells to the plane's register.
    pub read: Nanos,
    /// A page from the register to cells.
    pub program: Nanos,
    /// A block.
    pub erase: Nanos,
    /// A page over the channel, either way.
    pub transfer: Nanos,
    /// A trim, whatever it covers.
    pub trim: Nanos,
    /// Each page that a trim covers.
    pub trim_page: Nanos,
}

impl Timing {
    /// DiskSim's SSD add-on, with pages of 4 KiB: 25 ns a byte, 528 bytes a sector.
    pub const DISKSIM: Timing = Timing {
        read: Nanos(25_000),
        program: Nanos(200_000),
        erase: Nanos(1_500_000),
        transfer: Nanos(105_600),
        trim: Nanos(0),
        trim_page: Nanos(0),
    };
    /// FEMU as the Delay-D paper set it up.
    pub const FEMU: Timing = Timing {
        read: Nanos(40_000),
        program: Nanos(200_000),
        erase: Nanos(2_000_000),
        transfer: Nanos(0),
        trim: Nanos(0),
        trim_page: Nanos(200_000),
    };
}

/// Which plane a page lies on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Layout {
    /// A block is striped over all planes, page by page, and erased on all of them: its pages are
    /// those of a plane's block times the planes, or erases weigh too much.
    #[default]
    Superblock,
    /// A block lies on one plane, and blocks in a row on planes in a row.
    BlockPerPlane,
}

/// What of a device works at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parallelism {
    /// Channels.
    pub channels: u16,
    /// Dies on each.
    pub dies_per_channel: u16,
    /// Planes of each die; they are taken to work independently.
    pub planes_per_die: u16,
    /// Requests in service at once.
    pub queue_depth: u32,
    /// Where pages lie.
    pub layout: Layout,
    /// Copies stay on the device's side of the channel where source and target share a plane.
    pub copy_back: bool,
    /// A trim waits for all before it and holds up all after it, as one without a queue does
    /// (SATA). Otherwise trims wait for each other alone.
    pub trim_alone: bool,
}

impl Parallelism {
    /// Least of channels, dies and planes.
    pub const UNITS_MIN: u16 = 1;
    /// Most of channels, of dies on one, and of planes of one.
    pub const UNITS_MAX: u16 = 64;
    /// One request at a time.
    pub const QUEUE_DEPTH_MIN: u32 = 1;
    /// An NVMe queue's longest.
    pub const QUEUE_DEPTH_MAX: u32 = 1 << 16;
    /// Enough for the planes of [`Self::small`].
    pub const QUEUE_DEPTH_DEFAULT: u32 = 64;

    /// Eight channels of eight dies.
    #[must_use]
    pub fn small() -> Self {
        Parallelism {
            channels: 8,
            dies_per_channel: 8,
            planes_per_die: 1,
            queue_depth: Self::QUEUE_DEPTH_DEFAULT,
            layout: Layout::Superblock,
            copy_back: false,
            trim_alone: false,
        }
    }
    /// Planes, all told.
    #[must_use]
    pub fn planes(&self) -> u32 {
        u32::from(self.channels) * u32::from(self.dies_per_channel) * u32::from(self.planes_per_die)
    }
    fn checked(&self) -> Result<(), ParallelismError> {
        let units = Self::UNITS_MIN..=Self::UNITS_MAX;
        let each = [self.channels, self.dies_per_channel, self.planes_per_die];
        if !each.iter().all(|count| units.contains(count)) {
            return Err(ParallelismError::Units);
        }
        if !(Self::QUEUE_DEPTH_MIN..=Self::QUEUE_DEPTH_MAX).contains(&self.queue_depth) {
            return Err(ParallelismError::QueueDepth);
        }
        Ok(())
    }
}

/// Why nothing can work that way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParallelismError {
    /// Channels, dies or planes out of bounds.
    Units,
    /// Queue depth out of bounds.
    QueueDepth,
}

impl fmt::Display for ParallelismError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ParallelismError::Units => {
                let (least, most) = (Parallelism::UNITS_MIN, Parallelism::UNITS_MAX);
                write!(out, "flash: channels, dies and planes must lie in {least}..={most}")
            }
            ParallelismError::QueueDepth => {
                let (least, most) = (Parallelism::QUEUE_DEPTH_MIN, Parallelism::QUEUE_DEPTH_MAX);
                write!(out, "flash: queue_depth must lie in {least}..={most}")
            }
        }
    }
}

/// What a host asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// Read pages.
    Read,
    /// Write pages in a stream.
    Write(Stream),
    /// Give up pages.
    Trim,
}

/// A command on pages in a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// When it reaches the device; never before the request submitted last.
    pub arrival: Nanos,
    /// What to do.
    pub command: Command,
    /// First page.
    pub first: LogicalPage,
    /// Pages.
    pub count: u32,
}

/// When a request was served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// It left the queue.
    pub start: Nanos,
    /// It was answered.
    pub end: Nanos,
}

/// A flash device with a clock of its requests.
#[derive(Debug)]
pub struct TimedFlash {
    flash: Flash,
    timing: Timing,
    parallelism: Parallelism,
    channels: Vec<Channel>,
    /// When each plane has done what was asked of it.
    planes: Vec<u64>,
    /// Ends of the requests in service.
    queue: BinaryHeap<Reverse<u64>>,
    /// The last arrival, the last end, and when trims have been dealt with.
    arrival_last: u64,
    end_last: u64,
    trims_until: u64,
    /// Nothing starts before.
    held_until: u64,
    planes_busy: u64,
    performed: Vec<Performed>,
    /// When copies that were read can be programmed; empty between calls, as `performed` is.
    copies_ready: VecDeque<u64>,
    latencies: [Latencies; 3],
}

impl TimedFlash {
    /// Puts a device into time, in the state in which it is; preconditioning comes before.
    ///
    /// # Errors
    /// `parallelism` is out of its bounds.
    pub fn new(
        mut flash: Flash,
        timing: Timing,
        parallelism: Parallelism,
    ) -> Result<TimedFlash, ParallelismError> {
        parallelism.checked()?;
        flash.medium.performed = Some(Vec::new());
        Ok(TimedFlash {
            flash,
            timing,
            parallelism,
            channels: vec![Channel::default(); parallelism.channels.into()],
            planes: vec![0; parallelism.planes() as usize],
            queue: BinaryHeap::with_capacity(parallelism.queue_depth as usize),
            arrival_last: 0,
            end_last: 0,
            trims_until: 0,
            held_until: 0,
            planes_busy: 0,
            performed: Vec::new(),
            copies_ready: VecDeque::new(),
            latencies: [const { Latencies::new() }; 3],
        })
    }

    /// Serves a request; its end is known at once.
    ///
    /// # Errors
    /// The device has failed; pages before the one that failed are written.
    ///
    /// # Panics
    /// A request arrives before the one submitted last, or names pages or a stream that the device
    /// does not have.
    pub fn submit(&mut self, request: Request) -> Result<Completion, Failure> {
        let arrival = request.arrival.0;
        assert!(arrival >= self.arrival_last, "requests are submitted in the order of arriving");
        self.arrival_last = arrival;
        let start = self.dequeue(arrival);
        self.flash.serve_trims(start);
        let end = match request.command {
            Command::Read => self.read(start, request.first, request.count),
            Command::Write(stream) => self.write(start, &request, stream)?,
            Command::Trim => self.trim(start, request.first, request.count),
        };
        self.queue.push(Reverse(end));
        self.end_last = self.end_last.max(end);
        self.latencies[kind(request.command)].record(Nanos(end - arrival));
        Ok(Completion { start: Nanos(start), end: Nanos(end) })
    }
    /// When a request that arrives leaves the queue.
    fn dequeue(&mut self, arrival: u64) -> u64 {
        let start = arrival.max(self.held_until);
        if self.queue.len() < self.parallelism.queue_depth as usize {
            return start;
        }
        let Reverse(earliest) = self.queue.pop().expect("the queue is full");
        start.max(earliest)
    }
    fn read(&mut self, start: u64, first: LogicalPage, count: u32) -> u64 {
        let mut end = start;
        for page in first.0..first.0 + count {
            let place = self.flash.medium.forward[page as usize];
            if place != NONE && self.flash.holds(LogicalPage(page)) {
                end = end.max(self.read_page(start, place));
            }
        }
        end
    }
    fn write(&mut self, start: u64, request: &Request, stream: Stream) -> Result<u64, Failure> {
        let mut end = start;
        for page in request.first.0..request.first.0 + request.count {
            let written = self.flash.write(LogicalPage(page), stream);
            end = end.max(self.perform(start));
            written?;
        }
        Ok(end)
    }
    fn trim(&mut self, start: u64, first: LogicalPage, count: u32) -> u64 {
        let alone = self.parallelism.trim_alone;
        let waits_for = if alone { self.end_last } else { self.trims_until };
        let takes = self.timing.trim.0 + self.timing.trim_page.0 * u64::from(count);
        let end = start.max(waits_for) + takes;
        self.trims_until = end;
        self.flash.trim_served(first, count, Some(end));
        if alone {
            self.held_until = end;
        }
        end
    }

    /// Reserves time for what the flash just did; the end of the host's own page.
    ///
    /// The pages of all victims are read first and programmed then: a plane that was promised to
    /// the program of one copy could not read the next one meanwhile.
    fn perform(&mut self, start: u64) -> u64 {
        let mut performed = core::mem::take(&mut self.performed);
        core::mem::swap(&mut performed, self.flash.medium.performed.get_or_insert_default());
        let mut ready = core::mem::take(&mut self.copies_ready);
        for &what in &performed {
            if let Performed::Copy { from, to } = what {
                let stays = self.parallelism.copy_back && self.plane_of(from) == self.plane_of(to);
                ready.push_back(if stays { start } else { self.read_page(start, from) });
            }
        }
        let (mut end, mut copied) = (start, start);
        for &what in &performed {
            match what {
                Performed::Program { to } => end = self.program_page(start, to),
                Performed::Copy { from, to } => {
                    let ready = ready.pop_front().expect("it was read above");
                    copied = copied.max(self.place_copy(ready, from, to));
                }
                // What was in the block must be elsewhere before.
                Performed::Erase { block } => self.erase_block(copied, block),
            }
        }
        performed.clear();
        (self.performed, self.copies_ready) = (performed, ready);
        end
    }
    fn plane_of(&self, place: u32) -> usize {
        let medium = &self.flash.medium;
        let at = match self.parallelism.layout {
            Layout::Superblock => place & ((1 << medium.shift) - 1),
            Layout::BlockPerPlane => place >> medium.shift,
        };
        at as usize % self.planes.len()
    }
    fn channel_of(&mut self, plane: usize) -> &mut Channel {
        let count = self.channels.len();
        &mut self.channels[plane % count]
    }
    /// The plane works for `takes`, as soon as it can from `ready` on; the end.
    fn work(&mut self, plane: usize, ready: u64, takes: u64) -> u64 {
        let end = self.planes[plane].max(ready) + takes;
        self.planes[plane] = end;
        self.planes_busy += takes;
        end
    }
    fn read_page(&mut self, ready: u64, place: u32) -> u64 {
        let plane = self.plane_of(place);
        let sensed = self.work(plane, ready, self.timing.read.0);
        let transfer = self.timing.transfer.0;
        let now = self.arrival_last;
        let end = self.channel_of(plane).reserve(now, sensed, transfer);
        // The register is free for the next read when its bytes have left it.
        self.planes[plane] = end;
        end
    }
    fn program_page(&mut self, ready: u64, place: u32) -> u64 {
        let plane = self.plane_of(place);
        let ready = ready.max(self.planes[plane]);
        let transfer = self.timing.transfer.0;
        let now = self.arrival_last;
        let filled = self.channel_of(plane).reserve(now, ready, transfer);
        self.work(plane, filled, self.timing.program.0)
    }
    fn place_copy(&mut self, ready: u64, from: u32, to: u32) -> u64 {
        let (source, target) = (self.plane_of(from), self.plane_of(to));
        if self.parallelism.copy_back && source == target {
            return self.work(source, ready, self.timing.read.0 + self.timing.program.0);
        }
        self.program_page(ready, to)
    }
    fn erase_block(&mut self, ready: u64, block: u32) {
        let takes = self.timing.erase.0;
        match self.parallelism.layout {
            Layout::Superblock => {
                (0..self.planes.len()).for_each(|plane| {
                    self.work(plane, ready, takes);
                });
            }
            Layout::BlockPerPlane => {
                self.work(block as usize % self.planes.len(), ready, takes);
            }
        }
    }

    /// The device that counts.
    #[must_use]
    pub fn flash(&self) -> &Flash {
        &self.flash
    }
    /// Out of time again, for what needs none.
    #[must_use]
    pub fn into_flash(mut self) -> Flash {
        self.flash.medium.performed = None;
        self.flash
    }
    /// From arrival to answer, for all requests so far of the command's kind.
    #[must_use]
    pub fn latencies(&self, command: Command) -> &Latencies {
        &self.latencies[kind(command)]
    }
    /// When the last answer so far is given.
    #[must_use]
    pub fn end_last(&self) -> Nanos {
        Nanos(self.end_last)
    }
    /// Time that planes worked, all added up; waiting for a channel is not in it.
    #[must_use]
    pub fn planes_busy(&self) -> Nanos {
        Nanos(self.planes_busy)
    }
    /// Bytes of memory that the model holds.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        let channels: usize = self.channels.iter().map(Channel::bytes).sum();
        let queue = (self.queue.capacity() + self.planes.capacity()) * size_of::<u64>();
        let performed = self.performed.capacity() * 2 * size_of::<Performed>()
            + self.copies_ready.capacity() * size_of::<u64>();
        self.flash.memory_bytes() + channels + queue + performed + size_of::<Self>()
    }
}

fn kind(command: Command) -> usize {
    match command {
        Command::Read => 0,
        Command::Write(_) => 1,
        Command::Trim => 2,
    }
}
