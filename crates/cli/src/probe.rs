//! `layby probe`: measures a real device, and describes it for replays.
//!
//! How: the daemon's room measures; here are words, a table, and the description as TOML.
//! Invariant: a description is written whole or not at all. Figures are of real time and differ.
//! Not for: what figures mean to a cache; see `layby replay --levels --devices`.

use crate::devices::{Description, Rate};
use crate::new_file::NewFile;
use crate::output::{Failure, Output, bytes, note, table};
use clap::Args;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use layby_daemon::config::{Name, Size, Time, is_dax};
use layby_daemon::error::{Report, ReportKind};
use layby_daemon::probe::{
    DeviceHints, PROBE_BYTES_MAX, ProbePlan, Probed, Sample, device_hints, probe,
};
use layby_daemon::types::Nanos;
use serde::Serialize;
use std::path::{Path, PathBuf};

/// Seconds of a measure.
const SECONDS_MIN: f64 = 0.001;
const SECONDS_MAX: f64 = 600.0;

/// Measure a real device, and describe it for replays
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  layby probe /mnt/nvme --out ssd.toml
  layby probe /mnt/disk --size 8GiB --seconds 10 --name main --out main.toml
  layby probe /dev/nvme1n1 --write-latency 20us --name ssd
  layby replay web.parquet --levels 1%,4%,16% --devices ssd.toml --devices main.toml

In a directory a file of --size is made, written whole and measured; it has no name while it lasts,
so nothing is left behind. A note says whether a new node there has an NVM level by default.
A file or block device is only read, so its writes are not measured: --write-latency says what they
take, or `write` is left for you to fill in.
Measured are reads and writes of 4 KiB at random places and of 1 MiB in a row, one at a time, then
reads of 4 KiB at 2, 4, 8 ... 256 at a time until that twice brings less than 15 % more.
Take --size larger than the device's own memory, and keep the device otherwise idle.

Exit codes: 0 done; 1 the device failed; 2 a word is wrong; 4 --out is there already; 6 the path is
not there; 7 not permitted; 8 no room.")]
pub(crate) struct ProbeArguments {
    /// A directory to write in, or a file or block device to read
    path: PathBuf,
    /// Bytes to spread accesses over [default: 1GiB in a directory, else all there are]
    #[arg(short, long, value_name = "SIZE", value_parser = size)]
    size: Option<Size>,
    /// How long each measure takes; there are up to 13
    #[arg(long, value_name = "N", default_value = "2", value_parser = seconds)]
    seconds: f64,
    /// Same seed, same places
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// What to call the device: dram, nvm, ssd and main take the place of built-in ones
    #[arg(long, value_name = "NAME", default_value = "ssd")]
    name: Name,
    /// What a write of 4 KiB takes, where nothing may be written
    #[arg(long, value_name = "TIME")]
    write_latency: Option<Time>,
    /// What the device costs
    #[arg(long, value_name = "N")]
    dollars_per_tb: Option<u32>,
    /// Write the description here, as TOML
    #[arg(short, long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Replace a file that is there
    #[arg(long, requires = "out")]
    overwrite: bool,
    /// Answer in JSON
    #[arg(long)]
    json: bool,
}

fn size(text: &str) -> Result<Size, String> {
    let size: Size = text.parse()?;
    let most = Size(PROBE_BYTES_MAX);
    if size > most { Err(format!("`{text}` is more than {most}")) } else { Ok(size) }
}

fn seconds(text: &str) -> Result<f64, String> {
    let seconds = text.parse().ok().filter(|s| (SECONDS_MIN..=SECONDS_MAX).contains(s));
    seconds.ok_or_else(|| format!("`{text}` is no number from {SECONDS_MIN} to {SECONDS_MAX}"))
}

/// The answer for scripts.
#[derive(Debug, Serialize)]
struct ProbeAnswer {
    path: String,
    /// Bytes that accesses were spread over.
    bytes: u64,
    /// Whether accesses went past the page cache.
    direct: bool,
    io: String,
    device: Description,
    measures: Vec<Measure>,
    notes: Vec<String>,
}

#[derive(Debug, Serialize)]
struct Measure {
    what: &'static str,
    /// Accesses in flight at once.
    depth: u16,
    bytes_each: u64,
    accesses: u64,
    seconds: f64,
    latency_us_median: f64,
    accesses_per_second: f64,
    bytes_per_second: f64,
}

