//! Values worked out by hand in the specification.

use super::super::features::{Row, Table, Taking};
use super::super::{attributes, cluster};
use super::*;

/// Section 7.1: windows of ten seconds from zero.
fn example() -> Vec<Write> {
    [
        (1, 64, 64),
        (2, 128, 64),
        (3, 640, 8),
        (11, 64, 8),
        (12, 72, 8),
        (13, 128, 64),
        (21, 320, 64),
        (31, 128, 64),
        (32, 64, 64),
        (33, 328, 8),
        (34, 336, 8),
        (35, 344, 8),
    ]
    .map(|(seconds, first, sectors)| write(seconds, first, sectors))
    .to_vec()
}

fn table(scale: Scale, coherency: Coherency) -> Table {
    let windows = Windows::over(Nanos::ZERO, Nanos::from_secs(40), 4);
    let sequentiality = Sequentiality::Half;
    let taking = Taking { chunk_sectors: 64, scale, sequentiality, coherency, windows };
    Table::of(&example(), &taking)
}

fn near(found: f64, expected: f64) {
    assert!((found - expected).abs() < 5e-4, "{found} for {expected}");
}

/// Goal: the four features, binary, under both rules of coherency. Method: the worked example.
#[test]
fn binary_features() {
    let friends = table(Scale::Binary, Coherency::Friends);
    assert_eq!((&friends.chunks[..], &friends.writes[..]), (&[1, 2, 5, 10][..], &[4, 3, 4, 1][..]));
    let rows: [Row; 4] =
        [[1.0, 0.0, 1.0, 1.0], [0.0, 0.0, 1.0, 1.0], [1.0, 1.0, 1.0, 0.0], [0.0; 4]];
    assert_eq!(friends.rows, rows);
    let literal = table(Scale::Binary, Coherency::Literal);
    let coherent: Vec<f64> = literal.rows.iter().map(|row| row[3]).collect();
    assert_eq!(coherent, [1.0, 1.0, 1.0, 0.0]);
}

/// Goal: the four features in tenths. Method: the worked example.
#[test]
fn decimal_features() {
    let column = |coherency, column: usize| -> Vec<f64> {
        table(Scale::Decimal, coherency).rows.iter().map(|row| row[column]).collect()
    };
    let literal = column(Coherency::Literal, 3);
    [1.0, 1.0, 1.0 / 3.0, 0.0].iter().zip(literal).for_each(|(e, found)| near(found, *e));
    assert_eq!(column(Coherency::Friends, 3), [1.0, 1.0, 0.0, 0.0]);
    assert_eq!(column(Coherency::Friends, 0), [0.5, 0.2, 0.5, 0.0]);
    assert_eq!(column(Coherency::Friends, 2), [0.9, 0.8, 0.9, 0.0]);
}

/// Goal: no more clusters than kinds of chunks. Method: the example's four rows, 16 streams.
#[test]
fn four_rows_make_four_clusters() {
    let table = table(Scale::Binary, Coherency::Friends);
    let clusters = cluster::cluster(&table.rows, &table.writes, &[1.0; 4], 16);
    assert_eq!(clusters.count, 4);
    // By mean writes: chunk 10 with 1, chunk 2 with 3; 1 and 5 both with 4, by their centres.
    assert_eq!(clusters.of_rows, [2, 1, 3, 0].map(StreamNumber));
    assert_eq!(clusters.of_nothing, StreamNumber(0));
}

/// Goal: attributes as the specification reckons them. Method: the worked example.
#[test]
fn attributes_of_the_example() {
    let found = Attributes::of(&example());
    near(found.random_percent, 200.0 / 3.0);
    near(found.size_sectors, 36.0);
    near(found.reuse, 2.16);
    let gaps = [1.0, 1.0, 8.0, 1.0, 1.0, 8.0, 10.0, 1.0, 1.0, 1.0, 1.0];
    near(attributes::autocorrelation(&gaps), 0.0805);
}

