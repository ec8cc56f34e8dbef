//! Owners: which processes owned runs, and what they promised. Written once each, and referred to by every run they owned.

use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, MutexGuard};

use sha2::{Digest, Sha256};
use tokio_postgres::types::Type;
use uuid::Uuid;

use super::PostgresStore;
use super::pool::{CallError, PooledClient};
use crate::model::run::{LastHeartbeat, Owner};
use crate::store::Error;
use crate::util::sync::lock;

/// How many are remembered.
const KNOWN: usize = 10_000;

/// An owner under its name: the same process with the same lease has the same.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct InternedOwner {
    pub(super) id: Uuid,
    pub(super) owner: Owner,
    pub(super) body: String,
}

impl InternedOwner {
    pub(super) fn of(owner: &Owner) -> Result<Self, Error> {
        let unwritable = |error| Error::Corrupt(format!("worker `{}` cannot be written down: {error}", owner.worker));
        let body = serde_json::to_string(owner).map_err(unwritable)?;
        let mut id = [0; 16];
        id.copy_from_slice(&Sha256::digest(&body)[..16]);
        let owner = Owner { heard: LastHeartbeat::default(), ..owner.clone() };
        Ok(Self { id: uuid::Builder::from_custom_bytes(id).into_uuid(), owner, body })
    }

    pub(super) fn is(&self, owner: &Owner) -> bool {
        let Owner { worker, identity, lease, heard: _ } = owner;
        (worker, identity, lease) == (&self.owner.worker, &self.owner.identity, &self.owner.lease)
    }
}

/// The owners that this process has met.
#[derive(Default)]
pub(super) struct Owners(Mutex<HashMap<Uuid, Owner>>);

impl Owners {
    fn known(&self) -> MutexGuard<'_, HashMap<Uuid, Owner>> {
        // An entry is whole or missing.
        lock(&self.0)
    }

    pub(super) fn get(&self, id: Uuid) -> Option<Owner> {
        self.known().get(&id).cloned()
    }
}

impl PostgresStore {
    /// Sees to it that these owners are known, as far as they are on record.
    pub(super) async fn meet(
        &self,
        link: &mut PooledClient<'_>,
        ids: impl Iterator<Item = Uuid>,
    ) -> Result<(), CallError> {
        let unknown: HashSet<Uuid> = {
            let known = self.owners().known();
            ids.filter(|id| !known.contains_key(id)).collect()
        };
        if unknown.is_empty() {
            return Ok(());
        }
        let unknown: Vec<Uuid> = unknown.into_iter().collect();
        let sql = self.sql("SELECT id, body FROM @.owner WHERE id = ANY($1)");
        let rows = link.read(&sql, &[(&unknown, Type::UUID_ARRAY)]).await?;
        let mut known = self.owners().known();
        if known.len() > KNOWN {
            known.clear();
        }
        // One that cannot be understood is missing where it is referred to.
        let read = |row: &tokio_postgres::Row| Some((row.get(0), serde_json::from_str(row.get(1)).ok()?));
        known.extend(rows.iter().filter_map(read));
        Ok(())
    }
}
