//! What do classes bring to critical services, and what do the others pay?
//!
//! How: `layby demo --json`, once per round with another seed. The same services of four vehicles
//! are offered at the same paces, once with one class for all and once with classes; means are the
//! clients' own. Requests that were sent are shown beside them: a service that falls behind its
//! pace sends fewer, and then means are not of the same load.
//! Invariant: figures come from the demo's own arithmetic, so that the entry and the demo's last
//! line agree. Cost: rounds × two phases of `--seconds`. Not for: the default levels; the demo has
//! its own, small enough for a few vehicles, and one class for all is class critical there.

use super::Arguments;
use super::bars::{self, Bar, Wanted};
use super::entries::Plan;
use super::report::{Measured, Report, Spread};
use crate::process::{self, Failure};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// Mean latency with one class over with classes, of the critical services.
const CRITICAL_SHORTER_MIN: f64 = 2.5;
/// Mean latency with classes over with one class, of all normal services together and of each.
const NORMAL_LONGER_MAX: f64 = 1.1;
const SERVICE_LONGER_MAX: f64 = 1.25;

/// What one demo showed.
struct Outcome {
    critical_shorter: f64,
    normal_longer: f64,
    /// Requests with classes over with one class: of critical services, and of normal ones.
    requests: [f64; 2],
    /// Of each normal service: mean latency with classes over with one class.
    services: BTreeMap<String, f64>,
    is_nvm_memory: bool,
}

impl Outcome {
    fn of(answer: &Value) -> Result<Outcome, Failure> {
        let missing = |key: &str| Failure::new(format!("the demo printed no `{key}`"));
        let number = |value: &Value, key: &str| {
            value[key].as_f64().filter(|figure| *figure > 0.0).ok_or_else(|| missing(key))
        };
        let services = answer["services"].as_object().ok_or_else(|| missing("services"))?;
        let normal = services.iter().filter(|(_, service)| service["class"] == "normal");
        let longer = |(name, service): (&String, &Value)| {
            Ok((name.clone(), 1.0 / number(service, "speedup_mean")?))
        };
        let services = normal.map(longer).collect::<Result<BTreeMap<_, _>, Failure>>()?;
        if services.is_empty() {
            return Err(missing("services of class normal"));
        }
        Ok(Outcome {
            critical_shorter: number(answer, "critical_speedup_mean")?,
            normal_longer: 1.0 / number(answer, "normal_speedup_mean")?,
            requests: [
                number(answer, "critical_requests_ratio")?,
                number(answer, "normal_requests_ratio")?,
            ],
            services,
            is_nvm_memory: answer["is_nvm_memory"] == true,
        })
    }

    /// The normal service that pays most.
    fn worst(&self) -> f64 {
        self.services.values().copied().reduce(f64::max).unwrap_or(f64::NAN)
    }
}

/// Runs the demo once per round.
pub(crate) fn measure(plan: &Plan<'_>, arguments: &Arguments) -> Result<Measured, Failure> {
    std::fs::create_dir_all(plan.work)
        .map_err(|cause| Failure::io("cannot make", plan.work, &cause))?;
    let (mut raw, mut outcomes) = (Vec::new(), Vec::new());
    for round in 0..arguments.runs {
        let seed = arguments.seed + u64::from(round);
        let mut demo = process::command(&plan.binary.to_string_lossy(), plan.root);
        demo.args(["demo", "--json", "--seed", &seed.to_string()]);
        demo.args(["--seconds", &arguments.seconds.to_string()]).env("TMPDIR", plan.work);
        let answer = process::json(&mut demo)?;
        let outcome = Outcome::of(&answer)?;
        process::say(&format!(
            "round {} of {}: critical {:.2} times shorter; normal {:.2} times as long, the worst \
             service {:.2}; requests of class normal {:.2}",
            round + 1,
            arguments.runs,
            outcome.critical_shorter,
            outcome.normal_longer,
            outcome.worst(),
            outcome.requests[1]
        ));
        raw.push(json!({ "round": round, "demo": answer }));
        outcomes.push(outcome);
    }
    Ok(Measured::new(raw, |_| Ok(report(&outcomes))))
}

