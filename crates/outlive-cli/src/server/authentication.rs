//! Authentication: which user a request comes from, by token, session or socket, and how often a client may fail.
//!
//! All users of a machine share its address, and so does everybody behind one proxy. So whatever is right is known
//! however often others were wrong: no client keeps another out. What is shown has 256 random bits, so it cannot be
//! guessed; a client that tries is counted and refused.

use std::collections::HashMap;
use std::net::IpAddr;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use outlive::error::{Code, Error};
use outlive::store::http::{known_by, proof};
use outlive::time::{Clock, SystemClock};
use tokio::sync::Notify;

use super::limits::Limits;
use super::listener::Peer;
use super::sessions::{Sessions, Subject};
use crate::call::Failure;
use crate::call::calls::Who;
use crate::call::tokens::{Kept, Role, Tokens, digest, draw, is_same};

/// How many invalid credentials a client may show within [`WINDOW`] before it is refused.
const FAILURES: u32 = 20;
const WINDOW: Duration = Duration::from_secs(60);
/// The most addresses whose failures are counted, and the most links that were not followed yet.
const REMEMBERED: usize = 10_000;
const LINKS: usize = 100;
/// For how long a link is good that a page made. The one that is printed is good until it is followed.
const LINK: Duration = Duration::from_secs(10 * 60);

