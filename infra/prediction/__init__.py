"""The simulated machine as a predictor: what kernels would take, before anything is evaluated."""
