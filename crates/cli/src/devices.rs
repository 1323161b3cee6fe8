//! Descriptions of devices: what `layby probe` writes, and `--devices` reads.
//!
//! How: TOML with a `[[device]]` per device. One whose name is built in takes its place; any other
//! name can be chosen beside those. Built in are PADSA's Table I and its main storage.
//! Invariant: what is written here can be read here; a mistake is reported with file, line and key.
//! Not for: what the figures mean; see the device room's model.

use crate::input;
use layby_daemon::config::{Name, Size, Time};
use layby_daemon::error::{Report, ReportKind};
use layby_daemon::types::Nanos;
use layby_sim::device::{Model, TABLE_I};
use layby_sim::levels::PadsaDevices;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;
use std::path::{Path, PathBuf};
use toml::Spanned;

/// The name of the main storage, which every home lies on unless told otherwise.
pub(crate) const MAIN: &str = "main";
/// What is to be done about most mistakes.
const HINT: &str = "correct it; every key is described in docs/replay.md, section Devices";

/// A `[[device]]` of a file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Description {
    pub(crate) name: Name,
    /// A read of 4 KiB.
    pub(crate) read: Time,
    /// A write of 4 KiB.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) write: Option<Time>,
    /// Accesses in service at once.
    #[serde(default = "one")]
    pub(crate) channels: u16,
    /// How fast one access's bytes beyond 4 KiB move; not known: they take no time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) bandwidth: Option<Rate>,
    /// Not known: that of the built-in device it takes the place of, else 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) dollars_per_tb: Option<u32>,
}

fn one() -> u16 {
    1
}

/// Bytes per second, written `1200MiB/s`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Rate(pub(crate) Size);

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/s", self.0)
    }
}

impl Serialize for Rate {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Rate {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let size = text.trim().strip_suffix("/s").and_then(|size| size.parse().ok());
        size.map(Rate).ok_or_else(|| {
            let cause = format!("`{text}` is no bandwidth; write a size per second: `1200MiB/s`");
            serde::de::Error::custom(cause)
        })
    }
}

impl fmt::Display for Description {
    /// Writes the `[[device]]` as TOML.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "[[device]]\nname = \"{}\"\nread = \"{}\"", self.name, self.read)?;
        match self.write {
            Some(write) => writeln!(f, "write = \"{write}\"")?,
            None => writeln!(f, "# write = \"\"     # not measured: nothing was written")?,
        }
        writeln!(f, "channels = {}", self.channels)?;
        if let Some(bandwidth) = self.bandwidth {
            writeln!(f, "bandwidth = \"{bandwidth}\"")?;
        }
        match self.dollars_per_tb {
            Some(price) => writeln!(f, "dollars_per_tb = {price}"),
            None => Ok(()),
        }
    }
}

/// A file of descriptions.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    device: Vec<Spanned<Description>>,
}

/// A mistake in a description.
struct Mistake {
    key: &'static str,
    cause: String,
}

/// Every device that can be named.
#[derive(Clone, Debug)]
pub(crate) struct Devices {
    models: Vec<Model>,
    /// Names that files gave, and which file.
    described: Vec<(Name, PathBuf)>,
}

impl Devices {
    /// Built-in devices, and those of `files`.
    ///
    /// # Errors
    /// A report when a file cannot be read or holds a mistake, or two devices have one name.
    pub(crate) fn load(files: &[PathBuf]) -> Result<Devices, Report> {
        let built_in = TABLE_I.iter().filter_map(|(name, ..)| Model::built_in(name));
        let main = Model { name: MAIN.to_owned(), ..Model::main_storage() };
        let models = built_in.chain([main]).collect();
        let mut devices = Devices { models, described: Vec::new() };
        for path in files {
            devices.read(path)?;
        }
        Ok(devices)
    }

    fn read(&mut self, path: &Path) -> Result<(), Report> {
        let text =
            std::fs::read_to_string(input::place(path)).map_err(|cause| unread(path, &cause))?;
        let file: File = toml::from_str(&text).map_err(|refused| {
            unsound(path).cause(refused.to_string().trim_end().to_owned()).hint(HINT)
        })?;
        if file.device.is_empty() {
            return Err(unsound(path).cause("it has no `[[device]]`").hint(HINT));
        }
        for spanned in file.device {
            let line = 1 + text[..spanned.span().start].matches('\n').count();
            let description = spanned.into_inner();
            self.add(path, &description).map_err(|Mistake { key, cause }| {
                let name = &description.name;
                let place = format!("device `{name}` of line {line}, key `{key}`");
                unsound(path).cause(format!("{place}: {cause}")).hint(HINT)
            })?;
        }
        Ok(())
    }

