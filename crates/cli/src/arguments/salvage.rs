//! The words and flags of `layby salvage`.

use clap::Args;
use layby_daemon::config::Name;
use std::path::PathBuf;

/// Save what only this node's journal has of a volume that another node has taken
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  layby salvage maps maps.left --dir /srv/layby
  layby salvage maps
  layby salvage maps maps.left --all

FILE is sparse and of the volume's size; FILE.ranges lists what is in it: offset, length, data,
zeros or damaged, the journal's batch and when it was written. Damaged ranges are not in FILE. The
node may run where it has found out that another one has the volume; else it must not. Over an image
of the volume, such as `layby restore` makes, what was saved is written by

  grep -v ,damaged, FILE.ranges | tail -n +2 | while IFS=, read -r offset length rest; do
    dd if=FILE of=IMAGE bs=1M skip=$offset seek=$offset count=$length \\
      iflag=skip_bytes,count_bytes oflag=seek_bytes conv=notrunc status=none
  done

What the other node wrote to these ranges meanwhile is newer, and is lost in that image. Reads only.
Exits with 3 when something is damaged; what is whole is saved all the same.")]
pub(crate) struct SalvageArguments {
    /// The volume
    pub(crate) name: Name,
    /// The file to make; without it, only says what there is
    pub(crate) file: Option<PathBuf>,
    /// Also what the store got, as far as the journal still holds it: for a store that was set back
    #[arg(long)]
    pub(crate) all: bool,
    /// The node's directory [default: `dir` of FILE's `[node]`, else layby-node]
    #[arg(short, long, value_name = "DIR")]
    pub(crate) dir: Option<PathBuf>,
    /// The node's configuration [default: DIR/layby.toml where there is one]
    #[arg(short, long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Answer in JSON
    #[arg(long)]
    pub(crate) json: bool,
}
