"""What a program's bytes are kept in until they are written."""
