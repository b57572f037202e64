"""What a process that was forked, and goes on as if it had been started, does first and last. Linux.

Standard library only: it is shipped.
"""

from __future__ import annotations

import contextlib
import os
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping
from typing import NoReturn


def take_environment(environment: Mapping[str, str]) -> None:
    """All that it has; nothing of whom it was forked from."""
    os.environ.clear()
    os.environ.update(environment)


def keep_files(kept: Iterable[int]) -> None:
    """Close every file but these, and let the standard ones that are not among them lead nowhere.

    Python's own objects for closed files must be gone: they would close what takes their number later.
    """
    stay = {*kept, 0, 1, 2}
    for number in map(int, os.listdir("/proc/self/fd")):
        if number not in stay:
            with contextlib.suppress(OSError):  # the one that listed them is closed already
                os.close(number)
    nowhere = os.open(os.devnull, os.O_RDWR)
    for number in {0, 1, 2} - set(kept):
        os.dup2(nowhere, number)
    if nowhere > 2:
        os.close(nowhere)


def end_as(work: Callable[[], int]) -> NoReturn:
    """End this process with that status, whatever is raised: the loop that it was forked from is not its own."""
    status = 1
    try:
        status = work()
    except SystemExit as left:
        status = left.code if isinstance(left.code, int) else int(left.code is not None)
        if left.code is not None and not isinstance(left.code, int):  # as Python ends
            with contextlib.suppress(Exception):
                print(left.code, file=sys.stderr, flush=True)
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
        os._exit(status & 255)
