//! Sockets for virtual machines: one per volume, for one monitor at a time.
//!
//! How: whenever the node's view changes, sockets are made for volumes that came and removed with
//! those that went. A monitor that connects gets a thread of its own, which reads its messages and
//! tells the volume's shard which queues to serve; requests never pass it.
//! Invariant: the next monitor is listened to only when the shards have given back every ring of
//! the last one, so that a guest that comes back after a broken connection is not answered twice.
//! What the last one had in flight may go on without it.
//! Cost: a descriptor per volume; a thread per connected guest, asleep but for its messages.

mod device;
mod memory;
mod messages;

use crate::config::{Name, Peer, is_allowed};
use crate::control::{Control, View};
use crate::sockets::{AcceptFaults, NBD_SOCKET_MODE, UnixSocket};
use device::Device;
use layby_frontend::vhost::GuestDisk;
use layby_types::VolumeId;
use std::collections::BTreeMap;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use vhost::vhost_user::{BackendReqHandler, Error as MessageError};

/// All sockets for virtual machines of a node.
pub struct GuestDoors {
    directory: PathBuf,
    control: Weak<Control>,
    doors: Mutex<BTreeMap<Name, Door>>,
}

/// A volume's socket.
struct Door {
    volume: VolumeId,
    path: PathBuf,
    socket: Arc<UnixSocket>,
    guest: Arc<Guest>,
    listening: JoinHandle<()>,
}

impl Door {
    /// Lets nobody else in.
    fn shut(&self) {
        self.listening.abort();
        self.socket.remove();
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        self.shut();
        self.guest.disconnect();
    }
}

/// The monitor that is connected, if there is one.
#[derive(Default)]
struct Guest(Mutex<Option<UnixStream>>);

impl Guest {
    fn lock(&self) -> MutexGuard<'_, Option<UnixStream>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn disconnect(&self) {
        if let Some(stream) = &*self.lock() {
            // It may be gone already, which is as good.
            drop(stream.shutdown(Shutdown::Both));
        }
    }
}

/// A volume's socket as operators see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DoorState {
    /// Where it is.
    pub path: PathBuf,
    /// A monitor is connected.
    pub is_connected: bool,
}

