//! What devices under flash levels say of themselves: SMART and NVMe health, where there is any.
//!
//! How: the level's file or device leads to its disk by the kernel's tree; `smartctl` or `nvme`,
//! the first that is installed and answers, is run at start and every hour, and what it says in
//! JSON is kept until the next time.
//! Invariant: nothing depends on an answer. A tool has its seconds and bytes, then it is killed.
//! Cost: a process per flash level and hour. Not for: a level on several disks, or on one that a
//! virtual machine was given; there is nobody to ask.

use crate::config::{Kind, Name};
use crate::control::Control;
use serde_json::Value;
use std::collections::BTreeMap;
use std::io::Read;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

/// How often devices are asked.
const PERIOD: Duration = Duration::from_secs(3600);
/// How long a tool may take.
const PATIENCE: Duration = Duration::from_secs(10);
/// Bytes of a tool's answer at most.
const ANSWER_BYTES_MAX: u64 = 1 << 20;
/// Bytes of a unit in which NVMe counts what was written.
const NVME_UNIT_BYTES: u64 = 512_000;
/// Kelvin at 0 °C, as NVMe counts.
const KELVIN: i64 = 273;

/// What a device says of itself; what it does not say is `None`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceHealth {
    /// The disk, such as `/dev/nvme0n1`.
    pub device: String,
    /// Who was asked: `smartctl` or `nvme`.
    pub tool: &'static str,
    /// How much of its endurance is used, by its maker's reckoning (%); may exceed 100.
    pub percentage_used: Option<u32>,
    /// Spare blocks left, of those that it had (%).
    pub spare_percent: Option<u32>,
    /// Bytes that hosts have written to it in its life.
    pub bytes_written: Option<u64>,
    /// Its temperature in °C.
    pub celsius: Option<i64>,
    /// It warns of a failure to come, or has failed its own test.
    pub is_failing: bool,
}

impl DeviceHealth {
    /// Bytes that hosts can still write to the device, as far as it says: what one percent of its
    /// endurance took so far, times the percents left.
    #[must_use]
    pub fn bytes_left(&self) -> Option<u64> {
        let used = u64::from(self.percentage_used.filter(|used| *used > 0)?);
        let left = 100u64.saturating_sub(used);
        let written = u128::from(self.bytes_written?);
        u64::try_from(written * u128::from(left) / u128::from(used)).ok()
    }
}

/// Of each flash level, by its name.
pub type Healths = BTreeMap<Name, DeviceHealth>;

/// The programs that are asked.
#[derive(Clone, Debug)]
pub struct Tools {
    /// Of smartmontools.
    pub smartctl: PathBuf,
    /// Of nvme-cli.
    pub nvme: PathBuf,
}

impl Default for Tools {
    fn default() -> Self {
        Tools { smartctl: "smartctl".into(), nvme: "nvme".into() }
    }
}

/// Asks for as long as the node runs; never ends.
pub async fn run(control: Arc<Control>) {
    let tools = Tools::default();
    let mut ticks = tokio::time::interval(PERIOD);
    // The first tick comes at once.
    loop {
        ticks.tick().await;
        let mut healths = Healths::new();
        for level in &control.view().layout.levels {
            let path = level.path.as_deref().filter(|_| level.kind == Kind::Ssd);
            let Some(disk) = path.and_then(disk_under) else { continue };
            if let Some(health) = ask(&tools, &disk).await {
                warn(&level.name, &health, control.healths().get(&level.name));
                healths.insert(level.name.clone(), health);
            }
        }
        control.publish_healths(healths);
    }
}

/// Says it once that a device is about to fail.
fn warn(level: &Name, now: &DeviceHealth, before: Option<&DeviceHealth>) {
    if now.is_failing && !before.is_some_and(|before| before.is_failing) {
        let device = &now.device;
        tracing::warn!(%level, device, "the device warns of its failure: replace it soon");
    }
}

/// What a device says, by the first tool that has an answer.
pub async fn ask(tools: &Tools, device: &Path) -> Option<DeviceHealth> {
    let smart = ["--json", "--health", "--attributes"];
    let nvme = ["smart-log", "--output-format=json"];
    let said = answer_of(&tools.smartctl, &smart, device).await;
    let found = match said.as_ref().and_then(by_smartctl) {
        Some(found) => Some(DeviceHealth { tool: "smartctl", ..found }),
        None => {
            let said = answer_of(&tools.nvme, &nvme, device).await;
            let found = said.as_ref().and_then(by_nvme);
            found.map(|found| DeviceHealth { tool: "nvme", ..found })
        }
    };
    found.map(|found| DeviceHealth { device: device.display().to_string(), ..found })
}

