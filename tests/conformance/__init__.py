"""The same cases on torch's DataLoader and on ThreadLoader, compared exactly."""
