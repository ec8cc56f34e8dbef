//! Programs that paint the whole screen, in tmux: its picture of the screen is what is compared.

use std::collections::BTreeMap;
use std::process::Command;

use super::piped::{difference, differences_of_files};
use super::place::{Deadline, Dir, Place, Way};
use crate::sandbox::text;

/// Something that is done with such a program.
pub(super) struct Screen {
    pub(super) name: &'static str,
    needs: &'static str,
    /// A script for `sh`, in which `"$@"` stands for `outlive run --` or nothing; how it ended is shown at its end.
    script: &'static str,
    steps: &'static [Step],
}

#[derive(Debug, Clone, Copy)]
enum Step {
    /// Presses these, by their names in tmux.
    Keys(&'static [&'static str]),
    /// Types this.
    Type(&'static str),
    /// Types this line.
    Enter(&'static str),
    /// Waits until this is on the screen.
    Await(&'static str),
    /// Waits until the screen is as the bare command's was.
    Picture,
    /// Makes the window this wide and high.
    Resize(&'static str, &'static str),
}

use Step::{Await, Enter, Keys, Picture, Resize, Type};

pub(super) const SCREENS: &[Screen] = &[
    Screen {
        name: "vim writes a file",
        needs: "vim",
        script: r#"seq 40 > text; "$@" vim -u NONE -i NONE -n -N text"#,
        steps: &[
            Await("40L"),
            Picture,
            Type("ihello world"),
            Keys(&["Escape"]),
            Await("hello world1"),
            Picture,
            Resize("60", "15"),
            Picture,
            Resize("90", "30"),
            Await("29"),
            Picture,
            Enter(":w"),
            Await("written"),
            Picture,
            Enter(":q"),
            Await("status 0"),
            Picture,
        ],
    },
    Screen {
        name: "vim gives up",
        needs: "vim",
        script: r#"echo one > text; "$@" vim -u NONE -i NONE -n -N text"#,
        steps: &[
            Await("1L"),
            Type("itwo"),
            Keys(&["Escape"]),
            Await("twoone"),
            Picture,
            Enter(":cq"),
            Await("status 1"),
            Picture,
        ],
    },
    Screen {
        name: "vim steps aside and comes back",
        needs: "vim",
        script: r#"echo 'PS1="ask> "' > rc; V="$*"; export V; exec bash --noprofile --rcfile rc -i"#,
        steps: &[
            Await("ask>"),
            Enter("$V vim -u NONE -i NONE -n -N text"),
            Await("[New]"),
            Type("iab"),
            Keys(&["Escape", "C-z"]),
            Await("Stopped"),
            Enter("fg"),
            Await("~"),
            Type("acd"),
            Keys(&["Escape"]),
            Await("abcd"),
            Enter(":w"),
            Await("written"),
            Enter(":q"),
            Await("Stopped"),
            Enter("echo end $?"),
            Await("end 0"),
        ],
    },
    Screen {
        name: "less turns pages",
        needs: "less",
        script: r#"seq 1000 > text; "$@" less text"#,
        steps: &[
            Await("23"),
            Picture,
            Type(" "),
            Await("46"),
            Picture,
            Enter("/777"),
            Await("777"),
            Picture,
            Type("G"),
            Await("1000"),
            Picture,
            Type("q"),
            Await("status 0"),
            Picture,
        ],
    },
    Screen {
        name: "less reads a pipe",
        needs: "less",
        script: r#"seq 1000 | "$@" less"#,
        steps: &[Await("23"), Picture, Type(" "), Await("46"), Picture, Type("q"), Await("status 0"), Picture],
    },
    Screen {
        name: "top until q",
        needs: "top",
        script: r#""$@" top -d 100"#,
        steps: &[Await("COMMAND"), Type("q"), Await("status 0")],
    },
    Screen {
        name: "top once",
        needs: "top",
        script: r#""$@" top -n 1"#,
        steps: &[Await("COMMAND"), Await("status 0")],
    },
];

impl Screen {
    /// The differences, or why there was nothing to compare.
    pub(super) fn compare(&self, place: &Place) -> Result<Vec<String>, String> {
        if let Some(program) = ["tmux", "bash", self.needs].into_iter().find(|program| !super::is_installed(program)) {
            return Err(format!("`{program}` is not installed"));
        }
        let bare = self.run(place, Way::Bare, None);
        let wrapped = self.run(place, Way::Wrapped, Some(&bare.pictures));
        let mut found = Vec::new();
        for (way, seen) in [("bare", &bare), ("wrapped", &wrapped)] {
            found.extend(seen.in_vain.as_ref().map(|in_vain| format!("waited in vain {way} for {in_vain}")));
        }
        for (at, (bare, wrapped)) in bare.pictures.iter().zip(&wrapped.pictures).enumerate() {
            found.extend(difference(&format!("picture {at}"), bare.as_bytes(), wrapped.as_bytes()));
        }
        found.extend(differences_of_files(&bare.files, &wrapped.files));
        Ok(found)
    }

    fn run(&self, place: &Place, way: Way, model: Option<&[String]>) -> Seen {
        let tmux = Tmux { place, dir: place.empty(self.name) };
        let script = format!("{}\necho \"status $?\"; read end", self.script);
        let words = ["new-session", "-d", "-x", "80", "-y", "24", "sh", "-c", &script, "sh"];
        assert!(tmux.command(&words).args(way.words()).status().unwrap().success(), "tmux does not start");
        let (mut pictures, mut in_vain) = (Vec::new(), None);
        for step in self.steps {
            let deadline = Deadline::of(self.name, way);
            let done = match *step {
                Keys(keys) => tmux.does(&[&["send-keys"], keys].concat()),
                Type(text) => tmux.does(&["send-keys", "-l", text]),
                Enter(line) => tmux.does(&["send-keys", "-l", line]) && tmux.does(&["send-keys", "Enter"]),
                Resize(columns, rows) => tmux.does(&["resize-window", "-x", columns, "-y", rows]),
                Await(text) => deadline.until(|| tmux.picture().contains(text)),
                Picture => {
                    pictures.push(match model.and_then(|model| model.get(pictures.len())) {
                        Some(model) => tmux.picture_like(model, &deadline),
                        None => tmux.still_picture(&deadline),
                    });
                    true
                }
            };
            if !done {
                in_vain = Some(format!("{step:?} on\n{}", tmux.picture()));
                break;
            }
        }
        let mut files = tmux.dir.files();
        files.retain(|name, _| name == "text");
        Seen { pictures, files, in_vain }
    }
}

/// What a user could see of it.
struct Seen {
    pictures: Vec<String>,
    files: BTreeMap<String, (u32, Vec<u8>)>,
    /// What did not happen.
    in_vain: Option<String>,
}

/// A tmux server of our own.
struct Tmux<'a> {
    place: &'a Place,
    dir: Dir,
}

impl Tmux<'_> {
    fn command(&self, words: &[&str]) -> Command {
        let mut command =
            self.place.command(&self.dir, ["tmux", "-f", "/dev/null", "-S", "socket"].iter().chain(words));
        command.env("TERM", "screen");
        command
    }

    fn does(&self, words: &[&str]) -> bool {
        self.command(words).status().unwrap().success()
    }

    fn picture(&self) -> String {
        text(&self.command(&["capture-pane", "-p"]).output().unwrap().stdout)
    }

    /// The screen, once it is as it should be or the time is over.
    fn picture_like(&self, model: &str, deadline: &Deadline) -> String {
        let mut picture = String::new();
        deadline.until(|| {
            picture = self.picture();
            picture == model
        });
        picture
    }

    /// The screen, once it has not changed for a few looks.
    fn still_picture(&self, deadline: &Deadline) -> String {
        let (mut picture, mut looks) = (self.picture(), 0);
        deadline.until(|| {
            let next = self.picture();
            looks = if next == picture { looks + 1 } else { 0 };
            picture = next;
            looks == 5
        });
        picture
    }
}

impl Drop for Tmux<'_> {
    fn drop(&mut self) {
        let _ = self.command(&["kill-server"]).status();
    }
}