/// The disk that holds a file, or that a block device is or is a part of.
fn disk_under(path: &Path) -> Option<PathBuf> {
    let found = std::fs::metadata(path).ok()?;
    let is_device = found.file_type().is_block_device();
    let number = if is_device { found.rdev() } else { found.dev() };
    let (major, minor) = (rustix::fs::major(number), rustix::fs::minor(number));
    let node = PathBuf::from(format!("/sys/dev/block/{major}:{minor}")).canonicalize().ok()?;
    let disk = if node.join("partition").exists() { node.parent()? } else { &node };
    let device = Path::new("/dev").join(disk.file_name()?);
    device.exists().then_some(device)
}

/// A tool under way, which does not outlive this.
struct Running(Option<Child>);

impl Drop for Running {
    fn drop(&mut self) {
        let Some(mut child) = self.0.take() else { return };
        // It fails only where the tool has ended already.
        let _ = child.kill();
        // One that hangs in its device dies late; nobody waits for that but a thread of its own.
        let reaper = std::thread::Builder::new().name("layby-health".to_owned());
        drop(reaper.spawn(move || child.wait()));
    }
}

/// What a tool says in JSON. Its exit code is of no use: smartctl's has a bit for each finding.
async fn answer_of(tool: &Path, arguments: &[&str], device: &Path) -> Option<Value> {
    let mut command = Command::new(tool);
    command.args(arguments).arg(device);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().ok()?;
    let output = child.stdout.take();
    let _running = Running(Some(child));
    let output = output?;
    let read = tokio::task::spawn_blocking(move || {
        let mut text = String::new();
        output.take(ANSWER_BYTES_MAX).read_to_string(&mut text).ok().map(|_| text)
    });
    // Where it is too late, the tool's end ends the read as well.
    let text = tokio::time::timeout(PATIENCE, read).await.ok()?.ok()??;
    serde_json::from_str(&text).ok()
}

fn number(value: &Value, key: &str) -> Option<u64> {
    value[key].as_u64().or_else(|| value[key].as_str()?.parse().ok())
}

fn percent(value: &Value, key: &str) -> Option<u32> {
    number(value, key).and_then(|percent| u32::try_from(percent).ok())
}

/// smartctl's JSON, of NVMe or of ATA; `None` where it says nothing of wear or health.
fn by_smartctl(said: &Value) -> Option<DeviceHealth> {
    let log = &said["nvme_smart_health_information_log"];
    let unit = number(said, "logical_block_size").unwrap_or(512);
    let attributes = said["ata_smart_attributes"]["table"].as_array();
    let attribute = |names: &[&str]| {
        let is_one = |row: &&Value| names.iter().any(|name| row["name"] == *name);
        attributes?.iter().find(is_one)
    };
    let worn = attribute(&["Wear_Leveling_Count", "SSD_Life_Left", "Media_Wearout_Indicator"]);
    let left = worn.and_then(|row| percent(row, "value"));
    let written = attribute(&["Total_LBAs_Written"]).and_then(|row| number(&row["raw"], "value"));
    let has_passed = said["smart_status"]["passed"].as_bool();
    let health = DeviceHealth {
        percentage_used: percent(log, "percentage_used")
            .or_else(|| percent(&said["endurance_used"], "current_percent"))
            .or(left.map(|left| 100u32.saturating_sub(left))),
        spare_percent: percent(log, "available_spare")
            .or_else(|| percent(&said["spare_available"], "current_percent")),
        bytes_written: number(log, "data_units_written")
            .map(|units| units.saturating_mul(NVME_UNIT_BYTES))
            .or(written.map(|blocks| blocks.saturating_mul(unit))),
        celsius: said["temperature"]["current"].as_i64(),
        is_failing: number(log, "critical_warning").unwrap_or(0) > 0 || has_passed == Some(false),
        ..DeviceHealth::default()
    };
    let is_known = has_passed.is_some() || health != DeviceHealth::default();
    is_known.then_some(health)
}