impl GuestDoors {
    /// Sockets in `directory` for the volumes of `control`; none before [`GuestDoors::follow`].
    #[must_use]
    pub fn new(directory: &Path, control: &Arc<Control>) -> GuestDoors {
        GuestDoors {
            directory: directory.to_owned(),
            control: Arc::downgrade(control),
            doors: Mutex::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Name, Door>> {
        self.doors.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes and removes sockets so that they are those of `view`, and disconnects guests that may
    /// not use their volume any more. What cannot be made, or would take the last open files, is in
    /// the log: the volume is served over NBD all the same.
    pub fn follow(&self, view: &View) {
        let mut doors = self.lock();
        let wanted: BTreeMap<&Name, VolumeId> =
            view.volumes().map(|(name, record)| (name, VolumeId(record.id))).collect();
        doors.retain(|name, door| wanted.get(name) == Some(&door.volume));
        for (name, _) in view.volumes().filter(|(_, record)| !is_allowed(&record.allow, Peer::Unix))
        {
            doors.get(name).into_iter().for_each(|door| door.guest.disconnect());
        }
        let missing = wanted.into_iter().filter(|(name, _)| !doors.contains_key(*name));
        let missing: Vec<_> = missing.collect();
        let room = crate::descriptors::room().min(missing.len());
        if let Some((first, _)) = missing.get(room) {
            tracing::warn!(
                volumes = missing.len() - room, first = %first,
                "virtual machines cannot use these volumes: the process may have too few open files"
            );
        }
        for (name, volume) in missing.into_iter().take(room) {
            let path = self.directory.join(format!("{name}.sock"));
            match UnixSocket::bind(&path, NBD_SOCKET_MODE) {
                Ok(socket) => {
                    let door = self.open(name, volume, path, socket);
                    doors.insert(name.clone(), door);
                }
                Err(refused) => tracing::warn!(
                    volume = %name, cause = refused.cause,
                    "{}; virtual machines cannot use the volume", refused.error
                ),
            }
        }
    }

    fn open(&self, name: &Name, volume: VolumeId, path: PathBuf, socket: UnixSocket) -> Door {
        let guest = Arc::new(Guest::default());
        let listener = Listener {
            control: self.control.clone(),
            name: name.clone(),
            volume,
            guest: Arc::clone(&guest),
        };
        let socket = Arc::new(socket);
        let heard = Arc::clone(&socket);
        let listening = tokio::spawn(async move { listener.run(&heard).await });
        Door { volume, path, socket, guest, listening }
    }

    /// A volume's socket, where it has one.
    #[must_use]
    pub fn state(&self, name: &Name) -> Option<DoorState> {
        let doors = self.lock();
        let door = doors.get(name)?;
        let is_connected = door.guest.lock().is_some();
        Some(DoorState { path: door.path.clone(), is_connected })
    }

    /// Whether a guest of a volume is connected.
    pub(crate) fn has_guest(&self, volume: VolumeId) -> bool {
        let doors = self.lock();
        doors.values().any(|door| door.volume == volume && door.guest.lock().is_some())
    }

    /// Lets nobody else in; guests that are there stay.
    pub fn shut(&self) {
        self.lock().values().for_each(Door::shut);
    }

    /// Closes all.
    pub fn close(&self) {
        self.lock().clear();
    }
}

/// Waits at one volume's socket.
struct Listener {
    control: Weak<Control>,
    name: Name,
    volume: VolumeId,
    guest: Arc<Guest>,
}

impl Listener {
    async fn run(&self, socket: &UnixSocket) {
        let mut last: Option<oneshot::Receiver<()>> = None;
        let mut faults = AcceptFaults::default();
        loop {
            let stream = match socket.listener.accept().await {
                Ok((stream, _)) => stream,
                Err(cause) => {
                    faults.rest("cannot accept a guest", &cause).await;
                    continue;
                }
            };
            if let Some(mut ended) = last.take()
                && ended.try_recv() == Err(oneshot::error::TryRecvError::Empty)
            {
                tracing::info!(volume = %self.name, "a guest waits until the last one has left");
                // An error means that its thread is gone, too.
                drop(ended.await);
            }
            let started = stream.into_std().and_then(|stream| self.admit(stream));
            match started {
                Ok(ended) => last = ended,
                Err(cause) => tracing::warn!(volume = %self.name, %cause, "cannot serve a guest"),
            }
        }
    }

    /// Serves a monitor on a thread of its own.
    fn admit(&self, stream: UnixStream) -> std::io::Result<Option<oneshot::Receiver<()>>> {
        let Some(control) = self.control.upgrade() else { return Ok(None) };
        let Some(disk) = self.disk(&control) else {
            tracing::info!(volume = %self.name, "refused a guest: `allow` does not name `unix`");
            return Ok(None);
        };
        stream.set_nonblocking(false)?;
        let socket = stream.try_clone()?;
        *self.guest.lock() = Some(stream.try_clone()?);
        // A change of `allow` came before this look, or finds the guest.
        if self.disk(&control).is_none() {
            self.guest.disconnect();
        }
        let (tell, ended) = oneshot::channel();
        let (guest, name) = (Arc::clone(&self.guest), self.name.clone());
        let device = Device::new(control, self.volume, disk, socket);
        let body = move || {
            converse(stream, device, &name);
            *guest.lock() = None;
            // The listener may be gone; then nobody waits.
            let _ = tell.send(());
        };
        let thread = std::thread::Builder::new().name(format!("layby-vm-{}", self.volume.0));
        let spawned = thread.spawn(body);
        if spawned.is_err() {
            *self.guest.lock() = None;
        }
        spawned.map(|_| Some(ended))
    }

    /// The volume as it is now; none where local clients may not use it.
    fn disk(&self, control: &Control) -> Option<GuestDisk> {
        let view = control.view();
        let (name, record) = view.volumes().find(|(name, _)| **name == self.name)?;
        is_allowed(&record.allow, Peer::Unix).then(|| GuestDisk {
            name: name.to_string(),
            length: record.length,
            block_size: view.layout.block_size,
            read_only: record.read_only,
        })
    }
}

/// Reads a monitor's messages until it leaves; then its memory is not touched any more.
fn converse(stream: UnixStream, device: Device, name: &Name) {
    tracing::info!(volume = %name, "guest connected");
    let device = Arc::new(Mutex::new(device));
    let mut messages = BackendReqHandler::from_stream(stream, Arc::clone(&device));
    let reason = loop {
        match messages.handle_request() {
            Ok(()) | Err(MessageError::SocketRetry(_)) => {}
            Err(MessageError::Disconnected) => break None,
            Err(error) => break Some(error),
        }
    };
    // The queues stop before the connection closes: a monitor that sees its end may come back.
    device.lock().unwrap_or_else(PoisonError::into_inner).stop_all();
    match reason {
        None => tracing::info!(volume = %name, "guest left"),
        Some(reason) => tracing::warn!(volume = %name, %reason, "disconnected a guest"),
    }
}
