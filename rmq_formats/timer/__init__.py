"""Timer messages in files (5.0.0+): a wheel of slots by time of delivery, and a log of units that slots lead to."""
