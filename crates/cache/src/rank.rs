//! Whose work an operation is: the rank by which hosts order what devices are to do.
//!
//! How: a client's request has its class's rank, as in the order of yielding; what nobody waits for
//! (destaging, read-ahead, promotion) lies below every class. Making room has the rank of the best
//! one that waits for room, so that nobody waits behind his own inferiors.
//! Invariant: nothing here decides anything; the same decisions come out whatever ranks are.
//! Cost: an entry looked up per action.

use crate::Cache;
use crate::action::{Action, OpId};
use crate::op::Task;
use crate::waiting::Waiting;
use layby_policy::schedule::Rank;
use layby_types::{ClassId, VolumeId};

impl Cache {
    /// The rank of a class, an index into the specification's.
    #[must_use]
    pub fn rank_of_class(&self, class: ClassId) -> Rank {
        Rank(u16::from(self.spec().classes[usize::from(class.0)].rank))
    }

    /// The rank of a volume's requests; background for an unknown one.
    #[must_use]
    pub fn rank_of_volume(&self, volume: VolumeId) -> Rank {
        self.class_of(volume).map_or(Rank::BACKGROUND, |class| self.rank_of_class(class))
    }

    /// The rank of the operation that an action belongs to; `None` for an action without one.
    #[must_use]
    pub fn rank_of_action(&self, action: &Action) -> Option<Rank> {
        let op = match action {
            Action::ReadLevel { op, .. }
            | Action::ReadBacking { op, .. }
            | Action::WriteLevel { op, .. }
            | Action::WriteBacking { op, .. }
            | Action::ZeroBacking { op, .. }
            | Action::SyncBacking { op, .. }
            | Action::SyncLevel { op, .. }
            | Action::Tombstone { op, .. } => *op,
            _ => return None,
        };
        Some(self.rank_of_op(op))
    }

    fn rank_of_op(&self, id: OpId) -> Rank {
        let Some(op) = self.ops.find(id.0) else { return Rank::BACKGROUND };
        let own = || self.rank_of_class(ClassId(self.volumes.get(op.volume).class as u8));
        match &op.task {
            Task::Fetch(fetch) if fetch.sought.is_ahead() && op.queue.is_empty() => {
                Rank::BACKGROUND
            }
            Task::Fetch(fetch) if fetch.promotion.is_some() => Rank::BACKGROUND,
            Task::Destage(_) if op.queue.is_empty() => self.rank_waiting(),
            Task::Evict(_) => own().min(self.rank_waiting()),
            _ => own(),
        }
    }

    /// The rank of the best one that waits for room.
    fn rank_waiting(&self) -> Rank {
        let waiters = self.waiting.iter().filter_map(Waiting::first);
        let classes = waiters.filter_map(|id| self.ops.find(id.0)).map(|op| op.volume);
        let ranks = classes.map(|number| ClassId(self.volumes.get(number).class as u8));
        ranks.map(|class| self.rank_of_class(class)).min().unwrap_or(Rank::BACKGROUND)
    }
}
