#!/usr/bin/env python3
"""Records a session in a real terminal and renders it as docs/images/demo.svg.

`PATH=target/debug:$PATH python3 docs/images/record.py` types the commands below into bash on a pseudo-terminal, in a fresh
directory with a home of its own, and writes what the terminal shows, colours included, as text in an SVG.
"""

import html
import os
import pty
import re
import select
import shutil
import struct
import tempfile
import fcntl
import termios
from pathlib import Path

COMMANDS = [
    "outlive run -d --name train -- examples/train.sh",
    "outlive wait train --line 'epoch 2'",
    "kill -9 -- -$(outlive show train --json | jq .owner_pid)   # a crash",
    "outlive wait train",
    "outlive ps",
    "outlive resume train",
    "outlive wait train",
    "outlive logs train",
]
COLUMNS, CELL, LINE, MARGIN, LIMIT = 100, 8.43, 19, 14, 60.0
# What bash prints when it waits for a command; no output of a command has it.
PROMPT = "\x1b[1;36m$\x1b[0m "
COLOURS = {"31": "#ff7b72", "32": "#7ee787", "33": "#e3b341", "34": "#79c0ff", "35": "#d2a8ff", "36": "#76e3ea", "90": "#8b949e"}


def record(root: Path) -> str:
    """What the terminal was sent from the first command to the prompt behind the last."""
    with tempfile.TemporaryDirectory() as directory:
        work = Path(directory, "work")
        Path(work, ".git").mkdir(parents=True)
        shutil.copytree(root / "examples", work / "examples")
        pid, master = pty.fork()
        if pid == 0:
            os.chdir(work)
            environment = {
                "PATH": os.environ["PATH"], "HOME": directory, "OUTLIVE_HOME": directory + "/home", "TERM": "xterm-256color",
                "LC_ALL": "C.UTF-8", "PS1": PROMPT, "INPUTRC": "/dev/null", "BASH_SILENCE_DEPRECATION_WARNING": "1",
            }
            os.execve("/bin/bash", ["bash", "--norc", "--noprofile", "--noediting"], environment)
        fcntl.ioctl(master, termios.TIOCSWINSZ, struct.pack("HHHH", 40, COLUMNS, 0, 0))
        read_until_prompt(master)
        shown = PROMPT
        for command in COMMANDS:
            os.write(master, command.encode() + b"\n")
            shown += read_until_prompt(master)
        os.write(master, b"exit\n")
        os.waitpid(pid, 0)
        return shown.removesuffix(PROMPT)


def read_until_prompt(master: int) -> str:
    text = ""
    while not text.endswith(PROMPT):
        ready, _, _ = select.select([master], [], [], LIMIT)
        if not ready:
            raise SystemExit(f"no prompt within {LIMIT:.0f} s after: {text!r}")
        text += os.read(master, 65536).decode()
    return text


def lines(shown: str) -> list[list[tuple[str, str]]]:
    """Lines of pieces: a style and its text, wrapped where the terminal wraps."""
    result, style, column = [[]], "", 0
    for part in re.split(r"(\x1b\[[0-9;]*[a-zA-Z]|\x1b\][^\x07]*\x07|\r|\n)", shown):
        if part == "\n":
            result.append([])
            column = 0
        elif part.startswith("\x1b[") and part.endswith("m"):
            codes = part[2:-1].split(";")
            colour = next((COLOURS[code] for code in codes if code in COLOURS), None)
            bold, dim = "1" in codes, "2" in codes
            if set(codes) <= {"", "0"}:
                style = ""
            else:
                style = (f' fill="{colour}"' if colour else "") + (' font-weight="bold"' if bold else "") + (' opacity=".6"' if dim else "")
        elif part and part[0] not in "\x1b\r":
            while part:
                room = COLUMNS - column
                result[-1].append((style, part[:room]))
                column, part = column + len(part[:room]), part[room:]
                if part:
                    result.append([])
                    column = 0
    while result and not result[-1]:
        result.pop()
    return result


def svg(rows: list[list[tuple[str, str]]]) -> str:
    width, height = COLUMNS * CELL + 2 * MARGIN, len(rows) * LINE + 2 * MARGIN
    texts = []
    for number, row in enumerate(rows):
        pieces = "".join(f"<tspan{style}>{html.escape(text)}</tspan>" if style else html.escape(text) for style, text in row)
        texts.append(f'<text x="{MARGIN}" y="{MARGIN + number * LINE + 14}" xml:space="preserve">{pieces}</text>')
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}" role="img" '
        f'font-family="ui-monospace,SFMono-Regular,Menlo,Consolas,monospace" font-size="14" fill="#e6edf3">\n'
        f"<title>A training is killed, shown as dead and resumed</title>\n"
        f'<rect width="100%" height="100%" rx="8" fill="#0d1117"/>\n' + "\n".join(texts) + "\n</svg>\n"
    )


if __name__ == "__main__":
    root = Path(__file__).resolve().parents[2]
    picture = svg(lines(record(root)))
    (root / "docs/images/demo.svg").write_text(picture)
    print(f"docs/images/demo.svg: {len(picture)} bytes")
