"""From settings to a finished run, put together here; what is built out of them knows no settings."""
