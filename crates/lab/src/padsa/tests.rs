//! The experiment's shape, on a road that is small enough for every test run.

use super::*;
use crate::{Claim, Experiment, Unfit};
use Architecture::{Layby, Padsa, Shared};

/// A sixteenth of the experiment's node and pace, for a quarter of its time.
fn small_road(seed: u64) -> Road {
    let whole = road(seed, None);
    let span = Nanos::from_secs(15);
    Road {
        stays: VehicleSpec { span, seed, ..VehicleSpec::DEFAULT }.draw(),
        pace: Pace {
            small_per_second: whole.pace.small_per_second / 8,
            large_per_second: whole.pace.large_per_second / 8,
            small_footprint: whole.pace.small_footprint / 16,
            ..whole.pace
        },
        slots: whole.slots.map(|slots| slots / 16),
        unit_blocks: 4,
        ..whole
    }
}

fn figures(workload: layby_trace::Workload, architecture: Architecture) -> Figures {
    Figures::of(&drive(&small_road(1), workload, architecture))
}

/// Goal: the paper's shape: critical services gain, more the more streams there are; normal reads
/// of A to C stay within 1 %. Method: a small road per workload.
#[test]
fn the_shape_is_the_papers() {
    let mut gains = Vec::new();
    for workload in [WORKLOADS[0], WORKLOADS[1], WORKLOADS[2]] {
        let (base, padsa) = (figures(workload, Shared), figures(workload, Padsa));
        gains.push(figures::change(base.read[0], padsa.read[0]));
        let normal = figures::change(base.read[1], padsa.read[1]);
        assert!(normal.abs() <= 1.0, "{workload:?}: normal reads changed by {normal} %");
        assert!(padsa.worn[0] < base.worn[0], "{workload:?}: streams reached NVM");
    }
    assert!(gains[0] < -30.0 && gains[1] < gains[0] && gains[2] < gains[1], "{gains:?}");
}

/// Goal: this project's rules, kept reads among them, cost nobody anything. Method: workload D,
/// writes counted.
#[test]
fn ours_is_no_worse_for_anybody() {
    let [base, padsa, ours] = [Shared, Padsa, Layby].map(|a| figures(WORKLOADS[3], a));
    assert!(ours.both[0] <= padsa.both[0], "{} against {}", ours.both[0], padsa.both[0]);
    assert!(ours.both[1] <= base.both[1] * 1.01, "{} against {}", ours.both[1], base.both[1]);
}

/// Goal: a document has a figure for everything it names. Method: made-up results.
#[test]
fn documents_are_complete() {
    let document = document(&crate::Options::default(), &Found::default());
    assert!(document.html().contains("Fig. 10") && !document.claims.is_empty());
    assert!(document.command.contains(Experiment::Padsa.name()));
    assert!(document.sections.iter().all(|section| section.table.is_some()));
}

/// Goal: no claim follows from constants: under A to C normal services read nothing twice, so every
/// architecture reads all of it from home, and no run could say otherwise. Method: a road per
/// workload, and the claims' names.
#[test]
fn what_cannot_differ_is_not_claimed() {
    for workload in [WORKLOADS[0], WORKLOADS[1], WORKLOADS[2]] {
        for architecture in Architecture::ALL {
            assert_eq!(figures(workload, architecture).hits[1], 0.0, "{workload:?}");
        }
    }
    let document = document(&crate::Options::default(), &Found::default());
    let normal = document.claims.iter().map(Claim::what).filter(|what| what.contains("normal"));
    assert!(normal.clone().all(|what| what.starts_with("Fig. 7, D")) && normal.count() == 2);
}

/// Goal: what is beside nothing has no figure, and what wears is told in digits that last. Method:
/// made-up wear, 65 and 22 times.
#[test]
fn wear_is_told_as_it_is() {
    let mut results = Results::default();
    for (row, times) in results.iter_mut().zip([65.0, 22.0, 30.0, 40.0]) {
        row[place(Padsa)].worn = [100.0, 1000.0];
        row[place(Layby)].worn = [100.0 * times, 125.0];
    }
    let measured = claims::measured(&results, &cost::Costs::default());
    let found = |what: &str| {
        &measured.iter().find(|one| one.what.contains(what)).expect("it is there").found
    };
    assert_eq!(found("blocks written to NVM"), "22.0 to 65.0 times");
    assert_eq!(found("blocks written to SSD"), "0.125 to 0.125 times");
}

