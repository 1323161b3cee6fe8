//! A guest's disk as its monitor sets it up: memory, queues, in-flight region.
//!
//! How: messages change this description; whenever a queue has all that it needs, the shard is told
//! to serve it, and before anything that it rests on changes, the shard gives it back. While a stop
//! waits for requests in flight, the socket is watched: a monitor that left waits for none.
//! Invariant: the shard touches the guest's memory only between a start and the end of its stop.
//! Not for: requests; the shard reads those from the guest's memory.

use super::memory;
use crate::control::{Command, Control};
use layby_engine::control::{CallEvent, CommandError, GuestQueue, MonitorId};
use layby_engine::guest_memory::Watch;
use layby_frontend::vhost::{
    BlockRing, GuestDisk, GuestRam, Inflight, QUEUE_SIZE_MAX, QUEUES_MAX, RamError, RamRegion,
    RingPlan,
};
use layby_types::{ErrorKind, VolumeId};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
use rustix::io::Errno;
use std::fmt::Display;
use std::fs::File;
use std::io::PipeReader;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::sync_channel;
use virtio_bindings::bindings::virtio_blk::VIRTIO_BLK_F_FLUSH;
use virtio_bindings::bindings::virtio_ring::VIRTIO_RING_F_EVENT_IDX;

/// The feature bit by which monitors ask for vhost-user's own features.
const PROTOCOL_FEATURES: u64 = 1 << 30;

/// Regions of memory that a monitor may add one by one; as many as QEMU's own devices take.
pub(super) const REGIONS_MAX: usize = 509;

/// Monitors that have connected to this process.
static MONITORS: AtomicU64 = AtomicU64::new(0);

/// Why a message cannot be followed; the connection ends with it.
#[derive(Debug)]
pub(super) struct Refusal(pub(super) String);

fn refuse<T>(cause: impl Display) -> Result<T, Refusal> {
    Err(Refusal(cause.to_string()))
}

/// A queue as told so far.
#[derive(Default)]
struct Queue {
    entries: u16,
    /// Descriptors, used, available; the monitor's addresses.
    addresses: Option<[u64; 3]>,
    base: u16,
    kick: Option<OwnedFd>,
    call: CallEvent,
    is_enabled: bool,
    /// The part whose shard serves it, and its number there, while it is served.
    served: Option<(VolumeId, u32)>,
}

/// See the file's header.
pub(super) struct Device {
    monitor: MonitorId,
    /// The monitor's connection.
    socket: UnixStream,
    /// The monitor has left, or resets the device: no answer is waited for.
    is_gone: bool,
    control: Arc<Control>,
    volume: VolumeId,
    disk: Arc<GuestDisk>,
    features: u64,
    ram: Option<Arc<GuestRam>>,
    /// What watches over the memory, for as long as queues are served from it.
    watches: Vec<Watch>,
    inflight: Option<Inflight>,
    /// The same for the in-flight region.
    inflight_watch: Option<Watch>,
    /// The monitor goes on with what an in-flight region marks when it has asked for a base.
    marks: bool,
    queues: Vec<Queue>,
}

impl Device {
    /// A device of which its monitor has said nothing yet, over `socket`.
    pub(super) fn new(
        control: Arc<Control>,
        volume: VolumeId,
        disk: GuestDisk,
        socket: UnixStream,
    ) -> Device {
        Device {
            monitor: MonitorId(MONITORS.fetch_add(1, Ordering::Relaxed)),
            socket,
            is_gone: false,
            control,
            volume,
            disk: Arc::new(disk),
            features: 0,
            ram: None,
            watches: Vec::new(),
            inflight: None,
            inflight_watch: None,
            marks: false,
            queues: (0..QUEUES_MAX).map(|_| Queue::default()).collect(),
        }
    }

    pub(super) fn disk(&self) -> &GuestDisk {
        &self.disk
    }

    pub(super) fn offered(&self) -> u64 {
        self.disk.features() | PROTOCOL_FEATURES
    }