/// nvme-cli's JSON, whose words have changed over the years.
fn by_nvme(said: &Value) -> Option<DeviceHealth> {
    let either = |keys: [&str; 2]| keys.iter().find_map(|key| number(said, key));
    let used = either(["percent_used", "percentage_used"])?;
    let kelvin = said["temperature"].as_i64();
    Some(DeviceHealth {
        percentage_used: u32::try_from(used).ok(),
        spare_percent: either(["avail_spare", "available_spare"])
            .and_then(|percent| u32::try_from(percent).ok()),
        bytes_written: number(said, "data_units_written")
            .map(|units| units.saturating_mul(NVME_UNIT_BYTES)),
        celsius: kelvin.map(|kelvin| kelvin - KELVIN),
        is_failing: number(said, "critical_warning").unwrap_or(0) > 0,
        ..DeviceHealth::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;
    use tempfile::TempDir;

    const NVME_BY_SMARTCTL: &str = r#"{"smartctl": {"exit_status": 4},
        "smart_status": {"passed": true}, "temperature": {"current": 37},
        "nvme_smart_health_information_log": {"critical_warning": 0, "temperature": 37,
        "available_spare": 98, "percentage_used": 4, "data_units_written": 24000000}}"#;
    const ATA_BY_SMARTCTL: &str = r#"{"logical_block_size": 512, "smart_status": {"passed": false},
        "ata_smart_attributes": {"table": [
        {"id": 177, "name": "Wear_Leveling_Count", "value": 89, "raw": {"value": 120}},
        {"id": 241, "name": "Total_LBAs_Written", "value": 99, "raw": {"value": 4000000000}}]}}"#;
    const BY_NVME: &str = r#"{"critical_warning": 1, "temperature": 310, "avail_spare": 100,
        "percent_used": 0, "data_units_written": "1000"}"#;

    fn health(tool: &'static str, device: &str) -> DeviceHealth {
        DeviceHealth { tool, device: device.to_owned(), ..DeviceHealth::default() }
    }

    /// Goal: what the tools say is read, and noise is nothing. Method: recorded answers, others.
    #[test]
    fn answers_are_read() {
        let parse = |text: &str| serde_json::from_str::<Value>(text).expect("JSON");
        let nvme = by_smartctl(&parse(NVME_BY_SMARTCTL)).expect("an answer");
        let written = Some(24_000_000 * 512_000);
        let (percentage_used, spare_percent, celsius) = (Some(4), Some(98), Some(37));
        let common = DeviceHealth { percentage_used, spare_percent, celsius, ..health("", "") };
        assert_eq!(nvme, DeviceHealth { bytes_written: written, ..common });
        assert_eq!(nvme.bytes_left(), Some(24_000_000 * 512_000 * 24));
        let ata = by_smartctl(&parse(ATA_BY_SMARTCTL)).expect("an answer");
        assert_eq!((ata.percentage_used, ata.is_failing), (Some(11), true));
        assert_eq!(ata.bytes_written, Some(4_000_000_000 * 512));
        let other = by_nvme(&parse(BY_NVME)).expect("an answer");
        assert_eq!((other.celsius, other.is_failing), (Some(37), true));
        assert_eq!((other.bytes_written, other.bytes_left()), (Some(512_000_000), None));
        for noise in ["{}", "[]", "7", r#"{"smartctl": {"messages": []}}"#] {
            assert_eq!((by_smartctl(&parse(noise)), by_nvme(&parse(noise))), (None, None));
        }
    }

    /// Goal: the first tool that answers counts, whatever its exit code; one that is not there,
    /// that says nothing of use or that never ends costs no more than its time. Method: scripts.
    #[tokio::test]
    async fn tools_are_asked_in_turn() {
        let dir = TempDir::new().expect("a temporary directory");
        let script = |name: &str, body: &str| {
            let path = dir.path().join(name);
            std::fs::write(&path, format!("#!/bin/sh\n{body}\n")).expect("writable");
            let mode = std::fs::Permissions::from_mode(0o755);
            std::fs::set_permissions(&path, mode).expect("ours");
            path
        };
        let says = |text: &str, code: u8| format!("cat <<'END'\n{text}\nEND\nexit {code}");
        let device = Path::new("/dev/some0n1");
        let absent = || dir.path().join("absent");
        let smartctl = script("smartctl", &says(NVME_BY_SMARTCTL, 4));
        let nvme = script("nvme", &says(BY_NVME, 0));
        let tools = Tools { smartctl, nvme: nvme.clone() };
        let found = ask(&tools, device).await.expect("smartctl answers");
        assert_eq!((found.tool, found.device.as_str()), ("smartctl", "/dev/some0n1"));
        let dumb = script("dumb", &says("{}", 0));
        for other in [absent(), dumb] {
            let tools = Tools { smartctl: other, nvme: nvme.clone() };
            assert_eq!(ask(&tools, device).await.expect("nvme answers").tool, "nvme");
        }
        let tools = Tools { smartctl: absent(), nvme: absent() };
        assert_eq!(ask(&tools, device).await, None);
        let endless = script("endless", "exec cat < /dev/zero");
        let tools = Tools { smartctl: endless, nvme: absent() };
        assert_eq!(ask(&tools, device).await, None);
    }

    /// Goal: a file leads to its disk, and what lies on none to nothing. Method: this file system,
    /// and one of the kernel's own.
    #[test]
    fn files_lead_to_their_disk() {
        assert_eq!(disk_under(Path::new("/proc/self/status")), None);
        assert_eq!(disk_under(Path::new("/absent")), None);
    }
}
