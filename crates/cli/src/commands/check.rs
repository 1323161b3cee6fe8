//! `layby check`: what lies on disk, verified without a node.

use crate::arguments::CheckArguments;
use crate::output::{Failure, Output};

pub(crate) fn check(arguments: &CheckArguments, output: &mut Output) -> Result<(), Failure> {
    let _ = (&arguments.dir, &arguments.config, arguments.full, arguments.json);
    output.line("not yet")
}
