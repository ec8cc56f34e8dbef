"""`logging`: a handler that shows what a program logs as the progress of its run.

>>> import logging, outlive
>>> log, handler = logging.getLogger("importer"), Handler()
>>> log.addHandler(handler)
>>> with outlive.run("import", registry="memory:") as run:
...     run.progress(7, 10)
...     log.warning("row %d is empty", 7)
...     saved = run.save(7)
...     run.view().progress
{'done': 7, 'total': 10, 'message': 'row 7 is empty'}
>>> log.removeHandler(handler)
"""

from __future__ import annotations

import logging

from . import _api

__all__ = ["Handler"]


class Handler(logging.Handler):
    """Says the last message as the progress of the current run: at most one write a second, none outside a run."""

    def __init__(self, level: int = logging.INFO) -> None:
        super().__init__(level)

    def emit(self, record: logging.LogRecord) -> None:
        # The package's own messages would be said while it says them.
        if record.name.partition(".")[0] == "outlive":
            return
        try:
            run = _api.current()
            if run is not None:
                run.progress(*run._counts, self.format(record))
        except Exception:
            self.handleError(record)
