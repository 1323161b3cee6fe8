//! `layby manual`: manual pages from the program's own words.

use crate::arguments::{Layby, ManualArguments};
use crate::output::{Failure, Output};
use clap::CommandFactory;
use layby_daemon::error::Report;

pub(crate) fn manual(arguments: &ManualArguments, output: &mut Output) -> Result<(), Failure> {
    let out = &arguments.out;
    let written =
        std::fs::create_dir_all(out).and_then(|()| clap_mangen::generate_to(Layby::command(), out));
    written.map_err(|cause| {
        Report::from_io(format!("cannot write manual pages to `{}`", out.display()), &cause)
            .state("pages written before this one stay")
            .hint("choose another directory with --out")
    })?;
    output.line(&format!("manual pages are in `{}`", out.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: every command has its page. Method: write them all, look for some.
    #[test]
    fn every_command_has_a_page() {
        let dir = tempfile::TempDir::new().expect("a temporary directory");
        let arguments = ManualArguments { out: dir.path().join("man1") };
        assert!(manual(&arguments, &mut Output::standard()).is_ok());
        for page in ["layby.1", "layby-serve.1", "layby-volume.1", "layby-volume-create.1"] {
            assert!(arguments.out.join(page).exists(), "{page}");
        }
    }
}
