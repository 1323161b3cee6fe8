//! demo
use crate::output::{Failure, Output};
use clap::Args;
/// See what priorities do: services of a few vehicles, with one class for all and with classes
#[derive(Debug, Args)]
pub(crate) struct DemoArguments {
    /// Seconds of each of the two phases
    #[arg(long, value_name = "N", default_value_t = 20)]
    pub(crate) seconds: u64,
}
pub(crate) fn run(arguments: &DemoArguments, output: &mut Output) -> Result<(), Failure> {
    output.line(&arguments.seconds.to_string())
}
