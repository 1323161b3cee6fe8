//! `layby class`: classes of service of a running node.

use super::volume::{held_text, hit_ratio, limits_text, new_shares, said, traffic_table};
use super::{amounts_text, ask, list_text};
use crate::arguments::{ClassArguments, ClassCommand, ClassSetArguments, NodeArguments};
use crate::output::{Failure, Output, micros, table};
use layby_daemon::api::ClassAnswer;
use layby_daemon::config::{Admission, ClassUplink};
use layby_daemon::control::{ClassCreate, ClassPatch};

pub(crate) fn class(arguments: ClassArguments, output: &mut Output) -> Result<(), Failure> {
    match arguments.command {
        ClassCommand::List(node) => {
            let classes = ask(&node, |client| async move { client.classes().await })?;
            if node.json { output.json(&classes) } else { output.line(&class_table(&classes)) }
        }
        ClassCommand::Show { name, node } => {
            let answer = ask(&node, |client| async move { client.class(&name).await })?;
            show(&answer, &node, output)
        }
        ClassCommand::Set(arguments) => {
            let (name, settings, node) = settings(arguments)?;
            let answer =
                ask(&node, |client| async move { client.class_set(&name, &settings).await })?;
            show(&answer, &node, output)
        }
        ClassCommand::Create(arguments) => {
            let (name, settings, node) = settings(arguments)?;
            let request = ClassCreate { name, settings };
            let answer = ask(&node, |client| async move { client.class_create(&request).await })?;
            show(&answer, &node, output)
        }
        ClassCommand::Delete { name, node } => {
            let class = &name;
            ask(&node, |client| async move { client.class_delete(class).await })?;
            said(&format!("deleted class {name}"), &node, output)
        }
    }
}

fn settings(
    arguments: ClassSetArguments,
) -> Result<(layby_daemon::config::Name, ClassPatch, NodeArguments), Failure> {
    let ClassSetArguments { name, levels, rank, durable_writes, borrow, keep_reads, .. } =
        arguments;
    let ClassSetArguments { admission, weight, latency_objective, shares, .. } = arguments;
    let ClassSetArguments { uplink_first, uplink_weight, uplink_patient, .. } = arguments;
    let ClassSetArguments { dirty_age, answer_within, hedge, .. } = arguments;
    let ClassSetArguments { limits, node, .. } = arguments;
    let (share, cap) = new_shares(&shares)?;
    let patch = ClassPatch {
        levels,
        rank,
        durable_writes,
        borrow,
        keep_reads,
        admission: admission.map(Into::into),
        weight,
        latency_objective,
        share,
        cap,
        limits: limits.into(),
        uplink: ClassUplink {
            first: uplink_first,
            weight: uplink_weight,
            patient: uplink_patient,
            dirty_age,
            answer_within,
            hedge,
        },
    };
    Ok((name, patch, node))
}

pub(super) fn class_table(classes: &[ClassAnswer]) -> String {
    let mut table = table(
        [
            "class",
            "levels",
            "writes land in",
            "answered when",
            "rank",
            "volumes",
            "read p99",
            "write p99",
            "hits",
        ],
        4,
    );
    for class in classes {
        let traffic = &class.traffic;
        table.add_row([
            class.name.to_string(),
            list_text(class.settings.levels.iter()),
            class.write_level.clone(),
            class.acknowledged.clone(),
            class.settings.rank.to_string(),
            class.volumes.len().to_string(),
            micros(traffic.read.latency_us_p99),
            micros(traffic.write.latency_us_p99),
            hit_ratio(traffic),
        ]);
    }
    table.to_string()
}

fn show(class: &ClassAnswer, node: &NodeArguments, output: &mut Output) -> Result<(), Failure> {
    if node.json {
        return output.json(class);
    }
    let settings = &class.settings;
    let objective = settings.latency_objective;
    let objective = objective.map_or_else(|| "-".to_owned(), |time| format!("within {time}"));
    let latency = class.latency;
    let objective = format!(
        "{objective}; {} in the last window, missed in {} of {} windows ({} requests late)",
        micros(latency.latency_us_p999),
        latency.windows_missed,
        latency.windows,
        latency.requests_late
    );
    let borrow = if settings.borrow { "idle room of other levels" } else { "nothing" };
    let keeps = if settings.keep_reads { "reads from home, below memory" } else { "writes" };
    let admits = match settings.admission {
        Admission::All => "what is read",
        Admission::SecondMiss => "what is missed twice",
    };
    for (word, text) in [
        ("class", class.name.to_string()),
        ("rank", format!("{} (the highest yields first)", settings.rank)),
        ("levels", list_text(settings.levels.iter())),
        ("writes", format!("land in {}, answered when {}", class.write_level, class.acknowledged)),
        ("borrows", borrow.to_owned()),
        ("keeps", keeps.to_owned()),
        ("admits", admits.to_owned()),
        ("weight", settings.weight.to_string()),
        ("p99.9", objective),
        ("shares", amounts_text(&settings.share)),
        ("caps", amounts_text(&settings.cap)),
        ("limits", limits_text(&settings.limits)),
        ("uplink", uplink_text(&settings.uplink)),
        ("held", held_text(&class.traffic)),
        ("volumes", list_text(class.volumes.iter())),
    ] {
        output.line(&format!("{word:<8} {text}"))?;
    }
    output.line(&traffic_table(&class.traffic))
}

/// How a class's segments go up.
fn uplink_text(of: &ClassUplink) -> String {
    let share = match (of.first, of.weight) {
        (Some(true), _) => "before the others".to_owned(),
        (_, Some(weight)) => format!("weight {weight}"),
        _ => "weight 100".to_owned(),
    };
    let patience = if of.patient == Some(true) { ", in good periods" } else { "" };
    let age = match of.dirty_age.filter(|age| age.0.0 > 0) {
        Some(age) => format!(", after {age} at the latest"),
        None => String::new(),
    };
    let within = match of.answer_within.filter(|time| time.0.0 > 0) {
        Some(time) => format!(", calls that wait for the store longer than {time} are refused"),
        None => String::new(),
    };
    let hedge = if of.hedge == Some(true) { ", late reads asked for twice" } else { "" };
    format!("{share}{patience}{age}{within}{hedge}")
}
