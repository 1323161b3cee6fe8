//! `layby serve`: a node in this process.

use super::runtime;
use crate::arguments::ServeArguments;
use crate::output::{Failure, Output};
use layby_daemon::activation::{Passed, notify};
use layby_daemon::config::{Config, Format, Overrides, check_trusted};
use layby_daemon::error::{Report, ReportKind};
use layby_daemon::logging;
use layby_daemon::node::Node;
use layby_daemon::shards::EngineStarter;
use layby_daemon::tls_files::TlsFiles;
use std::future::Future;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Threads of the control plane; shards have their own.
const CONTROL_THREADS: usize = 2;
/// Raised where a file would become longer than the process may make one (`ulimit -f`). With a
/// handler the operation fails, which is reported; without one the process ends without a word.
const SIGXFSZ: i32 = 25;

pub(crate) fn serve(arguments: &ServeArguments, output: &mut Output) -> Result<(), Failure> {
    let overrides = Overrides {
        dir: arguments.dir.clone(),
        config: arguments.config.clone(),
        listen: arguments.listen.clone(),
        socket: arguments.socket.clone(),
        http: arguments.http.clone(),
        metrics: arguments.metrics.clone(),
        volume_roots: arguments.volume_root.clone(),
        accepted_devices: arguments.accept_device.clone(),
        accepted_files: arguments.accept_file.clone(),
        shards: arguments.shards,
        io: arguments.io.map(Into::into),
        format: arguments.format,
        strict: arguments.strict,
        reads_only: false,
        simulate_power_loss: arguments.simulate_power_loss,
        home_delay: arguments
            .home_delay
            .map_or(Duration::ZERO, |time| Duration::from_nanos(time.0.0)),
    };
    let config = Config::load(&overrides)?;
    let format = config.format;
    check_trusted(&config)?;
    layby_daemon::node::keep_files_private();
    logging::start(arguments.log_format.into());
    let passed = Passed::take()?;
    let runtime = runtime(CONTROL_THREADS)?;
    let served = runtime.block_on(async {
        let mut stop = Box::pin(interrupted()?);
        let impatient = interrupted_again()?;
        let tls_files = Arc::new(OnceLock::new());
        tokio::spawn(heed_hangups(Arc::clone(&tls_files))?);
        tokio::spawn(note_unused()?);
        // The handler stays for as long as the process runs.
        drop(handler(SignalKind::from_raw(SIGXFSZ))?);
        let node = tokio::select! {
            node = Node::start_on(config, Arc::new(EngineStarter), passed) => node?,
            signal = &mut stop => {
                logging::note_stop(signal);
                notify("STOPPING=1");
                // As below, a reader that went away does not matter.
                let _ = output.line(&stopped_early(signal, format));
                return Ok(());
            }
        };
        // It is set once.
        let _ = tls_files.set(node.tls_files());
        for line in node.announcement() {
            // Whoever started the node may not care to read, or the file that it goes to may have
            // no room: that is no reason to end it.
            let _ = output.line(&line);
        }
        logging::note_ready(node.control().view().volumes().count());
        notify("READY=1");
        let stop = async {
            logging::note_stop(stop.await);
            notify("STOPPING=1");
        };
        tokio::select! {
            ended = node.run(stop) => Ok(ended?),
            () = impatient => Err(stopped_hard().into()),
        }
    });
    // A recovery that nobody waits for any more must not keep the process.
    runtime.shutdown_background();
    served
}

/// A start may end at any point as a kill would end it: a stop that comes then is a clean end.
fn stopped_early(signal: &str, format: Format) -> String {
    let state = match format {
        Format::Empty => "the next start begins its recovery anew",
        Format::All => {
            "levels that it had begun to make and had not finished are made by the next start, \
             with --format or without"
        }
    };
    format!("stopped by {signal} before it was ready: nothing is lost; {state}")
}

fn stopped_hard() -> Report {
    Report::new(ReportKind::Failure, "the node was stopped without finishing")
        .cause("a second signal came while it made everything durable")
        .state("what was acknowledged as durable is safe; the next start recovers it")
        .hint("wait for the node to end after one signal")
}

/// Signals that come this soon after the first one are the same request: `timeout` signals the
/// process and then its group.
const SIGNALS_TOGETHER: Duration = Duration::from_secs(1);

/// Ends with the second request to end from now on.
fn interrupted_again() -> Result<impl Future<Output = ()>, Report> {
    let (mut terminate, mut interrupt) = handlers()?;
    Ok(async move {
        let mut first = None;
        loop {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
            let now = tokio::time::Instant::now();
            if now.duration_since(*first.get_or_insert(now)) >= SIGNALS_TOGETHER {
                return;
            }
        }
    })
}

/// SIGHUP, which a closed terminal sends, too, has the TLS files read again and ends nothing.
fn heed_hangups(files: Arc<OnceLock<Arc<TlsFiles>>>) -> Result<impl Future<Output = ()>, Report> {
    let mut hangup = handler(SignalKind::hangup())?;
    Ok(async move {
        while hangup.recv().await.is_some() {
            // A node that starts has just read them.
            let Some(files) = files.get().map(Arc::clone) else { continue };
            match tokio::task::spawn_blocking(move || files.reload()).await {
                Ok(Ok(false)) => logging::note_hangup(),
                Ok(read) => logging::note_reload(&read.map(drop)),
                // The program ends.
                Err(_) => return,
            }
        }
    })
}

/// SIGUSR1 and SIGUSR2, which mean something to other programs, change nothing and end nothing.
fn note_unused() -> Result<impl Future<Output = ()>, Report> {
    let mut first = handler(SignalKind::user_defined1())?;
    let mut second = handler(SignalKind::user_defined2())?;
    Ok(async move {
        loop {
            logging::note_unused(tokio::select! {
                _ = first.recv() => "SIGUSR1",
                _ = second.recv() => "SIGUSR2",
            });
        }
    })
}

/// Ends with the first SIGTERM or SIGINT from now on, and says which one it was.
pub(crate) fn interrupted() -> Result<impl Future<Output = &'static str>, Report> {
    let (mut terminate, mut interrupt) = handlers()?;
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => "SIGTERM",
            _ = interrupt.recv() => "SIGINT",
        }
    })
}

fn handlers() -> Result<(Signal, Signal), Report> {
    Ok((handler(SignalKind::terminate())?, handler(SignalKind::interrupt())?))
}

fn handler(kind: SignalKind) -> Result<Signal, Report> {
    signal(kind).map_err(|cause| {
        Report::from_io("cannot watch for signals", &cause)
            .state("nothing was started")
            .hint("raise the limit on open files")
    })
}
