//! Bars and lines as SVG, for the documents of `bench/`.
//!
//! How: plotters draws into a string: a strip with the legend above, the plot, and a line below
//! that says what made it. A figure is a median; a whisker reaches from the least to the greatest.
//! Invariant: colours are told apart without red and green; the legend covers no figure.
//! Not for: interactive views.

use super::report::Spread;
use plotters::coord::Shift;
use plotters::prelude::{
    ChartBuilder, Color, DrawingArea, IntoDrawingArea, IntoFont, IntoLogRange, LineSeries,
    PathElement, RGBColor, Rectangle, SVGBackend, Text,
};
use plotters::style::{BLACK, WHITE};
use std::error::Error;

const SIZE: (u32, u32) = (900, 400);
/// Heights of the legend above and of the line below.
const STRIP: u32 = 26;
/// Told apart by people who do not see all colours, too (Okabe and Ito).
const COLOURS: [RGBColor; 6] = [
    RGBColor(0x00, 0x72, 0xB2),
    RGBColor(0xE6, 0x9F, 0x00),
    RGBColor(0x00, 0x9E, 0x73),
    RGBColor(0xCC, 0x79, 0xA7),
    RGBColor(0x56, 0xB4, 0xE9),
    RGBColor(0xD5, 0x5E, 0x00),
];

/// A bar per name, lying, and a mark that they are compared with.
pub(crate) struct Bars {
    pub(crate) axis: String,
    pub(crate) bars: Vec<(String, Spread)>,
    pub(crate) mark: f64,
    /// What made it: rounds, commit, day.
    pub(crate) origin: String,
}

/// Lines over a common axis; the upright axis is logarithmic.
pub(crate) struct Lines {
    pub(crate) x_axis: String,
    pub(crate) y_axis: String,
    pub(crate) lines: Vec<(String, Vec<(f64, Spread)>)>,
    /// What made it: rounds, commit, day.
    pub(crate) origin: String,
}

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// The legend's strip, the plot, with what made it written below.
fn areas<'a>(svg: &'a mut String, origin: &str) -> Result<(Area<'a>, Area<'a>), Box<dyn Error>> {
    let root = SVGBackend::with_string(svg, SIZE).into_drawing_area();
    root.fill(&WHITE)?;
    let (legend, rest) = root.split_vertically(STRIP);
    let (plot, below) = rest.split_vertically(SIZE.1 - 2 * STRIP);
    below.draw(&Text::new(origin.to_owned(), (10, 6), ("sans-serif", 12).into_font()))?;
    Ok((legend, plot))
}

fn drawn(draw: impl FnOnce(&mut String) -> Result<(), Box<dyn Error>>) -> String {
    let mut svg = String::new();
    if draw(&mut svg).is_err() {
        svg.clear();
    }
    svg
}

impl Bars {
    /// The drawing; empty where plotters refuses a figure that is no number.
    pub(crate) fn svg(&self) -> String {
        drawn(|svg| self.draw(svg))
    }

    fn draw(&self, svg: &mut String) -> Result<(), Box<dyn Error>> {
        let high = self.bars.iter().map(|(_, bar)| bar.ends[1]).fold(self.mark, f64::max) * 1.1;
        let (_, plot) = areas(svg, &self.origin)?;
        let count = self.bars.len();
        let mut chart = ChartBuilder::on(&plot)
            .margin(10)
            .x_label_area_size(40)
            .y_label_area_size(230)
            .build_cartesian_2d(0.0..high, 0.0..count as f64)?;
        let label = |y: &f64| {
            let is_middle = (y.fract() - 0.5).abs() < 1e-9;
            let row = count.checked_sub(1 + *y as usize).filter(|_| is_middle);
            row.map(|row| self.bars[row].0.clone()).unwrap_or_default()
        };
        chart
            .configure_mesh()
            .disable_y_mesh()
            .y_labels(count * 2 + 1)
            .y_label_formatter(&label)
            .x_desc(self.axis.as_str())
            .axis_desc_style(("sans-serif", 14).into_font())
            .label_style(("sans-serif", 13).into_font())
            .draw()?;
        let low = |row: usize| (count - 1 - row) as f64;
        chart.draw_series(self.bars.iter().enumerate().map(|(row, (_, bar))| {
            let corners = [(0.0, low(row) + 0.15), (bar.median, low(row) + 0.85)];
            Rectangle::new(corners, COLOURS[4].filled())
        }))?;
        chart.draw_series(self.bars.iter().enumerate().map(|(row, (_, bar))| {
            let whisker = bar.ends.map(|end| (end, low(row) + 0.5));
            PathElement::new(whisker, BLACK.stroke_width(1))
        }))?;
        let mark = [(self.mark, 0.0), (self.mark, count as f64)];
        chart.draw_series(LineSeries::new(mark, BLACK.stroke_width(2)))?;
        plot.present()?;
        Ok(())
    }
}

