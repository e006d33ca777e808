"""Native CPU kernels: matrix products, attention, the executor and its threads."""
