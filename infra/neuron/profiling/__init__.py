"""The SDK's profiler: its version, its output, its numbers."""
