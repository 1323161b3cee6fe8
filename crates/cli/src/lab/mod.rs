//! `layby lab`: the papers' experiments, their figures beside ours.
//!
//! How: an experiment gives a document; its claims and tables go to the terminal, or all of it as
//! JSON or CSV, and the whole, with charts, into one HTML file where one is asked for. Progress is
//! a bar on a terminal, and a line now and then elsewhere.
//! Invariant: an existing report is replaced only where that is asked for, and once the new one is
//! whole.
//! Not for: what experiments do; that is the lab's room.

mod answer;
mod progress;

use crate::devices::Devices;
use crate::input;
use crate::new_file::NewFile;
use crate::output::{Failure, Output, table};
use crate::replay::{named_twice, twice};
use crate::trace::failed;
use clap::{Args, Subcommand, ValueEnum};
use comfy_table::{CellAlignment, Table, presets};
use layby_daemon::error::{Report, ReportKind};
use layby_lab::{
    Choices, Document, Experiment, Options, Origin, RecordedLink, RecordedTrace, RecordedVehicles,
    Unfit,
};
use layby_trace::{ReadOptions, Reader, TraceError, read_link, tracks_meta};
use std::io::BufReader;
use std::path::{Path, PathBuf};

/// Repeat the experiments of the papers, their figures beside ours
#[derive(Debug, Args)]
#[command(
    subcommand_required = true,
    after_help = "\
Examples:
  layby lab list
  layby lab run padsa
  layby lab run wear --out wear.html

`layby lab run --help` says what each experiment takes; docs/lab.md what was found."
)]
pub(crate) struct LabArguments {
    #[command(subcommand)]
    command: LabCommand,
}

#[derive(Debug, Subcommand)]
enum LabCommand {
    /// List the experiments
    List {
        /// Answer in JSON
        #[arg(long)]
        json: bool,
    },
    Run(RunArguments),
}

/// Run an experiment in virtual time
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  layby lab run padsa
  layby lab run padsa --runs 5 --out padsa.html
  layby lab run padsa --tracks 01_tracksMeta.csv
  layby lab run padsa --devices ssd.toml --devices main.toml
  layby lab run wear --out wear.html
  layby lab run wear --scale 256 --runs 3
  layby lab run delay-d --out delay-d.html
  layby lab run streams --trace cloudPhysicsIO.vscsi
  layby lab run links --link uplink.csv
  layby lab run esi --out esi.html
  layby lab run wear --json
  layby lab run wear --csv

The same words give the same figures, on however many cores. --out writes everything, with charts,
as one HTML file that needs nothing else; a file that is there is kept unless --overwrite.
--tracks takes vehicles from a highD recording, whose licence you must have: in sight for 20 s in
all. With --devices the report says which are not the paper's; both are for padsa. --scale is for
wear, up to 1024, and delay-d: a device so many times smaller than the paper's, 1 for its own size.
--trace is for streams: its writes touch 16 MiB to 4 GiB. --link is for links:
`time_s,bytes_per_s[,rtt_ms]`, a line per interval, from 181 lines.

