"""Compile the host code of CUDA libraries, for this machine or for another one."""
