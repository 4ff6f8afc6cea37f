"""What becomes of a product before it is stored: alpha, beta C, bias, a Python function; one text for all kernels."""
