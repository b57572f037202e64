"""The outside world, behind the protocols of `accelopt_core.ports`."""
