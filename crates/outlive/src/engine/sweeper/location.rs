//! Places: where artifacts are, a prefix of a bucket or a directory, read, listed and deleted alike.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use object_store::local::LocalFileSystem;

use super::manifest::{LIMIT, ManifestNames, means_attempts, texts};
use super::objects::{Machine, Objects};
use crate::model::time::Timestamp;
use crate::secrets::trust::{ArtifactLocation, NamedLocation};
use crate::store::Error;
use crate::store::object::{Bucket, BucketAddress, InvalidBucketAddress, ListedObject, system_time};

/// What the pointer is called.
const POINTER: &str = "_CURRENT";
/// What manifests are in.
const MANIFESTS: &str = "manifests";

/// What a place has below a path.
pub(super) struct ObjectInfo {
    pub(super) path: String,
    pub(super) size: u64,
    /// When it was put, by the place's own clock.
    pub(super) modified: Timestamp,
}

/// Where artifacts are.
#[derive(Clone)]
pub(super) struct ArtifactStore {
    objects: Arc<dyn Objects>,
    /// What is before every name; without slashes at its ends.
    prefix: String,
    /// As records name it.
    shown: String,
    /// The directory that it is, if it is one.
    directory: Option<PathBuf>,
    /// Or the bucket that it is in, and where.
    bucket: Option<(Bucket, BucketAddress)>,
    /// The prefix of that bucket that the user vouches for: it, or one above.
    vouched: String,
    /// Only trees that belong to this user may be deleted.
    is_owned: bool,
    /// What trees of runs are in, here or elsewhere.
    shards: Arc<BTreeSet<String>>,
}

