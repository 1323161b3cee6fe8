//! How many commands a turn carries out.
//!
//! How: a turn takes commands in their order up to a bound, and ends the taking behind one that
//! reports; what is left is taken by the next turn, which does not sleep.
//! Invariant: I/O goes on between any two reports, however many wait. Cost: a turn that serves and
//! waits for nothing, for each report.

use super::Shard;
use crate::control::Command;
use crate::io::Host;
use layby_types::Session;

/// Commands that a turn carries out at most.
const COMMANDS_MAX: u32 = 64;

impl<S: Session, H: Host> Shard<S, H> {
    pub(super) fn take_commands(&mut self) {
        self.has_commands = false;
        for _ in 0..COMMANDS_MAX {
            let Ok(command) = self.commands.try_recv() else { return };
            let is_report = is_report(&command);
            self.on_command(command);
            if is_report {
                break;
            }
        }
        // The waker was called when they were sent, and is not called again.
        self.has_commands = true;
    }
}

/// Whether a command walks over all volumes or clients and changes nothing. Any user of the machine
/// may have the control plane send such commands.
fn is_report<S>(command: &Command<S>) -> bool {
    matches!(command, Command::Snapshot(_) | Command::Clients(_))
}
