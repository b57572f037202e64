"""With a GPU: cubins loaded and launched through CUDA's driver interface, verified and timed."""
