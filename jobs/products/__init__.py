"""The output of a run: messages, queues, index and configuration."""

from jobs.products.registry import PRODUCT_NAMES, PRODUCTS, Product

__all__ = [
    "PRODUCTS",
    "PRODUCT_NAMES",
    "Product",
]
