//! The text of a configuration: a file, or standard input.
//!
//! How: at most [`CONFIG_BYTES_MAX`] are read, also of what has no length, such as a pipe that the
//! process was started with.
//! Invariant: memory is bounded, whatever is named; no pipe with a name is waited for. A file that
//! is there and cannot be read is never taken for one that is missing: with it TLS and allow-lists
//! would go. Cost: once per start.
//! Not for: what the text says.

use crate::disk_file::{is_absent, refuse_pipe};
use crate::error::{Report, ReportKind};
use layby_cloud::open_regular;
use std::fs::File;
use std::io::Read;
use std::path::Path;

/// How standard input is written where a file is read.
pub const STDIN: &str = "-";
/// Bytes of a configuration file at most; a larger one is surely something else.
pub const CONFIG_BYTES_MAX: u64 = 1 << 20;

/// What to do where the file is there.
const UNREADABLE: &str = "see to it that the node's user can read it: without it the node would \
                          listen and let clients in by defaults, so only a file that is moved \
                          away is left out";

/// Reads a configuration.
pub(super) fn read(path: &Path) -> Result<String, Report> {
    let error = format!("cannot read configuration `{}`", path.display());
    let text = text(path).map_err(|cause| {
        let refused = Report::from_io(&*error, &cause);
        let another = "name an existing file with --config, or leave the flag out";
        let (kind, hint) = match cause.kind() {
            std::io::ErrorKind::NotFound => (ReportKind::NotFound, another),
            std::io::ErrorKind::InvalidData => (
                ReportKind::Invalid,
                "write the configuration in UTF-8, or name another file with --config",
            ),
            std::io::ErrorKind::InvalidInput => (
                ReportKind::Invalid,
                "name a file with --config, or `-` and write to standard input",
            ),
            _ => (refused.kind, another),
        };
        Report { kind, ..refused }.state("nothing was started or changed").hint(hint)
    })?;
    if text.len() as u64 > CONFIG_BYTES_MAX {
        return Err(Report::new(ReportKind::Invalid, error)
            .cause(format!("it has more than {CONFIG_BYTES_MAX} bytes"))
            .state("nothing was started or changed")
            .hint("name a Layby configuration with --config"));
    }
    Ok(text)
}

/// Reads the configuration in a node's directory; none where there is no such file.
pub(super) fn read_beside(path: &Path) -> Result<Option<String>, Report> {
    if is_absent(path) {
        return Ok(None);
    }
    read(path).map(Some).map_err(|refused| match refused.kind {
        ReportKind::Invalid => refused,
        // A link's target may be mounted yet.
        ReportKind::NotFound => Report { kind: ReportKind::Failure, ..refused }
            .cause("it is a link, and what it leads to is missing")
            .hint(UNREADABLE),
        _ => refused.hint(UNREADABLE),
    })
}

/// All of a regular file that is small if it is sound. Of what is none nothing is read: a pipe's
/// writer may never come.
///
/// # Errors
/// The system's, or that it is no regular file, or has more than `most` bytes.
pub(crate) fn read_small(path: &Path, most: u64) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    open_regular(path)?.take(most + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most {
        let cause = format!("it has more than {most} bytes");
        return Err(std::io::Error::new(std::io::ErrorKind::InvalidData, cause));
    }
    Ok(bytes)
}

fn text(path: &Path) -> std::io::Result<String> {
    let mut text = String::new();
    match path.as_os_str() == STDIN {
        true => std::io::stdin().lock().take(CONFIG_BYTES_MAX + 1).read_to_string(&mut text)?,
        false => {
            if !is_descriptor(path) {
                refuse_pipe(path)?;
            }
            File::open(path)?.take(CONFIG_BYTES_MAX + 1).read_to_string(&mut text)?
        }
    };
    Ok(text)
}

/// Whether a path names what this process has open, such as a shell's `<(command)`.
fn is_descriptor(path: &Path) -> bool {
    ["/dev/fd", "/dev/stdin", "/proc"].iter().any(|folder| path.starts_with(folder))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: a configuration in another encoding is wrong input, and said to be. Method: a file
    /// with a byte that UTF-8 does not have.
    #[test]
    fn another_encoding_is_wrong_input() {
        let folder = tempfile::TempDir::new().expect("a temporary directory");
        let path = folder.path().join("layby.toml");
        std::fs::write(&path, b"[node]\n# gr\xfcn\n").expect("it can be written");
        let refused = read(&path).expect_err("it is no text");
        assert_eq!(refused.kind, ReportKind::Invalid);
        assert!(format!("{refused:?}").contains("in UTF-8"), "{refused:?}");
    }

    /// Goal: a pipe in the place of the configuration is refused at once, and one that the process
    /// was started with is read. Method: a named pipe that nothing writes to; a pipe by its
    /// descriptor.
    #[test]
    fn a_named_pipe_is_no_configuration() {
        let folder = tempfile::TempDir::new().expect("a temporary directory");
        let path = folder.path().join("pipe");
        let mode = rustix::fs::Mode::from_raw_mode(0o600);
        rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, mode, 0)
            .expect("a pipe");
        let refused = read(&path).expect_err("nothing writes");
        assert_eq!(refused.kind, ReportKind::Invalid);
        assert!(refused.cause.contains("a pipe (FIFO)"), "{refused}");
        let (reader, mut writer) = std::io::pipe().expect("a pipe");
        std::io::Write::write_all(&mut writer, b"[node]\n").expect("there is room");
        drop(writer);
        let number = std::os::fd::AsRawFd::as_raw_fd(&reader);
        let text = read(Path::new(&format!("/dev/fd/{number}"))).expect("it was written to");
        assert_eq!(text, "[node]\n");
    }

    /// Goal: a configuration in the node's directory that cannot be looked at or read is not taken
    /// for one that is missing. Method: no file; a loop of links; a link that leads nowhere; a
    /// folder; a file in the place of the directory.
    #[test]
    fn only_a_missing_file_is_no_configuration() {
        use std::os::unix::fs::symlink;
        let folder = tempfile::TempDir::new().expect("a temporary directory");
        let at = |name: &str| folder.path().join(name);
        symlink(at("loop"), at("loop")).expect("a link");
        symlink(at("nothing"), at("dangling")).expect("a link");
        std::fs::create_dir(at("folder")).expect("a writable directory");
        std::fs::write(at("file"), "[node]\n").expect("a writable directory");
        for (name, cause) in [("loop", "symbolic"), ("dangling", "is missing"), ("folder", "")] {
            let refused = read_beside(&at(name)).expect_err("it is there");
            assert_eq!(refused.kind, ReportKind::Failure, "{refused}");
            assert!(
                refused.cause.contains(cause) && refused.hint.contains("defaults"),
                "{refused}"
            );
        }
        assert_eq!(read_beside(&at("file")).expect("it can be read").as_deref(), Some("[node]\n"));
        for missing in ["nothing", "file/layby.toml"] {
            assert_eq!(read_beside(&at(missing)).expect("nothing is there"), None);
        }
    }

    /// Goal: a pipe without a writer holds nothing up. Method: a named pipe, read as a small file.
    #[test]
    fn pipes_are_no_small_files() {
        let folder = tempfile::TempDir::new().expect("a temporary directory");
        let path = folder.path().join("pipe");
        let mode = rustix::fs::Mode::from_raw_mode(0o600);
        rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, mode, 0)
            .expect("a pipe");
        let refused = read_small(&path, 10).expect_err("nobody writes");
        assert!(refused.to_string().contains("no regular file"), "{refused}");
    }
}
