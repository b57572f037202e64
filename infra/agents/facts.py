"""What an agent may read before it writes a kernel by hand: as models of runs are taught it, one matter at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from infra.settings_reader import SettingsError

if TYPE_CHECKING:
    import config

MOST_REMEMBERED = 40
"""Experiences, the newest."""


def text_of(about: str, name: str | None, settings: config.Settings) -> str:
    """`about`: as `requests.Facts` has it; `name`: an instruction of the API. Raises SettingsError where there is none."""
    from accelopt_core.languages.nki.dialect import Dialect
    from accelopt_core.languages.nki.machine_facts import machine_facts
    from accelopt_core.model.prompting import render
    from infra.assembly.targets import machine_of
    from infra.runs.memory_file import MemoryFile
    from nki_sim.machine import machine
    from nki_sim.reference import instruction_list, instruction_text

    if about == "memory":
        known = MemoryFile(settings.run.memory, lambda line: None).load().experiences
        newest = sorted(known, key=lambda each: each.date)[-MOST_REMEMBERED:]
        return "\n".join(f"- {each.title}: {each.summary}" for each in newest) or "Nothing is remembered yet."
    where = machine_of(settings)
    if about == "api":
        try:
            return instruction_list(where) if name is None else instruction_text(name, where)
        except KeyError:
            raise SettingsError(f"facts: no instruction is called {name}: `api` without a name lists all") from None
    return render("nki", f"nki/{about}.j2", machine=machine_facts(machine(where)), dialect=Dialect())
