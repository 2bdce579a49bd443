"""PyTorch twins of the Triton kernels: same names, same signatures, the same promise of row invariance."""
