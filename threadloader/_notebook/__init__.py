"""What a loader shows in a notebook: its stages as bars, and a plot over time."""