/// Goal: other devices change costs and decide no hit of a shared LRU, and the report says that
/// they are not the paper's. Method: a road with an SSD of a quarter of the latency, and without.
#[test]
fn other_devices_are_told() {
    let base = small_road(1);
    let mut devices = PadsaDevices::default();
    devices.levels[2].read = Nanos(devices.levels[2].read.0 / 4);
    let other = Road { devices: devices.clone(), ..base.clone() };
    let [base, other] = [base, other].map(|road| drive(&road, WORKLOADS[0], Shared));
    let [base, other] = [base, other].map(|sums| sums.side(Side::All));
    assert_eq!((base.hits, base.misses), (other.hits, other.misses));
    assert!(other.read_ns < base.read_ns);
    let files = vec![("--devices".to_owned(), "my ssd.toml".to_owned())];
    let options = crate::Options { devices: Some(devices), files, ..crate::Options::default() };
    let told = document(&options, &Found::default());
    assert!(
        told.source.contains("other devices") && told.command.ends_with("--devices 'my ssd.toml'")
    );
    assert!(told.html().contains("read 6.25 µs"));
    let usual = document(&crate::Options::default(), &Found::default());
    assert!(usual.source.contains("Table I") && !usual.html().contains("not the paper"));
}

/// Goal: a figure about nothing is a dash, in cells, measurements and claims. Method: a road of one
/// vehicle in sight for a frame, on which services hardly begin, and one without vehicles.
#[test]
fn figures_about_nothing_are_dashes() {
    let frame = layby_trace::Stay { arrives: Nanos::ZERO, leaves: Nanos::from_millis(40) };
    for stays in [vec![frame], vec![]] {
        let road = Road { stays, ..small_road(1) };
        let of = |workload: usize, architecture: usize| {
            Figures::of(&drive(&road, WORKLOADS[workload], Architecture::ALL[architecture]))
        };
        let results: Results = std::array::from_fn(|row| std::array::from_fn(|at| of(row, at)));
        let found = Found { results: [results; Tuning::ALL.len()], ..Found::default() };
        let found = document(&crate::Options::default(), &found);
        let measured = found.measurements.iter().map(|one| one.found.clone());
        let claims = found.claims.iter().map(Claim::found);
        let rows = found.sections.iter().filter_map(|section| section.table.as_ref());
        let cells = rows.flat_map(|table| table.rows.iter().flatten().cloned());
        let all: Vec<String> = measured.chain(claims).chain(cells).collect();
        for cell in &all {
            assert!(!cell.contains("NaN") && !cell.contains("inf"), "{cell}");
            assert!(cell.chars().count() < 200, "{cell}");
        }
        assert!(all.iter().filter(|cell| cell.contains('–')).count() > 10);
        let nothing = |what: &str| {
            let claim = found.claims.iter().find(|claim| claim.what().contains(what));
            claim.is_some_and(|claim| claim.found() == "–" && !claim.holds())
        };
        assert!(!road.stays.is_empty() || nothing("most endurance of SSD") && nothing("Fig. 8"));
    }
}

/// Goal: a recording without vehicles, or too short for a sizing and what follows it, is refused.
/// Method: none, one frame, ten seconds by four vehicles at once, twenty by two with a gap.
#[test]
fn recordings_that_show_nothing_are_refused() {
    let stay =
        |from, until| Stay { arrives: Nanos::from_secs(from), leaves: Nanos::from_secs(until) };
    let refused = |stays: &[Stay]| crate::RecordedVehicles::new(stays.to_vec()).err();
    let frame = Stay { arrives: Nanos::ZERO, leaves: Nanos::from_millis(40) };
    let brief = |in_sight| Some(Unfit::Brief { in_sight, least: Nanos::from_secs(20) });
    assert_eq!(refused(&[]), Some(Unfit::Vehicles));
    assert_eq!(refused(&[frame]), brief(frame.leaves));
    assert_eq!(refused(&[stay(0, 10); 4]), brief(Nanos::from_secs(10)));
    assert_eq!(refused(&[stay(0, 10), stay(2, 5), stay(90, 100)]), None);
}

