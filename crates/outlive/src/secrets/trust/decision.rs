//! What a record may cause, decided in one place (ADR 0018).
//!
//! Every writer of a store can write a record: the author of a cloned repository, another user of a database, a writer
//! of a bucket, the holder of a token. The decision rests on the record, on the registry that it was read in, and on what this
//! user has named. It opens nothing. What cannot be decided is denied.

use super::Trust;
use super::location::{ArtifactLocation, NamedLocation};
use crate::model::id::RunId;
use crate::model::run::{Actor, Run, StateName};

/// What a record may cause.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// It is shown, with its text quoted and its secrets masked.
    Show,
    /// Its command is executed by a rerun, or its processes are ended.
    Execute,
    /// Another attempt of it is started.
    Start,
    /// A connection is made to where its artifacts are, with this user's credentials.
    Connect,
    /// Its manifest is read, and what is there is listed.
    Read,
    /// Its artifacts are deleted.
    Delete,
}

/// What a granted effect rests on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TrustBasis<'a> {
    /// The effect needs no trust.
    None,
    /// The signature of this user, or of a fleet that this user joined, for this registry.
    Signature,
    /// This user allowed the run with `outlive trust`.
    Allowance,
    /// The artifacts are below the prefix of the registry, which the user named.
    Registry,
    /// The artifacts are below a location that the user's configuration names for this registry.
    Named(&'a NamedLocation),
}

/// Why an effect is denied.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Denied {
    /// The run has no artifacts, or names none that could be found.
    #[error("its artifacts are nowhere: {0}")]
    Nowhere(String),
    /// The run belongs to the registry that this one was copied from.
    #[error("it came with a copied registry and belongs to the original")]
    Copied,
    /// Neither a signature nor a location vouches for the record.
    #[error(
        "its record is not signed by this user for this registry, and `{0}` is not a location that this user has named \
         for the registry; `[sweep.artifacts]` of `$OUTLIVE_HOME/config.toml` names such locations"
    )]
    Elsewhere(String),
    /// Neither this user nor a fleet that this user joined signed the record for this registry, and this user did not allow it.
    #[error("untrusted: made by {}@{}, and not signed for this registry with a key of this home", .made_by.user, .made_by.host)]
    Stranger {
        /// Who made the run, as its record says.
        made_by: Actor,
    },
    /// The run ended for good under this home, and its record says otherwise.
    #[error("untrusted: it ended for good before, and its record was put back by another way")]
    Ended,
}

impl Denied {
    /// What to type to have the run executed.
    pub fn hint(&self, run: RunId) -> String {
        match self {
            Self::Copied | Self::Ended => {
                format!("`outlive rerun {run}` makes a new run of it, where this user may execute it")
            }
            _ => format!(
                "read it with `outlive show {run}`, then allow it with `outlive trust {run} --yes`; \
                 `outlive trust --fleet` has the homes of a fleet trust each other"
            ),
        }
    }
}

/// Where a record was read, and what this user has said of that registry.
#[derive(Debug)]
pub struct Origin<'a> {
    /// This user's key and allowances; none without a home.
    pub trust: Option<&'a Trust>,
    /// The identities of the registry. None of a copy that has not been written to: its name is the original's.
    pub identities: Vec<String>,
    /// The prefix of a registry in a bucket.
    pub prefix: Option<ArtifactLocation>,
    /// Locations that the user's configuration names for this registry.
    pub named: &'a [NamedLocation],
}

