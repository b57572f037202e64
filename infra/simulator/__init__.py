"""The simulated Trainium as a toolchain: kernels traced in processes of their own, run and timed as data. Shipped."""
