//! The supervisor by the user's crontab.

use std::io::Write;
use std::process::{Command, Stdio};

use outlive::error::Error;

use super::{Service, ServiceChange};
use crate::ui::quote;

/// The lines: every five minutes for what happened meanwhile, and once when the machine starts.
fn lines(service: &Service) -> String {
    let words: Vec<String> = service.words(true).iter().map(|word| quote(word.as_bytes()).into_owned()).collect();
    let (variable, home) = service.environment();
    let words = format!("{variable}={} {}", quote(home.as_bytes()), words.join(" "));
    // A percent sign is a line's end to cron.
    let words = words.replace('%', "\\%");
    let mark = mark(service);
    // What goes wrong stays on standard error: cron mails it.
    format!("@reboot {words} >/dev/null {mark}\n*/5 * * * * {words} >/dev/null {mark}\n")
}

/// What tells the lines of this registry from all others.
fn mark(service: &Service) -> String {
    format!("# {}", service.name)
}

fn without(table: &str, service: &Service) -> String {
    let mark = mark(service);
    table.lines().filter(|line| !line.ends_with(&mark)).map(|line| format!("{line}\n")).collect()
}

fn read() -> Result<String, Error> {
    let output = Command::new("crontab").arg("-l").output();
    let output = output.map_err(|error| Error::Invalid(format!("`crontab` cannot be executed: {error}")))?;
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    // A user without one gets an error.
    if output.status.success() || said.contains("no crontab") {
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    } else {
        Err(Error::Invalid(format!("the crontab cannot be read: {said}")))
    }
}

fn write(table: &str) -> Result<(), Error> {
    let failed = |why: &dyn std::fmt::Display| Error::Invalid(format!("the crontab cannot be written: {why}"));
    let mut crontab = Command::new("crontab").arg("-").stdin(Stdio::piped()).spawn().map_err(|error| failed(&error))?;
    let sent = crontab.stdin.take().map(|mut stdin| stdin.write_all(table.as_bytes()));
    let status = crontab.wait().map_err(|error| failed(&error))?;
    match sent {
        Some(Ok(())) if status.success() => Ok(()),
        _ => Err(failed(&status)),
    }
}

pub fn install(service: &Service, yes: bool) -> Result<ServiceChange, Error> {
    let text = lines(service);
    if yes {
        write(&format!("{}{text}", without(&read()?, service)))?;
    }
    Ok(ServiceChange { done: yes, verb: "installed", place: "crontab".into(), text, notes: Vec::new() })
}

pub fn remove(service: &Service, yes: bool) -> Result<ServiceChange, Error> {
    let table = read()?;
    let rest = without(&table, service);
    let text: String =
        table.lines().filter(|line| line.ends_with(&mark(service))).map(|line| format!("{line}\n")).collect();
    if text.is_empty() {
        return Err(Error::Invalid(format!("the crontab has no lines for {}", service.registry)));
    }
    if yes {
        write(&rest)?;
    }
    Ok(ServiceChange { done: yes, verb: "removed", place: "crontab".into(), text, notes: Vec::new() })
}

/// Whether the crontab has the lines. One that cannot be read has none.
pub fn is_installed(service: &Service) -> bool {
    read().is_ok_and(|table| table.lines().any(|line| line.ends_with(&mark(service))))
}
