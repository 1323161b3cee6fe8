//! A document as one HTML file that needs nothing else.
//!
//! How: written front to back, with style and charts inside.
//! Invariant: text never becomes markup; the page loads nothing. Cost: as large as its charts.

use super::{Claim, Document, Measurement, Section, Table};
use std::fmt::Write as _;

const STYLE: &str = "\
:root{color-scheme:light}body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;\
padding:0 1rem;color:#1a1a1a;background:#fff}h1{line-height:1.2}h2{margin-top:2.5rem}\
table{border-collapse:collapse;margin:1rem 0;font-variant-numeric:tabular-nums}\
th,td{padding:.25rem .75rem;border-bottom:1px solid #ddd;text-align:right;vertical-align:top}\
th:first-child,td:first-child{text-align:left}thead th{border-bottom:2px solid #888}\
code{background:#f2f2f2;padding:.1rem .3rem}.no{color:#a40000;font-weight:600}.yes{color:#00630f}\
.wide{overflow-x:auto}svg{max-width:100%;height:auto}";

impl Document {
    /// The document as one HTML file: no scripts, no other files.
    #[must_use]
    pub fn html(&self) -> String {
        let mut page =
            String::from("<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">");
        let title = escaped(&self.title);
        // Writing to a String cannot fail, here and below.
        let _ = write!(
            page,
            "<meta name=\"viewport\" content=\"width=device-width\">\n<title>{title}</title>\
             <style>{STYLE}</style></head>\n<body>\n<h1>{title}</h1>\n<p>{}</p>\n<ul>\n",
            escaped(&self.source),
        );
        for (what, value) in self.colophon() {
            let _ = writeln!(page, "<li>{what}: <code>{}</code></li>", escaped(value));
        }
        page.push_str("</ul>\n");
        if !self.claims.is_empty() {
            claims(&mut page, &self.claims);
        }
        if !self.measurements.is_empty() {
            measurements(&mut page, &self.measurements);
        }
        for section in &self.sections {
            part(&mut page, section);
        }
        page.push_str("</body></html>\n");
        page
    }
}

fn claims(page: &mut String, claims: &[Claim]) {
    page.push_str("<h2>What was claimed, and what was found</h2>\n<div class=\"wide\"><table>\n");
    page.push_str("<thead><tr><th>claim</th><th>expected (range that holds)</th>");
    page.push_str("<th>found</th><th>holds</th></tr>");
    page.push_str("</thead>\n<tbody>\n");
    for claim in claims {
        let (class, word) = if claim.holds() { ("yes", "yes") } else { ("no", "no") };
        let _ = writeln!(
            page,
            "<tr><td>{}</td><td>{}</td><td>{}</td><td class=\"{class}\">{word}</td></tr>",
            escaped(claim.what()),
            escaped(&claim.expected()),
            escaped(&claim.found())
        );
    }
    page.push_str("</tbody></table></div>\n");
}

fn measurements(page: &mut String, all: &[Measurement]) {
    page.push_str("<h2>What was measured and is not claimed</h2>\n<div class=\"wide\"><table>\n");
    page.push_str("<thead><tr><th>measured</th><th>the source says</th><th>found</th></tr>");
    page.push_str("</thead>\n<tbody>\n");
    for one in all {
        let cells = [&one.what, &one.said, &one.found_with_spread()].map(|cell| escaped(cell));
        let _ = writeln!(page, "<tr><td>{}</td></tr>", cells.join("</td><td>"));
    }
    page.push_str("</tbody></table></div>\n");
}

fn part(page: &mut String, section: &Section) {
    let _ = writeln!(page, "<h2>{}</h2>", escaped(&section.heading));
    for paragraph in &section.text {
        let _ = writeln!(page, "<p>{}</p>", escaped(paragraph));
    }
    if let Some(chart) = &section.chart {
        let _ = write!(page, "<figure>{}", chart.svg());
        if !chart.left_out.is_empty() {
            let names = escaped(&chart.left_out.join(", "));
            let _ = write!(page, "<figcaption>In the table, not drawn: {names}</figcaption>");
        }
        page.push_str("</figure>\n");
    }
    if let Some(data) = &section.table {
        table(page, data);
    }
}

fn table(page: &mut String, table: &Table) {
    let row = |page: &mut String, tag: &str, cells: &[String]| {
        page.push_str("<tr>");
        for cell in cells {
            let _ = write!(page, "<{tag}>{}</{tag}>", escaped(cell));
        }
        page.push_str("</tr>\n");
    };
    page.push_str("<div class=\"wide\"><table>\n<thead>");
    row(page, "th", &table.columns);
    page.push_str("</thead>\n<tbody>\n");
    for cells in &table.rows {
        row(page, "td", cells);
    }
    page.push_str("</tbody></table></div>\n");
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
