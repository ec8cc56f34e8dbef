//! Where the artifacts of a run are: a prefix, a tree of its own below it, and what in that tree is one attempt at one
//! part. A plain tree has no attempts: whatever is in it is the run's.
//!
//! A path of the tree is made of the run's id and of names that a template allows, and of nothing else: a sweeper that deletes
//! by it can name nothing outside the run's own tree, whatever a record says.

use serde::{Deserialize, Serialize};

use crate::model::id::RunId;

/// The longest prefix, template or id, in bytes.
const LIMIT: usize = 1_024;

/// Where the artifacts of a run are. For writers that share a bucket, whose artifacts a sweeper may delete (feature
/// `object`).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Output {
    /// The place below which everything of the writer is: `s3://bucket/prefix`, or a directory.
    pub prefix: String,
    /// What the trees of runs are in, below it.
    #[serde(default = "shards")]
    pub shard_prefix: String,
    /// How the directory of one part is named, as Python formats it: `db={db_id:05d}`. Empty where the tree is plain.
    #[serde(default = "template")]
    pub db_path_template: String,
    /// The tree has neither parts nor attempts: of whatever is in it, what the manifest names is needed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub plain: bool,
    /// What the run is called in paths, where that is not its own id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_id: Option<String>,
    /// What names the winners in a manifest that is a SQLite database; every text in it where there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub winners: Option<String>,
}

fn shards() -> String {
    "shards".into()
}

fn template() -> String {
    "db={db_id:05d}".into()
}

impl Default for Output {
    fn default() -> Self {
        Self {
            prefix: String::new(),
            shard_prefix: shards(),
            db_path_template: template(),
            plain: false,
            run_id: None,
            winners: None,
        }
    }
}

/// An output that no sweeper could clean up, and why.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct InvalidOutput(String);

impl Output {
    /// Refuses what could name anything but a tree of the run's own.
    pub fn check(&self) -> Result<(), InvalidOutput> {
        let refuse = |why: String| Err(InvalidOutput(why));
        if self.prefix.is_empty() {
            return refuse("its artifacts are nowhere: the prefix is empty".into());
        }
        let texts = [Some(&self.prefix), Some(&self.shard_prefix), Some(&self.db_path_template), self.run_id.as_ref()];
        if let Some(text) = texts.into_iter().flatten().find(|text| text.len() > LIMIT) {
            return refuse(format!("`{}…` has more than {LIMIT} bytes", text.chars().take(32).collect::<String>()));
        }
        let below = self.prefix.split_once("://").map_or(self.prefix.as_str(), |(_, rest)| rest);
        if below.split('/').any(|part| part == "." || part == "..") || self.prefix.chars().any(char::is_control) {
            return refuse(format!("the prefix `{}` has parts that lead elsewhere", self.prefix.escape_default()));
        }
        let is_bucket = ["s3://", "gs://", "az://"].iter().any(|scheme| self.prefix.starts_with(scheme));
        if is_bucket && self.prefix.contains(['@', '?', '#']) {
            return refuse(
                "the prefix names an endpoint, a region or credentials: those come from the registry's URL, the \
                 environment or `[sweep.artifacts]` of the home's configuration"
                    .into(),
            );
        }
        // Nor the tree of another run.
        let is_below = |part: &str| is_name(part) && !part.contains("run_id=");
        if !self.shard_prefix.split('/').all(is_below) {
            let shown = self.shard_prefix.escape_default();
            return refuse(format!("`shard_prefix` is `{shown}`, which is no path below the prefix"));
        }
        if self.run_id.as_deref().is_some_and(|id| !is_name(id)) {
            let shown = self.run_id.iter().flat_map(|id| id.escape_default()).collect::<String>();
            return refuse(format!("`run_id` is `{shown}`, which is no name of one directory"));
        }
        let shown = self.db_path_template.escape_default();
        match Template::parse(&self.db_path_template) {
            // Both cannot be meant, and one of them deletes more.
            _ if self.plain && !self.db_path_template.is_empty() => {
                refuse(format!("a plain tree has no parts, and `db_path_template` is `{shown}`"))
            }
            None if !self.plain => {
                refuse(format!("`db_path_template` is `{shown}`, which is no path with `{{db_id}}` in it"))
            }
            _ => Ok(()),
        }
    }

    /// What `text` says of trees and parts: `TREES:PART`, or `TREES` where they are plain.
    #[must_use]
    pub fn laid_out(self, text: &str) -> Self {
        let (trees, part) = text.split_once(':').map_or((text, None), |(trees, part)| (trees, Some(part)));
        let (shard_prefix, db_path_template) = (trees.to_owned(), part.unwrap_or_default().to_owned());
        Self { shard_prefix, db_path_template, plain: part.is_none(), ..self }
    }

    /// The tree of a run below the prefix: `shards/run_id=ID`. Ends without a slash.
    pub fn tree(&self, id: RunId) -> Result<String, InvalidOutput> {
        self.check()?;
        let name = self.run_id.clone().unwrap_or_else(|| id.to_string());
        Ok(format!("{}/run_id={name}", self.shard_prefix))
    }

    /// How many directories a path below the tree passes to the attempts of a part: `db=00000/attempt=00` passes two.
    pub fn depth_of_attempts(&self) -> usize {
        self.db_path_template.split('/').count() + 1
    }

