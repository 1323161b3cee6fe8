//! The words of `layby client`.
//!
//! How: one structure per subcommand, as in the files beside it. Cost: none.

use super::NodeArguments;
use clap::{Args, Subcommand};
use layby_daemon::config::Name;

/// List and disconnect the NBD clients of a running node
#[derive(Debug, Args)]
pub(crate) struct ClientArguments {
    #[command(subcommand)]
    pub(crate) command: ClientCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum ClientCommand {
    /// List the clients that are connected over NBD
    List(NodeArguments),
    /// Close the connections of clients; they may come again
    #[command(after_help = "\
Examples:
  layby client disconnect 17
  layby client disconnect --volume maps

`layby volume set NAME --allow ...` keeps a client away; it disconnects those it shuts out.")]
    Disconnect(DisconnectArguments),
}

#[derive(Debug, Args)]
pub(crate) struct DisconnectArguments {
    /// The client's number in `layby client list`
    #[arg(value_name = "NUMBER", required_unless_present = "volume", conflicts_with = "volume")]
    pub(crate) number: Option<u64>,
    /// All clients of this volume
    #[arg(long, value_name = "NAME")]
    pub(crate) volume: Option<Name>,
    #[command(flatten)]
    pub(crate) node: NodeArguments,
}
