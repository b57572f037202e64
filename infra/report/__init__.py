"""A run, or a suite, as one HTML file: facts -> a page's model -> plots -> a template (docs/runs.md)."""
