"""`nki.language.dtypes`: the same names as `nki.dtype`."""

from nki_sim.nki.dtype import *  # noqa: F403  # the same names under another module path
