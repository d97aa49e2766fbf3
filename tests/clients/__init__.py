"""Real packages that use a DataLoader, with a ThreadLoader in its place."""
