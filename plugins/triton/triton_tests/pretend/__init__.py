"""A pretend GPU: NVIDIA's Python bindings as the worker imports them, with a device behind them that tests steer."""
