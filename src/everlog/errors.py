"""Everything everlog raises.

    EverlogError
    ├── NotFoundError              no such session, record or name
    ├── InvalidIdError             an id or name that must never become a path
    ├── ConflictError              expected_seq, no_marker_after, lease or id does not match
    ├── UnconfirmedError           the session of another program, which you did not say to continue here
    ├── SessionBusyError           another writer or turn holds the session
    │   └── QueueFullError         too many messages are waiting for it
    ├── LogDamagedError            an operation needs bytes that are damaged
    ├── FormatError                a value or file that this version cannot represent
    │   └── UnsupportedError       the format of the session's files has no place for it
    ├── StoreFullError             a limit or the disk is reached; reading still works
    ├── StoreFailedError           the disk or the database failed; nothing was acknowledged
    ├── ContextOverflowError       the context does not fit the model's window
    ├── ProviderError              a model call failed
    │   ├── ProviderUnavailableError   for now: the same call may succeed later
    │   ├── ProviderDeniedError        the key or the account is not accepted
    │   └── ProviderRefusedError       the provider will not answer this request
    ├── RunCancelledError          a turn was stopped before its end
    └── SettingsError              the configuration cannot be used

Each carries facts (session, part, byte, seq …) and, where something can be done, a hint.
A torn tail is not an error: it is reported as a recovery.
"""

from __future__ import annotations


class EverlogError(Exception):
    """Base class of all errors that everlog raises."""

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
    """The id or name is not valid; nothing was touched."""


class ConflictError(EverlogError):
    """What is stored is not what the caller expected; nothing was written."""


class UnconfirmedError(EverlogError):
    """The session is another program's, and you did not say to continue it here; nothing was written."""


class SessionBusyError(EverlogError):
    """Another writer or turn holds the session; nothing was written."""


class QueueFullError(SessionBusyError):
    """The queue of the session is full; this message was not accepted."""


class LogDamagedError(EverlogError):
    """The operation needs bytes of the log that are damaged."""


class FormatError(EverlogError):
    """This version cannot represent the value or the file; nothing was written."""


class UnsupportedError(FormatError):
    """The format of the session's files has no place for it; nothing was written."""


class StoreFullError(EverlogError):
    """A size limit or the disk is reached; nothing was written and reading still works."""


class StoreFailedError(EverlogError):
    """The disk or the database failed; nothing of the call was acknowledged."""


class SettingsError(EverlogError):
    """The configuration cannot be used."""


class ContextOverflowError(EverlogError):
    """The context does not fit the model's window, and nothing more can be left out."""


class ProviderError(EverlogError):
    """A model call failed; the session is as it was."""


class ProviderUnavailableError(ProviderError):
    """The provider cannot answer for now; `retry_after` is how long it asks you to wait."""

    def __init__(self, message: str, *, hint: str = "", retry_after: float | None = None, **facts: object) -> None:
        super().__init__(message, hint=hint, **facts)
        self.retry_after = retry_after  # seconds


class ProviderDeniedError(ProviderError):
    """The provider does not accept the key or the account."""


class ProviderRefusedError(ProviderError):
    """The provider will not answer this request, however often it is asked."""


class RunCancelledError(EverlogError):
    """The turn was stopped before its end; the messages up to then are kept."""
