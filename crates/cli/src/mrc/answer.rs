//! What `layby mrc` answers: tables with a bar per size, CSV, or JSON.

use super::spread::Spread;
use super::{Measured, MrcArguments};
use crate::output::{Failure, Output, bytes, table};
use layby_sim::policy::curve::{Counted, Curve};
use layby_sim::single::{CurveKind, References};
use layby_trace::{Reader, Trace, Unit};
use serde::Serialize;
use std::time::Duration;

/// The smallest size shown is the largest over this.
const SIZES_SPAN: f64 = 1024.0;
/// Sizes at even distances, up to the exact curve's greatest reuse distance, over which the error
/// is averaged.
const SIZES_COMPARED: u64 = 100;
/// Blocks below which a sample says little: 1,900 of ARC OLTP are still off by 0.11 at worst.
const BLOCKS_FEW: u32 = 1000;
/// Characters of a bar that stands for a miss ratio of one.
const BAR_CHARS: f64 = 40.0;

/// The answer for scripts.
#[derive(Debug, Serialize)]
pub(super) struct MrcAnswer {
    format: &'static str,
    /// `bytes` or `objects`: what offsets are.
    unit: &'static str,
    block_bytes: u32,
    /// `reads`, `writes` or `both`.
    counted: &'static str,
    /// Trims and flushes.
    passed_over: u64,
    /// Records left out by `--lenient`.
    skipped: u64,
    /// From beginning to end, reading included.
    seconds: f64,
    curves: Vec<CurveAnswer>,
}

#[derive(Debug, Serialize)]
struct CurveAnswer {
    /// `exact`, `sampled` or `bounded`.
    kind: &'static str,
    /// Null for an exact curve.
    seed: Option<u64>,
    /// The size that one followed block stands for: smaller ones cannot be told apart. Null for an
    /// exact curve.
    resolution_blocks: Option<u64>,
    /// Null for all volumes together.
    volume: Option<u32>,
    volume_name: Option<String>,
    /// Requests that count.
    requests: u64,
    /// Blocks followed.
    blocks: u32,
    memory_bytes: usize,
    /// In the curve alone, without reading.
    seconds: f64,
    /// None where no block was followed.
    points: Vec<PointAnswer>,
    /// What makes the curve a poor one.
    warning: Option<String>,
    /// Null unless compared.
    error: Option<ErrorAnswer>,
    /// Null unless there are several seeds.
    spread: Option<SpreadAnswer>,
}

#[derive(Debug, Serialize)]
struct PointAnswer {
    cache_blocks: u64,
    /// Null where no request counts.
    miss_ratio: Option<f64>,
    /// The standard deviation of the miss ratio over the seeds; null unless there are several.
    miss_ratio_deviation: Option<f64>,
}

/// How far the samples of several seeds lie apart: the standard deviation of their miss ratios.
#[derive(Debug, Serialize)]
struct SpreadAnswer {
    /// Samples that follow a block and have a request that counts.
    seeds: usize,
    /// Over sizes at even distances up to the greatest reuse distance of any sample.
    mean: f64,
    /// Over these and all sizes shown.
    worst: f64,
    worst_cache_blocks: u64,
}

impl SpreadAnswer {
    fn new(spread: &Spread<'_>, sizes: &[u64]) -> Self {
        let even = compared(spread.size_max());
        let mean = even.clone().map(|size| spread.deviation(size)).sum::<f64>();
        let all = even.chain(sizes.iter().copied()).map(|size| (size, spread.deviation(size)));
        let worst = all.max_by(|one, other| one.1.total_cmp(&other.1)).unwrap_or_default();
        SpreadAnswer {
            seeds: spread.seeds(),
            mean: mean / SIZES_COMPARED as f64,
            worst: worst.1,
            worst_cache_blocks: worst.0,
        }
    }
}

/// How far a curve is from the exact one, in miss ratio.
#[derive(Debug, Serialize)]
struct ErrorAnswer {
    /// Over sizes at even distances up to the greatest reuse distance.
    mean: f64,
    /// Over these and all sizes shown.
    worst: f64,
    worst_cache_blocks: u64,
    /// The same over sizes that the sample can tell apart.
    worst_resolved: f64,
    worst_resolved_cache_blocks: u64,
}

