//! Verbs of cargo features that a build was made without: each says which feature it needs.

use outlive::error::Error;

/// The verbs and nouns that need a cargo feature, the feature, and whether this build has it.
const NEEDS: [(&str, &str, bool); 7] = [
    ("history export", "postgres", cfg!(feature = "postgres")),
    ("mcp", "mcp", cfg!(feature = "mcp")),
    ("registry check", "object", cfg!(feature = "object")),
    ("serve", "server", cfg!(feature = "server")),
    ("sweep", "object", cfg!(feature = "object")),
    ("token", "server", cfg!(feature = "server")),
    ("top", "tui", cfg!(feature = "tui")),
];

/// Why a verb cannot be called in this build; none where it can, or where there is no such verb.
pub fn refusal(verb: &str) -> Option<Error> {
    let is_meant = |name: &str| verb == name || verb.strip_prefix(name).is_some_and(|rest| rest.starts_with(' '));
    let (_, feature, _) = NEEDS.into_iter().find(|(name, _, is_built)| !is_built && is_meant(name))?;
    Some(Error::Invalid(format!("`outlive {verb}` needs the cargo feature `{feature}`, which this build lacks")))
}

#[cfg(test)]
mod tests {
    use super::{NEEDS, refusal};
    use crate::cli::command;

    #[test]
    fn verb_without_its_feature_names_the_feature() {
        let tree = command(None);
        for (name, feature, is_built) in NEEDS {
            let found = name.split(' ').try_fold(&tree, |tree, word| tree.find_subcommand(word));
            assert_eq!(found.is_some(), is_built, "`{name}` is listed exactly where `{feature}` is built");
            let said = refusal(&format!("{name} list")).map(|error| error.to_string());
            assert_eq!(said.is_none(), is_built);
            assert!(said.is_none_or(|said| said.contains(&format!("cargo feature `{feature}`"))));
        }
        assert!(refusal("ps").is_none() && refusal("topple").is_none());
    }
}