    pub(super) fn set_features(&mut self, features: u64) -> Result<(), Refusal> {
        if features & !self.offered() != 0 {
            let unknown = features & !self.offered();
            return refuse(format!("it accepts features that were not offered: {unknown:#x}"));
        }
        self.features = features;
        // Without vhost-user's features there is no message that would enable a queue.
        if features & PROTOCOL_FEATURES == 0 {
            self.queues.iter_mut().for_each(|queue| queue.is_enabled = true);
        }
        Ok(())
    }

    pub(super) fn set_marks(&mut self, marks: bool) {
        self.marks = marks;
    }

    pub(super) fn set_ram(&mut self, regions: Vec<RamRegion>) -> Result<(), Refusal> {
        regions.iter().try_for_each(memory::check_ram).or_else(refuse)?;
        self.change_ram(|_| GuestRam::map(regions))
    }

    pub(super) fn add_region(&mut self, region: RamRegion) -> Result<(), Refusal> {
        memory::check_ram(&region).or_else(refuse)?;
        if self.ram.as_ref().is_some_and(|ram| ram.regions() >= REGIONS_MAX) {
            return refuse(format!("it shares more than {REGIONS_MAX} regions of memory"));
        }
        self.change_ram(|ram| ram.with(region))
    }

    pub(super) fn remove_region(&mut self, guest: u64, length: u64) -> Result<(), Refusal> {
        self.change_ram(|ram| ram.without(guest, length))
    }

    fn change_ram(
        &mut self,
        change: impl FnOnce(&GuestRam) -> Result<GuestRam, RamError>,
    ) -> Result<(), Refusal> {
        self.pause_all()?;
        let none = GuestRam::default();
        let ram = change(self.ram.as_deref().unwrap_or(&none)).or_else(refuse)?;
        tracing::debug!(volume = self.volume.0, ?ram, "guest memory");
        let watch = |region| Watch::begin(region, Arc::clone(ram.cut()));
        let watches: Result<_, _> = ram.mappings().map(watch).collect();
        self.watches = watches.or_else(|error: std::io::Error| refuse(error))?;
        self.ram = Some(Arc::new(ram));
        (0..self.queues.len()).try_for_each(|index| self.resume(index))
    }

    fn queue(&mut self, index: u32) -> Result<&mut Queue, Refusal> {
        let queue = self.queues.get_mut(index as usize);
        queue.ok_or_else(|| Refusal(format!("it names queue {index} of {QUEUES_MAX}")))
    }

    pub(super) fn set_entries(&mut self, index: u32, entries: u32) -> Result<(), Refusal> {
        self.pause(index as usize)?;
        let fits = u16::try_from(entries).ok().filter(|entries| *entries <= QUEUE_SIZE_MAX);
        let Some(entries) = fits.filter(|entries| entries.is_power_of_two()) else {
            return refuse(format!(
                "a queue of {entries} entries; a power of two up to {QUEUE_SIZE_MAX} is served"
            ));
        };
        self.queue(index)?.entries = entries;
        self.resume(index as usize)
    }

    pub(super) fn set_addresses(&mut self, index: u32, at: [u64; 3]) -> Result<(), Refusal> {
        self.pause(index as usize)?;
        self.queue(index)?.addresses = Some(at);
        self.resume(index as usize)
    }

    pub(super) fn set_base(&mut self, index: u32, base: u32) -> Result<(), Refusal> {
        self.pause(index as usize)?;
        self.queue(index)?.base = base as u16;
        self.resume(index as usize)
    }

    /// Stops a queue until the next kick descriptor; answers with where it would go on.
    pub(super) fn take_base(&mut self, index: u32) -> Result<u16, Refusal> {
        self.pause_with(index as usize, self.marks)?;
        let queue = self.queue(index)?;
        queue.kick = None;
        Ok(queue.base)
    }

    pub(super) fn set_kick(&mut self, index: u32, kick: Option<File>) -> Result<(), Refusal> {
        self.pause(index as usize)?;
        let Some(kick) = kick else {
            return refuse("it wants its queues polled, which is not offered");
        };
        self.queue(index)?.kick = Some(kick.into());
        self.resume(index as usize)
    }

