"""What `orchestrator.py <command>` and a call of the library carry out, each put together from settings."""
