"""What a store's files say of each other: which one is proven wrong, and what its broker would make of them."""