    pub(super) fn set_call(&mut self, index: u32, call: Option<File>) -> Result<(), Refusal> {
        let set = self.queue(index)?.call.set(call.map(OwnedFd::from));
        set.or_else(|error| refuse(format!("its call descriptor: {error}")))
    }

    pub(super) fn enable(&mut self, index: u32, is_enabled: bool) -> Result<(), Refusal> {
        if !is_enabled {
            // A stop may follow, which finds the queue paused.
            self.pause_with(index as usize, self.marks)?;
        }
        self.queue(index)?.is_enabled = is_enabled;
        self.resume(index as usize)
    }

    /// Makes an in-flight region; the monitor keeps it from now on.
    pub(super) fn make_inflight(&mut self, queues: u16, entries: u16) -> Result<File, Refusal> {
        if queues > QUEUES_MAX || entries > QUEUE_SIZE_MAX {
            return refuse(format!("an in-flight region for {queues} queues of {entries}"));
        }
        let made = (|| {
            let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
            let file = File::from(memfd_create("layby-inflight", flags)?);
            file.set_len(Inflight::bytes(queues, entries) as u64)?;
            fcntl_add_seals(&file, SealFlags::GROW | SealFlags::SHRINK | SealFlags::SEAL)?;
            file.try_clone().map(|own| (own, file))
        })();
        let (own, file) = made.or_else(|error: std::io::Error| refuse(error))?;
        self.set_inflight(own, 0, queues, entries)?;
        Ok(file)
    }

    /// Goes on with the in-flight region that another life of this node, or this one, has made.
    pub(super) fn set_inflight(
        &mut self,
        file: File,
        offset: u64,
        queues: u16,
        entries: u16,
    ) -> Result<(), Refusal> {
        self.pause_all()?;
        memory::check_inflight(&file).or_else(refuse)?;
        let inflight = Inflight::map(file, offset, queues, entries).or_else(refuse)?;
        let (region, flag) = (Arc::clone(inflight.mapping()), Arc::clone(inflight.cut()));
        let watch = Watch::begin_inflight(region, flag);
        self.inflight_watch = Some(watch.or_else(|error: std::io::Error| refuse(error))?);
        self.inflight = Some(inflight);
        (0..self.queues.len()).try_for_each(|index| self.resume(index))
    }

    /// Serves a queue that has all it needs.
    fn resume(&mut self, index: usize) -> Result<(), Refusal> {
        let Some(queue) = self.queues.get(index) else { return Ok(()) };
        let (Some(ram), Some(addresses), Some(kick)) = (&self.ram, queue.addresses, &queue.kick)
        else {
            return Ok(());
        };
        if !queue.is_enabled || queue.entries == 0 || queue.served.is_some() {
            return Ok(());
        }
        let has = |bit: u32| self.features & 1 << bit != 0;
        let place = |address| match ram.guest_address(address, 1) {
            Some(place) => Ok(place),
            None => refuse(format!("queue {index} lies outside of the memory that it shares")),
        };
        let plan = RingPlan {
            index: index as u16,
            entries: queue.entries,
            descriptors: place(addresses[0])?,
            used: place(addresses[1])?,
            available: place(addresses[2])?,
            base: queue.base,
            event_index: has(VIRTIO_RING_F_EVENT_IDX),
            guest_flushes: has(VIRTIO_BLK_F_FLUSH),
        };
        let kick = kick.try_clone().or_else(refuse)?;
        let disk = Arc::clone(&self.disk);
        let ring = BlockRing::new(Arc::clone(ram), disk, &plan, self.inflight.as_ref());
        let part = self.control.part_of_queue(self.volume, index);
        let queue = GuestQueue {
            monitor: Some(self.monitor),
            volume: part,
            ring: Box::new(ring.or_else(refuse)?),
            kick,
            call: queue.call.clone(),
            peer: format!("guest of `{}`, queue {index}", self.disk.name),
        };
        let started = self.ask(part, |answer| Command::StartQueue(Box::new(queue), answer));
        let number = started.or_else(|error| refuse(error.cause))?;
        let queue = &mut self.queues[index];
        queue.served = Some((part, number));
        // An answer of the node's last life may not have been announced.
        queue.call.signal();
        Ok(())
    }