/// How a place is reached. A record names where it is, and never how it is reached.
pub(super) enum Reach<'a> {
    /// It is below the prefix of the registry, and reached as the registry is.
    Registry(&'a BucketAddress),
    /// The user's configuration names it, or a location above it.
    Named(&'a NamedLocation),
    /// This user's signature vouches for it. A bucket is reached as the registry is, or as the environment says.
    Signed(Option<&'a BucketAddress>),
}

impl ArtifactStore {
    /// The place that a record names, of which `trust` has decided that it may be used.
    pub(super) fn new(
        named: &str,
        reach: &Reach<'_>,
        shards: Arc<BTreeSet<String>>,
        machine: &Machine,
    ) -> Result<Self, String> {
        if let Some(objects) = (machine.open)(named) {
            let (prefix, vouched, shown) = (String::new(), String::new(), named.to_owned());
            return Ok(Self {
                objects,
                prefix,
                shown,
                directory: None,
                bucket: None,
                vouched,
                is_owned: false,
                shards,
            });
        }
        match ArtifactLocation::parse(named).map_err(|error| error.to_string())? {
            ArtifactLocation::Bucket { prefix, .. } => Self::bucket(named, &prefix, reach, shards),
            ArtifactLocation::Directory(path) => Self::directory(&path, reach, shards),
        }
    }

    fn bucket(named: &str, prefix: &str, reach: &Reach<'_>, shards: Arc<BTreeSet<String>>) -> Result<Self, String> {
        let via = match reach {
            Reach::Registry(address) => Some((*address).clone()),
            Reach::Named(via) => Some(via.url.parse().map_err(|error: InvalidBucketAddress| error.to_string())?),
            Reach::Signed(registry) => registry.cloned(),
        };
        let address = via.as_ref().map_or_else(|| named.parse(), |via| via.beside(named));
        let address = address.map_err(|error| error.to_string())?;
        let vouched = match (reach, via) {
            (Reach::Registry(_) | Reach::Named(_), Some(via)) => via.prefix,
            _ => prefix.to_owned(),
        };
        let bucket = Bucket::new(&address, system_time()).map_err(|error| error.to_string())?;
        let (prefix, shown) = (address.prefix.clone(), address.to_string());
        let (objects, bucket) = (Arc::new(bucket.clone()), Some((bucket, address)));
        Ok(Self { objects, prefix, shown, directory: None, bucket, vouched, is_owned: false, shards })
    }

    fn directory(path: &Path, reach: &Reach<'_>, shards: Arc<BTreeSet<String>>) -> Result<Self, String> {
        let text = path.to_str().ok_or("its path is no text")?;
        let directory = std::fs::canonicalize(path).map_err(|error| format!("`{text}`: {error}"))?;
        if let Reach::Named(NamedLocation { location: ArtifactLocation::Directory(named), .. }) = reach
            && !std::fs::canonicalize(named).is_ok_and(|named| directory.starts_with(named))
        {
            return Err(format!("`{text}` leads out of `{}`, which is the location that was named", named.display()));
        }
        let client = LocalFileSystem::new_with_prefix(path).map_err(|error| error.to_string())?;
        let client = Arc::new(client.with_automatic_cleanup(true));
        let objects = Arc::new(Bucket::over(client, text.to_owned(), system_time()));
        let (prefix, shown) = (String::new(), text.trim_end_matches('/').to_owned());
        let is_owned = matches!(reach, Reach::Signed(_));
        let (vouched, directory) = (String::new(), Some(directory));
        Ok(Self { objects, prefix, shown, directory, bucket: None, vouched, is_owned, shards })
    }

    /// The bucket that it is in, and where in it.
    pub(super) fn in_bucket(&self) -> Option<(&Bucket, &BucketAddress)> {
        self.bucket.as_ref().map(|(bucket, address)| (bucket, address))
    }

    /// Whether a prefix of its bucket is the one that the user vouches for, or below it.
    pub(super) fn is_vouched_for(&self, prefix: &str) -> bool {
        let rest = prefix.strip_prefix(self.vouched.as_str());
        rest.is_some_and(|rest| self.vouched.is_empty() || rest.is_empty() || rest.starts_with('/'))
    }

    /// Whose a tree is, where only trees of this user may be deleted and it is another user's.
    pub(super) fn other_owner(&self, tree: &str) -> Option<String> {
        let directory = self.directory.as_ref().filter(|_| self.is_owned)?;
        let found = match std::fs::symlink_metadata(directory.join(tree)) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return None,
            Err(error) => return Some(format!("an owner that cannot be determined: {error}")),
            Ok(found) => found,
        };
        (found.uid() != rustix::process::geteuid().as_raw()).then(|| format!("user {}", found.uid()))
    }

    pub(super) fn shown(&self, path: &str) -> String {
        format!("{}/{path}", self.shown)
    }

    /// A tree of this place, by the same name for whatever record names it.
    pub(super) fn tree(&self, tree: &str) -> String {
        match &self.directory {
            Some(directory) => format!("{}/{tree}", directory.display()),
            None => self.shown(tree),
        }
    }

    /// What the place's clock said when this machine had been up for so long; none where nothing was heard of it.
    pub(super) fn time_at(&self, up: Duration, machine: &Machine) -> Option<Timestamp> {
        let now = if self.directory.is_some() { machine.clock.now() } else { self.objects.time()? };
        let ago = i64::try_from(machine.clock.since_boot().saturating_sub(up).as_micros()).ok()?;
        Some(Timestamp::from_micros(now.as_micros() - ago))
    }

    /// Whether it is in that bucket.
    pub(super) fn is_in(&self, bucket: &BucketAddress) -> bool {
        self.bucket.as_ref().is_some_and(|(_, address)| address.is_same_bucket(bucket))
    }

    /// Whether what is deleted here is only hidden, as far as was heard.
    pub(super) fn keeps_versions(&self) -> bool {
        self.bucket.as_ref().is_some_and(|(bucket, _)| bucket.keeps_versions())
    }

    fn key(&self, path: &str) -> String {
        if self.prefix.is_empty() { path.to_owned() } else { format!("{}/{path}", self.prefix) }
    }

    fn path<'a>(&self, key: &'a str) -> Option<&'a str> {
        if self.prefix.is_empty() { Some(key) } else { key.strip_prefix(&self.prefix)?.strip_prefix('/') }
    }

    /// A path below this place that a manifest or a record names; none where it names something else.
    pub(super) fn below(&self, named: &str) -> Option<String> {
        let named = named.strip_prefix("file://").unwrap_or(named);
        // A directory may be named by a way that leads there, or as it is.
        let real = self.directory.as_deref().and_then(Path::to_str);
        let rest = [Some(self.shown.as_str()), real].into_iter().flatten().find_map(|place| named.strip_prefix(place));
        let path = match rest {
            Some(rest) => rest.strip_prefix('/')?,
            None if named.contains("://") || named.starts_with('/') => return None,
            None => named,
        };
        let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty() && *part != ".").collect();
        let is_clear = !parts.is_empty() && !parts.contains(&"..") && !path.chars().any(char::is_control);
        is_clear.then(|| parts.join("/"))
    }

    async fn read(&self, path: &str) -> Result<Option<Vec<u8>>, String> {
        if let Some(directory) = &self.directory
            && std::fs::canonicalize(directory.join(path)).is_ok_and(|real| !real.starts_with(directory))
        {
            return Err(format!("`{path}` leads out of `{}`", self.shown));
        }
        match self.objects.get(&self.key(path)).await {
            Ok(Some(bytes)) if bytes.len() > LIMIT => Err(format!("it has {} bytes", bytes.len())),
            Ok(found) => Ok(found.map(|bytes| bytes.to_vec())),
            Err(error) => Err(error.to_string()),
        }
    }

    /// What a manifest names below this place.
    pub(super) async fn names_in(&self, manifest: &str, winners: Option<&str>) -> Result<ManifestNames, String> {
        let path = self.below(manifest).ok_or_else(|| format!("`{manifest}` is not below `{}`", self.shown))?;
        let bytes = self.read(&path).await?.ok_or_else(|| format!("there is no `{}`", self.shown(&path)))?;
        let mut names = ManifestNames::default();
        for text in texts(&bytes, winners).map_err(|why| format!("`{}`: {why}", self.shown(&path)))? {
            // What is above the trees of runs, as the word `shards` is, names nothing of any of them.
            let is_of_run = |path: &String| {
                let tree = path.strip_prefix("run_id=").map(|_| "").or_else(|| Some(path.split_once("/run_id=")?.0));
                tree.is_some_and(|tree| self.shards.contains(tree)) && !path.contains(['*', '?', '%', '\\'])
            };
            match self.below(&text).filter(is_of_run) {
                Some(path) => names.insert(&path),
                None if means_attempts(&text) => names.insert_unclear(&text),
                None => names.insert_said(&text),
            }
        }
        Ok(names)
    }

    /// What the manifest names that the pointer points at, and where that is; nothing where there is no pointer.
    pub(super) async fn names_by_pointer(&self) -> Result<(ManifestNames, Vec<String>), String> {
        let Some(bytes) = self.read(POINTER).await? else {
            let is_there = |dir: &PathBuf| dir.join(POINTER).symlink_metadata().is_ok();
            return match self.directory.as_ref().is_some_and(is_there) {
                true => Err(format!("`{POINTER}` is there, and cannot be read")),
                false => Ok(<_>::default()),
            };
        };
        let said = texts(&bytes, None);
        // One that is no document is the name itself.
        let said = match said {
            Ok(said) => said,
            Err(_) => vec![String::from_utf8(bytes).map_err(|_| format!("`{POINTER}` is no text"))?.trim().to_owned()],
        };
        let mut names = ManifestNames::default();
        let mut pointed = Vec::new();
        for path in said.iter().filter_map(|text| self.below(text)) {
            // Of what it says, what is there is what it points at.
            match self.names_in(&path, None).await {
                _ if !path.contains('/') => {}
                Ok(found) => {
                    names = names.and(&found);
                    names.insert(&path);
                    pointed.push(path);
                }
                Err(why) if path.starts_with(MANIFESTS) => return Err(format!("`{POINTER}`: {why}")),
                Err(_) => {}
            }
        }
        match pointed.is_empty() {
            true => Err(format!("`{POINTER}` points at no manifest that can be read")),
            false => Ok((names, pointed)),
        }
    }

    /// Whether there is an object under a path.
    pub(super) async fn has(&self, path: &str) -> Result<bool, Error> {
        self.objects.has(&self.key(path)).await
    }

    /// Whether there is any below it.
    pub(super) async fn has_any_below(&self, path: &str) -> Result<bool, Error> {
        Ok(!self.page(path, None).await?.is_empty())
    }

    /// The manifests that are there, by the run they say they are of.
    pub(super) async fn manifests(&self) -> Result<Vec<(String, String)>, Error> {
        let listed = self.objects.list_all(&self.key(MANIFESTS)).await?;
        let of = |object: &ListedObject| {
            let path = self.path(&object.key)?.to_owned();
            let name = path.split('/').find_map(|part| part.split_once("run_id=")).map(|(_, name)| name.to_owned())?;
            Some((name, path))
        };
        Ok(listed.iter().filter_map(of).collect())
    }

    /// The next objects below a path behind the one before; none behind the last.
    pub(super) async fn page(&self, below: &str, after: Option<&str>) -> Result<Vec<ObjectInfo>, Error> {
        let (prefix, after) = (self.key(below), after.map(|after| self.key(after)));
        let listed = match (&self.directory, &after) {
            (None, _) => self.objects.list_page(&prefix, after.as_deref()).await?,
            // A directory has no order.
            (Some(_), None) => self.objects.list_all(&prefix).await?,
            (Some(_), Some(_)) => return Ok(Vec::new()),
        };
        let mut links = HashMap::new();
        let found = listed.iter().filter_map(|object| Some((self.path(&object.key)?, object)));
        let here = found.filter(|(path, _)| self.is_really_below(path, &mut links));
        let entry = |(path, object): (&str, &ListedObject)| ObjectInfo {
            path: path.to_owned(),
            size: object.size,
            modified: object.modified,
        };
        Ok(here.map(entry).collect())
    }

    /// Whether a path leads through no link: what is behind one is elsewhere and belongs to another owner. `known` has what was
    /// found out of the directories before.
    fn is_really_below(&self, path: &str, known: &mut HashMap<String, bool>) -> bool {
        let Some(directory) = &self.directory else { return true };
        let parent = path.rsplit_once('/').map_or("", |(parent, _)| parent);
        let look = || std::fs::canonicalize(directory.join(parent)).is_ok_and(|real| real == directory.join(parent));
        *known.entry(parent.to_owned()).or_insert_with(look)
    }

    /// Everything below a path, now.
    pub(super) async fn all_below(&self, path: &str) -> Result<HashSet<String>, Error> {
        let listed = self.objects.list_all(&self.key(path)).await?;
        Ok(listed.iter().filter_map(|object| self.path(&object.key)).map(str::to_owned).collect())
    }

    /// Deletes objects; answers with those that could not be.
    pub(super) async fn delete(&self, paths: &[String]) -> Result<Vec<(String, Error)>, Error> {
        let mut links = HashMap::new();
        // A directory may have become a link since it was listed.
        let here = paths.iter().filter(|path| self.is_really_below(path, &mut links));
        let keys: Vec<String> = here.map(|path| self.key(path)).collect();
        let left = self.objects.delete(keys).await?;
        let named = |(key, error): (String, Error)| (self.path(&key).unwrap_or(&key).to_owned(), error);
        Ok(left.into_iter().map(named).collect())
    }
}
