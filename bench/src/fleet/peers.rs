//! How much each gets done: jobs that do nothing, made and done by one process, and by eight that stand by.
//!
//! A machine that is never quiet says little by how long things took, so the processor time of each is measured too: of its
//! own processes and of the server, for a job that is made, claimed, done and recorded as done.

use outlive::testing::server::Server;

use super::peer::{self, Crowd, Peer, Place};
use super::{processor_time, server_time, wal};
use crate::rounds::Spread;
use crate::scratch::Outcome;
use crate::time::measure;

/// How many processes stand by in a crowd.
const PROCESSES: usize = 8;
/// How many jobs each of them does at a time.
const SLOTS: &str = "100";

/// What the rounds measured of one.
#[derive(Default)]
struct Figures {
    enqueued: Vec<f64>,
    done: Vec<f64>,
    crowd: Vec<f64>,
    wal: Vec<f64>,
    own_time: Vec<f64>,
    server_time: Vec<f64>,
}

/// Measures all in turns.
pub(super) fn main() -> Outcome<bool> {
    let server = super::server();
    let peers = peer::all(&server)?;
    let mut all: Vec<Figures> = peers.iter().map(|_| Figures::default()).collect();
    let rounds = super::rounds(5);
    for round in 0..=rounds {
        for step in 0..peers.len() {
            // Nobody always follows the same neighbour.
            let place = (step + round) % peers.len();
            let mut scratch = Figures::default();
            // The first round warms up.
            let into = if round == 0 { &mut scratch } else { &mut all[place] };
            alone(&server, &peers[place], round, into)?;
            if round > 0 {
                crowd(&server, &peers[place], round, into)?;
            }
        }
    }
    println!(
        "jobs that do nothing, PostgreSQL with default durability; {rounds} rounds, interleaved; load {}",
        super::load()
    );
    for (peer, figures) in peers.iter().zip(&all) {
        print(peer, figures, &all[0]);
    }
    Ok(true)
}

/// One process makes jobs and then does them.
fn alone(server: &Server, peer: &Peer, round: usize, figures: &mut Figures) -> Outcome<()> {
    let place = peer.place(server, &format!("alone_{round}"));
    let (own, theirs, logged) = (processor_time("self"), server_time(server), wal(server)?);
    let said = place.call(&["drain", &peer.jobs.to_string()])?;
    let jobs = peer.jobs as f64;
    let seconds = |what: &str| -> Outcome<f64> {
        let line = said.lines().find_map(|line| line.strip_prefix(what));
        Ok(line.ok_or_else(|| format!("{} did not say `{what}`: {said}", peer.name))?.trim().parse()?)
    };
    figures.enqueued.push(jobs / seconds("enqueued")?);
    figures.done.push(jobs / seconds("done")?);
    figures.wal.push((wal(server)? - logged) / jobs);
    figures.own_time.push((processor_time("self") - own) / jobs);
    figures.server_time.push((server_time(server) - theirs) / jobs);
    Ok(())
}

/// Eight processes stand by while another makes jobs.
fn crowd(server: &Server, peer: &Peer, round: usize, figures: &mut Figures) -> Outcome<()> {
    let place = peer.place(server, &format!("crowd_{round}"));
    let mut crowd = Crowd::new();
    for _ in 0..PROCESSES {
        place.start(&["work", SLOTS], &mut crowd)?;
    }
    let seconds = measure(|| fill_and_wait(&place, peer, &crowd))?.as_secs_f64();
    figures.crowd.push(peer.jobs as f64 / seconds);
    Ok(())
}

fn fill_and_wait(place: &Place<'_>, peer: &Peer, crowd: &Crowd) -> Outcome<()> {
    place.call(&["fill", &peer.jobs.to_string()])?;
    for job in 0..peer.jobs {
        let trouble = || format!("{}: {job} of {} jobs were begun", peer.name, peer.jobs);
        crowd.picked(peer::PATIENCE).ok_or_else(trouble)?;
    }
    while place.left()? > 0 {
        std::thread::park_timeout(std::time::Duration::from_millis(5));
    }
    Ok(())
}

fn print(peer: &Peer, figures: &Figures, ours: &Figures) {
    println!("  {} ({} jobs a round)", peer.name, peer.jobs);
    for (what, values, ours) in [
        ("enqueued a second", &figures.enqueued, Some(&ours.enqueued)),
        ("claimed + finished a second", &figures.done, Some(&ours.done)),
        ("made and done by 8, a second", &figures.crowd, Some(&ours.crowd)),
        ("WAL bytes a job", &figures.wal, None),
        ("processor µs a job, program", &figures.own_time, None),
        ("processor µs a job, server", &figures.server_time, None),
    ] {
        let Spread { median, min, max, .. } = Spread::of(values);
        let ratios: Vec<f64> = ours.into_iter().flatten().zip(values).map(|(ours, theirs)| ours / theirs).collect();
        let ratio = Spread::of(&ratios);
        let compared = if ratios.is_empty() || peer.name == peer::OURS {
            String::new()
        } else {
            format!("  outlive is {:.2} ({:.2}..{:.2}) times as fast", ratio.median, ratio.min, ratio.max)
        };
        println!("    {what:<28} {median:>9.0} ({min:.0}..{max:.0}){compared}");
    }
}
