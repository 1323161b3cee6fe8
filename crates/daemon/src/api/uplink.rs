//! The way up to object stores, as the control API answers it.
//!
//! How: what is configured beside what the uplink has seen. Invariant: nothing here waits for the
//! link. Cost: a lock and a few sums per request.

use crate::config::{Size, UplinkConfig};
use layby_cloud::uplink::Seen;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The way up to object stores, for all volumes together.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct UplinkAnswer {
    /// Caps by the time of day.
    pub settings: UplinkConfig,
    /// Bytes in a second that may be used now; none where there is no cap.
    pub cap_now: Option<Size>,
    /// Bytes in a second that the link is expected to carry in the next 15 s; none until
    /// something was uploaded.
    pub expected_bytes_per_second: Option<f64>,
    /// What it carried on average over the last half hour of use.
    pub usual_bytes_per_second: Option<f64>,
    /// Which forecast erred least of late and is used.
    pub forecast: String,
    /// Mean absolute error of the forecasts of late, in bytes per second; none until an interval
    /// was measured that a forecast had been made of.
    pub error_bytes_per_second: Option<f64>,
    /// The same of the naive forecast: that the link stays as it is.
    pub naive_error_bytes_per_second: Option<f64>,
    /// Segments that wait for their turn.
    pub segments_waiting: u64,
    /// Their bytes.
    pub bytes_waiting: u64,
    /// Segments under way.
    pub segments_in_flight: u32,
    /// Their bytes.
    pub bytes_in_flight: u64,
    /// Bytes of all volumes that are in no store.
    pub dirty_bytes: u64,
}

impl UplinkAnswer {
    pub(super) fn of(settings: UplinkConfig, seen: &Seen) -> UplinkAnswer {
        UplinkAnswer {
            settings,
            cap_now: seen.cap.map(Size),
            expected_bytes_per_second: seen.expected,
            usual_bytes_per_second: seen.usual,
            forecast: seen.forecast.to_owned(),
            error_bytes_per_second: seen.error,
            naive_error_bytes_per_second: seen.error_naive,
            segments_waiting: seen.waiting.0,
            bytes_waiting: seen.waiting.1,
            segments_in_flight: seen.in_flight.0,
            bytes_in_flight: seen.in_flight.1,
            dirty_bytes: seen.dirty_bytes,
        }
    }
}
