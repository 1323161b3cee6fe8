//! One phase of the demo: a fresh node, its volumes, its clients, and what came of it.
//!
//! How: the node runs in this process behind its real sockets. Levels are small and in the paper's
//! proportion 1:4:16, so that a few vehicles fill them within a second.
//! Invariant: the temporary directory goes with the phase, also when it fails.

use super::load::{Client, Measured};
use super::progress::Progress;
use layby_daemon::api::StatusAnswer;
use layby_daemon::client::{ControlClient, NbdClientError};
use layby_daemon::config::{Config, Overrides};
use layby_daemon::error::{Report, ReportKind};
use layby_daemon::node::Node;
use layby_daemon::shards::EngineStarter;
use layby_trace::{Pattern, Service, ServiceSpec};
use std::fmt::Write;
use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;
use tempfile::TempDir;
use tokio::sync::oneshot;
use tokio::time::timeout;

/// Bytes of the levels: proportion 1:4:16, as in the paper's figures.
const DRAM_BYTES: u64 = 1 << 20;
const NVM_BYTES: u64 = 4 << 20;
const SSD_BYTES: u64 = 16 << 20;
/// A file here is memory: it stands in for NVM, whose stores need no disk to become durable.
const MEMORY_DIR: &str = "/dev/shm";
/// Bytes that the critical services touch together: three quarters of the NVM level, so that the
/// fast levels have room for all of it, if nobody takes it.
const FOOTPRINT_CRITICAL: u64 = NVM_BYTES / 4 * 3;
/// Bytes that a normal service with reuse touches: four of them fill the SSD level.
const FOOTPRINT_ZIPF: u64 = 4 << 20;
/// Bytes that a streaming service goes through before it begins anew.
const FOOTPRINT_STREAM: u64 = 32 << 20;
/// Main storage in the paper is a mid-range SSD, ten times slower than the cache's. Here all lies
/// on one disk, or in the page cache, so homes answer later than they could.
pub(super) const HOME_DELAY: Duration = Duration::from_millis(2);
/// A request of a service with reuse is started this often.
const PACE_ZIPF: Duration = Duration::from_millis(2);
/// A request of a streaming service is started this often: 256 KiB each, 12.5 MiB/s.
const PACE_STREAM: Duration = Duration::from_millis(20);

/// The first part of a phase, one in so many, fills the levels and is not measured.
const WARM_UP_PART: u32 = 5;
/// Clients, and then the node, have this long to finish what they began.
const FINISH_MAX: Duration = Duration::from_secs(15);

/// Which class the services' volumes are in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Classes {
    /// All are critical, which is what a cache without priorities does.
    OneForAll,
    /// Each in the class that Table III names.
    ByService,
}

/// What a phase is to do.
pub(super) struct Plan {
    pub(super) duration: Duration,
    pub(super) vehicles: u64,
    pub(super) services: &'static [Service],
    pub(super) seed: u64,
    /// Time between two steps of the progress bar.
    pub(super) tick: Duration,
}

/// One volume of the demo.
struct VolumePlan {
    name: String,
    spec: &'static ServiceSpec,
    class: &'static str,
    seed: u64,
    length: u64,
}

impl VolumePlan {
    fn pace(&self) -> Duration {
        match self.spec.pattern {
            Pattern::Zipf { .. } => PACE_ZIPF,
            Pattern::Sequential => PACE_STREAM,
        }
    }
}

impl Plan {
    fn volumes(&self, classes: Classes) -> Vec<VolumePlan> {
        let mut volumes = Vec::new();
        for vehicle in 1..=self.vehicles {
            for (index, service) in self.services.iter().enumerate() {
                let spec = service.spec();
                let class = if classes == Classes::OneForAll { "critical" } else { spec.class };
                let name = format!("vehicle{vehicle}-{}-{index}", spec.name);
                let seed = self.seed.wrapping_mul(1_000_003) + vehicle * 100 + index as u64;
                let length = self.footprint(spec);
                volumes.push(VolumePlan { name, spec, class, seed, length });
            }
        }
        volumes
    }

    fn footprint(&self, spec: &ServiceSpec) -> u64 {
        match spec.pattern {
            Pattern::Sequential => FOOTPRINT_STREAM,
            Pattern::Zipf { .. } if spec.class == "critical" => {
                (FOOTPRINT_CRITICAL / self.vehicles).next_multiple_of(spec.length)
            }
            Pattern::Zipf { .. } => FOOTPRINT_ZIPF,
        }
    }
}

