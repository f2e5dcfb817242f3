"""What calls took: times by instruction, statistics, and ETDumps."""
