"""Everything everlog raises.

    EverlogError
    ├── NotFoundError          no such session, record or name
    ├── InvalidIdError         an id or name that must never become a path
    ├── ConflictError          expect, guard or id does not match what is stored
    ├── SessionBusyError       another writer or turn holds the session
    │   └── QueueFullError     too many messages wait for it already
    ├── LogDamagedError        an operation needs bytes that are damaged
    ├── FormatError       a value or a file that this version cannot represent
    │   └── UnsupportedError   something that the session's own format has no place for
    ├── StoreFullError         a limit or the disk is reached; reading still works
    ├── StoreFailedError       the disk or the database refused; nothing was acknowledged
    ├── ContextOverflowError   a context that does not fit the model's window
    ├── ProviderError     a model call that failed
    │   ├── ProviderUnavailableError   for now: the same call may succeed later
    │   ├── ProviderDeniedError        the key or the account is not accepted
    │   └── ProviderRefusedError       the request is one that the provider will not answer
    ├── RunCancelledError      a turn was stopped before its end
    └── SettingsError     a configuration that cannot be used

Each carries facts (session, part, byte, seq …) and, where something can be done, a hint.
A torn tail is no error: it is a recovery report.
"""

from __future__ import annotations


class EverlogError(Exception):
    """Something that everlog can name went wrong."""

    def __init__(self, message: str, *, hint: str = "", **facts: object) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.facts = facts

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message


class NotFoundError(EverlogError):
    """There is no such session, record or name."""


class InvalidIdError(EverlogError):
    """The id or name is not one that may be used; nothing was touched."""


class ConflictError(EverlogError):
    """What is stored is not what the caller expected; nothing was written."""


class SessionBusyError(EverlogError):
    """Another writer or turn holds the session; nothing was written."""


class QueueFullError(SessionBusyError):
    """As many messages as may wait for the session are waiting; this one was not taken."""


class LogDamagedError(EverlogError):
    """The operation needs bytes of the log that are damaged."""


class FormatError(EverlogError):
    """This version cannot represent the value or the file; nothing was written."""


class UnsupportedError(FormatError):
    """The format of the session's files has no place for it; nothing was written."""


class StoreFullError(EverlogError):
    """A size limit or the disk is reached; nothing was written and reading still works."""


class StoreFailedError(EverlogError):
    """The disk or the database refused; nothing of the call was acknowledged."""


class SettingsError(EverlogError):
    """The configuration cannot be used."""


class ContextOverflowError(EverlogError):
    """The context does not fit the model's window, and nothing more can be left out."""


class ProviderError(EverlogError):
    """A model call failed; the session is as it was."""


class ProviderUnavailableError(ProviderError):
    """The provider cannot answer for now; `retry_after` is how long it asks to be left alone."""

    def __init__(
        self, message: str, *, hint: str = "", retry_after: float | None = None, **facts: object
    ) -> None:
        super().__init__(message, hint=hint, **facts)
        self.retry_after = retry_after  # seconds


class ProviderDeniedError(ProviderError):
    """The provider does not accept the key or the account."""


class ProviderRefusedError(ProviderError):
    """The provider will not answer this request, however often it is asked."""


class RunCancelledError(EverlogError):
    """The turn was stopped before its end; what was said until then is kept."""
