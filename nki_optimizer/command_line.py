"""What the installed commands `nki-optimizer` and `nki-sim` run: the tree's own programs, from any folder."""

from __future__ import annotations

import sys

from nki_optimizer import TREE

COMPLETION = "--print-completion"
"""With the name of a shell behind it: the script by which that completes the command."""


def optimizer() -> int:
    """The exit status of `orchestrator.py` with the arguments of this process."""
    _enter("orchestrator.py")
    if sys.argv[1:2] == [COMPLETION]:
        from nki_optimizer import completion

        return completion.print_script(completion.optimizer(), "".join(sys.argv[2:]))
    import orchestrator

    return orchestrator.main(sys.argv[1:])


def simulator() -> int:
    """The exit status of `python -m nki_sim` with the arguments of this process."""
    _enter("nki_sim/__main__.py", "nki_sim")
    if sys.argv[1:2] == [COMPLETION]:
        from nki_optimizer import completion

        return completion.print_script(completion.simulator(), "".join(sys.argv[2:]))
    from nki_sim.__main__ import main

    return main(program="nki-sim")


def _enter(script: str, module: str = "") -> None:
    """Makes the tree's modules those that are imported, and sees to output and interrupts as its scripts do."""
    sys.path.insert(0, str(TREE))
    import bootstrap

    bootstrap.enter(str(TREE / script), module=module)