    fn add(&mut self, path: &Path, description: &Description) -> Result<(), Mistake> {
        let name = &description.name;
        if let Some((_, other)) = self.described.iter().find(|(known, _)| known == name) {
            let other = other.display();
            return mistake("name", format!("`{name}` was described before, in `{other}`"));
        }
        let place = self.models.iter().position(|model| model.name == name.as_str());
        let price = place.map_or(0, |place| self.models[place].dollars_per_tb);
        let model = description.model(price)?;
        match place {
            Some(place) => self.models[place] = model,
            None => self.models.push(model),
        }
        self.described.push((name.clone(), path.to_owned()));
        Ok(())
    }

    /// The device called `name`.
    ///
    /// # Errors
    /// A report that lists the names there are.
    pub(crate) fn find(&self, name: &str) -> Result<Model, Report> {
        self.models.iter().find(|model| model.name == name).cloned().ok_or_else(|| {
            let known: Vec<&str> = self.models.iter().map(|model| model.name.as_str()).collect();
            Report::new(ReportKind::Invalid, format!("there is no device `{name}`"))
                .cause(format!("there are {}", known.join(", ")))
                .state("nothing was run")
                .hint("name one of them, or a file that describes it with --devices")
        })
    }

    /// Makes sure that every described device is among those `used`.
    ///
    /// # Errors
    /// A report of the first that is not: its figures would be ignored.
    pub(crate) fn check_used(&self, used: &[&str]) -> Result<(), Report> {
        let idle = self.described.iter().find(|(name, _)| !used.contains(&name.as_str()));
        idle.map_or(Ok(()), |(name, path)| {
            Err(unsound(path)
                .cause(format!("device `{name}`, key `name`: no level and no home is on it"))
                .hint("choose it with SIZE@NAME or --home NAME, or leave it out"))
        })
    }

    /// The three levels and the homes by their built-in names, each with a price.
    ///
    /// # Errors
    /// A report when a file describes a device that stands for none of them or has no price.
    pub(crate) fn priced_rows(&self) -> Result<PadsaDevices, Report> {
        const ROWS: [&str; 4] = ["dram", "nvm", "ssd", MAIN];
        let other = self.described.iter().find(|(name, _)| !ROWS.contains(&name.as_str()));
        if let Some((name, path)) = other {
            return Err(unsound(path)
                .cause(format!("device `{name}`, key `name`: no device here has that name"))
                .hint(format!("name it as the one whose place it takes: {}", ROWS.join(", "))));
        }
        for (name, path) in &self.described {
            if self.find(name.as_str())?.dollars_per_tb == 0 {
                return Err(unsound(path)
                    .cause(format!("device `{name}`, key `dollars_per_tb`: it is 0"))
                    .hint("write a price, or leave it out for the paper's: budgets are compared"));
            }
        }
        let [dram, nvm, ssd, home] = ROWS.map(|name| self.find(name).expect("it is built in"));
        Ok(PadsaDevices { levels: [dram, nvm, ssd], home })
    }
}

fn mistake<T>(key: &'static str, cause: impl Into<String>) -> Result<T, Mistake> {
    Err(Mistake { key, cause: cause.into() })
}

impl Description {
    /// The model; `price` where none is written.
    fn model(&self, price: u32) -> Result<Model, Mistake> {
        let Some(write) = self.write else {
            let cause = "it is missing: a probe that only reads cannot measure it. Write what the \
                         device's maker says, or probe with --write-latency";
            return mistake("write", cause);
        };
        for (key, time) in [("read", self.read), ("write", write)] {
            if time.0 == Nanos::ZERO {
                return mistake(key, "no device takes no time; the least is 1ns");
            }
        }
        if self.channels == 0 {
            return mistake("channels", "a device serves at least one access at once");
        }
        if self.bandwidth.is_some_and(|rate| rate.0.0 == 0) {
            return mistake("bandwidth", "nothing would ever end; leave it out if it is not known");
        }
        Ok(Model {
            name: self.name.to_string(),
            read: self.read.0,
            write: write.0,
            channel_bytes_per_second: self.bandwidth.map_or(0, |rate| rate.0.0),
            channels: self.channels,
            dollars_per_tb: self.dollars_per_tb.unwrap_or(price),
        })
    }
}

fn unsound(path: &Path) -> Report {
    let error = format!("the devices of `{}` cannot be used", path.display());
    Report::new(ReportKind::Invalid, error).state("nothing was run")
}

fn unread(path: &Path, cause: &std::io::Error) -> Report {
    let mut report =
        Report::from_io(format!("cannot read the devices of `{}`", path.display()), cause);
    if cause.kind() == std::io::ErrorKind::NotFound {
        report.kind = ReportKind::NotFound;
    }
    report.state("nothing was run").hint("--devices takes a file as `layby probe --out` writes it")
}

#[cfg(test)]
mod tests {
    use super::*;

