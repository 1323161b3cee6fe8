//! Credentials, region and endpoint out of the files that S3's own tools keep.
//!
//! How: `AWS_SHARED_CREDENTIALS_FILE` or `~/.aws/credentials`, and `AWS_CONFIG_FILE` or
//! `~/.aws/config`; the section is `AWS_PROFILE`'s, or `default`. The environment's own variables
//! come first, as with those tools.
//! Invariant: environment and files are arguments, so that a test decides what there is. A profile
//! that was asked for by name and is nowhere is refused.
//! Cost: two small files per store that is opened. Not for: roles, single sign-on and processes
//! that print credentials; a section that has only those gives none.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Bytes of such a file at most.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// What a profile has.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Profile {
    pub(super) access_key_id: Option<String>,
    pub(super) secret_access_key: Option<String>,
    pub(super) session_token: Option<String>,
    pub(super) region: Option<String>,
    pub(super) endpoint: Option<String>,
}

/// Looks up a variable of the environment.
type Environment<'a> = &'a dyn Fn(&str) -> Option<String>;

/// Reads a text file, if it is there.
type ReadFile<'a> = &'a dyn Fn(&Path) -> Option<String>;

impl Profile {
    /// The profile that the environment names.
    ///
    /// # Errors
    /// `AWS_PROFILE` names one that neither file has.
    pub(super) fn find(env: Environment<'_>, read: ReadFile<'_>) -> Result<Profile, String> {
        let home = env("HOME").map(PathBuf::from);
        let place = |variable: &str, name: &str| {
            let named = env(variable).map(PathBuf::from);
            named.or_else(|| home.as_ref().map(|home| home.join(".aws").join(name)))
        };
        let named = env("AWS_PROFILE").filter(|name| !name.is_empty());
        let name = named.clone().unwrap_or_else(|| "default".to_owned());
        let section = |file: Option<PathBuf>, title: &str| {
            file.and_then(|file| read(&file)).and_then(|text| section(&text, title))
        };
        let credentials = section(place("AWS_SHARED_CREDENTIALS_FILE", "credentials"), &name);
        let title = if name == "default" { name.clone() } else { format!("profile {name}") };
        let config = section(place("AWS_CONFIG_FILE", "config"), &title);
        if let (Some(name), None, None) = (&named, &credentials, &config) {
            return Err(format!(
                "AWS_PROFILE is `{name}`, which neither the credentials file nor the configuration \
                 file of the AWS tools has"
            ));
        }
        let (credentials, config) = (credentials.unwrap_or_default(), config.unwrap_or_default());
        let get = |key: &str| credentials.get(key).or_else(|| config.get(key)).cloned();
        Ok(Profile {
            access_key_id: get("aws_access_key_id"),
            secret_access_key: get("aws_secret_access_key"),
            session_token: get("aws_session_token"),
            region: get("region"),
            endpoint: get("endpoint_url"),
        })
    }

    /// The profile of this process's environment.
    ///
    /// # Errors
    /// As [`Profile::find`].
    pub(super) fn of_process() -> Result<Profile, String> {
        Profile::find(&|name| std::env::var(name).ok(), &|path| {
            let is_small = std::fs::metadata(path).is_ok_and(|is| is.len() <= FILE_BYTES_MAX);
            is_small.then(|| std::fs::read_to_string(path).ok()).flatten()
        })
    }
}

/// The keys of a section; indented lines belong to the key before them and are passed over.
fn section(text: &str, title: &str) -> Option<BTreeMap<String, String>> {
    let mut found: Option<BTreeMap<String, String>> = None;
    let mut is_in = false;
    for line in text.lines().filter(|line| !line.starts_with([' ', '\t', '#', ';'])) {
        if let Some(rest) = line.trim_end().strip_prefix('[') {
            let name = rest.strip_suffix(']').unwrap_or(rest);
            is_in = name.split_whitespace().eq(title.split_whitespace());
            if is_in {
                found.get_or_insert_default();
            }
        } else if let (true, Some((key, value))) = (is_in, line.split_once('=')) {
            let (key, value) = (key.trim().to_owned(), value.trim().to_owned());
            found.get_or_insert_default().insert(key, value);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    const CREDENTIALS: &str = "# mine\n[default]\naws_access_key_id = A\naws_secret_access_key=B\n\
        \n[edge]\naws_access_key_id = C\naws_secret_access_key = D\naws_session_token = E\n";
    const CONFIG: &str = "[default]\nregion = eu-central-1\ns3 =\n  endpoint_url = http://nested\n\
        [profile edge]\nregion = eu-west-1\nendpoint_url = http://127.0.0.1:9000\n";

    fn find(variables: &[(&str, &str)]) -> Result<Profile, String> {
        let env = |name: &str| {
            let own = variables.iter().find(|(own, _)| *own == name);
            own.map(|(_, value)| (*value).to_owned())
        };
        Profile::find(&env, &|path| match path.to_str() {
            Some("/home/u/.aws/credentials" | "/etc/other") => Some(CREDENTIALS.to_owned()),
            Some("/home/u/.aws/config") => Some(CONFIG.to_owned()),
            _ => None,
        })
    }

    /// Goal: the section that the environment names is read, from the files that it names. Method:
    /// the default, a named one, other files, a name that is nowhere, no home.
    #[test]
    fn profiles_are_found() {
        let some = |text: &str| Some(text.to_owned());
        let default = find(&[("HOME", "/home/u")]).expect("it is there");
        assert_eq!((default.access_key_id, default.region), (some("A"), some("eu-central-1")));
        assert_eq!((default.session_token, default.endpoint), (None, None));
        let edge = find(&[("HOME", "/home/u"), ("AWS_PROFILE", "edge")]).expect("it is there");
        assert_eq!((edge.secret_access_key, edge.session_token), (some("D"), some("E")));
        assert_eq!(edge.endpoint, some("http://127.0.0.1:9000"));
        let other = [("AWS_SHARED_CREDENTIALS_FILE", "/etc/other"), ("AWS_PROFILE", "edge")];
        assert_eq!(find(&other).expect("it is there").access_key_id, some("C"));
        let cause = find(&[("HOME", "/home/u"), ("AWS_PROFILE", "none")]).expect_err("nowhere");
        assert!(cause.contains("AWS_PROFILE is `none`"), "{cause}");
        assert_eq!(find(&[]), Ok(Profile::default()));
    }
}
