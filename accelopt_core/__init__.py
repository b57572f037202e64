"""What is optimised. Knows NKI; knows nothing of SSH, model vendors or where files live."""
