"""What can go wrong, as exceptions. The text is the engine's: it names object and numbers."""

from __future__ import annotations


class Error(Exception):
    """A call that failed. The objects are as they were before it.

    ``code`` is the name that logs and the C interface use, for example ``"no_space"``.
    """

    code = "error"


class InvalidArgumentError(Error, ValueError):
    """Something was passed that can never work, or the object is closed."""

    code = "invalid_argument"


class NotFoundError(Error, LookupError):
    """The named object does not exist. (A cache miss is no error.)"""

    code = "not_found"


class NoSpaceError(Error):
    """The budget has no room now. Wait, evict, or close what holds blocks, and try again."""

    code = "no_space"


class TooLargeError(Error):
    """The budget can never hold it: do not try again."""

    code = "too_large"


class BusyError(Error):
    """Somebody else holds it; the text says who."""

    code = "busy"


class CorruptError(Error):
    """Bytes from outside do not have the promised form."""

    code = "corrupt"


class IoError(Error):
    """The operating system or a peer failed."""

    code = "io"


class UnsupportedError(Error):
    """Well formed, but nothing that this build, machine or model can do."""

    code = "unsupported"


class CancelledError(Error):
    """The caller asked to stop."""

    code = "cancelled"


class DeadlineError(Error, TimeoutError):
    """It did not finish in the time given."""

    code = "deadline"


BY_CODE = {
    error.code: error
    for error in (
        InvalidArgumentError,
        NotFoundError,
        NoSpaceError,
        TooLargeError,
        BusyError,
        CorruptError,
        IoError,
        UnsupportedError,
        CancelledError,
        DeadlineError,
    )
}