    /// Whether a path below the tree lies in an attempt: `db=00000/attempt=00/…`. None does in a plain tree.
    pub fn is_of_attempt(&self, path: &str) -> bool {
        let Some(template) = Template::parse(&self.db_path_template) else { return false };
        let parts: Vec<&str> = path.split('/').collect();
        let depth = self.depth_of_attempts();
        parts.len() > depth
            && template.matches(&parts[..depth - 1].join("/"))
            && parts[depth - 1].strip_prefix("attempt=").is_some_and(is_number)
    }
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// The name of one directory, and of no other place.
fn is_name(text: &str) -> bool {
    !text.is_empty()
        && text != "."
        && text != ".."
        && !text.contains(['/', '\\'])
        && !text.chars().any(char::is_control)
}

/// A path with one number in it.
struct Template<'a> {
    before: &'a str,
    after: &'a str,
    width: usize,
}

impl<'a> Template<'a> {
    fn parse(text: &'a str) -> Option<Self> {
        let (before, rest) = text.split_once('{')?;
        let (field, after) = rest.split_once('}')?;
        let width = match field.strip_prefix("db_id")? {
            "" | ":d" => 0,
            format => format.strip_prefix(":0")?.strip_suffix('d')?.parse().ok().filter(|width| *width <= 20)?,
        };
        let is_path = text.split('/').all(is_name) && !before.contains('}') && !after.contains(['{', '}']);
        is_path.then_some(Self { before, after, width })
    }

    fn matches(&self, path: &str) -> bool {
        let number = path.strip_prefix(self.before).and_then(|rest| rest.strip_suffix(self.after));
        number.is_some_and(|number| is_number(number) && number.len() >= self.width)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn output() -> Output {
        Output { prefix: "s3://bucket/data".into(), ..Output::default() }
    }

    #[test]
    fn a_tree_is_plain_where_no_part_is_named_and_never_by_chance() {
        let plain = output().laid_out("out");
        assert_eq!((plain.shard_prefix.as_str(), plain.plain, plain.check()), ("out", true, Ok(())));
        assert!(!plain.is_of_attempt("db=00000/attempt=00/x"));
        let parted = output().laid_out("out:p={db_id}");
        assert_eq!((parted.db_path_template.as_str(), parted.plain, parted.check()), ("p={db_id}", false, Ok(())));
        for refused in [
            output().laid_out("out:"),
            output().laid_out(""),
            output().laid_out("../out"),
            output().laid_out("out/run_id=x"),
            Output { db_path_template: String::new(), ..output() },
            Output { plain: true, ..output() },
        ] {
            assert!(refused.check().is_err(), "{refused:?}");
        }
        let read: Output = serde_json::from_str(r#"{"prefix": "s3://bucket/data"}"#).unwrap();
        assert_eq!(read, output(), "what says nothing of it is not plain");
    }

    #[test]
    fn attempts_are_recognised_by_the_template_alone() {
        let output = output();
        for path in ["db=00000/attempt=00/x", "db=123456/attempt=7/a/b"] {
            assert!(output.is_of_attempt(path), "{path}");
        }
        for path in [
            "db=00000/attempt=00",
            "db=1/attempt=00/x",
            "db=00000/attempt=/x",
            "x/attempt=00/y",
            "db=00000/attempt=0a/x",
        ] {
            assert!(!output.is_of_attempt(path), "{path}");
        }
        let nested = Output { db_path_template: "parts/{db_id}".into(), ..output };
        assert!(nested.is_of_attempt("parts/7/attempt=1/x") && !nested.is_of_attempt("parts/7/x"));
    }

    #[test]
    fn b06_what_could_name_anything_else_is_refused() {
        let refused = |change: &dyn Fn(&mut Output)| {
            let mut output = output();
            change(&mut output);
            output.check().expect_err("a bad output was taken").to_string()
        };
        insta::assert_snapshot!(refused(&|output| output.run_id = Some("../../x".into())), @"`run_id` is `../../x`, which is no name of one directory");
        insta::assert_snapshot!(refused(&|output| output.run_id = Some(String::new())), @"`run_id` is ``, which is no name of one directory");
        insta::assert_snapshot!(refused(&|output| output.shard_prefix = "../other".into()), @"`shard_prefix` is `../other`, which is no path below the prefix");
        insta::assert_snapshot!(refused(&|output| output.shard_prefix = "/".into()), @"`shard_prefix` is `/`, which is no path below the prefix");
        insta::assert_snapshot!(refused(&|output| output.shard_prefix.clear()), @"`shard_prefix` is ``, which is no path below the prefix");
        insta::assert_snapshot!(refused(&|output| output.db_path_template = "../{db_id}".into()), @"`db_path_template` is `../{db_id}`, which is no path with `{db_id}` in it");
        insta::assert_snapshot!(refused(&|output| output.db_path_template = "{db_id.__class__}".into()), @"`db_path_template` is `{db_id.__class__}`, which is no path with `{db_id}` in it");
        insta::assert_snapshot!(refused(&|output| output.prefix = "s3://bucket/a/../b".into()), @"the prefix `s3://bucket/a/../b` has parts that lead elsewhere");
        insta::assert_snapshot!(refused(&|output| output.prefix.clear()), @"its artifacts are nowhere: the prefix is empty");
    }
}
