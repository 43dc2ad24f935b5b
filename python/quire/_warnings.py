"""Failures that cost an engine hits, never an answer."""

import contextlib
import logging
from collections.abc import Iterator

from quire._errors import Error


class Warnings:
    """Tells each kind of failure once. Any thread."""

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._told: set[str] = set()

    def tell(self, what: str, why: object) -> None:
        if what not in self._told:
            self._told.add(what)
            self._log.warning("quire: %s: %s", what, why)

    @contextlib.contextmanager
    def failing_softly(self, what: str) -> Iterator[None]:
        """What fails in this block costs what it was to do."""
        try:
            yield
        except Error as error:
            self.tell(what, error)
