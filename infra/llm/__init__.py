"""Language models behind one verb: one file per provider, one line per provider in `registry`."""