impl ErrorAnswer {
    fn new(exact: &Curve, curve: &Curve, counted: Counted, sizes: &[u64], least: u64) -> Self {
        let all = compared(exact.size_max()).chain(sizes.iter().copied());
        let resolved = all.clone().filter(|size| *size >= least);
        let [even, all, resolved] = [
            exact.difference(curve, counted, compared(exact.size_max())),
            exact.difference(curve, counted, all),
            exact.difference(curve, counted, resolved),
        ];
        ErrorAnswer {
            mean: even.mean,
            worst: all.worst,
            worst_cache_blocks: all.worst_size,
            worst_resolved: resolved.worst,
            worst_resolved_cache_blocks: resolved.worst_size,
        }
    }
}

impl MrcAnswer {
    /// `None` where there was nothing to measure.
    pub(super) fn new(
        arguments: &MrcArguments,
        trace: &Trace,
        references: &References,
        measured: &[Measured],
        took: Duration,
    ) -> Option<Self> {
        let counted = Counted::from(arguments.counted);
        let mut curves = Vec::with_capacity(measured.len());
        for volume in measured.chunk_by(|one, other| one.volume == other.volume) {
            let drawn: Vec<Curve> = volume.iter().map(|measured| measured.run.curve()).collect();
            let all = || volume.iter().zip(&drawn);
            let exact = all().find(|(measured, _)| measured.kind == CurveKind::Exact);
            let truth = exact.map(|(_, curve)| curve).filter(|_| arguments.compare);
            let samples = all().filter(|(measured, _)| {
                measured.kind != CurveKind::Exact && measured.run.blocks() > 0
            });
            let samples: Vec<&Curve> = samples.map(|(_, curve)| curve).collect();
            let spread = Spread::new(counted, samples);
            curves.extend(all().map(|(measured, curve)| {
                CurveAnswer::new(arguments, trace, (measured, curve), truth, &spread)
            }));
        }
        let any = curves.iter().any(|curve| curve.requests > 0);
        any.then(|| MrcAnswer {
            format: trace.format().name(),
            unit: if trace.unit() == Unit::Bytes { "bytes" } else { "objects" },
            block_bytes: arguments.block.block_size.bytes(),
            counted: counted_name(counted),
            passed_over: references.passed_over(),
            skipped: trace.skipped().total(),
            seconds: took.as_secs_f64(),
            curves,
        })
    }
}

fn counted_name(counted: Counted) -> &'static str {
    match counted {
        Counted::Reads => "reads",
        Counted::Writes => "writes",
        Counted::Both => "both",
    }
}

impl CurveAnswer {
    fn new(
        arguments: &MrcArguments,
        trace: &Trace,
        (measured, curve): (&Measured, &Curve),
        exact: Option<&Curve>,
        spread: &Spread<'_>,
    ) -> Self {
        let counted = Counted::from(arguments.counted);
        let (kind, seed) = match measured.kind {
            CurveKind::Exact => ("exact", None),
            CurveKind::Sampled { seed, .. } => ("sampled", Some(seed)),
            CurveKind::Bounded { seed, .. } => ("bounded", Some(seed)),
        };
        let requests = curve.requests(counted);
        let spread = Some(spread).filter(|spread| seed.is_some() && spread.is_known());
        // Curves that are compared, or of several seeds, are shown at the same sizes.
        let size_max = exact.map(Curve::size_max).or_else(|| spread.map(Spread::size_max));
        let sizes = shown(size_max.unwrap_or_else(|| curve.size_max()), arguments.points);
        let (blocks, rate) = (measured.run.blocks(), measured.run.rate());
        let resolution_blocks = seed.map(|_| (1.0 / rate.part()).ceil() as u64);
        let exact = exact.filter(|_| seed.is_some() && blocks > 0 && requests > 0.0);
        let least = resolution_blocks.unwrap_or(0);
        let error = exact.map(|exact| ErrorAnswer::new(exact, curve, counted, &sizes, least));
        let point = |cache_blocks: &u64| {
            let miss_ratio = (requests > 0.0).then(|| curve.miss_ratio(counted, *cache_blocks));
            let miss_ratio_deviation = spread.map(|spread| spread.deviation(*cache_blocks));
            PointAnswer { cache_blocks: *cache_blocks, miss_ratio, miss_ratio_deviation }
        };
        let spread = spread.map(|spread| SpreadAnswer::new(spread, &sizes));
        let sizes = if blocks > 0 { sizes } else { Vec::new() };
        let warning = seed.and_then(|_| warning(blocks));
        let name = measured.volume.and_then(|volume| trace.volumes().get(volume.0 as usize));
        CurveAnswer {
            kind,
            seed,
            resolution_blocks,
            volume: measured.volume.map(|volume| volume.0),
            volume_name: name.cloned(),
            requests: requests as u64,
            blocks,
            memory_bytes: measured.run.memory_bytes(),
            seconds: measured.time.as_secs_f64(),
            points: sizes.iter().map(point).collect(),
            warning,
            error,
            spread,
        }
    }

