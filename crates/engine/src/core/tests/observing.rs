//! What a core says of a period, and shares that it is given, in the simulated disks' time.

use super::far::*;
use super::*;

/// Goal: a period shows requests, misses, waits and the home's latency, starts again afterwards,
/// and asks nothing of volumes that are not there. Method: homes that answer 5 ms late, each block
/// read twice, once from the home; then a silent period.
#[test]
fn periods_show_what_was_read() {
    let mut shape = Shape::roomy();
    shape.spec.read_ahead.window_bytes_max = 0;
    let mut world = World::new(1, shape);
    let volumes = [VolumeId(1), VolumeId(2), VolumeId(9)];
    assert!(world.core.observe(&volumes, 0.5).volumes.is_empty(), "the watch only begins");
    world.core.delay_homes(Nanos::from_millis(5));
    for block in (0..16).chain(0..16) {
        world.read(2, block * BLOCK, BLOCK).expect("sound disks");
    }
    let observed = world.core.observe(&volumes, 0.5);
    let [one, two] = &observed.volumes[..] else { panic!("two volumes are watched") };
    assert_eq!((one.cache.volume, one.reads, one.cache.misses), (VolumeId(1), 0, 0));
    assert_eq!((two.cache.volume, two.reads, two.cache.requests), (VolumeId(2), 32, [32, 0]));
    assert_eq!((two.cache.misses, two.cache.hits.iter().sum::<u64>()), (16, 16));
    assert!(observed.home_read_ns.is_some_and(|ns| ns >= 5e6), "{:?}", observed.home_read_ns);
    let late = observed.home_read_ns.unwrap_or(0.0) * 16.0;
    assert!(two.read_wait_ns as f64 >= late * 0.99, "reads wait for the home at least");
    assert!(observed.levels_read_ns[0].is_none(), "memory is not fetched from");
    let silent = world.core.observe(&volumes, 0.5);
    assert!(silent.volumes.iter().all(|volume| volume.reads == 0 && volume.cache.misses == 0));
    assert!(silent.home_read_ns.is_none());
}

/// Goal: shares arrive, and one for a volume that went away is no fault. Method: set and observe.
#[test]
fn sized_shares_arrive() {
    let mut world = World::new(1, Shape::roomy());
    world.core.observe(&[VolumeId(1)], 0.5);
    let slots = [7; LEVELS_MAX];
    world.core.set_sized(&[(VolumeId(1), Some(slots)), (VolumeId(9), Some(slots))]);
    let observed = world.core.observe(&[VolumeId(1)], 0.5);
    assert_eq!(observed.volumes[0].cache.sized, Some(slots));
}

/// Goal: a core whose homes answer late shuts down: the last answer that it waits for comes by time
/// and not by I/O. Method: a stop, which syncs every home.
#[test]
fn late_homes_do_not_hold_a_shutdown() {
    let mut world = World::new(1, Shape::roomy());
    world.core.delay_homes(Nanos::from_millis(5));
    let World { core, io, .. } = &mut world;
    let before = io.waits_in_vain();
    core.shut_down(io).expect("all devices work");
    assert_eq!(io.waits_in_vain(), before, "it waits for what cannot come");
}

/// Goal: a class that is made anew has nothing of the one whose number it has. Method: requests of
/// a volume, whose class then has no name, as one that was deleted.
#[test]
fn a_deleted_class_leaves_no_windows() {
    let mut world = World::new(3, Shape::roomy());
    world.read(1, 0, 4096).expect("a good read");
    let mut spec = world.core.cache().spec().clone();
    let class = usize::from(world.core.cache().class_of(VolumeId(1)).expect("it is there").0);
    world.core.forget_classes();
    assert!(world.core.objectives.has_counted(class), "the class is there");
    spec.classes[class].name.clear();
    world.core.cache().reconfigure(spec).expect("a good specification");
    world.core.forget_classes();
    assert!(!world.core.objectives.has_counted(class));
}

/// Goal: what the backing stores were sent is counted whichever way it took: straight, where the
/// class has no persistent level, and by destaging; a write that failed is not. Method: eight
/// writes of three blocks in a row either way, drained; one whose backing store is full.
#[test]
fn writes_to_backing_stores_are_counted_either_way() {
    for (levels, writes) in [(0b001, 8), (0b101, 1)] {
        let mut shape = Shape::roomy();
        shape.spec.classes.iter_mut().for_each(|class| class.levels = levels);
        let mut world = FarWorld::new(5, shape, 1);
        let sent = |world: &FarWorld| {
            let shown = world.core.snapshot();
            (shown.backing_writes, shown.backing_blocks_written)
        };
        for index in 0..8 {
            let write = call(Operation::Write, index * 3 * BLOCK, 3 * BLOCK);
            world.run(NEAR, write, 1).expect("the file takes it");
        }
        world.core.drain(&mut world.io, 1, Some(VolumeId(NEAR)));
        world.turns(200);
        assert_eq!(world.core.take_drained(), [(1, Ok(()))]);
        assert_eq!(sent(&world), (writes, 24), "levels {levels:b}");
        if levels == 0b001 {
            let asked = world.ask(FAR, call(Operation::Write, 0, BLOCK), 1);
            world.turns(20);
            world.home.end(0, Err(ErrorKind::Full));
            assert_eq!(world.wait(asked).err(), Some(ErrorKind::Full));
            assert_eq!(sent(&world), (writes, 24), "nothing was written");
        }
    }
}
