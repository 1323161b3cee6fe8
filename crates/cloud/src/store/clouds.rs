//! Credentials and endpoints of Azure and Google Cloud, as their own tools read them.
//!
//! How: the client reads most of its variables by itself; here are those that it does not know:
//! `AZURE_STORAGE_CONNECTION_STRING`, `AZURE_STORAGE_ACCOUNT` and `AZURE_STORAGE_KEY`,
//! `STORAGE_EMULATOR_HOST`. What the client has found already stays.
//! Invariant: a machine's metadata service is asked only where the environment says that it has
//! one: elsewhere that takes half a minute to fail. The environment is an argument.
//! Cost: nothing is asked. Not for: S3, see `profile`.

use object_store::azure::{AzureConfigKey as Az, MicrosoftAzureBuilder};
use object_store::client::StaticCredentialProvider;
use object_store::gcp::{GcpCredential, GoogleCloudStorageBuilder, GoogleConfigKey as Gs};
use std::sync::Arc;

/// Looks up a variable of the environment.
type Environment<'a> = &'a dyn Fn(&str) -> Option<String>;

/// The account of Azure's emulators, and its key, which are the same everywhere.
const EMULATED_ACCOUNT: &str = "devstoreaccount1";
const EMULATED_KEY: &str =
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==";
const EMULATED_ENDPOINT: &str = "http://127.0.0.1:10000/devstoreaccount1";

/// Fills in what the environment says and the client left open.
///
/// # Errors
/// A connection string that is none, without its contents.
pub(super) fn azure(
    mut builder: MicrosoftAzureBuilder,
    env: Environment<'_>,
) -> Result<MicrosoftAzureBuilder, String> {
    let mut fill = |key: Az, value: Option<String>| {
        if let Some(value) = value
            && builder.get_config_value(&key).is_none()
        {
            builder = std::mem::take(&mut builder).with_config(key, value);
        }
    };
    fill(Az::AccountName, env("AZURE_STORAGE_ACCOUNT"));
    fill(Az::AccessKey, env("AZURE_STORAGE_KEY"));
    if let Some(text) = env("AZURE_STORAGE_CONNECTION_STRING") {
        let found = connection(&text)?;
        fill(Az::AccountName, found.account);
        fill(Az::AccessKey, found.key);
        fill(Az::SasKey, found.signature);
        fill(Az::Endpoint, found.endpoint);
    }
    Ok(builder)
}

/// What a connection string has.
#[derive(Debug, Default, PartialEq, Eq)]
struct Connection {
    account: Option<String>,
    key: Option<String>,
    signature: Option<String>,
    endpoint: Option<String>,
}

fn connection(text: &str) -> Result<Connection, String> {
    let refused = || {
        "AZURE_STORAGE_CONNECTION_STRING is none: write \
         AccountName=NAME;AccountKey=KEY;BlobEndpoint=URL, as the portal shows it"
            .to_owned()
    };
    let (mut found, mut protocol, mut suffix) = (Connection::default(), None, None);
    for part in text.split(';').map(str::trim).filter(|part| !part.is_empty()) {
        let (name, value) = part.split_once('=').ok_or_else(refused)?;
        let value = value.trim().to_owned();
        match name.trim().to_ascii_lowercase().as_str() {
            "accountname" => found.account = Some(value),
            "accountkey" => found.key = Some(value),
            "sharedaccesssignature" => found.signature = Some(value),
            "blobendpoint" => found.endpoint = Some(value.trim_end_matches('/').to_owned()),
            "defaultendpointsprotocol" => protocol = Some(value),
            "endpointsuffix" => suffix = Some(value),
            "usedevelopmentstorage" if value.eq_ignore_ascii_case("true") => {
                found.account = Some(EMULATED_ACCOUNT.to_owned());
                found.key = Some(EMULATED_KEY.to_owned());
                found.endpoint = Some(EMULATED_ENDPOINT.to_owned());
            }
            // Of other services, or of no use here.
            _ => {}
        }
    }
    if found == Connection::default() {
        return Err(refused());
    }
    if let (None, Some(account), Some(suffix)) = (&found.endpoint, &found.account, suffix) {
        let protocol = protocol.as_deref().unwrap_or("https");
        found.endpoint = Some(format!("{protocol}://{account}.blob.{suffix}"));
    }
    Ok(found)
}

/// Whether there are credentials, or the environment names a service that has them.
///
/// # Errors
/// What is missing.
pub(super) fn check_azure(
    builder: &MicrosoftAzureBuilder,
    env: Environment<'_>,
) -> Result<(), String> {
    let keys = [Az::AccessKey, Az::SasKey, Az::Token, Az::ClientSecret, Az::FederatedTokenFile];
    let choices = [Az::UseAzureCli, Az::SkipSignature, Az::UseEmulator];
    let is_set = |key: &Az| builder.get_config_value(key).is_some_and(|value| value == "true");
    let has_key = keys.iter().any(|key| builder.get_config_value(key).is_some());
    let has_service = builder.get_config_value(&Az::MsiEndpoint).is_some()
        || env("IDENTITY_ENDPOINT").is_some()
        || env("MSI_ENDPOINT").is_some();
    if has_key || has_service || choices.iter().any(is_set) {
        return Ok(());
    }
    Err("there are no credentials: none of AZURE_STORAGE_CONNECTION_STRING, AZURE_STORAGE_KEY, \
         AZURE_STORAGE_SAS_TOKEN and AZURE_CLIENT_SECRET is set; \
         AZURE_MSI_ENDPOINT=http://169.254.169.254/metadata/identity/oauth2/token asks this \
         machine's metadata service"
        .to_owned())
}