/// What came of a phase.
pub(super) struct Outcome {
    /// Per service, in the order of Table III: what its clients measured.
    pub(super) services: Vec<(&'static ServiceSpec, Measured)>,
    /// The node's own counters at the end.
    pub(super) status: StatusAnswer,
    /// The NVM level was a file in memory.
    pub(super) is_nvm_memory: bool,
}

/// Runs one phase.
pub(super) async fn run(
    plan: &Plan,
    classes: Classes,
    progress: &Progress,
) -> Result<Outcome, Report> {
    let dir = temporary(&std::env::temp_dir())?;
    // Without such a directory the NVM level is a plain file, and as slow as its disk.
    let memory = temporary(Path::new(MEMORY_DIR)).ok();
    let nvm = memory.as_ref().map(|memory| memory.path().join("nvm"));
    let volumes = plan.volumes(classes);
    for volume in &volumes {
        fill(&dir.path().join(&volume.name), volume.length)?;
    }
    let (dir_path, home_delay) = (Some(dir.path().into()), HOME_DELAY);
    let overrides = Overrides { dir: dir_path, home_delay, ..Overrides::default() };
    let config = Config::parse(None, &configuration(&volumes, nvm.as_deref()), &overrides)?;
    let (nbd_socket, control_socket) = (config.nbd.socket.clone(), config.control.socket.clone());
    let node = Node::start(config, Arc::new(EngineStarter)).await?;
    let (stop, stopped) = oneshot::channel::<()>();
    // Whether the sender speaks or goes away, the node is to end.
    let node = tokio::spawn(node.run(async { drop(stopped.await) }));
    let services = drive(plan, volumes, &nbd_socket, progress).await;
    let client = ControlClient::new(&control_socket);
    let asking = timeout(FINISH_MAX, client.status()).await;
    let status = asking.unwrap_or_else(|_| Err(stuck("the node")));
    drop(stop);
    let ended = timeout(FINISH_MAX, node).await.map_err(|_| stuck("the node"))?;
    let ended = ended.expect("a node reports, it does not panic");
    let is_nvm_memory = memory.is_some();
    let outcome = Outcome { services: services?, status: status?, is_nvm_memory };
    ended.map(|()| outcome)
}

fn temporary(place: &Path) -> Result<TempDir, Report> {
    tempfile::Builder::new().prefix("layby-demo-").tempdir_in(place).map_err(|cause| {
        Report::from_io("cannot make a temporary directory", &cause)
            .state("nothing was started")
            .hint("set TMPDIR to a directory with 1 GiB of room")
    })
}

/// Writes a backing file, so that reads of it are reads and not holes.
fn fill(path: &Path, length: u64) -> Result<(), Report> {
    let chunk = vec![0xa5; 1 << 20];
    let write = || -> std::io::Result<()> {
        let mut file = File::create(path)?;
        for _ in 0..length.div_ceil(chunk.len() as u64) {
            file.write_all(&chunk)?;
        }
        file.set_len(length)?;
        file.sync_all()
    };
    write().map_err(|cause| {
        Report::from_io(format!("cannot write `{}`", path.display()), &cause)
            .state("the demo has not started; its temporary files are removed")
            .hint("set TMPDIR to a directory with 1 GiB of room")
    })
}

fn configuration(volumes: &[VolumePlan], nvm: Option<&Path>) -> String {
    let nvm_path = nvm.map(|path| format!("path = '{}'\n", path.display()));
    let mut text = format!(
        "[node]\nshards = 1\n[control]\nhttp = \"off\"\n\
         [[level]]\nname = \"dram\"\nkind = \"memory\"\nsize = {DRAM_BYTES}\n\
         [[level]]\nname = \"nvm\"\nkind = \"nvm\"\nsize = {NVM_BYTES}\n{}\
         [[level]]\nname = \"ssd\"\nkind = \"ssd\"\nsize = {SSD_BYTES}\n",
        nvm_path.unwrap_or_default()
    );
    for volume in volumes {
        let VolumePlan { name, class, .. } = volume;
        let written = write!(text, "[volume.{name}]\nclass = \"{class}\"\npath = \"{name}\"\n");
        written.expect("writing into a String does not fail");
    }
    text
}

type ClientThread = JoinHandle<Result<Measured, NbdClientError>>;

/// Runs all clients for the phase's time.
async fn drive(
    plan: &Plan,
    volumes: Vec<VolumePlan>,
    socket: &Path,
    progress: &Progress,
) -> Result<Vec<(&'static ServiceSpec, Measured)>, Report> {
    let is_over = Arc::new(AtomicBool::new(false));
    let mut threads = Vec::new();
    for volume in volumes {
        let pace = volume.pace();
        let VolumePlan { name, spec, seed, .. } = volume;
        let is_over = Arc::clone(&is_over);
        let (socket, warm_up) = (socket.into(), plan.duration / WARM_UP_PART);
        let client = Client { spec, socket, volume: name, seed, pace, warm_up, is_over };
        threads.push((spec, spawn(client)?));
    }
    let ticks = plan.duration.as_millis() / plan.tick.as_millis().max(1);
    let mut clock = tokio::time::interval(plan.tick);
    clock.tick().await;
    for _ in 0..ticks {
        if threads.iter().any(|(_, thread)| thread.is_finished()) {
            break;
        }
        clock.tick().await;
        progress.tick();
    }
    is_over.store(true, Ordering::Relaxed);
    let collecting = tokio::task::spawn_blocking(|| collect(threads));
    let collected = timeout(FINISH_MAX, collecting).await.map_err(|_| stuck("a client"))?;
    collected.expect("collecting does not panic")
}

fn stuck(who: &str) -> Report {
    Report::new(ReportKind::Failure, format!("{who} did not finish"))
        .cause(format!("nothing came of it within {} s", FINISH_MAX.as_secs()))
        .state("the demo has ended; its temporary files are removed")
        .hint("run `layby demo` again; if it happens again, please report it")
}

fn spawn(client: Client) -> Result<ClientThread, Report> {
    let failed = |cause: &std::io::Error| {
        Report::from_io("cannot start a client's thread", cause)
            .state("the demo has ended; its temporary files are removed")
            .hint("raise the limit on processes, or use fewer vehicles")
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|cause| failed(&cause))?;
    let name = client.volume.clone();
    let thread = std::thread::Builder::new().name(name);
    thread.spawn(move || runtime.block_on(client.run())).map_err(|cause| failed(&cause))
}

fn collect(
    threads: Vec<(&'static ServiceSpec, ClientThread)>,
) -> Result<Vec<(&'static ServiceSpec, Measured)>, Report> {
    let mut services: Vec<(&'static ServiceSpec, Measured)> = Vec::new();
    for (spec, thread) in threads {
        let measured = thread.join().expect("a client reports, it does not panic");
        let measured = measured.map_err(|cause| {
            Report::new(ReportKind::Failure, format!("a client of service {} failed", spec.name))
                .cause(cause.to_string())
                .state("the demo has ended; its temporary files are removed")
                .hint("run `layby demo` again with LAYBY_LOG=debug and look at the log")
        })?;
        match services.iter_mut().find(|(known, _)| known.service == spec.service) {
            Some((_, sum)) => sum.add(&measured),
            None => services.push((spec, measured)),
        }
    }
    services.sort_by_key(|(spec, _)| spec.service);
    Ok(services)
}

#[cfg(test)]
mod tests {
    use super::*;
    use layby_trace::Workload;

    fn plan() -> Plan {
        Plan {
            duration: Duration::from_secs(1),
            vehicles: 2,
            services: Workload::D.services(),
            seed: 1,
            tick: Duration::from_millis(100),
        }
    }

    /// Goal: the phases differ in classes alone, and both configurations are good. Method: compare
    /// the volumes, parse the texts.
    #[test]
    fn phases_differ_in_classes_alone() {
        let (one, by) = (plan().volumes(Classes::OneForAll), plan().volumes(Classes::ByService));
        assert_eq!(one.len(), 8);
        for (one, by) in one.iter().zip(&by) {
            assert_eq!((&one.name, one.seed, one.length), (&by.name, by.seed, by.length));
            assert_eq!((one.class, by.class), ("critical", by.spec.class));
        }
        for volumes in [one, by] {
            let text = configuration(&volumes, Some(Path::new("/m/nvm")));
            let config = Config::parse(None, &text, &Overrides::default()).expect("a good text");
            assert_eq!(config.volumes.len(), 8);
            let sizes: Vec<u64> = config.levels.iter().map(|level| level.size >> 20).collect();
            assert_eq!(sizes, [1, 4, 16]);
        }
    }
}
