//! What goes wrong with a life's disks.
//!
//! How: a fault of the plan becomes one of the simulated machine; what the node may answer from
//! then on is noted. Cost: nothing.

use super::World;
use crate::home::CloudHome;
use crate::oracle::CELL;
use crate::plan::{BLOCK, Disk, Fault, StartFault, VOLUMES};
use layby_cloud::simulated::SimFaults;
use layby_engine::store::nvm_layout::NvmGeometry;
use layby_types::{BlockSize, Nanos};
use rustix::io::Errno;

impl World<'_> {
    /// Lets a disk fail.
    pub(super) fn fault(&mut self, fault: Fault) {
        *self.tally.faults.entry(fault.name()).or_default() += 1;
        if fault.is_felt() || self.life.times_out() {
            self.is_tolerant = true;
            self.has_failed |= !matches!(fault, Fault::AtStart(..));
            self.oracle.expect_ghosts();
        }
        self.has_lied |= fault.is_lie();
        self.note_area(fault);
        match fault {
            Fault::FullAtStart(disk) => return self.full_at_start = Some(disk),
            Fault::AtStart(disk, fault) => return self.at_start.push((disk, fault)),
            _ => {}
        }
        let shape = &self.life.shape;
        let place = |number: u64| self.life.place(fault.disk(), number);
        let mut machine = self.host.machine();
        let disk = machine.attach_disk(&fault.disk().name()).expect("a node has all its disks");
        match fault {
            Fault::FailNext(_, kind) => machine.fail_next(disk, kind, Errno::IO),
            Fault::Unsynced(_) => machine.fail_next_own_sync(disk, Errno::IO),
            Fault::DoneNext(_, refusals) => machine.do_and_fail_next(disk, refusals, Errno::IO),
            Fault::BadSector(_, number) => machine.fail_reads(disk, place(number), CELL),
            Fault::Broken(offset) => {
                // Behind the superblock and the checkpoints, which nothing can stand in for.
                let quarter = shape.ssd_bytes / 4;
                let offset = quarter + offset % (3 * quarter - BLOCK);
                machine.break_range(disk, offset, CELL);
            }
            Fault::Full(_) => machine.set_full(disk, true),
            Fault::FullAtStart(_) | Fault::AtStart(..) => unreachable!("it waits for a start"),
            Fault::Gone(_) => machine.set_gone(disk, true),
            Fault::Slow(_, time) => machine.stall(disk, time),
            Fault::Stuck(_) => machine.set_stuck(disk, true),
            Fault::Lost(_) => machine.lose_next_write(disk),
            Fault::Misdirected(_, number) => {
                machine.misdirect_next_write(disk, place(number) / BLOCK * BLOCK);
            }
            Fault::Rot(_, number) => machine.corrupt(disk, place(number), CELL),
            Fault::LostPage(number) => {
                // Behind the superblock.
                let page = 1 + number % (shape.nvm_bytes / BLOCK - 1);
                machine.fail_reads(disk, page * BLOCK, BLOCK);
                self.pages_lost.push(page);
            }
        }
    }

    /// Counts what a fault that damages a place finds there.
    fn note_area(&mut self, fault: Fault) {
        let (Fault::BadSector(disk, number)
        | Fault::Rot(disk, number)
        | Fault::Misdirected(disk, number)) = fault
        else {
            return;
        };
        let place = self.life.place(disk, number);
        let mut machine = self.host.machine();
        let at = machine.attach_disk(&disk.name()).expect("a node has all its disks");
        let bytes = machine.peek(at);
        drop(machine);
        let first = place / BLOCK * BLOCK;
        // A backing store may have been cut before it.
        let block = bytes.get(first as usize..(first + BLOCK) as usize).unwrap_or_default();
        let mut block = block.to_vec();
        if let Some(cipher) = self.life.cipher(disk) {
            cipher.decrypt(first, &mut block);
        }
        let area = self.life.shape.area(disk, place, &block);
        *self.tally.areas.entry((fault.name(), area)).or_default() += 1;
    }

    /// Lost pages of data, where nothing else went wrong, cost no more blocks than there are pages.
    /// Those of structures may cost more: without the mark nothing tells a lost block from a torn
    /// one, and without both headers any block is undecided.
    pub(super) fn check_unread(&self, unread: usize) -> Result<(), String> {
        let plan = NvmGeometry::plan(self.life.shape.nvm_bytes, BlockSize::MIN);
        let data_first = plan.expect("the level is large enough").data_first;
        let is_of_data = self.pages_lost.iter().all(|page| *page >= u64::from(data_first));
        let harmless = [Fault::LOST_PAGE, Fault::Slow(Disk::Nvm, Nanos::ZERO).name()];
        let is_alone = self.tally.faults.keys().all(|name| harmless.contains(name));
        let pages = self.pages_lost.len();
        match is_of_data && is_alone && unread > pages {
            true => Err(format!("{unread} blocks cannot be read, and {pages} pages are lost")),
            false => Ok(()),
        }
    }

    /// Fills the disk that the coming start is to find full.
    pub(super) fn fill_for_start(&mut self) {
        let Some(disk) = self.full_at_start.take() else { return };
        let mut machine = self.host.machine();
        let disk = machine.attach_disk(&disk.name()).expect("a node has all its disks");
        machine.set_full(disk, true);
    }

    /// What the coming start is to meet; whether it may fail for that.
    pub(super) fn fail_start(&mut self) -> bool {
        let faults = std::mem::take(&mut self.at_start);
        let mut machine = self.host.machine();
        for (disk, fault) in &faults {
            let disk = machine.attach_disk(&disk.name()).expect("a node has all its disks");
            match *fault {
                StartFault::Fail(kind, passed) => machine.fail_after(disk, passed, kind, Errno::IO),
                StartFault::Slow(time) => machine.stall(disk, time),
            }
        }
        faults.iter().any(|(_, fault)| matches!(fault, StartFault::Fail(..)))
    }

    /// Ends the faults that last until somebody ends them.
    pub(super) fn heal(&mut self) {
        let mut machine = self.host.machine();
        let homes = (0..VOLUMES).map(Disk::Home);
        for disk in [Disk::Nvm, Disk::Ssd].into_iter().chain(homes) {
            let disk = machine.attach_disk(&disk.name()).expect("a node has all its disks");
            machine.set_full(disk, false);
            machine.set_gone(disk, false);
            machine.set_stuck(disk, false);
        }
        drop(machine);
        let calm = |home: &CloudHome| home.set_faults(SimFaults::default());
        self.homes.iter().flatten().for_each(calm);
    }
}
