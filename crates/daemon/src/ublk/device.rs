//! One volume's block device: made or taken over, served, and taken away.
//!
//! How: commands that wait for the kernel run on threads for such waiting; between them the
//! volume's shard is asked to serve the device's queue, since the kernel reads a new disk before it
//! answers, and gives back a paused one only when its queue is served.
//! Invariant: what a failed beginning had made is undone; a device that was found is left paused.
//! Not for: which volumes have devices; the module decides.

use crate::catalog::VolumeRecord;
use crate::config::Name;
use crate::control::{Command, Control};
use layby_engine::control::{CallEvent, GuestQueue};
use layby_engine::ublk::{
    Channel, Device, DeviceState, Driver, FEATURE_RECOVERY, FEATURE_REISSUE, FEATURES_NEEDED,
    NewDevice,
};
use layby_frontend::ublk::{
    BUFFER_BYTES, DESCRIPTOR_BYTES, DiskQueue, HostDisk, QUEUE_DEPTH, Wire,
};
use layby_types::{SessionError, VolumeId};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::time::Duration;

/// Longest wait for a last life's server to be gone for the kernel, too.
const RECOVERY_TIME_MAX: Duration = Duration::from_secs(30);
/// Longest wait for the host to make a device's files.
const FILES_TIME_MAX: Duration = Duration::from_secs(5);
/// Between two looks: the kernel tells nobody when it is ready.
const LOOK_PAUSE: Duration = Duration::from_millis(20);

/// What could not be done, and why.
#[derive(Debug)]
pub(super) struct Fault {
    pub(super) step: &'static str,
    pub(super) cause: String,
}

impl Fault {
    pub(super) fn new(step: &'static str, cause: impl std::fmt::Display) -> Fault {
        Fault { step, cause: format!("{cause}") }
    }
}

/// The device as programs open it.
pub(super) fn path(number: u32) -> String {
    format!("/dev/ublkb{number}")
}

/// Runs commands that wait for the kernel.
pub(super) async fn on_driver<T: Send + 'static>(
    body: impl FnOnce(&Driver) -> Result<T, Errno> + Send + 'static,
) -> Result<T, Errno> {
    let running = tokio::task::spawn_blocking(move || body(&Driver::open()?));
    running.await.expect("commands report, they do not panic")
}

async fn command<T: Send + 'static>(
    step: &'static str,
    body: impl FnOnce(&Driver) -> Result<T, Errno> + Send + 'static,
) -> Result<T, Fault> {
    on_driver(body).await.map_err(|errno| Fault::new(step, errno))
}

/// Repeats a command while the kernel says `wait`, up to a time.
async fn command_until<T: Send + 'static>(
    step: &'static str,
    (wait, time_max): (Errno, Duration),
    body: impl Fn(&Driver) -> Result<T, Errno> + Send + Clone + 'static,
) -> Result<T, Fault> {
    let deadline = tokio::time::Instant::now() + time_max;
    loop {
        match on_driver(body.clone()).await {
            Err(errno) if errno == wait && tokio::time::Instant::now() < deadline => {
                tokio::time::sleep(LOOK_PAUSE).await;
            }
            result => return result.map_err(|errno| Fault::new(step, errno)),
        }
    }
}

/// What a device stands for, and who is asked for it.
struct Place<'a> {
    control: &'a Control,
    volume: VolumeId,
    name: &'a Name,
    disk: HostDisk,
}

/// A device that the node serves.
pub(super) struct Served {
    device: Device,
    volume: VolumeId,
    /// Its queue's number in the shard.
    queue: u32,
}

impl Served {
    /// Takes over the device that was found, or makes one.
    pub(super) async fn begin(
        control: &Control,
        name: &Name,
        record: &VolumeRecord,
        mark: u64,
        found: Option<Device>,
    ) -> Result<Served, Fault> {
        let disk = HostDisk {
            length: record.length,
            block_size: control.view().layout.block_size,
            read_only: record.read_only,
        };
        let place = Place { control, volume: VolumeId(record.id), name, disk };
        match found {
            Some(device) if device.state != DeviceState::Dead => {
                tracing::info!(volume = %name, device = path(device.number), "takes it over");
                Served::recover(&place, device).await
            }
            Some(device) => {
                let number = device.number;
                command("remove an unfinished device", move |d| d.delete(number)).await?;
                Served::make(&place, mark).await
            }
            None => Served::make(&place, mark).await,
        }
    }

    pub(super) fn number(&self) -> u32 {
        self.device.number
    }