    /// Has a queue back from the shard, which touches its memory no more. Where that fails the
    /// shard has ended, and nothing is in flight either, but it is not known where the queue would
    /// go on.
    fn pause(&mut self, index: usize) -> Result<(), Refusal> {
        // Until the monitor hears of a base, what an in-flight region marks is this node's.
        self.pause_with(index, true)
    }

    fn pause_with(&mut self, index: usize, marks: bool) -> Result<(), Refusal> {
        let served = self.queues.get_mut(index).and_then(|queue| queue.served.take());
        let Some((part, number)) = served else { return Ok(()) };
        let stopped = self.stop(part, number, marks);
        self.queues[index].base = stopped.or_else(|error| refuse(error.cause))?;
        Ok(())
    }

    /// Stops a queue. Where marks in an in-flight region will not do, it waits for what is in
    /// flight, unless the monitor leaves meanwhile.
    fn stop(&mut self, part: VolumeId, number: u32, marks: bool) -> Result<u16, CommandError> {
        if self.is_gone {
            self.abandon(part);
        }
        // The far end closes when the shard has answered, or has ended. Without descriptors for it
        // the stop waits for its answer, whatever the monitor does.
        let (near, far) = std::io::pipe().ok().unzip();
        let (tell, told) = sync_channel(1);
        let answer = Box::new(move |result| {
            drop(tell.send(result));
            drop(far);
        });
        let sent = self.control.port_of(part).send(Command::StopQueue { number, marks, answer });
        drop(sent);
        if !self.is_gone && near.is_some_and(|near| self.leaves_before(&near)) {
            self.is_gone = true;
            self.abandon(part);
        }
        told.recv().unwrap_or_else(|_| Err(ended()))
    }

    /// Waits until `end` is closed; true when the monitor leaves before.
    fn leaves_before(&self, end: &PipeReader) -> bool {
        loop {
            let none = PollFlags::empty();
            let mut polled = [PollFd::new(end, none), PollFd::new(&self.socket, none)];
            match poll(&mut polled, None) {
                Ok(_) if !polled[0].revents().is_empty() => return false,
                Ok(_) => return true,
                Err(Errno::INTR) => {}
                Err(_) => return false,
            }
        }
    }

    /// The shard of a volume's part answers nothing more to this monitor's queues that stop.
    fn abandon(&self, part: VolumeId) {
        // A shard that has ended answers nothing anyway.
        drop(self.control.port_of(part).send(Command::AbandonQueues(self.monitor)));
    }

    fn pause_all(&mut self) -> Result<(), Refusal> {
        (0..self.queues.len()).map(|index| self.pause(index)).fold(Ok(()), Result::and)
    }

    /// The monitor has left, or starts over: no queue is served until it describes them anew.
    pub(super) fn stop_all(&mut self) {
        let was_gone = std::mem::replace(&mut self.is_gone, true);
        if let Err(Refusal(cause)) = self.pause_all() {
            tracing::debug!(volume = self.volume.0, cause, "queues end with their shard");
        }
        self.is_gone = was_gone;
        self.queues.iter_mut().for_each(|queue| *queue = Queue::default());
    }

    /// Asks the shard of a volume's part and waits for its answer.
    fn ask<T: Send + 'static>(
        &self,
        part: VolumeId,
        command: impl FnOnce(layby_engine::control::Answer<T>) -> Command,
    ) -> Result<T, CommandError> {
        let (tell, told) = sync_channel(1);
        let answer = Box::new(move |result| drop(tell.send(result)));
        match self.control.port_of(part).send(command(answer)) {
            Ok(()) => told.recv().unwrap_or_else(|_| Err(ended())),
            Err(_) => Err(ended()),
        }
    }
}

fn ended() -> CommandError {
    CommandError { kind: ErrorKind::Closed, cause: "the node stops".into() }
}