/// Whether a record may have an effect, and what that rests on.
pub fn may<'a>(effect: Effect, run: &Run, origin: &'a Origin<'_>) -> Result<TrustBasis<'a>, Denied> {
    let is_signed = || origin.trust.is_some_and(|trust| trust.has_signed(run, &origin.identities));
    match effect {
        Effect::Show => Ok(TrustBasis::None),
        Effect::Execute if run.copied => Err(Denied::Copied),
        Effect::Execute if is_signed() => Ok(TrustBasis::Signature),
        Effect::Execute => match origin.trust {
            Some(trust) if trust.has_allowed(run, &origin.identities) => Ok(TrustBasis::Allowance),
            _ => Err(Denied::Stranger { made_by: run.spec.created_by.clone() }),
        },
        Effect::Start => {
            let ground = may(Effect::Execute, run, origin)?;
            let has_ended = || origin.trust.is_some_and(|trust| trust.has_ended(&origin.identities, run.id));
            // A record that says so itself needs no ledger: the lifecycle refuses another attempt of it.
            let admits_it = matches!(run.state.name(), StateName::Succeeded | StateName::Cancelled);
            if !admits_it && has_ended() { Err(Denied::Ended) } else { Ok(ground) }
        }
        Effect::Connect | Effect::Read | Effect::Delete => {
            let nowhere = || Denied::Nowhere("the record names no location".into());
            let output = run.spec.output.as_ref().ok_or_else(nowhere)?;
            let location = ArtifactLocation::parse(&output.prefix).map_err(|why| Denied::Nowhere(why.to_string()))?;
            if run.copied && !run.foreign {
                return Err(Denied::Copied);
            }
            if origin.prefix.as_ref().is_some_and(|prefix| prefix.contains(&location)) {
                return Ok(TrustBasis::Registry);
            }
            if let Some(named) = origin.named.iter().find(|named| named.location.contains(&location)) {
                return Ok(TrustBasis::Named(named));
            }
            if is_signed() { Ok(TrustBasis::Signature) } else { Err(Denied::Elsewhere(location.to_string())) }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::model::id::{RunId, SystemEntropy};
    use crate::model::run::{Actor, Output, Spec};
    use crate::model::time::Timestamp;

    const ARTIFACTS: [Effect; 3] = [Effect::Connect, Effect::Read, Effect::Delete];

    fn run(prefix: &str) -> Run {
        let spec = Spec::new("w", Actor { user: "ada".into(), host: "here".into(), pid: 1 });
        let spec = Spec { output: Some(Output { prefix: prefix.into(), ..Output::default() }), ..spec };
        let now = Timestamp::from_micros(1);
        Run::new(RunId::draw(now, &SystemEntropy), Arc::new(spec), None, now)
    }

    fn key() -> Trust {
        let home = tempfile::tempdir().unwrap();
        Trust::open(home.path(), &SystemEntropy).unwrap()
    }

    #[test]
    fn t8_01_signature_is_valid_in_its_own_registry_alone() {
        let (me, other) = (key(), key());
        let origin = |trust, identity: &str| Origin {
            trust: Some(trust),
            identities: vec![identity.to_owned()],
            prefix: None,
            named: &[],
        };
        let mut run = run("/data");
        run.signature = Some(me.sign("original", run.id, &run.spec, run.created_at));
        for effect in ARTIFACTS {
            assert_eq!(may(effect, &run, &origin(&me, "original")), Ok(TrustBasis::Signature));
            for origin in [origin(&me, "copy"), origin(&other, "original"), Origin { trust: None, ..origin(&me, "x") }]
            {
                assert!(matches!(may(effect, &run, &origin), Err(Denied::Elsewhere(_))), "{effect:?}");
            }
            // A copy that has not been written to has no identity.
            let unnamed = Origin { identities: Vec::new(), ..origin(&me, "") };
            assert!(may(effect, &run, &unnamed).is_err(), "{effect:?}");
        }
        let mut elsewhere = run.clone();
        Arc::make_mut(&mut elsewhere.spec).output.as_mut().unwrap().prefix = "/home".into();
        assert!(
            may(Effect::Delete, &elsewhere, &origin(&me, "original")).is_err(),
            "another location kept the signature"
        );
        me.allow("original", &elsewhere).unwrap();
        assert_eq!(may(Effect::Execute, &elsewhere, &origin(&me, "original")), Ok(TrustBasis::Allowance));
        assert!(may(Effect::Delete, &elsewhere, &origin(&me, "original")).is_err(), "what may be executed was deleted");
        assert!(may(Effect::Execute, &elsewhere, &origin(&me, "copy")).is_err(), "an allowance was taken elsewhere");
        me.note_final("original", elsewhere.id).unwrap();
        assert_eq!(may(Effect::Start, &elsewhere, &origin(&me, "original")), Err(Denied::Ended));
        assert!(may(Effect::Execute, &elsewhere, &origin(&me, "original")).is_ok());
        assert_eq!(may(Effect::Show, &elsewhere, &origin(&other, "x")), Ok(TrustBasis::None));
    }

    #[test]
    fn t6_02_unsigned_record_reaches_named_locations_alone() {
        let named = [NamedLocation::parse("s3://K:S@data/fleet?endpoint=http://127.0.0.1:9").unwrap()];
        let prefix = Some(ArtifactLocation::parse("s3://data/own").unwrap());
        let origin = Origin { trust: None, identities: vec!["r".into()], prefix, named: &named };
        for (place, granted) in [
            ("s3://data/own", Some(TrustBasis::Registry)),
            ("s3://data/own/below", Some(TrustBasis::Registry)),
            ("s3://data/fleet/x", Some(TrustBasis::Named(&named[0]))),
            ("s3://data/ownership", None),
            ("s3://data", None),
            ("s3://other/own", None),
            ("s3://data/own?endpoint=http://evil", None),
            ("s3://K:S@data/own", None),
            ("/data/own", None),
            ("", None),
        ] {
            for effect in ARTIFACTS {
                let theirs = Run { copied: true, foreign: true, ..run(place) };
                assert_eq!(may(effect, &run(place), &origin).ok(), granted, "{effect:?} {place}");
                assert_eq!(may(effect, &theirs, &origin).ok(), granted, "{effect:?} {place}");
                let copied = Run { copied: true, ..run(place) };
                assert!(may(effect, &copied, &origin).is_err(), "{effect:?} {place}");
            }
            assert!(may(Effect::Execute, &run(place), &origin).is_err());
        }
    }
}
