//! Credentials for Amazon S3 as its other clients find them: the shared files, their profiles, and helper programs.
//!
//! The order is that of the AWS tools: the URL, the environment, the profile (`AWS_PROFILE`, else `default`), and then what
//! `object_store` asks by itself: a web identity, a container, the instance's metadata service. A profile with keys is used
//! directly, and `credential_process` is run. Profiles that need a sign-on or another role (SSO, `role_arn`) are left to the
//! AWS command line, which exports what it obtains.

use std::collections::HashMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use object_store::CredentialProvider;
use object_store::aws::AwsCredential;
use serde::Deserialize;
use tokio::sync::oneshot;

use crate::model::time::{Clock, SystemClock, Timestamp};
use crate::util::sync::lock;

/// How long before their end credentials are obtained again.
const RENEWED_BEFORE: Duration = Duration::from_secs(300);
/// How long a program that obtains credentials may take.
const TIMEOUT: Duration = Duration::from_secs(60);
/// What a profile names that the AWS command line must see to.
const DELEGATED: [&str; 5] = ["role_arn", "sso_session", "sso_start_url", "credential_source", "login_session"];

/// What a profile says.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Profile {
    pub(super) region: Option<String>,
    pub(super) endpoint: Option<String>,
    pub(super) source: Option<CredentialSource>,
}

/// Where the credentials of a profile come from.
#[derive(PartialEq, Eq)]
pub(super) enum CredentialSource {
    Keys {
        id: String,
        secret: String,
        token: Option<String>,
    },
    /// A program that prints them, as a line for the shell.
    Process(String),
}

impl fmt::Debug for CredentialSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Keys { id, .. } => write!(f, "Keys({id})"),
            Self::Process(_) => f.write_str("Process"),
        }
    }
}

/// The profile that the environment names. An error says which one is missing.
pub(super) fn profile() -> Result<Profile, String> {
    let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let file = |name: &str, usual: &str| -> Option<PathBuf> {
        let below_home = || Some(Path::new(&variable("HOME")?).join(".aws").join(usual));
        variable(name).map(PathBuf::from).or_else(below_home)
    };
    // A file that cannot be read says nothing, as for the AWS tools.
    let read = |path: Option<PathBuf>| path.and_then(|path| std::fs::read_to_string(path).ok()).unwrap_or_default();
    let config = read(file("AWS_CONFIG_FILE", "config"));
    let credentials = read(file("AWS_SHARED_CREDENTIALS_FILE", "credentials"));
    let named = variable("AWS_PROFILE").or_else(|| variable("AWS_DEFAULT_PROFILE"));
    resolve(&config, &credentials, named.as_deref())
}

/// The profile `named` in the two files, else the default one.
fn resolve(config: &str, credentials: &str, named: Option<&str>) -> Result<Profile, String> {
    let name = named.unwrap_or("default");
    let headings = [format!("profile {name}"), name.to_owned()];
    let in_config = sections(config).into_iter().filter(|(heading, _)| {
        // Only the default profile may go without the word.
        *heading == headings[0] || name == "default" && *heading == headings[1]
    });
    let in_credentials = sections(credentials).into_iter().filter(|(heading, _)| *heading == headings[1]);
    let mut found = false;
    let mut settings: HashMap<String, String> = HashMap::new();
    // What the credentials file says counts more.
    for (_, section) in in_config.chain(in_credentials) {
        found = true;
        settings.extend(section);
    }
    if !found && named.is_some() {
        return Err(format!(
            "AWS_PROFILE is `{name}`, and neither ~/.aws/config nor ~/.aws/credentials has such a profile"
        ));
    }
    let mut take = |key: &str| settings.remove(key).filter(|value| !value.is_empty());
    let (region, endpoint) = (take("region"), take("endpoint_url"));
    let keys = take("aws_access_key_id").zip(take("aws_secret_access_key"));
    let (token, process) = (take("aws_session_token"), take("credential_process"));
    let is_delegated = DELEGATED.iter().any(|key| settings.contains_key(*key));
    let source = match (keys, process) {
        (Some((id, secret)), _) if !is_delegated => Some(CredentialSource::Keys { id, secret, token }),
        (_, Some(line)) => Some(CredentialSource::Process(line)),
        _ if is_delegated => {
            let quoted = name.replace('\'', "'\\''");
            Some(CredentialSource::Process(format!(
                "aws configure export-credentials --format process --profile '{quoted}'"
            )))
        }
        _ => None,
    };
    Ok(Profile { region, endpoint, source })
}

