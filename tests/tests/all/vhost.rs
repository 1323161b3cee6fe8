//! Virtual machines' disks over vhost-user, against a driver of our own.

use layby_tests::guest::{DATA_BYTES, Data, Guest, REQUESTS_MAX, kind, memory_file};
use layby_tests::{Connection, Node, Options, Request, layby, number, seed, small_levels};
use layby_types::Rng;
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use tempfile::TempDir;

const BLOCK: usize = 4096;
/// Where a guest has memory that was plugged in.
const PLUGGED: u64 = 1 << 32;
/// Looks for an answer, with a read in between.
const LOOKS_MAX: usize = 100_000;

fn node(options: &Options) -> (TempDir, PathBuf, Node) {
    let dir = TempDir::new().expect("a temporary directory");
    let home = dir.path().join("node");
    let node = Node::start(&home, options);
    (dir, home, node)
}

fn read_nbd(nbd: &mut Connection, length: u32) -> Vec<u8> {
    nbd.call(&Request::Read { offset: 0, length }).expect("NBD goes on").expect("a good read")
}

fn sector(block: u64) -> u64 {
    block * (BLOCK as u64 / 512)
}

/// Goal: every kind of request does on the volume what the standard says, and NBD clients see it.
/// Method: one of each over one queue; an NBD client reads the same blocks.
#[test]
fn a_guest_uses_its_disk() {
    let (_dir, home, node) = node(&small_levels());
    node.volume_create("maps", "64MiB", "normal");
    let socket = home.join("vhost/maps.sock");
    let mut guest = Guest::new(1);
    guest.connect(&socket);
    let config = guest.config();
    assert_eq!(config[..8], (64u64 << 11).to_le_bytes());
    let shown = node.layby(&["volume", "show", "maps"]);
    assert!(shown.contains("maps.sock") && shown.contains("a guest is connected"), "{shown}");
    for block in 0..4 {
        let bytes = vec![block as u8 + 1; BLOCK];
        assert_eq!(guest.ask(kind::OUT, sector(block), Data::Out(&bytes)).0, 0);
    }
    assert_eq!(guest.ask(kind::FLUSH, 0, Data::Out(&[])).0, 0);
    let range = |block: u64, blocks: u32, flags: u32| {
        let mut bytes = sector(block).to_le_bytes().to_vec();
        bytes.extend((blocks * 8).to_le_bytes());
        bytes.extend(flags.to_le_bytes());
        bytes
    };
    assert_eq!(guest.ask(kind::DISCARD, 0, Data::Out(&range(1, 1, 0))).0, 0);
    assert_eq!(guest.ask(kind::WRITE_ZEROES, 0, Data::Out(&range(2, 1, 1))).0, 0);
    let expected = [vec![1; BLOCK], vec![0; 2 * BLOCK], vec![4; BLOCK]].concat();
    let (status, read) = guest.ask(kind::IN, 0, Data::In(4 * BLOCK as u32));
    assert!(status == 0 && read == expected);
    let (status, half) = guest.ask(kind::IN, sector(4) - 1, Data::In(1024));
    assert!(status == 0 && half == [vec![4; 512], vec![0; 512]].concat());
    assert_eq!(guest.ask(kind::GET_ID, 0, Data::In(20)).1, b"maps\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0");
    assert_eq!(guest.ask(99, 0, Data::Out(&[])).0, 2, "an unknown request");
    assert_eq!(guest.ask(kind::OUT, 64 << 11, Data::Out(&[0; 512])).0, 1, "behind the end");
    let mut nbd = Connection::open(&node.socket(), "maps").expect("NBD is served beside");
    assert!(read_nbd(&mut nbd, expected.len() as u32) == expected);
    assert_eq!(guest.stop_queue(0), 12, "a stopped queue tells where it would go on");
    guest.disconnect();
    node.layby(&["volume", "delete", "maps"]);
    assert!(!socket.exists(), "the socket goes with its volume");
    node.stop();
}

