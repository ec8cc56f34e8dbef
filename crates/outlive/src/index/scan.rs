//! Looks at sources from outside, several at a time: waiting for one does not delay the others.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::sync_channel;

use sha2::{Digest, Sha256};

use super::source::{Found, Problem, Source, Survey, Token};
use super::sources::SourceAddress;
use crate::store::Error;

/// How many look at sources on this machine at once.
const MOST_HERE: usize = 4;
/// How many wait for servers at once.
const MOST_AWAY: usize = 16;

/// What a look at a source came to.
pub(super) enum Looked {
    /// One look has shown that nothing in it has changed.
    Same,
    /// Every run was looked at.
    Each {
        /// How many there are.
        count: usize,
        /// All of them; none where all look as they did.
        found: Option<Vec<Found>>,
        /// What is wrong beside them.
        problems: Vec<Problem>,
    },
}

/// Looks at a source of which `known` is on file. Answers, too, with what is to be on file of it from then on, as long as
/// each of its runs can be recognised by its token.
pub(super) fn look_over(source: &dyn Source, known: Option<&Token>) -> Result<(Looked, Option<Token>), String> {
    // Before its runs are: what changes in between is found the next time.
    let whole = source.whole();
    if let Some(whole) = whole.as_ref().filter(|whole| known == Some(&whole.token)) {
        return Ok((Looked::Same, Some(whole.token)));
    }
    let Survey { found, problems } = source.survey()?;
    let token = match whole {
        Some(whole) => Some(whole.token).filter(|_| whole.settled),
        None => token_of_all(&found),
    };
    let is_same = token.is_some() && token.as_ref() == known;
    Ok((Looked::Each { count: found.len(), found: Some(found).filter(|_| !is_same), problems }, token))
}

/// Tells one state of many runs from another; none where a look does not tell that of one of them.
fn token_of_all(found: &[Found]) -> Option<Token> {
    let mut hash = Sha256::new();
    for run in found {
        if !run.look.settled {
            return None;
        }
        hash.update((run.name.len() as u64).to_ne_bytes());
        hash.update(run.name.as_bytes());
        hash.update(run.look.token.as_bytes());
    }
    Token::from_bytes(&hash.finalize()[..16])
}

/// Has `look` called for each of the sources, by place, several at a time, and `each` with what it answers as it comes.
pub(super) fn each_source<T: Send>(
    sources: &[&SourceAddress],
    look: impl Fn(usize) -> T + Sync,
    mut each: impl FnMut(usize, T) -> Result<(), Error>,
) -> Result<(), Error> {
    // What is waited for begins first.
    let mut order: Vec<usize> = (0..sources.len()).collect();
    order.sort_by_key(|place| !sources[*place].is_away());
    let away = sources.iter().filter(|source| source.is_away()).count();
    let here = std::thread::available_parallelism().map_or(1, std::num::NonZero::get).min(MOST_HERE);
    let lookers = sources.len().min(here + away.min(MOST_AWAY));
    if lookers <= 1 {
        return order.into_iter().try_for_each(|place| each(place, look(place)));
    }
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        // No look runs much further ahead than its results are taken in.
        let (send, receive) = sync_channel(1);
        for _ in 0..lookers {
            let (send, next, order, look) = (send.clone(), &next, &order, &look);
            scope.spawn(move || {
                while let Some(place) = order.get(next.fetch_add(1, Ordering::Relaxed)) {
                    if send.send((*place, look(*place))).is_err() {
                        return;
                    }
                }
            });
        }
        drop(send);
        receive.into_iter().try_for_each(|(place, seen)| each(place, seen))
    })
}