    fn title(&self) -> String {
        let seed = self.seed.map_or(String::new(), |seed| format!(", seed {seed}"));
        let name = self.volume_name.as_ref().map_or(String::new(), |name| format!(" ({name})"));
        let volume = self.volume.map_or(String::new(), |volume| format!(", volume {volume}{name}"));
        format!("{}{seed}{volume}", self.kind)
    }

    /// What a reader must know of the table.
    fn notes(&self) -> Vec<String> {
        let mut notes: Vec<String> =
            self.warning.iter().map(|warning| format!("warning: {warning}")).collect();
        notes.extend(self.uncertainty());
        let Some(error) = &self.error else { return notes };
        notes.push(format!(
            "mean absolute error {:.5} over {SIZES_COMPARED} even sizes; worst {:.5} at {} blocks, \
             over these and the sizes shown",
            error.mean, error.worst, error.worst_cache_blocks
        ));
        if let Some(least) = self.resolution_blocks
            && self.points.iter().any(|point| point.cache_blocks < least)
        {
            notes.push(format!(
                "one followed block stands for {least}, so the sample cannot tell smaller sizes \
                 apart; from there on, worst {:.5} at {} blocks",
                error.worst_resolved, error.worst_resolved_cache_blocks
            ));
        }
        notes
    }
}

impl CurveAnswer {
    /// How uncertain a sample is, where the exact curve is not there to tell.
    fn uncertainty(&self) -> Option<String> {
        if self.seed.is_none() || self.error.is_some() || self.blocks == 0 || self.requests == 0 {
            return None;
        }
        Some(match &self.spread {
            Some(spread) => format!(
                "standard deviation of the miss ratio over {} seeds: mean {:.5} over \
                 {SIZES_COMPARED} even sizes; worst {:.5} at {} blocks, over these and the sizes \
                 shown",
                spread.seeds, spread.mean, spread.worst, spread.worst_cache_blocks
            ),
            None => "one seed shows no uncertainty: name several, such as --seed 1,2,3, for the \
                     standard deviation over them, or --compare"
                .to_owned(),
        })
    }
}

/// What is to be said of a sample of so many blocks.
fn warning(blocks: u32) -> Option<String> {
    match blocks {
        0 => Some("the sample follows no block, so there is no curve".to_owned()),
        few if few < BLOCKS_FEW => Some(format!(
            "the sample follows only {few} blocks; take a higher rate, or compare several seeds"
        )),
        _ => None,
    }
}

/// Sizes up to `size_max`, each so many times the one before.
fn shown(size_max: u64, points: u32) -> Vec<u64> {
    let steps = f64::from(points.max(2) - 1);
    let size = |point: u32| {
        let part = SIZES_SPAN.powf(f64::from(point) / steps - 1.0);
        ((size_max as f64 * part + 0.5) as u64).clamp(1, size_max.max(1))
    };
    let mut sizes: Vec<u64> = (0..points).map(size).collect();
    sizes.dedup();
    sizes
}

/// Sizes at even distances up to `size_max`.
fn compared(size_max: u64) -> impl Iterator<Item = u64> + Clone {
    (1..=SIZES_COMPARED).map(move |step| (size_max * step / SIZES_COMPARED).max(1))
}