/// Goal: a guest outlives its node: whatever was in flight is done exactly once, in a next life
/// that follows a kill at any time or a stop. Method: writes of random places through two queues, a
/// restart while they are under way, the same memory and region connected again; then all that was
/// answered is read back.
#[test]
fn a_guest_outlives_its_node() {
    let (_dir, home, mut node) = node(&small_levels());
    node.volume_create("maps", "16MiB", "normal");
    let socket = home.join("vhost/maps.sock");
    let mut rng = Rng::new(seed());
    let blocks = 4096;
    let mut model = vec![0u8; blocks];
    let mut guest = Guest::new(2);
    guest.connect(&socket);
    let mut open: [Vec<Option<(usize, u8)>>; 2] = [vec![None; 21], vec![None; 21]];
    for life in 0..number("LAYBY_GUEST_LIVES", 6) {
        for step in 0..40 {
            for queue in 0..2 {
                let vacant = (0..REQUESTS_MAX).filter(|s| open[queue][usize::from(*s)].is_none());
                for slot in vacant.collect::<Vec<_>>() {
                    let busy: Vec<usize> =
                        open.iter().flatten().flatten().map(|(block, _)| *block).collect();
                    let block = rng.below(blocks as u64) as usize;
                    if busy.contains(&block) {
                        continue;
                    }
                    let byte = rng.below(256) as u8;
                    guest.request(
                        queue,
                        slot,
                        kind::OUT,
                        sector(block as u64),
                        Data::Out(&[byte; BLOCK]),
                    );
                    open[queue][usize::from(slot)] = Some((block, byte));
                }
                guest.kick(queue);
                if step == 39 {
                    continue;
                }
                for (slot, status) in guest.answers(queue) {
                    let (block, byte) = open[queue][usize::from(slot)].take().expect("asked once");
                    assert_eq!(status, 0, "life {life}");
                    model[block] = byte;
                }
            }
        }
        if rng.chance(1, 3) {
            node.stop();
        } else {
            node.kill9();
        }
        node = Node::start(&home, &small_levels());
        guest.disconnect();
        guest.connect(&socket);
        for (queue, open) in open.iter_mut().enumerate() {
            while open.iter().any(Option::is_some) {
                for (slot, status) in guest.answers(queue) {
                    let (block, byte) = open[usize::from(slot)].take().expect("asked once");
                    assert_eq!(status, 0, "life {life}");
                    model[block] = byte;
                }
            }
            assert!(guest.answers_now(queue).is_empty(), "answered more than once");
        }
    }
    for (block, byte) in model.iter().enumerate() {
        let (status, read) = guest.ask(kind::IN, sector(block as u64), Data::In(BLOCK as u32));
        assert!(status == 0 && read == vec![*byte; BLOCK], "block {block}");
    }
    node.stop();
}

/// Asks for a write of a block in every place of queue 0, and tells the node.
fn write_all(guest: &mut Guest, byte: u8) {
    for slot in 0..REQUESTS_MAX {
        let bytes = Data::Out(&[byte; BLOCK]);
        guest.request(0, slot, kind::OUT, sector(u64::from(slot)), bytes);
    }
    guest.kick(0);
}

/// Takes `count` answers, all of them good.
fn answered(guest: &mut Guest, count: usize) {
    let mut answers = Vec::new();
    while answers.len() < count {
        answers.extend(guest.answers(0));
    }
    assert!(answers.len() == count && answers.iter().all(|(_, status)| *status == 0));
}