impl Measure {
    fn new(what: &'static str, sample: &Sample) -> Measure {
        Measure {
            what,
            depth: sample.depth,
            bytes_each: sample.bytes,
            accesses: sample.accesses,
            seconds: sample.elapsed.as_secs_f64(),
            latency_us_median: sample.latency.0 as f64 / 1e3,
            accesses_per_second: sample.accesses_per_second(),
            bytes_per_second: sample.bytes_per_second(),
        }
    }
}

pub(crate) fn run(arguments: &ProbeArguments, output: &mut Output) -> Result<(), Failure> {
    if arguments.write_latency.is_some() && arguments.path.is_dir() {
        return Err(measured_anyway(arguments).into());
    }
    // Whether the description can be written is found out before the time is spent, not after.
    let begin = |path| NewFile::begin(path, "the description", arguments.overwrite);
    let file = arguments.out.as_deref().map(begin);
    let file = file.transpose()?;
    let probed = measure(arguments, output)?;
    let answer = ProbeAnswer::new(arguments, &probed);
    let text = answer.toml(arguments);
    let shown = match arguments.json {
        true => output.json(&answer),
        false => answer.show(output),
    };
    // Also where the answer's reader has gone.
    let path = file.map(|file| file.finish(&text)).transpose()?;
    shown?;
    match path {
        _ if arguments.json => Ok(()),
        Some(path) => output.line(&format!("\ndescription: `{}`", path.display())),
        None => output.line(&format!("\n{}", text.trim_end())),
    }
}

fn measured_anyway(arguments: &ProbeArguments) -> Report {
    let error = format!("cannot measure `{}`", arguments.path.display());
    Report::new(ReportKind::Invalid, error)
        .cause("--write-latency is for what may not be written; in a directory writes are measured")
        .state("nothing was read or written")
        .hint("leave --write-latency out, or name the file or device itself")
}

fn measure(arguments: &ProbeArguments, output: &Output) -> Result<Probed, Report> {
    let plan = ProbePlan {
        path: arguments.path.clone(),
        bytes: arguments.size.map(|size| size.0),
        measure: Nanos((arguments.seconds * 1e9) as u64),
        seed: arguments.seed,
    };
    let target = match output.is_terminal() {
        true => ProgressDrawTarget::stderr(),
        false => ProgressDrawTarget::hidden(),
    };
    let bar = ProgressBar::with_draw_target(None, target);
    if let Ok(style) = ProgressStyle::with_template("{wide_bar} {percent:>3} %  {msg}") {
        bar.set_style(style);
    }
    let is_drawn = output.is_terminal();
    let probed = probe(&plan, &mut |progress| {
        if !is_drawn {
            let (number, total) = (progress.done + 1, progress.total);
            note(&format!("probe: {}, step {number} of at most {total}", progress.step));
        }
        bar.set_length(u64::from(progress.total));
        bar.set_position(u64::from(progress.done));
        bar.set_message(progress.step);
    });
    bar.finish_and_clear();
    probed
}

impl ProbeAnswer {
    fn new(arguments: &ProbeArguments, probed: &Probed) -> ProbeAnswer {
        ProbeAnswer {
            path: arguments.path.display().to_string(),
            bytes: probed.bytes,
            direct: probed.is_direct,
            io: probed.io.clone(),
            device: description(arguments, probed),
            measures: measures(probed),
            notes: notes(arguments, probed),
        }
    }

    fn show(&self, output: &mut Output) -> Result<(), Failure> {
        let headings =
            ["measured", "at once", "each", "latency, median (us)", "accesses/s", "MiB/s"];
        let mut rows = table(headings, 1);
        for measure in &self.measures {
            rows.add_row([
                measure.what.to_owned(),
                measure.depth.to_string(),
                bytes(measure.bytes_each),
                format!("{:.1}", measure.latency_us_median),
                format!("{:.0}", measure.accesses_per_second),
                format!("{:.1}", measure.bytes_per_second / f64::from(1 << 20)),
            ]);
        }
        output.line(&rows.to_string())?;
        let how = if self.direct { "past the page cache" } else { "through the page cache" };
        output.line(&format!("over {}, {how}, by {}", bytes(self.bytes), self.io))?;
        for note in &self.notes {
            output.line(&format!("note: {note}"))?;
        }
        Ok(())
    }

