//! Which cargo feature the URL of a registry needs.

/// The beginning of a URL, the cargo feature that registries there need, and whether this build has it.
const NEEDS: [(&str, &str, bool); 8] = [
    ("az://", "object", cfg!(feature = "object")),
    ("gs://", "object", cfg!(feature = "object")),
    ("http://", "http", cfg!(feature = "http")),
    ("https://", "http", cfg!(feature = "http")),
    ("postgres://", "postgres", cfg!(feature = "postgres")),
    ("postgresql://", "postgres", cfg!(feature = "postgres")),
    ("s3://", "object", cfg!(feature = "object")),
    ("sqlite:", "sqlite", cfg!(feature = "sqlite")),
];

/// Why this build cannot open the registry at `url`; none where it has the feature, or where none would help.
pub(super) fn refusal(url: &str) -> Option<String> {
    let (begins, feature, _) = NEEDS.into_iter().find(|(begins, _, is_built)| !is_built && url.starts_with(begins))?;
    Some(format!("a registry at `{begins}` needs the cargo feature `{feature}`, which this build lacks"))
}

#[cfg(test)]
mod tests {
    use super::{NEEDS, refusal};

    #[test]
    fn url_without_its_feature_names_the_feature() {
        // A SQLite registry is made where its path says.
        let dir = tempfile::tempdir().unwrap();
        for (begins, feature, is_built) in NEEDS {
            let rest = match begins {
                "sqlite:" => dir.path().join("user:hunter2@").display().to_string(),
                _ => "user:hunter2@".into(),
            };
            let opened = pollster::block_on(crate::registry::Registry::open(&format!("{begins}{rest}")));
            let said = opened.err().map(|error| error.to_string()).unwrap_or_default();
            let expected =
                format!("a registry at `{begins}` needs the cargo feature `{feature}`, which this build lacks");
            assert_eq!(said.contains(&expected), !is_built, "{said}");
            assert!(!said.contains("hunter2"), "{said}");
        }
        assert_eq!(refusal("memory:"), None);
    }
}