/// Goal: memory is plugged in and out while a queue is served, as QEMU and libblkio do it.
/// Method: a write out of memory that is not there, that came, and that went again; the queue goes
/// on each time. Memory that nobody added cannot be taken out.
#[test]
fn memory_comes_and_goes() {
    let (_dir, home, node) = node(&small_levels());
    node.volume_create("maps", "16MiB", "normal");
    let mut guest = Guest::new(1);
    guest.connect(&home.join("vhost/maps.sock"));
    let more = memory_file(2 * BLOCK as u64);
    more.write_all_at(&[5; 2 * BLOCK], 0).expect("room");
    let write = |guest: &mut Guest| {
        guest.request(0, 0, kind::OUT, 0, Data::Out(&[1; BLOCK]));
        guest.descriptor(0, 1, PLUGGED + BLOCK as u64, BLOCK as u32, 1, 2);
        guest.kick(0);
        guest.answers(0)[0].1
    };
    assert_eq!(write(&mut guest), 1, "nothing is there yet");
    guest.add_memory(PLUGGED, &more);
    assert_eq!(write(&mut guest), 0);
    assert_eq!(guest.ask(kind::IN, 0, Data::In(BLOCK as u32)), (0, vec![5; BLOCK]));
    guest.remove_memory(PLUGGED, &more).expect("what was added is taken out");
    assert_eq!(write(&mut guest), 1, "nothing is there any more");
    assert_eq!(guest.ask(kind::IN, 0, Data::In(BLOCK as u32)), (0, vec![5; BLOCK]));
    guest.remove_memory(PLUGGED, &more).expect_err("it is gone");
    node.stop();
}

/// Goal: a guest of a lower class and clients of the best one both go on, beside each other and
/// alone. Method: a full queue of a bulk volume, a critical client in between, which then leaves.
#[test]
fn a_guest_goes_on_behind_a_better_class() {
    let (_dir, home, node) = node(&small_levels());
    node.volume_create("bulk", "16MiB", "bulk");
    node.volume_create("brake", "1MiB", "critical");
    let mut guest = Guest::new(1);
    guest.connect(&home.join("vhost/bulk.sock"));
    let mut nbd = Connection::open(&node.socket(), "brake").expect("NBD is served beside");
    for byte in 1..4 {
        write_all(&mut guest, byte);
        assert_eq!(read_nbd(&mut nbd, 4096).len(), 4096);
        answered(&mut guest, usize::from(REQUESTS_MAX));
    }
    drop(nbd);
    write_all(&mut guest, 9);
    answered(&mut guest, usize::from(REQUESTS_MAX));
    let (status, read) = guest.ask(kind::IN, 0, Data::In(BLOCK as u32));
    assert!(status == 0 && read == vec![9; BLOCK]);
    node.stop();
}

/// Goal: a volume's limits hold its guest, and lifting them lets it go. Method: a full queue under
/// a limit of one request a second; the volume's counter tells that the others were held.
#[test]
fn a_guest_keeps_to_limits() {
    let (_dir, home, node) = node(&small_levels());
    node.volume_create("maps", "16MiB", "normal");
    node.layby(&["volume", "set", "maps", "--iops-max", "1", "--iops-burst", "1"]);
    let mut guest = Guest::new(1);
    guest.connect(&home.join("vhost/maps.sock"));
    write_all(&mut guest, 1);
    answered(&mut guest, 1);
    node.layby(&["volume", "set", "maps", "--iops-max", "0"]);
    answered(&mut guest, usize::from(REQUESTS_MAX) - 1);
    let shown = node.layby(&["volume", "show", "maps", "--json"]);
    let shown: serde_json::Value = serde_json::from_str(&shown).expect("an answer in JSON");
    assert!(shown["traffic"]["throttled"].as_u64() >= Some(1), "{shown}");
    node.stop();
}

/// Asks for a read in every free place of queue 0, of `length` bytes, and tells the node.
fn read_all(guest: &mut Guest, free: &mut Vec<u16>, length: u32) {
    for slot in free.drain(..) {
        guest.request(0, slot, kind::IN, sector(u64::from(slot)), Data::In(length));
    }
    guest.kick(0);
}

/// Takes what was answered, all of it good, as free places.
fn freed(guest: &mut Guest, free: &mut Vec<u16>) {
    let answers = guest.answers(0);
    assert!(answers.iter().all(|(_, status)| *status == 0), "{answers:?}");
    free.extend(answers.into_iter().map(|(slot, _)| slot));
}

fn traffic(node: &Node, volume: &str) -> serde_json::Value {
    let shown = node.layby(&["volume", "show", volume, "--json"]);
    let shown: serde_json::Value = serde_json::from_str(&shown).expect("an answer in JSON");
    shown["traffic"].clone()
}

