//! Profiles of the AWS tools: ~/.aws/credentials and ~/.aws/config.
//!
//! AWS SDKs and Tools Reference Guide: "Shared config and credentials files".

use async_trait::async_trait;
use folio::{Errno, Error, Result};
use jiff::Timestamp;
use object_store::CredentialProvider;
use object_store::aws::AwsCredential;
use parking_lot::Mutex;
use serde::Deserialize;
use std::collections::HashMap;
use std::env;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;

/// Time before its end at which a credential is replaced, in seconds.
const REFRESH_BEFORE_SECONDS: i64 = 300;

/// The settings of a profile, from both files.
#[derive(Debug, Default)]
pub(crate) struct Profile {
    name: String,
    settings: HashMap<String, String>,
}

impl Profile {
    /// Reads a profile: the given one, that of `AWS_PROFILE`, or `default`.
    ///
    /// # Errors
    ///
    /// ENOENT if a profile is named and in neither file, else the host's errors.
    pub(crate) fn read(name: Option<&str>) -> Result<Self> {
        let named = name
            .map(ToOwned::to_owned)
            .or_else(|| env::var("AWS_PROFILE").ok())
            .filter(|name| !name.is_empty());
        let is_named = named.is_some();
        let name = named.unwrap_or_else(|| "default".to_owned());
        let mut profile = Self {
            name,
            settings: HashMap::new(),
        };
        let mut is_found = false;
        // In this order: a setting of the credentials file wins.
        for (variable, file, is_config) in [
            ("AWS_CONFIG_FILE", "config", true),
            ("AWS_SHARED_CREDENTIALS_FILE", "credentials", false),
        ] {
            let Some(path) = path_of(variable, file) else {
                continue;
            };
            let text = match std::fs::read_to_string(&path) {
                Ok(text) => text,
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
                Err(error) => {
                    return Err(Error::io("read", error).at(path.display().to_string()));
                }
            };
            is_found |= profile.add(&text, is_config);
        }
        if is_named && !is_found {
            let why = format!(
                "the profile {:?} is in neither ~/.aws/config nor ~/.aws/credentials",
                profile.name
            );
            return Err(Error::new(Errno::NOENT, why));
        }
        Ok(profile)
    }

    /// Adds the settings of one file; returns whether it has the profile.
    fn add(&mut self, text: &str, is_config: bool) -> bool {
        let mut is_found = false;
        let mut is_ours = false;
        // Indented lines belong to the setting above: "s3 =" with "addressing_style = path" below.
        let mut outer = String::new();
        for line in text.lines() {
            let trimmed = line.trim();
            if trimmed.is_empty() || trimmed.starts_with(['#', ';']) {
                continue;
            }
            if let Some(section) = trimmed.strip_prefix('[') {
                let section = section.split(']').next().unwrap_or_default().trim();
                let name = match section.strip_prefix("profile ") {
                    Some(name) if is_config => name.trim(),
                    _ => section,
                };
                is_ours = name == self.name;
                is_found |= is_ours;
                continue;
            }
            let Some((key, value)) = trimmed.split_once('=').filter(|_| is_ours) else {
                continue;
            };
            let (key, value) = (key.trim().to_lowercase(), value.trim().to_owned());
            if line.starts_with(char::is_whitespace) {
                self.settings.insert(format!("{outer}.{key}"), value);
            } else {
                outer.clone_from(&key);
                self.settings.insert(key, value);
            }
        }
        is_found
    }

    /// Returns a setting, if it has a value.
    pub(crate) fn get(&self, key: &str) -> Option<&str> {
        let value = self.settings.get(key).map(String::as_str);
        value.filter(|value| !value.is_empty())
    }

    /// Returns the access key that the profile holds.
    pub(crate) fn static_credential(&self) -> Option<AwsCredential> {
        Some(AwsCredential {
            key_id: self.get("aws_access_key_id")?.to_owned(),
            secret_key: self.get("aws_secret_access_key")?.to_owned(),
            token: self.get("aws_session_token").map(ToOwned::to_owned),
        })
    }

    /// Rejects a profile whose credentials only the AWS tools can get.
    ///
    /// # Errors
    ///
    /// EOPNOTSUPP, with the command that gets them.
    pub(crate) fn check_supported(&self) -> Result<()> {
        let unsupported = [
            "sso_session",
            "sso_start_url",
            "source_profile",
            "credential_source",
        ];
        match unsupported.iter().find(|key| self.get(key).is_some()) {
            None => Ok(()),
            Some(key) => {
                let name = &self.name;
                Err(Error::unsupported(format!(
                    "the profile {name:?} has {key}, which is not supported: run `eval \"$(aws \
                     configure export-credentials --profile {name} --format env)\"` before"
                )))
            }
        }
    }
}

