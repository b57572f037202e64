"""Rules about what engines compute: instructions fused, moved, done on another engine."""
