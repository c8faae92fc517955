"""A damaged store repaired: a plan from what was found, new files beside the store, installed with a backup, undone."""
