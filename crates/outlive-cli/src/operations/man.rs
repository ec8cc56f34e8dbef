//! `outlive man`: the manual pages, rendered from the command tree.

use std::fmt;
use std::path::PathBuf;

use clap::Args;
use clap::builder::Resettable;
use clap_mangen::roff::{Roff, roman};
use outlive::error::Error;
use schemars::JsonSchema;
use serde::Serialize;

use crate::call::{Context, Effect, Operate};

/// Print the manual page, or write all pages to a directory
#[derive(Debug, Default, Args)]
pub struct Man {
    /// Where to write the pages of all commands; made if it is missing. `-` prints the main page
    #[arg(value_name = "DIR")]
    pub dir: Option<PathBuf>,
}

/// Manual pages.
#[derive(Debug, JsonSchema, Serialize)]
pub struct Pages {
    /// The main page, where no directory was named.
    page: Option<String>,
    /// The files that were written.
    files: Vec<PathBuf>,
}

impl Operate for Man {
    const NAME: &'static str = "man";
    const EFFECT: Effect = Effect::Read;
    const EXAMPLES: &'static str = "outlive man > outlive.1\noutlive man - | head\noutlive man man1";
    type Output = Pages;

    fn effect(&self) -> Effect {
        let prints = self.dir.as_ref().is_none_or(|dir| dir.as_os_str() == "-");
        if prints { Self::EFFECT } else { Effect::Local }
    }

    async fn operate(self, context: &Context) -> Result<Pages, Error> {
        let Some(dir) = self.dir.filter(|dir| dir.as_os_str() != "-") else {
            return Ok(Pages { page: Some(render(&root(context))?.1), files: Vec::new() });
        };
        let failed = |error: std::io::Error| Error::Invalid(format!("`{}` cannot be written: {error}", dir.display()));
        std::fs::create_dir_all(&dir).map_err(failed)?;
        let mut files = Vec::new();
        let mut commands = vec![root(context)];
        while let Some(command) = commands.pop() {
            commands.extend(command.get_subcommands().cloned());
            let (name, page) = render(&command)?;
            let path = dir.join(name);
            std::fs::write(&path, page).map_err(failed)?;
            files.push(path);
        }
        files.sort();
        Ok(Pages { page: None, files })
    }
}

/// The whole tree, its flags spread to every command. `help` needs no page of its own.
fn root(context: &Context) -> clap::Command {
    let mut root = context.tree()().disable_help_subcommand(true);
    root.build();
    root
}

/// A page, as its file name and its text. What stands behind the help has a section and line breaks of its own.
fn render(command: &clap::Command) -> Result<(String, String), Error> {
    let behind = command.get_after_long_help().or_else(|| command.get_after_help()).map(ToString::to_string);
    let without = command.clone().after_help(Resettable::Reset).after_long_help(Resettable::Reset);
    // The verbs have a section of their own.
    let without = without.before_help(Resettable::Reset).before_long_help(Resettable::Reset);
    let man = clap_mangen::Man::new(without).source(concat!("outlive ", env!("CARGO_PKG_VERSION")));
    let mut extra = Roff::new();
    let behind = behind.unwrap_or_default();
    if let Some((heading, lines)) = behind.split_once(":\n") {
        extra.control("SH", [heading.to_uppercase().as_str()]).control("nf", []);
        for line in lines.lines() {
            extra.text([roman(line)]);
        }
        extra.control("fi", []);
    }
    let mut page = Vec::new();
    let written = man.render(&mut page).and_then(|()| extra.to_writer(&mut page));
    written.map_err(|error| Error::Invalid(format!("the manual page cannot be rendered: {error}")))?;
    Ok((man.get_filename(), String::from_utf8_lossy(&page).into_owned()))
}

impl fmt::Display for Pages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.page {
            Some(page) => f.write_str(page),
            None => self.files.iter().try_for_each(|file| writeln!(f, "{}", file.display())),
        }
    }
}