impl MrcAnswer {
    /// Whether curves are of samples, none of which follows a block.
    pub(super) fn follows_nothing(&self) -> bool {
        let mut sampled = self.curves.iter().filter(|curve| curve.seed.is_some()).peekable();
        sampled.peek().is_some() && sampled.all(|curve| curve.blocks == 0)
    }

    /// A table per curve.
    pub(super) fn show(&self, output: &mut Output) -> Result<(), Failure> {
        for curve in &self.curves {
            let counted = if self.counted == "both" { "requests" } else { self.counted };
            let (title, requests, blocks) = (curve.title(), curve.requests, curve.blocks);
            output.line(&format!("{title}: {requests} {counted}, {blocks} blocks followed"))?;
            if !curve.points.is_empty() {
                output.line(&self.table(curve))?;
            }
            for line in curve.notes() {
                output.line(&line)?;
            }
        }
        for line in self.left_out() {
            output.line(&line)?;
        }
        output.line(&format!("{:.2} s in all, reading included", self.seconds))
    }

    /// Records that are in no curve.
    fn left_out(&self) -> impl Iterator<Item = String> {
        let counts = [
            (self.passed_over, "trims and flushes were passed over"),
            (self.skipped, "records were wrong and left out"),
        ];
        let some = counts.into_iter().filter(|(count, _)| *count > 0);
        some.map(|(count, what)| format!("{count} {what}"))
    }

    fn table(&self, curve: &CurveAnswer) -> String {
        let is_spread = curve.spread.is_some();
        let mut rows = match is_spread {
            true => table(["blocks", "size", "miss ratio", "± over seeds", ""], 0),
            false => table(["blocks", "size", "miss ratio", ""], 0),
        };
        if let Some(bars) = rows.column_mut(if is_spread { 4 } else { 3 }) {
            bars.set_cell_alignment(comfy_table::CellAlignment::Left);
        }
        let figure =
            |figure: Option<f64>| figure.map_or("-".to_owned(), |part| format!("{part:.4}"));
        for point in &curve.points {
            let size = match self.unit {
                "objects" => "-".to_owned(),
                _ => bytes(point.cache_blocks * u64::from(self.block_bytes)),
            };
            let bar = "#".repeat((point.miss_ratio.unwrap_or(0.0) * BAR_CHARS + 0.5) as usize);
            let mut row = vec![point.cache_blocks.to_string(), size, figure(point.miss_ratio)];
            row.extend(is_spread.then(|| figure(point.miss_ratio_deviation)));
            row.push(bar);
            rows.add_row(row);
        }
        rows.to_string()
    }

    /// A line per point; what is to be said beside goes where reports go.
    pub(super) fn csv(&self, output: &mut Output) -> Result<(), Failure> {
        output.line("kind,seed,volume,cache_blocks,miss_ratio,miss_ratio_deviation")?;
        let figure =
            |figure: Option<f64>| figure.map_or(String::new(), |figure| figure.to_string());
        for curve in &self.curves {
            for note in curve.notes() {
                output.progress(&format!("{}: {note}", curve.title()));
            }
            let seed = curve.seed.map_or(String::new(), |seed| seed.to_string());
            let volume = curve.volume.map_or(String::new(), |volume| volume.to_string());
            for point in &curve.points {
                let (kind, cache_blocks) = (curve.kind, point.cache_blocks);
                let figures = [figure(point.miss_ratio), figure(point.miss_ratio_deviation)];
                let figures = figures.join(",");
                output.line(&format!("{kind},{seed},{volume},{cache_blocks},{figures}"))?;
            }
        }
        self.left_out().for_each(|line| output.progress(&line));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: sizes rise to the largest and are distinct, however few blocks there are. Method:
    /// several ends and counts.
    #[test]
    fn sizes_rise() {
        for size_max in [0, 1, 5, 1000, 1 << 40] {
            for points in [2, 3, 20, 100] {
                let sizes = shown(size_max, points);
                assert!(sizes.is_sorted_by(|one, other| one < other), "{sizes:?}");
                assert_eq!(sizes.last(), Some(&size_max.max(1)));
                assert!(sizes[0] >= 1 && compared(size_max).all(|size| size >= 1));
            }
        }
    }
}
