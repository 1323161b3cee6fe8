//! How a volume's discards reach its home, as flags of `volume create` and `volume set`.

use clap::{Args, ValueEnum};
use layby_daemon::config::{Bandwidth, DiscardChoice, DiscardWait};

/// What is left out stays as it is; of a new volume, as the flags say.
#[derive(Clone, Copy, Debug, Default, Args)]
pub(crate) struct DiscardArguments {
    /// Whether and when discards reach its home [default of a new volume: immediate]
    #[arg(long, value_name = "MODE")]
    pub(crate) discard: Option<DiscardArgument>,
    /// How long delayed discards wait: a time, or `adaptive` [default of a new volume: 5s]
    #[arg(long, value_name = "TIME")]
    pub(crate) discard_delay: Option<DiscardWait>,
    /// Bytes that its home is asked to discard in a second at most, such as 500MiB/s; 0 is none
    #[arg(long, value_name = "RATE")]
    pub(crate) discard_bandwidth: Option<Bandwidth>,
}

/// Whether and when discards reach a volume's home.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum DiscardArgument {
    /// Never: trims are ignored
    Off,
    /// As they come
    Immediate,
    /// After a delay, merged with their neighbours
    Delayed,
}

impl From<DiscardArgument> for DiscardChoice {
    fn from(discard: DiscardArgument) -> Self {
        match discard {
            DiscardArgument::Off => DiscardChoice::Off,
            DiscardArgument::Immediate => DiscardChoice::Immediate,
            DiscardArgument::Delayed => DiscardChoice::Delayed,
        }
    }
}