/// Goal: the features of every workload that the paper prints. Method: its attributes, its scale.
#[test]
fn features_of_the_papers_workloads() {
    let rows = [
        (0.99, 98.29, 37.61, 26.0, 43.87, "FC"),
        (0.98, 49.45, 1.21, 197.0, 28.08, "S"),
        (0.78, 75.0, 157.35, 9.0, 139.4, "FAC"),
        (0.87, 82.0, 32.89, 8.0, 114.72, "FAC"),
        (0.97, 57.0, 182.04, 8.0, 185.09, "FAC"),
        (0.92, 66.0, 4.48, 15.0, 58.51, "C"),
        (0.95, 58.0, 157.37, 31.0, 1.57, "FC"),
        (0.98, 69.0, 32.47, 19.0, 21.04, "FC"),
        (0.98, 61.0, 4.72, 25.0, 131.33, "AC"),
        (1.0, 27.0, 6.27, 29.0, 412.19, "A"),
        (0.21, 64.0, 1242.93, 8.0, 575.94, "F"),
        (0.02, 76.0, 1.13, 5.0, 76.6, "F"),
    ];
    let thresholds = Thresholds { rate_scale: 1.0, ..Thresholds::default() };
    for (autocorrelation, random_percent, reuse, size_sectors, gigabytes_per_day, expected) in rows
    {
        let found =
            Attributes { autocorrelation, random_percent, reuse, size_sectors, gigabytes_per_day };
        let found = select(found.judge(&thresholds)).features;
        assert_eq!(alloc::format!("{found}"), expected);
    }
}

/// Goal: runs of a dictionary. Method: section 7.2, long enough that runs are smaller.
#[test]
fn runs_of_a_dictionary() {
    let streams = [3, 3, 3, 0, 0, 5, 5, 5, 5, 0];
    let named = || streams.iter().enumerate().map(|(at, s)| (at as u64, StreamNumber(*s)));
    let small = Dictionary::filled(10, StreamNumber(0), named());
    assert_eq!((small.runs(), streams_of(&small)), (None, streams.to_vec()));
    let large = Dictionary::filled(1000, StreamNumber(0), named());
    assert_eq!(large.runs(), Some(4));
    assert_eq!(streams_of(&large)[..10], streams);
    assert_eq!((large.lookup(4).0, large.lookup(8).0, large.bytes()), (0, 5, 500));
}

/// Goal: SFR's counts and streams. Method: one chunk, written at random; a decay of ten seconds.
#[test]
fn sfr_by_hand() {
    let rows = [
        (
            Exponent::Real,
            [0, 0, 0, 1, 1, 1, 0],
            [1.0, 1.8661, 2.6741, 3.4281, 2.2140, 0.0031, 0.9360],
        ),
        (Exponent::Whole, [0, 0, 1, 1, 2, 1, 0], [1.0, 2.0, 3.0, 4.0, 2.5, 0.0034, 1.0034]),
    ];
    for (exponent, streams, counts) in rows {
        let decay = Nanos::from_secs(10);
        let parameters = SfrParameters { decay, exponent, aging: None, ..SfrParameters::default() };
        let mut sfr = Sfr::new(parameters);
        for (step, seconds) in [0, 1, 2, 3, 13, 113, 114].into_iter().enumerate() {
            let sector = 8 * ((step as u64 * 5) % 7);
            assert_eq!(stream_of(&mut sfr, Nanos::from_secs(seconds), sector), streams[step]);
            near(sfr.count(Sector(0)), counts[step]);
        }
    }
}

/// Goal: a write that continues the one before goes where that went. Method: a hot chunk, then its
/// neighbour that nobody knows.
#[test]
fn sfr_follows_a_sequence() {
    let mut sfr = Sfr::new(SfrParameters { chunk_sectors: 256, ..SfrParameters::default() });
    for step in 0..40 {
        stream_of(&mut sfr, Nanos(step), step % 2 * 8);
    }
    let mut parts = Vec::new();
    sfr.tag(&Write { at: Nanos(50), first: Sector(100), sectors: 156 }, &mut parts);
    let hot = parts[0].stream;
    assert!(hot.0 >= 4, "{hot:?}");
    sfr.tag(&Write { at: Nanos(51), first: Sector(256), sectors: 8 }, &mut parts);
    assert_eq!(parts[0].stream, hot);
    sfr.tag(&Write { at: Nanos(52), first: Sector(256), sectors: 8 }, &mut parts);
    assert_eq!(parts[0].stream, StreamNumber(0));
}

/// Goal: MQ's queues, falls and hottest chunk. Method: A A A B B C C C C with four streams.
#[test]
fn mq_by_hand() {
    let mut mq = Mq::new(MqParameters { streams: 4, ..MqParameters::default() });
    let chunks = [0, 0, 0, 1, 1, 2, 2, 2, 2];
    for (chunk, stream) in chunks.into_iter().zip([0, 0, 1, 0, 0, 0, 0, 1, 1]) {
        assert_eq!(stream_of(&mut mq, Nanos::ZERO, chunk * 2048), stream);
    }
    let [a, b, c] = [0, 1, 2].map(|chunk| mq.look(chunk));
    assert_eq!((a.queue, a.count, b.queue, b.count), (0, 1, 0, 1));
    assert_eq!((c.queue, c.count, c.is_hottest, c.lifetime), (2, 4, true, 1));
}
