//! Starts the engine's shards: the one place where the daemon's words become the engine's.

use crate::error::{Report, ReportKind};
use crate::node::{ShardRequest, ShardStarter, StartedShard};

/// Starts real shards.
#[derive(Clone, Copy, Debug, Default)]
pub struct EngineStarter;

impl ShardStarter for EngineStarter {
    fn start(&self, _request: ShardRequest) -> Result<StartedShard, Report> {
        Err(Report::new(ReportKind::Failure, "cannot start a shard")
            .cause("this program was built before the engine's shards were")
            .state("nothing was started")
            .hint("build a later commit"))
    }
}
