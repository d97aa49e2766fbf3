"""What several tests need: datasets, a fake device, child processes, patience."""
