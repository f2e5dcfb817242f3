"""Labels, placement and copies of values on devices (pytorch/executorch#18078)."""
