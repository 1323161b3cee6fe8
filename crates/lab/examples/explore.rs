//! Exploration.
#![allow(clippy::all, clippy::print_stdout, clippy::wildcard_imports)]
use layby_lab::padsa::*;
use layby_sim::fleet::Architecture;
use layby_trace::*;
use layby_types::Nanos;
fn main() {
    let a: Vec<String> = std::env::args().collect();
    let g = |i: usize, d: u64| a.get(i).and_then(|s| s.parse().ok()).unwrap_or(d);
    let (rate, s, period, span, foot) = (g(1, 1000), g(2, 16384), g(3, 10), g(4, 60), g(5, 4096));
    let road = Road {
        vehicles: VehicleSpec { span: Nanos::from_secs(span), ..VehicleSpec::DEFAULT },
        pace: Pace {
            small_per_second: rate,
            large_per_second: rate / 10,
            small_footprint: foot * 4096,
            large_footprint: 1 << 33,
        },
        slots: [s as u32 / 16, s as u32 / 4, s as u32],
        period: Nanos::from_secs(period),
        unit_blocks: 8,
        seed: 1,
    };
    for w in [Workload::A, Workload::B, Workload::C, Workload::D] {
        let mut base = None;
        for arch in Architecture::ALL {
            let t = std::time::Instant::now();
            let sums = run(&road, w, arch);
            print!("{w:?} {:22}", arch.name());
            let mut row = vec![];
            for side in [Side::Critical, Side::Normal, Side::All] {
                let v = sums.side(side);
                let r = v.read_ns / v.blocks_read() as f64;
                let wr = v.write_ns / v.blocks_written() as f64;
                let b = (v.read_ns + v.write_ns) / (v.blocks_read() + v.blocks_written()) as f64;
                print!(
                    " | {side:?} r {:8.0} w {:8.0} rw {:8.0} hit {:.3}",
                    r,
                    wr,
                    b,
                    v.hit_ratio()
                );
                row.push([r, wr, b]);
            }
            let c = sums.side(Side::Critical);
            let br = c.blocks_read() as f64;
            print!(
                " | D {:.3} N {:.3} S {:.3}",
                c.hits[0] as f64 / br,
                c.hits[1] as f64 / br,
                c.hits[2] as f64 / br
            );
            print!(
                " | wN {} wS {} Z {}",
                sums.report.levels[1].writes,
                sums.report.levels[2].writes,
                sums.report.home_bytes_written / 4096
            );
            println!(" {:.1}s", t.elapsed().as_secs_f64());
            if arch == Architecture::Etica {
                base = Some(row.clone());
            }
            if let Some(b) = &base {
                for (i, n) in ["SC", "N ", "al"].iter().enumerate() {
                    print!(
                        "   {n} r {:+.1} % w {:+.1} % rw {:+.1} %",
                        (row[i][0] / b[i][0] - 1.0) * 100.0,
                        (row[i][1] / b[i][1] - 1.0) * 100.0,
                        (row[i][2] / b[i][2] - 1.0) * 100.0
                    );
                }
                println!();
            }
        }
    }
}
