//! Block devices of this host's kernel: `/dev/ublkbN` for volumes that ask for one.
//!
//! How: a device is made with the volume's number and the node's mark, which the kernel keeps with
//! it; its queue goes to the volume's shard as a ring and an event descriptor, and requests pass
//! the shard alone. When the node ends, a device that somebody uses stays and holds its requests;
//! the node's next life finds it by its mark and takes it over.
//! That of a volume that cannot be served then stays as it is, and waits for the volume.
//! Invariant: a device is removed only when nothing uses it, or when its volume does not want it
//! any more at a start, is deleted, or goes on without what it had lost; the queue of a live device
//! is served until its disk is gone.
//! Cost: a queue's buffers, by what requests touched; nothing where no volume asks.
//! Not for: requests; `layby_frontend::ublk` judges them on the shard.

mod device;

use crate::catalog::{NodeId, VolumeRecord};
use crate::config::Name;
use crate::control::{Control, View};
use crate::error::{Report, ReportKind};
use device::{Fault, Served};
use layby_engine::ublk::{Device, Driver, FEATURES_NEEDED};
use layby_types::VolumeId;
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{PoisonError, RwLock};
use tokio::sync::Mutex;

/// Where links to the devices lie, by volume, within the node's directory.
pub const DEVICES_DIR_NAME: &str = "ublk";
/// Where the kernel lists its devices.
const LIST_PATH: &str = "/sys/class/ublk-char";
/// What a device's name there begins with.
const LISTED_PREFIX: &str = "ublkc";
/// What to do where there are no devices.
const HINT: &str = "load the driver with `modprobe ublk_drv` (Linux 6.5 or later) and run the node \
                    as root, or leave `ublk` out: NBD and vhost-user need neither";

/// Says why volumes cannot be block devices here.
///
/// # Errors
/// A report headed by `error` where the kernel has no driver for it, or this user may not use it.
pub async fn check(error: &str) -> Result<(), Report> {
    let refused = |kind, cause: String| {
        let report = Report::new(kind, error).cause(cause);
        Err(report.state("nothing was started or changed").hint(HINT))
    };
    match device::on_driver(Driver::features).await {
        Ok(features) if features & FEATURES_NEEDED == FEATURES_NEEDED => Ok(()),
        Ok(_) => refused(ReportKind::Invalid, "this kernel's ublk driver is too old".into()),
        Err(errno @ (Errno::NOENT | Errno::NXIO | Errno::NODEV)) => refused(
            ReportKind::Invalid,
            format!(
                "a volume is to be a block device, and this kernel offers none by \
                     `/dev/ublk-control`: {errno}"
            ),
        ),
        Err(errno @ (Errno::PERM | Errno::ACCESS)) => refused(
            ReportKind::Denied,
            format!(
                "a volume is to be a block device, and this user may not use \
                     `/dev/ublk-control`: {errno}"
            ),
        ),
        Err(errno) => refused(
            ReportKind::Invalid,
            format!("this kernel's ublk driver does not say what it can do: {errno}"),
        ),
    }
}

/// The block devices of a node.
pub struct HostDevices {
    directory: PathBuf,
    node: NodeId,
    /// Held while devices come or go.
    served: Mutex<BTreeMap<u32, Served>>,
    /// Their numbers, by volume, for whoever asks.
    numbers: RwLock<BTreeMap<u32, u32>>,
}

impl HostDevices {
    /// No device yet, for the node in `directory`.
    #[must_use]
    pub fn new(directory: &Path, node: NodeId) -> HostDevices {
        let directory = directory.join(DEVICES_DIR_NAME);
        HostDevices { directory, node, served: Mutex::default(), numbers: RwLock::default() }
    }

    /// A volume's device, where it has one.
    #[must_use]
    pub fn path(&self, volume: VolumeId) -> Option<String> {
        let numbers = self.numbers.read().unwrap_or_else(PoisonError::into_inner);
        numbers.get(&volume.0).map(|number| device::path(*number))
    }

