"""A run as a notebook shows it."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ._views import RunView


def run_table(view: RunView) -> str:
    """A small table. Everything in it comes from a record that others may have written, and is escaped."""
    progress = view.progress
    done = f"{progress.get('done', '')}" + (f"/{progress['total']}" if progress.get("total") is not None else "")
    rows = [
        ("run", view.name or view.kind),
        ("id", view.id),
        ("state", view.state + (f" ({view.health})" if view.health else "")),
        ("attempt", str(view.attempt)),
        ("progress", " ".join(part for part in (done, progress.get("message") or "") if part)),
        ("error", ": ".join(part for part in (view.error_type, view.error_message) if part)),
    ]
    shown = "".join(f"<tr><th>{escape(head)}</th><td>{escape(text)}</td></tr>" for head, text in rows if text)
    return f"<table>{shown}</table>"
