"""FlashInfer-Bench's data sets: a definition and its workloads as a task, solutions as kernels, and back."""
