"""`nki.isa.constants`."""

from nki_sim.isa.constants import *  # noqa: F403  # the same names under NKI's own module path