Exit codes: 0 done, whether or not claims hold; 2 a word or a device is wrong, or a recording shows
nothing; 3 the recording is wrong; 4 the report is there already; 6 a file is not there; 7 not
permitted; 8 no room for the report.")]
struct RunArguments {
    /// Which experiment
    experiment: ExperimentArgument,
    /// Seed of everything that is drawn
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Seeds, counted up from --seed; figures are medians over them [default: 5 for links, else
    /// 3]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100))]
    runs: Option<u32>,
    /// How many times smaller than the paper's the flash device is [default: 1024 for wear,
    /// 8 for delay-d]
    #[arg(long, value_name = "N")]
    scale: Option<u32>,
    /// Take vehicles from this highD `tracksMeta.csv`
    #[arg(long, value_name = "FILE")]
    tracks: Option<PathBuf>,
    /// Take the place of the paper's dram, nvm, ssd or main storage, as `layby probe` writes them
    /// (can be repeated)
    #[arg(long, value_name = "FILE")]
    devices: Vec<PathBuf>,
    /// Replay the writes of this trace, too (can be repeated)
    #[arg(long, value_name = "FILE")]
    trace: Vec<PathBuf>,
    /// Forecast this link, too: `time_s,bytes_per_s[,rtt_ms]` (can be repeated)
    #[arg(long, value_name = "FILE")]
    link: Vec<PathBuf>,
    /// Write the report here, as HTML
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Replace a report that is there
    #[arg(long, requires = "out")]
    overwrite: bool,
    /// Answer in JSON
    #[arg(long)]
    json: bool,
    /// Answer in CSV: a line per claim, measurement and cell of a table
    #[arg(long, conflicts_with = "json")]
    csv: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum ExperimentArgument {
    /// Upper levels for safety-critical services
    Padsa,
    /// Wear levelling beside none, and a capacity that shrinks
    Wear,
    /// Discards that wait beside discards at once and none
    DelayD,
    /// Streams of writes on a multi-stream device
    Streams,
    /// Forecasts of an uplink's bandwidth, and admission
    Links,
    /// An edge gateway's files on an object store
    Esi,
}

impl From<ExperimentArgument> for Experiment {
    fn from(argument: ExperimentArgument) -> Self {
        match argument {
            ExperimentArgument::Padsa => Experiment::Padsa,
            ExperimentArgument::Wear => Experiment::Wear,
            ExperimentArgument::DelayD => Experiment::DelayD,
            ExperimentArgument::Streams => Experiment::Streams,
            ExperimentArgument::Links => Experiment::Links,
            ExperimentArgument::Esi => Experiment::Esi,
        }
    }
}

pub(crate) fn run(arguments: &LabArguments, output: &mut Output) -> Result<(), Failure> {
    match &arguments.command {
        LabCommand::List { json: true } => {
            let all = Experiment::ALL.map(|experiment| {
                let (name, title) = (experiment.name(), experiment.title());
                serde_json::json!({ "experiment": name, "title": title })
            });
            output.json(&all)
        }
        LabCommand::List { json: false } => {
            let mut list = table(["experiment", "what it shows"], 2);
            for experiment in Experiment::ALL {
                list.add_row([experiment.name(), experiment.title()]);
            }
            output.line(&list.to_string())
        }
        LabCommand::Run(arguments) => run_one(arguments, output),
    }
}

fn run_one(arguments: &RunArguments, output: &mut Output) -> Result<(), Failure> {
    let experiment = Experiment::from(arguments.experiment);
    let choices = experiment.choices();
    fits(arguments, experiment, &choices)?;
    let stays = arguments.tracks.as_deref().map(recording).transpose()?;
    let devices = match arguments.devices.as_slice() {
        [] => None,
        files => Some(Devices::load(files)?.priced_rows()?),
    };
    let runs = arguments.runs.unwrap_or(choices.runs);
    let traces = named("--trace", &arguments.trace)?.into_iter().zip(&arguments.trace);
    let traces = traces.map(|(name, path)| trace(name, path)).collect::<Result<_, _>>()?;
    let links = named("--link", &arguments.link)?.into_iter().zip(&arguments.link);
    let links = links.map(|(name, path)| link(name, path)).collect::<Result<_, _>>()?;
    let (seed, scale) = (arguments.seed, arguments.scale);
    let (files, origin) = (named_files(arguments), origin());
    let options = Options { seed, runs, stays, devices, scale, traces, links, files, origin };
    // Whether the report can be written is found out before minutes are spent, not after.
    let begin = |path| NewFile::begin(path, "the report", arguments.overwrite);
    let report = arguments.out.as_deref().map(begin).transpose()?;
    let progress = progress::Progress::new(experiment.name(), output.is_terminal());
    let document = progress.show(output, |tell| experiment.run(&options, &mut |step| tell(step)));
    let shown = match (arguments.json, arguments.csv) {
        (true, _) => answer::json(&document, output),
        (_, true) => answer::csv(&document, output),
        _ => show(&document, output),
    };
    // Also where the answer's reader has gone.
    let page = report.map(|page| page.finish(&document.html())).transpose()?;
    shown?;
    let is_for_people = !arguments.json && !arguments.csv;
    if options.devices.is_some() && is_for_people {
        output.line("\nthe devices are not the paper's: its figures need not be met")?;
    }
    match page {
        Some(path) if is_for_people => {
            output.line(&format!("\nreport with charts: `{}`", path.display()))
        }
        _ => Ok(()),
    }
}

/// Flags and files that decide figures, as they were written.
fn named_files(arguments: &RunArguments) -> Vec<(String, String)> {
    let tracks = arguments.tracks.iter().map(|path| ("--tracks", path));
    let devices = arguments.devices.iter().map(|path| ("--devices", path));
    let traces = arguments.trace.iter().map(|path| ("--trace", path));
    let links = arguments.link.iter().map(|path| ("--link", path));
    let all = tracks.chain(devices).chain(traces).chain(links);
    all.map(|(flag, path)| (flag.to_owned(), path.display().to_string())).collect()
}

/// Whether the words mean something to this experiment.
fn fits(arguments: &RunArguments, experiment: Experiment, choices: &Choices) -> Result<(), Report> {
    let name = experiment.name();
    let refused = |what: String, hint: String| {
        let report =
            Report::new(ReportKind::Invalid, format!("cannot run `{name}` so")).cause(what);
        Err(report.state("nothing was run or written").hint(hint))
    };
    if !choices.vehicles && (arguments.tracks.is_some() || !arguments.devices.is_empty()) {
        let what = "--tracks and --devices are for padsa, which has vehicles and levels";
        return refused(what.into(), "leave them out".into());
    }
    if !choices.traces && !arguments.trace.is_empty() {
        return refused("--trace is for streams".into(), "leave it out".into());
    }
    if !choices.links && !arguments.link.is_empty() {
        return refused("--link is for links".into(), "leave it out".into());
    }
    match (&choices.scales, arguments.scale) {
        (None, Some(_)) => refused("--scale is for wear and delay-d".into(), "leave it out".into()),
        (Some(scales), Some(scale)) if !scales.contains(&scale) => {
            let what = format!("--scale {scale} is out of range");
            refused(what, format!("from {} to {}", scales.start(), scales.end()))
        }
        _ => Ok(()),
    }
}

/// What the report calls recordings: by the names of their files, or by their paths where these
/// would not tell them apart.
fn named(flag: &str, paths: &[PathBuf]) -> Result<Vec<String>, Report> {
    if let Some(path) = twice(paths) {
        let report = named_twice(flag, &path.display().to_string());
        return Err(report.state("nothing was run or written"));
    }
    let short = |path: &Path| path.file_name().unwrap_or(path.as_os_str()).to_os_string();
    let name = |path: &PathBuf| {
        let alike = paths.iter().filter(|other| short(other) == short(path)).count();
        let name = if alike > 1 { path.clone().into_os_string() } else { short(path) };
        name.to_string_lossy().into_owned()
    };
    let names: Vec<String> = paths.iter().map(name).collect();
    match twice(&names) {
        None => Ok(names),
        // Their bytes differ where no text has any.
        Some(name) => Err(Report::new(ReportKind::Invalid, format!("two of {flag} read `{name}`"))
            .cause("their paths differ only in bytes that are not UTF-8, which no name shows")
            .state("nothing was run or written")
            .hint("rename one of them, or name it by a link")),
    }
}

/// The requests of a trace.
fn trace(name: String, path: &Path) -> Result<RecordedTrace, Report> {
    let report = |cause: TraceError| {
        failed(format!("cannot read the trace `{}`", path.display()), &cause)
            .state("nothing was run or written")
            .hint("look at it with `layby trace info`, which can also leave out what is wrong")
    };
    let mut reader =
        layby_trace::open(&input::place(path), None, ReadOptions::default()).map_err(report)?;
    let (mut records, mut batch) = (Vec::new(), Vec::new());
    while reader.fill(&mut batch).map_err(report)? > 0 {
        records.extend_from_slice(&batch);
    }
    RecordedTrace::new(name, reader.unit(), records).map_err(|cause| {
        let hint = match cause {
            Unfit::Objects => {
                "take a trace of bytes; `layby trace info` shows what its offsets are"
            }
            _ => "look at what it writes with `layby trace info`; `layby trace cut` takes a part",
        };
        unfit(format!("cannot replay the writes of `{}`", path.display()), cause).hint(hint)
    })
}

/// What a link carried.
fn link(name: String, path: &Path) -> Result<RecordedLink, Report> {
    let opened = std::fs::File::open(input::place(path));
    let opened = opened.map_err(|cause| TraceError::Open { path: path.to_path_buf(), cause });
    let read = opened.and_then(|file| read_link(BufReader::new(file)));
    let trace = read.map_err(|cause| {
        failed(format!("cannot read the link's trace `{}`", path.display()), &cause)
            .state("nothing was run or written")
            .hint("--link takes lines of `time_s,bytes_per_s` or `time_s,bytes_per_s,rtt_ms`")
    })?;
    RecordedLink::new(name, trace).map_err(|cause| {
        let hint = match cause {
            Unfit::Uneven { .. } => {
                "write a line for every second, say, with what the link carried in it"
            }
            _ => "record it for longer, or while something is uploaded; see docs/traces.md, Links",
        };
        unfit(format!("cannot forecast the link of `{}`", path.display()), cause).hint(hint)
    })
}

/// The report of a file that can be read and shows nothing.
fn unfit(error: String, cause: Unfit) -> Report {
    let report = Report::new(ReportKind::Invalid, error).cause(cause.to_string());
    report.state("nothing was run or written")
}

/// The vehicles of a highD recording.
fn recording(path: &Path) -> Result<RecordedVehicles, Report> {
    let opened = std::fs::File::open(input::place(path));
    let opened = opened.map_err(|cause| TraceError::Open { path: path.to_path_buf(), cause });
    let read = opened.and_then(|file| tracks_meta(BufReader::new(file)));
    let stays = read.map_err(|cause| {
        failed(format!("cannot read the recording `{}`", path.display()), &cause)
            .state("nothing was run or written")
            .hint("--tracks takes a `tracksMeta.csv` of the highD data set")
    })?;
    RecordedVehicles::new(stays).map_err(|cause| {
        unfit(format!("cannot run the vehicles of `{}`", path.display()), cause)
            .hint("take a longer recording, or leave --tracks out: vehicles are drawn then")
    })
}

/// What makes a document; see the build script for the commit.
fn origin() -> Origin {
    Origin {
        version: env!("CARGO_PKG_VERSION").into(),
        commit: env!("LAYBY_COMMIT").into(),
        date: answer::today(),
    }
}

/// Characters of a line of text on a terminal.
const LINE_CHARACTERS: usize = 100;

/// A paragraph in lines, cut between words.
fn wrapped(paragraph: &str) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in paragraph.split_whitespace() {
        let line = lines.last_mut().expect("there is one");
        let takes = line.chars().count() + 1 + word.chars().count();
        match line.is_empty() {
            true => line.push_str(word),
            false if takes <= LINE_CHARACTERS => {
                line.push(' ');
                line.push_str(word);
            }
            false => lines.push(word.to_owned()),
        }
    }
    lines
}

fn show(document: &Document, output: &mut Output) -> Result<(), Failure> {
    output.line(&document.title)?;
    for (what, value) in document.colophon() {
        output.line(&format!("{what}: {value}"))?;
    }
    if !document.claims.is_empty() {
        let headings = ["claim", "expected (range that holds)", "found", "holds"];
        let mut claims = table(headings, 4);
        for claim in &document.claims {
            let holds = if claim.holds() { "yes" } else { "no" };
            claims.add_row([claim.what(), &claim.expected(), &claim.found(), holds]);
        }
        output.line(&format!("\n{claims}"))?;
    }
    if !document.measurements.is_empty() {
        let mut measured = table(["measured, not claimed", "the source says", "found"], 3);
        for one in &document.measurements {
            measured.add_row([&one.what, &one.said, &one.found_with_spread()]);
        }
        output.line(&format!("\n{measured}"))?;
    }
    for section in &document.sections {
        output.line(&format!("\n{}", section.heading))?;
        for paragraph in &section.text {
            for line in wrapped(paragraph) {
                output.line(&line)?;
            }
        }
        let Some(data) = &section.table else { continue };
        let mut cells = Table::new();
        cells.load_preset(presets::ASCII_MARKDOWN);
        cells.set_header(&data.columns);
        for column in cells.column_iter_mut().skip(1) {
            column.set_cell_alignment(CellAlignment::Right);
        }
        for row in &data.rows {
            cells.add_row(row);
        }
        output.line(&cells.to_string())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: text is cut between words and loses none. Method: a paragraph of many words, and one
    /// word that is longer than a line.
    #[test]
    fn text_is_cut_between_words() {
        let long = "x".repeat(120);
        for text in ["", "a few words", &"word ".repeat(100), &format!("one {long} more")] {
            let lines = wrapped(text);
            assert!(lines.iter().all(|line| line.len() <= LINE_CHARACTERS || *line == long));
            let words = lines.join(" ");
            assert!(words.split_whitespace().eq(text.split_whitespace()), "{lines:?}");
        }
    }

    /// Goal: no two recordings have one name in a report. Method: files of one name in two folders,
    /// of two names, and paths that differ in what no text has.
    #[test]
    fn recordings_have_names_of_their_own() {
        use std::os::unix::ffi::OsStringExt as _;
        let named = |paths: &[&[u8]]| {
            let path = |path: &&[u8]| std::ffi::OsString::from_vec(path.to_vec()).into();
            super::named("--link", &paths.iter().map(path).collect::<Vec<PathBuf>>())
        };
        let of = |paths: &[&[u8]]| named(paths).expect("they differ");
        assert_eq!(of(&[b"a/x", b"b/x"]), ["a/x", "b/x"]);
        assert_eq!(of(&[b"a/x", b"b/y\xff"]), ["x", "y\u{fffd}"]);
        let refused = named(&[b"x\xfe", b"x\xff"]).expect_err("both read alike");
        assert!(refused.cause.contains("not UTF-8"), "{refused}");
        assert!(named(&[b"x", b"x"]).expect_err("one file").error.contains("twice"));
    }

    /// Goal: a recording of nothing is refused as the help says: 2 where it shows nothing, 3 where
    /// it is no recording. Method: headings alone, a vehicle of one frame, an empty file, and one
    /// vehicle of a minute.
    #[test]
    fn recordings_of_nothing_are_refused() {
        let work = tempfile::TempDir::new().expect("a temporary folder");
        let path = work.path().join("tracks.csv");
        let refused = |text: &str| {
            std::fs::write(&path, text).expect("the folder takes files");
            recording(&path).err().map(|report| report.kind)
        };
        let head = "id,initialFrame,finalFrame\n";
        assert_eq!(refused(head), Some(ReportKind::Invalid));
        assert_eq!(refused(&format!("{head}1,0,1\n")), Some(ReportKind::Invalid));
        assert_eq!(refused(""), Some(ReportKind::Corrupt));
        assert_eq!(refused(&format!("{head}1,0,1500\n")), None);
    }
}
