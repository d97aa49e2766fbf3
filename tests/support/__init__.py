"""What several tests need: datasets, a fake device, patience."""
