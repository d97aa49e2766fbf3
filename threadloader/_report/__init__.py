"""What a loader says of itself: rates, a verdict, metrics for a logger, a page."""
