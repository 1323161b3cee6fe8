//! The `layby` program: words and flags in, tables or JSON out, an exit code that scripts trust.
//!
//! How: `arguments` describes the words, `commands` carries them out through the daemon's node or
//! its control client, `output` is the only place that prints.
//! Invariant: a failure is printed as a report on standard error and decides the exit code; a
//! closed pipe ends the program quietly, unless the command found something wrong.
//! Not for: deciding anything about data; the node does.
#![forbid(unsafe_code)]

mod arguments;
mod commands;
mod demo;
mod devices;
mod input;
mod lab;
mod mrc;
mod new_file;
mod output;
mod probe;
mod record;
mod replay;
mod trace;

use crate::arguments::{Command, Layby};
use crate::output::{Failure, Output};
use clap::Parser;
use clap::error::ErrorKind;
use layby_daemon::error::{Report, ReportKind};
use std::process::ExitCode;

fn main() -> ExitCode {
    let mut output = Output::standard();
    let done = match Layby::try_parse() {
        Ok(layby) => run(layby.command, &mut output),
        Err(words) => explain(&words, std::env::args_os().len() <= 1, &mut output),
    };
    match done {
        Ok(()) | Err(Failure::PipeClosed) => ExitCode::SUCCESS,
        Err(Failure::Report(report)) => {
            output.report(&report);
            ExitCode::from(report.kind.exit_code())
        }
    }
}

/// Help and version are answers, and so is help where there is no word at all; wrong words are a
/// report.
fn explain(words: &clap::Error, is_bare: bool, output: &mut Output) -> Result<(), Failure> {
    if !words.use_stderr() {
        return output.help(&words.render());
    }
    if words.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        if is_bare {
            return output.help(&words.render());
        }
        return Err(wrong_words("a command is missing").into());
    }
    let text = words.to_string();
    let text = text.strip_prefix("error: ").unwrap_or(&text);
    let end = ["\n\nUsage:", "\n\nFor more"].iter().filter_map(|mark| text.find(mark)).min();
    Err(wrong_words(text[..end.unwrap_or(text.len())].trim_end()).into())
}

fn wrong_words(cause: &str) -> Report {
    Report::new(ReportKind::Invalid, "cannot understand the command line")
        .cause(cause)
        .state("nothing was started or changed")
        .hint("add --help to the command to see its words and flags")
}

fn run(command: Command, output: &mut Output) -> Result<(), Failure> {
    match command {
        Command::Serve(arguments) => commands::serve(&arguments, output),
        Command::Demo(arguments) => demo::run(&arguments, output),
        Command::Volume(arguments) => commands::volume(arguments, output),
        Command::Class(arguments) => commands::class(arguments, output),
        Command::Client(arguments) => commands::client(arguments, output),
        Command::Level(arguments) => commands::level(arguments, output),
        Command::Writeback(arguments) => commands::writeback(&arguments, output),
        Command::Uplink(arguments) => commands::uplink(&arguments, output),
        Command::Record(arguments) => record::run(&arguments, output),
        Command::Trace(arguments) => trace::run(&arguments, output),
        Command::Replay(arguments) => replay::run(&arguments, output),
        Command::Mrc(arguments) => mrc::run(&arguments, output),
        Command::Lab(arguments) => lab::run(&arguments, output),
        Command::Probe(arguments) => probe::run(&arguments, output),
        Command::Status(arguments) => commands::status(&arguments, output),
        Command::Check(arguments) => commands::check(&arguments, output),
        Command::Restore(arguments) => commands::restore(&arguments, output),
        Command::Salvage(arguments) => commands::salvage(&arguments, output),
        Command::Manual(arguments) => commands::manual(&arguments, output),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use layby_daemon::catalog::{Catalog, LevelRecord, NodeId};
    use layby_daemon::config::{Kind, Size};

    fn refusal(line: &str) -> Report {
        let words = std::iter::once("layby").chain(line.split_whitespace());
        let wrong = Layby::try_parse_from(words).expect_err(line);
        match explain(&wrong, false, &mut Output::standard()) {
            Err(Failure::Report(report)) => report,
            other => panic!("{line}: {other:?}"),
        }
    }

    /// Goal: wrong words are explained in the project's form. Method: a line per mistake.
    #[test]
    fn wrong_words_are_reports() {
        for (line, word) in [
            ("volume create v --size plenty", "plenty"),
            ("volume create a/b --size 1MiB", "is not a name"),
            ("serve --io fast", "fast"),
            ("serve --colour red", "--colour"),
            ("serve --shards 0", "1..=64"),
            ("serve --shards 1000", "1..=64"),
            ("replay t --levels 1%,2%,4% --critical 0-1", "`layby trace info`"),
            ("volume resize v", "--size"),
            ("frobnicate", "frobnicate"),
            ("volume", "missing"),
            ("trace sample a b --rate 2", "no share"),
            ("trace info a --format tape", "oracle-general"),
            ("replay t --policy best", "belady"),
            ("record start t.parquet --duration soon", "soon"),
            ("replay t --cache-size plenty", "1000blocks"),
            ("replay t --cache-size 0%", "0%"),
            ("replay t --cache-size 0blocks", "0blocks"),
            ("mrc t --sampled 0", "share"),
            ("mrc t --sampled 1% --blocks-max 100", "--blocks-max"),
            ("mrc t --blocks-max 10", "64"),
            ("mrc t --json --csv", "--csv"),
            ("lab run esi --json --csv", "--csv"),
        ] {
            let report = refusal(line);
            assert_eq!(report.kind.exit_code(), 2, "{report}");
            assert!(report.cause.contains(word), "{line}: {report}");
            assert!(!report.cause.contains("Usage"), "{line}: {report}");
        }
    }

    /// What becomes of a line of words where the answer's reader has gone.
    fn unread(line: &str) -> Result<(), Failure> {
        let words = std::iter::once("layby").chain(line.split_whitespace());
        let words = Layby::try_parse_from(words).unwrap_or_else(|wrong| panic!("{wrong}"));
        run(words.command, &mut output::tests::output(std::io::ErrorKind::BrokenPipe))
    }

    /// Goal: a closed pipe hides no damage and costs no file that was to be written, for people and
    /// for scripts. Method: the check of a node whose level is gone, a probe with a description.
    #[test]
    fn a_closed_pipe_changes_no_verdict() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let name = "ssd".parse().expect("a good name");
        let (kind, size, path) = (Kind::Ssd, Size(64 << 20), Some("gone".into()));
        let level = LevelRecord { name, kind, size, path, segment: None, encryption: None };
        let node = NodeId::draw().expect("chance");
        let catalog = Catalog { is_started: true, ..Catalog::new(node, 4096, 1, vec![level]) };
        catalog.save(dir.path()).expect("a writable directory");
        let (dir, file) = (dir.path().display(), dir.path().join("file"));
        std::fs::write(&file, vec![1; 4 << 20]).expect("a writable directory");
        for json in ["", " --json"] {
            match unread(&format!("check --dir {dir}{json}")) {
                Err(Failure::Report(report)) => assert_eq!(report.kind.exit_code(), 3, "{report}"),
                other => panic!("the node is not sound: {other:?}"),
            }
            let out = format!("{dir}/{}.toml", json.trim());
            let probe = format!("probe {} --seconds 0.001 --out {out}{json}", file.display());
            let probed = unread(&probe);
            assert!(matches!(probed, Err(Failure::PipeClosed)), "{probed:?}");
            assert!(std::fs::exists(out).expect("a readable directory"), "nothing was written");
        }
    }
}
