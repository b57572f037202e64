"""Rules about loops: their order, their blocks, several passes at once, passes that overlap."""
