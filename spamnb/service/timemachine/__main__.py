"""`python -m spamnb.service.timemachine`: make a preview, with less priority than the mail.

The task is a pickle on stdin, which the parent holds open as long as it lives; the result is one
line of JSON on stdout.
"""

from __future__ import annotations

import json
import os
import pickle
import resource
import sys
import threading
import traceback
from contextlib import suppress
from pathlib import Path
from typing import Any

from spamnb.errors import SpamnbError, StoreError
from spamnb.service.admin.client import failure
from spamnb.service.interpreter import lower_priority
from spamnb.service.timemachine.preview import PreviewTask, preview

_NICE = 10
_MOST_BYTES = 1 << 30
"""of memory; a transaction of 2,048 events takes some 100 MB"""
_FIRST_TO_END = "1000"
"""if the machine has no memory left, the kernel ends this process before those of the daemon"""


def main() -> int:
    """Run one task."""
    lower_priority(_NICE)
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(_FIRST_TO_END, encoding="ascii")
    _limit_memory()
    task = pickle.load(sys.stdin.buffer)  # noqa: S301 - from the parent process
    threading.Thread(target=_end_with_parent, daemon=True).start()
    sys.stdout.write(json.dumps(_answer(task)) + "\n")
    sys.stdout.flush()
    return 0


def _limit_memory() -> None:
    _, most = resource.getrlimit(resource.RLIMIT_DATA)
    most = _MOST_BYTES if most == resource.RLIM_INFINITY else min(most, _MOST_BYTES)
    resource.setrlimit(resource.RLIMIT_DATA, (most, most))


def _answer(task: PreviewTask) -> dict[str, Any]:
    try:
        return {"ok": True, "facts": preview(task)}
    except SpamnbError as error:
        return failure(error)
    except MemoryError:
        return failure(StoreError(f"the preview needs more than {_MOST_BYTES >> 20} MB of memory"))
    except Exception:  # noqa: BLE001 - the parent logs it
        return {"ok": False, "fault": traceback.format_exc()}


def _end_with_parent() -> None:
    os.read(sys.stdin.fileno(), 1)
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main())
