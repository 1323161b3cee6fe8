//! Shapes of links that public measurements show, as parameters of one process.
//!
//! How: a rate is the mean of the state that the link is in, times slow fading, fast noise, the
//! level of the cell or the slot, the rhythm of the day, and what handovers and outages leave.
//! Numbers are round ones after what the named sources describe of uplinks, not fits to their
//! data; where a source names a time (the 15 s of satellite slots, blockage of some hundred
//! milliseconds and more, handovers every few hundred metres), that time is taken.
//! Not for: claims about an operator or a place; bring a trace of yours.

/// A state of a Markov-modulated link.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LinkState {
    /// Bytes per second while it lasts.
    pub bytes_per_second: f64,
    /// How long it lasts on average; its length is exponential.
    pub seconds: f64,
    /// How likely it is to come next, beside the others' numbers.
    pub weight: u32,
}

/// Slow fading: an AR(1) of the rate's logarithm, whose correlation falls exponentially.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Fading {
    /// Deviation of the logarithm.
    pub deviation: f64,
    /// Seconds after which the correlation is 1/e.
    pub seconds: f64,
}

/// Cells that come and go.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Handovers {
    /// Seconds in a cell on average; exponential.
    pub every_seconds: f64,
    /// Deviation of the logarithm of a cell's level.
    pub level_deviation: f64,
    /// Seconds of a handover at most; even from one on.
    pub dip_seconds: u32,
    /// What is left of the rate meanwhile.
    pub dip_left: f64,
}

/// Slots of equal length, each with a level of its own.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Slots {
    /// Seconds of a slot.
    pub seconds: u32,
    /// Deviation of the logarithm of a slot's level.
    pub level_deviation: f64,
    /// What is left of the rate in a slot's first second.
    pub dip_left: f64,
}

/// Times at which nothing passes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Outages {
    /// Seconds between them on average; exponential.
    pub every_seconds: f64,
    /// Seconds that they last on average; exponential, at least one.
    pub seconds: f64,
}

/// Busy and quiet hours: a cosine.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rhythm {
    /// Seconds of a round.
    pub seconds: f64,
    /// The part of the rate that is lost when it is busiest.
    pub depth: f64,
    /// When it is busiest, in seconds from the beginning.
    pub busiest: f64,
}

/// A link by numbers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LinkParameters {
    /// At least one; it begins in the first.
    pub states: &'static [LinkState],
    /// There and back when all is well, in milliseconds.
    pub round_trip_ms: f64,
    /// Slow fading.
    pub fading: Fading,
    /// Deviation of the logarithm of what differs from second to second.
    pub noise: f64,
    /// Cells.
    pub handovers: Option<Handovers>,
    /// Slots.
    pub slots: Option<Slots>,
    /// Outages.
    pub outages: Option<Outages>,
    /// Busy hours.
    pub rhythm: Option<Rhythm>,
}

/// A link after public measurements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LinkShape {
    /// LTE, not moving: little fading, scheduling noise.
    LteStatic,
    /// LTE in a car: cells of different levels, handovers, holes.
    LteDriving,
    /// 5G at millimetre waves: sight of the antenna, blockage, falling back to LTE.
    MmWave,
    /// 5G below 6 GHz on a motorway: short cells, stretches of LTE.
    Highway,
    /// A satellite link in low orbit: slots of 15 s, each with a level of its own.
    Satellite,
    /// LTE in a cell that others fill by day.
    Congested,
}

const fn megabits(rate: f64) -> f64 {
    rate * 125_000.0
}

const fn state(rate: f64, seconds: f64, weight: u32) -> LinkState {
    LinkState { bytes_per_second: megabits(rate), seconds, weight }
}

impl LinkShape {
    /// All.
    pub const ALL: [LinkShape; 6] = [
        LinkShape::LteStatic,
        LinkShape::LteDriving,
        LinkShape::MmWave,
        LinkShape::Highway,
        LinkShape::Satellite,
        LinkShape::Congested,
    ];

