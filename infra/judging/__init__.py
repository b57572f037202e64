"""The judge process and what it needs: messages, the simulator as a toolchain, what is shipped to a host."""
