//! Volumes in object stores and the way up to them, as Prometheus reads them.
//!
//! How: what each volume's thread and the uplink said last. Invariant: a node without such volumes
//! has none of these families. Cost: a copy per volume and scrape.

use super::{Labels, Sample, Scrape, count, family, family_in, gauge};
use crate::api::CloudAnswer;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::registry::Unit;
use std::fmt;

/// The states of a link, in the words of the control API.
const LINKS: [&str; 4] = ["opening", "up", "down", "lost"];

/// A volume, its class and what it says of itself.
pub(super) type CloudVolume = (String, String, CloudAnswer);

fn labels((volume, class, _): &CloudVolume) -> Labels {
    vec![("volume", volume.clone()), ("class", class.clone())]
}

impl Scrape {
    pub(super) fn encode_cloud(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let clouds = &self.node.clouds;
        let gauges = |of: fn(&CloudAnswer) -> Option<f64>| -> Vec<Sample> {
            clouds.iter().filter_map(|volume| Some(gauge(labels(volume), of(&volume.2)?))).collect()
        };
        let counts = |of: fn(&CloudAnswer) -> u64| -> Vec<Sample> {
            clouds.iter().map(|volume| count(labels(volume), of(&volume.2))).collect()
        };
        let links = clouds.iter().flat_map(|volume| {
            LINKS.map(|state| {
                let labels = labels(volume).into_iter().chain([("state", state.to_owned())]);
                gauge(labels.collect(), f64::from(u8::from(volume.2.link == state)))
            })
        });
        family("layby_cloud_link", "State of the volume's link to its store, 1 for the one it has")
            .write(encoder, links.collect())?;
        let faults = clouds.iter().flat_map(|volume| {
            let of = &volume.2;
            [("journal", &of.journal_fault), ("map", &of.map_fault)].map(|(file, fault)| {
                let labels = labels(volume).into_iter().chain([("file", file.to_owned())]);
                gauge(labels.collect(), f64::from(u8::from(fault.is_some())))
            })
        });
        family("layby_cloud_file_failed", "1 where the volume's journal or map file takes nothing")
            .write(encoder, faults.collect())?;
        family_in(Unit::Bytes, "layby_cloud_dirty", "Bytes of the journal that no store has")
            .write(encoder, gauges(|of| Some(of.dirty_bytes as f64)))?;
        family_in(Unit::Seconds, "layby_cloud_dirty_age", "Age of the oldest write in no store")
            .write(encoder, gauges(|of| Some(of.dirty_seconds)))?;
        family_in(Unit::Seconds, "layby_cloud_drain", "Until the store has all, by the forecast")
            .write(encoder, gauges(|of| of.drain_seconds))?;
        family_in(Unit::Bytes, "layby_cloud_journal", "Bytes of the volume's journal")
            .write(encoder, gauges(|of| Some(of.journal_bytes as f64)))?;
        family_in(Unit::Bytes, "layby_cloud_stored", "Bytes of the volume's segments")
            .write(encoder, gauges(|of| Some(of.stored_bytes as f64)))?;
        family("layby_cloud_space_amplification", "Bytes of blocks in segments per live byte")
            .write(encoder, gauges(|of| of.space_amplification))?;
        family("layby_cloud_requests", "Requests to the store")
            .write(encoder, counts(|of| of.requests))?;
        family("layby_cloud_requests_repeated", "Requests repeated after a fault")
            .write(encoder, counts(|of| of.requests_repeated))?;
        family("layby_cloud_requests_hedged", "Second requests for reads that were late")
            .write(encoder, counts(|of| of.requests_hedged))?;
        family("layby_cloud_read_requests", "Requests that reads wait for, as they begin")
            .write(encoder, counts(|of| of.read_requests))?;
        family("layby_cloud_refused", "Calls that the store could not serve in time")
            .write(encoder, counts(|of| of.refused))?;
        family("layby_cloud_damaged", "Reads of what the store has lost or damaged")
            .write(encoder, counts(|of| of.damaged))?;
        family_in(Unit::Bytes, "layby_cloud_kept", "Bytes of blocks that only snapshots need")
            .write(encoder, gauges(|of| Some(of.kept_bytes as f64)))?;
        family_in(Unit::Bytes, "layby_cloud_put", "Bytes sent to the store")
            .write(encoder, counts(|of| of.bytes_put))?;
        let along = "Bytes of blocks that reads brought along beside what they asked for";
        family_in(Unit::Bytes, "layby_cloud_along", along)
            .write(encoder, counts(|of| of.bytes_along))?;
        let cached = "Bytes of blocks that the read cache took from the journal";
        family_in(Unit::Bytes, "layby_cloud_cached", cached)
            .write(encoder, counts(|of| of.bytes_cached))?;
        family_in(Unit::Bytes, "layby_cloud_read_cache", "Bytes that the read cache holds")
            .write(encoder, gauges(|of| Some(of.cached_bytes as f64)))?;
        family_in(Unit::Bytes, "layby_cloud_moved", "Bytes of blocks that cleaning moved")
            .write(encoder, counts(|of| of.bytes_moved))?;
        family("layby_cloud_cleaning_requests", "Requests by which cleaning read")
            .write(encoder, counts(|of| of.cleaning_requests))?;
        family_in(Unit::Bytes, "layby_cloud_cleaning_read", "Bytes that cleaning asked for")
            .write(encoder, counts(|of| of.cleaning_bytes_read))?;
        self.encode_uplink(encoder)
    }

    fn encode_uplink(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let Some(seen) = &self.node.uplink else { return Ok(()) };
        let one = |value: Option<f64>| -> Vec<Sample> {
            value.into_iter().map(|value| gauge(Vec::new(), value)).collect()
        };
        family_in(Unit::Bytes, "layby_uplink_expected", "Bytes per second that are expected")
            .write(encoder, one(seen.expected))?;
        family_in(Unit::Bytes, "layby_uplink_usual", "Bytes per second in the long run")
            .write(encoder, one(seen.usual))?;
        family_in(Unit::Bytes, "layby_uplink_cap", "Bytes per second that are allowed now")
            .write(encoder, one(seen.cap.map(|cap| cap as f64)))?;
        let errors = [("chosen", seen.error), ("naive", seen.error_naive)];
        let errors = errors.into_iter().filter_map(|(forecast, error)| {
            Some(gauge(vec![("forecast", forecast.to_owned())], error?))
        });
        family_in(Unit::Bytes, "layby_uplink_error", "Mean error of forecasts, bytes per second")
            .write(encoder, errors.collect())?;
        let states = [("waiting", seen.waiting.1), ("in_flight", seen.in_flight.1)];
        let states = states
            .into_iter()
            .map(|(state, bytes)| gauge(vec![("state", state.to_owned())], bytes as f64));
        family_in(Unit::Bytes, "layby_uplink_segments", "Bytes of segments on their way")
            .write(encoder, states.collect())
    }
}
