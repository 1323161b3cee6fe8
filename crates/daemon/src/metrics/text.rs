//! In which text format a scrape is answered: OpenMetrics, or Prometheus' older one.
//!
//! How: a client's `Accept` is read for the two media types; what names neither is answered in the
//! older format, which every scraper reads. The older text is made of the newer one line by line:
//! a counter's and an info's name there carries its suffix, and units and the end mark are dropped.
//! Invariant: both texts hold the same samples in the same order.
//! Cost: one more pass over the text. Not for: what is measured; see the room above.

/// A text format of metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// `text/plain; version=0.0.4`.
    Plain,
    /// `application/openmetrics-text; version=1.0.0`.
    OpenMetrics,
}

/// Weights are compared in thousandths, the precision that HTTP gives them.
const WEIGHT_DEFAULT: u16 = 1000;

impl Format {
    /// The one that a client prefers by its `Accept`.
    #[must_use]
    pub fn preferred(accept: Option<&str>) -> Format {
        let mut weights = (0, 0);
        for (media, weight) in accept.unwrap_or_default().split(',').map(media_and_weight) {
            match media {
                "application/openmetrics-text" => weights.0 = weight.max(weights.0),
                "text/plain" => weights.1 = weight.max(weights.1),
                _ => {}
            }
        }
        match weights {
            (open, plain) if open > 0 && open >= plain => Format::OpenMetrics,
            _ => Format::Plain,
        }
    }

    /// What an answer in this format says it is.
    #[must_use]
    pub const fn content_type(self) -> &'static str {
        match self {
            Format::Plain => "text/plain; version=0.0.4; charset=utf-8",
            Format::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }

    /// `text`, which is in OpenMetrics, in this format.
    #[must_use]
    pub fn write(self, text: String) -> String {
        match self {
            Format::Plain => plain(&text),
            Format::OpenMetrics => text,
        }
    }
}

/// A media type without its parameters, and its weight.
fn media_and_weight(part: &str) -> (&str, u16) {
    let mut parameters = part.split(';').map(str::trim);
    let media = parameters.next().unwrap_or_default();
    let weight = parameters.find_map(|parameter| parameter.strip_prefix("q="));
    let weight =
        weight.and_then(|text| text.parse::<f32>().ok()).filter(|q| (0.0..=1.0).contains(q));
    (media, weight.map_or(WEIGHT_DEFAULT, |q| (q * f32::from(WEIGHT_DEFAULT)) as u16))
}

fn plain(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut help = "";
    for line in text.lines() {
        if let Some(of) = line.strip_prefix("# HELP ") {
            help = of.split_once(' ').map_or("", |(_, help)| help);
        } else if let Some((name, kind)) =
            line.strip_prefix("# TYPE ").and_then(|of| of.split_once(' '))
        {
            let (suffix, kind) = match kind {
                "counter" => ("_total", "counter"),
                "info" => ("_info", "gauge"),
                kind => ("", kind),
            };
            out += &format!("# HELP {name}{suffix} {help}\n# TYPE {name}{suffix} {kind}\n");
        } else if !line.starts_with('#') {
            out += line;
            out.push('\n');
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: each scraper gets the format that it asks for. Method: what Prometheus, curl and a
    /// browser send, and weights that decide.
    #[test]
    fn scrapers_choose_their_format() {
        let prometheus = "application/openmetrics-text;version=1.0.0,\
                          application/openmetrics-text;version=0.0.1;q=0.75,\
                          text/plain;version=0.0.4;q=0.5,*/*;q=0.1";
        let open = [
            prometheus,
            "application/openmetrics-text",
            "text/plain;q=0.2, \
                     application/openmetrics-text; q=0.3",
        ];
        for accept in open {
            assert_eq!(Format::preferred(Some(accept)), Format::OpenMetrics, "{accept}");
        }
        let plain = [
            "*/*",
            "text/plain",
            "text/html,*/*;q=0.8",
            "application/openmetrics-text;q=0",
            "text/plain, application/openmetrics-text;q=0.5",
            "",
        ];
        for accept in plain {
            assert_eq!(Format::preferred(Some(accept)), Format::Plain, "{accept}");
        }
        assert_eq!(Format::preferred(None), Format::Plain);
    }

    /// Goal: the older text names its families as that format does. Method: one family of each
    /// kind, written by hand.
    #[test]
    fn older_text_names_counters_with_their_suffix() {
        let open = "# HELP a Requests.\n# TYPE a counter\na_total{x=\"1\"} 3\n\
                    # HELP b_bytes Size.\n# TYPE b_bytes gauge\n# UNIT b_bytes bytes\nb_bytes 4\n\
                    # HELP c About.\n# TYPE c info\nc_info{v=\"2\"} 1\n# EOF\n";
        let plain = "# HELP a_total Requests.\n# TYPE a_total counter\na_total{x=\"1\"} 3\n\
                     # HELP b_bytes Size.\n# TYPE b_bytes gauge\nb_bytes 4\n\
                     # HELP c_info About.\n# TYPE c_info gauge\nc_info{v=\"2\"} 1\n";
        assert_eq!(Format::Plain.write(open.to_owned()), plain);
        assert_eq!(Format::OpenMetrics.write(open.to_owned()), open);
    }
}