/// The sections of a file in order, each with its settings. Settings below another (indented) are left out.
fn sections(text: &str) -> Vec<(String, HashMap<String, String>)> {
    let mut sections: Vec<(String, HashMap<String, String>)> = Vec::new();
    for line in text.lines() {
        let is_nested = line.starts_with([' ', '\t']);
        let line = line.trim();
        if line.is_empty() || line.starts_with(['#', ';']) {
            continue;
        }
        if let Some(heading) = line.strip_prefix('[').and_then(|rest| rest.split(']').next()) {
            let words: Vec<&str> = heading.split_whitespace().collect();
            sections.push((words.join(" ").replace('"', ""), HashMap::new()));
        } else if let (Some((key, value)), Some((_, section)), false) =
            (line.split_once('='), sections.last_mut(), is_nested)
        {
            // A comment begins behind white space.
            let value = value.split(" #").next().unwrap_or_default().split(" ;").next().unwrap_or_default();
            section.insert(key.trim().to_ascii_lowercase(), value.trim().to_owned());
        }
    }
    sections
}

/// What a program prints.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Printed {
    version: i64,
    access_key_id: String,
    secret_access_key: String,
    session_token: Option<String>,
    expiration: Option<Timestamp>,
}

/// Credentials that a program prints, obtained again before they end.
pub(super) struct FromProcess {
    line: String,
    cached: Mutex<Option<(Arc<AwsCredential>, Option<Timestamp>)>>,
}

impl FromProcess {
    pub(super) fn new(line: String) -> Self {
        Self { line, cached: Mutex::default() }
    }

    fn cached(&self) -> Option<Arc<AwsCredential>> {
        let cached = lock(&self.cached);
        let (credential, ends) = cached.as_ref()?;
        let is_good = ends.is_none_or(|ends| SystemClock.now().after(RENEWED_BEFORE) < ends);
        is_good.then(|| credential.clone())
    }
}

impl fmt::Debug for FromProcess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FromProcess").finish_non_exhaustive()
    }
}

#[async_trait]
impl CredentialProvider for FromProcess {
    type Credential = AwsCredential;

    async fn get_credential(&self) -> object_store::Result<Arc<AwsCredential>> {
        if let Some(credential) = self.cached() {
            return Ok(credential);
        }
        let failed = |why: String| object_store::Error::Generic { store: "S3", source: why.into() };
        let (send, done) = oneshot::channel();
        let line = self.line.clone();
        // On a thread of its own: requests of others do not wait for it.
        let run = move || _ = send.send(printed(&line));
        std::thread::Builder::new()
            .name("outlive-credentials".into())
            .spawn(run)
            .map_err(|error| failed(error.to_string()))?;
        let late = || failed(format!("{NO_CREDENTIALS}: the program that provides them took more than a minute"));
        let printed = tokio::time::timeout(TIMEOUT, done).await.map_err(|_| late())?.map_err(|_| late())?;
        let Printed { access_key_id, secret_access_key, session_token, expiration, .. } = printed.map_err(failed)?;
        let credential = AwsCredential { key_id: access_key_id, secret_key: secret_access_key, token: session_token };
        let credential = Arc::new(credential);
        *lock(&self.cached) = Some((credential.clone(), expiration));
        Ok(credential)
    }
}

/// How every message begins that says that there are no credentials.
pub(super) const NO_CREDENTIALS: &str = "no AWS credentials";

/// Credentials that there are none of: the metadata service of the instance is switched off.
#[derive(Debug)]
pub(super) struct Missing;