impl Lines {
    /// The drawing; empty where plotters refuses a figure that is no number.
    pub(crate) fn svg(&self) -> String {
        drawn(|svg| self.draw(svg))
    }

    fn draw(&self, svg: &mut String) -> Result<(), Box<dyn Error>> {
        let points = || self.lines.iter().flat_map(|(_, points)| points);
        let right = points().map(|(x, _)| *x).fold(0.0, f64::max);
        let high = points().map(|(_, y)| y.ends[1]).fold(1.0, f64::max) * 1.5;
        let low = points().map(|(_, y)| y.ends[0]).fold(high, f64::min).max(1.0) / 1.5;
        let (legend, plot) = areas(svg, &self.origin)?;
        self.draw_legend(&legend)?;
        let mut chart = ChartBuilder::on(&plot)
            .margin(10)
            .x_label_area_size(40)
            .y_label_area_size(70)
            .build_cartesian_2d(0.0..right * 1.02, (low..high).log_scale())?;
        chart
            .configure_mesh()
            .x_desc(self.x_axis.as_str())
            .y_desc(self.y_axis.as_str())
            .axis_desc_style(("sans-serif", 14).into_font())
            .label_style(("sans-serif", 13).into_font())
            .draw()?;
        for (index, (_, points)) in self.lines.iter().enumerate() {
            let stroke = COLOURS[index % COLOURS.len()].stroke_width(2);
            let medians = points.iter().map(|(x, y)| (*x, y.median));
            chart.draw_series(LineSeries::new(medians, stroke))?;
            chart.draw_series(
                points
                    .iter()
                    .map(|(x, y)| PathElement::new(y.ends.map(|end| (*x, end.max(low))), stroke)),
            )?;
        }
        plot.present()?;
        Ok(())
    }

    /// A mark and a name for each line, from left to right.
    fn draw_legend(&self, area: &Area<'_>) -> Result<(), Box<dyn Error>> {
        let each = (SIZE.0 - 80) as i32 / self.lines.len().max(1) as i32;
        for (index, (name, _)) in self.lines.iter().enumerate() {
            let colour = COLOURS[index % COLOURS.len()];
            let x = 70 + index as i32 * each;
            area.draw(&Rectangle::new([(x, 8), (x + 12, 18)], colour.filled()))?;
            let font = ("sans-serif", 13).into_font();
            area.draw(&Text::new(name.clone(), (x + 18, 7), font))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: what is drawn shows its names, its spread and what made it. Method: one of each.
    #[test]
    fn drawings_name_what_they_show() {
        let spread = |figures: [f64; 3]| Spread::of(figures.into_iter());
        let origin = || "3 rounds; commit 1a2b3c4; 2026-11-24".to_owned();
        let bars = vec![
            ("read hit".to_owned(), spread([1.3, 1.4, 1.6])),
            ("write".to_owned(), spread([0.6, 0.7, 0.7])),
        ];
        let bars = Bars { axis: "ratio".into(), bars, mark: 1.0, origin: origin() }.svg();
        let points = vec![(1.0, spread([19.0, 20.0, 30.0])), (80.0, spread([800.0, 900.0, 999.0]))];
        let lines = vec![("layby".to_owned(), points)];
        let (x_axis, y_axis) = ("x".into(), "p99 (us)".into());
        let lines = Lines { x_axis, y_axis, lines, origin: origin() }.svg();
        for (svg, words) in [(&bars, ["read hit", "ratio"]), (&lines, ["layby", "p99 (us)"])] {
            assert!(words.iter().all(|word| svg.contains(word)), "{svg}");
            assert!(svg.contains("commit 1a2b3c4"), "{svg}");
        }
        assert!(bars.matches("<polyline").count() >= 2, "a whisker per bar: {bars}");
    }
}