    async fn make(place: &Place<'_>, mark: u64) -> Result<Served, Fault> {
        let added = command("add a device", move |driver| {
            let features =
                driver.features()? & (FEATURES_NEEDED | FEATURE_RECOVERY | FEATURE_REISSUE);
            driver.add(&NewDevice {
                depth: QUEUE_DEPTH,
                buffer_bytes: BUFFER_BYTES,
                features,
                mark,
            })
        });
        let device = added.await?;
        let number = device.number;
        match Served::start(place, device).await {
            Ok(served) => Ok(served),
            Err(fault) => {
                // The first failure is the one to tell.
                drop(command("remove a device", move |driver| driver.delete(number)).await);
                Err(fault)
            }
        }
    }

    /// Gives a new device its disk.
    async fn start(place: &Place<'_>, device: Device) -> Result<Served, Fault> {
        let (number, parameters) = (device.number, place.disk.parameters());
        command("describe the disk", move |d| d.set_parameters(number, &parameters)).await?;
        let served = Served::serve(place, device).await?;
        match command("start the device", move |driver| driver.start(number)).await {
            Ok(()) => Ok(served),
            Err(fault) => {
                drop(command("stop the device", move |driver| driver.stop(number)).await);
                drop(served.leave(place.control).await);
                Err(fault)
            }
        }
    }

    async fn recover(place: &Place<'_>, device: Device) -> Result<Served, Fault> {
        let number = device.number;
        let busy = (Errno::BUSY, RECOVERY_TIME_MAX);
        command_until("take the device over", busy, move |d| d.start_recovery(number)).await?;
        let served = Served::serve(place, device).await?;
        match command("let the device go on", move |driver| driver.end_recovery(number)).await {
            Ok(()) => Ok(served),
            Err(fault) => {
                drop(served.leave(place.control).await);
                Err(fault)
            }
        }
    }

    /// Has the volume's shard serve the device's queue.
    async fn serve(place: &Place<'_>, device: Device) -> Result<Served, Fault> {
        let Place { control, volume, name, disk } = place;
        let missing = (Errno::NOENT, FILES_TIME_MAX);
        let opened = command_until("open the device", missing, move |_| Channel::open(&device));
        let channel = opened.await?;
        let kicks = channel.kick().and_then(|kick| channel.kick().map(|call| (kick, call)));
        let (kick, own) = kicks.map_err(|errno| Fault::new("share its event", errno))?;
        let call = CallEvent::default();
        // The queue is its own caller: see `DiskQueue::take_signal`.
        call.set(Some(own)).map_err(|error| Fault::new("share its event", error))?;
        let queue = GuestQueue {
            monitor: None,
            volume: *volume,
            ring: Box::new(DiskQueue::new(Line(channel), disk.clone(), device.depth)),
            kick,
            call,
            peer: format!("{} of `{name}`", path(device.number)),
        };
        let shard = control.view().layout.shard_of(*volume);
        let started = control.ask(shard, |answer| Command::StartQueue(Box::new(queue), answer));
        let queue = started.await.map_err(|refused| Fault::new("serve it", refused.cause))?;
        Ok(Served { device, volume: *volume, queue })
    }

    /// Has the queue back from the shard.
    async fn leave(&self, control: &Control) -> Result<(), Fault> {
        let shard = control.view().layout.shard_of(self.volume);
        let stopped = control
            .ask(shard, |answer| Command::StopQueue { number: self.queue, marks: false, answer })
            .await;
        stopped.map(drop).map_err(|refused| Fault::new("end the queue", refused.cause))
    }

    /// Takes the device away; what it was asked before is done first.
    pub(super) async fn end(self, control: &Control) -> Result<(), Fault> {
        let number = self.device.number;
        command("stop the disk", move |driver| driver.stop(number)).await?;
        self.leave(control).await?;
        command("remove it", move |driver| driver.delete(number)).await
    }

    /// Whether it is mounted, or part of another device. Where that cannot be told, it is.
    pub(super) async fn is_used(&self) -> bool {
        let path = path(self.device.number);
        let look = move || {
            let flags = OFlags::RDONLY | OFlags::EXCL | OFlags::CLOEXEC;
            rustix::fs::open(path, flags, Mode::empty()).is_err()
        };
        tokio::task::spawn_blocking(look).await.unwrap_or(true)
    }
}

/// The engine's channel as the frontend knows it.
struct Line(Channel);

impl Wire for Line {
    fn start(&mut self) -> Result<(), SessionError> {
        let started = self.0.start();
        started.map_err(|_| SessionError { reason: "the kernel does not take the queue's server" })
    }

    fn next_tag(&mut self) -> Option<(u16, i32)> {
        self.0.next_tag()
    }

    fn descriptor(&self, tag: u16) -> [u8; DESCRIPTOR_BYTES] {
        self.0.descriptor(tag)
    }

    fn buffer(&mut self, tag: u16) -> &mut [u8] {
        self.0.buffer(tag)
    }

    fn answer(&mut self, tag: u16, result: i32) {
        self.0.answer(tag, result);
    }

    fn send(&mut self) -> bool {
        self.0.send()
    }

    fn has_more(&mut self) -> bool {
        self.0.has_more()
    }
}
