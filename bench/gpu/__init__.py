"""What `bench/gpu_check.sh` checks and measures on a machine with an NVIDIA GPU."""
