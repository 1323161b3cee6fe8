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

mod found;
mod measure;
mod sections;

use layby_sim::policy::forecast as policy;

use crate::{Document, Options, Progress, RecordedLink, Unfit, parallel, seeds_of};
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
    /// One seed alone; a recorded link has no other.
    fn seed(&self, at: usize) -> Row {
        let runs = vec![self.runs[at.min(self.runs.len() - 1)].clone()];
        Row { name: self.name.clone(), source: self.source.clone(), runs }
    }
    /// The least and the greatest of those that are numbers, if any is.
    fn spread(&self, figure: impl Fn(&Measured) -> f64) -> Option<(f64, f64)> {
        crate::document::extent(self.runs.iter().map(figure))
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

/// Intervals of a recorded link differ by at most this part of the longest.
const UNEVEN_PART: u64 = 1000;

/// Whether forecasts can be told apart on a link, and requests be put.
pub(crate) fn check(trace: &LinkTrace) -> Result<(), Unfit> {
    let (intervals, least) = (trace.samples.len(), measure::INTERVALS_MIN);
    if intervals < least {
        return Err(Unfit::Short { intervals, least });
    }
    let lines = trace.samples.windows(2).map(|pair| pair[1].at - pair[0].at);
    let (shortest, longest) = (lines.clone().min(), lines.max());
    let (shortest, longest) = shortest.zip(longest).expect("it is longer than two intervals");
    // Times that were rounded when they were written differ by less.
    if longest.0 - shortest.0 > longest.0 / UNEVEN_PART {
        return Err(Unfit::Uneven { shortest, longest });
    }
    let bytes_per_second = trace.samples[0].bytes_per_second;
    let is_even = trace.samples.iter().all(|one| one.bytes_per_second == bytes_per_second);
    if is_even { Err(Unfit::Even { bytes_per_second }) } else { Ok(()) }
}

/// Runs everything. Panics when `options.runs` is zero.
pub(crate) fn run(options: &Options, progress: &mut dyn FnMut(Progress)) -> Document {
    let rows = measure(options, 1, progress);
    whole(options, &rows)
}

/// The document of all seeds.
fn whole(options: &Options, rows: &[Row]) -> Document {
    let seed = |at: usize| -> Vec<Row> { rows.iter().map(|row| row.seed(at)).collect() };
    let seeds = (0..options.runs as usize).map(|at| document(options, &seed(at)));
    document(options, rows).over_seeds(&seeds.collect::<Vec<_>>())
}

/// Every link; drawn ones so many times shorter than usual.
fn measure(options: &Options, part: u32, progress: &mut dyn FnMut(Progress)) -> Vec<Row> {
    let seeds = parallel::seeds(options);
    let drawn =
        LinkShape::ALL.iter().flat_map(|shape| seeds.iter().map(|seed| (Ok(*shape), *seed)));
    let recorded = options.links.iter().map(|link| (Err(link), options.seed));
    let items: Vec<(Result<LinkShape, &RecordedLink>, u64)> = drawn.chain(recorded).collect();
    let mut found = parallel::each(&items, progress, |(link, seed)| match link {
        Ok(shape) => Measured::of(&draw(*shape, *seed, part), *seed),
        Err(recorded) => Measured::of(&recorded.trace, *seed),
    })
    .into_iter();
    let mut rows = Vec::new();
    for shape in LinkShape::ALL {
        let (name, source) = (shape.name().to_owned(), shape.source().to_owned());
        rows.push(Row { name, source, runs: found.by_ref().take(seeds.len()).collect() });
    }
    for (link, measured) in options.links.iter().zip(found) {
        rows.push(Row { name: link.name.clone(), source: "recorded".into(), runs: vec![measured] });
    }
    rows
}

fn document(options: &Options, rows: &[Row]) -> Document {
    Document {
        title: "Links: forecasts of an uplink's bandwidth, beside the naive one".into(),
        citation:
            "Sanjeev Sondur, Krishna Kant, Slobodan Vucetic and Brandon Byers, Storage on the \
                   Edge: Evaluating Cloud Backed Edge Storage in Cyberphysical Systems, section VI"
                .into(),
        source: "The node's own forecasts and admission, on links drawn after public measurements \
                 of LTE, 5G and satellites. Errors are mean absolute ones over all intervals, \
                 relative to naive's; figures are medians over the seeds. The paper prints none, \
                 so none is claimed."
            .into(),
        command: format!(
            "layby lab run links --seed {} --runs {}{}",
            options.seed,
            options.runs,
            options.named_files()
        ),
        seeds: seeds_of(options),
        origin: options.origin.clone(),
        claims: Vec::new(),
        measurements: found::all(rows),
        sections: sections::all(options, rows),
    }
}

#[cfg(test)]
mod tests;