    const WHOLE: &str = "[[device]]\nname = \"fast\"\nread = \"82us\"\nwrite = \"21us\"\n\
                         channels = 14\nbandwidth = \"1200MiB/s\"\ndollars_per_tb = 90\n";

    fn load(texts: &[&str]) -> Result<Devices, Report> {
        let work = tempfile::TempDir::new().expect("a temporary folder");
        let file = |(at, text): (usize, &&str)| {
            let path = work.path().join(format!("{at}.toml"));
            std::fs::write(&path, text).expect("the folder takes files");
            path
        };
        let files: Vec<PathBuf> = texts.iter().enumerate().map(file).collect();
        Devices::load(&files)
    }

    /// Goal: what is written can be read, every key of it. Method: there and back, whole and bare.
    #[test]
    fn descriptions_round_trip() {
        let whole: File = toml::from_str(WHOLE).expect("it is sound");
        let description = whole.device[0].get_ref().clone();
        assert_eq!(description.to_string(), WHOLE);
        let bare = Description { bandwidth: None, dollars_per_tb: None, ..description.clone() };
        let devices = load(&[&bare.to_string()]).expect("it is sound");
        let model = devices.find("fast").expect("it was described");
        assert_eq!((model.read, model.write), (Nanos::from_micros(82), Nanos::from_micros(21)));
        assert_eq!((model.channels, model.channel_bytes_per_second), (14, 0));
        let devices = load(&[WHOLE]).expect("it is sound");
        let model = devices.find("fast").expect("it was described");
        assert_eq!((model.channel_bytes_per_second, model.dollars_per_tb), (1200 << 20, 90));
    }

    /// Goal: a built-in name is replaced, price kept unless written, and without files rows are
    /// Table I's. Method: rows by both ways.
    #[test]
    fn built_in_names_are_replaced() {
        let rows = load(&[]).and_then(|devices| devices.priced_rows()).expect("they are built in");
        let PadsaDevices { levels, home } = PadsaDevices::default();
        assert_eq!(rows.levels, levels);
        assert_eq!((rows.home.read, rows.home.write), (home.read, home.write));
        let ssd = WHOLE.replace("fast", "ssd").replace("dollars_per_tb = 90\n", "");
        let changed = load(&[&ssd]).and_then(|devices| devices.priced_rows()).expect("it is sound");
        assert_eq!(changed.levels[2].read, Nanos::from_micros(82));
        assert_eq!(changed.levels[2].dollars_per_tb, levels[2].dollars_per_tb);
        assert_eq!(changed.levels[..2], levels[..2]);
        let refused = load(&[WHOLE]).and_then(|devices| devices.priced_rows()).expect_err("no row");
        assert!(refused.to_string().contains("`fast`") && refused.hint.contains("nvm"));
        let free = WHOLE.replace("fast", "ssd").replace("_tb = 90", "_tb = 0");
        let refused = load(&[&free]).and_then(|devices| devices.priced_rows()).expect_err("free");
        assert!(refused.cause.contains("`dollars_per_tb`"), "{refused}");
    }

    /// Goal: each mistake is reported with file and key. Method: one of each kind.
    #[test]
    fn mistakes_name_file_and_key() {
        for (from, to, word) in [
            ("82us", "0us", "`read`"),
            ("21us", "0s", "`write`"),
            ("write = \"21us\"\n", "", "--write-latency"),
            ("channels = 14", "channels = 0", "`channels`"),
            ("channels = 14", "chanels = 14", "chanels"),
            ("1200MiB/s", "1200MiB", "1200MiB/s"),
            ("1200MiB/s", "0MiB/s", "`bandwidth`"),
            ("82us", "fast", "not a time"),
            ("fast", "a b", "a b"),
            ("[[device]]", "[[devices]]", "devices"),
            (WHOLE, "", "[[device]]"),
        ] {
            let report = load(&[&WHOLE.replace(from, to)]).expect_err(to);
            assert_eq!(report.kind, ReportKind::Invalid);
            assert!(report.error.contains("0.toml"), "{report}");
            assert!(report.to_string().contains(word), "{report}");
        }
        let twice = load(&[WHOLE, WHOLE]).expect_err("one name twice");
        assert!(twice.error.contains("1.toml") && twice.cause.contains("0.toml"), "{twice}");
        let within = load(&[&[WHOLE, WHOLE].concat()]).expect_err("one name twice");
        assert!(within.cause.contains("line 8"), "{within}");
        let absent = Devices::load(&[PathBuf::from("/nowhere/x.toml")]).expect_err("no file");
        assert_eq!(absent.kind, ReportKind::NotFound);
        let unknown = load(&[WHOLE]).map(|devices| devices.find("slow")).expect("it is sound");
        let unknown = unknown.expect_err("no such device");
        assert!(unknown.cause.contains("dram") && unknown.cause.contains("fast"), "{unknown}");
    }
}
