"""A method's plan: its values and instructions, read, analyzed and checked."""
