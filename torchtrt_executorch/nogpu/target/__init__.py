"""The GPU and the machine that a host without one compiles for."""