fn path_of(variable: &str, file: &str) -> Option<PathBuf> {
    if let Some(path) = env::var_os(variable) {
        return Some(path.into());
    }
    let home = env::var_os("HOME")?;
    Some(PathBuf::from(home).join(".aws").join(file))
}

/// The output of a `credential_process`.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct ProcessOutput {
    version: u32,
    access_key_id: String,
    secret_access_key: String,
    session_token: Option<String>,
    expiration: Option<String>,
}

/// Credentials that a program prints, as the profile's `credential_process` says.
#[derive(Debug)]
pub(crate) struct ProcessProvider {
    command: String,
    /// The last one, and its end.
    present: Arc<Mutex<Option<(Arc<AwsCredential>, Option<Timestamp>)>>>,
}

impl ProcessProvider {
    pub(crate) fn new(command: &str) -> Self {
        Self {
            command: command.to_owned(),
            present: Arc::default(),
        }
    }

    fn present(&self) -> Option<Arc<AwsCredential>> {
        let present = self.present.lock();
        let (credential, end) = present.as_ref()?;
        let is_valid = end.is_none_or(|end| {
            end.as_second() - Timestamp::now().as_second() > REFRESH_BEFORE_SECONDS
        });
        is_valid.then(|| credential.clone())
    }
}

#[async_trait]
impl CredentialProvider for ProcessProvider {
    type Credential = AwsCredential;

    async fn get_credential(&self) -> object_store::Result<Arc<AwsCredential>> {
        if let Some(credential) = self.present() {
            return Ok(credential);
        }
        let command = self.command.clone();
        // Off the threads that serve sockets.
        let (credential, end) = tokio::task::spawn_blocking(move || run(&command)).await??;
        let credential = Arc::new(credential);
        *self.present.lock() = Some((credential.clone(), end));
        Ok(credential)
    }
}

/// Runs a `credential_process`; returns the credential and its end.
fn run(command: &str) -> object_store::Result<(AwsCredential, Option<Timestamp>)> {
    let failed = |why: String| object_store::Error::Unauthenticated {
        path: String::new(),
        source: format!("credential_process {command:?}: {why}").into(),
    };
    let output = Command::new("/bin/sh").args(["-c", command]).output();
    let output = output.map_err(|error| failed(error.to_string()))?;
    if !output.status.success() {
        let text = String::from_utf8_lossy(&output.stderr);
        return Err(failed(format!("{}: {}", output.status, text.trim())));
    }
    let found: ProcessOutput =
        serde_json::from_slice(&output.stdout).map_err(|error| failed(error.to_string()))?;
    if found.version != 1 {
        return Err(failed(format!("version {} of its output", found.version)));
    }
    let credential = AwsCredential {
        key_id: found.access_key_id,
        secret_key: found.secret_access_key,
        token: found.session_token,
    };
    let end = found.expiration.map(|text| text.parse::<Timestamp>());
    let end = end.transpose().map_err(|error| failed(error.to_string()))?;
    Ok((credential, end))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn profile_joins_both_files() {
        let mut profile = Profile {
            name: "work".to_owned(),
            settings: HashMap::new(),
        };
        let config = "[default]\nregion = us-east-1\n[profile work]\n# a note\nregion=eu-west-1\n\
                      s3 =\n  addressing_style = virtual\nendpoint_url = http://h:1\n";
        assert!(profile.add(config, true));
        let credentials = "[default]\naws_access_key_id = wrong\n[work]\naws_access_key_id = id\n\
                           aws_secret_access_key = se=cret\n";
        assert!(profile.add(credentials, false));
        assert_eq!(profile.get("region"), Some("eu-west-1"));
        assert_eq!(profile.get("s3.addressing_style"), Some("virtual"));
        let found = profile.static_credential().unwrap();
        assert_eq!(
            (found.key_id.as_str(), found.secret_key.as_str()),
            ("id", "se=cret")
        );
        assert!(found.token.is_none() && profile.check_supported().is_ok());
    }

    #[test]
    fn profile_with_sso_names_the_remedy() {
        let mut profile = Profile {
            name: "sso".to_owned(),
            settings: HashMap::new(),
        };
        assert!(profile.add("[profile sso]\nsso_session = corp\n", true));
        let refused = profile.check_supported().unwrap_err().to_string();
        assert!(
            refused.contains("export-credentials --profile sso"),
            "{refused}"
        );
    }

    #[test]
    fn credential_process_output_is_parsed() {
        let json = r#"{"Version":1,"AccessKeyId":"a","SecretAccessKey":"b",
            "SessionToken":"c","Expiration":"2038-01-01T00:00:00Z"}"#;
        let (found, end) = run(&format!("cat <<'E'\n{json}\nE")).unwrap();
        assert_eq!(
            (found.key_id.as_str(), found.token.as_deref()),
            ("a", Some("c"))
        );
        assert!(end.is_some());
        assert!(
            run("echo failed >&2; false")
                .unwrap_err()
                .to_string()
                .contains("failed")
        );
    }
}