    /// Takes over devices of the node's last life, makes those that are wanted and are not there,
    /// and removes those that are not wanted. Answers with a line for each that is wanted and
    /// cannot be had: its volume is served without it.
    pub(crate) async fn open(&self, control: &Control) -> Vec<String> {
        let view = control.view();
        self.clear(&view).await;
        let mut lines = Vec::new();
        for (name, record) in view.volumes().filter(|(_, record)| record.ublk) {
            if let Err(Fault { step, cause }) = self.attach(control, name, record).await {
                lines.push(format!("volume `{name}` has no block device: cannot {step}: {cause}"));
            }
        }
        lines
    }

    /// Gives a volume its device, if it asks for one and has none.
    pub(crate) async fn attach_asked(
        &self,
        control: &Control,
        name: &Name,
        error: &str,
    ) -> Result<(), Report> {
        let view = control.view();
        let record = view.volumes().find(|(known, _)| *known == name);
        let Some((name, record)) = record.filter(|(_, record)| record.ublk) else { return Ok(()) };
        let attached = self.attach(control, name, record).await;
        attached.map_err(|Fault { step, cause }| {
            Report::new(ReportKind::Failure, error)
                .cause(format!("it has no block device: cannot {step}: {cause}"))
                .state("the volume is served without it; the node's next start tries again")
                .hint("see the kernel's log; `layby volume set --ublk false` takes the wish back")
        })
    }

    async fn attach(
        &self,
        control: &Control,
        name: &Name,
        record: &VolumeRecord,
    ) -> Result<(), Fault> {
        let mut served = self.served.lock().await;
        if served.contains_key(&record.id) {
            return Ok(());
        }
        let mark = mark_of(self.node, record);
        let left =
            device::on_driver(move |driver| Ok(listed(driver, |device| device.mark == mark)));
        let left = left.await.map_err(|errno| Fault::new("open the driver", errno))?;
        let device = Served::begin(control, name, record, mark, left.first().copied()).await?;
        let number = device.number();
        served.insert(record.id, device);
        self.show(record.id, Some(number));
        self.link(name, number);
        tracing::info!(volume = %name, device = device::path(number), "block device");
        Ok(())
    }

    /// Takes a volume's device away, if it has one.
    pub(crate) async fn detach(
        &self,
        control: &Control,
        name: &Name,
        volume: VolumeId,
        error: &str,
    ) -> Result<(), Report> {
        let mut served = self.served.lock().await;
        let Some(device) = served.get(&volume.0) else { return Ok(()) };
        if device.is_used().await {
            return Err(Report::new(ReportKind::InUse, error)
                .cause(format!("its block device {} is in use", device::path(device.number())))
                .state("nothing was changed")
                .hint("unmount it, and close what holds it, such as a device mapper's target"));
        }
        let device = served.remove(&volume.0).expect("it was there a moment ago");
        self.show(volume.0, None);
        self.unlink(name);
        if let Err(Fault { step, cause }) = device.end(control).await {
            tracing::warn!(volume = %name, "cannot {step} of its block device: {cause}");
        }
        Ok(())
    }

    /// See [`Control::close_devices`].
    pub(crate) async fn close(&self, control: &Control) {
        let view = control.view();
        for (name, record) in view.volumes() {
            let volume = VolumeId(record.id);
            let Some(path) = self.path(volume) else { continue };
            // A refusal says that it is in use.
            if self.detach(control, name, volume, "").await.is_err() {
                tracing::info!(volume = %name, "{path} is in use and waits for the node");
            }
        }
    }

    /// Removes devices of the node's last life that no volume wants.
    async fn clear(&self, view: &View) {
        let (node, wanted) = (self.node, wanted(self.node, view));
        let is_its = move |mark: u64| mark >> 32 == self::mark(node, 0) >> 32;
        remove_where(move |device| is_its(device.mark) && !wanted.contains(&device.mark)).await;
    }

    /// Removes the device that an earlier incarnation of the node left to a volume, which is not
    /// served as the volume that it was: what is mounted there gets errors.
    pub(crate) async fn remove_left(&self, record: &VolumeRecord) {
        // Changes that know of no device do not wait for the kernel.
        if record.ublk {
            let mark = mark_of(self.node, record);
            remove_where(move |device| device.mark == mark).await;
        }
    }

