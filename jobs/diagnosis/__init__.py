"""What a store's files say of each other, and what its broker would make of them."""
