"""What holds of a program whatever its inputs: reads of what is written, sums in PSUM, types it computes in."""