/// As [`azure`]: an emulator is spoken to without credentials.
pub(super) fn google(
    builder: GoogleCloudStorageBuilder,
    env: Environment<'_>,
) -> GoogleCloudStorageBuilder {
    let is_open = builder.get_config_value(&Gs::BaseUrl).is_none();
    match env("STORAGE_EMULATOR_HOST").filter(|host| is_open && !host.is_empty()) {
        None => builder,
        Some(host) => {
            let scheme = if host.contains("://") { "" } else { "http://" };
            let url = format!("{scheme}{}", host.trim_end_matches('/'));
            // The client asks for a token before each put, a signature wanted or not, and would
            // send an account's to the emulator.
            let none = GcpCredential { bearer: "none".to_owned() };
            let none = Arc::new(StaticCredentialProvider::new(none));
            builder.with_base_url(&url).with_skip_signature(true).with_credentials(none)
        }
    }
}

/// As [`check_azure`].
pub(super) fn check_google(
    builder: &GoogleCloudStorageBuilder,
    env: Environment<'_>,
) -> Result<(), String> {
    let keys =
        [Gs::ServiceAccount, Gs::ServiceAccountKey, Gs::ApplicationCredentials, Gs::BearerToken];
    let has_key = keys.iter().any(|key| builder.get_config_value(key).is_some());
    let is_unsigned = builder.get_config_value(&Gs::SkipSignature).is_some_and(|it| it == "true");
    let own = env("HOME").map(|home| format!("{home}/.config/gcloud/{DEFAULT_FILE}"));
    let has_file = own.is_some_and(|path| std::path::Path::new(&path).exists());
    if has_key || is_unsigned || has_file || env("GCE_METADATA_HOST").is_some() {
        return Ok(());
    }
    Err("there are no credentials: neither GOOGLE_APPLICATION_CREDENTIALS nor \
         GOOGLE_SERVICE_ACCOUNT names a file, and `gcloud auth application-default login` has left \
         none; GCE_METADATA_HOST=metadata.google.internal asks this machine's metadata service"
        .to_owned())
}

const DEFAULT_FILE: &str = "application_default_credentials.json";

#[cfg(test)]
mod tests {
    use super::*;

    fn env_of<'a>(all: &'a [(&'a str, &'a str)]) -> impl Fn(&str) -> Option<String> + 'a {
        |name| all.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
    }

    /// Goal: a connection string is read as Azure's tools read it, and one that is none is refused
    /// without its contents. Method: those of the portal, of an emulator, with a signature, with an
    /// endpoint of its own; noise.
    #[test]
    fn connection_strings_are_read() {
        let some = |text: &str| Some(text.to_owned());
        let portal = "DefaultEndpointsProtocol=https;AccountName=a;AccountKey=k==;\
                      EndpointSuffix=core.windows.net";
        let found = connection(portal).expect("good");
        assert_eq!((found.account, found.key), (some("a"), some("k==")));
        assert_eq!(found.endpoint, some("https://a.blob.core.windows.net"));
        let own = connection("BlobEndpoint=http://x:1/a/;SharedAccessSignature=sv=1&sig=2");
        let own = own.expect("good");
        assert_eq!((own.endpoint, own.signature), (some("http://x:1/a"), some("sv=1&sig=2")));
        let emulated = connection("UseDevelopmentStorage=true").expect("good");
        assert_eq!(emulated.account, some(EMULATED_ACCOUNT));
        for bad in ["", "secret", "Colour=secret"] {
            let cause = connection(bad).expect_err("it is none");
            assert!(!cause.contains("secret"), "{cause}");
        }
    }

    /// Goal: what the client found stays, what it does not know is filled in, and without any
    /// credentials no service is asked. Method: environments of each kind.
    #[test]
    fn environments_are_read() {
        let named = MicrosoftAzureBuilder::new().with_account("own");
        let env = [("AZURE_STORAGE_ACCOUNT", "other"), ("AZURE_STORAGE_KEY", "a2V5")];
        let filled = azure(named, &env_of(&env)).expect("good");
        assert_eq!(filled.get_config_value(&Az::AccountName).as_deref(), Some("own"));
        assert_eq!(check_azure(&filled, &env_of(&[])), Ok(()));
        let none = MicrosoftAzureBuilder::new().with_account("own");
        assert!(check_azure(&none, &env_of(&[])).is_err());
        assert_eq!(check_azure(&none, &env_of(&[("IDENTITY_ENDPOINT", "http://x")])), Ok(()));
        let open = GoogleCloudStorageBuilder::new;
        assert!(check_google(&open(), &env_of(&[])).is_err());
        assert_eq!(check_google(&open(), &env_of(&[("GCE_METADATA_HOST", "x")])), Ok(()));
        for (host, url) in [("localhost:1", "http://localhost:1"), ("https://x/", "https://x")] {
            let emulated = google(open(), &env_of(&[("STORAGE_EMULATOR_HOST", host)]));
            assert_eq!(emulated.get_config_value(&Gs::BaseUrl).as_deref(), Some(url));
            assert_eq!(check_google(&emulated, &env_of(&[])), Ok(()));
        }
    }
}
