//! Exploration.
#![allow(clippy::all, clippy::print_stdout, clippy::wildcard_imports)]
use layby_lab::*;
fn main() {
    let runs = std::env::args().nth(1).and_then(|s| s.parse().ok()).unwrap_or(1);
    let options = Options { runs, ..Options::default() };
    let t = std::time::Instant::now();
    let d = Experiment::Padsa.run(&options, &mut |p| {
        eprintln!("{}/{} {:.1}", p.done, p.total, t.elapsed().as_secs_f64())
    });
    for c in &d.claims {
        println!("{:5} {} | {} | {}", c.holds, c.what, c.expected, c.found);
    }
    for s in &d.sections {
        println!("## {}", s.heading);
        if let Some(t) = &s.table {
            println!("{}", t.columns.join(" | "));
            for r in &t.rows {
                println!("{}", r.join(" | "));
            }
        }
    }
    std::fs::write("/tmp/padsa.html", d.html()).unwrap();
}
