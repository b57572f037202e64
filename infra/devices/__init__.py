"""Devices that several may use: whose they are, and who may measure. Shipped."""