#[async_trait]
impl CredentialProvider for Missing {
    type Credential = AwsCredential;

    async fn get_credential(&self) -> object_store::Result<Arc<AwsCredential>> {
        Err(object_store::Error::Generic { store: "S3", source: NO_CREDENTIALS.into() })
    }
}

/// Runs the program, and reads what it prints.
fn printed(line: &str) -> Result<Printed, String> {
    let failed = |why: String| format!("{NO_CREDENTIALS}: `{}` {why}", line.split(' ').next().unwrap_or_default());
    let mut command = Command::new("sh");
    command.args(["-c", line]).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let output = command.output().map_err(|error| failed(error.to_string()))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        let last = said.lines().rfind(|line| !line.trim().is_empty()).unwrap_or_default();
        return Err(failed(format!("failed ({}): {last}", output.status)));
    }
    // What it printed holds secrets, and is not quoted.
    let printed: Printed =
        serde_json::from_slice(&output.stdout).map_err(|_| failed("printed no credentials in JSON".into()))?;
    if printed.version == 1 { Ok(printed) } else { Err(failed(format!("printed version {}", printed.version))) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONFIG: &str = "[default]\nregion = eu-west-1 # near\n[profile dev]\nregion=eu-central-1\nendpoint_url = http://127.0.0.1:9\n\
                          s3 =\n  region = nested\n[profile helper]\ncredential_process = /opt/helper --x 'a b'\n\
                          [profile sso]\nsso_session = corp\nsso_account_id = 1\n[sso-session corp]\nsso_region = us-east-1\n";
    const KEYS: &str = "; keys\n[default]\naws_access_key_id = AKD\naws_secret_access_key = s=d\n\n[dev]\n\
                        AWS_ACCESS_KEY_ID=AKV\naws_secret_access_key=sv\naws_session_token=tv\n";

    fn keys(id: &str, secret: &str, token: Option<&str>) -> Option<CredentialSource> {
        Some(CredentialSource::Keys { id: id.into(), secret: secret.into(), token: token.map(Into::into) })
    }

    #[test]
    fn t6_06_profile_is_merged_from_both_shared_files() {
        let resolve = |named| resolve(CONFIG, KEYS, named);
        let default = resolve(None).unwrap();
        assert_eq!((default.region.as_deref(), default.source), (Some("eu-west-1"), keys("AKD", "s=d", None)));
        let dev = resolve(Some("dev")).unwrap();
        assert_eq!(dev.region.as_deref(), Some("eu-central-1"), "a nested setting was taken");
        assert_eq!(dev.endpoint.as_deref(), Some("http://127.0.0.1:9"));
        assert_eq!(dev.source, keys("AKV", "sv", Some("tv")));
        let process = |line: &str| Some(CredentialSource::Process(line.into()));
        assert_eq!(resolve(Some("helper")).unwrap().source, process("/opt/helper --x 'a b'"));
        let exported = "aws configure export-credentials --format process --profile 'sso'";
        assert_eq!(resolve(Some("sso")).unwrap().source, process(exported));
        assert_eq!(super::resolve("", "", None), Ok(Profile::default()));
        let missing = resolve(Some("absent")).unwrap_err();
        assert!(missing.contains("`absent`"), "{missing}");
    }

    #[test]
    fn t6_06_program_prints_credentials_and_its_failure_is_reported() {
        let good = printed(
            r#"echo '{"Version": 1, "AccessKeyId": "AK", "SecretAccessKey": "S", "Expiration": "2026-11-17T12:00:00Z"}'"#,
        );
        assert_eq!(good.map(|printed| (printed.access_key_id, printed.session_token)), Ok(("AK".into(), None)));
        let failed = printed("echo not signed in >&2; exit 3").map(|_| ()).unwrap_err();
        assert!(failed.contains(NO_CREDENTIALS) && failed.contains("not signed in"), "{failed}");
        let quiet = printed("echo secret").map(|_| ()).unwrap_err();
        assert!(!quiet.contains("secret,"), "{quiet}");
    }
}