fn bars(outcomes: &[Outcome]) -> Vec<Bar> {
    let bar = |what: &str, wanted, figure: &dyn Fn(&Outcome) -> f64| {
        Bar::new(what, wanted, outcomes.iter().map(figure))
    };
    let mut bars = vec![
        bar("critical mean, one class over classes", Wanted::AtLeast(CRITICAL_SHORTER_MIN), &|o| {
            o.critical_shorter
        }),
        bar(
            "normal mean together, classes over one class",
            Wanted::AtMost(NORMAL_LONGER_MAX),
            &|o| o.normal_longer,
        ),
        bar(
            "the normal service that pays most",
            Wanted::AtMost(SERVICE_LONGER_MAX),
            &Outcome::worst,
        ),
    ];
    let names = outcomes.iter().flat_map(|outcome| outcome.services.keys());
    let names: std::collections::BTreeSet<&String> = names.collect();
    for name in names {
        let of = |outcome: &Outcome| outcome.services.get(name).copied().unwrap_or(f64::NAN);
        bars.push(bar(&format!("{name} mean, classes over one class"), Wanted::Nothing, &of));
    }
    for (at, class) in ["critical", "normal"].into_iter().enumerate() {
        let what = format!("requests of class {class}, classes over one class");
        bars.push(bar(&what, Wanted::Nothing, &|outcome| outcome.requests[at]));
    }
    bars
}

fn report(outcomes: &[Outcome]) -> Report {
    let bars = bars(outcomes);
    let mut table = bars::table(&bars);
    let sent = Spread::of(outcomes.iter().map(|outcome| outcome.requests[1]));
    let nvm = match outcomes.iter().all(|outcome| outcome.is_nvm_memory) {
        true => "a file in memory",
        false => "a plain file",
    };
    // Writing to a string cannot fail.
    let _ = write!(
        table,
        "\nThe demo has levels of its own, not the default ones: DRAM of 1 MiB, NVM of 4 MiB \
         ({nvm}) and SSD of 16 MiB. One class for all is class critical. Both phases offer the \
         same paces; with classes the normal services sent {} of the requests that they sent \
         without.",
        sent.fraction()
    );
    let question = "Do classes help critical services and cost the others little?";
    Report { heading: bars::heading(question, &bars), table }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(critical: f64, normal: f64, s2: f64, s3: f64) -> Value {
        let service =
            |class: &str, speedup: f64| json!({ "class": class, "speedup_mean": speedup });
        json!({
            "critical_speedup_mean": critical, "normal_speedup_mean": normal,
            "critical_requests_ratio": 1.0, "normal_requests_ratio": 0.97, "is_nvm_memory": true,
            "services": {
                "S1": service("critical", critical), "S2": service("normal", s2),
                "S3": service("normal", s3),
            },
        })
    }

    /// Goal: each side of the trade has its bar, the worst service's is of the round's own, and
    /// critical services are none of it. Method: two demos, the second with another worst service
    /// that misses the bar.
    #[test]
    fn both_sides_have_bars() {
        let demos = [answer(2.5, 1.25, 0.8, 2.0), answer(4.0, 1.0, 1.0, 0.5)];
        let outcomes: Vec<Outcome> =
            demos.iter().map(|demo| Outcome::of(demo).expect("figures")).collect();
        let found = bars(&outcomes);
        let rounds: Vec<&[f64]> = found.iter().map(|bar| bar.rounds.as_slice()).collect();
        assert_eq!(rounds[..3], [[2.5, 4.0], [0.8, 1.0], [1.25, 2.0]]);
        assert_eq!(rounds[3..], [[1.25, 1.0], [0.5, 2.0], [1.0, 1.0], [0.97, 0.97]]);
        let met: Vec<Option<bool>> = found.iter().map(Bar::is_met).collect();
        assert_eq!(met[..4], [Some(true), Some(true), Some(false), None]);
        assert!(report(&outcomes).heading.ends_with("Not wholly: 2 of 3 bars are met."));
    }

    /// Goal: a demo that lacks a figure is refused and not counted as one. Method: without each
    /// key in turn; services of class critical alone.
    #[test]
    fn what_is_missing_is_refused() {
        let whole = answer(3.0, 1.0, 1.0, 1.0);
        for key in ["critical_speedup_mean", "normal_requests_ratio", "services"] {
            let mut part = whole.clone();
            part.as_object_mut().expect("an object").remove(key);
            let cause = Outcome::of(&part).err().map(|failure| failure.to_string());
            assert!(cause.is_some_and(|cause| cause.contains(key)), "{key}");
        }
        let mut alone = whole.clone();
        alone["services"] = json!({ "S1": whole["services"]["S1"] });
        assert!(Outcome::of(&alone).is_err());
    }
}
