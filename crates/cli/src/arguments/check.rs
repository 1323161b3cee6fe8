//! The words and flags of `layby check` and `layby restore`, which verify without a node.

use clap::Args;
use layby_daemon::config::{DIR_DEFAULT, KeySource, Name};
use std::path::PathBuf;

/// Verify the structures on disk of a node that does not run
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  layby check --dir /srv/layby
  layby check --dir /srv/layby --full
  layby check --dir /srv/layby --backing

Reads only. Exits with 0 when all is sound and with 3 when something is not.")]
pub(crate) struct CheckArguments {
    /// The node's directory
    #[arg(short, long, value_name = "DIR", default_value = DIR_DEFAULT)]
    pub(crate) dir: PathBuf,
    /// Read and verify the contents of every block too
    #[arg(long)]
    pub(crate) full: bool,
    /// Read and verify what object stores hold of the volumes, too
    #[arg(long)]
    pub(crate) backing: bool,
    /// With --backing: read the snapshot of this name in the place of the volumes that have one
    #[arg(long, value_name = "NAME", requires = "backing")]
    pub(crate) snapshot: Option<Name>,
    /// Answer in JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Read a volume from its object store alone, into a file or only to verify it
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  layby restore s3://bucket/maps maps.img
  layby restore s3://bucket/maps
  layby restore s3://bucket/maps monday.img --snapshot monday

Credentials come from the environment, such as AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_REGION
and AWS_ENDPOINT_URL. What is restored is a prefix of the volume's history: what its node had not
uploaded is not in it. Exits with 3 when something is damaged.")]
pub(crate) struct RestoreArguments {
    /// The volume's place: s3://BUCKET/PREFIX, az://CONTAINER/PREFIX, gs://BUCKET/PREFIX or
    /// file:///FOLDER
    pub(crate) url: String,
    /// The file to make, sparse; without it every block is read and verified
    pub(crate) file: Option<PathBuf>,
    /// Where the key of an encrypted volume comes from: file:PATH, env:NAME or command:WORDS
    #[arg(long, value_name = "SOURCE")]
    pub(crate) key: Option<KeySource>,
    /// Read this snapshot of the volume
    #[arg(long, value_name = "NAME")]
    pub(crate) snapshot: Option<Name>,
    /// Read the volume though it was deleted
    #[arg(long)]
    pub(crate) deleted: bool,
    /// Answer in JSON
    #[arg(long)]
    pub(crate) json: bool,
}
