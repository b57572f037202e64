"""A program's time: costs, one scheduler, two cores, how sure a latency is, the machine as one device showed it."""
