"""What a device really does, found by tiny kernels, and every kernel family checked on it."""
