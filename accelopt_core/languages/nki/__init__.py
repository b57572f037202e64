"""NKI, for the NeuronCores of AWS Trainium."""
