"""Rules about where data lies and how it gets there: transfers, tiles, partitions."""
