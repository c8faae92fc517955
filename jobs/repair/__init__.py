"""A damaged store repaired: a plan from the findings, new files outside the store, installation, and undo."""
