//! The supervisor as a systemd user unit.

use std::path::PathBuf;
use std::process::Command;

use outlive::error::Error;

use super::{Service, ServiceChange};

/// Where the units of a user are.
fn directory() -> Result<PathBuf, Error> {
    let set = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let config = set("XDG_CONFIG_HOME").or_else(|| set("HOME").map(|home| home.join(".config")));
    let config = config.ok_or_else(|| Error::Invalid("there is no place for units: HOME is not set".into()))?;
    Ok(config.join("systemd/user"))
}

fn path(service: &Service) -> Result<PathBuf, Error> {
    Ok(directory()?.join(format!("{}.service", service.name)))
}

/// The unit. What it has started is not ended with it: every run has an owner of its own.
fn unit(service: &Service) -> String {
    let words: Vec<String> = service.words(false).iter().map(|word| quoted(word)).collect();
    let (variable, home) = service.environment();
    let home = assigned(&format!("{variable}={home}"));
    format!(
        "[Unit]\n\
         Description=outlive supervises {}\n\n\
         [Service]\n\
         ExecStart={}\n\
         Environment={home}\n\
         Restart=always\n\
         RestartSec=5\n\
         KillMode=process\n\n\
         [Install]\n\
         WantedBy=default.target\n",
        service.registry.replace('%', "%%"),
        words.join(" "),
    )
}

/// A word of a command as systemd takes it.
fn quoted(word: &str) -> String {
    assigned(word).replace('$', "$$")
}

/// An assignment as systemd takes it. Unlike in a command, `$` stands for itself there.
fn assigned(word: &str) -> String {
    let escaped = word.replace('\\', "\\\\").replace('"', "\\\"").replace('%', "%%");
    format!("\"{escaped}\"")
}

/// Has systemd do something for this user. What it says where it does not.
fn systemctl(words: &[&str]) -> Result<String, String> {
    let output = Command::new("systemctl").arg("--user").args(words).output();
    let output = output.map_err(|error| format!("systemctl cannot be executed: {error}"))?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    if output.status.success() { Ok(text(&output.stdout)) } else { Err(text(&output.stderr)) }
}

pub fn install(service: &Service, yes: bool) -> Result<ServiceChange, Error> {
    let (path, text) = (path(service)?, unit(service));
    let mut notes = vec![
        "a user's services end with the last session: `loginctl enable-linger` has them start with the machine, and stay"
            .into(),
    ];
    if yes {
        let failed = |error: std::io::Error| Error::Invalid(format!("`{}` cannot be written: {error}", path.display()));
        std::fs::create_dir_all(directory()?).map_err(failed)?;
        std::fs::write(&path, &text).map_err(failed)?;
        let unit = format!("{}.service", service.name);
        let started = systemctl(&["daemon-reload"]).and_then(|_| systemctl(&["enable", "--now", &unit]));
        if let Err(why) = started {
            notes.push(format!("it is written, but systemd could not start it: {why}"));
        }
    }
    Ok(ServiceChange { done: yes, verb: "installed", place: path.display().to_string(), text, notes })
}

pub fn remove(service: &Service, yes: bool) -> Result<ServiceChange, Error> {
    let path = path(service)?;
    let text = std::fs::read_to_string(&path)
        .map_err(|error| Error::Invalid(format!("there is no unit to remove: `{}`: {error}", path.display())))?;
    let mut notes = Vec::new();
    if yes {
        if let Err(why) = systemctl(&["disable", "--now", &format!("{}.service", service.name)]) {
            notes.push(format!("systemd could not be notified: {why}"));
        }
        std::fs::remove_file(&path)
            .map_err(|error| Error::Invalid(format!("`{}` cannot be removed: {error}", path.display())))?;
        // It forgets what is gone when it is next asked; so it is asked.
        let _ = systemctl(&["daemon-reload"]);
    }
    Ok(ServiceChange { done: yes, verb: "removed", place: path.display().to_string(), text, notes })
}

/// The unit's file, if it is there.
pub fn installed(service: &Service) -> Option<PathBuf> {
    path(service).ok().filter(|path| path.exists())
}

/// What systemd says of the unit.
pub fn state(service: &Service) -> Option<String> {
    let output = Command::new("systemctl").args(["--user", "is-active", &service.name]).output().ok()?;
    let said = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    (!said.is_empty()).then_some(said)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_unit_names_its_registry_whatever_it_is_called() {
        let service = Service {
            name: "outlive-00000000".into(),
            registry: "sqlite:/home/ada/100% \"done\"/$x/.outlive".into(),
            home: "/home/ada/50% $y/outlive".into(),
            program: "/usr/bin/outlive".into(),
            slots: 2,
        };
        insta::assert_snapshot!(unit(&service));
    }
}