/// Goal: a busy guest under a limit leaves other clients of the volume their part, and waits with
/// one request at a time. Method: a guest that asks anew, with a kick, for each answer, beside an
/// NBD client; how many the one was answered while the other was, and how many waiters are left.
#[test]
fn a_busy_guest_leaves_others_their_part() {
    let (_dir, home, node) = node(&small_levels());
    node.volume_create("maps", "16MiB", "normal");
    node.layby(&["volume", "set", "maps", "--iops-max", "1000", "--iops-burst", "1"]);
    let mut guest = Guest::new(1);
    guest.connect(&home.join("vhost/maps.sock"));
    let mut nbd = Connection::open(&node.socket(), "maps").expect("NBD is served beside");
    let (is_over, answered) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut free: Vec<u16> = (0..8).collect();
            while !is_over.load(Ordering::SeqCst) {
                read_all(&mut guest, &mut free, 4096);
                freed(&mut guest, &mut free);
                answered.fetch_add(free.len() as u64, Ordering::SeqCst);
            }
        });
        // The client asks anew only when it has its answer, so the guest may be ahead.
        let is_fair = |own: u64| answered.load(Ordering::SeqCst) <= 100 + 4 * own;
        let own =
            (0..500).take_while(|own| read_nbd(&mut nbd, 4096).len() == 4096 && is_fair(*own));
        let own = own.count();
        let now = traffic(&node, "maps")["throttled_now"].as_u64();
        is_over.store(true, Ordering::SeqCst);
        assert_eq!(own, 500, "{} of the guest meanwhile", answered.load(Ordering::SeqCst));
        assert!(now <= Some(1), "{now:?} wait of a guest's queue");
    });
    node.stop();
}

/// Goal: no kick buys bytes: what a guest reads within any time is at most the burst and what the
/// limit gives in that time. Method: a bucket in debt, a short read that waits, thousands of kicks,
/// then a full queue of long reads; bytes against the time that they took.
#[test]
#[expect(clippy::disallowed_methods, reason = "a rate is a count over a time")]
fn kicks_buy_no_bytes() {
    const RATE: u64 = 128 << 10;
    /// The place of the short read.
    const SHORT: u16 = 0;
    let (_dir, home, node) = node(&small_levels());
    node.volume_create("maps", "16MiB", "normal");
    let words = ["--bandwidth-max", "128KiB", "--bandwidth-burst", "4KiB"];
    node.layby(&[&["volume", "set", "maps"], &words[..]].concat());
    let mut guest = Guest::new(1);
    guest.connect(&home.join("vhost/maps.sock"));
    let began = std::time::Instant::now();
    let (mut free, mut passed) = (vec![1], u64::from(DATA_BYTES));
    read_all(&mut guest, &mut free, DATA_BYTES);
    freed(&mut guest, &mut free);
    read_all(&mut guest, &mut vec![SHORT], 512);
    while began.elapsed().as_millis() < 80 {
        guest.kick(0);
        passed += 512 * guest.answers_now(0).len() as u64;
    }
    free.extend(2..REQUESTS_MAX);
    while passed < 2 * RATE {
        read_all(&mut guest, &mut free, DATA_BYTES);
        freed(&mut guest, &mut free);
        let places = free.len();
        free.retain(|slot| *slot != SHORT);
        passed += if free.len() < places { 512 } else { 0 };
        passed += free.len() as u64 * u64::from(DATA_BYTES);
    }
    let seconds = began.elapsed().as_secs_f64();
    // A request that is larger than the burst passes when the burst is whole.
    let most = f64::from(DATA_BYTES) + RATE as f64 * (seconds + 0.05);
    assert!(passed as f64 <= most, "{passed} bytes in {seconds} s");
    node.stop();
}

