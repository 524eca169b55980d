"""Renames that never remove a file that another program has just put there.

A plain rename replaces whatever has the name by then. These exchange two names instead, or fail if
the new name is taken; both are one atomic step where the file system can do them.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable
from functools import cache

_EXCHANGE, _NO_REPLACE = (2, 4) if sys.platform == "darwin" else (2, 1)
_UNSUPPORTED = (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP)
_MAX_ROUNDS = 16
_Rename = Callable[[str, str, int, int], int]  # old and new name, folder, flags → errno


@cache
def _system_rename() -> _Rename:
    import ctypes  # noqa: PLC0415 - slow to import, and rarely needed

    library = ctypes.CDLL(None, use_errno=True)
    function = getattr(library, "renameatx_np" if sys.platform == "darwin" else "renameat2", None)

    def rename(old: str, new: str, folder: int, flags: int) -> int:
        if function is None:
            return errno.ENOSYS
        failed = function(folder, os.fsencode(old), folder, os.fsencode(new), ctypes.c_uint(flags))
        return ctypes.get_errno() if failed else 0

    return rename


def exchange(first: str, second: str, folder: int) -> bool:
    """Exchange the files behind two names; False if the file system cannot do that."""
    return _rename_with(first, second, folder, _EXCHANGE)


def rename_new(old: str, new: str, folder: int) -> None:
    """Rename a file; FileExistsError if the new name is taken."""
    if not _rename_with(old, new, folder, _NO_REPLACE):
        os.link(old, new, src_dir_fd=folder, dst_dir_fd=folder)
        os.unlink(old, dir_fd=folder)


def _rename_with(old: str, new: str, folder: int, flags: int) -> bool:
    number = _system_rename()(old, new, folder, flags)
    if number in _UNSUPPORTED:
        return False
    if number:
        raise OSError(number, os.strerror(number), old)
    return True


def replace(temporary: str, name: str, folder: int, is_expected: Callable[[str], bool], ours: int) -> bool:
    """Put a file in the place of another, if `is_expected` accepts the other one.

    It is called with the name that the other one has by then. `ours` is the inode of the new file.
    Returns False if the other one was put back.
    """
    try:
        if not exchange(temporary, name, folder):  # the check and the rename are two steps then
            if not is_expected(name):
                return False
            os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
            return True
    except FileNotFoundError:
        if not is_expected(name):
            return False
        try:
            rename_new(temporary, name, folder)
        except FileExistsError:
            return False
        return True
    if is_expected(temporary):
        return True
    _put_back(temporary, name, folder, ours)
    return False


def _put_back(temporary: str, name: str, folder: int, ours: int) -> None:
    """Exchange back, so that the newest file of the other program has its name again.

    `ours` is the inode that we had put there. Their program may put yet another file there
    meanwhile, which is then the newest.
    """
    for _ in range(_MAX_ROUNDS):
        theirs = os.stat(temporary, dir_fd=folder).st_ino
        exchange(temporary, name, folder)
        if os.stat(temporary, dir_fd=folder).st_ino == ours:
            return
        ours = theirs
