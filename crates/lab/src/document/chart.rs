//! Grouped bars as SVG.
//!
//! How: plotters draws into a string; a group per label, a bar per series, a whisker where a bar
//! has a spread. The legend is a strip of its own above the plot.
//! Invariant: colours are told apart without red and green; no bar, whisker or label lies under the
//! legend. Cost: a millisecond per chart.
//! Not for: lines over time.

use super::{Chart, Series};
use plotters::coord::Shift;
use plotters::prelude::{
    ChartBuilder, Color, DrawingArea, IntoDrawingArea, IntoFont, PathElement, RGBColor, Rectangle,
    SVGBackend, Text,
};
use plotters::style::{BLACK, WHITE};

const WIDTH: u32 = 900;
const HEIGHT: u32 = 340;
/// The part of a group's width that its bars take.
const FILLED: f64 = 0.8;
/// A line of the legend, and its left edge; the plot's begins there.
const LEGEND_LINE: u32 = 22;
const LEGEND_LEFT: u32 = 80;
/// Pixels of a character of the legend, at most, and of a mark with its gaps.
const LEGEND_CHARACTER: u32 = 8;
const LEGEND_MARK: u32 = 36;
/// Told apart by people who do not see all colours, too (Okabe and Ito).
const COLOURS: [RGBColor; 6] = [
    RGBColor(0x56, 0xB4, 0xE9),
    RGBColor(0xE6, 0x9F, 0x00),
    RGBColor(0x00, 0x9E, 0x73),
    RGBColor(0xCC, 0x79, 0xA7),
    RGBColor(0x00, 0x72, 0xB2),
    RGBColor(0xD5, 0x5E, 0x00),
];

impl Chart {
    /// The chart as an SVG element.
    #[must_use]
    pub fn svg(&self) -> String {
        let mut svg = String::new();
        // Drawing into a String cannot fail; what plotters refuses is a range that is not finite.
        if self.draw(&mut svg).is_err() {
            svg.clear();
        }
        svg
    }

    fn draw(&self, svg: &mut String) -> Result<(), Box<dyn std::error::Error>> {
        let (low, high) = self.range();
        let places = self.legend_places();
        let strip = (places.last().map_or(0, |(line, _)| line + 1)) * LEGEND_LINE + 6;
        let root = SVGBackend::with_string(svg, (WIDTH, HEIGHT + strip)).into_drawing_area();
        root.fill(&WHITE)?;
        let (legend, plot) = root.split_vertically(strip);
        self.draw_legend(&legend, &places)?;
        let groups = self.groups.len();
        let mut chart = ChartBuilder::on(&plot)
            .margin(10)
            .x_label_area_size(50)
            .y_label_area_size(70)
            .build_cartesian_2d(0.0..groups as f64, low..high)?;
        let label = |x: &f64| {
            let is_middle = (x.fract() - 0.5).abs() < 1e-9;
            let group = is_middle.then(|| self.groups.get(*x as usize)).flatten();
            group.cloned().unwrap_or_default()
        };
        chart
            .configure_mesh()
            .disable_x_mesh()
            .x_labels(groups * 2 + 1)
            .x_label_formatter(&label)
            .x_desc(self.across.as_str())
            .y_desc(self.axis.as_str())
            .axis_desc_style(("sans-serif", 14).into_font())
            .label_style(("sans-serif", 13).into_font())
            .draw()?;
        let width = FILLED / self.series.len().max(1) as f64;
        for (index, series) in self.series.iter().enumerate() {
            let colour = COLOURS[index % COLOURS.len()];
            let drawn = series.values.iter().enumerate().filter(|(_, value)| value.is_finite());
            let bars = drawn.map(|(group, value)| {
                let left = group as f64 + (1.0 - FILLED) / 2.0 + index as f64 * width;
                Rectangle::new([(left, 0.0), (left + width * 0.94, *value)], colour.filled())
            });
            chart.draw_series(bars)?;
            let middle =
                |group: usize| group as f64 + (1.0 - FILLED) / 2.0 + (index as f64 + 0.47) * width;
            let whiskers = series.spread.iter().enumerate().map(|(group, (least, greatest))| {
                PathElement::new([(middle(group), *least), (middle(group), *greatest)], BLACK)
            });
            chart.draw_series(whiskers)?;
        }
        root.present()?;
        Ok(())
    }

    /// A line and a left edge for each series: as many in a line as fit.
    fn legend_places(&self) -> Vec<(u32, u32)> {
        let (mut line, mut left) = (0, LEGEND_LEFT);
        let place = |series: &Series| {
            let takes = LEGEND_MARK + series.name.chars().count() as u32 * LEGEND_CHARACTER;
            if left > LEGEND_LEFT && left + takes > WIDTH {
                (line, left) = (line + 1, LEGEND_LEFT);
            }
            let place = (line, left);
            left += takes;
            place
        };
        self.series.iter().map(place).collect()
    }

    fn draw_legend(
        &self,
        area: &DrawingArea<SVGBackend<'_>, Shift>,
        places: &[(u32, u32)],
    ) -> Result<(), Box<dyn std::error::Error>> {
        for (index, (series, (line, left))) in self.series.iter().zip(places).enumerate() {
            let colour = COLOURS[index % COLOURS.len()];
            let (x, y) = (*left as i32, (line * LEGEND_LINE + 10) as i32);
            area.draw(&Rectangle::new([(x, y), (x + 12, y + 10)], colour.filled()))?;
            let font = ("sans-serif", 13).into_font();
            area.draw(&Text::new(series.name.clone(), (x + 18, y - 1), font))?;
        }
        Ok(())
    }

    /// From zero or below to a little above the highest bar or whisker.
    fn range(&self) -> (f64, f64) {
        let ends = |series: &Series| {
            let spread: Vec<f64> = series.spread.iter().flat_map(|(a, b)| [*a, *b]).collect();
            series.values.iter().copied().chain(spread).collect::<Vec<f64>>()
        };
        let values = || self.series.iter().flat_map(ends).filter(|value| value.is_finite());
        let high = values().fold(0.0, f64::max);
        let low = values().fold(0.0, f64::min);
        let room = ((high - low) * 0.15).max(f64::MIN_POSITIVE);
        (if low < 0.0 { low - room } else { 0.0 }, high + room)
    }
}