/// Goal: a guest that breaks its ring, and a monitor that speaks nonsense, harm nobody else.
/// Method: loops and stray addresses beside an NBD client that goes on; then the same guest starts
/// over.
#[test]
fn bad_guests_harm_nobody() {
    let (_dir, home, node) = node(&small_levels());
    node.volume_create("maps", "16MiB", "normal");
    let socket = home.join("vhost/maps.sock");
    let mut nbd = Connection::open(&node.socket(), "maps").expect("NBD is served beside");
    let breakages: [fn(&mut Guest); 4] = [
        |guest| guest.descriptor(0, 0, 0x20000, 16, 1, 0),
        |guest| guest.descriptor(0, 0, u64::MAX - 4, 16, 4, 0),
        |guest| guest.descriptor(0, 0, 0x20000, 16, 0, 0),
        |guest| guest.descriptor(0, 0, 1 << 50, 16, 1, 900),
    ];
    for breakage in breakages {
        let mut guest = Guest::new(1);
        guest.connect(&socket);
        breakage(&mut guest);
        guest.offer(0, 0);
        guest.kick(0);
        guest.stop_queue(0);
        assert!(guest.answers_now(0).is_empty());
        assert_eq!(read_nbd(&mut nbd, 4096), vec![0; 4096]);
        guest.disconnect();
    }
    for nonsense in [&[0xff; 64][..], &[1, 0, 0, 0, 1, 0, 0, 0, 0xff, 0xff, 0xff, 0xff], &[5; 12]] {
        let mut stream = std::os::unix::net::UnixStream::connect(&socket).expect("it listens");
        std::io::Write::write_all(&mut stream, nonsense).expect("it takes bytes");
        drop(stream);
    }
    let mut guest = Guest::new(4);
    guest.connect(&socket);
    assert_eq!(guest.ask(kind::OUT, 0, Data::Out(&[7; BLOCK])).0, 0);
    assert!(node.stderr().contains("descriptor"), "the log says why: {}", node.stderr());
    node.stop();
}

/// Goal: a monitor whose call descriptor has no room holds up no volume of the shard, and no stop.
/// Method: a descriptor that does not block when the node is given it, and does when it is full; a
/// request, after which an NBD client of the same shard is answered and the node stops.
#[test]
fn a_call_without_room_holds_up_no_shard() {
    let mut options = small_levels();
    *options.config.as_mut().expect("small levels are configured") += "\n[node]\nshards = 1\n";
    let (_dir, home, node) = node(&options);
    node.volume_create("maps", "16MiB", "normal");
    node.volume_create("other", "16MiB", "normal");
    let mut guest = Guest::new(1);
    guest.set_calls_blocking(0, false);
    guest.connect(&home.join("vhost/maps.sock"));
    let mut nbd = Connection::open(&node.socket(), "other").expect("NBD is served beside");
    guest.fill_calls(0);
    guest.set_calls_blocking(0, true);
    for slot in 0..4 {
        guest.ask_for_calls(0);
        guest.request(0, slot, kind::OUT, sector(u64::from(slot)), Data::Out(&[7; BLOCK]));
        guest.kick(0);
        let answered = (0..LOOKS_MAX).find_map(|_| {
            assert_eq!(read_nbd(&mut nbd, 4096), vec![0; 4096]);
            Some(guest.answers_now(0)).filter(|answers| !answers.is_empty())
        });
        assert_eq!(answered, Some(vec![(slot, 0)]));
    }
    assert_eq!(guest.stop_queue(0), 4);
    node.stop();
}

