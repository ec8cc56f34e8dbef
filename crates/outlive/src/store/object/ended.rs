//! Ended records, cached on this host by their versions: a list reads what is in flight or has changed, and nothing else.
//!
//! The cache is one file of lines: version, key, and the record without its events, separated by tabs. It is derived: a line
//! that cannot be read is a miss, and a file that cannot be written costs nothing but requests. Lines are appended, and the
//! file is written anew once most of its lines are outdated.

use std::collections::{HashMap, HashSet};
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use sha2::{Digest, Sha256};

use super::ObjectStore;
use super::bucket::{ListedObject, Version};
use super::cache::CachedRecord;
use super::record::Document;
use crate::model::hex::hex;
use crate::util::files;
use crate::util::sync::lock;

/// The version of the lines, which is part of the file's name.
const FORMAT: u32 = 1;
/// The longest file that is read or written, in bytes. Records beyond it are read from the bucket each time.
const LIMIT: u64 = 64 << 20;
/// How many outdated lines a file may have beside as many that are not.
const OUTDATED: usize = 1_000;

/// The cache of one registry.
pub(super) struct EndedRecords {
    path: PathBuf,
    /// Versions and documents as JSON, by key; absent until the file is read.
    lines: Option<HashMap<String, (String, String)>>,
    /// How many lines of the file are outdated.
    outdated: usize,
    /// The length of the file, in bytes.
    length: u64,
    /// Lines that are not in the file yet.
    added: Vec<String>,
}

impl EndedRecords {
    fn new(path: PathBuf) -> Self {
        Self { path, lines: None, outdated: 0, length: 0, added: Vec::new() }
    }

    /// The lines of the file, which is read once.
    fn lines(&mut self) -> &mut HashMap<String, (String, String)> {
        if self.lines.is_none() {
            let text = read(&self.path).unwrap_or_default();
            let mut lines = HashMap::new();
            for line in text.lines() {
                let mut parts = line.splitn(3, '\t');
                if let (Some(tag), Some(key), Some(json)) = (parts.next(), parts.next(), parts.next()) {
                    let before = lines.insert(key.to_owned(), (tag.to_owned(), json.to_owned()));
                    self.outdated += usize::from(before.is_some());
                } else {
                    self.outdated += 1;
                }
            }
            self.length = text.len() as u64;
            self.lines = Some(lines);
        }
        self.lines.get_or_insert_default()
    }

    /// Whether the version of a record is cached: then its run has ended.
    fn has(&mut self, object: &ListedObject) -> bool {
        let cached = self.lines().get(&object.key);
        object.tag.is_some() && cached.is_some_and(|(tag, _)| Some(tag) == object.tag.as_ref())
    }

    /// The cached version of a record.
    fn find(&mut self, object: &ListedObject) -> Option<Document> {
        let (tag, json) = self.lines().get(&object.key)?;
        if Some(tag) != object.tag.as_ref() {
            return None;
        }
        serde_json::from_str(json).ok()
    }

    /// Adds the version of a record whose run has ended.
    fn add(&mut self, key: &str, tag: &str, document: &Document) {
        let Ok(json) = serde_json::to_string(document) else { return };
        // JSON has neither; a name of an object may.
        if [key, tag].iter().any(|text| text.contains(['\t', '\n', '\r'])) {
            return;
        }
        self.added.push(format!("{tag}\t{key}\t{json}\n"));
        if self.lines().insert(key.to_owned(), (tag.to_owned(), json)).is_some() {
            self.outdated += 1;
        }
    }

    /// Writes what was added; `listed` are the keys of all records that there are.
    fn save(&mut self, listed: &HashSet<&str>) -> io::Result<()> {
        let before = self.lines().len();
        if before > listed.len() + OUTDATED {
            self.lines().retain(|key, _| listed.contains(key.as_str()));
            self.outdated += before - self.lines().len();
        }
        if self.outdated > self.lines().len() + OUTDATED {
            return self.write_anew();
        }
        let added = std::mem::take(&mut self.added).concat();
        if added.is_empty() || self.length + added.len() as u64 > LIMIT {
            return Ok(());
        }
        self.make_directory()?;
        // One write: lines of other processes come before or after it.
        open(OpenOptions::new().append(true).create(true), &self.path)?.write_all(added.as_bytes())?;
        self.length += added.len() as u64;
        Ok(())
    }

    fn write_anew(&mut self) -> io::Result<()> {
        self.added.clear();
        let lines = self.lines().iter().map(|(key, (tag, json))| format!("{tag}\t{key}\t{json}\n"));
        let text = lines.collect::<String>();
        self.make_directory()?;
        let fresh = self.path.with_extension(std::process::id().to_string());
        open(OpenOptions::new().write(true).create(true).truncate(true), &fresh)?.write_all(text.as_bytes())?;
        std::fs::rename(&fresh, &self.path)?;
        (self.outdated, self.length) = (0, text.len() as u64);
        Ok(())
    }

    fn make_directory(&self) -> io::Result<()> {
        self.path.parent().map_or(Ok(()), files::make_private_dirs)
    }
}

fn open(options: &mut OpenOptions, path: &Path) -> io::Result<File> {
    options.mode(0o600).custom_flags(rustix::fs::OFlags::NOFOLLOW.bits() as i32).open(path)
}

fn read(path: &Path) -> io::Result<String> {
    let mut bytes = Vec::new();
    open(OpenOptions::new().read(true), path)?.take(LIMIT).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

impl ObjectStore {
    /// Caches ended records below `directory`, across processes.
    pub fn cache_ended(&self, directory: &Path) {
        let address = &self.inner.address;
        let registry = format!("{address:?} {:?} {} {}", address.endpoint(), address.runs, self.id());
        let name = format!("bucket-v{FORMAT}-{}.tsv", hex(&Sha256::digest(registry.as_bytes())[..12]));
        *lock(&self.inner.ended) = Some(EndedRecords::new(directory.join(name)));
    }

    /// Takes those records out of `objects` that are cached as ended. Answers with their entries, or with none unless
    /// they are `wanted`.
    pub(super) fn take_ended(&self, objects: &mut Vec<ListedObject>, wanted: bool) -> Vec<(String, CachedRecord)> {
        let mut ended = lock(&self.inner.ended);
        let Some(ended) = ended.as_mut().filter(|_| !objects.is_empty()) else { return Vec::new() };
        let mut found = Vec::new();
        objects.retain(|object| {
            if !wanted {
                return !ended.has(object);
            }
            let Some(document) = ended.find(object) else { return true };
            let (version, modified) = (Version::of_tag(object.tag.clone()), Some(object.modified));
            let document = Ok(Arc::new(document));
            found.push((object.key.clone(), CachedRecord { version, modified, document, closed: None, partial: true }));
            false
        });
        found
    }

    /// Caches those of the entries that have ended. `listed` are the keys of all records.
    pub(super) fn keep_ended<'a>(
        &self,
        entries: impl Iterator<Item = &'a (String, CachedRecord)>,
        listed: impl Iterator<Item = &'a str>,
    ) {
        let mut ended = lock(&self.inner.ended);
        let Some(ended) = ended.as_mut() else { return };
        for (key, entry) in entries.filter(|(_, entry)| entry.has_ended()) {
            if let (Ok(document), Some(tag)) = (&entry.document, &entry.version.tag) {
                ended.add(key, tag, document);
            }
        }
        if ended.added.is_empty() && ended.outdated == 0 {
            return;
        }
        if let Err(error) = ended.save(&listed.collect()) {
            tracing::debug!(path = %ended.path.display(), %error, "ended records are not cached");
        }
    }
}