/// Goal: a recording with more vehicles at once, or in all, than a node can have services for is
/// refused, not run into an assertion. Method: the most that fit and one more, at once and one
/// after the other; vehicles that follow each other closely are there at once, since a service
/// leaves at its next access.
#[test]
fn crowded_recordings_are_refused() {
    let refused = |stays: &[Stay]| crate::RecordedVehicles::new(stays.to_vec()).err();
    let until = |from: u64, until| Stay {
        arrives: Nanos::from_millis(from),
        leaves: Nanos::from_millis(until),
    };
    let crowd = |count: usize| vec![until(0, 30_000); count];
    let most = 4096 / 7;
    assert_eq!(refused(&crowd(most)), None);
    let crowded = Some(Unfit::Crowded { at_once: most + 1, most });
    assert_eq!(refused(&crowd(most + 1)), crowded);
    let follow = |after: u64| [crowd(most), vec![until(30_000 + after, 60_000)]].concat();
    assert_eq!((refused(&follow(1)), refused(&follow(20))), (crowded, None));
    let queue = |count: u64| (0..count).map(|at| until(at * 50, at * 50 + 30)).collect::<Vec<_>>();
    let most = (1 << 20) / 7;
    assert_eq!(refused(&queue(most)), None);
    let many = Unfit::Many { vehicles: most as usize + 1, most: most as usize };
    assert_eq!(refused(&queue(most + 1)), Some(many));
    assert!(many.to_string().contains("149797 vehicles"));
}

/// Goal: texts follow from devices and figures. Method: the paper's devices with an SSD that is
/// dear and fast, and costs under which two levels win everywhere.
#[test]
fn texts_follow_from_devices_and_figures() {
    let mut devices = PadsaDevices::default();
    let ssd = &mut devices.levels[2];
    (ssd.read, ssd.write) = (Nanos::from_micros(1), Nanos::from_micros(2));
    ssd.dollars_per_tb = 100_000;
    let costs = [[[[1.0; 2], [2.0; 2], [3.0; 2]]; 4]; 4];
    let text = |devices: Option<PadsaDevices>| {
        let options = crate::Options { devices, ..crate::Options::default() };
        let found = document(&options, &Found { costs, ..Found::default() });
        let words = found.sections.iter().flat_map(|section| section.text.clone());
        let rows = found.sections.iter().filter_map(|section| section.table.clone());
        let cells = rows.flat_map(|table| table.rows.into_iter().map(|row| row.join(": ")));
        words.chain(cells).collect::<Vec<_>>().join("\n")
    };
    let (other, usual) = (text(Some(devices)), text(None));
    for said in ["SSD, not the paper's: read 1 µs", "0.112 times as much", "takes 4.00 times"] {
        assert!(other.contains(said) && !usual.contains(said), "{said}: {other}");
    }
    for said in ["costs 3.5 times", "takes 400 times as long"] {
        assert!(usual.contains(said) && !other.contains(said), "{said}: {usual}");
    }
    assert_eq!(other.matches("not the paper's").count(), 1, "{other}");
    assert!(!usual.contains("not the paper's"), "{usual}");
    assert!(other.contains("0 at 5 %, 0 at 10 %, 0") && !other.contains("is what 10 % shows"));
}

/// Goal: Fig. 3 is told and drawn by both objectives at every budget: the paper's Eq. 2 counts
/// reads alone, and does not say which budget. Method: made-up costs that three levels win by one
/// only.
#[test]
fn both_objectives_are_told_and_drawn() {
    let costs = [[[[2.0, 2.0], [2.0, 2.0], [3.0, 1.0]]; 4]; 4];
    let found = document(&crate::Options::default(), &Found { costs, ..Found::default() });
    let section = found.sections.iter().find(|section| section.heading.starts_with("Fig. 3"));
    let section = section.expect("it is there");
    let text = section.text.join(" ");
    assert!(text.contains("by reads alone, they win for 0 at 5 %, 0 at 10 %, 0 at 15 %"), "{text}");
    assert!(text.contains("by reads and writes for 4 at 5 %, 4 at 10 %"), "{text}");
    let chart = section.chart.as_ref().expect("it has one");
    assert_eq!(chart.groups.len(), cost::BUDGETS_PERCENT.len() * paper::EXPONENTS.len());
    for (series, (name, gain)) in
        chart.series.iter().zip([("reads", 50.0), ("reads and writes", -50.0)])
    {
        assert_eq!((series.name.as_str(), series.values.len()), (name, chart.groups.len()));
        assert!(series.values.iter().all(|value| *value == gain), "{series:?}");
    }
    assert_eq!(chart.series.len(), 2);
}

/// Goal: no claim follows from the load: the baselines write all that is written to NVM, PADSA what
/// critical services write, so that the ratio is the load's. Method: two workloads, with
/// an NVM of the usual size and of twice it, and the claims' names.
#[test]
fn wear_of_nvm_is_not_claimed() {
    let road = small_road(1);
    let [dram, nvm, ssd] = road.slots;
    for workload in [WORKLOADS[0], WORKLOADS[3]] {
        let worn = |architecture, nvm| {
            let road = Road { slots: [dram, nvm, ssd], ..road.clone() };
            Figures::of(&drive(&road, workload, architecture)).worn[0]
        };
        let [shared, etica] = [Shared, Architecture::Etica].map(|one| worn(one, nvm));
        assert_eq!(shared, etica, "{workload:?}");
        assert_eq!([shared, worn(Padsa, nvm)], [worn(Shared, 2 * nvm), worn(Padsa, 2 * nvm)]);
    }
    let document = document(&crate::Options::default(), &Found::default());
    let names = |what: &str| what.contains("NVM") && what.contains("Fig. 10");
    assert!(!document.claims.iter().any(|claim| names(claim.what())));
    let measured = document.measurements.iter().filter(|one| names(&one.what));
    assert_eq!(measured.count(), 2);
}

