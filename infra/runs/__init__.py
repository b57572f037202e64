"""What a run leaves behind and may use up: its folder, evaluations, memory, log, budget; and suites of runs."""