    /// The description, and where it comes from.
    fn toml(&self, arguments: &ProbeArguments) -> String {
        let path = self.path.escape_debug();
        let (size, seconds, seed) = (Size(self.bytes), arguments.seconds, arguments.seed);
        let command = format!("layby probe {path} --size {size} --seconds {seconds} --seed {seed}");
        let notes: String = self.notes.iter().map(|note| format!("# Note: {note}.\n")).collect();
        format!("# Measured by `{command}`.\n{notes}{}", self.device)
    }
}

fn description(arguments: &ProbeArguments, probed: &Probed) -> Description {
    let figures = probed.samples.figures();
    // Whole MiB: more digits would claim more than a measure of seconds knows.
    let bandwidth = (figures.bytes_per_second > 0)
        .then(|| Rate(Size(figures.bytes_per_second.div_ceil(1 << 20) << 20)));
    Description {
        name: arguments.name.clone(),
        read: Time(figures.read),
        write: figures.write.map(Time).or(arguments.write_latency),
        channels: figures.channels,
        bandwidth,
        dollars_per_tb: arguments.dollars_per_tb,
    }
}

fn measures(probed: &Probed) -> Vec<Measure> {
    let samples = &probed.samples;
    let one = samples.reads.first().map(|sample| Measure::new("random reads", sample));
    let deeper = samples.reads.iter().skip(1).map(|sample| Measure::new("random reads", sample));
    let write = samples.write.iter().map(|sample| Measure::new("random writes", sample));
    let large = std::iter::once(Measure::new("reads in a row", &samples.large_read));
    let large_write =
        samples.large_write.iter().map(|sample| Measure::new("writes in a row", sample));
    one.into_iter().chain(write).chain(large).chain(large_write).chain(deeper).collect()
}

/// Shorter units are those of any disk.
const UNIT_BYTES_TOLD_MIN: u64 = 64 << 10;

/// What the disk says of how it would like to be written.
fn hint_note(path: &Path) -> Option<String> {
    let DeviceHints { unit_bytes, write_streams, takes_lives } = device_hints(path)?;
    let unit = unit_bytes.filter(|unit| *unit >= UNIT_BYTES_TOLD_MIN);
    let unit = unit.map(|unit| format!("would like to be written by {}", Size(unit)));
    let streams = (write_streams > 0).then(|| format!("offers {write_streams} write streams"));
    let known: Vec<String> = unit.into_iter().chain(streams).collect();
    let known = (!known.is_empty()).then(|| format!("the disk {}", known.join(" and ")));
    let lives = takes_lives.then(|| {
        "the kernel takes write-life hints; whether the disk heeds them it does not say".to_owned()
    });
    let both: Vec<String> = known.into_iter().chain(lives).collect();
    (!both.is_empty()).then(|| both.join("; "))
}

/// What the default levels of a node in this directory would be, by the rule that `layby serve`
/// follows.
fn nvm_note(path: &Path) -> Option<String> {
    let levels = match path.is_dir().then(|| is_dax(path))? {
        true => "is on a DAX file system, so a new node there has an NVM level by default",
        false => "is not on a DAX file system, so a new node there has no NVM level by default",
    };
    Some(format!("the directory {levels}"))
}

fn notes(arguments: &ProbeArguments, probed: &Probed) -> Vec<String> {
    let mut notes = Vec::new();
    if !probed.is_direct {
        notes.push("the page cache was not passed by, so the figures are those of memory".into());
    }
    if probed.has_holes {
        notes.push("the file has holes, and no device is asked for what lies in them".into());
    }
    notes.extend(hint_note(&arguments.path));
    notes.extend(nvm_note(&arguments.path));
    match (probed.samples.write, arguments.write_latency) {
        (None, None) => notes.push("nothing was written, so `write` is for you to fill in".into()),
        (None, Some(time)) => notes.push(format!("nothing was written; {time} was said to be so")),
        (Some(_), _) => {}
    }
    if !probed.io.starts_with("io_uring") {
        notes.push("without io_uring few accesses are in flight at once: see `channels`".into());
    }
    notes
}