/// Goal: a read-only volume, a volume that unix clients may not use, and a node without the
/// sockets.
/// Method: one of each.
#[test]
fn guests_are_let_in_as_told() {
    let (_dir, home, node) = node(&small_levels());
    node.layby(&["volume", "create", "maps", "--size", "16MiB", "--read-only"]);
    let mut guest = Guest::new(1);
    guest.connect(&home.join("vhost/maps.sock"));
    assert_eq!(guest.offered & 1 << 5, 1 << 5, "read-only is announced");
    assert_eq!(guest.ask(kind::OUT, 0, Data::Out(&[7; BLOCK])).0, 1);
    assert_eq!(guest.ask(kind::IN, 0, Data::In(512)), (0, vec![0; 512]));
    node.layby(&["volume", "create", "far", "--size", "16MiB", "--allow", "10.0.0.0/8"]);
    let socket = home.join("vhost/far.sock");
    let mut stream = std::os::unix::net::UnixStream::connect(&socket).expect("it listens");
    let end = std::io::Read::read(&mut stream, &mut [0; 1]).expect("it closes");
    assert_eq!(end, 0, "who is not allowed is not listened to");
    node.stop();
    let off = Options::config("[vhost]\ndirectory = \"off\"\n");
    let (_dir, home, node) = self::node(&off);
    assert!(!home.join("vhost").exists());
    let shown = layby(&["volume", "show", "vol0", "--dir", &home.to_string_lossy()]);
    assert!(shown.stdout.contains("vhost    off"), "{}", shown.stdout);
    node.stop();
}

/// What a guest knows of a place that it writes again and again.
#[derive(Clone, Copy, Default)]
struct Written {
    answered: u8,
    asked: Option<u8>,
}

/// Writes every place of a queue again and again until `is_over`; answers with what was answered,
/// and what was in flight at the end.
fn write_until(guest: &mut Guest, is_over: &AtomicBool) -> Vec<Written> {
    let mut places = vec![Written::default(); usize::from(REQUESTS_MAX)];
    let mut next = 0u8;
    let blocks = u64::from(DATA_BYTES) / BLOCK as u64;
    loop {
        // Answers that come before this look are all in the ring.
        let was_over = is_over.load(Ordering::SeqCst);
        for (slot, status) in guest.answers_now(0) {
            let place = &mut places[usize::from(slot)];
            let value = place.asked.take().expect("asked once");
            if status == 0 {
                place.answered = value;
            }
        }
        if was_over {
            return places;
        }
        for slot in 0..REQUESTS_MAX {
            let place = &mut places[usize::from(slot)];
            if place.asked.is_none() {
                next = next % 250 + 1;
                place.asked = Some(next);
                let bytes = vec![next; DATA_BYTES as usize];
                let at = sector(u64::from(slot) * blocks);
                guest.request(0, slot, kind::OUT, at, Data::Out(&bytes));
            }
        }
        guest.kick(0);
    }
}

/// Goal: a volume that is deleted below a writing guest keeps in its file all that the guest was
/// answered. Method: a full queue of writes without a pause while the volume is deleted; then each
/// block of the file has what was answered last, or what was in flight.
#[test]
fn a_deletion_keeps_what_a_guest_was_answered() {
    let (_dir, home, node) = node(&small_levels());
    for (round, class) in ["critical", "normal", "critical", "bulk"].into_iter().enumerate() {
        let name = format!("maps{round}");
        node.volume_create(&name, "16MiB", class);
        let mut guest = Guest::new(1);
        guest.connect(&home.join(format!("vhost/{name}.sock")));
        write_all(&mut guest, 1);
        answered(&mut guest, usize::from(REQUESTS_MAX));
        let is_over = AtomicBool::new(false);
        let places = std::thread::scope(|scope| {
            let writing = scope.spawn(|| write_until(&mut guest, &is_over));
            node.layby(&["volume", "delete", &name]);
            is_over.store(true, Ordering::SeqCst);
            writing.join().expect("a guest's thread does not panic")
        });
        let file = std::fs::read(home.join("volumes").join(&name)).expect("it was kept");
        let blocks = file.chunks(BLOCK);
        let written = blocks.take(places.len() * DATA_BYTES as usize / BLOCK).enumerate();
        for (block, bytes) in written {
            let Written { answered, asked } = places[block * BLOCK / DATA_BYTES as usize];
            if answered > 0 {
                let is_it = |value: u8| bytes.iter().all(|byte| *byte == value);
                let is_kept = is_it(answered) || asked.is_some_and(is_it);
                assert!(is_kept, "{class}, block {block}: {} for {answered}", bytes[0]);
            }
        }
    }
    node.stop();
}