fn made(draw: &mut dyn FnMut() -> f64) -> Found {
    let mut found = Found::default();
    for figures in found.results.iter_mut().flatten().flatten() {
        (figures.read, figures.both) = ([draw(), draw(), draw()], [draw(), draw(), draw()]);
        (figures.hits, figures.worn) = ([draw(), draw(), draw()], [draw(), draw()]);
        figures.found = figures.found.map(|_| draw());
    }
    found.costs.iter_mut().flatten().flatten().flatten().for_each(|mean| *mean = draw());
    found
}

/// Goal: with several seeds every figure is the median of the seeds' own. Method: made-up figures
/// of two to four seeds.
#[test]
fn figures_are_medians_over_the_seeds() {
    let options = crate::Options::default();
    crate::document::tests::medians_of_made(
        made,
        |seeds| whole(&options, seeds),
        |one| document(&options, one),
    );
}

/// Goal: every architecture is sized as often as the report prints, by curves that age alike.
/// Method: periods that end on a small road, under each tuning; the words of the parameters.
#[test]
fn all_are_sized_as_often_as_the_report_says() {
    let base = small_road(1);
    let end = base.stays.iter().map(|stay| stay.leaves).max().expect("there are vehicles");
    for tuning in Tuning::ALL {
        let road = Road { tuning, ..base.clone() };
        let sizings = Architecture::ALL.map(|one| drive(&road, WORKLOADS[0], one).sizings);
        assert_eq!(sizings, [end.0 / tuning.period.0; Architecture::ALL.len()], "{tuning:?}");
    }
    let document = document(&crate::Options::default(), &Found::default());
    let table = document.sections[0].table.as_ref().expect("parameters are a table");
    let sizing = table.rows.iter().find(|row| row[0] == "sizing").expect("it is told");
    let told =
        format!("every {} s, whatever the architecture", road(1, None).tuning.period.as_secs_f64());
    assert!(sizing[1].starts_with(&told), "{sizing:?}");
}

/// Goal: what the period and kept reads decide is told for each architecture by itself. Method:
/// made-up latencies: Layby is a fifth faster only where it alone keeps reads or is sized often.
#[test]
fn the_tuning_is_told_by_itself() {
    let mut found = Found::default();
    let both = |found: &mut Found, tuning: usize, one: Architecture, value: f64| {
        found.results[tuning].iter_mut().for_each(|row| row[place(one)].both[0] = value);
    };
    for tuning in 0..Tuning::ALL.len() {
        Architecture::ALL.into_iter().for_each(|one| both(&mut found, tuning, one, 1000.0));
    }
    both(&mut found, 0, Layby, 800.0);
    both(&mut found, 1, Padsa, 500.0);
    both(&mut found, 2, Padsa, 800.0);
    let document = document(&crate::Options::default(), &found);
    let told = |what: &str| {
        let one = document.measurements.iter().find(|one| one.what.ends_with(what));
        one.expect(what).found.as_str()
    };
    assert_eq!(told("against PADSA, reads and writes, A to D"), "-20.00 to -20.00 %");
    assert_eq!(told("neither keeps reads on SSD"), "+0.00 to +0.00 %");
    assert_eq!(told("both keep reads on SSD"), "+0.00 to +0.00 %");
    assert_eq!(told("both sized every 2 s"), "+100.00 to +100.00 %");
    assert_eq!(told("instead of 10: critical services, PADSA"), "-50.00 to -50.00 %");
    assert_eq!(told("instead of 10: critical services, Layby"), "+25.00 to +25.00 %");
    assert_eq!(told("Reads kept on SSD: critical services, Layby"), "-20.00 to -20.00 %");
    assert_eq!(told("Reads kept on SSD: critical services, PADSA"), "-20.00 to -20.00 %");
    let sections = document.sections.iter().rev().take(2);
    assert!(sections.clone().all(|section| section.heading.starts_with("Beyond the paper")));
    assert!(sections.flat_map(|section| &section.table).all(|table| table.rows.len() == 20));
}
