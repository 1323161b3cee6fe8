//! Grouped bars as SVG.
//!
//! How: plotters draws into a string; a group per label, a bar per series.
//! Invariant: colours are told apart without red and green. Cost: a millisecond per chart.
//! Not for: lines over time.

use super::Chart;
use plotters::prelude::{
    ChartBuilder, Color, IntoDrawingArea, IntoFont, RGBColor, Rectangle, SVGBackend,
    SeriesLabelPosition,
};
use plotters::style::{BLACK, WHITE};

const WIDTH: u32 = 900;
const HEIGHT: u32 = 320;
/// The part of a group's width that its bars take.
const FILLED: f64 = 0.8;
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
        let root = SVGBackend::with_string(svg, (WIDTH, HEIGHT)).into_drawing_area();
        root.fill(&WHITE)?;
        let groups = self.groups.len();
        let mut chart = ChartBuilder::on(&root)
            .margin(10)
            .x_label_area_size(30)
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
            .y_desc(self.axis.as_str())
            .axis_desc_style(("sans-serif", 14).into_font())
            .label_style(("sans-serif", 13).into_font())
            .draw()?;
        let width = FILLED / self.series.len().max(1) as f64;
        for (index, series) in self.series.iter().enumerate() {
            let colour = COLOURS[index % COLOURS.len()];
            let bars = series.values.iter().enumerate().map(|(group, value)| {
                let left = group as f64 + (1.0 - FILLED) / 2.0 + index as f64 * width;
                Rectangle::new([(left, 0.0), (left + width * 0.94, *value)], colour.filled())
            });
            let mark = move |(x, y)| Rectangle::new([(x, y - 5), (x + 12, y + 5)], colour.filled());
            chart.draw_series(bars)?.label(series.name.as_str()).legend(mark);
        }
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::UpperRight)
            .background_style(WHITE.mix(0.85))
            .border_style(BLACK.mix(0.3))
            .label_font(("sans-serif", 13).into_font())
            .draw()?;
        root.present()?;
        Ok(())
    }

    /// From zero or below to a little above the highest bar.
    fn range(&self) -> (f64, f64) {
        let values = || self.series.iter().flat_map(|series| series.values.iter().copied());
        let high = values().fold(0.0, f64::max);
        let low = values().fold(0.0, f64::min);
        let room = ((high - low) * 0.15).max(f64::MIN_POSITIVE);
        (if low < 0.0 { low - room } else { 0.0 }, high + room)
    }
}
