//! The `layby` program: words and flags in, tables or JSON out, an exit code that scripts trust.
//!
//! How: `arguments` describes the words, `commands` carries them out through the daemon's node or
//! its control client, `output` is the only place that prints.
//! Invariant: a failure is printed as a report on standard error and decides the exit code; a
//! closed pipe ends the program quietly.
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
}
