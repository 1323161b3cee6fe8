//! Descriptions of the node's devices, as `layby probe --out` writes them.
//!
//! How: TOML with a `[[device]]` per device, called like the level that lies on it, or `main` for
//! the volumes' homes. Prices are for comparisons elsewhere and are not kept.
//! Invariant: what is read can be reckoned with: no latency of nothing, at least one channel.
//! Cost: read once per start. Not for: what the figures are used for; see [`crate::admission`].

use super::{Bandwidth, Name, Place, Problem, Time};
use layby_device::Model;
use serde::Deserialize;
use std::path::{Path, PathBuf};

/// The name under which a file speaks of the volumes' homes.
pub const MAIN_DEVICE: &str = "main";
/// Bytes of a description at most.
const DEVICES_BYTES_MAX: u64 = 1 << 20;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    device: Vec<Description>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Description {
    name: Name,
    read: Time,
    write: Option<Time>,
    channels: Option<u16>,
    bandwidth: Option<Bandwidth>,
    dollars_per_tb: Option<u32>,
}

/// Reads the devices of all `paths`; a later one takes the place of an earlier one of its name.
pub(super) fn read(dir: &Path, paths: &[PathBuf]) -> Result<Vec<Model>, Problem> {
    let mut models: Vec<Model> = Vec::new();
    for path in paths {
        let path = dir.join(path);
        let refused = |cause: String| {
            let cause = format!("`{}`: {cause}", path.display());
            let hint = "write it with `layby probe --out`, or leave the key out; nothing is \
                        refused for load then";
            Problem::new(Place::Node, "devices", cause, hint)
        };
        for model in read_file(&path).map_err(refused)? {
            models.retain(|known| known.name != model.name);
            models.push(model);
        }
    }
    Ok(models)
}

fn read_file(path: &Path) -> Result<Vec<Model>, String> {
    let bytes = super::read_small(path, DEVICES_BYTES_MAX).map_err(|cause| cause.to_string())?;
    let text = String::from_utf8(bytes).map_err(|cause| cause.to_string())?;
    let file: File = toml::from_str(&text).map_err(|cause| cause.to_string())?;
    file.device.into_iter().map(model).collect()
}

fn model(description: Description) -> Result<Model, String> {
    let Description { name, read, write, channels, bandwidth, dollars_per_tb } = description;
    let (write, channels) = (write.unwrap_or(read), channels.unwrap_or(1));
    if read.0.0 == 0 || write.0.0 == 0 || channels == 0 {
        return Err(format!("device `{name}` takes no time, or has no channel"));
    }
    Ok(Model {
        name: name.as_str().to_owned(),
        read: read.0,
        write: write.0,
        channel_bytes_per_second: bandwidth.map_or(0, |rate| rate.0),
        channels,
        dollars_per_tb: dollars_per_tb.unwrap_or(0),
    })
}

#[cfg(test)]
mod tests {
    use layby_types::Nanos;
    use tempfile::TempDir;

    /// Goal: what `layby probe` writes is read, and nonsense is refused by name. Method: a file of
    /// its form, and mistakes.
    #[test]
    fn descriptions_are_read() {
        let dir = TempDir::new().expect("a temporary directory");
        let read = |text: &str| {
            std::fs::write(dir.path().join("d.toml"), text).expect("a writable directory");
            super::read(dir.path(), &["d.toml".into()])
        };
        let text = "[[device]]\nname = \"ssd\"\nread = \"80us\"\nwrite = \"20us\"\nchannels = 8\n\
            bandwidth = \"100MiB/s\"\ndollars_per_tb = 80\n[[device]]\nname = \"main\"\n\
            read = \"5ms\"\n# write = \"\"     # not measured\n";
        let models = read(text).expect("a good file");
        assert_eq!((models[0].channels, models[0].channel_bytes_per_second), (8, 100 << 20));
        assert_eq!((models[1].name.as_str(), models[1].write), ("main", Nanos::from_millis(5)));
        for bad in
            ["[[device]]\nname = \"x\"\n", "device = 5", "[[device]]\nname = \"x\"\nread = \"0s\""]
        {
            assert!(read(bad).is_err_and(|problem| problem.cause.contains("d.toml")), "{bad}");
        }
        let missing = super::read(dir.path(), &["nowhere".into()]);
        assert!(missing.is_err_and(|problem| problem.key == "devices"));
    }
}
