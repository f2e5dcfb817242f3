"""A method as a diagram: a lane per device, and an HTML page around it."""
