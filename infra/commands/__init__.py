"""Commands beside a run, each put together from settings: what `orchestrator.py <command>` carries out."""
