"""Cases of aws-neuron/nki-library: attention, projections, mixtures of experts and what they are built from."""
