//! `outlive token`: who may ask a server of this user for what.

use std::fmt;

use clap::Args;
use outlive::error::Error;
use outlive::time::{Clock, SystemClock, Timestamp};
use schemars::JsonSchema;
use serde::Serialize;

use crate::call::tokens::{Kept, Role, Tokens};
use crate::call::{Context, Effect, Operate};
use crate::ui::Look;
use crate::ui::table::{Cell, Table};

/// Create an access token for `outlive serve`
///
/// The token is printed once; only a hash is stored. On this machine you need none: `outlive` reads your own from
/// your home.
#[derive(Debug, Args)]
pub struct Create {
    /// The name of its holder, as shown in event logs
    pub name: String,
    /// The operations that the token allows
    #[arg(long, value_enum, default_value = "read")]
    pub role: Role,
    /// Valid for every registry that you serve, and for the repositories that it knows, not for this registry alone
    #[arg(long)]
    pub all_repositories: bool,
}

/// List access tokens and their roles
#[derive(Debug, Default, Args)]
pub struct List {}

/// Revoke an access token
#[derive(Debug, Args)]
pub struct Revoke {
    /// Whose it is
    pub name: String,
}

/// A token that was made.
#[derive(Debug, JsonSchema, Serialize)]
pub struct Created {
    name: String,
    role: Role,
    all_repositories: bool,
    token: String,
}

/// All tokens.
#[derive(Debug, JsonSchema, Serialize)]
pub struct Known {
    tokens: Vec<One>,
}

#[derive(Debug, JsonSchema, Serialize)]
struct One {
    name: String,
    role: Role,
    /// The registry that it is for; none for all.
    registry: Option<String>,
    created_at: Timestamp,
}

/// A token that is no more.
#[derive(Debug, JsonSchema, Serialize)]
pub struct Revoked {
    name: String,
}

impl Operate for Create {
    const NAME: &'static str = "token create";
    const EFFECT: Effect = Effect::Local;
    const EXAMPLES: &'static str =
        "outlive token create ada\noutlive token create ci --role operate --all-repositories";
    type Output = Created;

    async fn operate(self, context: &Context) -> Result<Created, Error> {
        let registry = if self.all_repositories { None } else { context.registry().await?.id() };
        let all_repositories = registry.is_none();
        let token = Tokens::open()?.create(&self.name, self.role, registry, SystemClock.now())?;
        Ok(Created { name: self.name, role: self.role, all_repositories, token })
    }
}

impl Operate for List {
    const NAME: &'static str = "token list";
    const EFFECT: Effect = Effect::Local;
    const EXAMPLES: &'static str = "outlive token list";
    type Output = Known;

    async fn operate(self, _: &Context) -> Result<Known, Error> {
        let one =
            |kept: Kept| One { name: kept.name, role: kept.role, registry: kept.registry, created_at: kept.created_at };
        Ok(Known { tokens: Tokens::open()?.list()?.into_iter().map(one).collect() })
    }
}

impl Operate for Revoke {
    const NAME: &'static str = "token revoke";
    const EFFECT: Effect = Effect::Local;
    const EXAMPLES: &'static str = "outlive token create ada && outlive token revoke ada";
    type Output = Revoked;

    async fn operate(self, _: &Context) -> Result<Revoked, Error> {
        Tokens::open()?.revoke(&self.name)?;
        Ok(Revoked { name: self.name })
    }
}

impl fmt::Display for Created {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.token)
    }
}

impl fmt::Display for Known {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.tokens.is_empty() {
            return writeln!(f, "no tokens; `outlive token create NAME` makes one");
        }
        let row = |one: &One| {
            let registry = one.registry.clone().unwrap_or_else(|| "all".into());
            let made = one.created_at.to_string();
            [one.name.clone(), one.role.as_str().into(), registry, made].map(Cell::new)
        };
        let table = Table::new(&["NAME", "ROLE", "REGISTRY", "MADE"], self.tokens.iter().map(row).collect::<Vec<_>>());
        writeln!(f, "{}", table.show(Look::of_stdout(), &[], &[]))
    }
}

impl fmt::Display for Revoked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "the token `{}` is known no longer", self.name)
    }
}
