//! The experiment of links: forecasts beside the naive one, and what they do to admission.
//!
//! How: each shape of link is drawn by seed, and each forecast of the node's own is told interval
//! by interval what it carried, and asked, before it is told, what it will. Requests with a time
//! to be in the cloud in are put to the node's own admission, once with every forecast; the link
//! model says whether each would have been met. Recorded links come on top.
//! Invariant: nothing is asked after it was told; every forecast has the same links and requests;
//! the same options give the same document on the same platform.
//! Cost: about five seconds for five seeds on one core.
//! Source: Sondur, Kant, Vucetic and Byers, "Storage on the edge", section VI, which asks for
//! admission by a prediction of the link, evaluated by experiment.

mod claims;
mod measure;
mod sections;

use layby_sim::policy::forecast as policy;

use crate::{Document, Options, Progress, RecordedLink};
use layby_trace::{LinkShape, LinkSpec, LinkTrace};
use measure::Measured;

/// Seconds of a drawn trace, and of its samples.
const USUAL: (u32, u32) = (7200, 1);
/// The same where the day's rhythm matters.
const DAY: (u32, u32) = (86_400, 10);

/// A link under several seeds.
struct Row {
    name: String,
    /// What is known of where it comes from.
    source: String,
    /// By seed; one for a recorded link.
    runs: Vec<Measured>,
}

impl Row {
    fn median(&self, figure: impl Fn(&Measured) -> f64) -> f64 {
        crate::median::median(self.runs.iter().map(figure))
    }
    /// The least and the greatest.
    fn spread(&self, figure: impl Fn(&Measured) -> f64) -> (f64, f64) {
        let figures = || self.runs.iter().map(&figure);
        (figures().fold(f64::MAX, f64::min), figures().fold(f64::MIN, f64::max))
    }
}

fn extent(shape: LinkShape) -> (u32, u32) {
    if shape == LinkShape::Congested { DAY } else { USUAL }
}

fn draw(shape: LinkShape, seed: u64, part: u32) -> LinkTrace {
    let (seconds, interval_seconds) = extent(shape);
    let parameters = shape.parameters();
    LinkSpec { parameters, seconds: seconds / part, interval_seconds, seed }.draw()
}

/// Runs everything. Panics when `options.runs` is zero.
pub(crate) fn run(options: &Options, progress: &mut dyn FnMut(Progress)) -> Document {
    assert!(options.runs > 0, "no run, no figure");
    let rows = measure(options, 1, progress);
    document(options, &rows)
}

/// Every link; drawn ones so many times shorter than usual.
fn measure(options: &Options, part: u32, progress: &mut dyn FnMut(Progress)) -> Vec<Row> {
    let total = LinkShape::ALL.len() as u32 * options.runs + options.links.len() as u32;
    let mut done = 0;
    let mut step = || {
        done += 1;
        progress(Progress { done, total });
    };
    let mut rows = Vec::new();
    for shape in LinkShape::ALL {
        let runs = (0..u64::from(options.runs)).map(|run| {
            let seed = options.seed.wrapping_add(run);
            let measured = Measured::of(&draw(shape, seed, part), seed);
            step();
            measured
        });
        let (name, source) = (shape.name().to_owned(), shape.source().to_owned());
        rows.push(Row { name, source, runs: runs.collect() });
    }
    for RecordedLink { name, trace } in &options.links {
        let runs = vec![Measured::of(trace, options.seed)];
        rows.push(Row { name: name.clone(), source: "recorded".into(), runs });
        step();
    }
    rows
}

fn document(options: &Options, rows: &[Row]) -> Document {
    let links = " --link FILE".repeat(options.links.len());
    Document {
        title: "Links: forecasts of an uplink's bandwidth, beside the naive one".into(),
        source: "The node's own forecasts and admission, on links drawn after public measurements \
                 of LTE, 5G and satellites. Errors are mean absolute ones over all intervals, \
                 relative to naive's; figures are medians over the seeds."
            .into(),
        command: format!(
            "layby lab run links --seed {} --runs {}{links}",
            options.seed, options.runs
        ),
        claims: claims::all(rows),
        sections: sections::all(options, rows),
    }
}

#[cfg(test)]
mod tests;