    fn show(&self, volume: u32, number: Option<u32>) {
        let mut numbers = self.numbers.write().unwrap_or_else(PoisonError::into_inner);
        match number {
            Some(number) => numbers.insert(volume, number),
            None => numbers.remove(&volume),
        };
    }

    /// A name that stays while numbers change. It is a help and no part of serving.
    fn link(&self, name: &Name, number: u32) {
        if crate::held::check(&self.directory).is_err() {
            return;
        }
        self.unlink(name);
        let link = self.directory.join(name.as_str());
        let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        let made = std::fs::create_dir_all(&self.directory)
            .and_then(|()| std::fs::set_permissions(&self.directory, open))
            .and_then(|()| std::os::unix::fs::symlink(device::path(number), &link));
        if let Err(cause) = made {
            tracing::warn!(volume = %name, %cause, "cannot make the link `{}`", link.display());
        }
    }

    fn unlink(&self, name: &Name) {
        if crate::held::check(&self.directory).is_err() {
            return;
        }
        // It may never have been there.
        let _ = std::fs::remove_file(self.directory.join(name.as_str()));
    }
}

/// What the kernel keeps with a device of ours: whose it is, and of which volume.
fn mark(node: NodeId, volume: u32) -> u64 {
    let crc = crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, &node.0);
    crc << 32 | u64::from(volume)
}

/// The mark of a volume's device, whatever numbers the volume has had since it was made.
fn mark_of(node: NodeId, record: &VolumeRecord) -> u64 {
    mark(node, record.device_number())
}

/// The marks of devices that a start leaves or takes over. That of a volume that cannot be served
/// now is one of them: what is mounted there pauses until the volume is back.
pub(crate) fn wanted(node: NodeId, view: &View) -> Vec<u64> {
    let volumes = view.known_volumes().filter(|(_, record)| record.ublk);
    volumes.map(|(_, record)| mark_of(node, record)).collect()
}

/// Stops and removes the devices of this host that fit. Without a driver there are none.
async fn remove_where(fits: impl Fn(&Device) -> bool + Send + 'static) {
    let _ = device::on_driver(move |driver| {
        for device in listed(driver, fits) {
            let removed = driver.stop(device.number).and_then(|()| driver.delete(device.number));
            let device = device::path(device.number);
            match removed {
                Ok(()) => tracing::info!(device, "removed a device that no volume wants"),
                Err(cause) => tracing::warn!(device, %cause, "cannot remove a device"),
            }
        }
        Ok(())
    })
    .await;
}

/// The devices of this host that fit.
fn listed(driver: &Driver, fits: impl Fn(&Device) -> bool) -> Vec<Device> {
    let Ok(entries) = std::fs::read_dir(LIST_PATH) else { return Vec::new() };
    let numbers = entries.flatten().filter_map(|entry| {
        entry.file_name().to_str()?.strip_prefix(LISTED_PREFIX)?.parse::<u32>().ok()
    });
    numbers.filter_map(|number| driver.device(number).ok()).filter(fits).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: devices of two nodes, or of two volumes, never bear one mark. Method: both, and the
    /// parts that are compared alone.
    #[test]
    fn marks_tell_nodes_and_volumes_apart() {
        let (one, other) = (NodeId([1; 16]), NodeId([2; 16]));
        assert_ne!(mark(one, 3), mark(other, 3));
        assert_ne!(mark(one, 3), mark(one, 4));
        assert_eq!(mark(one, 3) >> 32, mark(one, u32::MAX) >> 32);
        assert_eq!(mark(one, 3) as u32, 3);
    }

    /// Goal: a host without the driver, or a user without the right, is told what to do. Method:
    /// where this host is such a one, the report.
    #[tokio::test]
    async fn a_host_without_the_driver_is_told() {
        let Err(report) = check("cannot start the node").await else { return };
        assert!(report.cause.contains("ublk"), "{report}");
        assert!(report.hint.contains("modprobe ublk_drv"), "{report}");
        assert!(report.state.contains("nothing"), "{report}");
    }
}
