"""Triton kernels, each with a PyTorch twin of the same signature in `reference`.

This file is a docstring and nothing else: Python started in a checkout may import it as top-level `kernels`, because
other libraries look for a distribution of that name.
"""
