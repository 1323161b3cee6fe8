//! Orderly stops: what they promise, and what they report where a device does not answer.

use super::*;
use crate::io::OperationKind;
use rustix::io::Errno;

/// A class without a persistent level: its writes go to the backing store at once, not durably.
fn passing_through(seed: u64) -> World {
    let mut shape = Shape::roomy();
    shape.spec.classes[1].levels = 0b001;
    World::new(seed, shape)
}

/// Goal: after a clean stop every acknowledged write survives power loss. Method: unflushed writes
/// of both classes, a stop, power loss that drops all that is not durable.
#[test]
fn a_clean_stop_makes_everything_durable() {
    each_seed(50, |seed| {
        let mut world = passing_through(seed);
        for volume in [1, 2] {
            world.run(volume, call(Operation::Write, 512, 9000), 7).expect("a write");
        }
        world.core.shut_down(&mut world.io).expect("all devices work");
        world.crash(CrashMode::DropAll);
        for volume in [1, 2] {
            let data = world.read(volume, 512, 9000).expect("a read");
            assert!(data.iter().all(|byte| *byte == 7), "volume {volume}, SEED={seed}");
        }
    });
}

/// Goal: a stop whose backing store does not end its sync says so, by name and in the time that it
/// states; it does not pass for a clean one. Method: an unflushed write, a device that answers
/// nothing, a stop.
#[test]
fn a_stop_that_gives_up_says_so() {
    each_seed(20, |seed| {
        let mut world = passing_through(seed);
        world.run(2, call(Operation::Write, 0, BLOCK), 7).expect("a write");
        world.io.set_stuck(world.homes[1], true);
        let begun = world.io.now();
        let unclean = world.core.shut_down(&mut world.io).expect_err("a device does not answer");
        let took = world.io.now().since(begun);
        let causes = [
            "backing store `home-1` did not finish its sync within 30 s",
            "the SSD level did not finish its checkpoint within 30 s",
        ];
        assert_eq!(unclean.causes, causes, "SEED={seed}");
        assert!(took >= STOP_PATIENCE && took < STOP_PATIENCE + Nanos::from_secs(1), "{took:?}");
    });
}

/// Goal: a stop over a failed sync or a failed checkpoint is not clean. Method: either fails once.
#[test]
fn a_stop_over_a_failure_says_so() {
    let mut world = passing_through(1);
    world.run(2, call(Operation::Write, 0, BLOCK), 7).expect("a write");
    world.io.fail_next(world.homes[1], OperationKind::Sync, Errno::IO);
    let unclean = world.core.shut_down(&mut world.io).expect_err("a sync failed");
    let causes =
        ["a sync of backing store `home-1` failed", "the checkpoint of the SSD level failed"];
    assert_eq!(unclean.causes, causes);

    let mut world = passing_through(1);
    world.run(1, call(Operation::Write, 0, BLOCK), 7).expect("a write");
    world.io.set_full(world.ssd, true);
    let unclean = world.core.shut_down(&mut world.io).expect_err("no checkpoint can be written");
    assert_eq!(unclean.causes, ["the checkpoint of the SSD level failed"]);
}

/// Goal: a stop makes an NVM level durable where no log's checkpoint would. Method: two levels, an
/// unflushed write of a class that is not durable by itself, a stop, power loss, a start.
#[test]
fn a_stop_syncs_an_nvm_level_without_a_log() {
    each_seed(20, |seed| {
        let mut io = SimIo::new(seed);
        let (nvm, home) = (io.add_disk("nvm", 40 * BLOCK), io.add_disk("one", BLOCKS * BLOCK));
        let mut spec = spec();
        spec.levels.truncate(2);
        spec.classes.truncate(1);
        (spec.classes[0].levels, spec.classes[0].durable_writes) = (0b011, false);
        let start = |io: &mut SimIo, format| {
            let region =
                Region { disk: nvm, base: 0, length: 40 * BLOCK, block_size: BlockSize::MIN };
            let plans = [
                LevelPlan::Memory { slots: 8 },
                LevelPlan::Nvm { region, format, is_strict: false, known: None },
            ];
            let volume = VolumeSpec {
                id: VolumeId(1),
                class: ClassId(0),
                length: BLOCKS * BLOCK,
                shares: [Share::OPEN; LEVELS_MAX],
                write_through: false,
            };
            let homes = vec![HomePlan::on_disk(volume, home, "home".to_owned())];
            Core::start(io, spec.clone(), &plans, IDENTITY, homes, seed).expect("it starts").0
        };
        let mut core = start(&mut io, true);
        let run = |core: &mut Core, io: &mut SimIo, call: Call, payload: &[u8]| {
            core.submit(io, Asker(u64::MAX), VolumeId(1), call, payload, None);
            for _ in 0..TURNS_MAX {
                if let Some(finished) = core.take_finished() {
                    return finished.result.expect("it works");
                }
                core.turn(io);
            }
            panic!("{call:?} never ends; replay with SEED={seed}");
        };
        run(&mut core, &mut io, call(Operation::Write, 0, BLOCK), &vec![7; BLOCK as usize]);
        core.shut_down(&mut io).expect("all devices work");
        io.crash(CrashMode::DropAll);
        let mut core = start(&mut io, false);
        let Answer::Data(data) = run(&mut core, &mut io, call(Operation::Read, 0, BLOCK), &[])
        else {
            panic!("a read gives data")
        };
        assert!(data.to_vec().iter().all(|byte| *byte == 7), "SEED={seed}");
    });
}
