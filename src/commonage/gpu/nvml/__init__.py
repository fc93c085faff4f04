"""GPUs of NVIDIA, through its management library."""
