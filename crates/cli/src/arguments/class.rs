//! The words of `layby class`.
//!
//! How: one structure per subcommand, as in the files beside it. Cost: none.

use super::{AdmissionArgument, LimitArguments, NodeArguments, ShareArguments};
use clap::{Args, Subcommand};
use layby_daemon::config::{Name, Time};

/// Create, change and delete classes of service of a running node
#[derive(Debug, Args)]
pub(crate) struct ClassArguments {
    #[command(subcommand)]
    pub(crate) command: ClassCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum ClassCommand {
    /// List the classes of a node
    List(NodeArguments),
    /// Show one class and the counters of its volumes
    Show {
        /// The class
        name: Name,
        #[command(flatten)]
        node: NodeArguments,
    },
    /// Change a class; takes effect at once
    #[command(after_help = "\
Examples:
  layby class set normal --borrow false
  layby class set bulk --admission second-miss
  layby class set bulk --cap ssd=30%
  layby class set bulk --bandwidth-max 200MiB --bandwidth-burst 1GiB
  layby class set critical --share dram=100% --share ssd=25%")]
    Set(ClassSetArguments),
    /// Create a class
    #[command(
        after_help = "Example:\n  layby class create video --rank 3 --levels ssd --cap ssd=20%"
    )]
    Create(ClassSetArguments),
    /// Delete a class that no volume uses
    Delete {
        /// The class
        name: Name,
        #[command(flatten)]
        node: NodeArguments,
    },
}

#[derive(Debug, Args)]
pub(crate) struct ClassSetArguments {
    /// The class
    pub(crate) name: Name,
    /// Levels that its volumes may use, separated by commas
    #[arg(long, value_name = "LEVELS", value_delimiter = ',')]
    pub(crate) levels: Option<Vec<Name>>,
    /// Order of yielding: the highest rank yields first; critical has 0
    #[arg(long, value_name = "N")]
    pub(crate) rank: Option<u8>,
    /// Whether a write is acknowledged only when durable
    #[arg(long, value_name = "BOOL")]
    pub(crate) durable_writes: Option<bool>,
    /// Whether clean copies may use idle room of other levels
    #[arg(long, value_name = "BOOL")]
    pub(crate) borrow: Option<bool>,
    /// Whether reads from home are kept below memory, too
    #[arg(long, value_name = "BOOL")]
    pub(crate) keep_reads: Option<bool>,
    /// Which blocks that no level had are kept once they are read
    #[arg(long, value_name = "NAME")]
    pub(crate) admission: Option<AdmissionArgument>,
    /// How much a wait of its volumes counts where shares are sized live, 1 to 1000
    #[arg(long, value_name = "N")]
    pub(crate) weight: Option<u16>,
    /// The time within which 999 of 1000 reads shall be served; 0s is none
    #[arg(long, value_name = "TIME")]
    pub(crate) latency_objective: Option<Time>,
    /// Whether its segments go up before all other classes'
    #[arg(long, value_name = "BOOL")]
    pub(crate) uplink_first: Option<bool>,
    /// Its share of the way up beside other classes, 1 to 1000
    #[arg(long, value_name = "N")]
    pub(crate) uplink_weight: Option<u16>,
    /// Whether its segments wait for good periods of the link
    #[arg(long, value_name = "BOOL")]
    pub(crate) uplink_patient: Option<bool>,
    /// How old its volumes' writes get before they go up; 0s is the node's
    #[arg(long, value_name = "TIME")]
    pub(crate) dirty_age: Option<Time>,
    /// How long a call may wait for an object store before it is refused; 0s is for ever
    #[arg(long, value_name = "TIME")]
    pub(crate) answer_within: Option<Time>,
    /// Whether a read that an object store answers late is asked for a second time
    #[arg(long, value_name = "BOOL")]
    pub(crate) hedge: Option<bool>,
    #[command(flatten)]
    pub(crate) shares: ShareArguments,
    #[command(flatten)]
    pub(crate) limits: LimitArguments,
    #[command(flatten)]
    pub(crate) node: NodeArguments,
}
