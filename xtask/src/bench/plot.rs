//! Bars and lines as SVG, for the documents of `bench/`.
//!
//! How: plotters draws into a string.
//! Invariant: colours are told apart without red and green. Not for: interactive views.

use plotters::prelude::{
    ChartBuilder, Color, IntoDrawingArea, IntoFont, IntoLogRange, LineSeries, PathElement,
    RGBColor, Rectangle, SVGBackend, SeriesLabelPosition,
};
use plotters::style::{BLACK, WHITE};
use std::error::Error;

const SIZE: (u32, u32) = (900, 360);
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
    pub(crate) bars: Vec<(String, f64)>,
    pub(crate) mark: f64,
}

/// Lines over a common axis; the upright axis is logarithmic.
pub(crate) struct Lines {
    pub(crate) x_axis: String,
    pub(crate) y_axis: String,
    pub(crate) lines: Vec<(String, Vec<(f64, f64)>)>,
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
        let high = self.bars.iter().map(|(_, value)| *value).fold(self.mark, f64::max) * 1.1;
        let root = SVGBackend::with_string(svg, SIZE).into_drawing_area();
        root.fill(&WHITE)?;
        let count = self.bars.len();
        let mut chart = ChartBuilder::on(&root)
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
        chart.draw_series(self.bars.iter().enumerate().map(|(row, (_, value))| {
            let low = (count - 1 - row) as f64;
            Rectangle::new([(0.0, low + 0.15), (*value, low + 0.85)], COLOURS[0].filled())
        }))?;
        let mark = [(self.mark, 0.0), (self.mark, count as f64)];
        chart.draw_series(LineSeries::new(mark, BLACK.stroke_width(2)))?;
        root.present()?;
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
        let high = points().map(|(_, y)| *y).fold(1.0, f64::max) * 1.5;
        let low = points().map(|(_, y)| *y).fold(high, f64::min).max(1.0) / 1.5;
        let root = SVGBackend::with_string(svg, SIZE).into_drawing_area();
        root.fill(&WHITE)?;
        let mut chart = ChartBuilder::on(&root)
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
        for (index, (name, points)) in self.lines.iter().enumerate() {
            let colour = COLOURS[index % COLOURS.len()];
            let line = LineSeries::new(points.iter().copied(), colour.stroke_width(2));
            let mark =
                move |(x, y)| PathElement::new([(x, y), (x + 16, y)], colour.stroke_width(2));
            chart.draw_series(line)?.label(name.as_str()).legend(mark);
        }
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::UpperLeft)
            .background_style(WHITE.mix(0.85))
            .border_style(BLACK.mix(0.3))
            .label_font(("sans-serif", 13).into_font())
            .draw()?;
        root.present()?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: what is drawn shows its names. Method: one of each.
    #[test]
    fn drawings_name_what_they_show() {
        let bars = vec![("read hit".to_owned(), 1.4), ("write".to_owned(), 0.7)];
        let bars = Bars { axis: "ratio".into(), bars, mark: 1.0 }.svg();
        assert!(bars.contains("read hit") && bars.contains("ratio"), "{bars}");
        let lines = vec![("layby".to_owned(), vec![(1.0, 20.0), (80.0, 900.0)])];
        let lines = Lines { x_axis: "x".into(), y_axis: "p99 (us)".into(), lines }.svg();
        assert!(lines.contains("layby") && lines.contains("p99 (us)"), "{lines}");
    }
}
