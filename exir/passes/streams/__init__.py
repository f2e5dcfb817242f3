"""Stream order of delegates, synchronization copies between them, and lifetimes of their tensors."""