    /// Its name in words and tables.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            LinkShape::LteStatic => "lte-static",
            LinkShape::LteDriving => "lte-driving",
            LinkShape::MmWave => "5g-mmwave",
            LinkShape::Highway => "5g-highway",
            LinkShape::Satellite => "satellite",
            LinkShape::Congested => "lte-congested",
        }
    }

    /// The shape of that name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|shape| shape.name() == name)
    }

    /// Where it was measured that links are like this.
    #[must_use]
    pub const fn source(self) -> &'static str {
        match self {
            LinkShape::LteStatic => {
                "Raida, Svoboda and Rupp, open dataset of a static LTE link, 2020; Raca et al., \
                 MMSys 2018"
            }
            LinkShape::LteDriving => {
                "van der Hooft et al., 4G/LTE bandwidth logs of Ghent, 2016; Raca et al., MMSys \
                 2018"
            }
            LinkShape::MmWave => {
                "Narayanan et al., Lumos5G, IMC 2020; Raghavan et al., statistical blockage \
                 modeling, 2018"
            }
            LinkShape::Highway => {
                "Ghoshal et al., Performance of cellular networks on the wheels, IMC 2023"
            }
            LinkShape::Satellite => {
                "Kassem et al., A browser-side view of Starlink connectivity, IMC 2022; Mohan et \
                 al., A multifaceted look at Starlink performance, WWW 2024"
            }
            LinkShape::Congested => {
                "Raida et al., On the stability of RSRP and variability of other KPIs in LTE \
                 downlink, GLOBECOM 2020"
            }
        }
    }

    /// Its numbers.
    #[must_use]
    pub const fn parameters(self) -> LinkParameters {
        match self {
            LinkShape::LteStatic => LTE_STATIC,
            LinkShape::LteDriving => LTE_DRIVING,
            LinkShape::MmWave => MM_WAVE,
            LinkShape::Highway => HIGHWAY,
            LinkShape::Satellite => SATELLITE,
            LinkShape::Congested => CONGESTED,
        }
    }
}

/// Nothing but a rate.
const PLAIN: LinkParameters = LinkParameters {
    states: &[state(10.0, 1e9, 1)],
    round_trip_ms: 45.0,
    fading: Fading { deviation: 0.0, seconds: 60.0 },
    noise: 0.0,
    handovers: None,
    slots: None,
    outages: None,
    rhythm: None,
};

const LTE_STATIC: LinkParameters = LinkParameters {
    states: &[state(18.0, 1e9, 1)],
    fading: Fading { deviation: 0.15, seconds: 120.0 },
    noise: 0.18,
    ..PLAIN
};

const LTE_DRIVING: LinkParameters = LinkParameters {
    states: &[state(12.0, 1e9, 1)],
    fading: Fading { deviation: 0.3, seconds: 25.0 },
    noise: 0.27,
    handovers: Some(Handovers {
        every_seconds: 50.0,
        level_deviation: 0.3,
        dip_seconds: 2,
        dip_left: 0.1,
    }),
    outages: Some(Outages { every_seconds: 600.0, seconds: 5.0 }),
    round_trip_ms: 55.0,
    ..PLAIN
};

const MM_WAVE: LinkParameters = LinkParameters {
    // In sight; blocked; out of reach, on LTE.
    states: &[state(150.0, 20.0, 6), state(40.0, 2.5, 8), state(15.0, 8.0, 2)],
    fading: Fading { deviation: 0.2, seconds: 10.0 },
    noise: 0.2,
    round_trip_ms: 25.0,
    ..PLAIN
};

const HIGHWAY: LinkParameters = LinkParameters {
    // 5G; a stretch of LTE.
    states: &[state(45.0, 180.0, 1), state(11.0, 40.0, 1)],
    fading: Fading { deviation: 0.35, seconds: 15.0 },
    noise: 0.25,
    handovers: Some(Handovers {
        every_seconds: 30.0,
        level_deviation: 0.25,
        dip_seconds: 1,
        dip_left: 0.4,
    }),
    round_trip_ms: 40.0,
    ..PLAIN
};

const SATELLITE: LinkParameters = LinkParameters {
    states: &[state(12.0, 1e9, 1)],
    fading: Fading { deviation: 0.1, seconds: 600.0 },
    noise: 0.12,
    slots: Some(Slots { seconds: 15, level_deviation: 0.2, dip_left: 0.6 }),
    outages: Some(Outages { every_seconds: 300.0, seconds: 2.0 }),
    round_trip_ms: 50.0,
    ..PLAIN
};

const CONGESTED: LinkParameters = LinkParameters {
    // The cell's others idle; busy.
    states: &[state(14.0, 120.0, 1), state(7.0, 60.0, 1)],
    fading: Fading { deviation: 0.15, seconds: 300.0 },
    noise: 0.25,
    // Midnight is the beginning; the evening is busiest.
    rhythm: Some(Rhythm { seconds: 86_400.0, depth: 0.6, busiest: 72_000.0 }),
    ..PLAIN
};
