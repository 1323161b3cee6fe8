//! Fig. 3: two levels or three for the same money.
//!
//! How: DRAM is the same everywhere; the rest of the budget buys NVM, SSD, or half of each, at the
//! devices' prices; one safety-critical service reads and writes by Zipf's law, 70/30. What it
//! reads from main storage is kept below DRAM, too.
//! Invariant: all three see the same accesses. Cost: about a second per budget and exponent.

use super::paper::EXPONENTS;
use layby_sim::cache::{AdmissionKind, ClassSpec, LEVELS_MAX, LevelKind, Share, VolumeSpec};
use layby_sim::levels::{Machine, Mode, PadsaDevices, Setup, call, paper_cache};
use layby_trace::{Scatter, Zipf};
use layby_types::{BlockSize, ClassId, Nanos, Operation, Rng, VolumeId};

/// Blocks that the service uses.
const FOOTPRINT_BLOCKS: u64 = 1 << 17;
/// Blocks of DRAM.
const DRAM_BLOCKS: u32 = 1 << 10;
/// Budgets, as parts of the footprint that each buys as NVM, in percent.
pub(super) const BUDGETS_PERCENT: [u32; 4] = [5, 10, 15, 20];
/// Accesses; the first half warms up and does not count.
const ACCESSES: u64 = 600_000;
const READ_PERCENT: u64 = 70;
const VOLUME: VolumeId = VolumeId(1);

/// What the budget was spent on.
pub(super) const SPENDINGS: [&str; 3] = ["DRAM + SSD", "DRAM + NVM", "DRAM + NVM + SSD"];

/// What is counted: the paper's Eq. 2 has reads alone.
pub(super) const OBJECTIVES: [&str; 2] = ["reads", "reads and writes"];

/// Mean latency in nanoseconds of reads, and of reads and writes, by spending.
pub(super) type Means = [[f64; OBJECTIVES.len()]; SPENDINGS.len()];
/// By budget and exponent.
pub(super) type Costs = [[Means; EXPONENTS.len()]; BUDGETS_PERCENT.len()];

/// The means of one seed, at a budget and an exponent. Panics when NVM or SSD has no price.
pub(super) fn means(
    seed: u64,
    devices: &PadsaDevices,
    (budget, exponent): (usize, usize),
) -> Means {
    let nvm = (FOOTPRINT_BLOCKS * u64::from(BUDGETS_PERCENT[budget]) / 100) as u32;
    let half = nvm / 2;
    let ssd = |nvm| ssd_blocks(nvm, devices);
    let spendings = [[0, ssd(nvm)], [nvm, 0], [half, ssd(half)]];
    let exponent = EXPONENTS[exponent];
    spendings.map(|[nvm, ssd]| mean(exponent, machine([nvm, ssd], seed, devices), seed))
}

/// Blocks of SSD for the price of `nvm` blocks of NVM; more than the footprint would stay empty.
fn ssd_blocks(nvm: u32, devices: &PadsaDevices) -> u32 {
    let [_, nvm_price, ssd_price] =
        [0, 1, 2].map(|at| u64::from(devices.levels[at].dollars_per_tb));
    assert!(nvm_price > 0 && ssd_price > 0, "what has no price cannot be bought");
    (u64::from(nvm) * nvm_price / ssd_price).clamp(1, FOOTPRINT_BLOCKS) as u32
}

fn mean(exponent: f64, mut machine: Machine, seed: u64) -> [f64; 2] {
    let mut rng = Rng::new(seed);
    let (zipf, scatter) = (Zipf::new(FOOTPRINT_BLOCKS, exponent), Scatter::new(FOOTPRINT_BLOCKS));
    let block = u64::from(BlockSize::MIN.bytes());
    let mut warm = None;
    for access in 0..ACCESSES {
        if access == ACCESSES / 2 {
            warm = machine.report().volumes.remove(&VOLUME);
        }
        let reads = rng.chance(READ_PERCENT, 100);
        let operation = if reads { Operation::Read } else { Operation::Write };
        let place = scatter.place(zipf.sample(&mut rng));
        machine.submit(Nanos(access * 1000), VOLUME, &call(operation, place * block, block));
    }
    let (warm, all) = (warm.expect("it was taken"), &machine.report().volumes[&VOLUME]);
    let reads = (all.blocks_read() - warm.blocks_read()) as f64;
    let writes = (all.blocks_written() - warm.blocks_written()) as f64;
    let (read_ns, write_ns) = (all.read_ns - warm.read_ns, all.write_ns - warm.write_ns);
    [read_ns / reads, (read_ns + write_ns) / (reads + writes)]
}

fn machine([nvm, ssd]: [u32; 2], seed: u64, devices: &PadsaDevices) -> Machine {
    let [dram_model, nvm_model, ssd_model] = &devices.levels;
    let wanted = [
        (LevelKind::Memory, DRAM_BLOCKS, dram_model),
        (LevelKind::Nvm, nvm, nvm_model),
        (LevelKind::Ssd, ssd, ssd_model),
    ];
    let bought = || wanted.iter().filter(|(_, slots, _)| *slots > 0);
    let class = ClassSpec {
        name: "critical".into(),
        rank: 0,
        levels: u8::MAX >> (8 - bought().count()),
        durable_writes: true,
        borrow: false,
        keep_reads: true,
        latency_objective: None,
        admission: AdmissionKind::All,
        shares: [Share::OPEN; LEVELS_MAX],
    };
    let levels: Vec<(LevelKind, u32)> = bought().map(|(kind, slots, _)| (*kind, *slots)).collect();
    let cache = paper_cache(&levels, vec![class]);
    let setup = Setup {
        cache,
        devices: bought().map(|(.., model)| (*model).clone()).collect(),
        home: devices.home.clone(),
        mode: Mode::Counting,
        seed,
    };
    let mut machine = Machine::new(setup).expect("a sound specification");
    let length = FOOTPRINT_BLOCKS * u64::from(BlockSize::MIN.bytes());
    let shares = [Share::OPEN; LEVELS_MAX];
    let volume = VolumeSpec { id: VOLUME, class: ClassId(0), length, shares, write_through: false };
    machine.add_volume(&volume).expect("it is the only one");
    machine
}