/// The credentials that a client shows.
pub enum Credential<'a> {
    /// A token.
    Token(&'a str),
    /// The cookie of a session.
    Session(&'a str),
    /// No credentials.
    Nothing,
}

/// The users that a server knows, and the sessions and links by which they come.
pub struct Authentication {
    tokens: Tokens,
    /// This user's own token, by its digest.
    own: String,
    link: String,
    port: u16,
    /// What tells the registry that is served from any other.
    registry: Option<String>,
    /// The name of the cookie. A browser sends cookies to all ports of a host, so each port has its own.
    pub cookie: String,
    /// The names by which the server may be asked for.
    pub hosts: Vec<String>,
    limits: Limits,
    sessions: Sessions,
    state: Mutex<AuthState>,
    /// Notified when a browser has come with the link.
    begun: Notify,
}

#[derive(Default)]
struct AuthState {
    /// Links that sign a browser in once, by the digest of their key: as whom, and until when.
    links: HashMap<String, (Subject, Option<Duration>)>,
    /// How many failures are counted of an address, and since when.
    failures: HashMap<IpAddr, (u32, Duration)>,
    /// What is left of a client's rate, and since when.
    rates: HashMap<String, (f64, Duration)>,
}

impl Authentication {
    /// Authentication at the server at `port`, which is also reached by these names.
    pub fn new(
        tokens: Tokens,
        registry: Option<String>,
        port: u16,
        hosts: Vec<String>,
        limits: Limits,
    ) -> Result<Self, Error> {
        let own = digest(&tokens.own()?);
        let hosts = hosts.into_iter().map(|host| host.to_lowercase()).collect();
        let (link, cookie) = (draw(), format!("outlive_{port}"));
        let sessions = Sessions::at(tokens.home());
        let links = HashMap::from([(digest(&link), (Subject::Own, None))]);
        let (state, begun) = (Mutex::new(AuthState { links, ..AuthState::default() }), Notify::new());
        Ok(Self { tokens, own, link, port, registry, cookie, hosts, limits, sessions, state, begun })
    }

    /// Where this user's tokens are.
    pub fn home(&self) -> &Path {
        self.tokens.home()
    }

    /// Until a browser comes with the link.
    pub async fn session_begins(&self) {
        self.begun.notified().await;
    }

    /// What stands behind the `#` of the link to the dashboard.
    pub fn link(&self) -> &str {
        &self.link
    }

    fn state(&self) -> MutexGuard<'_, AuthState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The user that these credentials are of. Credentials that are not known are counted as a failure of their client.
    pub fn who(&self, peer: Peer, shown: &Credential<'_>) -> Result<Who, Failure> {
        self.known(peer, shown)?.ok_or_else(|| match (peer, shown) {
            (Peer::Address(address), Credential::Token(_) | Credential::Session(_)) => self.record_failure(address),
            _ => unknown(),
        })
    }

    /// Whether these credentials, which were accepted, are good still. One that was revoked meanwhile is no failure of
    /// its client.
    pub fn is_still_known(&self, peer: Peer, shown: &Credential<'_>) -> bool {
        matches!(self.known(peer, shown), Ok(Some(_)))
    }

    /// The user that these credentials are of; none where they are not known.
    fn known(&self, peer: Peer, shown: &Credential<'_>) -> Result<Option<Who>, Failure> {
        let own_user = Who::own(Role::Admin.may());
        match (peer, shown) {
            // The kernel says so.
            (Peer::User(uid), _) if uid == rustix::process::geteuid().as_raw() || uid == 0 => Ok(Some(own_user)),
            (Peer::User(_), _) => Err(Failure::new(Code::Forbidden, "this socket is another user's")),
            (Peer::Address(address), Credential::Token(token)) => self.by_token(address, token, own_user),
            (Peer::Address(_), Credential::Session(session)) => match self.sessions.subject(&self.tokens, session) {
                Some(Subject::Own) => Ok(Some(own_user)),
                Some(Subject::Token(known)) => self.by_subject(&known).map(Some),
                None => Ok(None),
            },
            (Peer::Address(_), Credential::Nothing) => Ok(None),
        }
    }

    fn by_token(&self, address: IpAddr, token: &str, own_user: Who) -> Result<Option<Who>, Failure> {
        let digest = digest(token);
        // The own token lies in a file of this machine; a client that shows it from elsewhere has stolen it.
        if is_same(&digest, &self.own) && address.is_loopback() {
            return Ok(Some(own_user));
        }
        let kept = self.tokens.list().map_err(Failure::from)?.into_iter().find(|kept| is_same(&kept.digest, &digest));
        kept.map(|kept| self.allowed(kept)).transpose()
    }

    /// The token of a session, as long as it is not revoked.
    fn by_subject(&self, known: &str) -> Result<Who, Failure> {
        let kept = self.tokens.list().map_err(Failure::from)?.into_iter();
        let kept = kept.into_iter().find(|kept| is_same(&known_by(&kept.digest), known));
        kept.map_or_else(|| Err(unknown()), |kept| self.allowed(kept))
    }

    fn allowed(&self, Kept { name, role, registry, .. }: Kept) -> Result<Who, Failure> {
        if registry.is_some() && registry != self.registry {
            return Err(Failure::new(Code::Forbidden, "this token is for another registry"));
        }
        Ok(Who { everywhere: registry.is_none(), user: Some(name), may: role.may() })
    }

    /// The answer of a server that knows a token's digest to a question. Where that says at which port it was asked, it
    /// must have been at ours: a server that listens at another and passes it on is not us.
    pub fn prove(&self, peer: Peer, token: &str, question: &str, port: Option<u16>) -> Result<String, Failure> {
        if port.is_some_and(|port| port != self.port) || question.len() > 256 {
            return Err(Failure::new(Code::Forbidden, "the request names another host"));
        }
        let kept = self.tokens.list().map_err(Failure::from)?.into_iter().map(|kept| kept.digest);
        let digest = kept.chain([self.own.clone()]).find(|digest| is_same(&known_by(digest), token));
        match (digest, peer) {
            (Some(digest), _) => Ok(proof(&digest, question, port)),
            (None, Peer::Address(address)) => Err(self.record_failure(address)),
            (None, Peer::User(_)) => Err(unknown()),
        }
    }

    /// Makes a session for a browser that came with a link, which is good once. Answers with its cookie.
    pub fn begin_session(&self, peer: Peer, key: &str) -> Result<String, Failure> {
        let now = SystemClock.awake();
        let subject = {
            let mut state = self.state();
            state.links.retain(|_, (_, until)| until.is_none_or(|until| now < until));
            state.links.remove(&digest(key)).map(|(subject, _)| subject)
        };
        let subject = match (subject, peer) {
            (Some(subject), _) => subject,
            (None, Peer::User(_)) => Subject::Own,
            (None, Peer::Address(address)) => return Err(self.record_failure(address)),
        };
        let session = self.sessions.begin(&self.tokens, &subject).map_err(Failure::from)?;
        self.begun.notify_one();
        Ok(session)
    }

    /// Makes a session for a browser whose user has a token. It may do what the token may, and ends with it.
    pub fn begin_session_by_token(&self, peer: Peer, token: &str) -> Result<String, Failure> {
        self.who(peer, &Credential::Token(token))?;
        let subject = self.subject(&Credential::Token(token));
        self.sessions.begin(&self.tokens, &subject).map_err(Failure::from)
    }

    /// Whose these credentials are, which were accepted.
    fn subject(&self, shown: &Credential<'_>) -> Subject {
        match shown {
            Credential::Token(token) if !is_same(&digest(token), &self.own) => Subject::Token(known_by(&digest(token))),
            Credential::Session(session) => self.sessions.subject(&self.tokens, session).unwrap_or(Subject::Own),
            Credential::Token(_) | Credential::Nothing => Subject::Own,
        }
    }

    /// The key of a link that signs another browser in, once, as the same user.
    pub fn new_link(&self, shown: &Credential<'_>) -> Result<String, Failure> {
        let (key, now, subject) = (draw(), SystemClock.awake(), self.subject(shown));
        let mut state = self.state();
        state.links.retain(|_, (_, until)| until.is_none_or(|until| now < until));
        if state.links.len() >= LINKS {
            return Err(Failure::new(Code::Throttled, "too many links were made and not followed"));
        }
        state.links.insert(digest(&key), (subject, Some(now + LINK)));
        Ok(key)
    }

    /// Ends the session of a browser, or all sessions.
    pub fn end_session(&self, shown: &Credential<'_>, everywhere: bool) -> Result<(), Failure> {
        match shown {
            _ if everywhere && self.subject(shown) == Subject::Own => self.sessions.end_all(),
            Credential::Session(session) => self.sessions.end(session),
            Credential::Token(_) | Credential::Nothing => Ok(()),
        }
        .map_err(Failure::from)
    }

    /// Counts a failure of a client at this address. Answers with the refusal.
    fn record_failure(&self, address: IpAddr) -> Failure {
        let now = SystemClock.awake();
        let mut state = self.state();
        let too_often = || refused(Code::Throttled, "wrong too often; try again in a minute");
        if state.failures.len() >= REMEMBERED && !state.failures.contains_key(&address) {
            state.failures.retain(|_, (_, since)| now.saturating_sub(*since) < WINDOW);
            if state.failures.len() >= REMEMBERED {
                return too_often();
            }
        }
        let (times, since) = state.failures.entry(address).or_insert((0, now));
        if now.saturating_sub(*since) >= WINDOW {
            (*times, *since) = (0, now);
        }
        *times = times.saturating_add(1);
        if *times > FAILURES { too_often() } else { unknown() }
    }

    /// Whether a client may make one request more now.
    pub fn has_rate(&self, who: &Who) -> bool {
        let (name, now) = (who.user.clone().unwrap_or_default(), SystemClock.awake());
        let mut state = self.state();
        let (rate, burst) = (f64::from(self.limits.rate), f64::from(self.limits.burst));
        let (left, since) = state.rates.entry(name).or_insert((burst, now));
        *left = (*left + now.saturating_sub(*since).as_secs_f64() * rate).min(burst);
        *since = now;
        let has = *left >= 1.0;
        if has {
            *left -= 1.0;
        }
        has
    }
}

fn unknown() -> Failure {
    refused(Code::Unauthorised, "invalid or missing credentials")
}

fn refused(code: Code, message: &str) -> Failure {
    let hint = "send `Authorization: Bearer TOKEN`, which `outlive token create NAME` makes; a browser opens the link that `outlive serve` prints";
    Failure { code, body: crate::call::body(code, message, Some(hint.into())) }
}

#[cfg(test)]
mod tests {
    use outlive::time::Timestamp;

    use super::*;

    fn authentication() -> (tempfile::TempDir, Tokens, Authentication) {
        let home = tempfile::tempdir().unwrap();
        let tokens = Tokens::at(home.path().join("home")).unwrap();
        let authentication = Authentication::new(tokens.clone(), None, 7_878, Vec::new(), Limits::default()).unwrap();
        (home, tokens, authentication)
    }

    #[test]
    fn s_16_s_17_own_token_is_valid_on_this_machine_alone() {
        let (_home, tokens, authentication) = authentication();
        let (own, made) =
            (tokens.own().unwrap(), tokens.create("ada", Role::Read, None, Timestamp::default()).unwrap());
        let knows = |address: &str, token: &str| {
            authentication.who(Peer::Address(address.parse().unwrap()), &Credential::Token(token)).is_ok()
        };
        for address in ["127.0.0.1", "::1"] {
            assert!(knows(address, &own) && knows(address, &made), "{address}");
        }
        for address in ["192.0.2.1", "10.0.0.1", "fe80::1", "0.0.0.0"] {
            assert!(!knows(address, &own) && knows(address, &made), "{address}");
        }
    }

    #[test]
    fn s_17_s_20_right_credentials_pass_however_often_others_failed() {
        let (_home, tokens, authentication) = authentication();
        let peer = Peer::Address([127, 0, 0, 1].into());
        let refused = |shown: &Credential<'_>| authentication.who(peer, shown).unwrap_err().code;
        let cookie = authentication.begin_session(peer, authentication.link()).ok().unwrap();
        for times in 1..=100 {
            let guess = format!("{times:064}");
            let (shown, is_stopped) = (Credential::Session(&guess), times > FAILURES);
            let code = if is_stopped { Code::Throttled } else { Code::Unauthorised };
            assert_eq!(refused(&shown), code, "guess {times}");
        }
        // By whatever is guessed.
        assert_eq!(refused(&Credential::Token("guess")), Code::Throttled);
        assert_eq!(authentication.begin_session(peer, "guess").unwrap_err().code, Code::Throttled);
        assert_eq!(authentication.prove(peer, "guess", "question", None).unwrap_err().code, Code::Throttled);
        // None of these was shown before.
        let made = tokens.create("ada", Role::Read, None, Timestamp::default()).unwrap();
        for token in [&made, &tokens.own().unwrap()] {
            assert!(authentication.prove(peer, &known_by(&digest(token)), "question", None).is_ok());
            assert!(authentication.who(peer, &Credential::Token(token)).is_ok());
        }
        // The link was followed; another is made by a browser that is signed in.
        let link = authentication.new_link(&Credential::Session(&cookie)).ok().unwrap();
        let second = authentication.begin_session(peer, &link).ok().unwrap();
        assert!(
            [&link, authentication.link()].iter().all(|used| authentication.begin_session(peer, used).is_err()),
            "a link is good once"
        );
        assert!([cookie, second].iter().all(|cookie| authentication.who(peer, &Credential::Session(cookie)).is_ok()));
        // And elsewhere no client was wrong.
        let elsewhere = Peer::Address([192, 0, 2, 1].into());
        assert_eq!(authentication.who(elsewhere, &Credential::Token("guess")).unwrap_err().code, Code::Unauthorised);
    }

    #[test]
    fn t4_10_a_session_by_token_has_its_role_and_ends_with_it() {
        let (_home, tokens, authentication) = authentication();
        let peer = Peer::Address([127, 0, 0, 1].into());
        let token = tokens.create("ada", Role::Read, None, Timestamp::default()).unwrap();
        let cookie = authentication.begin_session_by_token(peer, &token).ok().unwrap();
        let who = authentication.who(peer, &Credential::Session(&cookie)).ok().unwrap();
        assert_eq!((who.user.as_deref(), who.may), (Some("ada"), Role::Read.may()));
        // A link that such a session makes is for the same user, and it ends no session of others.
        let link = authentication.new_link(&Credential::Session(&cookie)).ok().unwrap();
        let other = authentication.begin_session(peer, &link).ok().unwrap();
        assert_eq!(authentication.who(peer, &Credential::Session(&other)).ok().unwrap().user.as_deref(), Some("ada"));
        authentication.end_session(&Credential::Session(&cookie), true).ok().unwrap();
        let knows = |cookie: &str| authentication.who(peer, &Credential::Session(cookie)).is_ok();
        assert_eq!((knows(&cookie), knows(&other)), (false, true));
        tokens.revoke("ada").unwrap();
        assert!(!knows(&other));
        assert!(authentication.begin_session_by_token(peer, &token).is_err());
    }

    #[test]
    fn s_20_requests_above_the_rate_are_refused() {
        let (_home, _tokens, authentication) = authentication();
        let [one, other] = ["ada", "bob"].map(|name| Who { user: Some(name.into()), ..Who::own(Role::Read.may()) });
        assert!((0..100_000).any(|_| !authentication.has_rate(&one)), "no request was ever refused");
        assert!(authentication.has_rate(&other), "requests of another client were counted");
    }
}
