"""What a timeline shows: a profiler's fields, who waits for whom, a chart."""
